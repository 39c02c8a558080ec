"""Sets of fields, such as those that an owner in `metadata.managedFields` has.

A set of fields is a tree of dicts in the form of FieldsV1, with one difference: a field that is
itself a member always has the mark "." (FieldsV1 omits the mark if nothing is below). The rules are
those of structured-merge-diff.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from listwatch.schema.facts import Form, Schema

Fields = dict[str, Any]

_MISSING: Any = object()
_MEMBER: Fields = {}
#: Fields of metadata that the server sets and nobody owns.
_UNOWNED_METADATA = frozenset(
    (
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "managedFields",
    )
)


_UNOWNED_MARKS = frozenset(f"f:{key}" for key in _UNOWNED_METADATA)
#: A tuple: comparing members of an Enum by identity is faster than hashing them.
_BRANCHES = (Form.STRUCT, Form.MAP, Form.ANY)
#: The keys of a set that has no fields below its own member.
_ALONE = frozenset((".",))


def _leaf() -> Fields:
    return {".": _MEMBER}


def key_of(item: Mapping[str, Any], schema: Schema, key: str) -> Any:
    """Return a key of an item of a keyed list, or its default; None without one."""
    value = item.get(key)
    if value is not None:
        return value
    item_schema = schema.item
    if item_schema is None:
        return None
    field = item_schema.fields.get(key)
    if field is not None and "default" in field.extra:
        return field.extra["default"]
    # an empty default means no key (`structured-merge-diff/typed/helpers.go`)
    return item_schema.defaults.get(key) or None


def item_key(item: Any, schema: Schema) -> str:
    """Return the key of an item of a set or keyed list, such as `k:{"name":"app"}`."""
    if schema.list_type == "set":
        return "v:" + _compact(item)
    if len(schema.map_keys) == 1:  # the common case
        (key,) = schema.map_keys
        value = key_of(item, schema, key)
        return "k:{}" if value is None else f'k:{{"{key}":{_compact(value)}}}'
    keys = {key: key_of(item, schema, key) for key in sorted(schema.map_keys)}
    return "k:" + _compact({key: value for key, value in keys.items() if value is not None})


_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def _compact(value: object) -> str:
    try:
        return _encode_sorted(value).decode()
    except OverflowError:  # a number over 64 bits
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def granular_items(value: Any, schema: Schema) -> dict[str, Any] | None:
    """Return the items of a set or keyed list by key; None if the value is owned as a whole."""
    if schema.form is not Form.LIST or schema.list_type == "atomic":
        return None
    if schema.list_type == "map" and not all(isinstance(item, dict) for item in value):
        return None
    return {item_key(item, schema): item for item in value}


def children(value: Any, schema: Schema) -> Iterable[tuple[str, Any, Schema]] | None:
    """Yield the parts of a value, as key in the tree, value and type; None for a leaf."""
    if isinstance(value, dict):
        if schema.atomic:
            return None
        if schema.form is Form.STRUCT:
            fields = schema.fields
            return [(f"f:{key}", each, fields.get(key, _ANY)) for key, each in value.items()]
        if schema.form is Form.MAP:
            item = schema.item or _ANY
            return [(f"f:{key}", each, item) for key, each in value.items()]
        if schema.form is Form.ANY:
            return [(f"f:{key}", each, _ANY) for key, each in value.items()]
        return None
    if isinstance(value, list):
        items = granular_items(value, schema)
        if items is not None:
            return [(key, each, schema.item or _ANY) for key, each in items.items()]
    return None


_ANY = Schema(Form.ANY)


def all_fields(value: Any, schema: Schema) -> Fields:
    """Return the set of all fields of a value, including the containers themselves."""
    parts = children(value, schema)
    node: Fields = _leaf()
    if parts is not None:
        for key, each, field in parts:
            node[key] = all_fields(each, field)
    return node


def applied_fields(value: Any, schema: Schema) -> Fields:
    """Return the fields that a manager applies: leaves, empty containers, and list items."""
    parts = children(value, schema)
    if not parts:
        return {".": {}}
    node: Fields = {}
    for key, each, field in parts:
        below = applied_fields(each, field)
        if key[:2] != "f:" or schema.form is not Form.STRUCT or key[2:] not in schema.fields:
            # as in `tofieldset.go`, an unknown field is a member itself
            below = {".": {}, **below}
        node[key] = below
    return node


def _there_when_empty(parent: Schema, key: str, field: Schema) -> bool:
    if not parent.go_name:
        return False
    name = key[2:]
    if field.form is Form.STRUCT:
        return name in parent.defaults  # a value in Go, not a pointer: it always exists
    return (field.form is Form.LIST or field.form is Form.MAP) and name in parent.required


def created_fields(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the fields of a new object in FieldsV1 form, without those of the server.

    Equals the difference from nothing, but takes one pass: most objects are written once.
    """
    result = _created(value, schema, owned=False)
    metadata = result.get("f:metadata")
    if metadata is not None:
        metadata = {key: below for key, below in metadata.items() if key not in _UNOWNED_MARKS}
        if metadata.keys() - {"."}:
            result["f:metadata"] = metadata
        else:
            del result["f:metadata"]
    result.pop("f:apiVersion", None)
    result.pop("f:kind", None)
    return dict(sorted(result.items()))


