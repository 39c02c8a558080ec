"""The rules of volumes of pods and of persistent volumes (`pkg/apis/core/validation`).

As on a real server, some causes name another path than that of the field.
"""

import re
from collections.abc import Callable, Mapping

from listwatch.apiserver.kinds.claim_rules import check_claim_template
from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.reference_rules import (
    check_file,
    check_mode,
    descending_path,
    local_path,
    no_backsteps,
)
from listwatch.apiserver.kinds.rules import label, label_selector, quantity, subdomain
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)

_Check = Callable[[View, str], list[Cause]]
_DUPLICATE_PATHS = "conflicting duplicate paths"
_RESERVED = "kubernetes.io and k8s.io namespaces are reserved"
_INITIATORS = {
    "iqn": re.compile(r"iqn\.\d{4}-\d{2}\.([A-Za-z0-9:._-]+)"),
    "eui": re.compile(r"eui\.[A-Za-z0-9]{16}"),
    "naa": re.compile(r"naa\.[A-Za-z0-9]{32}"),
}
_LARGEST = 255


def check_volumes(
    spec: View, path: str, causes: list[Cause], *, pod: str = ""
) -> Mapping[str, View]:
    """Add the rules that the volumes of a pod's spec violate; return the valid ones by name.

    Args:
        spec: the pod's spec.
        path: its path.
        causes: receives the violations.
        pod: the pod's name; "" for a template.
    """
    found: dict[str, View] = {}
    volumes = spec.get("volumes") or ()
    made = {f"{pod}-{each.get('name', '')}" for each in volumes if pod and "ephemeral" in each}
    for index, volume in enumerate(volumes):
        here, name = f"{path}.volumes[{index}]", volume.get("name", "")
        broken = check_one_source(volume, here, [key for key in volume if key != "name"])
        broken += label(f"{here}.name", name) if name else [required(f"{here}.name")]
        if name in found:
            broken.append(duplicate(f"{here}.name", name))
        if pod and name and "ephemeral" in volume:
            broken += subdomain(f"{here}.name", f"{pod}-{name}")
        if not broken:
            found[name] = volume
        causes += broken
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim in made:
            why = "must not reference a PVC that gets created for an ephemeral volume"
            where = f"{here}.persistentVolumeClaim.claimName"
            causes.append(invalid_value(where, claim, why))
    return found


def check_one_source(
    volume: View, path: str, sources: list[str], *, lasting: bool = False
) -> list[Cause]:
    """Return the violations of a volume's sources, of which there must be exactly one.

    Args:
        volume: contains the sources.
        path: its path.
        sources: their keys.
        lasting: whether the volume is a persistent one.
    """
    ordered = [kind for kind in _ORDER if kind in sources]
    if not ordered:
        return [required(path, "must specify a volume type")]
    causes: list[Cause] = []
    for kind in ordered:
        if kind != ordered[0] and kind not in {"emptyDir", "flexVolume"}:
            where = f"{path}.{_WRITTEN_FORBIDDEN.get(kind, kind)}"
            causes.append(forbidden_value(where, "may not specify more than 1 volume type"))
            continue
        source, here = volume[kind], f"{path}.{_WRITTEN.get(kind, kind)}"
        causes += [
            required(f"{here}.{key}") for key in _REQUIRED.get(kind, ()) if not source.get(key)
        ]
        check = _LASTING_CHECKS.get(kind) if lasting else None
        check = check or _CHECKS.get(kind)
        if check is not None:
            causes += check(source, here)
    return causes


#: The sources of a volume, in the server's order.
_ORDER = (
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "local",
    "csi",
    "ephemeral",
    "image",
)
#: Other names of sources in causes.
_WRITTEN = {"gcePersistentDisk": "persistentDisk"}
#: Other names of surplus sources in causes.
_WRITTEN_FORBIDDEN = {"cephfs": "cephFS", "downwardAPI": "downwarAPI"}
#: Required fields, by the type of a volume.
_REQUIRED = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
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
    "quobyte": ("volume",),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "secret": ("secretName",),
    "configMap": ("name",),
    "storageos": ("volumeName",),
    "vsphereVolume": ("volumePath",),
}


def _check_empty_dir(source: View, path: str) -> list[Cause]:
    limit = source.get("sizeLimit")
    if limit is not None and quantity(limit) < 0:
        why = "SizeLimit field must be a valid resource quantity"
        return [forbidden_value(f"{path}.sizeLimit", why)]
    return []


def _check_host_path(source: View, path: str) -> list[Cause]:
    text = source.get("path", "")
    return no_backsteps(f"{path}.path", text) if text else [required(f"{path}.path")]


def _check_git(source: View, path: str) -> list[Cause]:
    return descending_path(f"{path}.directory", source.get("directory", ""))


def _check_partition(source: View, path: str) -> list[Cause]:
    number = source.get("partition", 0)
    if 0 <= number <= _LARGEST:
        return []
    why = "must be between 0 and 255, inclusive"
    return [invalid_value(f"{path}.partition", number, why)]


