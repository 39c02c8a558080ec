"""Custom resources: what a definition serves, and the schemas of its objects."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from listwatch.apiserver.kinds.custom_columns import columns_of
from listwatch.apiserver.kinds.resources import ALL_VERBS, APIResource, Subresource
from listwatch.apiserver.kinds.rules import validate_labels
from listwatch.schema.causes import Cause
from listwatch.schema.structural import MISSING, build_root, embedded, validate

if TYPE_CHECKING:
    from listwatch.cel import Rules

Object = dict[str, Any]


def schema_causes(
    resource: APIResource,
    obj: Mapping[str, Any],
    old: Mapping[str, Any] | None = None,
    *,
    status_only: bool = False,
) -> list[Cause]:
    """Return a custom object's violations of its schema, except those of CEL rules.

    Args:
        resource: the object's.
        obj: the whole object.
        old: the previous state; violations in unchanged parts are tolerated.
        status_only: only its status is written.
    """
    assert resource.custom is not None  # noqa: S101 - called for custom resources only
    raw = resource.custom["raw"]
    if not raw:
        return []
    if status_only:
        part = (raw.get("properties") or {}).get("status")
        if part is None or "status" not in obj:
            return []
        before = MISSING if old is None else old.get("status", MISSING)
        return validate(obj["status"], part, "status", "", before)
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
    return causes


class SchemaRules:
    """The rules of a schema, compiled when first used: that takes seconds if they are long."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self._compiled: Rules | None = None

    @property
    def are_compiled(self) -> bool:
        """Whether they have been compiled."""
        return self._compiled is not None

    def compiled(self) -> "Rules":
        """Return the compiled rules. Any thread may call this.

        Raises:
            CompilationError: a rule does not compile.
            InstantiationError: a rule has a constant that always fails.
        """
        if self._compiled is None:
            from listwatch.cel import Rules  # noqa: PLC0415 - a parser, seldom needed

            self._compiled = Rules(self._raw)
        return self._compiled


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
            "rules": SchemaRules(raw) if has_rules(raw) else None,
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
