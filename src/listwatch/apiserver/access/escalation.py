"""Privilege escalation checks: nobody can grant permissions that they lack.

The rules are those of `pkg/registry/rbac` and `component-helpers/auth/rbac/validation`. The checks
for the parameters of policies are in `parameters`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.access.auth import MASTERS, RBAC, Access, Rule, covers_path
from listwatch.apiserver.access.parameters import GROUP as PARAMETERS
from listwatch.apiserver.access.parameters import Parameters
from listwatch.apiserver.http.request_info import RequestInfo
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.store import Storage
from listwatch.apiserver.user import User
from listwatch.schema.causes import go_quoted

Object = Mapping[str, Any]
#: Called with the new and the old object (None for a creation); raises the refusal of the write.
Guard = Callable[[APIResource, Object, Object | None], None]

_GUARDED = frozenset((RBAC, PARAMETERS))
_ROLES = {"Role": "roles", "ClusterRole": "clusterroles"}


class Escalation:
    """Guards the roles and bindings of a store. For one event loop."""

    def __init__(self, access: Access, store: Storage, table: ResourceTable) -> None:
        self._access = access
        self._store = store
        self._table = table
        self._parameters = Parameters(access, store, table)

    def guard(self, user: User, info: RequestInfo) -> Guard | None:
        """Return the guard of a user's write; None if the user may grant everything."""
        if info.group not in _GUARDED or self._access.is_open or MASTERS in user.groups:
            return None
        if info.group == PARAMETERS:
            return lambda *states: self._parameters.check(user, *states)
        if info.resource not in _ROLES.values():
            return lambda *states: self._check_binding(user, *states)
        if self._access.allows(user, msgspec.structs.replace(info, verb="escalate")):
            return None
        return lambda *states: self._check_role(user, *states)

    def _check_role(
        self, user: User, resource: APIResource, new: Object, old: Object | None
    ) -> None:
        if old is not None and new.get("rules") == old.get("rules"):
            return
        self._confirm(user, resource, new, _rules(new))

    def _check_binding(
        self, user: User, resource: APIResource, new: Object, old: Object | None
    ) -> None:
        parts = ("roleRef", "subjects")
        if old is not None and all(new.get(part) == old.get(part) for part in parts):
            return
        reference = new.get("roleRef") or {}
        plural, name = _ROLES.get(reference.get("kind", "")), reference.get("name", "")
        roles = self._table.get(RBAC, "v1", plural) if plural is not None else None
        if roles is None:
            # validation refuses such a reference later
            return
        namespace = new["metadata"].get("namespace", "")
        asked = RequestInfo(
            path="",
            method="",
            is_resource=True,
            verb="bind",
            group=RBAC,
            version="v1",
            resource=roles.name,
            namespace=namespace,
            name=name,
        )
        if self._access.allows(user, asked):
            return
        key = f"{namespace}/{name}" if roles.namespaced else name
        entry = self._store.bucket(roles.storage).entries.get(key)
        if entry is None:
            raise refusal.not_found(resource, name)
        self._confirm(user, resource, new, _rules(msgspec.json.decode(entry.data)))

    def _confirm(
        self, user: User, resource: APIResource, new: Object, rules: Iterable[Rule]
    ) -> None:
        metadata = new["metadata"]
        held = list(self._access.rules_for(user, metadata.get("namespace", "")))
        missing = [
            part
            for rule in rules
            for part in _single(rule)
            if not any(_covers(owned, part) for owned in held)
        ]
        if missing:
            groups = " ".join(go_quoted(group) for group in user.groups)
            raise refusal.forbidden_object(
                resource,
                metadata.get("name", ""),
                f"user {go_quoted(user.name)} (groups=[{groups}]) is attempting to grant "
                "RBAC permissions not currently held:\n" + "\n".join(_words(missing)),
            )


def _rules(role: Object) -> list[Rule]:
    return msgspec.convert(role.get("rules") or [], list[Rule])


def _single(rule: Rule) -> Iterator[Rule]:
    """Split a rule into rules with one verb, group, resource and name each."""
    for verb in rule.verbs:
        for group in rule.apiGroups:
            for resource in rule.resources:
                for names in _alone(rule.resourceNames):
                    yield Rule((verb,), (group,), (resource,), names)
        for path in rule.nonResourceURLs:
            yield Rule(verbs=(verb,), nonResourceURLs=(path,))


def _alone(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(name,) for name in names] or [()]


def _covers(owned: Rule, part: Rule) -> bool:
    if not {"*", *part.verbs} & set(owned.verbs):
        return False
    if part.nonResourceURLs:
        return any(
            covers_path(pattern, part.nonResourceURLs[0]) for pattern in owned.nonResourceURLs
        )
    resource = part.resources[0]
    _, slash, subresource = resource.partition("/")
    accepted = {"*", resource, *([f"*/{subresource}"] if slash else [])}
    return (
        bool({"*", *part.apiGroups} & set(owned.apiGroups))
        and bool(accepted & set(owned.resources))
        and (
            not owned.resourceNames
            or (bool(part.resourceNames) and part.resourceNames[0] in owned.resourceNames)
        )
    )


def _words(parts: Iterable[Rule]) -> list[str]:
    """Return the missing rules for the message: sorted, with the verbs of each resource merged."""
    verbs: dict[tuple[object, ...], list[str]] = {}
    found: list[Rule] = []
    for part in parts:
        if part.nonResourceURLs:
            found.append(part)
            continue
        key = (part.apiGroups, part.resources, part.resourceNames)
        if key in verbs:
            verbs[key] += (verb for verb in part.verbs if verb not in verbs[key])
        else:
            verbs[key] = list(part.verbs)
            found.append(part)
    lines = set()
    for part in found:
        key = (part.apiGroups, part.resources, part.resourceNames)
        shown = (
            ("APIGroups", part.apiGroups),
            ("Resources", part.resources),
            ("NonResourceURLs", part.nonResourceURLs),
            ("ResourceNames", part.resourceNames),
            ("Verbs", part.verbs if part.nonResourceURLs else verbs[key]),
        )
        fields = [
            f"{name}:[{' '.join(map(go_quoted, values))}]" for name, values in shown if values
        ]
        lines.add("{" + ", ".join(fields) + "}")
    return sorted(lines)
