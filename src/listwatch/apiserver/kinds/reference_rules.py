"""The rules of references in pods: to fields, container resources, keys, paths of files.

They are those of `pkg/apis/core/validation`.
"""

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.rules import config_key, qualified_name, quantity, subdomain
from listwatch.schema.causes import Cause, invalid_value, not_supported, required

_MODE_WORDS = "must be a number between 0 and 0777 (octal), both inclusive"
_LARGEST_MODE = 0o777
_VARIABLE_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_FILE_FIELDS = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
#: The fields that the downward API supports (`ConvertDownwardAPIFieldLabel`).
_KNOWN_FIELDS = frozenset(
    (
        *_VARIABLE_FIELDS,
        *_FILE_FIELDS,
        "spec.restartPolicy",
        "spec.schedulerName",
        "status.phase",
    )
)
_SUBSCRIPTED = ("metadata.annotations", "metadata.labels")
_RESOURCES = tuple(
    f"{group}.{name}"
    for group in ("limits", "requests")
    for name in ("cpu", "ephemeral-storage", "memory")
)
_CPU_DIVISORS = ("1m", "1")
_BYTE_DIVISORS = (
    "1",
    *(f"1{unit}" for unit in "kMGTPE"),
    *(f"1{unit}i" for unit in "KMGTPE"),
)


def check_field_ref(reference: View, path: str, *, file: bool = False) -> list[Cause]:
    """Return why a reference to a field of the pod is refused.

    Args:
        reference: the reference.
        path: its path.
        file: it is for a file, not for a variable; other fields are allowed.
    """
    where, named = f"{path}.fieldPath", reference.get("fieldPath", "")
    if not reference.get("apiVersion", "v1"):
        return [required(f"{path}.apiVersion")]
    if not named:
        return [required(where)]
    subject, bracket, key = named.partition("['")
    if bracket and named.endswith("']"):
        if subject not in _SUBSCRIPTED:
            why = f"error converting fieldPath: field label does not support subscript: {named}"
            return [invalid_value(where, named, why)]
        key = key.removesuffix("']")
        return qualified_name(path, key.lower() if subject == _SUBSCRIPTED[0] else key)
    if named not in _KNOWN_FIELDS or reference.get("apiVersion", "v1") != "v1":
        why = f"error converting fieldPath: field label not supported: {named}"
        return [invalid_value(where, named, why)]
    fields = _FILE_FIELDS if file else _VARIABLE_FIELDS
    return [] if named in fields else [not_supported(where, named, fields)]


def check_resource_ref(reference: View, path: str, *, file: bool = False) -> list[Cause]:
    """Return why a reference to a container's resource is refused."""
    causes: list[Cause] = []
    named = reference.get("resource", "")
    huge = named.startswith(("limits.hugepages-", "requests.hugepages-"))
    if file and not reference.get("containerName"):
        causes.append(required(f"{path}.containerName"))
    elif not named:
        causes.append(required(f"{path}.resource"))
    elif named not in _RESOURCES and not huge:
        causes.append(not_supported(f"{path}.resource", named, _RESOURCES))
    divisor = str(reference.get("divisor", "0"))
    open_to: tuple[str, ...] = ()
    if named.endswith(".cpu"):
        open_to = _CPU_DIVISORS
    elif huge or named in _RESOURCES:
        open_to = _BYTE_DIVISORS
    if quantity(divisor) and open_to and divisor not in open_to:
        why = f"only divisor's values {', '.join(open_to)} are supported with the resource"
        causes.append(invalid_value(f"{path}.divisor", named, why))
    return causes


def check_key_ref(reference: View, path: str) -> list[Cause]:
    """Return why a reference to a key of a ConfigMap or Secret is refused."""
    causes = subdomain(f"{path}.name", reference.get("name", ""))
    key = reference.get("key", "")
    return causes + (config_key(f"{path}.key", key) if key else [required(f"{path}.key")])


def check_file(item: View, path: str) -> list[Cause]:
    """Return why a file of the downward API is refused."""
    text = item.get("path", "")
    causes = local_path(f"{path}.path", text) if text else [required(f"{path}.path")]
    field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
    if field is not None:
        causes += check_field_ref(field, f"{path}.fieldRef", file=True)
        if resource is not None:
            why = "fieldRef and resourceFieldRef can not be specified simultaneously"
            causes.append(invalid_value(path, "resource", why))
    elif resource is not None:
        causes += check_resource_ref(resource, f"{path}.resourceFieldRef", file=True)
    else:
        causes.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    return causes + check_mode(item, path, "mode")


def check_mode(source: View, path: str, key: str) -> list[Cause]:
    """Return why the value under a key is not a file mode."""
    mode = source.get(key)
    if mode is not None and not 0 <= mode <= _LARGEST_MODE:
        return [invalid_value(f"{path}.{key}", mode, _MODE_WORDS)]
    return []


def descending_path(path: str, text: str) -> list[Cause]:
    """Return why a path does not stay below its start."""
    causes = []
    if text.startswith("/"):
        causes.append(invalid_value(path, text, "must be a relative path"))
    return causes + no_backsteps(path, text)


def no_backsteps(path: str, text: str) -> list[Cause]:
    """Return why a path leads upwards."""
    if ".." in text.split("/"):
        return [invalid_value(path, text, "must not contain '..'")]
    return []


def local_path(path: str, text: str) -> list[Cause]:
    """Return why a path is invalid for a file in a volume."""
    causes = descending_path(path, text)
    if text.startswith("..") and not text.startswith("../"):
        causes.append(invalid_value(path, text, "must not start with '..'"))
    return causes
