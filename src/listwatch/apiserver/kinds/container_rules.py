"""The rules of the containers of a pod (`pkg/apis/core/validation`, `validateContainers`)."""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.mount_rules import check_mounts
from listwatch.apiserver.kinds.quantity_rules import (
    container_resource,
    is_extended,
    resource_amount,
    resource_name,
)
from listwatch.apiserver.kinds.reference_rules import (
    check_field_ref,
    check_key_ref,
    check_resource_ref,
    descending_path,
)
from listwatch.apiserver.kinds.rules import (
    address,
    label,
    not_among,
    not_negative,
    port_name,
    port_name_or_number,
    port_number,
    quantity,
    subdomain,
)
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    go_quoted,
    invalid_value,
    not_supported,
    required,
)

_VARIABLE = re.compile(r"[ -<>-~]+")
_VARIABLE_WORDS = (
    "a valid environment variable name must consist only of printable ASCII characters other than "
    "'='"
)
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_HEADER_WORDS = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', "
    "regex used for validation is '[-A-Za-z0-9]+')"
)
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_INIT_WORDS = "may not be set for init containers without restartPolicy=Always"
_EPHEMERAL_WORDS = "cannot be set for an Ephemeral Container"
_RESTARTS = ("Always", "Never", "OnFailure")
#: The largest id of a user or group.
_LARGEST_ID = (1 << 31) - 1
_ONE_HANDLER = "may not specify more than 1 handler type"
_SOURCES = (
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or "
    "`fileKeyRef`"
)
_ONE_SOURCE = "may not have more than one field specified at a time"


class _Shared(NamedTuple):
    """Data shared by the containers of one pod."""

    names: set[str]
    volumes: Mapping[str, View]
    spec: View
    is_pod: bool

    @property
    def claims(self) -> set[str]:
        """The names of the pod's resource claims."""
        return {each.get("name", "") for each in self.spec.get("resourceClaims") or ()} - {""}


def check_containers(
    spec: View, path: str, volumes: Mapping[str, View], *, is_pod: bool
) -> list[Cause]:
    """Return the rules that the containers of a pod's spec violate.

    Args:
        spec: the pod's spec.
        path: its path.
        volumes: its valid volumes by name.
        is_pod: the spec is a pod's, not a template's.
    """
    containers = spec.get("containers") or ()
    causes = [] if containers else [required(f"{path}.containers")]
    shared = _Shared(set(), volumes, spec, is_pod)
    ports: set[str] = set()
    for index, container in enumerate(containers):
        here = f"{path}.containers[{index}]"
        causes += _check_container(container, here, shared)
        causes += _check_running(container, here, spec)
        causes += _check_host_ports(container, here, ports, spec, is_pod=is_pod)
    for index, container in enumerate(spec.get("initContainers") or ()):
        here = f"{path}.initContainers[{index}]"
        causes += _check_container(container, here, shared)
        # each is checked alone, so causes name index 0, as on a real server
        where = f"{path}.initContainers[0]"
        causes += _check_host_ports(container, where, set(), {}, is_pod=is_pod)
        if container.get("restartPolicy") == "Always":
            causes += _check_running(container, here, spec)
        else:
            causes += [
                forbidden_value(f"{here}.{key}", _INIT_WORDS)
                for key in ("lifecycle", *_PROBES)
                if key in container
            ]
    for index, container in enumerate(spec.get("ephemeralContainers") or ()):
        causes += _check_ephemeral(container, f"{path}.ephemeralContainers[{index}]", shared)
    return causes


#: Fields that an ephemeral container must not have.
_LASTING = (
    "ports",
    "resources",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
)