def _check_nfs(source: View, path: str) -> list[Cause]:
    text = source.get("path", "")
    if not text.startswith("/"):
        return [invalid_value(f"{path}.path", text, "must be an absolute path")]
    return []


def _check_iscsi(source: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for key, where in (("iqn", f"{path}.iqn"), ("initiatorName", f"{path}.initiatorname")):
        name = source.get(key)
        if name is None or (key == "iqn" and not name):
            continue
        pattern = _INITIATORS.get(name[:3])
        if pattern is None:
            why = "must be valid format starting with iqn, eui, or naa"
            causes.append(invalid_value(where, name, why))
        elif not pattern.fullmatch(name):
            causes.append(invalid_value(where, name, "must be valid format"))
    number = source.get("lun", 0)
    if not 0 <= number <= _LARGEST:
        causes.append(invalid_value(f"{path}.lun", number, "must be between 0 and 255, inclusive"))
    if (source.get("chapAuthDiscovery") or source.get("chapAuthSession")) and not source.get(
        "secretRef"
    ):
        causes.append(required(f"{path}.secretRef"))
    return causes


def _check_flocker(source: View, path: str) -> list[Cause]:
    name, uid = source.get("datasetName"), source.get("datasetUUID")
    causes: list[Cause] = []
    if not name and not uid:
        causes.append(required(path, "one of datasetName and datasetUUID is required"))
    if name and uid:
        why = "datasetName and datasetUUID can not be specified simultaneously"
        causes.append(invalid_value(path, "resource", why))
    if "/" in (name or ""):
        causes.append(invalid_value(f"{path}.datasetName", name, "must not contain '/'"))
    return causes


def _check_quobyte(source: View, path: str) -> list[Cause]:
    why = "must be a host:port pair or multiple pairs separated by commas"
    registry, where = source.get("registry", ""), f"{path}.registry"
    if not registry:
        return [required(where, why)]
    return [
        invalid_value(where, registry, why)
        for pair in registry.split(",")
        if not re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*):[^:]*", pair)
    ]


def _check_fibre(source: View, path: str) -> list[Cause]:
    names, ids = source.get("targetWWNs"), source.get("wwids")
    where, number = f"{path}.targetWWNs", source.get("lun")
    causes: list[Cause] = []
    if not names and not ids:
        causes.append(required(where, "must specify either targetWWNs or wwids, but not both"))
    if names and ids:
        why = "targetWWNs and wwids can not be specified simultaneously"
        causes.append(invalid_value(where, names, why))
    if names and number is None:
        causes.append(required(f"{path}.lun", "lun is required if targetWWNs is specified"))
    elif names and number is not None and not 0 <= number <= _LARGEST:
        causes.append(invalid_value(f"{path}.lun", number, "must be between 0 and 255, inclusive"))
    return causes


def _check_flexible(source: View, path: str) -> list[Cause]:
    return [
        invalid_value(f"{path}.options[{key}]", key, _RESERVED)
        for key in source.get("options") or ()
        if f".{key.partition('/')[0].lower()}".endswith((".kubernetes.io", ".k8s.io"))
    ]


def _check_azure_disk(source: View, path: str) -> list[Cause]:
    kind, uri = source.get("kind"), source.get("diskURI", "")
    prefix = "/subscriptions/" if kind == "Managed" else "https://"
    if kind is not None and not uri.startswith(prefix):
        return [not_supported(f"{path}.diskURI", uri, (f"{prefix}...",))]
    return []


