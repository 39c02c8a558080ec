"""Namespace, ResourceQuota and LimitRange."""

from collections.abc import Iterable, Mapping

from listwatch.apiserver.kinds.cells import Cell, at, field
from listwatch.apiserver.kinds.kind import Ending, Kind, Object, View, carry, paths, status_of
from listwatch.apiserver.kinds.rules import known_values, quantity
from listwatch.schema.causes import Cause, invalid_value


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


_COMPUTE = ("cpu", "memory", "ephemeral-storage")


_QUOTA_NAMES = frozenset(
    (
        *_COMPUTE,
        *(f"requests.{name}" for name in (*_COMPUTE, "storage")),
        *(f"limits.{name}" for name in _COMPUTE),
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    )
)


def _check_quota(obj: View) -> list[Cause]:
    hard = (obj.get("spec") or {}).get("hard") or {}
    return (
        [
            invalid_value(f"spec.hard[{key}]", key, "must be a standard resource for quota")
            for key in hard
            if "/" not in key
            and key not in _QUOTA_NAMES
            and not key.startswith(("hugepages-", "requests.hugepages-"))
        ]
        + [
            invalid_value(f"spec.hard[{key}]", str(amount), "must be greater than or equal to 0")
            for key, amount in hard.items()
            if quantity(amount) < 0
        ]
        + _check_scopes((obj.get("spec") or {}).get("scopes") or [], hard)
    )


#: What the BestEffort scopes do not apply to.
_PODS_ONLY = frozenset(("BestEffort",))


def _check_scopes(scopes: list[str], hard: Iterable[str]) -> list[Cause]:
    known = known_values("core.v1.ResourceQuotaSpec", "scopes")
    causes: list[Cause] = []
    counted = [name.removeprefix("requests.").removeprefix("limits.") for name in hard]
    for scope in scopes:
        if scope not in known:
            causes.append(invalid_value("spec.scopes", scopes, "unsupported scope"))
            continue
        usable = {"pods"} if scope in _PODS_ONLY else {"pods", "cpu", "memory"}
        if scope == "VolumeAttributesClass":
            usable = {"persistentvolumeclaims", "storage"}
        if any(name not in usable for name in counted):
            why = "unsupported scope applied to resource"
            causes.append(invalid_value("spec.scopes", scopes, why))
    return causes + [
        invalid_value("spec.scopes", scopes, "conflicting scopes")
        for pair in (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
        if set(pair) <= set(scopes)
    ]


def _check_limit_range(obj: View) -> list[Cause]:
    causes = []
    for index, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
        most = item.get("max") or {}
        causes += [
            invalid_value(
                f"spec.limits[{index}].min[{key}]",
                str(amount),
                f"min value {amount} is greater than max value {most[key]}",
            )
            for key, amount in (item.get("min") or {}).items()
            if key in most and quantity(amount) > quantity(most[key])
        ]
    return causes


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


def _check_namespace(namespace: View) -> list[Cause]:
    return [
        invalid_value(
            "spec.finalizers",
            name,
            "name is neither a standard finalizer name nor is it fully qualified",
        )
        for name in (namespace.get("spec") or {}).get("finalizers") or ()
        if "/" not in name and name not in {"kubernetes", "foregroundDeletion", "orphan"}
    ]


def _check_quota_update(new: View, old: View) -> list[Cause]:
    after = (new.get("spec") or {}).get("scopes")
    if after == (old.get("spec") or {}).get("scopes"):
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
        immortal=_IMMORTAL,
        carry=_carry_finalizers,
        end=_end_namespace,
        held=_has_finalizers,
        name_rule="label",
        fields=paths("status.phase"),
        defaults=_default_namespace,
        admit=_admit_namespace,
        rule=_check_namespace,
        cells={"Status": field("status.phase")},
    ),
    "limitranges": Kind(
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
