"""Converts a structural schema to a type, with bounds on the size of its values.

Rules: k8s.io/apiserver, pkg/cel/common/schemas.go. By these sizes an API server bounds the cost of
a rule before it has seen any object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from listwatch.cel.syntax import RESERVED_WORDS
from listwatch.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    Type,
    list_of,
    map_of,
    object_named,
)

LARGEST_REQUEST = 3 * 1024 * 1024

Schema = Mapping[str, object]

_RESERVED = RESERVED_WORDS | {"true", "false", "null", "in"}


def escape(name: str) -> str | None:
    """Return a property's name in expressions, or None if they can't reach it."""
    if not name or name[0].isdigit() or re.search(r"[^a-zA-Z0-9_./-]", name):
        return None
    if name in _RESERVED:
        return f"__{name}__"
    return re.sub(
        r"__|[-./]",
        lambda match: {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}[
            match[0]
        ],
        name,
    )


@dataclass(frozen=True, slots=True)
class SchemaType:
    """A type with the size bounds of its schema.

    `most` is the maximum number of elements or characters; `least_bytes` the shortest JSON. `names`
    maps the fields of an object, as expressions write them, to their JSON names.
    """

    type: Type
    least_bytes: int
    most: int = 0
    item: SchemaType | None = None
    key: SchemaType | None = None
    fields: Mapping[str, SchemaType] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    unordered: tuple[str, ...] | None = None
    format: str = ""


_NAME = SchemaType(STRING, 2, LARGEST_REQUEST - 2)
_METADATA_FIELDS = {"name": _NAME, "generateName": _NAME}


def schema_type(schema: Schema, name: str = "selfType", *, root: bool = False) -> SchemaType | None:
    """Return the type that a schema describes, or None if rules can't see it.

    `root` is true for a custom resource and for an embedded one: `apiVersion`, `kind`,
    `metadata.name` and `metadata.generateName` exist whether or not the schema has them.
    """
    if schema.get("x-kubernetes-int-or-string"):
        return SchemaType(DYN, 1, _longest_text(schema))
    kind = schema.get("type")
    if kind == "array":
        return _array(schema, name)
    if kind == "object" or root:
        return _object(schema, name, root=root)
    if kind == "string":
        return _text(schema)
    simple = {"boolean": (BOOL, 4), "number": (DOUBLE, 1), "integer": (INT, 1)}
    if kind in simple:
        found, least = simple[str(kind)]
        return SchemaType(found, least)
    return None


def _embedded(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-embedded-resource"))


def _array(schema: Schema, name: str) -> SchemaType | None:
    items = schema.get("items")
    if not isinstance(items, Mapping):
        return None
    item = schema_type(items, f"{name}.@idx", root=_embedded(items))
    if item is None:
        return None
    most = _count(schema, "maxItems")
    if most is None:
        most = (LARGEST_REQUEST - 2) // (item.least_bytes + 1)
    unordered: tuple[str, ...] | None = None
    if schema.get("x-kubernetes-list-type") == "set":
        unordered = ()
    elif schema.get("x-kubernetes-list-type") == "map":
        keys = schema.get("x-kubernetes-list-map-keys")
        unordered = tuple(map(str, keys)) if isinstance(keys, list) else ()
    return SchemaType(list_of(item.type), 2, most, item=item, unordered=unordered)


def _object(schema: Schema, name: str, *, root: bool) -> SchemaType | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        value = schema_type(additional, f"{name}.@elem", root=_embedded(additional))
        if value is None:
            return None
        most = _count(schema, "maxProperties")
        if most is None:
            most = (LARGEST_REQUEST - 2) // (value.least_bytes + 6)
        # The reference assumes empty keys: a pattern over unbounded keys passes.
        key = SchemaType(STRING, 2)
        return SchemaType(map_of(STRING, value.type), 2, most, item=value, key=key)
    found = schema.get("properties")
    properties = dict(found) if isinstance(found, Mapping) else {}
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    fields: dict[str, SchemaType] = {}
    names: dict[str, str] = {}
    least = 2
    for property_name, property_schema in properties.items():
        if not isinstance(property_schema, Mapping):
            continue
        one = schema_type(
            property_schema, f"{name}.{property_name}", root=_embedded(property_schema)
        )
        if one is None:
            continue
        escaped = escape(property_name)
        if escaped is not None:
            fields[escaped] = one
            names[escaped] = property_name
            if property_name in _RESERVED:
                # Since 1.31 a reserved word may also follow the dot unescaped.
                fields[property_name] = one
                names[property_name] = property_name
        if property_name in needed and property_schema.get("default") is None:
            least += len(property_name) + one.least_bytes + 4
    if root:
        metadata = fields.get("metadata")
        inner = {**_METADATA_FIELDS, **(metadata.fields if metadata is not None else {})}
        inner_names = {one: one for one in _METADATA_FIELDS}
        inner_names |= metadata.names if metadata is not None else {}
        fields |= {"apiVersion": _NAME, "kind": _NAME}
        fields["metadata"] = SchemaType(
            object_named(f"{name}.metadata"), 2, fields=inner, names=inner_names
        )
        names |= {"apiVersion": "apiVersion", "kind": "kind", "metadata": "metadata"}
    return SchemaType(object_named(name), least, fields=fields, names=names)


def _text(schema: Schema) -> SchemaType:
    match schema.get("format"):
        case "byte":
            most = _count(schema, "maxLength")
            return SchemaType(
                BYTES, 2, LARGEST_REQUEST - 2 if most is None else most, format="byte"
            )
        case "duration":
            return SchemaType(DURATION, 3, 32, format="duration")
        case "date":
            return SchemaType(TIMESTAMP, 12, 12, format="date")
        case "date-time":
            return SchemaType(TIMESTAMP, 21, 32, format="date-time")
    values = schema.get("enum")
    if schema.get("maxLength") is None and isinstance(values, list) and values:
        longest = max((len(str(v).encode()) for v in values if isinstance(v, str)), default=0)
        return SchemaType(STRING, 2, longest)
    return SchemaType(STRING, 2, _longest_text(schema))


def _longest_text(schema: Schema) -> int:
    most = _count(schema, "maxLength")
    # The schema counts characters, but requests are bounded in bytes: at most four per character.
    return LARGEST_REQUEST - 2 if most is None else most * 4


def _count(schema: Schema, name: str) -> int | None:
    value = schema.get(name)
    if isinstance(value, int | float):
        return max(0, int(value))
    return None


def object_types(root: SchemaType) -> dict[str, Mapping[str, Type]]:
    """Return the fields of every object in a type, by object type name."""
    found: dict[str, Mapping[str, Type]] = {}
    stack = [root]
    while stack:
        one = stack.pop()
        if one.type.kind == "object":
            found[one.type.name] = {name: inner.type for name, inner in one.fields.items()}
        stack.extend(one.fields.values())
        if one.item is not None:
            stack.append(one.item)
    return found
