"""The rules of volume mounts and block devices in containers.

They are those of `ValidateVolumeMounts` and `ValidateVolumeDevices` in `pkg/apis/core/validation`.
As there, some causes don't name the mount.
"""

from collections.abc import Mapping

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.reference_rules import descending_path, no_backsteps
from listwatch.apiserver.kinds.rules import not_among
from listwatch.schema.causes import (
    Cause,
    forbidden_value,
    go_quoted,
    invalid_value,
    required,
)

#: Fields of a mount that have rules and that most mounts lack.
_UNUSUAL = frozenset(("subPath", "subPathExpr", "mountPropagation", "recursiveReadOnly"))
_RECURSIONS = ("Disabled", "Enabled", "IfPossible")


def check_mounts(container: View, path: str, volumes: Mapping[str, View]) -> list[Cause]:
    """Return the rules that the mounts and devices of a container violate.

    Args:
        container: the container.
        path: its path.
        volumes: the pod's valid volumes by name.
    """
    mounts, devices = container.get("volumeMounts") or (), container.get("volumeDevices") or ()
    causes: list[Cause] = []
    if not mounts and not devices:
        return causes
    blocks = {each.get("name", ""): each.get("devicePath", "") for each in devices}
    places: set[str] = set()
    for index, mount in enumerate(mounts):
        here = f"{path}.volumeMounts[{index}]"
        name, where = mount.get("name", ""), mount.get("mountPath", "")
        if name not in volumes:
            causes += _known(here, name, volumes)
        if not where:
            causes.append(required(f"{here}.mountPath"))
        if where in places:
            causes.append(invalid_value(f"{here}.mountPath", where, "must be unique"))
        places.add(where)
        if name in blocks:
            why = "must not already exist in volumeDevices"
            causes.append(invalid_value(f"{here}.name", name, why))
        if where in blocks.values():
            why = "must not already exist as a path in volumeDevices"
            causes.append(invalid_value(f"{here}.mountPath", where, why))
        if not _UNUSUAL.isdisjoint(mount):
            causes += _check_parts(mount, here, f"{path}.volumeMounts", volumes.get(name) or {})
            causes += _check_sharing(mount, f"{path}.volumeMounts", container)
    if not devices:
        return causes
    mounted = {each.get("name", ""): each.get("mountPath", "") for each in mounts}
    return causes + _check_devices(container, f"{path}.volumeDevices", volumes, mounted)


def _known(path: str, name: str, volumes: Mapping[str, View]) -> list[Cause]:
    causes = [] if name else [required(f"{path}.name")]
    if name not in volumes:
        words = f"Not found: {go_quoted(name)}"
        causes.append(Cause(f"{path}.name", "FieldValueNotFound", words))
    return causes


def _check_parts(mount: View, path: str, above: str, volume: View) -> list[Cause]:
    causes: list[Cause] = []
    part, expression = mount.get("subPath"), mount.get("subPathExpr")
    if "image" in volume:
        causes += [
            invalid_value(f"{path}.{key}", mount[key], "not allowed in image volume sources")
            for key in ("subPath", "subPathExpr")
            if mount.get(key)
        ]
    if part:
        causes += descending_path(f"{above}.subPath", part)
    if expression:
        if part:
            why = "subPathExpr and subPath are mutually exclusive"
            causes.append(invalid_value(f"{path}.subPathExpr", expression, why))
        causes += descending_path(f"{above}.subPathExpr", expression)
    return causes


def _check_sharing(mount: View, path: str, container: View) -> list[Cause]:
    shared, recursive = mount.get("mountPropagation"), mount.get("recursiveReadOnly")
    privileged = (container.get("securityContext") or {}).get("privileged")
    causes = not_among(
        mount, path, "mountPropagation", ("Bidirectional", "HostToContainer", "None")
    )
    if shared == "Bidirectional" and not privileged:
        why = "Bidirectional mount propagation is available only to privileged containers"
        causes.append(forbidden_value(f"{path}.mountPropagation", why))
    causes += not_among(mount, path, "recursiveReadOnly", _RECURSIONS)
    if recursive in _RECURSIONS[1:]:
        where = f"{path}.recursiveReadOnly"
        if not mount.get("readOnly"):
            why = "may only be specified when readOnly is true"
            causes.append(forbidden_value(where, why))
        if shared not in {None, "None"}:
            why = "may only be specified when mountPropagation is None or not specified"
            causes.append(forbidden_value(where, why))
    return causes


def _check_devices(
    container: View, path: str, volumes: Mapping[str, View], mounted: Mapping[str, str]
) -> list[Cause]:
    causes: list[Cause] = []
    names: set[str] = set()
    places: set[str] = set()
    for index, device in enumerate(container.get("volumeDevices") or ()):
        here = f"{path}[{index}]"
        name, where = device.get("name", ""), device.get("devicePath", "")
        if name in names:
            causes.append(invalid_value(f"{here}.name", name, "must be unique"))
        causes += _known(here, name, volumes)
        if name in volumes and not {"persistentVolumeClaim", "ephemeral"} & volumes[name].keys():
            why = (
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block "
                "mode"
            )
            causes.append(invalid_value(f"{here}.name", name, why))
        if not where:
            causes.append(required(f"{here}.devicePath"))
        if where in places:
            causes.append(invalid_value(f"{here}.devicePath", where, "must be unique"))
        if where and no_backsteps("", where):
            why = "can not contain backsteps ('..')"
            causes.append(invalid_value(f"{here}.devicePath", where, why))
        else:
            places.add(where)
        if name in mounted:
            why = "must not already exist in volumeMounts"
            causes.append(invalid_value(f"{here}.name", name, why))
        if where in mounted.values():
            why = "must not already exist as a path in volumeMounts"
            causes.append(invalid_value(f"{here}.devicePath", where, why))
        if name:
            names.add(name)
    return causes
