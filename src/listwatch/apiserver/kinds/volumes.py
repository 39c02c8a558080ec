"""Persistent volumes, their claims and what provides them."""

from collections.abc import Iterable, Mapping

from listwatch.apiserver.kinds.cells import Cell, at, count, field, join, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, status_of
from listwatch.apiserver.kinds.pod_rules import check_node_selector
from listwatch.apiserver.kinds.rules import (
    enumeration,
    label_selector,
    qualified_name,
    quantity,
    subdomain,
)
from listwatch.apiserver.kinds.volume_rules import check_one_source
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
    source, newer = spec.get("dataSource"), spec.get("dataSourceRef")
    for each in (source, newer):
        if each is not None:
            each.setdefault("apiGroup", None)
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
    spec = obj.get("spec") or {}
    causes = []
    if not spec.get("accessModes"):
        causes.append(required("spec.accessModes", "at least 1 access mode is required"))
    causes += label_selector(spec.get("selector"), "spec.selector")
    causes += _check_modes(spec.get("accessModes") or ())
    requests = (spec.get("resources") or {}).get("requests") or {}
    where, storage = "spec.resources[storage]", requests.get("storage")
    if storage is None:
        causes.append(required(where))
    elif quantity(storage) <= 0:
        causes.append(invalid_value(where, storage, "must be greater than zero"))
    if spec.get("storageClassName"):
        causes += subdomain("spec.storageClassName", spec["storageClassName"])
    return causes


def _check_modes(modes: Iterable[str]) -> list[Cause]:
    modes = list(modes)
    causes = [
        not_supported("spec.accessModes", mode, sorted(_MODES))
        for mode in modes
        if mode not in _MODES
    ]
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        why = "may not use ReadWriteOncePod with other access modes"
        causes.append(forbidden_value("spec.accessModes", why))
    return causes


_CLAIM_WORDS = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for "
    "bound claims"
)


def _check_claim_update(new: View, old: View) -> list[Cause]:
    after, before = dict(new.get("spec") or {}), dict(old.get("spec") or {})
    if after.get("volumeName") and not before.get("volumeName"):
        after.pop("volumeName")  # the one thing that binding a claim writes
    if (old.get("status") or {}).get("phase") == "Bound":
        for key in ("resources", "volumeAttributesClassName"):
            after.pop(key, None)
            before.pop(key, None)
    return [] if after == before else [forbidden_value("spec", _CLAIM_WORDS)]


def _check_storage_class(obj: View) -> list[Cause]:
    provisioner = obj.get("provisioner", "")
    causes = (
        qualified_name("provisioner", provisioner.lower())
        if provisioner
        else [required("provisioner")]
    )
    if "" in (obj.get("parameters") or {}):
        causes.append(invalid_value("parameters", "", "field can not be empty."))
    for index, topology in enumerate(obj.get("allowedTopologies") or ()):
        for number, term in enumerate(topology.get("matchLabelExpressions") or ()):
            here = f"allowedTopologies[{index}].matchLabelExpressions[{number}]"
            if not term.get("values"):
                causes.append(required(f"{here}.values"))
            causes += qualified_name(f"{here}.key", term.get("key", ""))
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
    elif quantity(capacity["storage"]) <= 0:
        why = "must be greater than zero"
        causes.append(invalid_value("spec.capacity[storage]", capacity["storage"], why))
    causes += _check_modes(spec.get("accessModes") or ())
    sources = [key for key in spec if key not in _NOT_A_SOURCE]
    if not sources:
        causes.append(required("spec", "must specify a volume type"))
    causes += check_one_source(spec, "spec", sources)
    affinity = spec.get("nodeAffinity")
    where = "spec.nodeAffinity"
    if affinity is not None:
        selector = affinity.get("required")
        causes += (
            [required(f"{where}.required", "must specify required node constraints")]
            if selector is None
            else check_node_selector(selector, f"{where}.required")
        )
    elif sources[:1] == ["local"]:
        causes.append(required(where, "Local volume requires node affinity"))
    if spec.get("storageClassName"):
        causes += subdomain("spec.storageClassName", spec["storageClassName"])
    return causes


def _check_volume_update(new: View, old: View) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    causes = []
    if any(
        after.get(key) != before.get(key) for key in (after.keys() | before.keys()) - _NOT_A_SOURCE
    ):
        why = "spec.persistentvolumesource is immutable after creation"
        causes.append(forbidden_value("spec.persistentvolumesource", why))
    mode = after.get("volumeMode")
    if mode != before.get("volumeMode"):
        causes.append(invalid_value("spec.volumeMode", mode, "field is immutable"))
    affinity = after.get("nodeAffinity")
    if before.get("nodeAffinity") is not None and affinity != before["nodeAffinity"]:
        causes.append(invalid_value("spec.nodeAffinity", affinity, "field is immutable"))
    return causes


def _check_storage_class_update(new: View, old: View) -> list[Cause]:
    return [
        invalid_value(field, new.get(field), "field is immutable")
        for field in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
        if (new.get(field) or None) != (old.get(field) or None)
    ]


def _check_attachment(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = [
        cause
        for key in ("attacher", "nodeName")
        for cause in subdomain(f"spec.{key}", spec.get(key, ""))
    ]
    source = spec.get("source") or {}
    if not source.get("persistentVolumeName") and source.get("inlineVolumeSpec") is None:
        why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        causes.append(required("spec.source", why))
    return causes


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


def _admit_volume(obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pv-protection" not in finalizers:
        finalizers.append("kubernetes.io/pv-protection")
    now = obj["metadata"]["creationTimestamp"]
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}


def _settle_volume(new: Object, old: View, now: str) -> None:
    """Note when the phase changed, unless a client says so."""
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
        returns_deleted=True,
        defaults=_default_persistent_volume,
        admit=_admit_volume,
        settle=_settle_volume,
        rule=_check_volume,
        update_rule=_check_volume_update,
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
        returns_deleted=True,
        defaults=_default_volume_claim,
        admit=_admit_claim,
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
        unconditional_update=False,
        defaults=_default_storage_node,
        cells={"Drivers": count("spec.drivers")},
    ),
    "storage.k8s.io/csistoragecapacities": Kind(unconditional_update=False),
    "storage.k8s.io/volumeattachments": Kind(
        unconditional_update=False,
        defaults=_default_attachment,
        returns_deleted=True,
        checks_metadata=1,
        rule=_check_attachment,
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
