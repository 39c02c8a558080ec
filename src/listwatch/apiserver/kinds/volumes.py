"""Persistent volumes, their claims and their classes."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import Cell, at, count, field, join, text
from listwatch.apiserver.kinds.claim_rules import MODES, check_claim_spec
from listwatch.apiserver.kinds.kind import Kind, Object, View, status_of
from listwatch.apiserver.kinds.rules import quantity
from listwatch.apiserver.kinds.storage_rules import (
    check_attachment,
    check_attachment_update,
    check_attributes_class,
    check_attributes_class_update,
    check_driver,
    check_driver_update,
    check_new_attachment,
    check_storage_capacity,
    check_storage_class,
    check_storage_class_update,
    check_storage_node,
    check_storage_node_update,
    check_volume,
    check_volume_update,
)
from listwatch.schema.causes import Cause, forbidden_value, invalid_value


def _claim_storage(claim: View, _: float) -> str:
    return str(at(claim, "status.capacity.storage") or "")


def _modes(path: str) -> Cell:
    return lambda obj, _: ",".join(MODES.get(each, each) for each in at(obj, path) or ())


def _volume_claim(volume: View, _: float) -> str:
    claim = at(volume, "spec.claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _phase(obj: View, _: float) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(at(obj, "status.phase") or "")


def default_claim(obj: Object) -> None:
    """Set the defaults of a claim, or of a claim template."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("resources", {})
    source, newer = spec.get("dataSource"), spec.get("dataSourceRef")
    for each in (source, newer):
        if each is not None:
            each.setdefault("apiGroup", None)


def _match_sources(spec: Object) -> None:
    """Copy a claim's source to both fields; nobody owns the copy (`NormalizeDataSources`)."""
    source, newer = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is not None and not source.get("kind") and not source.get("name"):
        del spec["dataSource"]
    elif source is not None and newer is None:
        spec["dataSourceRef"] = dict(source)
    elif newer is not None and source is None and not newer.get("namespace"):
        spec["dataSource"] = dict(newer)


def _default_volume_claim(obj: Object) -> None:
    default_claim(obj)
    status_of(obj).setdefault("phase", "Pending")