def _check_ephemeral(container: View, path: str, shared: _Shared) -> list[Cause]:
    others = {
        each.get("name")
        for group in ("containers", "initContainers")
        for each in shared.spec.get(group) or ()
    }
    causes = _check_container(container, path, shared)
    target = container.get("targetContainerName")
    if target and target not in others:
        causes.append(_not_found(f"{path}.targetContainerName", target))
    causes += [
        forbidden_value(f"{path}.{key}", _EPHEMERAL_WORDS) for key in _LASTING if container.get(key)
    ]
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        causes += [
            forbidden_value(f"{path}.volumeMounts[{index}].{key}", _EPHEMERAL_WORDS)
            for key in ("subPath", "subPathExpr")
            if mount.get(key)
        ]
    return causes


def _not_found(path: str, name: str) -> Cause:
    return Cause(path, "FieldValueNotFound", f"Not found: {go_quoted(name)}")


def _check_container(container: View, path: str, shared: _Shared) -> list[Cause]:
    name = container.get("name", "")
    causes = label(f"{path}.name", name) if name else [required(f"{path}.name")]
    if name in shared.names:
        causes.append(duplicate(f"{path}.name", name))
    shared.names.add(name)
    image = container.get("image", "")
    if not image:
        causes.append(required(f"{path}.image"))
    elif image != image.strip() and shared.is_pod:
        causes.append(
            invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")
        )
    causes += not_among(container, path, "restartPolicy", _RESTARTS)
    causes += _check_ports(container, path)
    causes += _check_environment(container, path)
    causes += check_mounts(container, path, shared.volumes)
    causes += check_resources(container.get("resources") or {}, f"{path}.resources", shared.claims)
    causes += _check_resize(container, f"{path}.resizePolicy", shared.spec)
    context = container.get("securityContext")
    if context is not None:
        causes += check_context(context, f"{path}.securityContext", shared.spec)
    return causes


def _check_running(container: View, path: str, spec: View) -> list[Cause]:
    """Return the violations in a container's probes and lifecycle."""
    causes: list[Cause] = []
    grace = spec.get("terminationGracePeriodSeconds")
    for key in ("postStart", "preStop"):
        handler = (container.get("lifecycle") or {}).get(key)
        if handler is not None:
            causes += _check_handler(handler, f"{path}.lifecycle.{key}", grace)
    for key in _PROBES:
        if key in container:
            causes += _check_probe(container[key], f"{path}.{key}", key)
    return causes


def _check_ports(container: View, path: str) -> list[Cause]:
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
        if port.get("hostIP"):
            causes += address(f"{here}.hostIP", port["hostIP"])
    return causes


def _check_host_ports(
    container: View, path: str, taken: set[str], spec: View, *, is_pod: bool
) -> list[Cause]:
    causes: list[Cause] = []
    for index, port in enumerate(container.get("ports") or ()):
        host, where = port.get("hostPort") or 0, f"{path}.ports[{index}].hostPort"
        number = port.get("containerPort") or 0
        if spec.get("hostNetwork") and (is_pod or host) and host != number:
            why = "must match `containerPort` when `hostNetwork` is true"
            causes.append(invalid_value(where, host, why))
        if not host:
            continue
        key = f"{port.get('protocol', 'TCP')}/{port.get('hostIP', '')}/{host}"
        if key in taken:
            causes.append(duplicate(where, key))
        taken.add(key)
    return causes


