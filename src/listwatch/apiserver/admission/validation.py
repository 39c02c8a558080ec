"""The rules for metadata, and the lookup of each kind's own rules."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from listwatch.apiserver.admission.custom_rules import validate_custom
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.rules import (
    LABEL,
    LABEL_WORDS,
    validate_annotations,
    validate_labels,
)
from listwatch.apiserver.kinds.spelling import same_spelling
from listwatch.apiserver.kinds.statuses import status_causes
from listwatch.apiserver.webhooks.consultation import in_thread
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, required
from listwatch.schema.enumerations import unsupported_values
from listwatch.schema.facts import facts
from listwatch.selector import qualified_name_problems, subdomain_problems

Object = Mapping[str, Any]

#: Bytes of an object whose expressions are compiled in the event loop: some ten milliseconds.
LONG = 4_000

#: Groups whose fields accept only the values listed in the schema facts.
_ENUMERATED = frozenset(
    (
        "",
        "apps",
        "batch",
        "discovery.k8s.io",
        "networking.k8s.io",
        "policy",
        "scheduling.k8s.io",
        "storage.k8s.io",
    )
)
_STANDARD_FINALIZERS = frozenset(("kubernetes", "orphan", "foregroundDeletion"))


def label_problems(name: str) -> list[str]:
    """Return why a name is not an RFC 1123 label."""
    problems = []
    if len(name) > 63:
        problems.append("must be no more than 63 characters")
    if not LABEL.fullmatch(name):
        dots = "." in name and LABEL.fullmatch(name.replace(".", "-"))
        problems.append("must not contain dots" if dots else LABEL_WORDS)
    return problems


def path_segment_problems(name: str) -> list[str]:
    """Return why a name can't be part of a path."""
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{char}'" for char in "/%" if char in name]


_NAME_RULES: Mapping[str, Callable[[str], list[str]]] = {
    "subdomain": subdomain_problems,
    "label": label_problems,
    "path": path_segment_problems,
}


def validate_metadata(resource: APIResource, metadata: Object) -> list[Cause]:
    """Return the rules that the metadata of a new object violates."""
    causes: list[Cause] = []
    rule = _NAME_RULES[kind_of(resource).name_rule]
    prefix = metadata.get("generateName")
    if prefix:
        probe = prefix[:-2] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        causes += [invalid_value("metadata.generateName", prefix, why) for why in rule(probe)]
    name = metadata.get("name")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        causes += [invalid_value("metadata.name", name, why) for why in rule(name)]
    causes += _generation(metadata)
    causes += validate_labels(metadata.get("labels"), "metadata.labels")
    causes += validate_annotations(metadata.get("annotations"), "metadata.annotations")
    causes += _owners(metadata.get("ownerReferences"))
    causes += _finalizers(resource, metadata.get("finalizers"))
    return causes


def _generation(metadata: Object) -> list[Cause]:
    generation = metadata.get("generation")
    if isinstance(generation, int) and generation < 0:
        return [
            invalid_value("metadata.generation", generation, "must be greater than or equal to 0")
        ]
    return []


def _owners(references: list[Object] | None) -> list[Cause]:
    path = "metadata.ownerReferences"
    causes = []
    controllers: list[str] = []
    for reference in references or ():
        version = reference.get("apiVersion", "")
        if not version:
            causes.append(invalid_value(f"{path}.apiVersion", "", "version must not be empty"))
        causes += [
            invalid_value(f"{path}.{key}", "", "must not be empty")
            for key in ("kind", "name", "uid")
            if not reference.get(key)
        ]
        if reference.get("controller"):
            controllers.append(f"{reference.get('kind', '')}/{reference.get('name', '')}")
    if len(controllers) > 1:
        ordered = [
            {
                key: reference[key]
                for key in (
                    "apiVersion",
                    "kind",
                    "name",
                    "uid",
                    "controller",
                    "blockOwnerDeletion",
                )
                if key in reference
            }
            for reference in references or ()
        ]
        causes += [
            invalid_value(
                path,
                ordered,
                "Only one reference can have Controller set to true. Found "
                f'"true" in references for {controllers[0]} and {other}',
            )
            for other in controllers[1:]
        ]
    return causes


