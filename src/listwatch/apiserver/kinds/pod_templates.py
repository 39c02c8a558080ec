"""The templates of pods, which workloads, jobs and pods themselves share."""

import re
from collections.abc import Iterable, Mapping

from listwatch.apiserver.kinds.cells import NONE, Cell, at, join, selector
from listwatch.apiserver.kinds.kind import Object, View
from listwatch.apiserver.kinds.rules import (
    _NOT_NEGATIVE,
    enumeration,
    label,
    port_number,
    quantity,
    validate_labels,
)
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)
from listwatch.selector import LabelSelector, SelectorError

_SPEC = "core.v1.PodSpec"

_VARIABLE = re.compile(r"[ -<>-~]+")


_VARIABLE_WORDS = (
    "a valid environment variable name must consist only of printable ASCII characters other than "
    "'='"
)


_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")


def check_pod_spec(spec: View, path: str) -> list[Cause]:
    """Return the rules that a pod's spec breaks, under a path such as `spec.template.spec`."""
    causes: list[Cause] = []
    volumes = _check_volumes(spec.get("volumes") or (), f"{path}.volumes", causes)
    containers = spec.get("containers")
    names: set[str] = set()
    if not containers:
        causes.append(required(f"{path}.containers"))
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            causes += _check_container(container, f"{path}.{group}[{index}]", names, volumes)
    causes += enumeration(spec, path, "restartPolicy", _SPEC)
    causes += enumeration(spec, path, "dnsPolicy", _SPEC)
    grace = spec.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < 0:
        causes.append(invalid_value(f"{path}.terminationGracePeriodSeconds", grace, _NOT_NEGATIVE))
    seconds = spec.get("activeDeadlineSeconds")
    if isinstance(seconds, int) and not 0 < seconds <= (1 << 31) - 1:
        causes.append(
            invalid_value(
                f"{path}.activeDeadlineSeconds",
                seconds,
                "must be between 1 and 2147483647, inclusive",
            )
        )
    return causes


def _check_volumes(volumes: Iterable[View], path: str, causes: list[Cause]) -> set[str]:
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        here = f"{path}[{index}]"
        name = volume.get("name", "")
        if not name:
            causes.append(required(f"{here}.name"))
        else:
            causes += label(f"{here}.name", name)
        if name in names:
            causes.append(duplicate(f"{here}.name", name))
        names.add(name)
        sources = [key for key in volume if key != "name"]
        causes += [
            forbidden_value(f"{here}.{source}", "may not specify more than 1 volume type")
            for source in sources[1:]
        ]
    return names


