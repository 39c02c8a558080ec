"""Persistent volumes, their claims and what provides them."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import Cell, at, count, field, join, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, status_of
from listwatch.apiserver.kinds.rules import enumeration
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required

_CLASS = "storage.v1.StorageClass"


def _claim_storage(claim: View, _: float) -> str:
    return str(at(claim, "status.capacity.storage") or "")


_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(path: str) -> Cell:
    return lambda obj, _: ",".join(_MODES.get(each, each) for each in at(obj, path) or ())


def _volume_claim(volume: View, _: float) -> str:
    claim = at(volume, "spec.claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _phase(obj: View, _: float) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(at(obj, "status.phase") or "")


def default_claim(obj: Object) -> None:
    """Fill in the defaults of a claim, or of a claim's template."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("resources", {})


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
    spec = obj.get("spec") or {}
    causes = []
    if not spec.get("accessModes"):
        causes.append(required("spec.accessModes", "at least 1 access mode is required"))
    requests = (spec.get("resources") or {}).get("requests") or {}
    if "storage" not in requests:
        causes.append(required("spec.resources[storage]"))
    return causes


def _check_storage_class(obj: View) -> list[Cause]:
    causes = [] if obj.get("provisioner") else [required("provisioner")]
    causes += enumeration(obj, "", "reclaimPolicy", _CLASS, but=("Recycle",))
    return causes


_NOT_A_SOURCE = frozenset(
    (
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    )
)


def _check_volume(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    if not spec.get("accessModes"):
        causes.append(required("spec.accessModes"))
    capacity = spec.get("capacity")
    if not capacity:
        causes.append(required("spec.capacity"))
    if not capacity or set(capacity) != {"storage"}:
        causes.append(not_supported("spec.capacity", capacity, ("storage",)))
    sources = [key for key in spec if key not in _NOT_A_SOURCE]
    if not sources:
        causes.append(required("spec", "must specify a volume type"))
    causes += [
        forbidden_value(f"spec.{source}", "may not specify more than 1 volume type")
        for source in sources[1:]
    ]
    return causes


def _check_storage_class_update(new: View, old: View) -> list[Cause]:
    causes = [
        forbidden_value(field, f"updates to {field} are forbidden.")
        for field in ("parameters", "provisioner", "reclaimPolicy")
        if (new.get(field) or None) != (old.get(field) or None)
    ]
    mode = new.get("volumeBindingMode")
    if mode != old.get("volumeBindingMode"):
        causes.append(invalid_value("volumeBindingMode", mode, "field is immutable"))
    return causes


def _admit_claim(obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pvc-protection" not in finalizers:
        finalizers.append("kubernetes.io/pvc-protection")
    obj["status"] = {"phase": "Pending"}


def _admit_volume(obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pv-protection" not in finalizers:
        finalizers.append("kubernetes.io/pv-protection")
    now = obj["metadata"]["creationTimestamp"]
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "persistentvolumes": Kind(
        returns_deleted=True,
        defaults=_default_persistent_volume,
        admit=_admit_volume,
        rule=_check_volume,
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
        returns_deleted=True,
        defaults=_default_volume_claim,
        admit=_admit_claim,
        rule=_check_claim,
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
        defaults=_default_storage_driver,
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
        unconditional_update=False, cells={"Drivers": count("spec.drivers")}
    ),
    "storage.k8s.io/volumeattachments": Kind(
        unconditional_update=False,
        cells={
            "Attacher": field("spec.attacher"),
            "PV": field("spec.source.persistentVolumeName"),
            "Node": field("spec.nodeName"),
            "Attached": field("status.attached", False),
        },
    ),
    "storage.k8s.io/storageclasses": Kind(
        defaults=_default_storage_class,
        rule=_check_storage_class,
        update_rule=_check_storage_class_update,
        cells={
            "Provisioner": field("provisioner"),
            "ReclaimPolicy": field("reclaimPolicy", "Delete"),
            "VolumeBindingMode": text("volumeBindingMode", "<unset>"),
            "AllowVolumeExpansion": field("allowVolumeExpansion", False),
        },
    ),
    "storage.k8s.io/volumeattributesclasses": Kind(cells={"DriverName": field("driverName")}),
}
