"""Objects of types decorated by `listwatch.resources`."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from listwatch.client.resource import Resource
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.objects.resource_types import described, is_model, is_resource_type

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def resource_of_type(cls: type) -> Resource:
    """Return the resource of a type.

    Raises:
        TypeError: the type has none.
    """
    found: Resource = described(cls).resource
    return found


def schema_of_type(cls: type) -> Mapping[str, Any]:
    """Return the structural schema of a type, as far as known."""
    schema: Mapping[str, Any] = described(cls).schema if is_resource_type(cls) else _NOTHING
    return schema


def is_typed(obj: object) -> bool:
    """Return whether an object has a resource type, or is another client's model."""
    return is_model(type(obj)) and not isinstance(obj, Object)


def object_of(obj: object) -> Object:
    """Return a typed object, as read, as an `Object` with its metadata.

    Raises:
        TypeError: it is not a resource, or its type lacks the metadata of objects.
    """
    if isinstance(obj, Object):
        return obj
    manifest = manifest_of(obj)
    try:
        return decode_object(msgspec.json.encode(manifest))
    except ObjectDecodeError as error:
        raise TypeError(
            f"{type(obj).__name__}.metadata can't be used: {error}; its type may be "
            "listwatch.resources.ObjectMeta"
        ) from error


def manifest_of(obj: object, cls: type | None = None) -> dict[str, Any]:
    """Return an object of a resource type as a decoded manifest, with apiVersion and kind.

    Args:
        obj: the object. A model of another client, which has its own apiVersion and kind, will do.
        cls: its type; by default the object's class, which a TypedDict's objects don't have.

    Raises:
        TypeError: the type is not a resource.
    """
    cls = type(obj) if cls is None else cls
    if is_resource_type(cls):
        known = resource_of_type(cls)
        return {**fields_of(obj), "apiVersion": known.api_version, "kind": known.kind}
    value = fields_of(obj) if is_model(cls) or isinstance(obj, Mapping) else {}
    if not value.get("apiVersion") or not value.get("kind"):
        raise TypeError(
            f"{cls.__name__} is not a resource: decorate its class with "
            "listwatch.resources.resource(…), or send a mapping"
        )
    return value


def fields_of(obj: object) -> dict[str, Any]:
    """Return the fields of a typed value as JSON has them, such as those of a status.

    Args:
        obj: a msgspec Struct, dataclass, attrs object, mapping, pydantic model, or a model of
            `kubernetes` or `lightkube`.
    """
    value: Any
    if (dump := getattr(obj, "model_dump", None)) is not None:  # pydantic's
        # Models of Kubernetes' own kinds have hundreds of fields, most of them None.
        value = dump(mode="json", by_alias=True, exclude_none=not is_resource_type(type(obj)))
    elif (as_dict := getattr(obj, "to_dict", None)) is not None and hasattr(obj, "from_dict"):
        try:
            value = as_dict()  # lightkube's, which renames fields
        except AttributeError:  # before 1.0, those that `decode` makes lack their unset fields
            value = obj
    else:
        value = obj
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return fields


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
