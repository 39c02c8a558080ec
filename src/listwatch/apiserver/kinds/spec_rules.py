"""The rules of the built-in kinds beyond their types, as far as they are enforced here."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from listwatch.apiserver.kinds.metadata_rules import validate_labels
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)
from listwatch.schema.parsing import parse_json
from listwatch.selector import LabelSelector, SelectorError, qualified_name_problems

Object = Mapping[str, Any]
_NOT_NEGATIVE = "must be greater than or equal to 0"
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_CONFIG_KEY_WORDS = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
    "'[-._a-zA-Z0-9]+')"
)
_VARIABLE = re.compile(r"[ -<>-~]+")
_VARIABLE_WORDS = (
    "a valid environment variable name must consist only of printable ASCII characters other than "
    "'='"
)
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_WORDS = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def label(path: str, name: str) -> list[Cause]:
    """Return why a name is not an RFC 1123 label."""
    causes = []
    if len(name) > 63:
        causes.append(invalid_value(path, name, "must be no more than 63 characters"))
    if not _LABEL.fullmatch(name):
        causes.append(invalid_value(path, name, _LABEL_WORDS))
    return causes


def _under(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def not_negative(obj: Object, path: str, *keys: str) -> list[Cause]:
    """Return the numbers under these keys that are negative."""
    return [
        invalid_value(_under(path, key), obj[key], _NOT_NEGATIVE)
        for key in keys
        if isinstance(obj.get(key), int) and obj[key] < 0
    ]


def enumeration(obj: Object, path: str, key: str, supported: Iterable[str]) -> list[Cause]:
    """Return the value under a key if it is none of those supported."""
    value = obj.get(key)
    words = list(supported)
    if value is None or value in words:
        return []
    return [not_supported(_under(path, key), value, words)]


def port_number(path: str, value: Any) -> list[Cause]:
    """Return the number if it is not that of a port."""
    if isinstance(value, int) and not 0 < value < 65_536:
        return [invalid_value(path, value, "must be between 1 and 65535, inclusive")]
    return []


#: The bytes in all values of a config map or a secret (core.MaxSecretSize).
_DATA_LIMIT = 1 << 20


def _config_map(obj: Object) -> list[Cause]:
    causes = []
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    for field, part in (("data", data), ("binaryData", binary)):
        for key in part:
            causes += _config_key(f"{field}[{key}]", key)
    causes += [
        invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData")
        for key in data
        if key in binary
    ]
    size = sum(len(value.encode()) for value in data.values())
    size += _decoded_size(binary)
    # "[]" is how Go's field.Path shows a path of one empty name, which ValidateConfigMap gives
    # (kubernetes/pkg/apis/core/validation/validation.go)
    return causes + _too_long("[]", size)


def _decoded_size(data: Mapping[str, str]) -> int:
    return sum(len(value) * 3 // 4 - value[-2:].count("=") for value in data.values())


def _too_long(path: str, size: int) -> list[Cause]:
    if size <= _DATA_LIMIT:
        return []
    return [Cause(path, "FieldValueTooLong", f"Too long: may not be more than {_DATA_LIMIT} bytes")]


def _config_key(path: str, key: str) -> list[Cause]:
    if len(key) > 253:
        return [invalid_value(path, key, "must be no more than 253 characters")]
    if not _CONFIG_KEY.fullmatch(key):
        return [invalid_value(path, key, _CONFIG_KEY_WORDS)]
    if key in {".", ".."}:
        return [invalid_value(path, key, f"must not be '{key}'")]
    return []


_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _secret(obj: Object) -> list[Cause]:
    data = obj.get("data") or {}
    causes = [cause for key in data for cause in _config_key(f"data[{key}]", key)]
    causes += _too_long("data", _decoded_size(data))
    causes += [
        required(f"data[{key}]")
        for key in _SECRET_KEYS.get(obj.get("type", ""), ())
        if key not in data
    ]
    kind = obj.get("type", "")
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        causes += [required("data[username]"), required("data[password]")]
    if kind == "kubernetes.io/service-account-token":
        key = "kubernetes.io/service-account.name"
        if not (obj["metadata"].get("annotations") or {}).get(key):
            causes.append(required(f"metadata.annotations[{key}]"))
    if kind in {"kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"}:
        for key in _SECRET_KEYS[kind]:
            problem = _json_problem(base64.b64decode(data[key])) if key in data else None
            if problem is not None:
                hidden = "<secret contents redacted>"
                causes.append(invalid_value(f"data[{key}]", hidden, problem))
    return causes


def _json_problem(data: bytes) -> str | None:
    try:
        parse_json(data)
    except ValueError as error:
        return str(error)
    return None


def _immutable(new: Object, old: Object, fields: Iterable[str]) -> list[Cause]:
    if not old.get("immutable"):
        return []
    why = "field is immutable when `immutable` is set"
    causes = [] if new.get("immutable") else [forbidden_value("immutable", why)]
    return causes + [
        forbidden_value(field, why) for field in fields if new.get(field) != old.get(field)
    ]


def _config_map_update(new: Object, old: Object) -> list[Cause]:
    return _immutable(new, old, ("data", "binaryData"))


def _secret_update(new: Object, old: Object) -> list[Cause]:
    causes = _immutable(new, old, ("data",))
    if new.get("type") != old.get("type"):
        causes.insert(0, invalid_value("type", new.get("type"), "field is immutable"))
    return causes


def pod_spec(spec: Object, path: str) -> list[Cause]:
    """Return the rules that a pod's spec breaks, under a path such as `spec.template.spec`."""
    causes: list[Cause] = []
    volumes = _volumes(spec.get("volumes") or (), f"{path}.volumes", causes)
    containers = spec.get("containers")
    names: set[str] = set()
    if not containers:
        causes.append(required(f"{path}.containers"))
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            causes += _container(container, f"{path}.{group}[{index}]", names, volumes)
    causes += enumeration(spec, path, "restartPolicy", ("Always", "OnFailure", "Never"))
    causes += enumeration(
        spec,
        path,
        "dnsPolicy",
        ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None", ""),
    )
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


