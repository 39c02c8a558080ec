"""The rules for writes to the status of built-in objects."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from listwatch.apiserver.kinds.job_policy_rules import check_job_status
from listwatch.apiserver.kinds.quantity_rules import is_extended, quota_resource, resource_amount
from listwatch.apiserver.kinds.rules import (
    IP_WORDS,
    is_address,
    qualified_name,
    quantity,
    subdomain,
)
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)
from listwatch.schema.facts import Form, Schema
from listwatch.selector import subdomain_problems

View = Mapping[str, Any]
Rule = Callable[[View, View], Iterator[Cause]]

_NOT_NEGATIVE = "must be greater than or equal to 0"


def status_causes(storage: str, schema: Schema, new: View, old: View) -> list[Cause]:
    """Return the rules that a changed status violates.

    Args:
        storage: the storage key of the kind.
        schema: the kind's type.
        new: the object with its new status.
        old: the previous object.
    """
    causes: list[Cause] = []
    if storage in _COUNTING:
        fields = schema.fields["status"].fields
        causes += _counts(storage, fields, new.get("status") or {}, old.get("status") or {})
    rule = _RULES.get(storage)
    return causes if rule is None else [*causes, *rule(new, old)]


_OF_REPLICAS = "cannot be greater than status.replicas"
#: By kind, pairs of counts of which the first must not exceed the second, with the message. No
#: count may be negative (`pkg/apis/apps/validation` and others).
_COUNTING: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "apps/daemonsets": (),
    "apps/deployments": (
        ("updatedReplicas", "replicas", _OF_REPLICAS),
        ("readyReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
    ),
    "apps/replicasets": (
        ("fullyLabeledReplicas", "replicas", _OF_REPLICAS),
        ("readyReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
    ),
    "apps/statefulsets": (
        ("readyReplicas", "replicas", _OF_REPLICAS),
        ("currentReplicas", "replicas", _OF_REPLICAS),
        ("updatedReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "readyReplicas", "cannot be greater than status.readyReplicas"),
    ),
    "autoscaling/horizontalpodautoscalers": (),
    "batch/jobs": (),
    "policy/poddisruptionbudgets": (),
    "replicationcontrollers": (
        ("fullyLabeledReplicas", "replicas", _OF_REPLICAS),
        ("readyReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "replicas", _OF_REPLICAS),
        ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
    ),
}


def _counts(
    storage: str, fields: Mapping[str, Schema], status: View, before: View
) -> Iterator[Cause]:
    for key, field in fields.items():
        count = status.get(key)
        if field.form is Form.INTEGER and count is not None and count < 0:
            yield invalid_value(f"status.{key}", count, _NOT_NEGATIVE)
    for less, more, why in _COUNTING[storage]:
        count = status.get(less) or 0
        if count > (status.get(more) or 0):
            yield invalid_value(f"status.{less}", count, why)
    collisions, known = status.get("collisionCount"), before.get("collisionCount")
    if "collisionCount" in fields and known is not None and (collisions or 0) < known:
        yield invalid_value("status.collisionCount", collisions, "cannot be decremented")


def _load_balancer(new: View, _: View) -> Iterator[Cause]:
    balancer = (new.get("status") or {}).get("loadBalancer") or {}
    for index, point in enumerate(balancer.get("ingress") or ()):
        where = f"status.loadBalancer.ingress[{index}]"
        address, name = point.get("ip"), point.get("hostname")
        if address and not is_address(address):
            yield invalid_value(f"{where}.ip", address, IP_WORDS)
        mode = point.get("ipMode")
        if mode is not None and not address:
            yield forbidden_value(f"{where}.ipMode", "may not be specified when `ip` is not set")
        elif mode is not None and mode not in _IP_MODES:
            yield not_supported(f"{where}.ipMode", mode, _IP_MODES)
        if not name:
            continue
        for why in subdomain_problems(name):
            yield invalid_value(f"{where}.hostname", name, why)
        if is_address(name):
            why = "must be a DNS name, not an IP address"
            yield invalid_value(f"{where}.hostname", name, why)


_IP_MODES = ("Proxy", "VIP")


def _service(new: View, old: View) -> Iterator[Cause]:
    balancer = (new.get("status") or {}).get("loadBalancer") or {}
    kind = (new.get("spec") or {}).get("type")
    if balancer.get("ingress") and kind != "LoadBalancer":
        why = "may only be used when `spec.type` is 'LoadBalancer'"
        yield forbidden_value("status.loadBalancer.ingress", why)
    else:
        yield from _load_balancer(new, old)


def check_node_status(new: View, _: View) -> Iterator[Cause]:
    """Yield the rules that a node's status violates; they also apply to a new node."""
    yield from check_node_resources(new)
    seen: list[Any] = []
    for index, address in enumerate((new.get("status") or {}).get("addresses") or ()):
        inside = {"Type": address.get("type", ""), "Address": address.get("address", "")}
        if inside in seen:
            yield duplicate(f"status.addresses[{index}]", inside)
        seen.append(inside)


def check_node_resources(node: View) -> Iterator[Cause]:
    """Yield the violations in a node's resources; they also apply to a new node."""
    status = node.get("status") or {}
    for part in ("capacity", "allocatable"):
        for name, amount in (status.get(part) or {}).items():
            yield from resource_amount(f"status.{part}.{name}", name, amount)


