"""Who asks."""

from collections.abc import Mapping

import msgspec


class User(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, list[str]] = {}


class Question(msgspec.Struct, frozen=True):
    """What a user may want to do: with a path, or else with a resource."""

    verb: str
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
