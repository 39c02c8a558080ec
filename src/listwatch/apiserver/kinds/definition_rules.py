"""The rules for the schema and the scale path of a custom resource definition.

They are those of `apiextensions-apiserver/pkg/apis/apiextensions/validation`, and for defaults of
`pkg/apiserver/schema/defaulting`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from listwatch.apiserver.kinds.custom import has_rules
from listwatch.apiserver.kinds.definition_structure import (
    EMBEDDED,
    OPEN,
    UNSUPPORTED,
    can_be_structural,
    inner,
    junctions,
    named,
    structure_causes,
)
from listwatch.schema import structural
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)
from listwatch.schema.copying import copy_of

Raw = Mapping[str, Any]

#: Deeper schemas are refused here, but not by a real server: documents with them would exceed
#: Python's stack, and no client could discover any other resource.
_LEVELS = 100
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LIST_TYPE = "x-kubernetes-list-type"
_LIST_KEYS = "x-kubernetes-list-map-keys"
_MAP_TYPE = "x-kubernetes-map-type"
_META = frozenset(("metadata", "kind", "apiVersion"))


def schema_causes(raw: Raw, path: str) -> list[Cause]:
    """Return the violations of a schema and those within it, including rules and defaults."""
    # a nested schema is two objects deeper, and may contain lists
    if _is_deeper(raw, 2 * _LEVELS + 2):
        return [forbidden_value(path, f"schemas may be nested {_LEVELS} levels deep")]
    causes: list[Cause] = []
    if can_be_structural(raw):
        causes = structure_causes(raw, path) or list(_defaults(raw, path))
    sound = not causes
    if raw.get("nullable"):
        causes.append(forbidden_value(f"{path}.nullable", "nullable cannot be true at the root"))
    own = list(_causes(raw, path, root=True))
    if sound and not own and has_rules(raw):
        from listwatch.cel import rule_problems  # noqa: PLC0415 - as in custom.rules_of

        own = [Cause(*one) for one in rule_problems(raw, path)]
    return causes + own


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in parts)


def _causes(
    raw: Raw, path: str, *, root: bool = False, in_meta: bool = False, no_default: str = ""
) -> Iterator[Cause]:
    yield from _own(raw, path, no_default)
    if in_meta and raw.get(EMBEDDED):
        yield forbidden_value(f"{path}.{EMBEDDED}", "must not be used inside of resource meta")
    for name, part in named(raw):
        meta = (root or bool(raw.get(EMBEDDED))) and name in _META
        why = f"in top-level {name}" if root and meta else no_default
        where = f"{path}.properties[{name}]"
        yield from _causes(part, where, in_meta=in_meta or meta, no_default=why)
    items = inner(raw, "items")
    if items is not None:
        yield from _causes(items, f"{path}.items", in_meta=in_meta, no_default=no_default)
    extra = inner(raw, "additionalProperties")
    if extra is not None:
        why = "inside additionalProperties applying to object metadata" if in_meta else no_default
        where = f"{path}.additionalProperties"
        yield from _causes(extra, where, in_meta=in_meta, no_default=why)
    for key, part in junctions(raw):
        yield from _causes(part, f"{path}.{key}", in_meta=in_meta, no_default=no_default)


def _own(raw: Raw, path: str, no_default: str) -> Iterator[Cause]:
    kind = raw.get("type")
    if kind and kind not in _TYPES:
        yield not_supported(f"{path}.type", kind, _TYPES)
    if kind == "null":
        why = "type cannot be set to null, use nullable as an alternative"
        yield forbidden_value(f"{path}.type", why)
    if raw.get("default") is not None and no_default:
        yield forbidden_value(f"{path}.default", f"must not be set {no_default}")
    if raw.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden_value(f"{path}.uniqueItems", why)
    for key in UNSUPPORTED:
        if raw.get(key):
            yield forbidden_value(f"{path}.{key}", f"{key} is not supported")
    extra = raw.get("additionalProperties")
    if raw.get("properties") and (extra is False or isinstance(extra, Mapping)):
        why = "additionalProperties and properties are mutual exclusive"
        yield forbidden_value(f"{path}.additionalProperties", why)
    if isinstance(raw.get("items"), list):
        yield forbidden_value(f"{path}.items", "items must be a schema object and not an array")
    if raw.get(OPEN) is False:
        yield invalid_value(f"{path}.{OPEN}", False, "must be true or undefined")
    for key, of_type, allowed in (
        (_MAP_TYPE, "object", ("atomic", "granular")),
        (_LIST_TYPE, "array", ("atomic", "set", "map")),
    ):
        found = raw.get(key)
        if found is None:
            continue
        if kind != of_type:
            why = f"must be {of_type} if {key} is specified"
            where = f"{path}.type"
            yield invalid_value(where, kind, why) if kind else required(where, why)
        if found not in allowed:
            yield not_supported(f"{path}.{key}", found, allowed)
    yield from _list(raw, path)


def _list(raw: Raw, path: str) -> Iterator[Cause]:
    kind, keys = raw.get(_LIST_TYPE), raw.get(_LIST_KEYS) or ()
    items = inner(raw, "items")
    if keys and kind != "map":
        why = f"must be map if {_LIST_KEYS} is non-empty"
        where = f"{path}.{_LIST_TYPE}"
        yield invalid_value(where, kind, why) if kind else required(where, why)
    if kind in {"set", "map"} and items is not None and items.get("nullable"):
        why = f"cannot be nullable when {_LIST_TYPE} is {kind}"
        yield forbidden_value(f"{path}.items.nullable", why)
    if kind == "set" and raw.get("type") == "array" and items is not None:
        why = f"must be atomic as item of a list with {_LIST_TYPE}=set"
        if items.get("type") == "array" and (items.get(_LIST_TYPE) or "atomic") != "atomic":
            yield invalid_value(f"{path}.items.{_LIST_TYPE}", items[_LIST_TYPE], why)
        elif items.get("type") == "object" and items.get(_MAP_TYPE) != "atomic":
            yield invalid_value(f"{path}.items.{_MAP_TYPE}", items.get(_LIST_TYPE), why)
    if kind == "map":
        yield from _keyed_list(raw, path, keys)


def _keyed_list(raw: Raw, path: str, keys: Any) -> Iterator[Cause]:
    if not keys:
        why = f"must not be empty if {_LIST_TYPE} is map"
        yield required(f"{path}.{_LIST_KEYS}", why)
    items = inner(raw, "items")
    if items is None:
        yield required(f"{path}.items", f"must have a schema if {_LIST_TYPE} is map")
        return
    if items.get("type") != "object":
        why = f"must be object if parent array's {_LIST_TYPE} is map"
        yield invalid_value(f"{path}.items.type", items.get("type", ""), why)
    properties, needed = dict(named(items)), items.get("required") or ()
    for number, key in enumerate(keys):
        here = f"{path}.items.properties[{key}]"
        part = properties.get(key)
        if key in keys[:number]:
            why = "must not contain duplicate entries"
            yield invalid_value(f"{path}.{_LIST_KEYS}", keys, why)
        if part is None:
            if items.get("type") == "object":
                why = "entries must all be names of item properties"
                yield invalid_value(f"{path}.{_LIST_KEYS}", keys, why)
            continue
        if part.get("type") in {"array", "object"} and items.get("type") == "object":
            why = f"must be a scalar type if parent array's {_LIST_TYPE} is map"
            yield invalid_value(f"{here}.type", items["type"], why)
        told = f"this property is in {_LIST_KEYS}, so it"
        if key not in needed and part.get("default") is None:
            yield required(
                f"{here}.default", f"{told} must have a default or be a required property"
            )
        if part.get("nullable"):
            yield forbidden_value(f"{here}.nullable", f"{told} cannot be nullable")


def _defaults(raw: Raw, path: str, *, in_meta: bool = False) -> Iterator[Cause]:
    """Yield the violations of the defaults of a schema and those within it."""
    default = raw.get("default")
    if default is not None:
        yield from _default(raw, f"{path}.default", default, in_meta=in_meta)
    items = inner(raw, "items")
    if items is not None:
        yield from _defaults(items, f"{path}.items", in_meta=in_meta)
    for name, part in named(raw):
        meta = in_meta or (bool(raw.get(EMBEDDED)) and name in _META)
        yield from _defaults(part, f"{path}.properties[{name}]", in_meta=meta)


def _default(raw: Raw, path: str, default: Any, *, in_meta: bool) -> Iterator[Cause]:
    if not in_meta:
        problems: list[str] = []
        structural.prune(copy_of(default), structural.build(raw), "", problems)
        if problems:
            yield invalid_value(path, default, "must not have unknown fields")
    causes = structural.validate(default, raw, path, path)
    yield from causes
    if causes or not has_rules(raw):
        return
    from listwatch.cel import CompilationError, Rules  # noqa: PLC0415 - as in custom.rules_of

    # rules at the root use metadata, which a default does not have
    key = "default"
    try:
        rules = Rules({"type": "object", "properties": {key: raw}})
    except CompilationError:
        return  # reported when the rules themselves are checked
    # check the default as an unchanged and as a new value: rules may use the old value
    value = {key: default}
    for one in rules.validate(value, value).errors or rules.validate(value).errors:
        yield Cause(f"{path}{one.field.removeprefix(key)}", one.reason, one.message)


def scale_causes(scale: Raw, path: str) -> list[Cause]:
    """Return the violations of the paths of a scale subresource."""
    causes: list[Cause] = []
    for key, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        found = scale.get(key, "")
        if not found:
            causes.append(required(f"{path}.{key}"))
        elif problem := path_problem(found, f"{path}.{key}"):
            causes.append(problem)
        elif not found.startswith(f"{root}."):
            why = f"should be a json path under {root}"
            causes.append(invalid_value(f"{path}.{key}", found, why))
    found = scale.get("labelSelectorPath")
    if found and (problem := path_problem(found, f"{path}.labelSelectorPath")):
        causes.append(problem)
    elif found and not found.startswith((".spec.", ".status.")):
        why = "should be a json path under either .spec or .status"
        causes.append(invalid_value(f"{path}.labelSelectorPath", found, why))
    return causes


def path_problem(text: str, path: str) -> Cause | None:
    """Return why a text is not a simple JSON path."""
    if text.startswith("."):
        return None
    return invalid_value(path, text, "must be a simple json path starting with .")


_SELECTABLE = ("string", "boolean", "integer")


def selectable_causes(fields: Any, raw: Raw, path: str) -> Iterator[Cause]:
    """Yield the violations of selectable fields."""
    seen: set[str] = set()
    for index, each in enumerate(fields):
        where, text = f"{path}[{index}].jsonPath", each.get("jsonPath", "")
        if not text:
            yield required(where)
            continue
        names = text.split(".")
        found: Raw | None = raw
        for name in names[1:]:
            found = None if found is None else dict(named(found)).get(name)
        if names[0] or (found is None and names[1:2] != ["metadata"]):
            yield invalid_value(where, text, "is an invalid path: does not refer to a valid field")
            continue
        if names[1] == "metadata":
            yield invalid_value(where, text, "must not point to fields in metadata")
        if found is None or found.get("type") not in _SELECTABLE:
            why = (
                "must point to a field of type string, boolean or integer. Enum string fields and "
                "strings with formats are allowed."
            )
            yield invalid_value(where, text, why)
        if text in seen:
            yield duplicate(where, text)
        seen.add(text)
