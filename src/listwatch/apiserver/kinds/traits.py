"""How kinds differ from each other: names, generation, status, deletion, admission."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from listwatch.apiserver.kinds.definitions import admit_definition
from listwatch.apiserver.kinds.resources import Resource

Object = dict[str, Any]


class Traits(msgspec.Struct, frozen=True):
    """What the server does with one kind.

    Attributes:
        name_rule: "subdomain", "label", "dns1035" or "path" (any name without "/" and "%").
        generation: whether generation counts the changes of the spec.
        create_on_update: whether PUT makes a missing object.
        unconditional_update: whether PUT needs no resource version.
        returns_deleted: whether a delete answers with the object in place of a Status.
        orphan_by_default: whether deleting without a policy leaves the dependents.
        graceful: whether a deletion waits for the grace period.
        fields: the field selectors beyond metadata.name and metadata.namespace, with the path of
            each value and what stands for an absent one.
        immutable: top-level fields that an update may not change.
    """

    name_rule: str = "subdomain"
    generation: bool = False
    create_on_update: bool = False
    unconditional_update: bool = True
    returns_deleted: bool = False
    orphan_by_default: bool = False
    graceful: bool = False
    fields: Mapping[str, tuple[str, str]] = {}
    immutable: tuple[str, ...] = ()


def _paths(*names: str, **absent: str) -> dict[str, tuple[str, str]]:
    return {name: (name, absent.get(name.rpartition(".")[2], "")) for name in names}


_EVENT_FIELDS = {
    **_paths(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "type",
    ),
    "source": ("source.component", ""),
}

#: The names in events.k8s.io, with those of the core group (`pkg/apis/events/v1/conversion.go`).
_NEW_EVENT_FIELDS = {
    name.replace("involvedObject.", "regarding.").replace(
        "reportingComponent", "reportingController"
    ): name
    for name in _EVENT_FIELDS
    if name != "source"
}

_WORKLOAD = Traits(generation=True)
_RBAC = Traits(name_rule="path")

TRAITS: Mapping[str, Traits] = {
    "pods": Traits(
        generation=True,
        returns_deleted=True,
        graceful=True,
        fields=_paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
            hostNetwork="false",
        ),
    ),
    "nodes": Traits(fields=_paths("spec.unschedulable", unschedulable="false")),
    "namespaces": Traits(name_rule="label", fields=_paths("status.phase")),
    "secrets": Traits(fields=_paths("type")),
    "services": Traits(
        name_rule="label",
        create_on_update=True,
        returns_deleted=True,
        fields=_paths("spec.clusterIP", "spec.type"),
    ),
    "endpoints": Traits(create_on_update=True),
    "events": Traits(create_on_update=True, fields=_EVENT_FIELDS),
    "limitranges": Traits(create_on_update=True),
    "resourcequotas": Traits(returns_deleted=True),
    "serviceaccounts": Traits(returns_deleted=True),
    "persistentvolumes": Traits(returns_deleted=True),
    "persistentvolumeclaims": Traits(returns_deleted=True),
    "podtemplates": Traits(returns_deleted=True, generation=True),
    "replicationcontrollers": Traits(
        generation=True, orphan_by_default=True, fields=_paths("status.replicas", replicas="0")
    ),
    "apps/deployments": _WORKLOAD,
    "apps/daemonsets": _WORKLOAD,
    "apps/statefulsets": _WORKLOAD,
    "apps/replicasets": Traits(generation=True, fields=_paths("status.replicas", replicas="0")),
    "batch/jobs": Traits(
        generation=True,
        orphan_by_default=True,
        returns_deleted=False,
        fields=_paths("status.successful", successful="0"),
    ),
    "batch/cronjobs": _WORKLOAD,
    "networking.k8s.io/ingresses": _WORKLOAD,
    "networking.k8s.io/ingressclasses": _WORKLOAD,
    "networking.k8s.io/networkpolicies": _WORKLOAD,
    "policy/poddisruptionbudgets": Traits(generation=True, unconditional_update=False),
    "discovery.k8s.io/endpointslices": Traits(generation=True, immutable=("addressType",)),
    "coordination.k8s.io/leases": Traits(create_on_update=True, unconditional_update=False),
    "rbac.authorization.k8s.io/roles": Traits(name_rule="path", create_on_update=True),
    "rbac.authorization.k8s.io/clusterroles": Traits(name_rule="path", create_on_update=True),
    "rbac.authorization.k8s.io/rolebindings": Traits(name_rule="path", create_on_update=True),
    "rbac.authorization.k8s.io/clusterrolebindings": Traits(
        name_rule="path", create_on_update=True
    ),
    "apiextensions.k8s.io/customresourcedefinitions": Traits(
        generation=True, unconditional_update=False
    ),
    "apiregistration.k8s.io/apiservices": Traits(unconditional_update=False),
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": Traits(
        generation=True, unconditional_update=False
    ),
    "admissionregistration.k8s.io/validatingwebhookconfigurations": Traits(
        generation=True, unconditional_update=False
    ),
    "admissionregistration.k8s.io/validatingadmissionpolicies": Traits(
        generation=True, unconditional_update=False
    ),
    "admissionregistration.k8s.io/validatingadmissionpolicybindings": Traits(
        generation=True, unconditional_update=False
    ),
    "flowcontrol.apiserver.k8s.io/flowschemas": Traits(generation=True, unconditional_update=False),
    "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations": Traits(
        generation=True, unconditional_update=False
    ),
    "storage.k8s.io/csidrivers": Traits(unconditional_update=False),
    "storage.k8s.io/csinodes": Traits(unconditional_update=False),
    "storage.k8s.io/volumeattachments": Traits(unconditional_update=False),
    "scheduling.k8s.io/priorityclasses": Traits(generation=True, immutable=("preemptionPolicy",)),
    "node.k8s.io/runtimeclasses": Traits(immutable=("handler",)),
    "apps/controllerrevisions": Traits(immutable=("data",)),
    "certificates.k8s.io/certificatesigningrequests": Traits(fields=_paths("spec.signerName")),
}
_CUSTOM = Traits(generation=True, unconditional_update=False)
_PLAIN = Traits()


def traits_of(resource: Resource) -> Traits:
    """Return the traits of a resource; those of custom resources are all the same."""
    if resource.custom is not None:
        return _CUSTOM
    return TRAITS.get(resource.storage, _PLAIN)


def spec_changed(resource: Resource, new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Tell whether an update moves the generation: with the spec, or all but metadata and status.

    A Deployment's generation moves with its annotations too (`registry/apps/deployment`), an
    EndpointSlice's with its labels (`registry/discovery/endpointslice`).
    """
    metadata, before = new["metadata"], old["metadata"]
    if resource.storage == "apps/deployments" and metadata.get("annotations") != before.get(
        "annotations"
    ):
        return True
    if resource.storage == "discovery.k8s.io/endpointslices" and metadata.get(
        "labels"
    ) != before.get("labels"):
        return True
    if resource.custom is not None:
        skipped = {"metadata", "apiVersion", "kind"}
        if "status" in resource.subresources:
            skipped.add("status")
    elif "spec" in resource.schema.fields:
        return new.get("spec") != old.get("spec")
    else:
        skipped = {"metadata", "status", "apiVersion", "kind"}
    keys = (new.keys() | old.keys()) - skipped
    return any(new.get(key) != old.get(key) for key in keys)


