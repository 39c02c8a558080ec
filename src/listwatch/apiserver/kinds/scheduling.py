"""PodDisruptionBudget, PriorityClass, and resource claims."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import Cell, at, field, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, status_of
from listwatch.apiserver.kinds.rules import count_or_percent, label_selector
from listwatch.schema.causes import Cause, forbidden_value, invalid_value


def _default_disruption_budget(obj: Object) -> None:
    obj.setdefault("spec", {})
    status = status_of(obj)
    for name in ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"):
        status.setdefault(name, 0)


def _default_priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj.setdefault("value", 0)


_USER_PRIORITY_LIMIT = 1_000_000_000


_SYSTEM_PRIORITIES = ("system-cluster-critical", "system-node-critical")


def _check_disruption_budget(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    causes = []
    if least is not None and most is not None:
        # a real server shows its internal value, with internal names
        inside = {
            "MinAvailable": least,
            "Selector": spec.get("selector"),
            "MaxUnavailable": most,
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        why = "minAvailable and maxUnavailable cannot be both set"
        causes.append(invalid_value("spec", inside, why))
    for key, value in (("minAvailable", least), ("maxUnavailable", most)):
        causes += count_or_percent(f"spec.{key}", value)
    return causes + label_selector(spec.get("selector"), "spec.selector")


def _check_priority_class(obj: View) -> list[Cause]:
    causes = []
    name = obj["metadata"].get("name") or ""
    if obj.get("value", 0) > _USER_PRIORITY_LIMIT and not name.startswith("system-"):
        why = f"maximum allowed value of a user defined priority is {_USER_PRIORITY_LIMIT}"
        causes.append(forbidden_value("value", why))
    if name.startswith("system-") and name not in _SYSTEM_PRIORITIES:
        why = (
            "priority class names with 'system-' prefix are reserved for system use only. error: "
            f"{name} is not a known system priority class"
        )
        causes.append(forbidden_value("metadata.name", why))
    return causes


def _check_priority_class_update(new: View, old: View) -> list[Cause]:
    if new.get("value") == old.get("value"):
        return []
    return [forbidden_value("value", "may not be changed in an update.")]


def _check_fixed_spec(new: View, old: View) -> list[Cause]:
    if new.get("spec") == old.get("spec"):
        return []
    return [invalid_value("spec", new.get("spec"), "field is immutable")]


def _policy_target(path: str) -> Cell:
    return lambda obj, _: str(at(obj, path)) if at(obj, path) is not None else "N/A"


def _claim_state(claim: View, _: float) -> str:
    states = []
    if claim["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    states.append("allocated" if at(claim, "status.allocation") else "pending")
    if at(claim, "status.reservedFor"):
        states.append("reserved")
    return ",".join(states)


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "policy/poddisruptionbudgets": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_disruption_budget,
        rule=_check_disruption_budget,
        checks_metadata=1,
        cells={
            "Min Available": _policy_target("spec.minAvailable"),
            "Max Unavailable": _policy_target("spec.maxUnavailable"),
            "Allowed Disruptions": field("status.disruptionsAllowed", 0),
        },
    ),
    "scheduling.k8s.io/priorityclasses": Kind(
        generation=True,
        generation_moves=False,
        immutable=("preemptionPolicy",),
        defaults=_default_priority_class,
        rule=_check_priority_class,
        update_rule=_check_priority_class_update,
        cells={
            "Value": field("value", 0),
            "Global-Default": field("globalDefault", False),
            "PreemptionPolicy": field("preemptionPolicy"),
        },
    ),
    "resource.k8s.io/deviceclasses": Kind(generation=True),
    "resource.k8s.io/resourceclaims": Kind(
        update_rule=_check_fixed_spec, cells={"State": _claim_state}
    ),
    "resource.k8s.io/resourceclaimtemplates": Kind(update_rule=_check_fixed_spec),
    "resource.k8s.io/resourceslices": Kind(
        generation=True,
        cells={
            "Node": text("spec.nodeName", "<unset>"),
            "Driver": field("spec.driver"),
            "Pool": field("spec.pool.name"),
        },
    ),
}
