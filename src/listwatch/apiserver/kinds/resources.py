"""One resource of one group and version."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from listwatch.apiserver.kinds.kind import Converter, VersionConverter
from listwatch.schema.facts import Schema

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Subresource(msgspec.Struct, frozen=True):
    """A part of an object with its own path, such as status and scale."""

    name: str
    kind: str
    group: str
    version: str
    verbs: tuple[str, ...]


class APIResource:
    """One resource of one group and version.

    Attributes:
        storage: the storage key of its objects, shared by all versions of a resource.
        custom: facts from the custom resource definition; None for built-in kinds.
        convert: converts objects from and to the stored form of another version.
        versions: like `convert`, for a custom resource with several versions, whose rules apply to
            the request's version, not the stored one.
        mirror: the objects of a custom resource, converted to this version by a webhook.
    """

    __slots__ = (
        "api_version",
        "categories",
        "convert",
        "custom",
        "group",
        "kind",
        "list_kind",
        "mirror",
        "name",
        "namespaced",
        "object_prefix",
        "schema",
        "short_names",
        "singular",
        "storage",
        "subresources",
        "verbs",
        "version",
        "versions",
    )

    def __init__(
        self,
        group: str,
        version: str,
        name: str,
        kind: str,
        *,
        schema: Schema,
        namespaced: bool = True,
        list_kind: str = "",
        singular: str = "",
        verbs: Iterable[str] = ALL_VERBS,
        short_names: Iterable[str] = (),
        categories: Iterable[str] = (),
        subresources: Iterable[Subresource] = (),
        storage: str = "",
        custom: Mapping[str, Any] | None = None,
        convert: Converter | None = None,
    ) -> None:
        self.group = group
        self.version = version
        self.name = name
        self.kind = kind
        self.list_kind = list_kind or f"{kind}List"
        self.namespaced = namespaced
        self.singular = singular or kind.lower()
        self.verbs = frozenset(verbs)
        self.short_names = tuple(short_names)
        self.categories = tuple(categories)
        self.subresources = {sub.name: sub for sub in subresources}
        self.schema = schema
        self.api_version = f"{group}/{version}" if group else version
        self.storage = storage or (f"{group}/{name}" if group else name)
        self.custom = custom
        self.convert = convert
        self.versions: VersionConverter | None = None
        self.mirror: Any = None
        kind_json, version_json = (
            msgspec.json.encode(x).decode() for x in (kind, self.api_version)
        )
        #: the bytes before an object's stored bytes, which lack kind and apiVersion
        self.object_prefix = (
            f'{{"kind":{kind_json},"apiVersion":{version_json},'
            if custom is None
            else f'{{"apiVersion":{version_json},"kind":{kind_json},'
        ).encode()

    @property
    def qualified_name(self) -> str:
        """The name with the group, as in messages: `deployments.apps`, `pods`."""
        return f"{self.name}.{self.group}" if self.group else self.name

    @property
    def stored_group(self) -> str:
        """The group in which the server validates its objects: that of the stored form."""
        return self.storage.rpartition("/")[0]

    @property
    def qualified_kind(self) -> str:
        """The kind with the group, as in messages: `Lease.coordination.k8s.io`, `Pod`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind
