"""The rules of storage classes, volumes, CSI drivers and attachments.

They are those of `pkg/apis/storage/validation`.
"""

from collections.abc import Mapping

from listwatch.apiserver.kinds.claim_rules import check_modes
from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.pod_rules import check_node_selector
from listwatch.apiserver.kinds.rules import (
    NOT_NEGATIVE,
    label_selector,
    not_among,
    not_negative,
    qualified_name,
    quantity,
    subdomain,
)
from listwatch.apiserver.kinds.volume_rules import check_one_source, driver_name
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)

_IMMUTABLE = "field is immutable"
_INLINE = "may not be specified in the context of inline volumes"
_MOST_PARAMETERS, _PARAMETERS_SIZE = 512, 256 << 10
_ATTACHED = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
#: Fields of a persistent volume's spec that are not sources.
_NO_SOURCE = frozenset(
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


def _provisioner(path: str, name: str) -> list[Cause]:
    return qualified_name(path, name.lower()) if name else [required(path)]


def _parameters(parameters: Mapping[str, str]) -> list[Cause]:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in parameters.items())
    if len(parameters) > _MOST_PARAMETERS or size > _PARAMETERS_SIZE:
        return [Cause("parameters", "FieldValueTooLong", "Too long: may not be more")]
    if "" in parameters:
        return [invalid_value("parameters", "", "field can not be empty.")]
    return []


def check_storage_class(obj: View) -> list[Cause]:
    """Return the rules that a StorageClass violates."""
    causes = _provisioner("provisioner", obj.get("provisioner", ""))
    causes += _parameters(obj.get("parameters") or {})
    if obj.get("reclaimPolicy"):
        causes += not_among(obj, "", "reclaimPolicy", ("Delete", "Retain"))
    seen: list[Mapping[str, set[str]]] = []
    for index, topology in enumerate(obj.get("allowedTopologies") or ()):
        where = f"allowedTopologies[{index}].matchLabelExpressions"
        found: dict[str, set[str]] = {}
        for number, term in enumerate(topology.get("matchLabelExpressions") or ()):
            here, key, values = f"{where}[{number}]", term.get("key", ""), term.get("values") or []
            if not values:
                causes.append(required(f"{here}.values"))
            causes += [
                duplicate(f"{here}.values[{place}]", value)
                for place, value in enumerate(values)
                if value in values[:place]
            ]
            causes += qualified_name(f"{here}.key", key)
            if key in found:
                causes.append(duplicate(f"{here}.key", key))
            found[key] = set(values)
        causes += [duplicate(where, "") for each in seen if each == found]
        seen.append(found)
    return causes


def check_storage_class_update(new: View, old: View) -> list[Cause]:
    """Return a StorageClass's changes of immutable fields."""
    return [
        invalid_value(field, new.get(field), _IMMUTABLE)
        for field in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
        if (new.get(field) or None) != (old.get(field) or None)
    ]


def check_attributes_class(obj: View) -> list[Cause]:
    """Return the rules that a VolumeAttributesClass violates."""
    parameters = obj.get("parameters") or {}
    causes = _provisioner("driverName", obj.get("driverName", "")) + _parameters(parameters)
    if not parameters:
        causes.append(required("parameters", "must contain at least one key/value pair"))
    return causes


def check_attributes_class_update(new: View, old: View) -> list[Cause]:
    """Return a VolumeAttributesClass's changes of immutable fields."""
    return [
        forbidden_value(field, f"updates to {field} are forbidden.")
        for field in ("driverName", "parameters")
        if new.get(field) != old.get(field)
    ]


def check_volume(obj: View) -> list[Cause]:
    """Return the rules that a PersistentVolume violates."""
    return _check_volume_spec(obj.get("spec") or {}, "spec")


def _check_volume_spec(spec: View, path: str, *, inline: bool = False) -> list[Cause]:
    causes: list[Cause] = []
    if inline:
        causes += [
            forbidden_value(f"{path}.{key}", _INLINE)
            for key in ("claimRef", "capacity", "nodeAffinity", "storageClassName")
            if spec.get(key)
        ]
        if spec.get("csi") is None:
            why = "has to be specified in the context of inline volumes"
            causes.append(required(f"{path}.csi", why))
    causes += check_modes(spec.get("accessModes") or (), f"{path}.accessModes")
    if not inline:
        causes += _check_capacity(spec.get("capacity") or {}, f"{path}.capacity")
    affinity, where = spec.get("nodeAffinity"), f"{path}.nodeAffinity"
    if affinity is not None and not inline:
        selector = affinity.get("required")
        causes += (
            [required(f"{where}.required", "must specify required node constraints")]
            if selector is None
            else check_node_selector(selector, f"{where}.required")
        )
    sources = [key for key in spec if key not in _NO_SOURCE]
    causes += check_one_source(spec, path, sources, lasting=True)
    if "local" in sources and affinity is None:
        causes.append(required(where, "Local volume requires node affinity"))
    root = (spec.get("hostPath") or {}).get("path", "").rstrip("/") == ""
    if "hostPath" in sources and root and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        why = "may not be 'recycle' for a hostPath mount of '/'"
        causes.append(forbidden_value(f"{path}.persistentVolumeReclaimPolicy", why))
    if spec.get("storageClassName") and not inline:
        causes += subdomain(f"{path}.storageClassName", spec["storageClassName"])
    attributes, where = spec.get("volumeAttributesClassName"), f"{path}.volumeAttributesClassName"
    if attributes is not None:
        causes += (
            subdomain(where, attributes)
            if attributes
            else [required(where, "an empty string is disallowed")]
        )
        if "csi" not in sources:
            why = "has to be specified when using volumeAttributesClassName"
            causes.append(required(f"{path}.csi", why))
    return causes


def _check_capacity(capacity: View, path: str) -> list[Cause]:
    causes = [] if capacity else [required(path)]
    if set(capacity) != {"storage"}:
        causes.append(not_supported(path, capacity, ("storage",)))
    for name, amount in capacity.items():
        if quantity(amount) < 0:
            causes.append(invalid_value(f"{path}[{name}]", amount, "must be a valid quantity"))
        if quantity(amount) <= 0:
            causes.append(invalid_value(f"{path}[{name}]", amount, "must be greater than zero"))
    return causes


def check_volume_update(new: View, old: View) -> list[Cause]:
    """Return a PersistentVolume's changes of immutable fields."""
    after, before = new.get("spec") or {}, old.get("spec") or {}
    causes = []
    if any(
        _source(after, before, key) != before.get(key)
        for key in (after.keys() | before.keys()) - _NO_SOURCE
    ):
        why = "spec.persistentvolumesource is immutable after creation"
        causes.append(forbidden_value("spec.persistentvolumesource", why))
    mode, affinity = after.get("volumeMode"), after.get("nodeAffinity")
    if mode != before.get("volumeMode"):
        causes.append(invalid_value("volumeMode", mode, _IMMUTABLE))
    if before.get("nodeAffinity") is not None and affinity != before["nodeAffinity"]:
        why = f"{_IMMUTABLE}, except for updating from beta label to GA"
        causes.append(invalid_value("nodeAffinity", affinity, why))
    if before.get("volumeAttributesClassName") and not after.get("volumeAttributesClassName"):
        why = "update from non-nil value to nil is forbidden"
        causes.append(forbidden_value("spec.volumeAttributesClassName", why))
    return causes


def _source(after: View, before: View, key: str) -> object:
    source = after.get(key)
    late = "controllerExpandSecretRef"
    if key == "csi" and source and late not in (before.get(key) or {late: None}):
        return {name: value for name, value in source.items() if name != late}
    return source


def check_attachment(obj: View) -> list[Cause]:
    """Return the rules that a VolumeAttachment violates."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    attacher, source = spec.get("attacher", ""), spec.get("source") or {}
    causes = [] if attacher else [required("spec.attacher")]
    name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
    if name is None and inline is None:
        causes.append(required("spec.source", _ATTACHED))
    elif name is not None and inline is not None:
        causes.append(forbidden_value("spec.source", _ATTACHED))
    elif name == "":
        why = "must specify non empty persistentVolumeName"
        causes.append(required("spec.source.persistentVolumeName", why))
    elif inline is not None:
        causes += _check_volume_spec(inline, "spec.source.inlineVolumeSpec", inline=True)
    causes += subdomain("spec.nodeName", spec.get("nodeName", ""))
    for key in ("attachError", "detachError"):
        code = (status.get(key) or {}).get("errorCode")
        if code is not None and code < 0:
            why = "must be between 0 and 2147483647, inclusive"
            causes.append(invalid_value(f"status.{key}.errorCode", code, why))
    return causes


def check_new_attachment(obj: View) -> list[Cause]:
    """Return the rules that only a new VolumeAttachment violates."""
    spec = obj.get("spec") or {}
    name = (spec.get("source") or {}).get("persistentVolumeName")
    causes = driver_name("spec.attacher", spec.get("attacher", ""))
    return causes if name is None else causes + subdomain("spec.source.persistentVolumeName", name)


def check_attachment_update(new: View, old: View) -> list[Cause]:
    """Return a VolumeAttachment's changes of immutable fields."""
    if new.get("spec") == old.get("spec"):
        return []
    return [invalid_value("spec", new.get("spec"), _IMMUTABLE)]


_SHORTEST_NODE_PERIOD, _SHORTEST_TOKEN, _LONGEST_TOKEN = 10, 600, 1 << 32


def check_driver(obj: View) -> list[Cause]:
    """Return the rules that a CSIDriver violates."""
    spec = obj.get("spec") or {}
    causes = not_among(spec, "spec", "fsGroupPolicy", ("File", "None", "ReadWriteOnceWithFSType"))
    audiences: set[str] = set()
    for index, token in enumerate(spec.get("tokenRequests") or ()):
        here, audience = f"spec.tokenRequests[{index}]", token.get("audience", "")
        if audience in audiences:
            causes.append(duplicate(f"{here}.audience", audience))
            continue
        audiences.add(audience)
        seconds = token.get("expirationSeconds")
        if seconds is not None and not _SHORTEST_TOKEN <= seconds <= _LONGEST_TOKEN:
            why = "may not specify a duration less than 10 minutes or larger than 2^32 seconds"
            causes.append(invalid_value(f"{here}.expirationSeconds", seconds, why))
    modes = ("Persistent", "Ephemeral")
    causes += [
        not_supported("spec.volumeLifecycleModes", mode, modes)
        for mode in spec.get("volumeLifecycleModes") or ()
        if mode not in modes
    ]
    seconds = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if seconds is not None and seconds < _SHORTEST_NODE_PERIOD:
        why = "must be greater than or equal to 10 seconds"
        causes.append(invalid_value("spec.nodeAllocatableUpdatePeriodSeconds", seconds, why))
    return causes


def check_driver_update(new: View, old: View) -> list[Cause]:
    """Return a CSIDriver's changes of immutable fields."""
    after, before = new.get("spec") or {}, old.get("spec") or {}
    return [
        invalid_value(f"spec.{told}", after.get(key), _IMMUTABLE)
        for key, told in (
            ("attachRequired", "attachedRequired"),
            ("volumeLifecycleModes", "volumeLifecycleModes"),
        )
        if after.get(key) != before.get(key)
    ]


_LONGEST_NODE_ID = 256


def check_storage_node(obj: View) -> list[Cause]:
    """Return the rules that a CSINode violates."""
    causes: list[Cause] = []
    names: set[str] = set()
    for index, driver in enumerate((obj.get("spec") or {}).get("drivers") or ()):
        here, name = f"spec.drivers[{index}]", driver.get("name", "")
        causes += driver_name(f"{here}.name", name)
        node = driver.get("nodeID", "")
        if not node:
            causes.append(required(f"{here}.nodeID"))
        if len(node) > _LONGEST_NODE_ID:
            why = f"must be {_LONGEST_NODE_ID} characters or less"
            causes.append(invalid_value(f"{here}.nodeID", node, why))
        causes += not_negative(driver.get("allocatable") or {}, f"{here}.allocatable", "count")
        if name in names:
            causes.append(duplicate(f"{here}.name", name))
        names.add(name)
        keys = driver.get("topologyKeys") or []
        for place, key in enumerate(keys):
            if not key:
                causes.append(required(here))
            if key in keys[:place]:
                causes.append(duplicate(here, key))
            causes += qualified_name(here, key)
    return causes


def check_storage_node_update(new: View, old: View) -> list[Cause]:
    """Return a CSINode's changes of immutable driver fields."""
    before = {each.get("name"): each for each in (old.get("spec") or {}).get("drivers") or ()}
    return [
        invalid_value("spec.drivers", driver, _IMMUTABLE)
        for driver in (new.get("spec") or {}).get("drivers") or ()
        if driver.get("name") in before
        and any(
            driver.get(key) != before[driver.get("name")].get(key)
            for key in ("nodeID", "topologyKeys")
        )
    ]


def check_storage_capacity(obj: View) -> list[Cause]:
    """Return the rules that a CSIStorageCapacity violates."""
    causes = label_selector(obj.get("nodeTopology"), "nodeTopology")
    causes += subdomain("storageClassName", obj.get("storageClassName", ""))
    amount = obj.get("capacity")
    if amount is not None and quantity(amount) < 0:
        causes.append(invalid_value("capacity", amount, NOT_NEGATIVE))
    return causes