def selectable_fields(resource: Resource, obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that field selectors on this resource can ask for."""
    custom = resource.custom
    if custom is not None:
        paths = custom.get("selectable") or ()
        return {path: _text(_at(obj, path), "") for path in paths} if paths else {}
    found = traits_of(resource).fields
    return {name: _text(_at(obj, path), absent) for name, (path, absent) in found.items()}


def _at(obj: Any, path: str) -> Any:
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _text(value: Any, absent: str) -> str:
    if value is None:
        return absent
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def supported_fields(resource: Resource) -> dict[str, str]:
    """Return the names of all field selectors on this resource, with those that are stored."""
    names = ["metadata.name"]
    if resource.namespaced or resource.custom is None:
        names.append("metadata.namespace")
    if resource.custom is not None:
        names += resource.custom.get("selectable") or ()
    elif resource.storage == "events" and resource.group:
        return {**{name: name for name in names}, **_NEW_EVENT_FIELDS}
    else:
        names += traits_of(resource).fields
    return {name: name for name in names}


_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _admit_pod(obj: Object) -> None:
    spec = obj["spec"]
    tolerations = spec.setdefault("tolerations", [])
    for key in _NOT_READY:
        tolerated = any(
            toleration.get("effect") in (None, "", "NoExecute")
            and toleration.get("key") in (None, "", key)
            for toleration in tolerations
        )
        if not tolerated:
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            )
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return a pod's quality of service class, from its containers' requests and limits."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    guaranteed = bool(containers)
    any_set = False
    for container in containers:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        any_set |= bool(requests or limits)
        for name in ("cpu", "memory"):
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _admit_node(obj: Object) -> None:
    taints = obj["spec"].setdefault("taints", [])
    if not any(taint.get("key") == "node.kubernetes.io/not-ready" for taint in taints):
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})


def _admit_namespace(obj: Object) -> None:
    finalizers = obj["spec"].setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def _admit_job(obj: Object) -> None:
    spec = obj["spec"]
    if spec.get("manualSelector"):
        return
    uid, name = obj["metadata"]["uid"], obj["metadata"].get("name", "")
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    template = spec["template"]["metadata"]
    template["labels"] = {**(template.get("labels") or {}), **labels}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


def _admit_claim(obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pvc-protection" not in finalizers:
        finalizers.append("kubernetes.io/pvc-protection")
    obj["status"] = {"phase": "Pending"}


def _admit_volume(obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pv-protection" not in finalizers:
        finalizers.append("kubernetes.io/pv-protection")
    now = obj["metadata"]["creationTimestamp"]
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}


def _admit_api_service(obj: Object) -> None:
    if (obj.get("spec") or {}).get("service") is None:
        obj["status"] = {
            "conditions": [
                {
                    "type": "Available",
                    "status": "True",
                    "lastTransitionTime": obj["metadata"]["creationTimestamp"],
                    "reason": "Local",
                    "message": "Local APIServices are always available",
                }
            ]
        }


def _admit_definition(obj: Object) -> None:
    admit_definition(obj)


#: What happens to a new object after its owners were noted: nobody owns what is added here.
ADMIT_CREATE: Mapping[str, Callable[[Object], None]] = {
    "pods": _admit_pod,
    "nodes": _admit_node,
    "namespaces": _admit_namespace,
    "batch/jobs": _admit_job,
    "persistentvolumeclaims": _admit_claim,
    "persistentvolumes": _admit_volume,
    "apiextensions.k8s.io/customresourcedefinitions": _admit_definition,
    "apiregistration.k8s.io/apiservices": _admit_api_service,
}

#: Kinds whose status a create keeps (`registry/core/node` and others don't reset it).
KEEPS_STATUS_ON_CREATE = frozenset(("nodes", "apiregistration.k8s.io/apiservices"))
