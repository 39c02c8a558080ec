"""What the server fills in: the defaults of built-in kinds, and what admission adds to them."""

import base64
from collections.abc import Callable
from typing import Any

from listwatch.apiserver.kinds.definitions import default_definition

Object = dict[str, Any]


def _pod_spec(spec: Object) -> None:
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
            _container(container, host_network=host)
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _container(container: Object, *, host_network: bool) -> None:
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
            _probe(probe)
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict) and "httpGet" in handler:
            _http_get(handler["httpGet"])
    for variable in container.get("env") or ():
        field = (variable.get("valueFrom") or {}).get("fieldRef")
        if field is not None:
            field.setdefault("apiVersion", "v1")


def _probe(probe: Object) -> None:
    for key, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(key):
            probe[key] = value
    if "httpGet" in probe:
        _http_get(probe["httpGet"])
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _http_get(action: Object) -> None:
    if not action.get("path"):
        action["path"] = "/"
    if not action.get("scheme"):
        action["scheme"] = "HTTP"


_MODES = ("secret", "configMap", "downwardAPI", "projected")


def _volume(volume: Object) -> None:
    sources = [key for key in volume if key != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for name in _MODES:
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


def _pod(obj: Object) -> None:
    _pod_spec(obj.setdefault("spec", {}))
    obj["spec"].setdefault("enableServiceLinks", True)
    obj.setdefault("status", {})
    obj["status"].setdefault("phase", "Pending")
    conditions = obj["status"].get("conditions")
    for condition in conditions or ():
        condition.setdefault("lastProbeTime", None)
        condition.setdefault("lastTransitionTime", None)


def _template(spec: Object) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    _pod_spec(template.setdefault("spec", {}))


def _status(obj: Object) -> Object:
    status: Object = obj.setdefault("status", {})
    return status


def _deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    _template(spec)
    _status(obj)


def _daemon_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    _template(spec)
    status = _status(obj)
    for name in ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled"):
        status.setdefault(name, 0)
    status.setdefault("numberReady", 0)


def _stateful_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    _template(spec)
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("kind", "PersistentVolumeClaim")
        _claim(claim)
        claim.setdefault("status", {}).setdefault("phase", "Pending")
    _status(obj).setdefault("replicas", 0)
    _status(obj).setdefault("availableReplicas", 0)


def _replica_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _template(spec)
    _status(obj).setdefault("replicas", 0)


def _replication_controller(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)
    if "template" in spec:
        _template(spec)
    _status(obj).setdefault("replicas", 0)


def _job_spec(spec: Object) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault(
        "podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    )
    _template(spec)


def _job(obj: Object) -> None:
    _job_spec(obj.setdefault("spec", {}))
    _status(obj)


def _cron_job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    template = spec.setdefault("jobTemplate", {})
    template.setdefault("metadata", {})
    job = template.setdefault("spec", {})
    _template(job)
    _status(obj)


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("type", "ClusterIP")
    if spec["sessionAffinity"] == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", 10800)
    if spec["type"] in {"NodePort", "LoadBalancer"}:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    _status(obj).setdefault("loadBalancer", {})


def _endpoints(obj: Object) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _endpoint_slice(obj: Object) -> None:
    for port in obj.get("ports") or ():
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")
    obj.setdefault("endpoints", [])


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(value.encode()).decode()


def _namespace(obj: Object) -> None:
    name = obj["metadata"].get("name")
    if name:
        labels = obj["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = name
    _status(obj).setdefault("phase", "Active")
    obj.setdefault("spec", {})


def _node(obj: Object) -> None:
    obj.setdefault("spec", {})
    status = _status(obj)
    if "allocatable" not in status and "capacity" in status:
        status["allocatable"] = dict(status["capacity"])
    for condition in status.get("conditions") or ():
        condition.setdefault("lastHeartbeatTime", None)
        condition.setdefault("lastTransitionTime", None)
    status.setdefault("daemonEndpoints", {}).setdefault("kubeletEndpoint", {}).setdefault("Port", 0)
    info = status.setdefault("nodeInfo", {})
    for name in (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ):
        info.setdefault(name, "")


def _event(obj: Object) -> None:
    obj.setdefault("source", {})
    obj.setdefault("firstTimestamp", None)
    obj.setdefault("lastTimestamp", None)
    obj.setdefault("eventTime", None)
    obj.setdefault("reportingComponent", "")
    obj.setdefault("reportingInstance", "")
    if obj.get("series") is not None:
        obj["series"].setdefault("lastObservedTime", None)


def _new_event(obj: Object) -> None:
    obj.setdefault("eventTime", None)


def _claim(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("resources", {})


def _volume_claim(obj: Object) -> None:
    _claim(obj)
    _status(obj).setdefault("phase", "Pending")


def _persistent_volume(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")
    _status(obj).setdefault("phase", "Pending")


def _ingress(obj: Object) -> None:
    obj.setdefault("spec", {})
    _status(obj).setdefault("loadBalancer", {})


def _network_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _autoscaler(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    status = _status(obj)
    status.setdefault("desiredReplicas", 0)
    if obj.get("apiVersion") == "autoscaling/v1":
        # its metrics come with the conversion
        status.setdefault("currentReplicas", 0)
        return
    status.setdefault("currentMetrics", None)
    if not spec.get("metrics"):
        spec["metrics"] = [
            {
                "type": "Resource",
                "resource": {
                    "name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80},
                },
            }
        ]


def _disruption_budget(obj: Object) -> None:
    obj.setdefault("spec", {})
    status = _status(obj)
    for name in ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"):
        status.setdefault(name, 0)


def _role(obj: Object) -> None:
    obj.setdefault("rules", None)


def _role_binding(obj: Object) -> None:
    group = "rbac.authorization.k8s.io"
    if "roleRef" in obj:
        obj["roleRef"].setdefault("apiGroup", group)
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", group)


def _storage_class(obj: Object) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj.setdefault("value", 0)


def _with_spec(obj: Object) -> None:
    obj.setdefault("spec", {})


def _with_spec_and_status(obj: Object) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def _quota(obj: Object) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def _pod_template(obj: Object) -> None:
    _template(obj)


def _limit_range(obj: Object) -> None:
    for item in obj.setdefault("spec", {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        limits = {**(item.get("max") or {}), **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        for key, amounts in (("default", limits), ("defaultRequest", requests)):
            if amounts:
                item[key] = amounts


def _storage_driver(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    for key, value in (
        ("attachRequired", True),
        ("podInfoOnMount", False),
        ("storageCapacity", False),
        ("requiresRepublish", False),
        ("seLinuxMount", False),
        ("fsGroupPolicy", "ReadWriteOnceWithFSType"),
    ):
        spec.setdefault(key, value)
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


def _webhooks(obj: Object) -> None:
    for hook in obj.get("webhooks") or ():
        for key, value in (
            ("failurePolicy", "Fail"),
            ("matchPolicy", "Equivalent"),
            ("timeoutSeconds", 10),
        ):
            hook.setdefault(key, value)
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        service = (hook.get("clientConfig") or {}).get("service")
        if service is not None:
            service.setdefault("port", 443)


def _mutating_webhooks(obj: Object) -> None:
    _webhooks(obj)
    for hook in obj.get("webhooks") or ():
        hook.setdefault("reinvocationPolicy", "Never")


def _flow_schema(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("matchingPrecedence", 1000)
    obj.setdefault("status", {})


def _api_service(obj: Object) -> None:
    service = obj.setdefault("spec", {}).get("service")
    if service is not None:
        service.setdefault("port", 443)
    obj.setdefault("status", {})


def _definition(obj: Object) -> None:
    default_definition(obj)


DEFAULTS: dict[str, Callable[[Object], None]] = {
    "pods": _pod,
    "podtemplates": _pod_template,
    "apps/deployments": _deployment,
    "apps/daemonsets": _daemon_set,
    "apps/statefulsets": _stateful_set,
    "apps/replicasets": _replica_set,
    "replicationcontrollers": _replication_controller,
    "batch/jobs": _job,
    "batch/cronjobs": _cron_job,
    "services": _service,
    "endpoints": _endpoints,
    "discovery.k8s.io/endpointslices": _endpoint_slice,
    "secrets": _secret,
    "namespaces": _namespace,
    "nodes": _node,
    "persistentvolumeclaims": _volume_claim,
    "persistentvolumes": _persistent_volume,
    "networking.k8s.io/ingresses": _ingress,
    "networking.k8s.io/networkpolicies": _network_policy,
    "autoscaling/horizontalpodautoscalers": _autoscaler,
    "policy/poddisruptionbudgets": _disruption_budget,
    "rbac.authorization.k8s.io/roles": _role,
    "rbac.authorization.k8s.io/clusterroles": _role,
    "rbac.authorization.k8s.io/rolebindings": _role_binding,
    "rbac.authorization.k8s.io/clusterrolebindings": _role_binding,
    "storage.k8s.io/storageclasses": _storage_class,
    "storage.k8s.io/csidrivers": _storage_driver,
    "scheduling.k8s.io/priorityclasses": _priority_class,
    "coordination.k8s.io/leases": _with_spec,
    "resourcequotas": _quota,
    "limitranges": _limit_range,
    "apiextensions.k8s.io/customresourcedefinitions": _definition,
    "certificates.k8s.io/certificatesigningrequests": _with_spec_and_status,
    "admissionregistration.k8s.io/validatingwebhookconfigurations": _webhooks,
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": _mutating_webhooks,
    "apiregistration.k8s.io/apiservices": _api_service,
    "flowcontrol.apiserver.k8s.io/flowschemas": _flow_schema,
}


def apply_defaults(storage: str, group: str, obj: Object) -> None:
    """Fill in the defaults of a built-in kind.

    Args:
        storage: the resource's storage key.
        group: the group of the request, since events have two forms under one key.
        obj: changed in place; has metadata.
    """
    if storage == "events":
        if group:
            _new_event(obj)
        else:
            _event(obj)
        return
    function = DEFAULTS.get(storage)
    if function is not None:
        function(obj)
