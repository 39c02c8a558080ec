"""The rules of the containers of a pod (`pkg/apis/core/validation`, `validateContainers`)."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.rules import (
    NOT_NEGATIVE,
    address,
    config_key,
    label,
    not_negative,
    port_name,
    port_name_or_number,
    port_number,
    qualified_name,
    quantity,
)
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)

_VARIABLE = re.compile(r"[ -<>-~]+")
_VARIABLE_WORDS = (
    "a valid environment variable name must consist only of printable ASCII characters other than "
    "'='"
)
_HANDLERS = ("exec", "grpc", "httpGet", "sleep", "tcpSocket")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_GROUPS = ("initContainers", "containers")
_INIT_WORDS = "may not be set for init containers without restartPolicy=Always"
#: The resources that containers may ask for without a domain.
_RESOURCES = frozenset(("cpu", "memory", "ephemeral-storage"))
#: The largest id of a user or group.
_LARGEST_ID = (1 << 31) - 1
_ONE_HANDLER = "may not specify more than 1 handler type"
_SOURCES = (
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or "
    "`fileKeyRef`"
)
_ONE_SOURCE = "may not have more than one field specified at a time"
_FIELD_PATHS = (
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


class _Shared(NamedTuple):
    """What the containers of one pod may have once."""

    names: set[str]
    volumes: Mapping[str, View]
    host_ports: set[str]
    host_network: bool


def check_containers(spec: View, path: str, volumes: Mapping[str, View]) -> list[Cause]:
    """Return the rules that the containers of a pod's spec break.

    Args:
        spec: the pod's spec.
        path: where it stands.
        volumes: its volumes by name.
    """
    causes = [] if spec.get("containers") else [required(f"{path}.containers")]
    network = bool(spec.get("hostNetwork"))
    names: set[str] = set()
    for group in reversed(_GROUPS):
        shared = _Shared(names, volumes, set(), network)
        for index, container in enumerate(spec.get(group) or ()):
            here = f"{path}.{group}[{index}]"
            causes += _check_container(container, here, shared)
            if group == "initContainers" and container.get("restartPolicy") != "Always":
                causes += [
                    forbidden_value(f"{here}.{key}", _INIT_WORDS)
                    for key in ("lifecycle", *_PROBES)
                    if key in container
                ]
    return causes


def _check_container(container: View, path: str, shared: _Shared) -> list[Cause]:
    name = container.get("name", "")
    causes = label(f"{path}.name", name) if name else [required(f"{path}.name")]
    if name in shared.names:
        causes.append(duplicate(f"{path}.name", name))
    shared.names.add(name)
    image = container.get("image", "")
    if not image:
        causes.append(required(f"{path}.image"))
    elif image != image.strip():
        causes.append(
            invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")
        )
    causes += _check_ports(container, path, shared)
    causes += _check_environment(container, path)
    if container.get("volumeMounts"):
        causes += _check_mounts(container, path, shared.volumes)
    for key in _PROBES:
        if key in container:
            causes += _check_probe(container[key], f"{path}.{key}", key)
    for key in ("postStart", "preStop"):
        handler = (container.get("lifecycle") or {}).get(key)
        if handler is not None:
            causes += _check_handler(handler, f"{path}.lifecycle.{key}")
    causes += check_resources(container.get("resources") or {}, f"{path}.resources")
    context = container.get("securityContext")
    return causes if context is None else causes + _check_context(context, path)


def _check_ports(container: View, path: str, shared: _Shared) -> list[Cause]:
    causes: list[Cause] = []
    names: set[str] = set()
    for index, port in enumerate(container.get("ports") or ()):
        here = f"{path}.ports[{index}]"
        name = port.get("name")
        if name:
            wrong = port_name(f"{here}.name", name)
            causes += wrong
            if name in names and not wrong:
                causes.append(duplicate(f"{here}.name", name))
            names.add(name)
        number, host = port.get("containerPort"), port.get("hostPort")
        if not number:
            causes.append(required(f"{here}.containerPort"))
        else:
            causes += port_number(f"{here}.containerPort", number)
        if host:
            causes += port_number(f"{here}.hostPort", host)
            if shared.host_network and host != number:
                why = "must match `hostPort` when `hostNetwork` is true"
                causes.append(invalid_value(f"{here}.containerPort", number, why))
            key = f"{port.get('protocol', 'TCP')}/{port.get('hostIP', '')}/{host}"
            if key in shared.host_ports:
                causes.append(duplicate(f"{here}.hostPort", key))
            shared.host_ports.add(key)
        if port.get("hostIP"):
            causes += address(f"{here}.hostIP", port["hostIP"])
    return causes


def _check_environment(container: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, variable in enumerate(container.get("env") or ()):
        here = f"{path}.env[{index}]"
        name = variable.get("name")
        if not name:
            causes.append(required(f"{here}.name"))
        elif not _VARIABLE.fullmatch(name):
            causes.append(invalid_value(f"{here}.name", name, _VARIABLE_WORDS))
        source = variable.get("valueFrom")
        if source is not None:
            causes += _check_source(variable, source, f"{here}.valueFrom")
    for index, source in enumerate(container.get("envFrom") or ()):
        here = f"{path}.envFrom[{index}]"
        prefix = source.get("prefix")
        if prefix and not _VARIABLE.fullmatch(prefix):
            causes.append(invalid_value(f"{here}.prefix", prefix, _VARIABLE_WORDS))
        found = [key for key in ("configMapRef", "secretRef") if key in source]
        if not found:
            why = "must specify one of: `configMapRef` or `secretRef`"
            causes.append(invalid_value(here, "", why))
        elif len(found) > 1:
            causes.append(invalid_value(here, "", _ONE_SOURCE))
        causes += [required(f"{here}.{key}.name") for key in found if not source[key].get("name")]
    return causes


def _check_source(variable: View, source: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if "fieldRef" in source:
        causes += check_field_ref(source["fieldRef"], f"{path}.fieldRef")
    if "resourceFieldRef" in source and not source["resourceFieldRef"].get("resource"):
        causes.append(required(f"{path}.resourceFieldRef.resource"))
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind not in source:
            continue
        here, reference = f"{path}.{kind}", source[kind]
        if not reference.get("name"):
            causes.append(required(f"{here}.name"))
        if not reference.get("key"):
            causes.append(required(f"{here}.key"))
        else:
            causes += config_key(f"{here}.key", reference["key"])
    if not source:
        causes.append(invalid_value(path, "", _SOURCES))
    elif variable.get("value"):
        why = "may not be specified when `value` is not empty"
        causes.append(invalid_value(path, "", why))
    elif len(source) > 1:
        causes.append(invalid_value(path, "", _ONE_SOURCE))
    return causes


def check_field_ref(reference: View, path: str, extra: tuple[str, ...] = ()) -> list[Cause]:
    """Return why a reference to a field of the pod is refused; `extra` may be named, too."""
    where, named = f"{path}.fieldPath", reference.get("fieldPath", "")
    if not named:
        return [required(where)]
    subject, bracket, key = named.partition("['")
    if bracket and subject in {"metadata.labels", "metadata.annotations"}:
        return qualified_name(where, key.removesuffix("']"))
    if named in _FIELD_PATHS or named in extra:
        return []
    if named in {"metadata.labels", "metadata.annotations", "status.phase"}:
        return [not_supported(where, named, _FIELD_PATHS)]
    why = f"error converting fieldPath: field label not supported: {named}"
    return [invalid_value(where, named, why)]


def descending_path(path: str, text: str) -> list[Cause]:
    """Return why a path does not stay below where it begins."""
    if text.startswith("/"):
        return [invalid_value(path, text, "must be a relative path")]
    return no_backsteps(path, text)


def no_backsteps(path: str, text: str) -> list[Cause]:
    """Return why a path leads upwards."""
    if ".." in text.split("/"):
        return [invalid_value(path, text, "must not contain '..'")]
    return []


def _check_mounts(container: View, path: str, volumes: Mapping[str, View]) -> list[Cause]:
    causes: list[Cause] = []
    places: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        here = f"{path}.volumeMounts[{index}]"
        name, where = mount.get("name"), mount.get("mountPath", "")
        if not name:
            causes.append(required(f"{here}.name"))
        elif name not in volumes:
            causes.append(Cause(f"{here}.name", "FieldValueNotFound", f'Not found: "{name}"'))
        if not where:
            causes.append(required(f"{here}.mountPath"))
        elif where in places:
            causes.append(invalid_value(f"{here}.mountPath", where, "must be unique"))
        places.add(where)
        part, expression = mount.get("subPath"), mount.get("subPathExpr")
        if part:
            causes += descending_path(f"{here}.subPath", part)
        if expression:
            if part:
                why = "subPathExpr and subPath are mutually exclusive"
                causes.append(invalid_value(f"{here}.subPathExpr", expression, why))
            causes += descending_path(f"{here}.subPathExpr", expression)
        privileged = (container.get("securityContext") or {}).get("privileged")
        if mount.get("mountPropagation") == "Bidirectional" and not privileged:
            why = "Bidirectional mount propagation is available only to privileged containers"
            causes.append(forbidden_value(f"{here}.mountPropagation", why))
    return causes


def _check_probe(probe: View, path: str, kind: str) -> list[Cause]:
    causes = _check_handler(probe, path)
    causes += not_negative(
        probe,
        path,
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    )
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None:
        where = f"{path}.terminationGracePeriodSeconds"
        if kind == "readinessProbe":
            causes.append(invalid_value(where, grace, "must not be set for readinessProbes"))
        elif grace <= 0:
            causes.append(invalid_value(where, grace, "must be greater than 0"))
    successes = probe.get("successThreshold", 1)
    if kind != "readinessProbe" and successes != 1:
        causes.append(invalid_value(f"{path}.successThreshold", successes, "must be 1"))
    return causes


def _check_handler(handler: View, path: str) -> list[Cause]:
    found = [key for key in _HANDLERS if key in handler]
    if not found:
        return [required(path, "must specify a handler type")]
    causes = [forbidden_value(f"{path}.{key}", _ONE_HANDLER) for key in found[1:]]
    kind, action = found[0], handler[found[0]]
    here = f"{path}.{kind}"
    if kind == "exec" and not action.get("command"):
        causes.append(required(f"{here}.command"))
    if kind in {"httpGet", "tcpSocket"}:
        causes += port_name_or_number(f"{here}.port", action.get("port", 0))
    elif kind == "grpc":
        causes += port_number(f"{here}.port", action.get("port", 0))
    return causes


def check_resources(resources: View, path: str) -> list[Cause]:
    """Return the rules that the requests and limits of a container break."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    causes: list[Cause] = []
    for group, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            causes += _check_amount(name, amount, f"{path}.{group}[{name}]")
    for name, amount in requests.items():
        limit = limits.get(name)
        where = f"{path}.requests"
        extended = "/" in name or name.startswith("hugepages-")
        if limit is None:
            if extended:
                why = "Limit must be set for non overcommitable resources"
                causes.append(required(f"{path}.limits", why))
        elif extended and quantity(amount) != quantity(limit):
            causes.append(invalid_value(where, amount, f"must be equal to {name} limit of {limit}"))
        elif quantity(amount) > quantity(limit):
            why = f"must be less than or equal to {name} limit of {limit}"
            causes.append(invalid_value(where, amount, why))
    return causes