def _check_container(container: View, path: str, names: set[str], volumes: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    name = container.get("name", "")
    if not name:
        causes.append(required(f"{path}.name"))
    else:
        causes += label(f"{path}.name", name)
        if name in names:
            causes.append(duplicate(f"{path}.name", name))
        names.add(name)
    image = container.get("image", "")
    if not image:
        causes.append(required(f"{path}.image"))
    elif image != image.strip():
        causes.append(
            invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")
        )
    causes += enumeration(container, path, "imagePullPolicy", "core.v1.Container")
    causes += _check_ports(container, path)
    causes += _check_environment(container, path)
    causes += _check_mounts(container, path, volumes)
    causes += [
        required(f"{path}.{name}", "must specify a handler type")
        for name in ("livenessProbe", "readinessProbe", "startupProbe")
        if name in container and not any(handler in container[name] for handler in _HANDLERS)
    ]
    causes += _check_resources(container, path)
    return causes


def _check_ports(container: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    port_names: set[str] = set()
    for index, port in enumerate(container.get("ports") or ()):
        here = f"{path}.ports[{index}]"
        port_name = port.get("name")
        if port_name:
            if port_name in port_names:
                causes.append(duplicate(f"{here}.name", port_name))
            port_names.add(port_name)
        if not port.get("containerPort"):
            causes.append(required(f"{here}.containerPort"))
        else:
            causes += port_number(f"{here}.containerPort", port["containerPort"])
        if port.get("hostPort"):
            causes += port_number(f"{here}.hostPort", port["hostPort"])
        causes += enumeration(port, here, "protocol", "core.v1.ContainerPort")
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
        if variable.get("value") and variable.get("valueFrom"):
            causes.append(
                invalid_value(
                    f"{here}.valueFrom", "", "may not be specified when `value` is not empty"
                )
            )
    return causes


def _check_mounts(container: View, path: str, volumes: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        here = f"{path}.volumeMounts[{index}]"
        if not mount.get("name"):
            causes.append(required(f"{here}.name"))
        elif mount["name"] not in volumes:
            causes.append(
                Cause(f"{here}.name", "FieldValueNotFound", f'Not found: "{mount["name"]}"')
            )
        where = mount.get("mountPath", "")
        if not where:
            causes.append(required(f"{here}.mountPath"))
        elif where in paths:
            causes.append(invalid_value(f"{here}.mountPath", where, "must be unique"))
        paths.add(where)
    return causes


def _check_resources(container: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    for group in ("limits", "requests"):
        causes += [
            invalid_value(f"{path}.resources.{group}[{key}]", amount, _NOT_NEGATIVE)
            for key, amount in (resources.get(group) or {}).items()
            if quantity(amount) < 0
        ]
    for key, amount in (resources.get("requests") or {}).items():
        if key in limits and quantity(amount) > quantity(limits[key]):
            causes.append(
                invalid_value(
                    f"{path}.resources.requests",
                    amount,
                    f"must be less than or equal to {key} limit of {limits[key]}",
                )
            )
    return causes


def check_selector(
    spec: View, path: str, labels: Mapping[str, str] | None, kind: str = "deployment"
) -> list[Cause]:
    """Return the rules that a workload's selector breaks, and whether it misses its own pods."""
    selector = spec.get("selector")
    where = f"{path}.selector"
    causes = []
    if selector is None:
        causes.append(required(where))
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        return [invalid_value(where, selector, f"empty selector is invalid for {kind}")]
    try:
        parsed = LabelSelector.from_dict(selector)
    except SelectorError:
        return [invalid_value(where, selector, "invalid label selector")]
    if not parsed.matches(labels or {}):
        causes.append(
            invalid_value(
                f"{path}.template.metadata.labels",
                labels,
                "`selector` does not match template `labels`",
            )
        )
    return causes


def check_pod_template(template: View, path: str) -> list[Cause]:
    """Return the rules that a template of pods breaks."""
    metadata = template.get("metadata") or {}
    causes = validate_labels(metadata.get("labels"), f"{path}.metadata.labels")
    causes += check_pod_spec(template.get("spec") or {}, f"{path}.spec")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy in {"OnFailure", "Never"}:
        causes.append(not_supported(f"{path}.spec.restartPolicy", policy, ["Always"]))
    return causes


def default_pod_spec(spec: Object) -> None:
    """Fill in the defaults of a pod's spec."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    host = spec.get("hostNetwork") is True
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            _default_container(container, host_network=host)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def _default_container(container: Object, *, host_network: bool) -> None:
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and port.get("containerPort") and not port.get("hostPort"):
            port["hostPort"] = port["containerPort"]
    container.setdefault("resources", {})
    resources = container["resources"]
    limits = resources.get("limits")
    if limits:
        requests = resources.setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        image = container.get("image", "")
        last = image.rpartition("/")[2]
        tag = last.partition("@")[0].partition(":")[2]
        fixed = "@" in last or (tag and tag != "latest")
        container["imagePullPolicy"] = "IfNotPresent" if fixed else "Always"
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if probe is not None:
            _default_probe(probe)
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict) and "httpGet" in handler:
            _default_http_get(handler["httpGet"])
    for variable in container.get("env") or ():
        field = (variable.get("valueFrom") or {}).get("fieldRef")
        if field is not None:
            field.setdefault("apiVersion", "v1")


def _default_probe(probe: Object) -> None:
    for key, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(key):
            probe[key] = value
    if "httpGet" in probe:
        _default_http_get(probe["httpGet"])
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http_get(action: Object) -> None:
    if not action.get("path"):
        action["path"] = "/"
    if not action.get("scheme"):
        action["scheme"] = "HTTP"


_WITH_MODES = ("secret", "configMap", "downwardAPI", "projected")


def _default_volume(volume: Object) -> None:
    sources = [key for key in volume if key != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for name in _WITH_MODES:
        source = volume.get(name)
        if source is None:
            continue
        source.setdefault("defaultMode", 420)
        for part in source.get("sources") or ():
            token = part.get("serviceAccountToken")
            if token is not None:
                token.setdefault("expirationSeconds", 3600)
        items = list(source.get("items") or ())
        for part in source.get("sources") or ():
            items += (part.get("downwardAPI") or {}).get("items") or ()
        for item in items:
            if "fieldRef" in item:
                item["fieldRef"].setdefault("apiVersion", "v1")
            if "resourceFieldRef" in item:
                item["resourceFieldRef"].setdefault("divisor", "0")
    host_path = volume.get("hostPath")
    if host_path is not None:
        host_path.setdefault("type", "")
    iscsi = volume.get("iscsi")
    if iscsi is not None:
        iscsi.setdefault("iscsiInterface", "default")
    rbd = volume.get("rbd")
    if rbd is not None:
        rbd.setdefault("pool", "rbd")
        rbd.setdefault("user", "admin")
        rbd.setdefault("keyring", "/etc/ceph/keyring")


def default_template(spec: Object) -> None:
    """Fill in the defaults of the template in a workload's spec."""
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def containers_cell(path: str, key: str) -> Cell:
    """Return a cell with what the containers of the pod spec at a path have under a key."""
    return lambda obj, _: join(
        (each.get(key, "") for each in at(obj, f"{path}.containers") or ()),
    ).replace(NONE, "")


def workload_cells(spec: str = "spec.template.spec") -> dict[str, Cell]:
    """Return the cells that workloads share; their pod spec is at a path."""
    return {
        "Containers": containers_cell(spec, "name"),
        "Images": containers_cell(spec, "image"),
        "Selector": selector("spec.selector"),
    }