def _volumes(volumes: Iterable[Object], path: str, causes: list[Cause]) -> set[str]:
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


def _container(container: Object, path: str, names: set[str], volumes: set[str]) -> list[Cause]:
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
    causes += enumeration(container, path, "imagePullPolicy", ("Always", "IfNotPresent", "Never"))
    causes += _ports(container, path)
    causes += _environment(container, path)
    causes += _mounts(container, path, volumes)
    causes += [
        required(f"{path}.{name}", "must specify a handler type")
        for name in ("livenessProbe", "readinessProbe", "startupProbe")
        if name in container and not any(handler in container[name] for handler in _HANDLERS)
    ]
    causes += _resources(container, path)
    return causes


def _ports(container: Object, path: str) -> list[Cause]:
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
        causes += enumeration(port, here, "protocol", ("SCTP", "TCP", "UDP"))
    return causes


def _environment(container: Object, path: str) -> list[Cause]:
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


def _mounts(container: Object, path: str, volumes: set[str]) -> list[Cause]:
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


def _resources(container: Object, path: str) -> list[Cause]:
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


_SUFFIXES = {
    **{
        suffix: 1024**power for power, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    },
    **{suffix: 10.0**power for suffix, power in zip("numkMGTPE", range(-9, 19, 3), strict=False)},
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}


def quantity(text: str) -> float:
    """Return a canonical quantity as a number, for comparisons."""
    found = re.fullmatch(r"([-+\d.]+)([a-zA-Z]*)(.*)", str(text))
    if found is None:
        return 0.0
    if found[3] or (found[2] in {"e", "E"} and found[3]):
        return float(text)
    return float(found[1]) * _SUFFIXES.get(found[2], 1)


def _pod(obj: Object) -> list[Cause]:
    return pod_spec(obj.get("spec") or {}, "spec")


_POD_FORBIDDEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)


