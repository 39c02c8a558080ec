"""The rules of the volumes of a pod (`pkg/apis/core/validation`, `ValidateVolumes`)."""

from collections.abc import Callable, Mapping

from listwatch.apiserver.kinds.container_rules import (
    check_field_ref,
    descending_path,
    no_backsteps,
)
from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.rules import label
from listwatch.schema.causes import Cause, duplicate, forbidden_value, invalid_value, required

_MODE_WORDS = "must be a number between 0 and 0777 (octal), both inclusive"
_LARGEST_MODE = 0o777
#: By the type of a volume, what it can't be without.
_REQUIRED = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "csi": ("driver",),
    "ephemeral": ("volumeClaimTemplate",),
    "flexVolume": ("driver",),
    "gcePersistentDisk": ("pdName",),
    "gitRepo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "iscsi": ("targetPortal", "iqn"),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": ("registry", "volume"),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "vsphereVolume": ("volumePath",),
}


def check_volumes(spec: View, path: str, causes: list[Cause]) -> Mapping[str, View]:
    """Add the rules that the volumes of a pod's spec break; return the volumes by name."""
    found: dict[str, View] = {}
    for index, volume in enumerate(spec.get("volumes") or ()):
        here = f"{path}.volumes[{index}]"
        name = volume.get("name", "")
        causes += label(f"{here}.name", name) if name else [required(f"{here}.name")]
        if name in found:
            causes.append(duplicate(f"{here}.name", name))
        found[name] = volume
        sources = [key for key in volume if key != "name"]
        causes += check_one_source(volume, here, sources)
    return found


def check_one_source(volume: View, path: str, sources: list[str]) -> list[Cause]:
    """Return the rules that a volume's sources break, of which only one may be there."""
    causes = [
        forbidden_value(f"{path}.{source}", "may not specify more than 1 volume type")
        for source in sources[1:]
    ]
    for kind in sources[:1]:
        source, here = volume[kind], f"{path}.{kind}"
        if not isinstance(source, dict):
            continue
        causes += [
            required(f"{here}.{key}") for key in _REQUIRED.get(kind, ()) if not source.get(key)
        ]
        check = _CHECKS.get(kind)
        if check is not None:
            causes += check(source, here)
    return causes


def _check_host_path(source: View, path: str) -> list[Cause]:
    text = source.get("path", "")
    return no_backsteps(f"{path}.path", text) if text else [required(f"{path}.path")]


def _check_nfs(source: View, path: str) -> list[Cause]:
    text = source.get("path", "")
    if text and not text.startswith("/"):
        return [invalid_value(f"{path}.path", text, "must be an absolute path")]
    return []


def _mode(source: View, path: str, key: str) -> list[Cause]:
    mode = source.get(key)
    if mode is not None and not 0 <= mode <= _LARGEST_MODE:
        return [invalid_value(f"{path}.{key}", mode, _MODE_WORDS)]
    return []


def _check_items(source: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, item in enumerate(source.get("items") or ()):
        here = f"{path}.items[{index}]"
        if not item.get("key"):
            causes.append(required(f"{here}.key"))
        causes += _file(item, here)
    return causes


def _file(item: View, path: str) -> list[Cause]:
    text = item.get("path", "")
    causes = _local_path(f"{path}.path", text) if text else [required(f"{path}.path")]
    return causes + _mode(item, path, "mode")


def _local_path(path: str, text: str) -> list[Cause]:
    causes = descending_path(path, text)
    if text.startswith("..") and not text.startswith("../") and not causes:
        causes.append(invalid_value(path, text, "must not start with '..'"))
    return causes


def _check_secret(source: View, path: str) -> list[Cause]:
    causes = [] if source.get("secretName") else [required(f"{path}.secretName")]
    return causes + _mode(source, path, "defaultMode") + _check_items(source, path)


def _check_config_map(source: View, path: str) -> list[Cause]:
    causes = [] if source.get("name") else [required(f"{path}.name")]
    return causes + _mode(source, path, "defaultMode") + _check_items(source, path)


def _check_downward(source: View, path: str) -> list[Cause]:
    causes = _mode(source, path, "defaultMode")
    for index, item in enumerate(source.get("items") or ()):
        here = f"{path}.items[{index}]"
        causes += _file(item, here)
        field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
        if field is not None:
            also = ("metadata.labels", "metadata.annotations")
            causes += check_field_ref(field, f"{here}.fieldRef", also)
            if resource is not None:
                why = "fieldRef and resourceFieldRef can not be specified simultaneously"
                causes.append(invalid_value(here, "resource", why))
        elif resource is None:
            causes.append(required(here, "either fieldRef or resourceFieldRef is required"))
    return causes


def _check_projected(source: View, path: str) -> list[Cause]:
    causes = _mode(source, path, "defaultMode")
    for index, part in enumerate(source.get("sources") or ()):
        here = f"{path}.sources[{index}]"
        kinds = [
            key
            for key in ("secret", "configMap", "downwardAPI", "serviceAccountToken")
            if key in part
        ]
        causes += [
            forbidden_value(f"{here}.{kind}", "may not specify more than 1 volume type")
            for kind in kinds[1:]
        ]
        for kind in kinds:
            inside, where = part[kind], f"{here}.{kind}"
            if kind in {"secret", "configMap"}:
                if not inside.get("name"):
                    causes.append(required(f"{where}.name"))
                causes += _check_items(inside, where)
            elif kind == "downwardAPI":
                causes += _check_downward(inside, where)
            else:
                seconds = inside.get("expirationSeconds", 3600)
                if seconds < 600:
                    why = "may not specify a duration less than 10 minutes"
                    causes.append(invalid_value(f"{where}.expirationSeconds", seconds, why))
                if not inside.get("path"):
                    causes.append(required(f"{where}.path"))
    return causes


_CHECKS: Mapping[str, Callable[[View, str], list[Cause]]] = {
    "configMap": _check_config_map,
    "downwardAPI": _check_downward,
    "hostPath": _check_host_path,
    "nfs": _check_nfs,
    "projected": _check_projected,
    "secret": _check_secret,
}
