"""The cells of the tables of built-in kinds, by resource and column, as kubectl prints them.

The rules are those of `pkg/printers/internalversion`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from listwatch.selector import LabelSelector, SelectorError

Object = Mapping[str, Any]
Cell = Callable[[Object, float], Any]

NONE = "<none>"
UNKNOWN = "<unknown>"


def duration(seconds: float) -> str:
    """Return a duration as `apimachinery/pkg/util/duration` writes it for people."""
    whole = int(seconds)
    if whole < 0:
        return "0s" if whole == -1 else "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    years = days // 365
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def age(timestamp: str | None, now: float) -> str:
    """Return how long ago a time stamp was; `<unknown>` without one."""
    if not timestamp:
        return UNKNOWN
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return "<invalid>"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return duration(now - then.timestamp())


def _at(obj: Any, path: str) -> Any:
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj


def _field(path: str, absent: Any = "") -> Cell:
    def cell(obj: Object, _: float) -> Any:
        value = _at(obj, path)
        return absent if value is None else value

    return cell


def _text(path: str, absent: str = NONE) -> Cell:
    def cell(obj: Object, _: float) -> str:
        value = _at(obj, path)
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if value not in (None, "") else absent

    return cell


def _age_of(path: str) -> Cell:
    return lambda obj, now: age(_at(obj, path), now)


def _count(path: str) -> Cell:
    return lambda obj, _: len(_at(obj, path) or ())


def _join(items: Iterable[object], separator: str = ",") -> str:
    return separator.join(map(str, items)) or NONE


def _labels(labels: Object | None) -> str:
    return _join(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def _selector(path: str) -> Cell:
    def cell(obj: Object, _: float) -> str:
        try:
            return str(LabelSelector.from_dict(_at(obj, path) or {})) or NONE
        except SelectorError:
            return "<error>"

    return cell


def _containers(path: str, key: str) -> Cell:
    return lambda obj, _: _join(
        (each.get(key, "") for each in _at(obj, f"{path}.containers") or ()),
    ).replace(NONE, "")


def _workload(spec: str = "spec.template.spec") -> dict[str, Cell]:
    return {
        "Containers": _containers(spec, "name"),
        "Images": _containers(spec, "image"),
        "Selector": _selector("spec.selector"),
    }


# -- pods ------------------------------------------------------------------------------------


def _init_status(pod: Object, states: list[Object]) -> str | None:
    """Return what a pod's init containers make of its status; None when they are done."""
    specs = {each.get("name"): each for each in _at(pod, "spec.initContainers") or ()}
    for index, status in enumerate(states):
        state = status.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        sidecar = (specs.get(status.get("name")) or {}).get("restartPolicy") == "Always"
        if sidecar and status.get("started"):
            continue
        if ended is not None:
            return "Init:" + _ended_words(ended)
        reason = (waiting or {}).get("reason")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{len(specs)}"
    return None


def _ended_words(ended: Object) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _pod_status(pod: Object, _: float) -> str:
    status = pod.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or "")
    conditions = status.get("conditions") or ()
    if any(
        each.get("type") == "PodScheduled" and each.get("reason") == "SchedulingGated"
        for each in conditions
    ):
        reason = "SchedulingGated"
    init = _init_status(pod, status.get("initContainerStatuses") or [])
    if init is not None:
        reason = init
    else:
        running = False
        for each in reversed(status.get("containerStatuses") or []):
            state = each.get("state") or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated")
            if waiting.get("reason"):
                reason = waiting["reason"]
            elif ended is not None:
                reason = _ended_words(ended)
            elif each.get("ready") and state.get("running") is not None:
                running = True
        if reason == "Completed" and running:
            ready = any(
                each.get("type") == "Ready" and each.get("status") == "True" for each in conditions
            )
            reason = "Running" if ready else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in {"Succeeded", "Failed"}:
            return "Terminating"
    return reason


def _pod_ready(pod: Object, _: float) -> str:
    states = _at(pod, "status.containerStatuses") or ()
    ready = sum(
        bool(each.get("ready")) and (each.get("state") or {}).get("running") is not None
        for each in states
    )
    return f"{ready}/{len(_at(pod, 'spec.containers') or ())}"