def _check_amount(name: str, amount: str, path: str) -> list[Cause]:
    if name in _RESOURCES:
        causes = []
    else:
        causes = qualified_name(path, name)
        if "/" not in name and not name.startswith("hugepages-"):
            causes.append(invalid_value(path, name, "must be a standard resource for containers"))
    value = quantity(amount)
    if value < 0:
        causes.append(invalid_value(path, amount, NOT_NEGATIVE))
    if "/" in name and value != int(value):
        causes.append(invalid_value(path, amount, "must be an integer"))
    return causes


def check_ids(context: View, path: str, *keys: str) -> list[Cause]:
    """Return the ids of users and groups that there can't be."""
    found = [(f"{path}.{key}", context.get(key)) for key in keys]
    found += [
        (f"{path}.supplementalGroups[{index}]", group)
        for index, group in enumerate(context.get("supplementalGroups") or ())
    ]
    return [
        invalid_value(where, value, f"must be between 0 and {_LARGEST_ID}, inclusive")
        for where, value in found
        if value is not None and not 0 <= value <= _LARGEST_ID
    ]


def check_profile(context: View, path: str) -> list[Cause]:
    """Return the rules that the seccomp and AppArmor profiles of a context break."""
    causes: list[Cause] = []
    for key, word in (("seccompProfile", "seccomp type"), ("appArmorProfile", "AppArmor type")):
        profile = context.get(key)
        if profile is None:
            continue
        kind, named = profile.get("type", ""), profile.get("localhostProfile")
        where = f"{path}.{key}.localhostProfile"
        if kind == "Localhost" and not named:
            causes.append(required(where, f"must be set when {word} is Localhost"))
        elif kind != "Localhost" and named is not None:
            why = f"can only be set when {word} is Localhost"
            causes.append(invalid_value(where, named, why))
        if not kind:
            causes.append(required(f"{path}.{key}.type"))
    return causes


def _check_context(context: View, path: str) -> list[Cause]:
    where = f"{path}.securityContext"
    causes = check_ids(context, where, "runAsUser", "runAsGroup") + check_profile(context, where)
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            causes.append(invalid_value(where, context, why))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            why = (
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` "
                "CAP_SYS_ADMIN"
            )
            causes.append(invalid_value(where, context, why))
    return causes
