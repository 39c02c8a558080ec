"""What the schema and the scale path of a custom resource definition may not say.

The rules are those of `apiextensions-apiserver/pkg/apis/apiextensions/validation` and of structural
schemas (KEP-1111), but for the validation rules in CEL, which are not read, and patterns, of which
Python's `re` could refuse what a real server takes.
"""

from collections.abc import Mapping
from typing import Any

from listwatch.schema import structural
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required

Raw = Mapping[str, Any]

#: Deeper schemas are refused here, not by a real server: documents made of them would have no end
#: within Python's stack, and no client could be told of any other resource.
_LEVELS = 100
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LIST_TYPE = "x-kubernetes-list-type"
_LIST_KEYS = "x-kubernetes-list-map-keys"
_EMBEDDED = "x-kubernetes-embedded-resource"
_OPEN = "x-kubernetes-preserve-unknown-fields"


def schema_causes(raw: Raw, path: str) -> list[Cause]:
    """Return what is wrong with a schema and those within it."""
    # a schema within another is two objects further in, and may hold lists
    if _is_deeper(raw, 2 * _LEVELS + 2):
        return [forbidden_value(path, f"schemas may be nested {_LEVELS} levels deep")]
    return _causes(raw, path)


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in parts)


def _causes(raw: Raw, path: str) -> list[Cause]:
    causes = _own(raw, path)
    for key, part in (raw.get("properties") or {}).items():
        here = f"{path}.properties[{key}]"
        causes += _typed(part, here, "specified object fields")
        causes += _causes(part, here)
    items = raw.get("items")
    if isinstance(items, Mapping):
        causes += _typed(items, f"{path}.items", "specified array items")
        causes += _causes(items, f"{path}.items")
    extra = raw.get("additionalProperties")
    if isinstance(extra, Mapping):
        causes += _typed(extra, f"{path}.additionalProperties", "specified object fields")
        causes += _causes(extra, f"{path}.additionalProperties")
    return causes


def _typed(raw: Raw, path: str, where: str) -> list[Cause]:
    if raw.get("type") or raw.get("x-kubernetes-int-or-string") or raw.get(_OPEN):
        return []
    return [required(f"{path}.type", f"must not be empty for {where}")]


def _own(raw: Raw, path: str) -> list[Cause]:
    causes: list[Cause] = []
    kind = raw.get("type")
    if kind == "null":
        why = "type cannot be set to null, use nullable as an alternative"
        causes.append(forbidden_value(f"{path}.type", why))
    elif kind and kind not in _TYPES:
        causes.append(not_supported(f"{path}.type", kind, _TYPES))
    if raw.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        causes.append(forbidden_value(f"{path}.uniqueItems", why))
    if raw.get("$ref"):
        causes.append(forbidden_value(f"{path}.$ref", "$ref is not supported"))
    extra = raw.get("additionalProperties")
    if extra is False:
        why = "additionalProperties cannot be set to false"
        causes.append(forbidden_value(f"{path}.additionalProperties", why))
    if raw.get("properties") and (extra is False or isinstance(extra, Mapping)):
        why = "additionalProperties and properties are mutual exclusive"
        causes.append(forbidden_value(f"{path}.additionalProperties", why))
    items = raw.get("items")
    if isinstance(items, list):
        why = "items must be a schema object and not an array"
        causes.append(forbidden_value(f"{path}.items", why))
    elif kind == "array" and items is None:
        causes.append(required(f"{path}.items", "must be specified"))
    if raw.get(_EMBEDDED) and not raw.get(_OPEN) and not raw.get("properties"):
        why = f"must not be empty if {_EMBEDDED} is true without {_OPEN}"
        causes.append(required(f"{path}.properties", why))
    causes += _list(raw, path)
    if raw.get("default") is not None:
        where = f"{path}.default"
        causes += structural.validate(raw["default"], raw, where, where)
    return causes


def _list(raw: Raw, path: str) -> list[Cause]:
    causes: list[Cause] = []
    kind, keys = raw.get(_LIST_TYPE), raw.get(_LIST_KEYS) or ()
    if kind is not None and raw.get("type") != "array":
        why = f"must be array if {_LIST_TYPE} is specified"
        found = raw.get("type")
        where = f"{path}.type"
        causes.append(invalid_value(where, found, why) if found else required(where, why))
    if kind == "map" and not keys:
        why = f"must not be empty if {_LIST_TYPE} is map"
        causes.append(required(f"{path}.{_LIST_KEYS}", why))
    items = raw.get("items")
    if kind != "map" or not isinstance(items, Mapping):
        return causes
    properties, needed = items.get("properties") or {}, items.get("required") or ()
    for key in keys:
        if key in properties and key not in needed and properties[key].get("default") is None:
            why = (
                f"this property is in {_LIST_KEYS}, so it must have a default or be a required "
                "property"
            )
            causes.append(required(f"{path}.items.properties[{key}].default", why))
    return causes


def scale_causes(scale: Raw, path: str) -> list[Cause]:
    """Return what is wrong with the paths of a scale subresource."""
    causes: list[Cause] = []
    for key, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        found = scale.get(key, "")
        if not found:
            causes.append(required(f"{path}.{key}"))
        elif not found.startswith(f"{root}."):
            why = f"should be a json path under {root}"
            causes.append(invalid_value(f"{path}.{key}", found, why))
    found = scale.get("labelSelectorPath")
    if found and not found.startswith((".spec.", ".status.")):
        why = "should be a json path under either .spec or .status"
        causes.append(invalid_value(f"{path}.labelSelectorPath", found, why))
    return causes
