"""The cells of the tables of built-in kinds, by resource and column, as kubectl prints them.

The rules are those of `pkg/printers/internalversion`.
"""

from collections.abc import Mapping
from datetime import datetime

from listwatch.apiserver.kinds.cells import (
    NONE,
    UNKNOWN,
    Cell,
    Object,
    age,
    at,
    count,
    duration,
    field,
    join,
    labels,
    selector,
    text,
)
from listwatch.apiserver.kinds.pod_cells import POD


def _containers(path: str, key: str) -> Cell:
    return lambda obj, _: join(
        (each.get(key, "") for each in at(obj, f"{path}.containers") or ()),
    ).replace(NONE, "")


def _workload(spec: str = "spec.template.spec") -> dict[str, Cell]:
    return {
        "Containers": _containers(spec, "name"),
        "Images": _containers(spec, "image"),
        "Selector": selector("spec.selector"),
    }


# -- nodes, services, others -----------------------------------------------------------------

_ROLE = "node-role.kubernetes.io/"


def _node_status(node: Object, _: float) -> str:
    words = [
        "Ready" if each.get("status") == "True" else "NotReady"
        for each in at(node, "status.conditions") or ()
        if each.get("type") == "Ready"
    ] or ["Unknown"]
    if at(node, "spec.unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Object, _: float) -> str:
    labels = node["metadata"].get("labels") or {}
    roles = {key[len(_ROLE) :] for key in labels if key.startswith(_ROLE) and key != _ROLE}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return join(sorted(roles))


def _node_address(kind: str) -> Cell:
    def cell(node: Object, _: float) -> str:
        for each in at(node, "status.addresses") or ():
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
        points = at(service, "status.loadBalancer.ingress") or ()
        external = [each.get("ip") or each.get("hostname", "") for each in points] + external
        return ",".join(external) if external else "<pending>"
    return join(external)


def _service_ports(service: Object, _: float) -> str:
    return join(
        f"{each.get('port')}"
        + (f":{each['nodePort']}" if each.get("nodePort") else "")
        + f"/{each.get('protocol', 'TCP')}"
        for each in at(service, "spec.ports") or ()
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
    return str(at(claim, "status.capacity.storage") or "")


_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(path: str) -> Cell:
    return lambda obj, _: ",".join(_MODES.get(each, each) for each in at(obj, path) or ())


def _volume_claim(volume: Object, _: float) -> str:
    claim = at(volume, "spec.claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _phase(obj: Object, _: float) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(at(obj, "status.phase") or "")


def _job_status(job: Object, _: float) -> str:
    for kind, word in (("Complete", "Complete"), ("Failed", "Failed")):
        if any(
            each.get("type") == kind and each.get("status") == "True"
            for each in at(job, "status.conditions") or ()
        ):
            return word
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return "Suspended" if at(job, "spec.suspend") else "Running"


def _job_completions(job: Object, _: float) -> str:
    done, wanted = at(job, "status.succeeded") or 0, at(job, "spec.completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = at(job, "spec.parallelism") or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(job: Object, now: float) -> str:
    begun, ended = at(job, "status.startTime"), at(job, "status.completionTime")
    if not begun:
        return ""
    if not ended:
        return age(begun, now)
    then = datetime.fromisoformat(ended).timestamp()
    return duration(then - datetime.fromisoformat(begun).timestamp())


def _last_schedule(job: Object, now: float) -> str:
    last = at(job, "status.lastScheduleTime")
    return age(last, now) if last else NONE


def _ready_of(ready: str, wanted: str) -> Cell:
    return lambda obj, _: f"{at(obj, ready) or 0}/{at(obj, wanted) or 0}"


def _hosts(ingress: Object, _: float) -> str:
    hosts = [each["host"] for each in at(ingress, "spec.rules") or () if each.get("host")]
    return "*" if not hosts else _more(hosts)


def _ingress_address(ingress: Object, _: float) -> str:
    points = at(ingress, "status.loadBalancer.ingress") or ()
    return ",".join(each.get("ip") or each.get("hostname", "") for each in points)


def _ingress_ports(ingress: Object, _: float) -> str:
    return "80, 443" if at(ingress, "spec.tls") else "80"


def _event_seen(path: str) -> Cell:
    def cell(event: Object, now: float) -> str:
        stamps = [at(event, "series.lastObservedTime")] if path == "last" else []
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


def _event_count(event: Object, _: float) -> int:
    count = at(event, "series.count") or event.get("count") or event.get("deprecatedCount")
    return int(count or 1)


_EVENT: Mapping[str, Cell] = {
    "Last Seen": _event_seen("last"),
    "Type": field("type"),
    "Reason": field("reason"),
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
        hard, used = at(quota, "status.hard") or {}, at(quota, "status.used") or {}
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
    "Role": lambda binding, _: f"{at(binding, 'roleRef.kind')}/{at(binding, 'roleRef.name')}",
    "Users": _subjects("User"),
    "Groups": _subjects("Group"),
    "ServiceAccounts": _subjects("ServiceAccount"),
}


def _targets(scaler: Object, _: float) -> str:
    metrics = at(scaler, "spec.metrics") or ()
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
        f"{at(scaler, 'spec.scaleTargetRef.kind')}/{at(scaler, 'spec.scaleTargetRef.name')}"
    ),
    "Targets": _targets,
    "MinPods": lambda scaler, _: str(at(scaler, "spec.minReplicas") or "<unset>"),
    "MaxPods": field("spec.maxReplicas", 0),
    "Replicas": field("status.currentReplicas", 0),
}


def _controller(obj: Object, _: float) -> str:
    for each in obj["metadata"].get("ownerReferences") or ():
        if each.get("controller"):
            group = str(each.get("apiVersion", "")).rpartition("/")[0]
            kind = str(each.get("kind", "")).lower()
            return f"{kind}.{group}/{each.get('name')}" if group else f"{kind}/{each.get('name')}"
    return NONE


def _policy_target(path: str) -> Cell:
    return lambda obj, _: str(at(obj, path)) if at(obj, path) is not None else "N/A"


def _claim_state(claim: Object, _: float) -> str:
    states = []
    if claim["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    states.append("allocated" if at(claim, "status.allocation") else "pending")
    if at(claim, "status.reservedFor"):
        states.append("reserved")
    return ",".join(states)


def _dangling(schema: Object, _: float) -> str:
    conditions = at(schema, "status.conditions") or ()
    return next((each["status"] for each in conditions if each.get("type") == "Dangling"), "?")


def _certificate_condition(request: Object, _: float) -> str:
    words = [each.get("type", "") for each in at(request, "status.conditions") or ()]
    if not words:
        return "Pending"
    issued = ["Issued"] if at(request, "status.certificate") else []
    return ",".join(words + issued)


_REPLICAS: Mapping[str, Cell] = {
    "Desired": field("spec.replicas", 0),
    "Current": field("status.replicas", 0),
    "Ready": field("status.readyReplicas", 0),
}

CELLS: Mapping[str, Mapping[str, Cell]] = {
    "v1/pods": POD,
    "v1/configmaps": {
        "Data": lambda obj, _: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
    },
    "v1/secrets": {"Type": field("type"), "Data": count("data")},
    "v1/namespaces": {"Status": field("status.phase")},
    "v1/services": {
        "Type": field("spec.type"),
        "Cluster-IP": text("spec.clusterIP"),
        "External-IP": _service_external,
        "Port(s)": _service_ports,
        "Selector": lambda obj, _: labels(at(obj, "spec.selector")),
    },
    "v1/endpoints": {"Endpoints": _endpoints},
    "v1/events": _EVENT,
    "events.k8s.io/v1/events": _EVENT,
    "v1/nodes": {
        "Status": _node_status,
        "Roles": _node_roles,
        "Version": field("status.nodeInfo.kubeletVersion"),
        "Internal-IP": _node_address("InternalIP"),
        "External-IP": _node_address("ExternalIP"),
        "OS-Image": text("status.nodeInfo.osImage", UNKNOWN),
        "Kernel-Version": text("status.nodeInfo.kernelVersion", UNKNOWN),
        "Container-Runtime": text("status.nodeInfo.containerRuntimeVersion", UNKNOWN),
    },
    "v1/persistentvolumes": {
        "Capacity": field("spec.capacity.storage"),
        "Access Modes": _modes("spec.accessModes"),
        "Reclaim Policy": field("spec.persistentVolumeReclaimPolicy"),
        "Status": _phase,
        "Claim": _volume_claim,
        "StorageClass": field("spec.storageClassName"),
        "VolumeAttributesClass": text("spec.volumeAttributesClassName", "<unset>"),
        "Reason": field("status.reason"),
        "VolumeMode": text("spec.volumeMode", "<unset>"),
    },
    "v1/persistentvolumeclaims": {
        "Status": _phase,
        "Volume": field("spec.volumeName"),
        "Capacity": _claim_storage,
        "Access Modes": _modes("status.accessModes"),
        "StorageClass": field("spec.storageClassName"),
        "VolumeAttributesClass": text("spec.volumeAttributesClassName", "<unset>"),
        "VolumeMode": text("spec.volumeMode", "<unset>"),
    },
    "v1/podtemplates": {
        "Containers": _containers("template.spec", "name"),
        "Images": _containers("template.spec", "image"),
        "Pod Labels": lambda obj, _: labels(at(obj, "template.metadata.labels")),
    },
    "v1/replicationcontrollers": {
        **_REPLICAS,
        **_workload(),
        "Selector": lambda obj, _: labels(at(obj, "spec.selector")),
    },
    "v1/resourcequotas": {
        "Request": _quota("limits.", rest=True),
        "Limit": _quota("limits."),
    },
    "apps/v1/deployments": {
        **_workload(),
        "Ready": _ready_of("status.readyReplicas", "spec.replicas"),
        "Up-to-date": field("status.updatedReplicas", 0),
        "Available": field("status.availableReplicas", 0),
    },
    "apps/v1/replicasets": {**_REPLICAS, **_workload()},
    "apps/v1/statefulsets": {
        **_workload(),
        "Ready": _ready_of("status.readyReplicas", "spec.replicas"),
    },
    "apps/v1/daemonsets": {
        **_workload(),
        "Desired": field("status.desiredNumberScheduled", 0),
        "Current": field("status.currentNumberScheduled", 0),
        "Ready": field("status.numberReady", 0),
        "Up-to-date": field("status.updatedNumberScheduled", 0),
        "Available": field("status.numberAvailable", 0),
        "Node Selector": lambda obj, _: labels(at(obj, "spec.template.spec.nodeSelector")),
    },
    "apps/v1/controllerrevisions": {
        "Controller": _controller,
        "Revision": field("revision", 0),
    },
    "batch/v1/jobs": {
        **_workload(),
        "Status": _job_status,
        "Completions": _job_completions,
        "Duration": _job_duration,
    },
    "batch/v1/cronjobs": {
        **_workload("spec.jobTemplate.spec.template.spec"),
        "Schedule": field("spec.schedule"),
        "Timezone": text("spec.timeZone"),
        "Suspend": lambda obj, _: "True" if at(obj, "spec.suspend") else "False",
        "Active": count("status.active"),
        "Last Schedule": _last_schedule,
        "Selector": selector("spec.jobTemplate.spec.selector"),
    },
    "autoscaling/v1/horizontalpodautoscalers": _SCALER,
    "autoscaling/v2/horizontalpodautoscalers": _SCALER,
    "networking.k8s.io/v1/ingresses": {
        "Class": text("spec.ingressClassName"),
        "Hosts": _hosts,
        "Address": _ingress_address,
        "Ports": _ingress_ports,
    },
    "networking.k8s.io/v1/ingressclasses": {
        "Controller": field("spec.controller"),
        "Parameters": lambda obj, _: (
            f"{at(obj, 'spec.parameters.kind')}.{at(obj, 'spec.parameters.apiGroup') or ''}/"
            f"{at(obj, 'spec.parameters.name')}"
            if at(obj, "spec.parameters")
            else NONE
        ),
    },
    "networking.k8s.io/v1/networkpolicies": {"Pod-Selector": selector("spec.podSelector")},
    "networking.k8s.io/v1/servicecidrs": {
        "CIDRs": lambda obj, _: ",".join(at(obj, "spec.cidrs") or ()),
    },
    "networking.k8s.io/v1/ipaddresses": {
        "ParentRef": lambda obj, _: "/".join(
            str(at(obj, f"spec.parentRef.{key}") or "") for key in ("resource", "namespace", "name")
        ),
    },
    "policy/v1/poddisruptionbudgets": {
        "Min Available": _policy_target("spec.minAvailable"),
        "Max Unavailable": _policy_target("spec.maxUnavailable"),
        "Allowed Disruptions": field("status.disruptionsAllowed", 0),
    },
    "rbac.authorization.k8s.io/v1/rolebindings": _BINDING,
    "rbac.authorization.k8s.io/v1/clusterrolebindings": _BINDING,
    "storage.k8s.io/v1/storageclasses": {
        "Provisioner": field("provisioner"),
        "ReclaimPolicy": field("reclaimPolicy", "Delete"),
        "VolumeBindingMode": text("volumeBindingMode", "<unset>"),
        "AllowVolumeExpansion": field("allowVolumeExpansion", False),
    },
    "flowcontrol.apiserver.k8s.io/v1/flowschemas": {
        "PriorityLevel": text("spec.priorityLevelConfiguration.name"),
        "MatchingPrecedence": field("spec.matchingPrecedence", 0),
        "DistinguisherMethod": text("spec.distinguisherMethod.type"),
        "MissingPL": _dangling,
    },
    "storage.k8s.io/v1/csinodes": {"Drivers": count("spec.drivers")},
    "storage.k8s.io/v1/csidrivers": {
        "AttachRequired": field("spec.attachRequired", True),
        "PodInfoOnMount": field("spec.podInfoOnMount", False),
        "StorageCapacity": field("spec.storageCapacity", False),
        "TokenRequests": lambda obj, _: (
            ",".join(each.get("audience", "") for each in at(obj, "spec.tokenRequests") or ())
            or "<unset>"
        ),
        "RequiresRepublish": field("spec.requiresRepublish", False),
        "Modes": lambda obj, _: join(at(obj, "spec.volumeLifecycleModes") or ()),
    },
    "storage.k8s.io/v1/volumeattachments": {
        "Attacher": field("spec.attacher"),
        "PV": field("spec.source.persistentVolumeName"),
        "Node": field("spec.nodeName"),
        "Attached": field("status.attached", False),
    },
    "storage.k8s.io/v1/volumeattributesclasses": {"DriverName": field("driverName")},
    "scheduling.k8s.io/v1/priorityclasses": {
        "Value": field("value", 0),
        "Global-Default": field("globalDefault", False),
        "PreemptionPolicy": field("preemptionPolicy"),
    },
    "coordination.k8s.io/v1/leases": {"Holder": field("spec.holderIdentity")},
    "discovery.k8s.io/v1/endpointslices": {
        "AddressType": field("addressType"),
        "Ports": _slice_ports,
        "Endpoints": _slice_endpoints,
    },
    "node.k8s.io/v1/runtimeclasses": {"Handler": field("handler")},
    "certificates.k8s.io/v1/certificatesigningrequests": {
        "SignerName": field("spec.signerName"),
        "Requestor": field("spec.username"),
        "RequestedDuration": lambda obj, _: (
            duration(at(obj, "spec.expirationSeconds"))
            if at(obj, "spec.expirationSeconds")
            else NONE
        ),
        "Condition": _certificate_condition,
    },
    "resource.k8s.io/v1/resourceclaims": {"State": _claim_state},
    "resource.k8s.io/v1/resourceslices": {
        "Node": text("spec.nodeName", "<unset>"),
        "Driver": field("spec.driver"),
        "Pool": field("spec.pool.name"),
    },
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": {
        "Webhooks": count("webhooks")
    },
    "admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {
        "Webhooks": count("webhooks")
    },
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies": {
        "Validations": count("spec.validations"),
        "ParamKind": lambda obj, _: (
            f"{at(obj, 'spec.paramKind.apiVersion')}/{at(obj, 'spec.paramKind.kind')}"
            if at(obj, "spec.paramKind")
            else "<unset>"
        ),
    },
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings": {
        "PolicyName": field("spec.policyName"),
        "ParamRef": text("spec.paramRef.name", "<unset>"),
    },
    "apiregistration.k8s.io/v1/apiservices": {
        "Service": lambda obj, _: (
            f"{at(obj, 'spec.service.namespace')}/{at(obj, 'spec.service.name')}"
            if at(obj, "spec.service")
            else "Local"
        ),
        "Available": lambda obj, _: next(
            (
                each.get("status", "")
                for each in at(obj, "status.conditions") or ()
                if each.get("type") == "Available"
            ),
            "Unknown",
        ),
    },
}