def _check_environment(container: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, variable in enumerate(container.get("env") or ()):
        name = variable.get("name")
        if not name:
            causes.append(required(f"{path}.env[{index}].name"))
        elif not _VARIABLE.fullmatch(name):
            causes.append(invalid_value(f"{path}.env[{index}].name", name, _VARIABLE_WORDS))
        source = variable.get("valueFrom")
        if source is not None:
            causes += _check_source(variable, source, f"{path}.env[{index}].valueFrom")
    for index, source in enumerate(container.get("envFrom") or ()):
        above, here = f"{path}.envFrom", f"{path}.envFrom[{index}]"
        prefix = source.get("prefix")
        if prefix and not _VARIABLE.fullmatch(prefix):
            causes.append(invalid_value(f"{here}.prefix", prefix, _VARIABLE_WORDS))
        found = [key for key in ("configMapRef", "secretRef") if key in source]
        for key in found:
            where, named = f"{here}.{key}.name", source[key].get("name")
            causes += subdomain(where, named) if named else [required(where)]
        if not found:
            why = "must specify one of: `configMapRef` or `secretRef`"
            causes.append(invalid_value(above, "", why))
        elif len(found) > 1:
            causes.append(invalid_value(above, "", _ONE_SOURCE))
    return causes


def _check_source(variable: View, source: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for kind, check in (
        ("fieldRef", check_field_ref),
        ("resourceFieldRef", check_resource_ref),
        ("configMapKeyRef", check_key_ref),
        ("secretKeyRef", check_key_ref),
    ):
        if kind in source:
            causes += check(source[kind], f"{path}.{kind}")
    if not source:
        causes.append(invalid_value(path, "", _SOURCES))
    elif variable.get("value"):
        why = "may not be specified when `value` is not empty"
        causes.append(invalid_value(path, "", why))
    elif len(source) > 1:
        causes.append(invalid_value(path, "", _ONE_SOURCE))
    return causes


def _check_probe(probe: View, path: str, kind: str) -> list[Cause]:
    causes = _check_handler(probe, path, None)
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
        if grace <= 0:
            causes.append(invalid_value(where, grace, "must be greater than 0"))
        if kind == "readinessProbe":
            causes.append(invalid_value(where, grace, "must not be set for readinessProbes"))
    successes = probe.get("successThreshold", 1)
    if kind != "readinessProbe" and successes != 1:
        causes.append(invalid_value(f"{path}.successThreshold", successes, "must be 1"))
    return causes


def _check_handler(handler: View, path: str, grace: int | None) -> list[Cause]:
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
    for header in action.get("httpHeaders") or ():
        name = header.get("name", "")
        if not _HEADER.fullmatch(name):
            causes.append(invalid_value(f"{here}.httpHeaders", name, _HEADER_WORDS))
    seconds = action.get("seconds", 0)
    if kind == "sleep" and grace is not None and not 0 <= seconds <= grace:
        why = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
        causes.append(invalid_value(here, seconds, why))
    return causes


def check_resources(
    resources: View, path: str, claims: Collection[str] = (), *, of_pod: bool = False
) -> list[Cause]:
    """Return the rules that requests and limits violate.

    Args:
        resources: requests, limits and claims.
        path: their path.
        claims: the names of the pod's claims.
        of_pod: they are the pod's, not a container's.
    """
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    causes: list[Cause] = []
    for group, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if name not in _OF_PODS or not _is_valid_amount(name, amount):
                causes += _check_amount(name, amount, f"{path}.{group}[{name}]", of_pod=of_pod)
    for name, amount in requests.items():
        limit = limits.get(name)
        where = f"{path}.requests"
        fixed = is_extended(name) or name.startswith("hugepages-")
        if limit is None:
            if fixed:
                why = "Limit must be set for non overcommitable resources"
                causes.append(required(f"{path}.limits", why))
        elif fixed and quantity(amount) != quantity(limit):
            causes.append(invalid_value(where, amount, f"must be equal to {name} limit of {limit}"))
        elif quantity(amount) > quantity(limit):
            why = f"must be less than or equal to {name} limit of {limit}"
            causes.append(invalid_value(where, amount, why))
    names = {*limits, *requests}
    if any(name.startswith("hugepages-") for name in names) and not names & {"cpu", "memory"}:
        causes.append(forbidden_value(path, "HugePages require cpu or memory"))
    return causes + _check_claims(resources.get("claims") or (), f"{path}.claims", claims)


def _check_claims(claims: Iterable[View], path: str, known: Collection[str]) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[tuple[str, str]] = set()
    for index, claim in enumerate(claims):
        here, name, part = f"{path}[{index}]", claim.get("name", ""), claim.get("request", "")
        if not name:
            causes.append(required(here))
            continue
        if part:
            causes += label(f"{here}.request", part)
        if any(each == name and (not part or other in {"", part}) for each, other in seen):
            causes.append(duplicate(here, f"{name}/{part}" if part else name))
        seen.add((name, part))
        if name not in known:
            causes.append(_not_found(here, name))
    return causes


@lru_cache(maxsize=1024)
def _is_valid_amount(name: str, amount: str) -> bool:
    # the containers of a cluster name few different amounts
    return not _check_amount(name, amount, "")


def _check_amount(name: str, amount: str, path: str, *, of_pod: bool = False) -> list[Cause]:
    """Return why an amount of a resource is invalid."""
    huge = name.startswith("hugepages-")
    if not of_pod:
        causes = container_resource(path, name)
    else:
        causes = resource_name(path, name)
        if not causes and name not in _OF_PODS and not huge:
            causes = [not_supported(path, name, _OF_PODS)]
    causes += resource_amount(path, name, amount)
    if huge:
        size = quantity(name.removeprefix("hugepages-"))
        if not size or quantity(amount) % size:
            why = f"{amount} is not positive integer multiple of {name}"
            causes.append(invalid_value(path, amount, why))
    return causes


_OF_PODS = ("cpu", "memory")
_RESIZED = ("cpu", "memory")
_RESIZES = ("NotRequired", "RestartContainer")


def _check_resize(container: View, path: str, spec: View) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for index, policy in enumerate(container.get("resizePolicy") or ()):
        name, how = policy.get("resourceName", ""), policy.get("restartPolicy", "")
        if name in seen:
            causes.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
        for value, known in ((name, _RESIZED), (how, _RESIZES)):
            if not value:
                causes.append(required(path))
            elif value not in known:
                causes.append(not_supported(path, value, known))
        if spec.get("restartPolicy") == "Never" and how != "NotRequired":
            why = "must be 'NotRequired' when `restartPolicy` is 'Never'"
            causes.append(invalid_value(path, how, why))
    return causes


def check_ids(context: View, path: str, *keys: str) -> list[Cause]:
    """Return the invalid user and group IDs."""
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
    """Return the rules that the seccomp and AppArmor profiles of a context violate."""
    causes: list[Cause] = []
    profile = context.get("seccompProfile")
    if profile is not None:
        here, kind, named = f"{path}.seccompProfile", profile.get("type", ""), "localhostProfile"
        text = profile.get(named)
        if not kind:
            causes.append(required(f"{here}.type", "type is required when seccompProfile is set"))
        if kind == "Localhost" and text is None:
            why = "must be set when seccomp type is Localhost"
            causes.append(required(f"{here}.{named}", why))
        elif kind == "Localhost":
            causes += descending_path(f"{here}.{named}", text)
        elif text is not None:
            why = "can only be set when seccomp type is Localhost"
            causes.append(invalid_value(f"{here}.{named}", text, why))
    profile = context.get("appArmorProfile")
    if profile is not None:
        causes += _check_armor(profile, f"{path}.appArmorProfile")
    return causes


def _check_armor(profile: View, path: str) -> list[Cause]:
    kind, text = profile.get("type", ""), profile.get("localhostProfile")
    where = f"{path}.localhostProfile"
    if not kind:
        return [required(f"{path}.type", "type is required when appArmorProfile is set")]
    if kind == "Localhost":
        if text is not None and text != text.strip():
            return [invalid_value(where, text, "must not be padded with whitespace")]
        return [] if text else [required(where, "must be set when AppArmor type is Localhost")]
    if kind in {"RuntimeDefault", "Unconfined"} and text is not None:
        why = "can only be set when AppArmor type is Localhost"
        return [invalid_value(where, text, why)]
    return []


def check_context(context: View, where: str, spec: View) -> list[Cause]:
    """Return the rules that a container's security context violates."""
    causes = check_ids(context, where, "runAsUser", "runAsGroup")
    if context.get("procMount") == "Unmasked" and spec.get("hostUsers") is not False:
        why = "`hostUsers` must be false to use `Unmasked`"
        causes.append(invalid_value(f"{where}.procMount", "Unmasked", why))
    causes += check_profile(context, where)
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
