"""Converts a JSON schema to a structural schema, as custom resource definitions need.

The rules are those of apiextensions-apiserver (`pkg/apiserver/schema`). Errors name the field and
what to write instead.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, Final

from listwatch.resources.errors import ResourceTypeError
from listwatch.resources.json_schema import READY, Node, referred
from listwatch.schema.structural import apply_schema_defaults, build

_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_EITHER: Final = "x-kubernetes-int-or-string"

# Keywords with the same meaning in structural schemas and JSON schema.
_KEPT: Final = frozenset(
    {
        "default",
        "description",
        "enum",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "nullable",
        "pattern",
        "required",
    }
)
# Descriptive keywords, which structural schemas lack.
_DROPPED: Final = frozenset(
    {
        "$comment",
        "contentEncoding",
        "contentMediaType",
        "deprecated",
        "discriminator",
        "example",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
# Keywords handled by name below.
_READ: Final = frozenset(
    {
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "oneOf",
        "prefixItems",
        "properties",
        "type",
        "uniqueItems",
        READY,
    }
)
# Formats that a server checks (apiextensions-apiserver, `pkg/apiserver/validation/formats.go`).
_FORMATS: Final = frozenset(
    {
        "bsonobjectid",
        "byte",
        "cidr",
        "creditcard",
        "date",
        "date-time",
        "datetime",
        "double",
        "duration",
        "email",
        "float",
        "hexcolor",
        "hostname",
        "int32",
        "int64",
        "ipv4",
        "ipv6",
        "isbn",
        "isbn10",
        "isbn13",
        "mac",
        "password",
        "rgbcolor",
        "ssn",
        "uri",
        "uuid",
        "uuid3",
        "uuid4",
        "uuid5",
    }
)
_INSTEAD: Final = {
    "not": "a Rule",
    "if": "a Rule",
    "dependentRequired": "a Rule",
    "dependentSchemas": "a Rule",
    "contains": "a Rule",
    "patternProperties": "a dict without a pattern, and a Rule about its keys",
    "propertyNames": "dict[str, T], and a Rule such as self.all(key, key.matches('…'))",
}


class _Scope:
    """The position of a node: the type, the path of fields, and the enclosing classes."""

    def __init__(self, where: str, definitions: Mapping[str, Node], above: tuple[str, ...]) -> None:
        self.where = where
        self.definitions = definitions
        self.above = above

    def at(self, part: str) -> "_Scope":
        return _Scope(f"{self.where}{part}", self.definitions, self.above)

    def inside(self, name: str) -> "_Scope":
        if name in self.above:
            raise self.refused(
                "contains itself, but the schema of a definition can't be recursive: "
                "write AnyObject for the inner one"
            )
        return _Scope(self.where, self.definitions, (*self.above, name))

    def refused(self, why: str) -> ResourceTypeError:
        return ResourceTypeError(f"{self.where}: {why}")


def structural_schema(node: Node, definitions: Mapping[str, Node], where: str) -> Node:
    """Return the structural schema of a JSON schema.

    Args:
        node: the JSON schema, with its markers applied.
        definitions: the schemas it refers to, by name.
        where: name of the type, for errors.

    Raises:
        ResourceTypeError: a structural schema can't express it.
    """
    return _structural(node, _Scope(where, definitions, ()))


def _structural(node: Any, scope: _Scope) -> Node:
    if node is True or node == {}:
        return {_PRESERVE: True}
    if not isinstance(node, dict):
        raise scope.refused("takes no value at all: give it a type")
    if node.get(READY):
        return {key: value for key, value in node.items() if key != READY}
    target = referred(node, scope.definitions)
    if target is not None:
        inner = scope.inside(node["$ref"])
        own = {key: value for key, value in node.items() if key != "$ref"}
        return _structural(_merged(target, own), inner)
    if "allOf" in node and len(node["allOf"]) == 1:
        own = {key: value for key, value in node.items() if key != "allOf"}
        return _structural(_merged(node["allOf"][0], own), scope)
    for key in node:
        if key in _KEPT or key in _DROPPED or key in _READ or key.startswith("x-"):
            continue
        instead = _INSTEAD.get(key, "a plain type, and a Rule for the rest")
        raise scope.refused(f"{key!r} can't be expressed in a definition: write {instead}")
    made = {key: value for key, value in node.items() if key in _KEPT or key.startswith("x-kub")}
    if made.get("default", 0) is None:
        del made["default"]
    _check_numbers(made, scope)
    choices = node.get("anyOf") or node.get("oneOf")
    if choices is not None:
        return _choice(choices, made, scope)
    return _typed(node, made, scope)


def _merged(base: Node, own: Node) -> Node:
    merged = {**base, **own}
    rules = "x-kubernetes-validations"
    if rules in base and rules in own:
        merged[rules] = [*base[rules], *own[rules]]
    return merged


def _choice(choices: list[Node], made: Node, scope: _Scope) -> Node:
    rest = [one for one in choices if one.get("type") != "null"]
    if len(rest) < len(choices):
        made["nullable"] = True
    if len(rest) == 1:
        return {**_structural(rest[0], scope), **made}
    flat = [_structural(one, scope) for one in rest]
    kinds = {one.get("type") for one in flat}
    if kinds == {"integer", "string"} and all(set(one) <= {"type", "format"} for one in flat):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}], _EITHER: True, **made}
    if len(kinds) == 1 and all("enum" in one for one in flat):
        values = [value for one in flat for value in one["enum"]]
        return {"type": flat[0]["type"], **made, "enum": list(dict.fromkeys(values))}
    if kinds == {"integer", "number"} and all(set(one) <= {"type"} for one in flat):
        return {"type": "number", **made}
    if any(one.get(_EITHER) for one in flat) and kinds <= {None, "integer", "string"}:
        return {"anyOf": [{"type": "integer"}, {"type": "string"}], _EITHER: True, **made}
    shown = " | ".join(
        str(kind or "any") for kind in dict.fromkeys(one.get("type") for one in flat)
    )
    raise scope.refused(
        f"a union ({shown}) can't be expressed in a definition: write int | str, one type with "
        "optional fields and a Rule, or AnyObject"
    )


def _typed(node: Node, made: Node, scope: _Scope) -> Node:
    kind = _kind(node, made, scope)
    if kind is None:
        return {_PRESERVE: True, **made}
    made = {"type": kind, **made}
    if kind in {"object", "array"}:
        whole = (_object if kind == "object" else _array)(node, made, scope)
        if "default" in whole:
            # A server checks a default as written, before it applies the defaults within.
            whole["default"] = copy.deepcopy(whole["default"])
            apply_schema_defaults(whole["default"], build(whole))
        return whole
    for bound in ("Minimum", "Maximum"):
        limit = node.get(f"exclusive{bound}")
        if limit is not None:
            made[bound.lower()] = limit
            made[f"exclusive{bound}"] = True
    return _string(node, made, scope) if kind == "string" else made


def _kind(node: Node, made: Node, scope: _Scope) -> str | None:
    kind = node.get("type")
    if isinstance(kind, list):
        rest = [one for one in kind if one != "null"]
        if len(rest) < len(kind):
            made["nullable"] = True
        if sorted(rest) == ["integer", "string"]:
            made |= {_EITHER: True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
            return None
        if len(rest) != 1:
            raise scope.refused("has several types: write one, or int | str")
        kind = rest[0]
    if "const" in node:
        made["enum"] = [node["const"]]
    values = made.get("enum")
    if values is not None:
        if None in values:
            made["nullable"] = True
            values = made["enum"] = [one for one in values if one is not None]
        kinds = {_kind_of(one) for one in values}
        if kind is None:
            if len(kinds) != 1:
                raise scope.refused(
                    "its values have several types: write values of one type, such as text"
                )
            kind = kinds.pop()
    if kind is None and not made.get(_EITHER) and set(made) & {"properties", "required"}:
        return "object"
    return kind if kind is None else str(kind)


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string"


def _object(node: Node, made: Node, scope: _Scope) -> Node:
    extra = node.get("additionalProperties")
    properties = node.get("properties")
    if properties:
        if isinstance(extra, dict):
            raise scope.refused(
                "has both named fields and additional ones of a type: move the additional ones to "
                "a field of type dict"
            )
        made["properties"] = {
            name: _structural(part, scope.at(f".{name}")) for name, part in properties.items()
        }
        if extra is True:
            made[_PRESERVE] = True
    elif isinstance(extra, dict) and extra:
        made["additionalProperties"] = _structural(extra, scope.at(".*"))
    elif properties is None or extra:
        made[_PRESERVE] = True
    if not made.get("required", True):
        del made["required"]
    return made


def _array(node: Node, made: Node, scope: _Scope) -> Node:
    if "prefixItems" in node:
        raise scope.refused(
            "a tuple of several types can't be expressed in a definition: write a type with fields"
        )
    made["items"] = items = _structural(node.get("items", True), scope.at("[*]"))
    kind = made.get("x-kubernetes-list-type")
    if node.get("uniqueItems") and kind is None:
        kind = made["x-kubernetes-list-type"] = "set"
    if kind == "set" and items.get("type") in {"array", "object"}:
        key = "list" if items["type"] == "array" else "map"
        items.setdefault(f"x-kubernetes-{key}-type", "atomic")
    if kind == "map":
        _check_keys(items, made["x-kubernetes-list-map-keys"], scope)
    return made


def _check_keys(items: Node, keys: list[str], scope: _Scope) -> None:
    fields = items.get("properties", {})
    for key in keys:
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise scope.refused(f"ListMap names {key!r}, which an item does not have ({known})")
        if key not in items.get("required", ()) and "default" not in fields[key]:
            raise scope.refused(
                f"ListMap needs {key!r} in every item: make it required, or give it a default"
            )


def _string(node: Node, made: Node, scope: _Scope) -> Node:
    form = node.get("format")
    if node.get("contentEncoding") == "base64":
        form = "byte"
    if form == "duration" and not node.get("x-go-duration"):
        raise scope.refused(
            "Kubernetes writes durations as Go does (1h30m), not as ISO 8601: "
            "write listwatch.resources.Duration"
        )
    if form in _FORMATS:
        made["format"] = form
    pattern = made.get("pattern")
    if pattern is not None:
        _check_pattern(pattern, scope)
    return made


def _check_numbers(made: Node, scope: _Scope) -> None:
    for key in ("default", "enum", "maximum", "minimum", "multipleOf"):
        if not _is_finite(made.get(key)):
            raise scope.refused(f"its {key} is not a finite number, and JSON has no other ones")


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _check_pattern(pattern: str, scope: _Scope) -> None:
    from listwatch.cel.errors import EvaluationError  # noqa: PLC0415 - seldom needed
    from listwatch.cel.patterns import compile_pattern  # noqa: PLC0415 - seldom needed

    try:
        compile_pattern(pattern)
    except EvaluationError as error:
        raise scope.refused(
            f"the pattern {pattern!r} is not RE2, which servers use: {error}"
        ) from error