def _default_persistent_volume(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")
    status_of(obj).setdefault("phase", "Pending")


def _default_storage_class(obj: Object) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _default_storage_driver(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    for key, value in (
        ("attachRequired", True),
        ("podInfoOnMount", False),
        ("storageCapacity", False),
        ("requiresRepublish", False),
        ("seLinuxMount", False),
        ("fsGroupPolicy", "ReadWriteOnceWithFSType"),
    ):
        spec.setdefault(key, value)
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


def _check_claim(obj: View) -> list[Cause]:
    return check_claim_spec(obj.get("spec") or {}, "spec")


_CLAIM_WORDS = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for "
    "bound claims"
)


def _check_claim_update(new: View, old: View) -> list[Cause]:
    after, before = dict(new.get("spec") or {}), dict(old.get("spec") or {})
    mode, had = after.get("volumeMode"), before.get("volumeMode")
    wanted, attributes = _storage(after), after.get("volumeAttributesClassName")
    attributed = before.get("volumeAttributesClassName")
    bound = (old.get("status") or {}).get("phase") == "Bound"
    causes: list[Cause] = []
    size = quantity(_storage(before))
    for key in ("volumeName", "storageClassName"):
        if not before.get(key) and (key == "volumeName" or after.get(key) is not None):
            before[key] = after.get(key)  # an unset field may be set once
    if bound and (after.get("resources") or {}).get("requests"):
        after["resources"] = _with_storage(after["resources"], _storage(before))
    if bound and attributes is not None:
        after["volumeAttributesClassName"] = attributed
    if _without_nothing(after) != _without_nothing(before):
        causes.append(forbidden_value("spec", _CLAIM_WORDS))
    capacity = ((old.get("status") or {}).get("capacity") or {}).get("storage", "0")
    if quantity(wanted) < size and quantity(wanted) <= quantity(capacity):
        why = "field can not be less than status.capacity"
        causes.append(forbidden_value("spec.resources.requests.storage", why))
    if mode != had:
        causes.append(invalid_value("volumeMode", mode, "field is immutable"))
    if attributed is not None and not attributes:
        told = "nil" if attributes is None else "an empty string"
        why = f"update from non-nil value to {told} is forbidden"
        causes.append(forbidden_value("spec.volumeAttributesClassName", why))
    return causes


def _storage(spec: View) -> str:
    return str(((spec.get("resources") or {}).get("requests") or {}).get("storage", "0"))


def _with_storage(resources: View, amount: str) -> View:
    return {**resources, "requests": {**resources["requests"], "storage": amount}}


def _without_nothing(spec: View) -> View:
    return {key: value for key, value in spec.items() if value is not None}


def _default_attachment(obj: Object) -> None:
    status_of(obj).setdefault("attached", False)


def _default_storage_node(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec["drivers"] = spec.get("drivers") or None
    for driver in spec["drivers"] or ():
        driver["topologyKeys"] = driver.get("topologyKeys") or None


def _admit_claim(obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pvc-protection" not in finalizers:
        finalizers.append("kubernetes.io/pvc-protection")
    obj["status"] = {"phase": "Pending"}
    _match_sources(obj["spec"])


def _carry_claim(new: Object, _: View) -> None:
    _match_sources(new.setdefault("spec", {}))


def _admit_volume(obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pv-protection" not in finalizers:
        finalizers.append("kubernetes.io/pv-protection")
    now = obj["metadata"]["creationTimestamp"]
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}


def _settle_volume(new: Object, old: View, now: str) -> None:
    """Record when the phase changed, unless a client did."""
    status, before = status_of(new), old.get("status") or {}
    told = status.get("lastPhaseTransitionTime")
    if status.get("phase") != before.get("phase"):
        if told is None or told == before.get("lastPhaseTransitionTime"):
            status["lastPhaseTransitionTime"] = now
    elif told is None and before.get("lastPhaseTransitionTime"):
        status["lastPhaseTransitionTime"] = before["lastPhaseTransitionTime"]


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "persistentvolumes": Kind(
        checks_whole=True,
        returns_deleted=True,
        defaults=_default_persistent_volume,
        admit=_admit_volume,
        settle=_settle_volume,
        rule=check_volume,
        update_rule=check_volume_update,
        checks_metadata=1,
        cells={
            "Capacity": field("spec.capacity.storage"),
            "Access Modes": _modes("spec.accessModes"),
            "Reclaim Policy": field("spec.persistentVolumeReclaimPolicy"),
            "Status": _phase,
            "Claim": _volume_claim,
            "StorageClass": field("spec.storageClassName"),
            "VolumeAttributesClass": text("spec.volumeAttributesClassName", "<unset>"),
            "Reason": field("status.reason"),
            "VolumeMode": text("spec.volumeMode", "<unset>"),
        },
    ),
    "persistentvolumeclaims": Kind(
        checks_whole=True,
        returns_deleted=True,
        defaults=_default_volume_claim,
        admit=_admit_claim,
        carry=_carry_claim,
        rule=_check_claim,
        update_rule=_check_claim_update,
        cells={
            "Status": _phase,
            "Volume": field("spec.volumeName"),
            "Capacity": _claim_storage,
            "Access Modes": _modes("status.accessModes"),
            "StorageClass": field("spec.storageClassName"),
            "VolumeAttributesClass": text("spec.volumeAttributesClassName", "<unset>"),
            "VolumeMode": text("spec.volumeMode", "<unset>"),
        },
    ),
    "storage.k8s.io/csidrivers": Kind(
        unconditional_update=False,
        generation=True,
        new_generation=0,
        defaults=_default_storage_driver,
        rule=check_driver,
        update_rule=check_driver_update,
        cells={
            "AttachRequired": field("spec.attachRequired", True),
            "PodInfoOnMount": field("spec.podInfoOnMount", False),
            "StorageCapacity": field("spec.storageCapacity", False),
            "TokenRequests": lambda obj, _: (
                ",".join(each.get("audience", "") for each in at(obj, "spec.tokenRequests") or ())
                or "<unset>"
            ),
            "RequiresRepublish": field("spec.requiresRepublish", False),
            "Modes": lambda obj, _: join(at(obj, "spec.volumeLifecycleModes") or ()),
        },
    ),
    "storage.k8s.io/csinodes": Kind(
        unconditional_update=False,
        defaults=_default_storage_node,
        rule=check_storage_node,
        update_rule=check_storage_node_update,
        cells={"Drivers": count("spec.drivers")},
    ),
    "storage.k8s.io/csistoragecapacities": Kind(
        checks_whole=True,
        unconditional_update=False,
        rule=check_storage_capacity,
        immutable=("nodeTopology", "storageClassName"),
        cells={
            "StorageClassName": field("storageClassName"),
            "Capacity": text("capacity", "<unset>"),
        },
    ),
    "storage.k8s.io/volumeattachments": Kind(
        checks_whole=True,
        unconditional_update=False,
        defaults=_default_attachment,
        returns_deleted=True,
        checks_metadata=1,
        rule=check_attachment,
        new_rule=check_new_attachment,
        update_rule=check_attachment_update,
        cells={
            "Attacher": field("spec.attacher"),
            "PV": field("spec.source.persistentVolumeName"),
            "Node": field("spec.nodeName"),
            "Attached": field("status.attached", False),
        },
    ),
    "storage.k8s.io/storageclasses": Kind(
        checks_whole=True,
        defaults=_default_storage_class,
        rule=check_storage_class,
        update_rule=check_storage_class_update,
        cells={
            "Provisioner": field("provisioner"),
            "ReclaimPolicy": field("reclaimPolicy", "Delete"),
            "VolumeBindingMode": text("volumeBindingMode", "<unset>"),
            "AllowVolumeExpansion": field("allowVolumeExpansion", False),
        },
    ),
    "storage.k8s.io/volumeattributesclasses": Kind(
        rule=check_attributes_class,
        update_rule=check_attributes_class_update,
        cells={"DriverName": field("driverName")},
    ),
}
