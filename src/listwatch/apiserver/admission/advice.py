"""Warnings to a client about a write that succeeds."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from listwatch.apiserver.kinds.definition_structure import inner, junctions, named
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.rules import quantity

Object = dict[str, Any]
View = Mapping[str, Any]

#: Where kinds that create pods have a pod's spec, by storage key.
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
_TERMS = (
    ("requiredDuringSchedulingIgnoredDuringExecution", ""),
    ("preferredDuringSchedulingIgnoredDuringExecution", "podAffinityTerm"),
)

#: The formats that a schema's values are checked for, by type; without dashes, as they are compared
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
        patched: the object is the result of a patch, which is worded differently.
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
    path = _POD_SPECS.get(resource.storage)
    if path is not None:
        if old is None or resource.storage == "podtemplates":
            changed = True
        else:
            # pods change often, mostly by programs: nobody would read the warnings
            changed = resource.storage != "pods" and (
                new["metadata"].get("generation") != old["metadata"].get("generation")
            )
        if changed:
            yield from _pod_spec(_at(new, path), path)
    elif resource.storage == "services":
        yield from _service(new.get("spec") or {})


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
    """Yield the parts of a schema that have no effect, or not everywhere."""
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


def _service(spec: View) -> Iterator[str]:
    if spec.get("externalIPs"):
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if spec.get("trafficDistribution") == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


def _pod_spec(spec: View, path: str) -> Iterator[str]:
    """Yield what a pod will not do as its author may expect (`pkg/api/pod/warnings.go`)."""
    matching_none = "a null labelSelector results in matching no pod"
    for index, each in enumerate(spec.get("topologySpreadConstraints") or ()):
        if each.get("labelSelector") is None:
            yield f"{path}.topologySpreadConstraints[{index}].labelSelector: {matching_none}"
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = (spec.get("affinity") or {}).get(kind) or {}
        for name, within in _TERMS:
            for index, each in enumerate(rules.get(name) or ()):
                term = each.get(within) or {} if within else each
                if term.get("labelSelector") is None:
                    dot = f".{within}" if within else ""
                    yield (
                        f"{path}.affinity.{kind}.{name}[{index}]{dot}.labelSelector: "
                        f"{matching_none}"
                    )
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield from _fractions(container, f"{path}.{group}[{index}].resources")


def _fractions(container: View, path: str) -> Iterator[str]:
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        for name in ("memory", "ephemeral-storage"):
            amount = (resources.get(part) or {}).get(name)
            if amount is not None and Decimal(quantity(str(amount))) % 1:
                yield (
                    f'{path}.{part}[{name}]: fractional byte value "{amount}" is invalid, must be '
                    "an integer"
                )
