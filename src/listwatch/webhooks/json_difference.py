"""The JSON patch (RFC 6902) that turns one value into another.

It adds, removes and replaces, and never moves: the operations of admission patches that every
server applies alike.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from listwatch.client.typed_objects import is_same


def json_difference(before: Any, after: Any) -> list[dict[str, Any]]:
    """Return the operations of a JSON patch, in the order in which to apply them.

    Args:
        before: a decoded JSON value.
        after: the value that the patch creates.
    """
    return list(_difference(before, after, ""))


def _difference(before: Any, after: Any, path: str) -> Iterator[dict[str, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() - after.keys():
            yield {"op": "remove", "path": _below(path, key)}
        for key, value in after.items():
            if key in before:
                yield from _difference(before[key], value, _below(path, key))
            else:
                yield {"op": "add", "path": _below(path, key), "value": value}
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_difference(before, after, path)
    elif not is_same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _list_difference(before: list[Any], after: list[Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield what changes between the common beginning and the common end."""
    shorter = min(len(before), len(after))
    begin = 0
    while begin < shorter and is_same(before[begin], after[begin]):
        begin += 1
    end = 0
    while end < shorter - begin and is_same(before[-1 - end], after[-1 - end]):
        end += 1
    old, new = before[begin : len(before) - end], after[begin : len(after) - end]
    for index, (one, other) in enumerate(zip(old, new, strict=False), begin):
        yield from _difference(one, other, f"{path}/{index}")
    common = begin + min(len(old), len(new))
    # Each removal moves the next item to the same index.
    for _ in range(len(old) - len(new)):
        yield {"op": "remove", "path": f"{path}/{common}"}
    for index, value in enumerate(new[len(old) :], common):
        yield {"op": "add", "path": f"{path}/{index}", "value": value}


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
