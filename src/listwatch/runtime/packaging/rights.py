"""Rights to use a server's API, as rules of roles."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from listwatch.errors import ConfigError
from listwatch.schema.facts import facts

_VERSION: Final = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")
_ANY: Final = "*"


class Right(NamedTuple):
    """The right to use one verb on a resource.

    Attributes:
        group: "" for the core group.
        resource: plural name, with the subresource if there is one: "deployments/status".
        verb: such as "patch".
        name: of the only object; "" for all.
    """

    group: str
    resource: str
    verb: str
    name: str = ""

    @property
    def qualified(self) -> str:
        """The resource with its group, as `Reconciler.writes` takes it."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}.{self.group}{slash}{subresource}" if self.group else self.resource


def rights_on(word: str, verbs: Iterable[str]) -> set[Right]:
    """Return rights on a resource such as "deployments.v1.apps/status".

    Raises:
        ConfigError: the resource is not in the core group and names no group.
    """
    group, resource = split_resource(word)
    return {Right(group, resource, verb) for verb in verbs}


def split_resource(word: str) -> tuple[str, str]:
    """Return group and resource of a name such as "deployments.v1.apps/status".

    Raises:
        ConfigError: it is not in the core group and names no group.
    """
    whole, slash, subresource = word.partition("/")
    resource, _, group = whole.partition(".")
    first, _, rest = group.partition(".")
    if _VERSION.fullmatch(first):
        group = rest
    if not group and built_in("", resource) is None:
        raise ConfigError(
            f"{word!r} is not a resource of the core group and names no group: "
            "write for example 'deployments.apps'"
        )
    return group, f"{resource}{slash}{subresource}"


def built_in(group: str, plural: str) -> Mapping[str, Any] | None:
    """Return the facts about a built-in resource; None if it is none."""
    rows = facts().resources
    return next((row for row in rows if (row["group"], row["resource"]) == (group, plural)), None)


def rules_of(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Return the rules that grant exactly these rights, in a fixed order."""
    verbs: dict[tuple[str, str, str], set[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource, right.name), set()).add(right.verb)
    together: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (group, resource, name), asked in verbs.items():
        together.setdefault((group, name, tuple(sorted(asked))), []).append(resource)
    return [
        {
            "apiGroups": [group],
            "resources": sorted(resources),
            **({"resourceNames": [name]} if name else {}),
            "verbs": list(allowed),
        }
        for (group, name, allowed), resources in sorted(together.items())
    ]


def rights_of(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Return the rights that rules grant; "*" stays as it is."""
    return {
        Right(group, resource, verb, name)
        for rule in rules
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for verb in rule.get("verbs") or ()
        for name in rule.get("resourceNames") or ("",)
    }


def is_granted(right: Right, by: Collection[Right]) -> bool:
    """Return whether a right is among others, or covered by a wildcard of them."""
    if right in by:
        return True
    _, slash, subresource = right.resource.partition("/")
    return any(
        other.group in {right.group, _ANY}
        and other.resource in {right.resource, _ANY, f"*{slash}{subresource}"}
        and other.verb in {right.verb, _ANY}
        and other.name in {right.name, ""}
        for other in by
    )
