"""Records which rights were asked for, for tests of programs."""

from collections.abc import Iterable
from typing import Final

import msgspec

from listwatch.apiserver.http.request_info import RequestInfo
from listwatch.apiserver.user import User

#: The user agent of a test's own client, whose requests are not those of a program under test.
TEST_CLIENT: Final = "listwatch-test"
#: Namespaces and names kept of one right: enough to tell one from several.
_KEPT: Final = 3
#: Rights kept; a program uses some dozens.
_LIMIT: Final = 10_000
#: What every authenticated user may do (the role system:basic-user).
_BASIC: Final = frozenset({"authorization.k8s.io", "authentication.k8s.io"})


class AskedRight(msgspec.Struct, kw_only=True, frozen=True):
    """A right that somebody asked for, once or more often.

    Attributes:
        program: the first word of the user agent, without its version.
        user: who asked.
        verb: such as "patch".
        group: "" for the core group.
        resource: plural name, with the subresource if there is one.
        namespaces: where; up to three of them, and none for the whole cluster.
        names: of the objects; up to three of them.
        refused: whether the user does not have the right.
    """

    program: str
    user: str
    verb: str
    group: str
    resource: str
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    refused: bool = False

    def joined(self, other: "AskedRight") -> "AskedRight":
        """Return this right with the namespaces, names and refusals of another record of it."""
        return msgspec.structs.replace(
            self,
            namespaces=_joined(self.namespaces, other.namespaces),
            names=_joined(self.names, other.names),
            refused=self.refused or other.refused,
        )


def _joined(some: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    if set(more) <= set(some) or len(some) >= _KEPT:
        return some
    return tuple(sorted({*some, *more})[:_KEPT])


def merged(parts: Iterable[AskedRight]) -> list[AskedRight]:
    """Return records of several servers as one, whoever asked, in a fixed order."""
    found: dict[tuple[str, str, str, str], AskedRight] = {}
    for one in parts:
        key = (one.program, one.group, one.resource, one.verb)
        known = found.get(key)
        found[key] = one if known is None else known.joined(one)
    return [found[key] for key in sorted(found)]


class AskedRights:
    """The rights asked for so far, each once. For one event loop."""

    def __init__(self) -> None:
        self._rights: dict[tuple[str, str, str, str, str, bool], AskedRight] = {}

    def note(self, user: User, info: RequestInfo, user_agent: str, *, refused: bool) -> None:
        """Record a request."""
        if not info.is_resource or info.group in _BASIC:
            return
        resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
        asked = AskedRight(
            program=user_agent.partition(" ")[0].partition("/")[0],
            user=user.name,
            verb=info.verb,
            group=info.group,
            resource=resource,
            namespaces=(info.namespace,) if info.namespace else (),
            names=(info.authorized_name,) if info.authorized_name else (),
            refused=refused,
        )
        key = (asked.program, asked.user, asked.verb, asked.group, asked.resource, refused)
        known = self._rights.get(key)
        if known is not None:
            self._rights[key] = known.joined(asked)
        elif len(self._rights) < _LIMIT:
            self._rights[key] = asked

    def rights(self) -> list[AskedRight]:
        """Return the rights, in the order in which they were first asked for."""
        return list(self._rights.values())
