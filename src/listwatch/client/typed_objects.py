"""Objects of types decorated by `listwatch.resources`."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from listwatch.client.resource import Resource

#: The attribute of a type with its resource; its attribute `resource` is a `Resource`.
ATTRIBUTE: Final = "__custom_resource__"


def resource_of_type(cls: type) -> Resource:
    """Return the resource of a type.

    Raises:
        TypeError: it has none.
    """
    known = cls.__dict__.get(ATTRIBUTE)
    if known is None:
        raise TypeError(
            f"{cls.__name__} is no resource: decorate it with listwatch.resources.resource(…), or "
            'name a resource, as "pods"'
        )
    found: Resource = known.resource
    return found


def is_typed(obj: object) -> bool:
    """Return whether an object has a resource type."""
    return ATTRIBUTE in type(obj).__dict__


def manifest_of(obj: object) -> dict[str, Any]:
    """Return an object of such a type as a decoded manifest, with apiVersion and kind.

    Raises:
        TypeError: its type is not a resource.
    """
    known = resource_of_type(type(obj))
    value: Mapping[str, Any]
    dump = getattr(obj, "model_dump", None)
    if dump is not None:  # pydantic's
        value = dump(mode="json", by_alias=True)
    else:
        value = msgspec.json.decode(msgspec.json.encode(obj))
    return {**value, "apiVersion": known.api_version, "kind": known.kind}


def with_changes(raw: Any, before: Any, after: Any) -> Any:
    """Return a value with the changes between two partial readings of it.

    Parts that neither reading has, such as a field of a newer version, stay. An item of a list is
    identified by being unchanged, otherwise by its field `name`, otherwise by its index.

    Args:
        raw: the whole value, decoded.
        before: the first reading of it.
        after: the same, changed.
    """
    if before == after:
        return raw
    if isinstance(raw, Mapping) and isinstance(before, Mapping) and isinstance(after, Mapping):
        kept = {key: value for key, value in raw.items() if key in after or key not in before}
        for key, value in after.items():
            if key not in before or before[key] != value:
                kept[key] = with_changes(raw.get(key), before.get(key), value)
        return kept
    if isinstance(raw, list) and isinstance(before, list) and isinstance(after, list):
        if len(raw) != len(before):
            return after
        unused = list(range(len(before)))
        changed = []
        for index, item in enumerate(after):
            same = next((at for at in unused if before[at] == item), None)
            if same is None and isinstance(item, Mapping) and "name" in item:
                same = next((at for at in unused if _name(before[at]) == item["name"]), None)
            if same is None and index in unused and len(after) == len(before):
                same = index
            if same is None:
                changed.append(item)
                continue
            unused.remove(same)
            changed.append(with_changes(raw[same], before[same], item))
        return changed
    return after


def _name(item: object) -> object:
    return item.get("name") if isinstance(item, Mapping) else None
