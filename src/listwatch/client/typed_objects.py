"""Objects of types decorated by `listwatch.resources`."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from listwatch.client.resource import Resource

#: The attribute of a type with its resource; its attribute `resource` is a `Resource`.
ATTRIBUTE: Final = "__custom_resource__"

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def resource_of_type(cls: type) -> Resource:
    """Return the resource of a type.

    Raises:
        TypeError: the type has none.
    """
    known = cls.__dict__.get(ATTRIBUTE)
    if known is None:
        raise TypeError(
            f"{cls.__name__} is no resource: decorate it with listwatch.resources.resource(…), or "
            'name a resource, as "pods"'
        )
    found: Resource = known.resource
    return found


def schema_of_type(cls: type) -> Mapping[str, Any]:
    """Return the structural schema of a type that is a resource."""
    schema: Mapping[str, Any] = cls.__dict__[ATTRIBUTE].schema
    return schema


def is_typed(obj: object) -> bool:
    """Return whether an object has a resource type."""
    return ATTRIBUTE in type(obj).__dict__


def manifest_of(obj: object, cls: type | None = None) -> dict[str, Any]:
    """Return an object of a resource type as a decoded manifest, with apiVersion and kind.

    Args:
        obj: the object.
        cls: its type; by default the object's class, which a TypedDict's objects don't have.

    Raises:
        TypeError: the type is not a resource.
    """
    known = resource_of_type(type(obj) if cls is None else cls)
    value: Mapping[str, Any]
    dump = getattr(obj, "model_dump", None)
    if dump is not None:  # pydantic's
        value = dump(mode="json", by_alias=True)
    else:
        value = msgspec.json.decode(msgspec.json.encode(obj))
    return {**value, "apiVersion": known.api_version, "kind": known.kind}


def is_same(one: Any, other: Any) -> bool:
    """Return whether two decoded values are the same JSON, in which 1 is not true."""
    return bool(one == other) and _as_json(one) == _as_json(other)


def _as_json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def with_changes(raw: Any, before: Any, after: Any, schema: Mapping[str, Any] = _NOTHING) -> Any:
    """Apply the changes between two states of a typed value to the whole value.

    Parts that the type lacks, such as fields of a newer version, stay. An item of a list is matched
    if it is unchanged, else by the keys in the schema, else by its field `name` or its index.

    Args:
        raw: the whole value, decoded.
        before: its typed part; the items of a set may be in another order.
        after: the changed typed part.
        schema: the structural schema of the type, as far as known.
    """
    if is_same(before, after):
        return raw
    if isinstance(raw, Mapping) and isinstance(before, Mapping) and isinstance(after, Mapping):
        kept = {key: value for key, value in raw.items() if key in after or key not in before}
        fields = schema.get("properties") or {}
        others = schema.get("additionalProperties") or _NOTHING
        for key, value in after.items():
            if key not in before or not is_same(before[key], value):
                inner = fields.get(key, others)
                kept[key] = with_changes(raw.get(key), before.get(key), value, inner)
        return kept
    if isinstance(raw, list) and isinstance(before, list) and isinstance(after, list):
        return _with_changed_items(raw, before, after, schema)
    return after


def _with_changed_items(
    raw: list[Any], before: list[Any], after: list[Any], schema: Mapping[str, Any]
) -> list[Any]:
    if len(raw) != len(before):
        return after
    if schema.get("x-kubernetes-list-type") == "set":
        raw = _in_order_of(before, raw)
    keys = schema.get("x-kubernetes-list-map-keys")
    names = [_names(item, keys or ["name"]) for item in before]
    unused = list(range(len(before)))
    changed = []
    for index, item in enumerate(after):
        same = next((at for at in unused if is_same(before[at], item)), None)
        if same is None and (name := _names(item, keys or ["name"])) is not None:
            same = next((at for at in unused if names[at] == name), None)
        # Without keys in the schema, match by index. With keys, another key means another item.
        if same is None and not keys and index in unused and len(after) == len(before):
            same = index
        if same is None:
            changed.append(item)
            continue
        unused.remove(same)
        inner = schema.get("items") or _NOTHING
        changed.append(with_changes(raw[same], before[same], item, inner))
    return changed


def _in_order_of(before: list[Any], raw: list[Any]) -> list[Any]:
    """Return the items of a set in the order of `before`."""
    rest = list(raw)
    ordered = []
    for item in before:
        found = next((at for at, one in enumerate(rest) if _agrees(one, item)), None)
        # An item that the type normalizes, such as a time with fewer digits, stays normalized.
        ordered.append(item if found is None else rest.pop(found))
    return ordered


def _agrees(raw: Any, read: Any) -> bool:
    """Return whether a typed value may come from a raw one: their common fields are equal."""
    if isinstance(raw, Mapping) and isinstance(read, Mapping):
        return all(_agrees(raw[key], value) for key, value in read.items() if key in raw)
    return is_same(raw, read)


def _names(item: object, keys: Sequence[str]) -> bytes | None:
    """Return the values of an item's keys; None if it lacks one."""
    if not isinstance(item, Mapping) or not all(key in item for key in keys):
        return None
    return _as_json([item[key] for key in keys])
