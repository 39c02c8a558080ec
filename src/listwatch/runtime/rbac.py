"""The minimal permissions of a program, derived from what it watches and declares to write."""

import re
from collections.abc import Iterable
from typing import Any

from listwatch.errors import ConfigError
from listwatch.runtime.manager import Manager
from listwatch.selector import subdomain_problems

_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")
_GROUP = "rbac.authorization.k8s.io"

#: The core group's resources, which alone are named without a group.
_CORE = frozenset(
    {
        "bindings",
        "configmaps",
        "endpoints",
        "events",
        "limitranges",
        "namespaces",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "podtemplates",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "serviceaccounts",
        "services",
    }
)


def manifests(app: Manager, namespace: str) -> list[dict[str, Any]]:
    """Return a program's service account, with the roles and bindings that it needs.

    Permissions to watch and write go into a ClusterRole, because the objects may be in any
    namespace; those for the lease go into a Role in the program's namespace.

    Args:
        app: the program, not started.
        namespace: the program's namespace.

    Raises:
        ConfigError: the name of a resource lacks its group, or a server would refuse the program's
            name or the namespace.
    """
    name = app.name
    for what, text in (("Manager's name", name), ("namespace", namespace)):
        if problems := subdomain_problems(text):
            raise ConfigError(f"the {what} {text!r} can't name a service account: {problems[0]}")
    meta = {"name": name, "namespace": namespace}
    account = {"kind": "ServiceAccount", **meta}
    found: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        _object("ClusterRole", {"name": name}, rules=cluster_rules(app)),
        _binding("ClusterRoleBinding", {"name": name}, "ClusterRole", name, account),
    ]
    if rules := lease_rules(app):
        found += [
            _object("Role", meta, rules=rules),
            _binding("RoleBinding", meta, "Role", name, account),
        ]
    return found


def cluster_rules(app: Manager) -> list[dict[str, Any]]:
    """Return the rules for what a program watches and writes, and for its events."""
    wanted: dict[tuple[str, str], set[str]] = {}
    for cache in app.caches:
        wanted.setdefault(_split(cache.selection.resource), set()).update({"list", "watch"})
    for reconciler in app.reconcilers:
        for resource, verbs in reconciler.written.items():
            wanted.setdefault(_split(resource), set()).update(verbs)
    events = "" if app.event_api == "v1" else "events.k8s.io"
    wanted.setdefault((events, "events"), set()).update({"create", "patch"})
    return _rules(wanted)


def lease_rules(app: Manager) -> list[dict[str, Any]]:
    """Return the rules for a program's lease or leases; none without an election."""
    if not app.lease:
        return []
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    if app.shares_keys:  # each member creates one, and deletes those of dead members
        return [leases | {"verbs": ["create", "delete", "get", "list", "update"]}]
    # RBAC can't limit "create" to a name, because none is known then.
    return [
        leases | {"verbs": ["create"]},
        leases | {"resourceNames": [app.lease], "verbs": ["get", "update"]},
    ]


def _rules(wanted: dict[tuple[str, str], set[str]]) -> list[dict[str, Any]]:
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), verbs in wanted.items():
        together.setdefault((group, tuple(sorted(verbs))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": sorted(resources), "verbs": list(verbs)}
        for (group, verbs), resources in sorted(together.items())
    ]


def _split(word: str) -> tuple[str, str]:
    """Return group and resource of a name such as "deployments.v1.apps/status"."""
    whole, slash, subresource = word.partition("/")
    resource, _, group = whole.partition(".")
    first, _, rest = group.partition(".")
    if _VERSION.fullmatch(first):
        group = rest
    if not group and resource not in _CORE:
        raise ConfigError(
            f"{word!r} is not a resource of the core group and names no group: "
            "write for example 'deployments.apps'"
        )
    return group, f"{resource}{slash}{subresource}"


def _object(kind: str, metadata: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": metadata, **more}


def _binding(
    kind: str, metadata: dict[str, str], role_kind: str, role: str, account: dict[str, str]
) -> dict[str, Any]:
    return _object(
        kind,
        metadata,
        roleRef={"apiGroup": _GROUP, "kind": role_kind, "name": role},
        subjects=[account],
    )


def to_yaml(objects: Iterable[dict[str, Any]]) -> str:
    """Return objects as one YAML file."""
    import yaml  # noqa: PLC0415 - needed only to write YAML

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - yaml's signature
            return True

    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True)