def _created(value: Mapping[str, Any], schema: Schema, *, owned: bool) -> dict[str, Any]:
    result: dict[str, Any] = {".": _MEMBER} if owned else {}
    fields = schema.fields if schema.form is Form.STRUCT else None
    # the content of an empty object is new only if its parent is
    by_value = schema.go_name != "" and not owned
    for key in sorted(value):
        each = value[key]
        kind = type(each)
        if kind is not dict and kind is not list:
            # an empty object also has the zero values that Go encodes
            if each or not by_value or (each is not None and schema.defaults.get(key) != each):
                result["f:" + key] = _MEMBER
            continue
        field = (schema.item or _ANY) if fields is None else fields.get(key, _ANY)
        silent = by_value and _there_when_empty(schema, "f:" + key, field)
        if kind is dict:
            if field.atomic or field.form not in _BRANCHES:
                result["f:" + key] = _MEMBER
            elif not each:
                if not silent:
                    result["f:" + key] = _MEMBER
            elif below := _created(each, field, owned=not silent):
                result["f:" + key] = below
            continue
        items = None
        if field.form is Form.LIST and field.list_type != "atomic":
            items = _created_items(each, field, owned=not silent)
        elif not each and by_value and schema.defaults.get(key) == each:
            continue
        if items is None or items.keys() == _ALONE:
            result["f:" + key] = _MEMBER
        elif items:
            result["f:" + key] = items
    return result


def _created_items(value: list[Any], schema: Schema, *, owned: bool) -> dict[str, Any] | None:
    items = granular_items(value, schema)
    if items is None:
        return None
    result: dict[str, Any] = {".": _MEMBER} if owned else {}
    item = schema.item or _ANY
    is_map = schema.list_type == "map" and not item.atomic
    for key in sorted(items):
        each = items[key]
        if is_map and isinstance(each, dict):
            below = _created(each, item, owned=True)
            result[key] = _MEMBER if len(below) == 1 else below
        else:
            result[key] = _MEMBER
    return result


def difference_of_states(old: Any, new: Any, schema: Schema) -> tuple[Fields, Fields]:
    """Return the fields that were added or changed, and those that were removed."""
    changed: Fields = {}
    removed: Fields = {}
    if old is _MISSING:
        changed["."] = _MEMBER
        old_parts: dict[str, tuple[Any, Schema]] = {}
    else:
        if old == new:
            return changed, removed
        parts = children(old, schema)
        if parts is None:
            return _leaf(), removed
        old_parts = {key: (each, field) for key, each, field in parts}
    new_parts = children(new, schema)
    if new_parts is None:
        return _leaf(), removed
    seen = set()
    for key, each, field in new_parts:
        seen.add(key)
        before = old_parts.get(key)
        if before is None:
            absent = {} if isinstance(each, dict) else [] if isinstance(each, list) else _MISSING
            held = old is not _MISSING and _there_when_empty(schema, key, field)
            if each is None and old is not _MISSING and schema.go_name:
                continue  # Go encodes an empty value as null, so it existed before
            previous = absent if held else _MISSING
        else:
            previous = before[0]
        below, gone = difference_of_states(previous, each, field)
        if below:
            changed[key] = below
        if gone:
            removed[key] = gone
    for key, (each, field) in old_parts.items():
        if key not in seen:
            removed[key] = all_fields(each, field)
    return changed, removed