def _check_storage_os(source: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for key in ("volumeName", "volumeNamespace"):
        if source.get(key):
            causes += label(f"{path}.{key}", source[key])
    return causes


def driver_name(path: str, name: str) -> list[Cause]:
    """Return why a name is not a CSI driver's."""
    causes = [] if name else [required(path)]
    if len(name) > 63:
        causes.append(Cause(path, "FieldValueTooLong", "Too long: may not be more than 63 bytes"))
    return causes + subdomain(path, name.lower())


def _check_lasting_csi(source: View, path: str) -> list[Cause]:
    causes = driver_name(f"{path}.driver", source.get("driver", ""))
    if not source.get("volumeHandle"):
        causes.append(required(f"{path}.volumeHandle"))
    for key in ("controllerPublish", "controllerExpand", "nodePublish", "nodeExpand"):
        secret = source.get(f"{key}SecretRef")
        if secret is None:
            continue
        for part, rule in (("name", subdomain), ("namespace", label)):
            where, text = f"{path}.{key}SecretRef.{part}", secret.get(part, "")
            causes += rule(where, text) if text else [required(where)]
    return causes


def _check_lasting_secret(source: View, path: str) -> list[Cause]:
    secret = source.get("secretRef")
    if secret is None:
        return []
    return [
        required(f"{path}.secretRef.{key}") for key in ("name", "namespace") if not secret.get(key)
    ]


def _check_lasting_share(source: View, path: str) -> list[Cause]:
    space = source.get("secretNamespace")
    return [required(f"{path}.secretNamespace")] if space == "" else []


def _check_csi(source: View, path: str) -> list[Cause]:
    causes = driver_name(f"{path}.driver", source.get("driver", ""))
    secret = source.get("nodePublishSecretRef")
    if secret is None:
        return causes
    name = secret.get("name", "")
    if not name:
        return [*causes, required(f"{path}.nodePublishSecretRef.name")]
    return causes + subdomain(f"{path}.name", name)


def _check_items(source: View, path: str) -> list[Cause]:
    causes = check_mode(source, path, "defaultMode")
    for index, item in enumerate(source.get("items") or ()):
        here = f"{path}.items[{index}]"
        if not item.get("key"):
            causes.append(required(f"{here}.key"))
        causes += _check_place(item, here) + check_mode(item, here, "mode")
    return causes


def _check_place(item: View, path: str) -> list[Cause]:
    text = item.get("path", "")
    return local_path(f"{path}.path", text) if text else [required(f"{path}.path")]


def _check_downward(source: View, path: str) -> list[Cause]:
    causes = check_mode(source, path, "defaultMode")
    for item in source.get("items") or ():
        causes += check_file(item, path)
    return causes


_PROJECTED = ("secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle")


def _check_projected(source: View, path: str) -> list[Cause]:
    causes = check_mode(source, path, "defaultMode")
    taken: set[str] = set()
    for index, part in enumerate(source.get("sources") or ()):
        here = f"{path}.sources[{index}]"
        kinds = [key for key in _PROJECTED if key in part]
        for kind in kinds:
            inside, where = part[kind], f"{here}.{kind}"
            paths = [each.get("path", "") for each in inside.get("items") or ()]
            if kind in {"secret", "configMap"}:
                if not inside.get("name"):
                    causes.append(required(f"{where}.name"))
                causes += _check_items(inside, where)
            elif kind == "downwardAPI":
                causes += _check_downward(inside, where)
            elif kind == "serviceAccountToken":
                causes += _check_token(inside, where, path)
            else:
                causes += _check_bundle(inside, where)
                paths = [inside.get("path", "")]
            for each in paths:
                if each and each in taken:
                    causes.append(invalid_value(path, each, _DUPLICATE_PATHS))
                taken.add(each)
        if len(kinds) > 1:
            why = "may not specify more than 1 volume type per source"
            causes.append(forbidden_value(here, why))
    return causes


_SHORTEST_TOKEN, _LONGEST_TOKEN = 600, 1 << 32


def _check_token(token: View, path: str, above: str) -> list[Cause]:
    causes: list[Cause] = []
    seconds, where = token.get("expirationSeconds", 3600), f"{path}.expirationSeconds"
    if seconds < _SHORTEST_TOKEN:
        why = "may not specify a duration less than 10 minutes"
        causes.append(invalid_value(where, seconds, why))
    elif seconds > _LONGEST_TOKEN:
        why = "may not specify a duration larger than 2^32 seconds"
        causes.append(invalid_value(where, seconds, why))
    text = token.get("path", "")
    return causes + (local_path(f"{above}.path", text) if text else [required(f"{above}.path")])


def _check_bundle(bundle: View, path: str) -> list[Cause]:
    name, signer, causes = bundle.get("name"), bundle.get("signerName"), list[Cause]()
    if name is not None and signer is not None:
        why = "only one of name and signerName may be used"
        causes.append(invalid_value(path, bundle, why))
    elif name is not None:
        if not name:
            causes.append(required(f"{path}.name", "must be a valid object name"))
        causes += subdomain(f"{path}.name", name.rpartition(":")[2])
        if bundle.get("labelSelector") is not None:
            why = "labelSelector must be unset if name is specified"
            causes.append(invalid_value(f"{path}.labelSelector", bundle["labelSelector"], why))
    elif signer is not None:
        if not signer:
            causes.append(required(f"{path}.signerName", "must be a valid signer name"))
        causes += label_selector(bundle.get("labelSelector"), f"{path}.labelSelector")
    else:
        causes.append(required(path, "either name or signerName must be specified"))
    return causes + _check_place(bundle, path)


def _check_ephemeral(source: View, path: str) -> list[Cause]:
    template = source.get("volumeClaimTemplate")
    return check_claim_template(template, f"{path}.volumeClaimTemplate") if template else []


_LASTING_CHECKS: Mapping[str, _Check] = {
    "azureFile": _check_lasting_share,
    "cinder": _check_lasting_secret,
    "csi": _check_lasting_csi,
}
_CHECKS: Mapping[str, _Check] = {
    "awsElasticBlockStore": _check_partition,
    "azureDisk": _check_azure_disk,
    "configMap": _check_items,
    "csi": _check_csi,
    "downwardAPI": _check_downward,
    "emptyDir": _check_empty_dir,
    "ephemeral": _check_ephemeral,
    "fc": _check_fibre,
    "flexVolume": _check_flexible,
    "flocker": _check_flocker,
    "gcePersistentDisk": _check_partition,
    "gitRepo": _check_git,
    "hostPath": _check_host_path,
    "iscsi": _check_iscsi,
    "local": _check_host_path,
    "nfs": _check_nfs,
    "projected": _check_projected,
    "quobyte": _check_quobyte,
    "secret": _check_items,
    "storageos": _check_storage_os,
}
