"""The rules for writes to the status of built-in objects."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from listwatch.apiserver.kinds.rules import IP_WORDS, is_address, quantity
from listwatch.schema.causes import Cause, duplicate, forbidden_value, invalid_value, required
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
#: Which counts must not exceed which, with the message, by kind. No count of these kinds may be
#: negative (`pkg/apis/apps/validation` and others).
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
        if not name:
            continue
        if is_address(name):
            why = "must be a DNS name, not an IP address"
            yield invalid_value(f"{where}.hostname", name, why)
        for why in subdomain_problems(name):
            if not is_address(name):
                yield invalid_value(f"{where}.hostname", name, why)


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
    status = new.get("status") or {}
    seen: list[Any] = []
    for index, address in enumerate(status.get("addresses") or ()):
        inside = {"Type": address.get("type", ""), "Address": address.get("address", "")}
        if inside in seen:
            yield duplicate(f"status.addresses[{index}]", inside)
        seen.append(inside)
    for part in ("capacity", "allocatable"):
        for name, amount in (status.get(part) or {}).items():
            if quantity(amount) < 0:
                yield invalid_value(f"status.{part}.{name}", amount, _NOT_NEGATIVE)


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
            if quantity(amount) < 0:
                yield invalid_value(f"status.{part}[{name}]", amount, _NOT_NEGATIVE)


_RULES: Mapping[str, Rule] = {
    "admissionregistration.k8s.io/validatingadmissionpolicies": _policy,
    "networking.k8s.io/ingresses": _load_balancer,
    "nodes": check_node_status,
    "resourcequotas": _quota,
    "services": _service,
}