def _policy(new: View, _: View) -> Iterator[Cause]:
    checked = (new.get("status") or {}).get("typeChecking") or {}
    for index, each in enumerate(checked.get("expressionWarnings") or ()):
        for key in ("warning", "fieldRef"):
            if not (each.get(key) or "").strip():
                yield required(f"status.typeChecking.expressionWarnings[{index}].{key}")


def _quota(new: View, _: View) -> Iterator[Cause]:
    status = new.get("status") or {}
    for part in ("hard", "used"):
        for name, amount in (status.get(part) or {}).items():
            yield from quota_resource(f"status.{part}[{name}]", name, amount)


def _namespace(new: View, _: View) -> Iterator[Cause]:
    phase = (new.get("status") or {}).get("phase", "")
    ending = bool(new["metadata"].get("deletionTimestamp"))
    if phase != ("Terminating" if ending else "Active"):
        only = (
            "may only be 'Terminating' if `deletionTimestamp` is not empty"
            if ending
            else "may only be 'Active' if `deletionTimestamp` is empty"
        )
        yield invalid_value("status.Phase", phase, only)


_RESIZES = frozenset(
    (
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    )
)


def _claim(new: View, _: View) -> Iterator[Cause]:
    status = new.get("status") or {}
    for name, amount in (status.get("capacity") or {}).items():
        if quantity(amount) < 0:
            why = "must be a valid resource quantity"
            yield invalid_value(f"status.capacity[{name}]", amount, why)
    for part, where in (
        ("allocatedResourceStatuses", "status.allocatedResourceStatus"),
        ("allocatedResources", "status.allocatedResources"),
    ):
        for name, value in (status.get(part) or {}).items():
            broken = qualified_name(where, name)
            if not broken and name != "storage" and not is_extended(name):
                broken = [not_supported(where, name, ("storage",))]
            yield from broken
            if part == "allocatedResourceStatuses" and value not in _RESIZES:
                yield not_supported(where, name, sorted(_RESIZES))
            elif part == "allocatedResources" and not broken and quantity(value) < 0:
                why = "must be a valid resource quantity"
                yield invalid_value(f"{where}[{name}]", value, why)


_SYSTEM_CONDITIONS = frozenset(("PodScheduled", "Ready", "Initialized"))


def _pod(new: View, old: View) -> Iterator[Cause]:
    spec, status, before = old.get("spec") or {}, new.get("status") or {}, old.get("status") or {}
    for index, condition in enumerate(status.get("conditions") or ()):
        kind = condition.get("type", "")
        if kind not in _SYSTEM_CONDITIONS:
            yield from qualified_name(f"metadata.conditions[{index}].Type", kind)
    node = status.get("nominatedNodeName")
    if node and node != before.get("nominatedNodeName"):
        yield from subdomain("status.nominatedNodeName", node)
    if status.get("qosClass") != before.get("qosClass"):
        yield invalid_value("status.qosClass", status.get("qosClass"), "field is immutable")
    restarts = spec.get("restartPolicy", "Always")
    for group, policy in (
        ("containerStatuses", restarts),
        ("initContainerStatuses", restarts),
        ("ephemeralContainerStatuses", "Never"),
    ):
        yield from _back_to_life(group, policy, status, before, spec)
    yield from _addresses(status, "podIPs")
    hosts = status.get("hostIPs") or ()
    if hosts and hosts[0].get("ip") != status.get("hostIP"):
        why = "must be equal to `hostIP`"
        yield invalid_value("status.hostIPs[0].ip", hosts[0].get("ip"), why)
    yield from _addresses(status, "hostIPs")


def _back_to_life(
    group: str, policy: str, status: View, before: View, spec: View
) -> Iterator[Cause]:
    if policy == "Always":
        return
    sidecars = {
        each.get("name")
        for each in spec.get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    }
    now = {each.get("name"): each.get("state") or {} for each in status.get(group) or ()}
    for index, each in enumerate(before.get(group) or ()):
        ended, name = (each.get("state") or {}).get("terminated"), each.get("name")
        if ended is None or (ended.get("exitCode") and policy == "OnFailure"):
            continue
        if name in now and "terminated" not in now[name] and name not in sidecars:
            why = "may not be transitioned to non-terminated state"
            yield forbidden_value(f"status.{group}[{index}].state", why)


def _addresses(status: View, key: str) -> Iterator[Cause]:
    found = [each.get("ip", "") for each in status.get(key) or ()]
    for index, address in enumerate(found):
        if not is_address(address):
            yield invalid_value(f"status.{key}[{index}]", address, IP_WORDS)
        if address in found[:index]:
            yield duplicate(f"status.{key}[{index}]", {"IP": address})
    families = {":" in address for address in found}
    if len(found) > 2 or len(families) < min(len(found), 2):
        why = "may specify no more than one IP for each IP family"
        yield invalid_value(f"status.{key}", found, why)


def _job(new: View, old: View) -> Iterator[Cause]:
    yield from check_job_status(new, old)


_RULES: Mapping[str, Rule] = {
    "admissionregistration.k8s.io/validatingadmissionpolicies": _policy,
    "batch/jobs": _job,
    "namespaces": _namespace,
    "networking.k8s.io/ingresses": _load_balancer,
    "nodes": check_node_status,
    "persistentvolumeclaims": _claim,
    "pods": _pod,
    "resourcequotas": _quota,
    "services": _service,
}
