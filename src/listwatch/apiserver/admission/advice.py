"""Warnings to a client about a write that succeeds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from listwatch.apiserver.admission.pod_advice import (
    GONE_VOLUMES,
    claim_advice,
    fractions,
    node_term,
    pod_advice,
)
from listwatch.apiserver.admission.validation import label_problems
from listwatch.apiserver.kinds.definition_structure import inner, junctions, named
from listwatch.apiserver.kinds.resources import APIResource

Object = dict[str, Any]
View = Mapping[str, Any]

#: Path of the pod spec in kinds that create pods, by storage key.
_POD_SPECS: Mapping[str, str] = {
    "pods": "spec",
    "podtemplates": "template.spec",
    "replicationcontrollers": "spec.template.spec",
    "apps/daemonsets": "spec.template.spec",
    "apps/deployments": "spec.template.spec",
    "apps/replicasets": "spec.template.spec",
    "apps/statefulsets": "spec.template.spec",
    "batch/cronjobs": "spec.jobTemplate.spec.template.spec",
    "batch/jobs": "spec.template.spec",
}
_OWNERS = (
    ".metadata.ownerReferences contains duplicate entries{}; API server dedups owner references in "
    "1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate "
    "UID(s) observed: {}"
)

#: The formats that a server checks, by type; without dashes, which a server ignores
#: (`apiextensions-apiserver/pkg/apiserver/validation/formats.go`).
_FORMATS: Mapping[str, frozenset[str]] = {
    "integer": frozenset(("int32", "int64")),
    "number": frozenset(("float", "double")),
    "string": frozenset(
        (
            "bsonobjectid",
            "uri",
            "email",
            "hostname",
            "ipv4",
            "ipv6",
            "cidr",
            "mac",
            "uuid",
            "uuid3",
            "uuid4",
            "uuid5",
            "isbn",
            "isbn10",
            "isbn13",
            "creditcard",
            "ssn",
            "hexcolor",
            "rgbcolor",
            "byte",
            "password",
            "date",
            "duration",
            "datetime",
            "k8sshortname",
            "k8slongname",
        )
    ),
}


def single_owners(obj: Object, warnings: list[str] | None, *, patched: bool = False) -> None:
    """Remove repeated owners of an object, in place, like `dedupOwnerReferences` in apiserver.

    Args:
        obj: a new or changed object, with metadata.
        warnings: receives a warning about repeated owners.
        patched: the object is the result of a patch, for which the warning differs.
    """
    references = obj["metadata"].get("ownerReferences") or ()
    kept: list[Any] = []
    again = []
    for reference in references:
        if reference in kept:
            again.append(reference.get("uid", ""))
        else:
            kept.append(reference)
    if not again:
        return
    obj["metadata"]["ownerReferences"] = kept
    if warnings is not None:
        when = " after mutating admission happens" if patched else ""
        warnings.append(_OWNERS.format(when, ", ".join(again)))


def advice(resource: APIResource, new: View, old: View | None) -> Iterator[str]:
    """Yield the warnings for a client that writes a valid object.

    Args:
        resource: the object's.
        new: the object as it will be stored.
        old: the previous state; None for a new object.
    """
    if resource.custom is not None:
        yield from _bare_finalizers(new, old)
    elif resource.storage == "apiextensions.k8s.io/customresourcedefinitions":
        before = frozenset(() if old is None else _definition(old))
        yield from (each for each in sorted(set(_definition(new))) if each not in before)
    if old is None and resource.storage in _HOSTS:
        yield from _host(new["metadata"].get("name", ""), _HOSTS[resource.storage])
    path = _POD_SPECS.get(resource.storage)
    if path is not None:
        if old is None or resource.storage == "podtemplates":
            changed = True
        else:
            # programs change pods often: nobody would read the warnings
            changed = resource.storage != "pods" and (
                new["metadata"].get("generation") != old["metadata"].get("generation")
            )
        if changed:
            above = path.removesuffix("spec").removesuffix(".")
            metadata = (_at(new, above) if above else new).get("metadata") or {}
            yield from pod_advice(_at(new, path), metadata, path)
        if resource.storage == "apps/statefulsets" and changed:
            yield from _stateful_set(new.get("spec") or {})
        return
    own = _OF_KINDS.get(resource.storage)
    if own is not None:
        yield from own(new, old)


def _at(obj: View, path: str) -> View:
    for key in path.split("."):
        obj = obj.get(key) or {}
    return obj


def pod_spec_of(resource: APIResource, obj: View) -> tuple[View, View] | None:
    """Return the pod spec from which a kind creates pods, and its metadata; None for others."""
    path = None if resource.custom is not None else _POD_SPECS.get(resource.storage)
    if path is None:
        return None
    template = _at(obj, path.removesuffix(".spec")) if path != "spec" else obj
    return template.get("spec") or {}, template.get("metadata") or {}


def _bare_finalizers(new: View, old: View | None) -> Iterator[str]:
    before = () if old is None else old["metadata"].get("finalizers") or ()
    for name in new["metadata"].get("finalizers") or ():
        if name not in before and "/" not in name and name not in {"orphan", "foregroundDeletion"}:
            yield (
                f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to avoid '
                "accidental conflicts with other finalizer writers"
            )


def _definition(definition: View) -> Iterator[str]:
    for version in (definition.get("spec") or {}).get("versions") or ():
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is not None:
            yield from _schema(schema)


def _schema(schema: View) -> Iterator[str]:
    """Yield the warnings about parts of a schema without effect, or not supported everywhere."""
    form, items = schema.get("format"), inner(schema, "items")
    known = _FORMATS.get(schema.get("type") or "string", frozenset())
    if form and form.replace("-", "") not in known:
        yield f'unrecognized format "{form}"'
    if items is not None:
        kind = items.get("type")
        if schema.get("x-kubernetes-list-type") == "set" and kind in {"object", "array"}:
            yield (
                f'x-kubernetes-list-type: set for items of type "{kind}" is not supported by '
                "server-side apply or CEL validation rules"
            )
        yield from _schema(items)
    extra = inner(schema, "additionalProperties")
    if extra is not None:
        yield from _schema(extra)
    for _, part in (*named(schema), *junctions(schema)):
        yield from _schema(part)


def _service(new: View, _: View | None) -> Iterator[str]:
    spec, kind = new.get("spec") or {}, "ExternalName"
    if "service.kubernetes.io/topology-aware-hints" in (new["metadata"].get("annotations") or {}):
        yield (
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use "
            "service.kubernetes.io/topology-mode instead"
        )
    if spec.get("externalIPs"):
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if spec.get("clusterIP") == "None":
        for key in ("loadBalancerIP", "externalIPs"):
            if spec.get(key):
                yield f"spec.{key} is ignored for headless services"
        if spec.get("sessionAffinity") != "None":
            yield "spec.SessionAffinity is ignored for headless services"
    if spec.get("type") == kind and spec.get("externalIPs"):
        yield f'spec.externalIPs is ignored when spec.type is "{kind}"'
    if spec.get("type") != kind and spec.get("externalName"):
        yield f'spec.externalName is ignored when spec.type is not "{kind}"'
    if spec.get("trafficDistribution") == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


def _stateful_set(spec: View) -> Iterator[str]:
    for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
        yield from claim_advice(claim.get("spec") or {}, f"spec.volumeClaimTemplates[{index}]")
    if (spec.get("revisionHistoryLimit") or 0) < 0:
        yield (
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a "
            "value >= 0 is recommended"
        )


_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
_MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"


def _claim(new: View, _: View | None) -> Iterator[str]:
    if _STORAGE_CLASS in (new["metadata"].get("annotations") or {}):
        why = 'deprecated since v1.8; use "storageClassName" attribute instead'
        yield f"metadata.annotations[{_STORAGE_CLASS}]: {why}"
    yield from claim_advice(new.get("spec") or {}, "spec")


def _volume(new: View, _: View | None) -> Iterator[str]:
    spec, annotations = new.get("spec") or {}, new["metadata"].get("annotations") or {}
    for key, since, name in (
        (_STORAGE_CLASS, "v1.8", "storageClassName"),
        (_MOUNT_OPTIONS, "v1.31", "mountOptions"),
    ):
        if key in annotations:
            why = f'deprecated since {since}; use "{name}" attribute instead'
            yield f"metadata.annotations[{key}]: {why}"
    required = (spec.get("nodeAffinity") or {}).get("required") or {}
    for index, term in enumerate(required.get("nodeSelectorTerms") or ()):
        yield from node_term(term, f"spec.nodeAffinity.required.nodeSelectorTerms[{index}]")
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        yield (
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. "
            "Instead, the recommended approach is to use dynamic provisioning."
        )
    yield from (f"spec.{key}: {why}" for key, why in GONE_VOLUMES.items() if spec.get(key))
    yield from fractions(spec.get("capacity") or {}, "spec.capacity", ("storage",))


def _storage_class(new: View, _: View | None) -> Iterator[str]:
    for index, term in enumerate(new.get("allowedTopologies") or ()):
        yield from node_term(term, f"allowedTopologies[{index}]", "matchLabelExpressions")


_INGRESS_CLASS = "kubernetes.io/ingress.class"


def _ingress(new: View, old: View | None) -> Iterator[str]:
    noted = _INGRESS_CLASS in (new["metadata"].get("annotations") or {})
    if old is None and noted and (new.get("spec") or {}).get("ingressClassName") is None:
        yield (
            f"annotation \"{_INGRESS_CLASS}\" is deprecated, please use 'spec.ingressClassName' "
            "instead"
        )


_MOUNTABLE = "kubernetes.io/enforce-mountable-secrets"


def _service_account(new: View, old: View | None) -> Iterator[str]:
    now, before = (
        ((each or {}).get("metadata") or {}).get("annotations") or {} for each in (new, old)
    )
    if _MOUNTABLE in now and _MOUNTABLE not in before:
        yield (
            f"metadata.annotations[{_MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces "
            "to isolate access to mounted secrets"
        )


#: What the name of an object becomes, by storage key of kinds whose names end up as hostnames.
_HOSTS: Mapping[str, str] = {
    "pods": "the Pod's hostname",
    **dict.fromkeys(
        ("apps/deployments", "apps/replicasets", "batch/jobs", "batch/cronjobs"),
        "Pod names and hostnames",
    ),
    "replicationcontrollers": "Pod names and hostnames",
}


def _host(name: str, of: str) -> Iterator[str]:
    problems = label_problems(name)
    if problems:
        yield (
            f"metadata.name: this is used in {of}, which can result in surprising behavior; a DNS "
            f"label is recommended: [{' '.join(problems)}]"
        )


_OF_KINDS: Mapping[str, Callable[[View, View | None], Iterator[str]]] = {
    "services": _service,
    "persistentvolumeclaims": _claim,
    "persistentvolumes": _volume,
    "storage.k8s.io/storageclasses": _storage_class,
    "networking.k8s.io/ingresses": _ingress,
    "serviceaccounts": _service_account,
}