def _pod_restarts(pod: Object, now: float) -> str:
    states = _at(pod, "status.containerStatuses") or ()
    count = sum(each.get("restartCount", 0) for each in states)
    ends = [
        finished
        for each in states
        if (finished := _at(each, "lastState.terminated.finishedAt")) is not None
    ]
    return f"{count} ({age(max(ends), now)} ago)" if count and ends else str(count)


def _pod_gates(pod: Object, _: float) -> str:
    gates = _at(pod, "spec.readinessGates") or ()
    if not gates:
        return NONE
    met = {
        each.get("type")
        for each in _at(pod, "status.conditions") or ()
        if each.get("status") == "True"
    }
    return f"{sum(gate.get('conditionType') in met for gate in gates)}/{len(gates)}"


# -- nodes, services, others -----------------------------------------------------------------

_ROLE = "node-role.kubernetes.io/"


def _node_status(node: Object, _: float) -> str:
    words = [
        "Ready" if each.get("status") == "True" else "NotReady"
        for each in _at(node, "status.conditions") or ()
        if each.get("type") == "Ready"
    ] or ["Unknown"]
    if _at(node, "spec.unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Object, _: float) -> str:
    labels = node["metadata"].get("labels") or {}
    roles = {key[len(_ROLE) :] for key in labels if key.startswith(_ROLE) and key != _ROLE}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return _join(sorted(roles))


def _node_address(kind: str) -> Cell:
    def cell(node: Object, _: float) -> str:
        for each in _at(node, "status.addresses") or ():
            if each.get("type") == kind:
                return str(each.get("address"))
        return NONE

    return cell


def _service_external(service: Object, _: float) -> str:
    spec = service.get("spec") or {}
    external = list(spec.get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("type") == "LoadBalancer":
        points = _at(service, "status.loadBalancer.ingress") or ()
        external = [each.get("ip") or each.get("hostname", "") for each in points] + external
        return ",".join(external) if external else "<pending>"
    return _join(external)


def _service_ports(service: Object, _: float) -> str:
    return _join(
        f"{each.get('port')}"
        + (f":{each['nodePort']}" if each.get("nodePort") else "")
        + f"/{each.get('protocol', 'TCP')}"
        for each in _at(service, "spec.ports") or ()
    )


def _more(items: list[str], most: int = 3) -> str:
    if not items:
        return NONE
    rest = len(items) - most
    return ",".join(items[:most]) + (f" + {rest} more..." if rest > 0 else "")


def _endpoints(obj: Object, _: float) -> str:
    found = []
    for subset in obj.get("subsets") or ():
        for address in subset.get("addresses") or ():
            ports = subset.get("ports") or [{}]
            found += [
                f"{address.get('ip')}:{port['port']}" if "port" in port else str(address.get("ip"))
                for port in ports
            ]
    return _more(found)


def _slice_ports(obj: Object, _: float) -> str:
    ports = obj.get("ports")
    if not ports:
        return "<unset>"
    return _more([str(each.get("port", "*")) for each in ports])


def _slice_endpoints(obj: Object, _: float) -> str:
    found = [
        address
        for endpoint in obj.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    ]
    return _more(found) if found else "<unset>"


def _claim_storage(claim: Object, _: float) -> str:
    return str(_at(claim, "status.capacity.storage") or "")


_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(path: str) -> Cell:
    return lambda obj, _: ",".join(_MODES.get(each, each) for each in _at(obj, path) or ())


def _volume_claim(volume: Object, _: float) -> str:
    claim = _at(volume, "spec.claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _phase(obj: Object, _: float) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(_at(obj, "status.phase") or "")


def _job_status(job: Object, _: float) -> str:
    for kind, word in (("Complete", "Complete"), ("Failed", "Failed")):
        if any(
            each.get("type") == kind and each.get("status") == "True"
            for each in _at(job, "status.conditions") or ()
        ):
            return word
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return "Suspended" if _at(job, "spec.suspend") else "Running"


def _job_completions(job: Object, _: float) -> str:
    done, wanted = _at(job, "status.succeeded") or 0, _at(job, "spec.completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = _at(job, "spec.parallelism") or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(job: Object, now: float) -> str:
    begun, ended = _at(job, "status.startTime"), _at(job, "status.completionTime")
    if not begun:
        return ""
    if not ended:
        return age(begun, now)
    then = datetime.fromisoformat(ended).timestamp()
    return duration(then - datetime.fromisoformat(begun).timestamp())


def _last_schedule(job: Object, now: float) -> str:
    last = _at(job, "status.lastScheduleTime")
    return age(last, now) if last else NONE


def _ready_of(ready: str, wanted: str) -> Cell:
    return lambda obj, _: f"{_at(obj, ready) or 0}/{_at(obj, wanted) or 0}"


def _hosts(ingress: Object, _: float) -> str:
    hosts = [each["host"] for each in _at(ingress, "spec.rules") or () if each.get("host")]
    return "*" if not hosts else _more(hosts)


def _ingress_address(ingress: Object, _: float) -> str:
    points = _at(ingress, "status.loadBalancer.ingress") or ()
    return ",".join(each.get("ip") or each.get("hostname", "") for each in points)


def _ingress_ports(ingress: Object, _: float) -> str:
    return "80, 443" if _at(ingress, "spec.tls") else "80"


def _event_seen(path: str) -> Cell:
    def cell(event: Object, now: float) -> str:
        stamps = [_at(event, "series.lastObservedTime")] if path == "last" else []
        stamps += [event.get("lastTimestamp" if path == "last" else "firstTimestamp")]
        stamps += [event.get("eventTime")]
        found = next((stamp for stamp in stamps if stamp), None)
        return age(found, now)

    return cell


def _event_object(event: Object, _: float) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    kind, name = str(about.get("kind", "")).lower(), about.get("name", "")
    return f"{kind}/{name}" if name else kind


def _event_source(event: Object, _: float) -> str:
    source = event.get("source") or event.get("deprecatedSource") or {}
    component = (
        source.get("component")
        or event.get("reportingComponent")
        or event.get("reportingController", "")
    )
    host = source.get("host") or event.get("reportingInstance", "")
    return ", ".join(filter(None, (component, host)))


def _event_count(event: Object, _: float) -> str:
    count = _at(event, "series.count") or event.get("count") or event.get("deprecatedCount")
    return str(count or 1)


_EVENT: Mapping[str, Cell] = {
    "Last Seen": _event_seen("last"),
    "Type": _field("type"),
    "Reason": _field("reason"),
    "Object": _event_object,
    "Subobject": lambda event, _: (event.get("involvedObject") or event.get("regarding") or {}).get(
        "fieldPath", ""
    ),
    "Source": _event_source,
    "Message": lambda event, _: str(event.get("message", event.get("note", ""))).strip(),
    "First Seen": _event_seen("first"),
    "Count": _event_count,
}


def _quota(prefix: str, *, rest: bool = False) -> Cell:
    def cell(quota: Object, _: float) -> str:
        hard, used = _at(quota, "status.hard") or {}, _at(quota, "status.used") or {}
        return ", ".join(
            f"{name}: {used.get(name, '0')}/{amount}"
            for name, amount in sorted(hard.items())
            if name.startswith(prefix) is not rest
        )

    return cell


def _subjects(kind: str) -> Cell:
    def cell(binding: Object, _: float) -> str:
        return ", ".join(
            f"{each['namespace']}/{each['name']}" if each.get("namespace") else each["name"]
            for each in binding.get("subjects") or ()
            if each.get("kind") == kind
        )

    return cell


_BINDING: Mapping[str, Cell] = {
    "Role": lambda binding, _: f"{_at(binding, 'roleRef.kind')}/{_at(binding, 'roleRef.name')}",
    "Users": _subjects("User"),
    "Groups": _subjects("Group"),
    "ServiceAccounts": _subjects("ServiceAccount"),
}


def _targets(scaler: Object, _: float) -> str:
    metrics = _at(scaler, "spec.metrics") or ()
    found = []
    for metric in metrics:
        source = metric.get(str(metric.get("type", "")).lower()) or {}
        target = source.get("target") or {}
        wanted = target.get("averageUtilization")
        name = source.get("name", "")
        shown = (
            f"{wanted}%"
            if wanted is not None
            else str(target.get("averageValue") or target.get("value") or "")
        )
        found.append(f"{name}: {UNKNOWN}/{shown}" if name else f"{UNKNOWN}/{shown}")
    return ", ".join(found) or NONE


_SCALER: Mapping[str, Cell] = {
    "Reference": lambda scaler, _: (
        f"{_at(scaler, 'spec.scaleTargetRef.kind')}/{_at(scaler, 'spec.scaleTargetRef.name')}"
    ),
    "Targets": _targets,
    "MinPods": lambda scaler, _: str(_at(scaler, "spec.minReplicas") or "<unset>"),
    "MaxPods": lambda scaler, _: str(_at(scaler, "spec.maxReplicas") or 0),
    "Replicas": lambda scaler, _: str(_at(scaler, "status.currentReplicas") or 0),
}


def _controller(obj: Object, _: float) -> str:
    for each in obj["metadata"].get("ownerReferences") or ():
        if each.get("controller"):
            group = str(each.get("apiVersion", "")).rpartition("/")[0]
            kind = str(each.get("kind", "")).lower()
            return f"{kind}.{group}/{each.get('name')}" if group else f"{kind}/{each.get('name')}"
    return NONE


def _policy_target(path: str) -> Cell:
    return lambda obj, _: str(_at(obj, path)) if _at(obj, path) is not None else "N/A"


def _claim_state(claim: Object, _: float) -> str:
    states = []
    if claim["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    states.append("allocated" if _at(claim, "status.allocation") else "pending")
    if _at(claim, "status.reservedFor"):
        states.append("reserved")
    return ",".join(states)


def _certificate_condition(request: Object, _: float) -> str:
    words = [each.get("type", "") for each in _at(request, "status.conditions") or ()]
    if not words:
        return "Pending"
    issued = ["Issued"] if _at(request, "status.certificate") else []
    return ",".join(words + issued)


_REPLICAS: Mapping[str, Cell] = {
    "Desired": _field("spec.replicas", 0),
    "Current": _field("status.replicas", 0),
    "Ready": _field("status.readyReplicas", 0),
}

CELLS: Mapping[str, Mapping[str, Cell]] = {
    "v1/pods": {
        "Ready": _pod_ready,
        "Status": _pod_status,
        "Restarts": _pod_restarts,
        "IP": _text("status.podIP"),
        "Node": _text("spec.nodeName"),
        "Nominated Node": _text("status.nominatedNodeName"),
        "Readiness Gates": _pod_gates,
    },
    "v1/configmaps": {
        "Data": lambda obj, _: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
    },
    "v1/secrets": {"Type": _field("type"), "Data": _count("data")},
    "v1/namespaces": {"Status": _field("status.phase")},
    "v1/services": {
        "Type": _field("spec.type"),
        "Cluster-IP": _text("spec.clusterIP"),
        "External-IP": _service_external,
        "Port(s)": _service_ports,
        "Selector": lambda obj, _: _labels(_at(obj, "spec.selector")),
    },
    "v1/endpoints": {"Endpoints": _endpoints},
    "v1/events": _EVENT,
    "events.k8s.io/v1/events": _EVENT,
    "v1/nodes": {
        "Status": _node_status,
        "Roles": _node_roles,
        "Version": _field("status.nodeInfo.kubeletVersion"),
        "Internal-IP": _node_address("InternalIP"),
        "External-IP": _node_address("ExternalIP"),
        "OS-Image": _text("status.nodeInfo.osImage", UNKNOWN),
        "Kernel-Version": _text("status.nodeInfo.kernelVersion", UNKNOWN),
        "Container-Runtime": _text("status.nodeInfo.containerRuntimeVersion", UNKNOWN),
    },
    "v1/persistentvolumes": {
        "Capacity": _field("spec.capacity.storage"),
        "Access Modes": _modes("spec.accessModes"),
        "Reclaim Policy": _field("spec.persistentVolumeReclaimPolicy"),
        "Status": _phase,
        "Claim": _volume_claim,
        "StorageClass": _field("spec.storageClassName"),
        "VolumeAttributesClass": _text("spec.volumeAttributesClassName", "<unset>"),
        "Reason": _field("status.reason"),
        "VolumeMode": _text("spec.volumeMode", "<unset>"),
    },
    "v1/persistentvolumeclaims": {
        "Status": _phase,
        "Volume": _field("spec.volumeName"),
        "Capacity": _claim_storage,
        "Access Modes": _modes("status.accessModes"),
        "StorageClass": _field("spec.storageClassName"),
        "VolumeAttributesClass": _text("spec.volumeAttributesClassName", "<unset>"),
        "VolumeMode": _text("spec.volumeMode", "<unset>"),
    },
    "v1/podtemplates": {
        "Containers": _containers("template.spec", "name"),
        "Images": _containers("template.spec", "image"),
        "Pod Labels": lambda obj, _: _labels(_at(obj, "template.metadata.labels")),
    },
    "v1/replicationcontrollers": {
        **_REPLICAS,
        **_workload(),
        "Selector": lambda obj, _: _labels(_at(obj, "spec.selector")),
    },
    "v1/resourcequotas": {
        "Request": _quota("limits.", rest=True),
        "Limit": _quota("limits."),
    },
    "apps/v1/deployments": {
        **_workload(),
        "Ready": _ready_of("status.readyReplicas", "spec.replicas"),
        "Up-to-date": lambda obj, _: str(_at(obj, "status.updatedReplicas") or 0),
        "Available": lambda obj, _: str(_at(obj, "status.availableReplicas") or 0),
    },
    "apps/v1/replicasets": {**_REPLICAS, **_workload()},
    "apps/v1/statefulsets": {
        **_workload(),
        "Ready": _ready_of("status.readyReplicas", "spec.replicas"),
    },
    "apps/v1/daemonsets": {
        **_workload(),
        "Desired": _field("status.desiredNumberScheduled", 0),
        "Current": _field("status.currentNumberScheduled", 0),
        "Ready": _field("status.numberReady", 0),
        "Up-to-date": _field("status.updatedNumberScheduled", 0),
        "Available": _field("status.numberAvailable", 0),
        "Node Selector": lambda obj, _: _labels(_at(obj, "spec.template.spec.nodeSelector")),
    },
    "apps/v1/controllerrevisions": {
        "Controller": _controller,
        "Revision": lambda obj, _: str(obj.get("revision", 0)),
    },
    "batch/v1/jobs": {
        **_workload(),
        "Status": _job_status,
        "Completions": _job_completions,
        "Duration": _job_duration,
    },
    "batch/v1/cronjobs": {
        **_workload("spec.jobTemplate.spec.template.spec"),
        "Schedule": _field("spec.schedule"),
        "Timezone": _text("spec.timeZone"),
        "Suspend": lambda obj, _: "True" if _at(obj, "spec.suspend") else "False",
        "Active": _count("status.active"),
        "Last Schedule": _last_schedule,
        "Selector": _selector("spec.jobTemplate.spec.selector"),
    },
    "autoscaling/v1/horizontalpodautoscalers": _SCALER,
    "autoscaling/v2/horizontalpodautoscalers": _SCALER,
    "networking.k8s.io/v1/ingresses": {
        "Class": _text("spec.ingressClassName"),
        "Hosts": _hosts,
        "Address": _ingress_address,
        "Ports": _ingress_ports,
    },
    "networking.k8s.io/v1/ingressclasses": {
        "Controller": _field("spec.controller"),
        "Parameters": lambda obj, _: (
            f"{_at(obj, 'spec.parameters.kind')}.{_at(obj, 'spec.parameters.apiGroup') or ''}/"
            f"{_at(obj, 'spec.parameters.name')}"
            if _at(obj, "spec.parameters")
            else NONE
        ),
    },
    "networking.k8s.io/v1/networkpolicies": {"Pod-Selector": _selector("spec.podSelector")},
    "networking.k8s.io/v1/servicecidrs": {
        "CIDRs": lambda obj, _: ",".join(_at(obj, "spec.cidrs") or ()),
    },
    "networking.k8s.io/v1/ipaddresses": {
        "ParentRef": lambda obj, _: "/".join(
            str(_at(obj, f"spec.parentRef.{key}") or "")
            for key in ("resource", "namespace", "name")
        ),
    },
    "policy/v1/poddisruptionbudgets": {
        "Min Available": _policy_target("spec.minAvailable"),
        "Max Unavailable": _policy_target("spec.maxUnavailable"),
        "Allowed Disruptions": _field("status.disruptionsAllowed", 0),
    },
    "rbac.authorization.k8s.io/v1/rolebindings": _BINDING,
    "rbac.authorization.k8s.io/v1/clusterrolebindings": _BINDING,
    "storage.k8s.io/v1/storageclasses": {
        "Provisioner": _field("provisioner"),
        "ReclaimPolicy": _field("reclaimPolicy", "Delete"),
        "VolumeBindingMode": _text("volumeBindingMode", "<unset>"),
        "AllowVolumeExpansion": _text("allowVolumeExpansion", "false"),
    },
    "storage.k8s.io/v1/csinodes": {"Drivers": _count("spec.drivers")},
    "storage.k8s.io/v1/csidrivers": {
        "AttachRequired": _field("spec.attachRequired", True),
        "PodInfoOnMount": _field("spec.podInfoOnMount", False),
        "StorageCapacity": _field("spec.storageCapacity", False),
        "TokenRequests": lambda obj, _: (
            ",".join(each.get("audience", "") for each in _at(obj, "spec.tokenRequests") or ())
            or "<unset>"
        ),
        "RequiresRepublish": _field("spec.requiresRepublish", False),
        "Modes": lambda obj, _: _join(_at(obj, "spec.volumeLifecycleModes") or ()),
    },
    "storage.k8s.io/v1/volumeattachments": {
        "Attacher": _field("spec.attacher"),
        "PV": _field("spec.source.persistentVolumeName"),
        "Node": _field("spec.nodeName"),
        "Attached": _field("status.attached", False),
    },
    "storage.k8s.io/v1/volumeattributesclasses": {"DriverName": _field("driverName")},
    "scheduling.k8s.io/v1/priorityclasses": {
        "Value": _field("value", 0),
        "Global-Default": _field("globalDefault", False),
        "PreemptionPolicy": _field("preemptionPolicy"),
    },
    "coordination.k8s.io/v1/leases": {"Holder": _field("spec.holderIdentity")},
    "discovery.k8s.io/v1/endpointslices": {
        "AddressType": _field("addressType"),
        "Ports": _slice_ports,
        "Endpoints": _slice_endpoints,
    },
    "node.k8s.io/v1/runtimeclasses": {"Handler": _field("handler")},
    "certificates.k8s.io/v1/certificatesigningrequests": {
        "SignerName": _field("spec.signerName"),
        "Requestor": _field("spec.username"),
        "RequestedDuration": lambda obj, _: (
            duration(_at(obj, "spec.expirationSeconds"))
            if _at(obj, "spec.expirationSeconds")
            else NONE
        ),
        "Condition": _certificate_condition,
    },
    "resource.k8s.io/v1/resourceclaims": {"State": _claim_state},
    "resource.k8s.io/v1/resourceslices": {
        "Node": _text("spec.nodeName", "<unset>"),
        "Driver": _field("spec.driver"),
        "Pool": _field("spec.pool.name"),
    },
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": {
        "Webhooks": _count("webhooks")
    },
    "admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {
        "Webhooks": _count("webhooks")
    },
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies": {
        "Validations": _count("spec.validations"),
        "ParamKind": lambda obj, _: (
            f"{_at(obj, 'spec.paramKind.apiVersion')}/{_at(obj, 'spec.paramKind.kind')}"
            if _at(obj, "spec.paramKind")
            else "<unset>"
        ),
    },
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings": {
        "PolicyName": _field("spec.policyName"),
        "ParamRef": _text("spec.paramRef.name", "<unset>"),
    },
    "apiregistration.k8s.io/v1/apiservices": {
        "Service": lambda obj, _: (
            f"{_at(obj, 'spec.service.namespace')}/{_at(obj, 'spec.service.name')}"
            if _at(obj, "spec.service")
            else "Local"
        ),
        "Available": lambda obj, _: next(
            (
                each.get("status", "")
                for each in _at(obj, "status.conditions") or ()
                if each.get("type") == "Available"
            ),
            "Unknown",
        ),
    },
}
