"""Custom resources: what a definition serves, and the rules for its objects."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from listwatch.apiserver.kinds.custom_columns import columns_of
from listwatch.apiserver.kinds.resources import ALL_VERBS, APIResource, Subresource
from listwatch.apiserver.kinds.rules import validate_labels
from listwatch.schema.causes import Cause, invalid_value
from listwatch.schema.structural import MISSING, build_root, embedded, validate

if TYPE_CHECKING:
    from listwatch.cel import Rules

Object = dict[str, Any]


def validate_custom(
    resource: APIResource,
    obj: Mapping[str, Any],
    old: Mapping[str, Any] | None = None,
    *,
    status_only: bool = False,
    warnings: list[str] | None = None,
) -> list[Cause]:
    """Return the rules of its schema that a custom object violates.

    Args:
        resource: the object's.
        obj: the whole object.
        old: the previous state; violations in unchanged parts are tolerated.
        status_only: only its status is written.
        warnings: receives violations in unchanged parts.
    """
    assert resource.custom is not None  # noqa: S101 - called for custom resources only
    kind = obj.get("kind")
    if kind is not None and kind != resource.kind:
        return [invalid_value("kind", kind, f"must be {resource.kind}")]
    raw = resource.custom["raw"]
    if not raw:
        return []
    if status_only:
        part = (raw.get("properties") or {}).get("status")
        causes = []
        if part is not None and "status" in obj:
            before = MISSING if old is None else old.get("status", MISSING)
            causes = validate(obj["status"], part, "status", "", before)
        return causes + _rule_causes(resource, obj, old, causes, warnings)
    value = {key: each for key, each in obj.items() if key not in {"metadata", "kind"}}
    # kind, apiVersion and metadata are checked by their own rules
    checked = {
        **raw,
        "required": [
            name
            for name in raw.get("required") or ()
            if name not in {"metadata", "kind", "apiVersion"}
        ],
    }
    causes = validate(value, checked, old=MISSING if old is None else old)
    for place, each in embedded(value, resource.schema):
        causes += validate_labels(each["metadata"].get("labels"), f"{place}.metadata.labels")
    return causes + _rule_causes(resource, obj, old, causes, warnings)


# With one of these errors, the object lacks the shape for which its rules were compiled.
_BLOCKING = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)
_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)


def _rule_causes(
    resource: APIResource,
    obj: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    causes: list[Cause],
    warnings: list[str] | None,
) -> list[Cause]:
    assert resource.custom is not None  # noqa: S101 - called for custom resources only
    rules = resource.custom["rules"]
    if rules is None:
        return []
    if any(cause.reason in _BLOCKING for cause in causes):
        return [invalid_value("<nil>", None, _NOT_CHECKED)]
    # The stored object lacks these fields, but rules at the root may read them.
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    result = rules.validate({**obj, **named}, None if old is None else {**old, **named})
    if warnings is not None:
        warnings += [f"{one.field}: {one.message}" for one in result.warnings]
    return [Cause(*one) for one in result.errors]


def rules_of(raw: Mapping[str, Any]) -> "Rules | None":
    """Return the compiled rules of a schema, or None if it has none."""
    if not has_rules(raw):
        return None
    from listwatch.cel import Rules  # noqa: PLC0415 - a parser, seldom needed

    return Rules(raw)


def has_rules(schema: object) -> bool:
    """Return whether a schema, or one within it, has rules."""
    if isinstance(schema, Mapping):
        return (
            bool(schema.get("x-kubernetes-validations"))
            or any(
                has_rules(schema.get(part)) for part in ("items", "additionalProperties", "allOf")
            )
            or any(map(has_rules, (schema.get("properties") or {}).values()))
        )
    return isinstance(schema, list) and any(map(has_rules, schema))


_DELETING_VERBS = frozenset(ALL_VERBS) - {"create"}


def resources_of(definition: Mapping[str, Any]) -> list[APIResource]:
    """Return the resources that a definition serves, one for each version."""
    spec, metadata = definition["spec"], definition["metadata"]
    names = spec["names"]
    deleting = bool(metadata.get("deletionTimestamp"))
    resources = []
    for version in spec.get("versions") or ():
        if not version.get("served"):
            continue
        raw = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        if spec.get("preserveUnknownFields"):
            raw = {**raw, "x-kubernetes-preserve-unknown-fields": True}
        subs = version.get("subresources") or {}
        parts = []
        for name in ("status", "scale"):
            if name in subs:
                scale = name == "scale"
                parts.append(
                    Subresource(
                        name,
                        "Scale" if scale else names["kind"],
                        "autoscaling" if scale else "",
                        "v1" if scale else "",
                        ("get", "patch", "update"),
                    )
                )
        columns, cells = columns_of(version)
        custom: Object = {
            "raw": raw,
            "rules": rules_of(raw),
            "columns": columns,
            "cells": cells,
            "scale": subs.get("scale"),
            "selectable": [
                each["jsonPath"].lstrip(".") for each in version.get("selectableFields") or ()
            ],
        }
        if version.get("deprecated"):
            custom["deprecation"] = version.get("deprecationWarning") or (
                f"{spec['group']}/{version['name']} {names['kind']} is deprecated"
            )
        resources.append(
            APIResource(
                spec["group"],
                version["name"],
                names["plural"],
                names["kind"],
                schema=build_root(raw),
                namespaced=spec.get("scope") == "Namespaced",
                list_kind=names.get("listKind", ""),
                singular=names.get("singular", ""),
                verbs=_DELETING_VERBS if deleting else ALL_VERBS,
                short_names=names.get("shortNames") or (),
                categories=names.get("categories") or (),
                subresources=parts,
                custom=custom,
            )
        )
    return resources
