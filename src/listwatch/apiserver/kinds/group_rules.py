"""The rules of the kinds around the workloads: services, storage, policy, scheduling.

The sources are the `validation` packages of `pkg/apis`; whatever is not here is not enforced.
"""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from listwatch.apiserver.kinds.schedule import schedule_problem
from listwatch.apiserver.kinds.spec_rules import (
    enumeration,
    job_spec,
    label,
    not_negative,
    pod_spec,
    port_number,
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
from listwatch.selector import subdomain_problems

Object = Mapping[str, Any]
_CRON_JOB_NAME_LIMIT = 52
_USER_PRIORITY_LIMIT = 1_000_000_000
_SYSTEM_PRIORITIES = ("system-cluster-critical", "system-node-critical")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_QUOTA_NAMES = frozenset(
    (
        *_COMPUTE,
        *(f"requests.{name}" for name in (*_COMPUTE, "storage")),
        *(f"limits.{name}" for name in _COMPUTE),
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    )
)
_PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
_BAD_SEQUENCES = ("//", "/./", "/../", "%2f", "%2F")
_BAD_ENDS = ("/..", "/.")
_PERCENT_WORDS = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
_IP_WORDS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def _service(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    kind = spec.get("type")
    ports = spec.get("ports") or ()
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    causes += enumeration(
        spec, "spec", "type", ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    )
    causes += enumeration(spec, "spec", "sessionAffinity", ("ClientIP", "None"))
    address = spec.get("clusterIP")
    if address not in {None, "", "None"} and not _is_address(address):
        causes.append(invalid_value("spec.clusterIPs[0]", address, _IP_WORDS))
    seen: set[tuple[Any, Any]] = set()
    names: set[str] = set()
    for index, port in enumerate(ports):
        here = f"spec.ports[{index}]"
        name = port.get("name")
        if not name:
            if len(ports) > 1:
                causes.append(required(f"{here}.name"))
        else:
            causes += label(f"{here}.name", name)
            if name in names:
                causes.append(duplicate(f"{here}.name", name))
            names.add(name)
        value = port.get("port", 0)
        if not 0 < value < 65_536:
            causes.append(
                invalid_value(f"{here}.port", value, "must be between 1 and 65535, inclusive")
            )
        causes += enumeration(port, here, "protocol", ("SCTP", "TCP", "UDP"))
        causes += port_number(f"{here}.targetPort", port.get("targetPort"))
        key = (port.get("protocol"), value)
        if key in seen:
            causes.append(duplicate(here, {"protocol": port.get("protocol"), "port": value}))
        seen.add(key)
    if kind == "ExternalName":
        external = spec.get("externalName", "")
        if not external:
            causes.append(required("spec.externalName"))
        else:
            causes += [
                invalid_value("spec.externalName", external, why)
                for why in subdomain_problems(external.removesuffix("."))
            ]
    return causes


def _service_update(new: Object, old: Object) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    kinds = {after.get("type"), before.get("type")}
    address = before.get("clusterIP")
    if address and "ExternalName" not in kinds and after.get("clusterIP") != address:
        return [
            invalid_value("spec.clusterIPs[0]", [after.get("clusterIP")], "may not change once set")
        ]
    return []


def _cron_job(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    schedule = spec.get("schedule", "")
    if not schedule:
        causes.append(required("spec.schedule"))
    elif "TZ" in schedule:
        why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        causes.append(invalid_value("spec.schedule", schedule, why))
    else:
        problem = schedule_problem(schedule)
        if problem is not None:
            causes.append(invalid_value("spec.schedule", schedule, problem))
    causes += not_negative(
        spec,
        "spec",
        "startingDeadlineSeconds",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    )
    causes += enumeration(spec, "spec", "concurrencyPolicy", ("Allow", "Forbid", "Replace"))
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    causes += job_spec(job, "spec.jobTemplate.spec")
    name = obj["metadata"].get("name") or ""
    if len(name) > _CRON_JOB_NAME_LIMIT:
        causes.append(invalid_value("metadata.name", name, "must be no more than 52 characters"))
    return causes


def _ingress(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    default, rules = spec.get("defaultBackend"), spec.get("rules") or ()
    if not rules and default is None:
        why = "either `defaultBackend` or `rules` must be specified"
        causes.append(invalid_value("spec", spec.get("rules"), why))
    if default is not None:
        causes += _backend(default, "spec.defaultBackend")
    for index, rule in enumerate(rules):
        here = f"spec.rules[{index}]"
        if rule.get("host"):
            causes += _host(f"{here}.host", rule["host"])
        http = rule.get("http")
        if http is None:
            continue
        paths = http.get("paths") or ()
        if not paths:
            causes.append(required(f"{here}.http.paths"))
        for number, path in enumerate(paths):
            causes += _ingress_path(path, f"{here}.http.paths[{number}]")
    return causes


def _host(where: str, host: str) -> list[Cause]:
    if _is_address(host):
        return [invalid_value(where, host, "must be a DNS name, not an IP address")]
    # a wildcard stands for one label
    name = host.removeprefix("*.")
    return [invalid_value(where, host, why) for why in subdomain_problems(name)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _ingress_path(path: Object, here: str) -> list[Cause]:
    kind, text = path.get("pathType"), path.get("path", "")
    if kind is None:
        return [required(f"{here}.pathType", "pathType must be specified")]
    causes = []
    if kind not in _PATH_TYPES:
        causes.append(not_supported(f"{here}.pathType", kind, _PATH_TYPES))
    elif not text.startswith("/") and (text or kind != "ImplementationSpecific"):
        causes.append(invalid_value(f"{here}.path", text, "must be an absolute path"))
    if kind in {"Exact", "Prefix"}:
        causes += [
            invalid_value(f"{here}.path", text, f"must not contain '{bad}'")
            for bad in _BAD_SEQUENCES
            if bad in text
        ]
        causes += [
            invalid_value(f"{here}.path", text, f"cannot end with '{bad}'")
            for bad in _BAD_ENDS
            if text.endswith(bad)
        ]
    return causes + _backend(path.get("backend") or {}, f"{here}.backend")


def _backend(backend: Object, here: str) -> list[Cause]:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        return [invalid_value(here, "", "cannot set both resource and service backends")]
    if resource is not None:
        return [
            required(f"{here}.resource.{key}") for key in ("kind", "name") if not resource.get(key)
        ]
    if service is None:
        return [invalid_value(here, "", "resource or service backend is required")]
    causes = []
    if not service.get("name"):
        causes.append(required(f"{here}.service.name"))
    port = service.get("port") or {}
    if port.get("name") and port.get("number"):
        causes.append(invalid_value(here, "", "cannot set both port name & port number"))
    elif port.get("number"):
        causes += port_number(f"{here}.service.port.number", port["number"])
    elif not port.get("name"):
        causes.append(required(here, "port name or number is required"))
    return causes


def _autoscaler(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    least, most = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if isinstance(least, int) and least < 1:
        why = "must be greater than or equal to 1"
        causes.append(invalid_value("spec.minReplicas", least, why))
    if most < 1:
        causes.append(invalid_value("spec.maxReplicas", most, "must be greater than 0"))
    if isinstance(least, int) and most < least:
        why = "must be greater than or equal to `minReplicas`"
        causes.append(invalid_value("spec.maxReplicas", most, why))
    target = spec.get("scaleTargetRef") or {}
    causes += [
        required(f"spec.scaleTargetRef.{key}") for key in ("kind", "name") if not target.get(key)
    ]
    return causes


def _disruption_budget(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    causes = []
    if least is not None and most is not None:
        # the value is shown as the server has it inside, under its own names
        inside = {
            "MinAvailable": least,
            "Selector": spec.get("selector"),
            "MaxUnavailable": most,
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        why = "minAvailable and maxUnavailable cannot be both set"
        causes.append(invalid_value("spec", inside, why))
    for key, value in (("minAvailable", least), ("maxUnavailable", most)):
        causes += _count_or_percent(f"spec.{key}", value)
    return causes


def _count_or_percent(where: str, value: object) -> list[Cause]:
    if isinstance(value, int):
        return not_negative({where: value}, "", where)
    if not isinstance(value, str):
        return []
    digits = value.removesuffix("%")
    if digits == value or not (digits.isascii() and digits.isdigit()):
        return [invalid_value(where, value, _PERCENT_WORDS)]
    if int(digits.lstrip("0")[:4] or 0) > 100:
        return [invalid_value(where, value, "must not be greater than 100%")]
    return []


def _storage_class(obj: Object) -> list[Cause]:
    causes = [] if obj.get("provisioner") else [required("provisioner")]
    causes += enumeration(obj, "", "reclaimPolicy", ("Delete", "Retain"))
    modes = ("Immediate", "WaitForFirstConsumer")
    return causes + enumeration(obj, "", "volumeBindingMode", modes)


def _priority_class(obj: Object) -> list[Cause]:
    causes = []
    name = obj["metadata"].get("name") or ""
    if obj.get("value", 0) > _USER_PRIORITY_LIMIT and not name.startswith("system-"):
        why = f"maximum allowed value of a user defined priority is {_USER_PRIORITY_LIMIT}"
        causes.append(forbidden_value("value", why))
    if name.startswith("system-") and name not in _SYSTEM_PRIORITIES:
        why = (
            "priority class names with 'system-' prefix are reserved for system use only. error: "
            f"{name} is not a known system priority class"
        )
        causes.append(forbidden_value("metadata.name", why))
    policies = ("Never", "PreemptLowerPriority")
    return causes + enumeration(obj, "", "preemptionPolicy", policies)


def _quota(obj: Object) -> list[Cause]:
    hard = (obj.get("spec") or {}).get("hard") or {}
    return [
        invalid_value(f"spec.hard[{key}]", key, "must be a standard resource for quota")
        for key in hard
        if "/" not in key
        and key not in _QUOTA_NAMES
        and not key.startswith(("hugepages-", "requests.hugepages-"))
    ] + [
        invalid_value(f"spec.hard[{key}]", str(amount), "must be greater than or equal to 0")
        for key, amount in hard.items()
        if quantity(amount) < 0
    ]


def _limit_range(obj: Object) -> list[Cause]:
    causes = []
    for index, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
        most = item.get("max") or {}
        causes += [
            invalid_value(
                f"spec.limits[{index}].min[{key}]",
                str(amount),
                f"min value {amount} is greater than max value {most[key]}",
            )
            for key, amount in (item.get("min") or {}).items()
            if key in most and quantity(amount) > quantity(most[key])
        ]
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


def _volume(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    if not spec.get("accessModes"):
        causes.append(required("spec.accessModes"))
    capacity = spec.get("capacity")
    if not capacity:
        causes.append(required("spec.capacity"))
    if not capacity or set(capacity) != {"storage"}:
        causes.append(not_supported("spec.capacity", capacity, ("storage",)))
    sources = [key for key in spec if key not in _NOT_A_SOURCE]
    if not sources:
        causes.append(required("spec", "must specify a volume type"))
    causes += [
        forbidden_value(f"spec.{source}", "may not specify more than 1 volume type")
        for source in sources[1:]
    ]
    policies = ("Delete", "Recycle", "Retain")
    return causes + enumeration(spec, "spec", "persistentVolumeReclaimPolicy", policies)


def _endpoints(obj: Object) -> list[Cause]:
    causes: list[Cause] = []
    for index, subset in enumerate(obj.get("subsets") or ()):
        here = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            why = "must specify `addresses` or `notReadyAddresses`"
            causes.append(required(here, why))
        for group in ("addresses", "notReadyAddresses"):
            causes += [
                invalid_value(f"{here}.{group}[{number}].ip", each.get("ip", ""), _IP_WORDS)
                for number, each in enumerate(subset.get(group) or ())
                if not _is_address(each.get("ip", ""))
            ]
        ports = subset.get("ports") or ()
        for number, port in enumerate(ports):
            where = f"{here}.ports[{number}]"
            if len(ports) > 1 and not port.get("name"):
                causes.append(required(f"{where}.name"))
            causes += port_number(f"{where}.port", port.get("port", 0))
            causes += enumeration(port, where, "protocol", ("SCTP", "TCP", "UDP"))
    return causes


def _runtime_class(obj: Object) -> list[Cause]:
    return label("handler", obj.get("handler", ""))


def _ingress_class(obj: Object) -> list[Cause]:
    controller = (obj.get("spec") or {}).get("controller", "")
    if not controller:
        return [required("spec.controller")]
    host, _, path = controller.partition("/")
    if not host or not path:
        why = 'must be a domain-prefixed path (such as "acme.io/foo")'
        return [invalid_value("spec.controller", controller, why)]
    return [invalid_value("spec.controller", host, why) for why in subdomain_problems(host)]


def _controller_revision(obj: Object) -> list[Cause]:
    causes = [] if obj.get("data") is not None else [required("data", "data is mandatory")]
    revision = obj.get("revision", 0)
    if revision < 0:
        causes.append(invalid_value("revision", revision, "must be greater than or equal to 0"))
    return causes


def _replication_controller(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = not_negative(spec, "spec", "minReadySeconds", "replicas")
    selector, template = spec.get("selector"), spec.get("template")
    if not selector:
        causes.append(required("spec.selector"))
    if template is None:
        return [*causes, required("spec.template")]
    labels = (template.get("metadata") or {}).get("labels")
    if selector and not selector.items() <= (labels or {}).items():
        why = "`selector` does not match template `labels`"
        causes.append(invalid_value("spec.template.metadata.labels", labels, why))
    pod = template.get("spec") or {}
    causes += pod_spec(pod, "spec.template.spec")
    policy = pod.get("restartPolicy")
    if policy in {"Never", "OnFailure"}:
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ["Always"]))
    return causes


def _pod_template(obj: Object) -> list[Cause]:
    return pod_spec((obj.get("template") or {}).get("spec") or {}, "template.spec")


def _priority_class_update(new: Object, old: Object) -> list[Cause]:
    if new.get("value") == old.get("value"):
        return []
    return [forbidden_value("value", "may not be changed in an update.")]


def _storage_class_update(new: Object, old: Object) -> list[Cause]:
    causes = [
        forbidden_value(field, f"updates to {field} are forbidden.")
        for field in ("parameters", "provisioner", "reclaimPolicy")
        if (new.get(field) or None) != (old.get(field) or None)
    ]
    mode = new.get("volumeBindingMode")
    if mode != old.get("volumeBindingMode"):
        causes.append(invalid_value("volumeBindingMode", mode, "field is immutable"))
    return causes


GROUP_RULES: Mapping[str, Callable[[Object], list[Cause]]] = {
    "services": _service,
    "batch/cronjobs": _cron_job,
    "networking.k8s.io/ingresses": _ingress,
    "networking.k8s.io/ingressclasses": _ingress_class,
    "autoscaling/horizontalpodautoscalers": _autoscaler,
    "policy/poddisruptionbudgets": _disruption_budget,
    "storage.k8s.io/storageclasses": _storage_class,
    "scheduling.k8s.io/priorityclasses": _priority_class,
    "resourcequotas": _quota,
    "limitranges": _limit_range,
    "persistentvolumes": _volume,
    "endpoints": _endpoints,
    "node.k8s.io/runtimeclasses": _runtime_class,
    "apps/controllerrevisions": _controller_revision,
    "replicationcontrollers": _replication_controller,
    "podtemplates": _pod_template,
}

GROUP_UPDATE_RULES: Mapping[str, Callable[[Object, Object], list[Cause]]] = {
    "services": _service_update,
    "scheduling.k8s.io/priorityclasses": _priority_class_update,
    "storage.k8s.io/storageclasses": _storage_class_update,
}
