"""The kind of a list or watch: a response of another kind is refused."""

from collections.abc import Iterable
from typing import Final

from listwatch.errors import FrameError
from listwatch.objects import Object

#: The kinds in which a server sends metadata only.
_METADATA: Final = frozenset(
    ("PartialObjectMetadata", f"meta.k8s.io/{version}") for version in ("v1", "v1beta1")
)


class ExpectedKind:
    """Checks that objects and lists are of one kind and version.

    A list of kind K is a "KList", or a "List" whose items name their kind. The items' version
    matters, not the list's. A custom resource may have another `listKind`, which discovery does not
    report: in a group with a dot in its name, the first list decides the `listKind`.

    Args:
        kind: from discovery.
        api_version: the requested group and version.
        metadata_only: accept a `PartialObjectMetadata` for an object.
    """

    def __init__(self, kind: str, api_version: str, *, metadata_only: bool = False) -> None:
        self.kind = kind
        self.api_version = api_version
        self._others = _METADATA if metadata_only else frozenset()
        self._names = {kind, *(name for name, _ in self._others)}
        self._may_have_list_kind = "." in api_version.partition("/")[0]
        self._list_kind = ""

    def __repr__(self) -> str:
        return f"{self.kind} of {self.api_version}"

    def is_kind(self, kind: str, api_version: str) -> bool:
        """Return whether an object of this kind and version is expected."""
        is_own = kind == self.kind and api_version == self.api_version
        return is_own or (kind, api_version) in self._others

    def check_list(self, kind: str, api_version: str, items: Iterable[Object]) -> None:
        """Refuse a list of another kind.

        Args:
            kind: the list's kind; empty if it names none.
            api_version: the list's version; empty if it names none.
            items: the items, with their own kinds or those inherited from the list.

        Raises:
            FrameError: the list or one of its items is of another kind.
        """
        own, version = self.kind, self.api_version
        for item in items:  # a call per item would cost more than all the rest
            if (item.kind != own or item.api_version != version) and not self.is_kind(
                item.kind, item.api_version
            ):
                raise self.refusal(item.kind, item.api_version)
        name = kind.removesuffix("List")
        if not name or (name != kind and name in self._names):
            return
        if not self._may_have_list_kind or kind != (self._list_kind or kind):
            raise self.refusal(kind, api_version)
        self._list_kind = kind

    def refusal(self, kind: str, api_version: str) -> FrameError:
        """Return the error for an object or list of another kind."""
        return FrameError(
            f"the server sent {kind or 'an object without a kind'} ({api_version or 'no version'}) "
            f"where {self.kind} ({self.api_version}) was asked for"
        )
