"""The user of a request."""

from collections.abc import Mapping

import msgspec


class User(msgspec.Struct, frozen=True):
    """An authenticated user."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, list[str]] = {}


class Question(msgspec.Struct, frozen=True):
    """A question whether a user may do something: with a path, or otherwise with a resource."""

    verb: str
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
