"""Namespace, ResourceQuota and LimitRange."""

from collections.abc import Iterable, Mapping

from listwatch.apiserver.kinds.cells import Cell, at, field
from listwatch.apiserver.kinds.kind import Ending, Kind, Object, View, carry, paths, status_of
from listwatch.apiserver.kinds.quantity_rules import (
    QUOTA_RESOURCES,
    container_resource,
    is_extended,
    quota_resource,
    resource_name,
)
from listwatch.apiserver.kinds.rules import known_values, qualified_name, quantity
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    required,
)


def _default_namespace(obj: Object) -> None:
    name = obj["metadata"].get("name")
    if name:
        labels = obj["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = name
    status_of(obj).setdefault("phase", "Active")
    obj.setdefault("spec", {})


def _default_quota(obj: Object) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def _default_limit_range(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec["limits"] = spec.get("limits") or None
    for item in spec["limits"] or ():
        if item.get("type") != "Container":
            continue
        limits = {**(item.get("max") or {}), **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        for key, amounts in (("default", limits), ("defaultRequest", requests)):
            if amounts:
                item[key] = amounts


def _check_quota(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    hard = spec.get("hard") or {}
    causes = [
        cause
        for name, amount in hard.items()
        for cause in quota_resource(f"spec.hard[{name}]", name, amount)
    ]
    causes += _check_scopes(spec.get("scopes") or [], hard)
    return causes + _check_scope_selector(spec, hard)


_SCOPED_COMPUTE = frozenset(
    f"{group}{name}" for group in ("", "requests.", "limits.") for name in ("cpu", "memory")
)
_PAIRS = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
_EXISTING = frozenset(
    (
        "BestEffort",
        "NotBestEffort",
        "Terminating",
        "NotTerminating",
        "CrossNamespacePodAffinity",
    )
)


def _fits(scope: str, resource: str) -> bool:
    """Return whether a scope applies to a resource."""
    if resource not in QUOTA_RESOURCES:
        return True
    if scope == "BestEffort":
        return resource == "pods"
    if scope == "VolumeAttributesClass":
        return resource in {"persistentvolumeclaims", "requests.storage"}
    return resource == "pods" or resource in _SCOPED_COMPUTE


def _check_scopes(scopes: list[str], hard: Iterable[str]) -> list[Cause]:
    known = known_values("core.v1.ResourceQuotaSpec", "scopes")
    causes: list[Cause] = []
    for scope in scopes:
        if scope not in known:
            causes.append(invalid_value("spec.scopes", scopes, "unsupported scope"))
        causes += [
            invalid_value("spec.scopes", scopes, "unsupported scope applied to resource")
            for name in hard
            if (scope not in known and name in QUOTA_RESOURCES) or not _fits(scope, name)
        ]
    return causes + [
        invalid_value("spec.scopes", scopes, "conflicting scopes")
        for pair in _PAIRS
        if set(pair) <= set(scopes)
    ]


def _check_scope_selector(spec: View, hard: Iterable[str]) -> list[Cause]:
    known = known_values("core.v1.ResourceQuotaSpec", "scopes")
    terms = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    where, causes = "spec.scopeSelector.matchExpressions", list[Cause]()
    for term in terms:
        scope, operator, values = (
            term.get("scopeName", ""),
            term.get("operator", ""),
            term.get("values") or [],
        )
        if scope not in known:
            causes.append(invalid_value(f"{where}.scopeName", scope, "unsupported scope"))
        causes += [
            invalid_value(where, None, "unsupported scope applied to resource")
            for name in hard
            if (scope not in known and name in QUOTA_RESOURCES) or not _fits(scope, name)
        ]
        if scope in _EXISTING and operator != "Exists":
            causes.append(invalid_value(f"{where}.operator", operator, "must be 'Exists'"))
        if operator in {"In", "NotIn"}:
            if not values:
                why = "must be at least one value when `operator` is 'In' or 'NotIn'"
                causes.append(required(f"{where}.values", why))
        elif operator in {"Exists", "DoesNotExist"}:
            if values:
                why = "must be no value when `operator` is 'Exist' or 'DoesNotExist'"
                causes.append(invalid_value(f"{where}.values", values, why))
        else:
            why = "not a valid selector operator"
            causes.append(invalid_value(f"{where}.operator", operator, why))
    chosen = {term.get("scopeName") for term in terms}
    return causes + [
        invalid_value("spec.scopeSelector.scopes", None, "conflicting scopes")
        for pair in _PAIRS
        if set(pair) <= chosen
    ]


_LIMITED = frozenset(("Pod", "Container", "PersistentVolumeClaim"))


def _check_limit_range(obj: View) -> list[Cause]:
    causes: list[Cause] = []
    kinds: set[str] = set()
    for index, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
        here, kind = f"spec.limits[{index}]", item.get("type", "")
        broken = qualified_name(f"{here}.type", kind)
        if not broken and "/" not in kind and kind not in _LIMITED:
            why = "must be a standard limit type or fully qualified"
            broken = [invalid_value(f"{here}.type", kind, why)]
        causes += broken
        if kind in kinds:
            causes.append(duplicate(f"{here}.type", kind))
        kinds.add(kind)
        causes += _check_limits(item, here, kind)
    return causes


_PARTS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
#: Pairs of amounts of which the first must not exceed the second, and the path of the violation.
_ORDERED = (
    ("min", "max", "min"),
    ("min", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "max", "defaultRequest"),
    ("defaultRequest", "default", "defaultRequest"),
    ("min", "default", "default"),
    ("default", "max", "default"),
)


def _check_limits(item: View, path: str, kind: str) -> list[Cause]:
    name_rule = container_resource if kind in {"Pod", "Container"} else resource_name
    parts = {part: item.get(part) or {} for part in _PARTS}
    causes: list[Cause] = []
    for part in ("default", "defaultRequest"):
        if kind == "Pod" and parts[part]:
            why = "may not be specified when `type` is 'Pod'"
            causes.append(forbidden_value(f"{path}.{part}", why))
            parts[part] = {}
    for part, amounts in parts.items():
        for name in amounts:
            causes += name_rule(f"{path}.{part}[{name}]", name)
    if kind == "PersistentVolumeClaim" and not {"storage"} & {*parts["min"], *parts["max"]}:
        why = "either minimum or maximum storage value is required, but neither was provided"
        causes.append(required(f"{path}.limits", why))
    for less, more, told in _ORDERED:
        for name, amount in parts[less].items():
            most = parts[more].get(name)
            if most is not None and quantity(amount) > quantity(most):
                why = f"{less} value {amount} is greater than {more} value {most}"
                causes.append(invalid_value(f"{path}.{told}[{name}]", amount, why))
    for name, ratio in parts["maxLimitRequestRatio"].items():
        where, least, most = (
            f"{path}.maxLimitRequestRatio[{name}]",
            parts["min"].get(name),
            parts["max"].get(name),
        )
        if quantity(ratio) < 1:
            causes.append(invalid_value(where, ratio, f"ratio {ratio} is less than 1"))
        if least is not None and most is not None and quantity(least):
            bound = quantity(most) / quantity(least)
            if quantity(ratio) > bound:
                why = f"ratio {ratio} is greater than max/min = {bound:f}"
                causes.append(invalid_value(where, ratio, why))
    return causes + [
        invalid_value(f"{path}.defaultRequest[{name}]", amount, "must equal the default value")
        for name, amount in parts["defaultRequest"].items()
        if (is_extended(name) or name.startswith("hugepages-"))
        and name in parts["default"]
        and quantity(parts["default"][name]) != quantity(amount)
    ]


def _quota(prefix: str, *, rest: bool = False) -> Cell:
    def cell(quota: View, _: float) -> str:
        hard, used = at(quota, "status.hard") or {}, at(quota, "status.used") or {}
        return ", ".join(
            f"{name}: {used.get(name, '0')}/{amount}"
            for name, amount in sorted(hard.items())
            if name.startswith(prefix) is not rest
        )

    return cell


_IMMORTAL = frozenset(("default", "kube-system", "kube-public"))


def _has_finalizers(namespace: View) -> bool:
    return bool((namespace.get("spec") or {}).get("finalizers"))


def _check_new_namespace(namespace: View) -> list[Cause]:
    where, causes = "spec.finalizers", list[Cause]()
    for name in (namespace.get("spec") or {}).get("finalizers") or ():
        causes += qualified_name(where, name)
        if "/" not in name and name not in {"kubernetes", "foregroundDeletion", "orphan"}:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value(where, name, why))
    return causes


def _check_quota_update(new: View, old: View) -> list[Cause]:
    after = (new.get("spec") or {}).get("scopes")
    if set(after or ()) == set((old.get("spec") or {}).get("scopes") or ()):
        return []
    return [invalid_value("spec.scopes", after, "field is immutable")]


def _carry_finalizers(new: Object, old: View) -> None:
    carry(new.setdefault("spec", {}), old.get("spec") or {}, "finalizers")


def _end_namespace(namespace: Object, now: str) -> Ending:
    metadata = namespace["metadata"]
    if metadata.get("deletionTimestamp"):
        left = _has_finalizers(namespace) or metadata.get("finalizers")
        return Ending.STAYS if left else Ending.GOES
    if not _has_finalizers(namespace):
        return Ending.GOES
    metadata["deletionTimestamp"] = now
    namespace["status"] = {**(namespace.get("status") or {}), "phase": "Terminating"}
    return Ending.MARKED


def _admit_namespace(obj: Object) -> None:
    finalizers = obj["spec"].setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "namespaces": Kind(
        checks_whole=True,
        immortal=_IMMORTAL,
        carry=_carry_finalizers,
        end=_end_namespace,
        held=_has_finalizers,
        name_rule="label",
        fields=paths("status.phase"),
        defaults=_default_namespace,
        admit=_admit_namespace,
        new_rule=_check_new_namespace,
        cells={"Status": field("status.phase")},
    ),
    "limitranges": Kind(
        checks_whole=True,
        create_on_update=True,
        defaults=_default_limit_range,
        rule=_check_limit_range,
        checks_metadata=1,
    ),
    "resourcequotas": Kind(
        returns_deleted=True,
        defaults=_default_quota,
        rule=_check_quota,
        update_rule=_check_quota_update,
        cells={
            "Request": _quota("limits.", rest=True),
            "Limit": _quota("limits."),
        },
    ),
}
