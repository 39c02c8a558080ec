"""Permissions for parameters: nobody can make a policy read objects that they can't read.

The rules are those of `pkg/registry/admissionregistration` (authz.go).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.access.auth import Access
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.store import Storage
from listwatch.apiserver.user import Question, User
from listwatch.schema.causes import forbidden_value

Object = Mapping[str, Any]

GROUP = "admissionregistration.k8s.io"
_POLICIES = frozenset(("mutatingadmissionpolicies", "validatingadmissionpolicies"))
_BINDINGS = {
    "mutatingadmissionpolicybindings": "mutatingadmissionpolicies",
    "validatingadmissionpolicybindings": "validatingadmissionpolicies",
}


class Parameters:
    """Guards the parameters of policies and bindings. For one event loop."""

    def __init__(self, access: Access, store: Storage, table: ResourceTable) -> None:
        self._access = access
        self._store = store
        self._table = table

    def check(self, user: User, resource: APIResource, new: Object, old: Object | None) -> None:
        """Refuse a policy or a binding whose parameters its author can't read.

        Raises:
            InvalidError: 422, as on a real server.
        """
        if resource.name in _POLICIES:
            self._check_policy(user, resource, new, old)
        elif resource.name in _BINDINGS:
            self._check_binding(user, resource, new, old)

    def _check_policy(
        self, user: User, resource: APIResource, new: Object, old: Object | None
    ) -> None:
        kind = (new.get("spec") or {}).get("paramKind")
        if kind is None or (old is not None and (old.get("spec") or {}).get("paramKind") == kind):
            return
        question = self._question(kind, "*", "*")
        if not self._access.answer(user, question)[0]:
            why = (
                f'user {_shown(user)} must have "get" permission on all objects of the referenced '
                f"paramKind (kind={kind.get('kind', '')}, apiVersion={kind.get('apiVersion', '')})"
            )
            self._refuse(resource, new, "spec.paramKind", why)

    def _check_binding(
        self, user: User, resource: APIResource, new: Object, old: Object | None
    ) -> None:
        spec, before = new.get("spec") or {}, (old or {}).get("spec") or {}
        reference = spec.get("paramRef")
        parts = ("paramRef", "policyName")
        if reference is None or (
            old is not None and all(spec.get(part) == before.get(part) for part in parts)
        ):
            return
        policies = self._store.bucket(f"{GROUP}/{_BINDINGS[resource.name]}").entries
        policy = policies.get(spec.get("policyName") or "")
        found = {} if policy is None else msgspec.json.decode(policy.data)
        kind = (found.get("spec") or {}).get("paramKind")
        question = self._question(
            kind, reference.get("namespace") or "", reference.get("name") or ""
        )
        if not self._access.answer(user, question)[0]:
            why = (
                f'user {_shown(user)} does not have "get" permission on the object referenced by '
                "paramRef"
            )
            self._refuse(resource, new, "spec.paramRef", why)

    def _question(self, kind: Object | None, namespace: str, name: str) -> Question:
        group = plural = "*"
        if kind is not None:
            group, _, version = (kind.get("apiVersion") or "").rpartition("/")
            of = self._table.of_kind(group, version, kind.get("kind") or "")
            plural = "*" if of is None else of.name
        return Question("get", group=group, resource=plural, namespace=namespace, name=name)

    @staticmethod
    def _refuse(resource: APIResource, obj: Object, field: str, why: str) -> None:
        name = obj["metadata"].get("name", "")
        raise refusal.invalid_object(resource, name, [forbidden_value(field, why)])


def _shown(user: User) -> str:
    """Return a user as Go prints one."""
    extra = " ".join(f"{key}:[{' '.join(values)}]" for key, values in sorted(user.extra.items()))
    return f"&{{{user.name} {user.uid} [{' '.join(user.groups)}] map[{extra}]}}"
