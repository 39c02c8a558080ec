"""Charges new objects to their namespace's quotas (`plugin/pkg/admission/resourcequota`).

As in a real server, limits and usage are those in a quota's status, which a controller writes; a
quota without a status limits nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.plugins import added
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.rules import quantity

Object = dict[str, Any]

#: Resources that are also counted by plural name.
_COUNTED = frozenset(
    (
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
    )
)
_COMPUTED = ("cpu", "memory", "ephemeral-storage")


def charge(resource: APIResource, obj: Object, quotas: Iterable[Object]) -> list[Object]:
    """Return the quotas, changed in place, that a new object is charged to.

    Args:
        resource: the object's.
        obj: the object.
        quotas: all quotas of its namespace.

    Raises:
        ForbiddenError: 403, too little is left, or the object does not specify a limited resource.
    """
    found = list(quotas)
    if not found:
        return found
    taken = _usage(resource, obj)
    name = obj["metadata"].get("name", "")
    charged = []
    for quota in found:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        if not hard or not _in_scope(resource, obj, (quota.get("spec") or {}).get("scopes") or ()):
            continue
        called = quota["metadata"]["name"]
        if resource.storage == "pods":
            missing = _unsaid(obj["spec"], hard)
            if missing:
                why = f"failed quota: {called}: must specify {missing}"
                raise refusal.forbidden_object(resource, name, why)
        parts = {key: amount for key, amount in taken.items() if key in hard}
        if not parts:
            continue
        after = {key: added(used.get(key, "0"), amount) for key, amount in parts.items()}
        over = sorted(key for key in parts if quantity(after[key]) > quantity(hard[key]))
        if over:
            said = [
                ",".join(f"{key}={amounts.get(key, '0')}" for key in over)
                for amounts in (parts, used, hard)
            ]
            why = (
                f"exceeded quota: {called}, requested: {said[0]}, used: {said[1]}, "
                f"limited: {said[2]}"
            )
            raise refusal.forbidden_object(resource, name, why)
        quota["status"] = {**status, "used": {**used, **after}}
        charged.append(quota)
    return charged


def _usage(resource: APIResource, obj: Object) -> dict[str, str]:
    group = resource.stored_group
    taken = {f"count/{resource.name}.{group}" if group else f"count/{resource.name}": "1"}
    if not group and resource.name in _COUNTED:
        taken[resource.name] = "1"
    spec = obj.get("spec") or {}
    if resource.storage == "pods":
        taken |= _pod_usage(spec)
    elif resource.storage == "persistentvolumeclaims":
        requests = (spec.get("resources") or {}).get("requests") or {}
        if "storage" in requests:
            taken["requests.storage"] = requests["storage"]
    elif resource.storage == "services":
        ports = sum(1 for port in spec.get("ports") or () if port.get("nodePort"))
        if ports:
            taken["services.nodeports"] = str(ports)
        if spec.get("type") == "LoadBalancer":
            taken["services.loadbalancers"] = "1"
    return taken


def _pod_usage(spec: Object) -> dict[str, str]:
    taken: dict[str, str] = {}
    for group in ("requests", "limits"):
        for container in spec.get("containers") or ():
            amounts = (container.get("resources") or {}).get(group) or {}
            for name, amount in amounts.items():
                keys = [f"{group}.{name}"]
                if group == "requests" and name in _COMPUTED:
                    keys.append(name)
                for key in keys:
                    taken[key] = added(taken.get(key, "0"), amount)
    return taken


def _unsaid(spec: Object, hard: Mapping[str, str]) -> str:
    """Return the limited resources that some containers don't specify, as text."""
    missing: dict[str, list[str]] = {}
    for key in sorted(hard):
        group, _, name = key.rpartition(".")
        if name not in _COMPUTED or group not in {"", "requests", "limits"}:
            continue
        for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
            amounts = (container.get("resources") or {}).get(group or "requests") or {}
            if name not in amounts:
                missing.setdefault(key, []).append(container.get("name", ""))
    return "; ".join(f"{key} for: {','.join(names)}" for key, names in missing.items())


def _in_scope(resource: APIResource, obj: Object, scopes: Iterable[str]) -> bool:
    scopes = set(scopes)
    if not scopes:
        return True
    if resource.storage != "pods":
        return False
    best = (obj.get("status") or {}).get("qosClass") == "BestEffort"
    ending = (obj.get("spec") or {}).get("activeDeadlineSeconds") is not None
    holds = {
        "BestEffort": best,
        "NotBestEffort": not best,
        "Terminating": ending,
        "NotTerminating": not ending,
    }
    return all(holds.get(scope, True) for scope in scopes)
