"""All kinds, and lookups in their differences."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from listwatch.apiserver.kinds.kind import Kind, Object
from listwatch.apiserver.kinds.resources import APIResource

#: The kinds with any differences, by group and plural name, by module of this package. A server
#: needs few of the modules at its start, so each is loaded when one of its kinds is used.
FAMILIES: Mapping[str, str] = {
    "admission_policies": """
        admissionregistration.k8s.io/mutatingadmissionpolicies
        admissionregistration.k8s.io/mutatingadmissionpolicybindings
        admissionregistration.k8s.io/validatingadmissionpolicies
        admissionregistration.k8s.io/validatingadmissionpolicybindings
    """,
    "admission_registration": """
        admissionregistration.k8s.io/mutatingwebhookconfigurations
        admissionregistration.k8s.io/validatingwebhookconfigurations
    """,
    "autoscaling": "autoscaling/horizontalpodautoscalers",
    "certificates": "certificates.k8s.io/certificatesigningrequests",
    "configuration": "configmaps secrets serviceaccounts",
    "definitions": "apiextensions.k8s.io/customresourcedefinitions",
    "events": "events events.k8s.io/events",
    "jobs": "batch/cronjobs batch/jobs",
    "namespaces": "limitranges namespaces resourcequotas",
    "networking": """
        networking.k8s.io/ingressclasses networking.k8s.io/ingresses networking.k8s.io/ipaddresses
        networking.k8s.io/networkpolicies networking.k8s.io/servicecidrs
    """,
    "nodes": "coordination.k8s.io/leases node.k8s.io/runtimeclasses nodes",
    "pods": "pods",
    "rbac": """
        rbac.authorization.k8s.io/clusterrolebindings rbac.authorization.k8s.io/clusterroles
        rbac.authorization.k8s.io/rolebindings rbac.authorization.k8s.io/roles
    """,
    "scheduling": """
        policy/poddisruptionbudgets resource.k8s.io/deviceclasses resource.k8s.io/resourceclaims
        resource.k8s.io/resourceclaimtemplates resource.k8s.io/resourceslices
        scheduling.k8s.io/priorityclasses
    """,
    "server_management": """
        apiregistration.k8s.io/apiservices componentstatuses
        flowcontrol.apiserver.k8s.io/flowschemas
        flowcontrol.apiserver.k8s.io/prioritylevelconfigurations
    """,
    "services": "discovery.k8s.io/endpointslices endpoints services",
    "volumes": """
        persistentvolumeclaims persistentvolumes storage.k8s.io/csidrivers storage.k8s.io/csinodes
        storage.k8s.io/csistoragecapacities storage.k8s.io/storageclasses
        storage.k8s.io/volumeattachments storage.k8s.io/volumeattributesclasses
    """,
    "workloads": """
        apps/controllerrevisions apps/daemonsets apps/deployments apps/replicasets
        apps/statefulsets podtemplates replicationcontrollers
    """,
}
_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names.split()}
_CUSTOM = Kind(generation=True, unconditional_update=False)
_PLAIN = Kind()


@cache
def built_in(name: str) -> Kind:
    """Return the built-in kind of a group and plural name, such as `pods` or `apps/deployments`."""
    family = _FAMILY_OF.get(name)
    if family is None:
        return _PLAIN
    kinds: Mapping[str, Kind] = import_module(f"{__package__}.{family}").KINDS
    return kinds[name]


def kind_of(resource: APIResource) -> Kind:
    """Return the kind of a resource; all custom resources share one."""
    if resource.custom is not None:
        return _CUSTOM
    group = resource.group
    return built_in(f"{group}/{resource.name}" if group else resource.name)


def has_expressions(resource: APIResource) -> bool:
    """Return whether a write may compile or evaluate long expressions of the object's kind."""
    if resource.custom is not None:
        return resource.custom["rules"] is not None
    return kind_of(resource).compiles


def apply_defaults(resource: APIResource, obj: Object) -> None:
    """Set the defaults of a built-in kind.

    Args:
        resource: the object's, in the version that a client sent.
        obj: changed in place; has metadata.
    """
    fill = kind_of(resource).defaults
    if fill is not None:
        fill(obj)


def spec_changed(resource: APIResource, new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return whether an update increments the generation.

    A change of the spec does. Without a spec, any change except of metadata and status does.

    A Deployment's generation also changes with its annotations (`registry/apps/deployment`), an
    EndpointSlice's with its labels (`registry/discovery/endpointslice`).
    """
    metadata, before = new["metadata"], old["metadata"]
    if any(metadata.get(key) != before.get(key) for key in kind_of(resource).generation_with):
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


def selectable_fields(resource: APIResource, obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the values for field selectors on this resource."""
    custom = resource.custom
    if custom is not None:
        paths = custom.get("selectable") or ()
        return {path: _text(_at(obj, path), "") for path in paths} if paths else {}
    found = kind_of(resource).fields
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


def supported_fields(resource: APIResource) -> dict[str, str]:
    """Return the names of all field selectors on this resource, with their stored names."""
    names = ["metadata.name"]
    if resource.namespaced or resource.custom is None:
        names.append("metadata.namespace")
    if resource.custom is not None:
        names += resource.custom.get("selectable") or ()
    else:
        kind = kind_of(resource)
        if kind.field_names:
            return {**{name: name for name in names}, **kind.field_names}
        names += kind.fields
    return {name: name for name in names}