def _fixed_part(spec: Object) -> Any:
    fixed = {
        key: value
        for key, value in spec.items()
        if key not in {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    }
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [
                {key: value for key, value in container.items() if key != "image"}
                for container in fixed[group]
            ]
    return fixed


def _pod_update(new: Object, old: Object) -> list[Cause]:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    if _fixed_part(spec) != _fixed_part(before):
        return [forbidden_value("spec", _POD_FORBIDDEN)]
    return []


def _selector(
    spec: Object, path: str, labels: Mapping[str, str] | None, kind: str = "deployment"
) -> list[Cause]:
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


def _pod_template(template: Object, path: str) -> list[Cause]:
    metadata = template.get("metadata") or {}
    causes = validate_labels(metadata.get("labels"), f"{path}.metadata.labels")
    causes += pod_spec(template.get("spec") or {}, f"{path}.spec")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy in {"OnFailure", "Never"}:
        causes.append(not_supported(f"{path}.spec.restartPolicy", policy, ["Always"]))
    return causes


def _workload(obj: Object, kind: str = "deployment") -> list[Cause]:
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    causes = not_negative(spec, "spec", "replicas")
    causes += _selector(spec, "spec", (template.get("metadata") or {}).get("labels"), kind)
    causes += _pod_template(template, "spec.template")
    causes += not_negative(spec, "spec", "minReadySeconds")
    return causes


def _daemon_set(obj: Object) -> list[Cause]:
    return _workload(obj, "daemonset")


def _stateful_set(obj: Object) -> list[Cause]:
    return _workload(obj, "statefulset")


def _deployment(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    strategy = spec.get("strategy") or {}
    template = spec.get("template") or {}
    causes = not_negative(spec, "spec", "replicas")
    causes += _selector(spec, "spec", (template.get("metadata") or {}).get("labels"))
    causes += _pod_template(template, "spec.template")
    causes += enumeration(strategy, "spec.strategy", "type", ("Recreate", "RollingUpdate"))
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate"):
        causes.append(
            forbidden_value(
                "spec.strategy.rollingUpdate",
                "may not be specified when strategy `type` is 'Recreate'",
            )
        )
    rolling = strategy.get("rollingUpdate") or {}
    if rolling and not any(_percent(rolling.get(key)) for key in ("maxUnavailable", "maxSurge")):
        causes.append(
            invalid_value(
                "spec.strategy.rollingUpdate.maxUnavailable",
                rolling.get("maxUnavailable"),
                "may not be 0 when `maxSurge` is 0",
            )
        )
    causes += not_negative(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds", 0)
    if isinstance(deadline, int):
        causes += not_negative(spec, "spec", "progressDeadlineSeconds")
        if deadline <= ready:
            causes.append(
                invalid_value(
                    "spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"
                )
            )
    return causes


_LONGEST_PERCENT = 20


def _percent(value: Any) -> int:
    text = str(value or 0).removesuffix("%")
    return int(text[:_LONGEST_PERCENT]) if text.isascii() and text.isdigit() else 1


def _selector_update(new: Object, old: Object) -> list[Cause]:
    after, before = (obj.get("spec", {}).get("selector") for obj in (new, old))
    if after != before:
        return [invalid_value("spec.selector", after, "field is immutable")]
    return []


_STATEFUL_FORBIDDEN = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
    "'minReadySeconds' are forbidden"
)
_STATEFUL_OPEN = frozenset(
    (
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    )
)


def _stateful_update(new: Object, old: Object) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    if any(
        after.get(key) != before.get(key) for key in (after.keys() | before.keys()) - _STATEFUL_OPEN
    ):
        return [forbidden_value("spec", _STATEFUL_FORBIDDEN)]
    return []


def job_spec(spec: Object, path: str) -> list[Cause]:
    """Return the rules that a job's spec breaks, under a path such as `spec.jobTemplate.spec`."""
    causes = not_negative(
        spec, path, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"
    )
    pod = (spec.get("template") or {}).get("spec") or {}
    causes += pod_spec(pod, f"{path}.template.spec")
    if pod.get("restartPolicy") == "Always":
        where = f"{path}.template.spec.restartPolicy"
        causes.append(required(where, 'valid values: "OnFailure", "Never"'))
    return causes


def _job(obj: Object) -> list[Cause]:
    return job_spec(obj.get("spec") or {}, "spec")


def _job_update(new: Object, old: Object) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    return [
        invalid_value(f"spec.{key}", after.get(key), "field is immutable")
        for key in ("completions", "selector", "template", "completionMode")
        if after.get(key) != before.get(key)
    ]


def _lease(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    seconds = spec.get("leaseDurationSeconds")
    if isinstance(seconds, int) and seconds <= 0:
        causes.append(invalid_value("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    causes += not_negative(spec, "spec", "leaseTransitions")
    return causes


#: Bytes that an event's texts may have (`pkg/apis/core/validation/events.go`).
_EVENT_LIMITS = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}


def _event(obj: Object) -> list[Cause]:
    return _any_event(obj, "reportingComponent")


def _any_event(obj: Object, reporter: str) -> list[Cause]:
    """Return what both kinds of events must keep, in the stored form.

    Args:
        obj: the event.
        reporter: what the reporting component is called in the version that is written.
    """
    namespace = obj["metadata"].get("namespace", "")
    involved = (obj.get("involvedObject") or {}).get("namespace", "")
    timed = bool(obj.get("eventTime"))
    strays = invalid_value("involvedObject.namespace", involved, "does not match event.namespace")
    if not timed:
        fits = involved == namespace if involved else namespace == "default"
        return [] if fits else [strays]
    causes = []
    if not involved and namespace not in {"default", "kube-system"}:
        causes.append(strays)
    controller = obj.get("reportingComponent") or ""
    if not controller:
        causes.append(required(reporter))
    causes += [
        invalid_value(reporter, controller, why) for why in qualified_name_problems(controller)
    ]
    for key, limit in _EVENT_LIMITS.items():
        text = obj.get(key) or ""
        if not text and key != "message":
            causes.append(required(key))
        if len(text.encode()) > limit:
            causes.append(invalid_value(key, "", f"can have at most {limit} characters"))
    return causes


def _new_event(obj: Object) -> list[Cause]:
    return _any_event(obj, "reportingController") + _event_series(obj)


def _made_event(obj: Object) -> list[Cause]:
    causes = []
    if not obj.get("eventTime"):
        causes.append(required("eventTime"))
    kind = obj.get("type") or ""
    if kind not in {"Normal", "Warning"}:
        causes.append(invalid_value("type", "", f"has invalid value: {kind}"))
    causes += [
        invalid_value(key, "", "needs to be unset")
        for key in ("firstTimestamp", "lastTimestamp", "count", "source")
        if obj.get(key)
    ]
    return causes


def _event_series(obj: Object) -> list[Cause]:
    series = obj.get("series")
    if series is None:
        return []
    causes = []
    if (series.get("count") or 0) < 2:
        causes.append(invalid_value("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(required("series.lastObservedTime"))
    return causes


def _new_event_update(new: Object, old: Object) -> list[Cause]:
    return [
        invalid_value(key, new.get(key), "field is immutable")
        for key in (
            "involvedObject",
            "reason",
            "message",
            "source",
            "firstTimestamp",
            "lastTimestamp",
            "count",
            "reportingComponent",
            "reportingInstance",
            "action",
            "eventTime",
            "type",
            "related",
        )
        if new.get(key) != old.get(key)
    ]


def _endpoint_slice(obj: Object) -> list[Cause]:
    kinds = ("FQDN", "IPv4", "IPv6")
    kind = obj.get("addressType")
    if not kind:
        return [required("addressType")]
    if kind not in kinds:
        return [not_supported("addressType", kind, kinds)]
    return [
        required(f"endpoints[{index}].addresses", "must contain at least 1 address")
        for index, endpoint in enumerate(obj.get("endpoints") or ())
        if not endpoint.get("addresses")
    ]


def _claim(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    if not spec.get("accessModes"):
        causes.append(required("spec.accessModes", "at least 1 access mode is required"))
    requests = (spec.get("resources") or {}).get("requests") or {}
    if "storage" not in requests:
        causes.append(required("spec.resources[storage]"))
    return causes


Rule = Callable[[Object], list[Cause]]
UpdateRule = Callable[[Object, Object], list[Cause]]

CREATE_RULES: Mapping[str, Rule] = {
    "configmaps": _config_map,
    "secrets": _secret,
    "pods": _pod,
    "apps/deployments": _deployment,
    "apps/replicasets": _workload,
    "apps/daemonsets": _daemon_set,
    "apps/statefulsets": _stateful_set,
    "batch/jobs": _job,
    "coordination.k8s.io/leases": _lease,
    "events": _event,
    "events.k8s.io/events": _new_event,
    "discovery.k8s.io/endpointslices": _endpoint_slice,
    "persistentvolumeclaims": _claim,
}

#: What must hold when an object is made, beside the rules that always must.
NEW_RULES: Mapping[str, Rule] = {"events.k8s.io/events": _made_event}

UPDATE_RULES: Mapping[str, UpdateRule] = {
    "configmaps": _config_map_update,
    "secrets": _secret_update,
    "pods": _pod_update,
    "apps/deployments": _selector_update,
    "apps/replicasets": _selector_update,
    "apps/daemonsets": _selector_update,
    "apps/statefulsets": _stateful_update,
    "batch/jobs": _job_update,
    "events.k8s.io/events": _new_event_update,
}