def _finalizers(resource: APIResource, finalizers: list[str] | None) -> list[Cause]:
    path = "metadata.finalizers"
    causes = []
    for finalizer in finalizers or ():
        causes += [
            invalid_value(path, finalizer, why) for why in qualified_name_problems(finalizer)
        ]
    found = set(finalizers or ())
    if {"orphan", "foregroundDeletion"} <= found:
        causes.append(
            invalid_value(
                path,
                list(finalizers or ()),
                "finalizer orphan and foregroundDeletion cannot be both set",
            )
        )
    if resource.custom is None and resource.group == "":
        causes += [
            invalid_value(
                f"{path}[{index}]",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            )
            for index, finalizer in enumerate(finalizers or ())
            if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS
        ]
    return causes


def validate_metadata_update(resource: APIResource, new: Object, old: Object) -> list[Cause]:
    """Return the rules that a change of metadata violates."""
    causes: list[Cause] = []
    if new.get("finalizers") != old.get("finalizers"):
        causes += _finalizers(resource, new.get("finalizers"))
    before = frozenset(old.get("finalizers") or ())
    added = [item for item in new.get("finalizers") or () if item not in before]
    if old.get("deletionTimestamp") and added:
        shown = ", ".join(f'"{item}"' for item in sorted(added))
        causes.append(
            forbidden_value(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers []string{{{shown}}}",
            )
        )
    for key in (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ):
        if new.get(key) != old.get(key):
            causes.append(invalid_value(f"metadata.{key}", new.get(key), "field is immutable"))
    # The server checks metadata once for every kind, and often again in a kind's own rules
    # (`ValidateObjectMetaUpdate`). Parts shared with new objects are checked as for a new one, too.
    kind = kind_of(resource)
    parts = validate_labels(new.get("labels"), "metadata.labels")
    parts += validate_annotations(new.get("annotations"), "metadata.annotations")
    parts += _owners(new.get("ownerReferences"))
    return causes * kind.checks_metadata + parts * (1 + kind.checks_metadata + kind.checks_whole)


def validate_create(resource: APIResource, obj: Object) -> list[Cause]:
    """Return the rules that a new object violates."""
    causes = validate_metadata(resource, obj["metadata"])
    causes += _own_rules(resource, obj)
    new_rule = kind_of(resource).new_rule
    return causes + new_rule(obj) if new_rule is not None else causes


def _own_rules(resource: APIResource, obj: Object) -> list[Cause]:
    if resource.custom is not None:
        return validate_custom(resource, obj)
    kind = kind_of(resource)
    rule = kind.rule
    if rule is None:
        causes = []
    elif kind.compiles and len(encoded := msgspec.json.encode(obj)) > LONG:
        causes = [*in_thread(("rule", resource.storage, encoded), partial(rule, obj))]
    else:
        causes = rule(obj)
    if resource.group in _ENUMERATED and resource.convert is None:
        name = facts().definition_name(resource.group, resource.version, resource.kind)
        if name is not None:
            causes += unsupported_values(obj, name)
    return causes


def validate_update(
    resource: APIResource,
    new: Object,
    old: Object,
    subresource: str = "",
    warnings: list[str] | None = None,
) -> list[Cause]:
    """Return the rules that a changed object violates; `warnings` receives older violations."""
    causes = validate_metadata_update(resource, new["metadata"], old["metadata"])
    if resource.custom is not None:
        return causes + validate_custom(
            resource, new, old, status_only=subresource == "status", warnings=warnings
        )
    if subresource == "status":
        return causes + status_causes(resource.storage, resource.schema, new, old)
    causes += [
        invalid_value(key, new.get(key), "field is immutable")
        for key in kind_of(resource).immutable
        if new.get(key) != old.get(key)
        or (key == kind_of(resource).spelled and not same_spelling(new, old, key))
    ]
    causes += _own_rules(resource, new)
    kind = kind_of(resource)
    # binding, resize and similar subresources write only fields that the main path must not change
    main = subresource in {"", "scale"}
    update_rule = kind.update_rule if main else kind.part_rules.get(subresource)
    if update_rule is not None:
        causes += update_rule(new, old)
    return causes