def union(first: Fields, second: Fields) -> Fields:
    """Return the fields of either set."""
    result = dict(first)
    for key, below in second.items():
        if key == "." or key not in result:
            result[key] = below
        else:
            result[key] = union(result[key], below)
    return result


def minus(first: Fields, second: Fields) -> Fields:
    """Return the fields of the first set that are not in the second."""
    result: Fields = {}
    for key, below in first.items():
        if key not in second:
            result[key] = below
        elif key != ".":
            left = minus(below, second[key])
            if left:
                result[key] = left
    return result


def intersection(first: Fields, second: Fields) -> Fields:
    """Return the fields of both sets."""
    result: Fields = {}
    for key, below in first.items():
        if key in second:
            if key == ".":
                result["."] = _MEMBER
            else:
                both = intersection(below, second[key])
                if both:
                    result[key] = both
    return result


def to_fields_v1(fields: Fields) -> dict[str, Any]:
    """Return a set in FieldsV1 form."""
    if len(fields) == 1 and "." in fields:
        return {}
    return {key: {} if key == "." else to_fields_v1(below) for key, below in sorted(fields.items())}


def from_fields_v1(tree: Mapping[str, Any]) -> Fields:
    """Return a set from its FieldsV1 form.

    Raises:
        ValueError: it is invalid.
    """
    result: Fields = {}
    for key, below in tree.items():
        if not isinstance(below, dict):
            raise ValueError(f"what is below {key} is no object")  # noqa: TRY004 - invalid data
        element = key[:2]
        if element == "f:":
            result[key] = from_fields_v1(below) if below else {".": _MEMBER}
        elif key == ".":
            result["."] = _MEMBER
        elif element in _ELEMENTS:
            msgspec.json.decode(key[2:])
            result[key] = from_fields_v1(below) if below else {".": _MEMBER}
        else:
            raise ValueError(f"{key} is no path element")
    return result


def left_of(tree: Mapping[str, Any], taken: Mapping[str, Any]) -> Fields:
    """Return a set from its FieldsV1 form without the fields of a valid second one, like `minus`.

    Raises:
        ValueError: the first is invalid.
    """
    result: Fields = {}
    for key, below in tree.items():
        other = taken.get(key)
        if key == ".":
            if taken and other is None:
                result["."] = _MEMBER
        elif other is None:
            result |= from_fields_v1({key: below})
        elif not isinstance(below, dict):
            raise ValueError(f"what is below {key} is no object")
        elif left := left_of(below or _leaf(), other):
            result[key] = left
    return result


def without_server_fields(fields: Fields, reset: Iterable[tuple[str, ...]]) -> Fields:
    """Return a set without the fields that nobody owns: the server's metadata and reset fields."""
    result = {
        key: below for key, below in fields.items() if key not in ("f:apiVersion", "f:kind", ".")
    }
    metadata = result.get("f:metadata")
    if metadata:
        owned = {
            key: below
            for key, below in metadata.items()
            if key[2:] not in _UNOWNED_METADATA and key != "."
        }
        if owned:
            result["f:metadata"] = owned
        else:
            del result["f:metadata"]
    for path in reset:
        result = _without_path(result, path)
    return result


def _without_path(fields: Fields, path: tuple[str, ...]) -> Fields:
    key = f"f:{path[0]}"
    below = fields.get(key)
    if below is None:
        return fields
    result = dict(fields)
    left = {} if len(path) == 1 else _without_path(below, path[1:])
    if left:
        result[key] = left
    else:
        del result[key]
    return result


#: Prefixes of a path element: a field's name, an item's keys, its value, its index.
_ELEMENTS = frozenset(("f:", "k:", "v:", "i:"))
