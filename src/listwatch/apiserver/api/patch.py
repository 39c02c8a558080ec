"""JSON patch (RFC 6902), JSON merge patch (RFC 7396) and strategic merge patch.

No library implements the JSON patch of a real server, which is laxer than the RFC: it accepts
`replace` of a missing member of an object, and treats a missing member as null in `test` and
`copy`.
"""

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from listwatch.schema.causes import go_quoted
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import ANY, Form, Schema

#: Maximum operations of a JSON patch (`apiserver/pkg/endpoints/handlers`).
OPERATIONS_LIMIT = 10_000
#: Maximum bytes that the `copy` operations of a JSON patch may copy: each may double the document
#: (`JSONPatchMaxCopyBytes` in `apiserver/pkg/server/config.go`).
_COPY_LIMIT = 3 * 1024 * 1024


#: No list index has more digits; a longer one is out of bounds either way.
_INDEX_DIGITS = 20


_OPERATIONS = frozenset(("add", "copy", "move", "remove", "replace", "test"))


class PatchError(Exception):
    """A patch does not fit the object or is malformed; the message is the server's."""


class PatchValueError(PatchError):
    """A `test` in a JSON patch found another value."""


class PatchFormatError(PatchError):
    """A directive of a strategic merge patch has a value of the wrong form."""


class PatchContentError(PatchError):
    """A strategic merge patch contradicts its own directives."""


# -- JSON patch ------------------------------------------------------------------------------


def _pointer(path: str) -> list[str] | None:
    parts = path.split("/")[1:]
    return [part.replace("~1", "/").replace("~0", "~") for part in parts] or None


def _index(container: list[Any], part: str, *, insert: bool = False) -> int:
    if insert and part == "-":
        return len(container)
    digits = part.removeprefix("-") if part.startswith("-") else part.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        why = f"strconv.Atoi: parsing {go_quoted(part)}: invalid syntax"
        raise PatchError(f"value was not a proper array index: '{part}': {why}" if insert else why)
    index = int(part[:_INDEX_DIGITS])
    if index < 0:
        index += len(container) + (1 if insert else 0)
    if not 0 <= index < len(container) + (1 if insert else 0):
        raise PatchError(f"Unable to access invalid index: {part}: invalid index referenced")
    return index


def _get(container: Any, part: str) -> Any:
    """Return a member; None if an object lacks it, as on a real server."""
    if isinstance(container, dict):
        return container.get(part)
    return container[_index(container, part)]


def _find(document: Any, path: str) -> tuple[Any, str] | None:
    """Return the parent of the member that a path names, and the member's own name."""
    parts = _pointer(path)
    if parts is None:
        return None
    for part in parts[:-1]:
        try:
            document = _get(document, part)
        except PatchError:
            return None
        if not isinstance(document, dict | list):
            return None
    return document, parts[-1]


def _at(document: Any, path: str, missing: str) -> tuple[Any, str]:
    found = _find(document, path)
    if found is None:
        raise PatchError(f"{missing}: missing value")
    return found


@contextmanager
def _for(words: str) -> Iterator[None]:
    """Add the operation to an error's message."""
    try:
        yield
    except PatchError as error:
        raise PatchError(f"{words}: {error}") from None


def _put(container: Any, part: str, value: Any) -> None:
    if isinstance(container, dict):
        container[part] = value
    else:
        container.insert(_index(container, part, insert=True), value)


def _drop(container: Any, part: str) -> Any:
    if isinstance(container, dict):
        if part not in container:
            raise PatchError(f"Unable to remove nonexistent key: {part}: missing value")
        return container.pop(part)
    return container.pop(_index(container, part))


def _add(document: Any, path: str, value: Any) -> None:
    missing = f'add operation does not apply: doc is missing path: "{path}"'
    container, part = _at(document, path, missing)
    with _for(f"error in add for path: '{path}'"):
        _put(container, part, value)


def _remove(document: Any, path: str) -> None:
    missing = f'remove operation does not apply: doc is missing path: "{path}"'
    container, part = _at(document, path, missing)
    with _for(f"error in remove for path: '{path}'"):
        _drop(container, part)


def _replace(document: Any, path: str, value: Any) -> None:
    container, part = _at(
        document, path, f"replace operation does not apply: doc is missing path: {path}"
    )
    if isinstance(container, dict):
        container[part] = value
        return
    try:
        index = _index(container, part)
    except PatchError:
        raise PatchError(
            f"replace operation does not apply: doc is missing key: {path}: missing value"
        ) from None
    container[index] = value


def _move(document: Any, source: str, path: str) -> None:
    container, part = _at(
        document, source, f"move operation does not apply: doc is missing from path: {source}"
    )
    with _for(f"error in move for path: '{part}'"):
        moved = _drop(container, part)
    container, part = _at(
        document, path, f"move operation does not apply: doc is missing destination path: {path}"
    )
    with _for(f"error in move for path: '{path}'"):
        _put(container, part, moved)


def _test(document: Any, path: str, value: Any) -> None:
    container, part = _at(document, path, f"test operation does not apply: is missing path: {path}")
    with _for(f"error in test for path: '{path}'"):
        found = _get(container, part)
    if not _equal(found, value):
        raise PatchValueError(f"testing value {path} failed: test failed")


def _copy(document: Any, source: str, path: str) -> int:
    """Copy a value; return its size in bytes."""
    container, part = _at(
        document, source, f"copy operation does not apply: doc is missing from path: {source}"
    )
    with _for(f"error in copy for from: '{source}'"):
        found = _get(container, part)
    container, part = _at(
        document, path, f"copy operation does not apply: doc is missing destination path: {path}"
    )
    with _for("error while adding value during copy"):
        _put(container, part, copy_of(found))
    return len(msgspec.json.encode(found))


def _equal(first: Any, second: Any) -> bool:
    # True == 1 in Python, but not in JSON
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            _equal(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(first == second)


def json_patch(document: Any, operations: Sequence[Any]) -> Any:
    """Apply the operations of a JSON patch; changes the document in place where possible.

    Raises:
        PatchError: an operation failed; the document is then unusable.
    """
    copied = 0
    for operation in operations:
        if not isinstance(operation, dict):
            raise PatchError("an operation must be an object")
        name, path = operation.get("op"), operation.get("path")
        value, source = operation.get("value"), operation.get("from", "")
        if not isinstance(name, str):
            raise PatchError("Unexpected kind: unknown")
        if name not in _OPERATIONS:
            raise PatchError(f"Unexpected kind: {name}")
        if name in {"move", "copy"} and not ("from" in operation and isinstance(source, str)):
            raise PatchError(f"{name} operation failed to decode from: missing value")
        if not isinstance(path, str):
            raise PatchError(f"{name} operation failed to decode path: missing value")
        if name == "replace" and not path and isinstance(value, dict | list):
            document = copy_of(value)
        elif name in {"add", "replace"}:
            change = _add if name == "add" else _replace
            change(document, path, copy_of(value))
        elif name == "remove":
            _remove(document, path)
        elif name == "test":
            _test(document, path, value)
        elif name == "move":
            _move(document, source, path)
        else:
            copied += _copy(document, source, path)
            if copied > _COPY_LIMIT:
                raise PatchError(
                    "Unable to complete the copy, the accumulated size increase of copy is "
                    f"{copied}, exceeding the limit {_COPY_LIMIT}"
                )
    return document


# -- JSON merge patch ------------------------------------------------------------------------


def merge_patch(document: Any, patch: Any) -> Any:
    """Return the document with a JSON merge patch applied; neither is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# -- strategic merge patch -------------------------------------------------------------------

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def strategic_merge(document: Any, patch: Any, schema: Schema) -> Any:
    """Return the document with a strategic merge patch applied; neither is changed.

    The rules are those of `apimachinery/pkg/util/strategicpatch`.

    Raises:
        PatchError: a directive is wrong.
    """
    if not isinstance(patch, dict) or not isinstance(document, dict):
        return without_directives(patch)
    return _merge_map(document, patch, schema)


def _field(schema: Schema, key: str) -> Schema:
    if schema.form is Form.STRUCT:
        return schema.fields.get(key, ANY)
    return schema.item or ANY if schema.form is Form.MAP else ANY


def _merge_map(document: dict[str, Any], patch: dict[str, Any], schema: Schema) -> dict[str, Any]:
    if _DIRECTIVE in patch:
        return _replaced(patch)
    result = _retained(document, patch)
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVES):
            name = key[len(_DELETE_PRIMITIVES) :]
            if isinstance(result.get(name), list) and isinstance(value, list):
                gone = {_mark(item) for item in value}
                result[name] = [item for item in result[name] if _mark(item) not in gone]
        elif key in {_DIRECTIVE, _RETAIN} or key.startswith(_ORDER):
            continue
        elif value is None:
            result.pop(key, None)
        elif key in result or not (isinstance(value, dict) and _DIRECTIVE in value):
            result[key] = _merge_field(result.get(key), value, _field(schema, key))
    for key, order in patch.items():
        if key.startswith(_ORDER):
            name = key[len(_ORDER) :]
            _check_order(patch.get(name), order, _field(schema, name).merge_key)
            _set_order(document, result, name, order, schema)
    return result


def _replaced(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result for a map whose patch has a directive."""
    if patch[_DIRECTIVE] == "delete":
        return {}
    if patch[_DIRECTIVE] != "replace":
        raise _unknown_directive(patch)
    return {key: without_directives(value) for key, value in patch.items() if key != _DIRECTIVE}


def _retained(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without the keys that a patch does not retain."""
    retained = patch.get(_RETAIN)
    if retained is None:
        return dict(document)
    if not isinstance(retained, list):
        raise PatchFormatError("invalid patch format of retainKeys")
    if any(
        value is not None and key not in retained and key[:1] != "$" for key, value in patch.items()
    ):
        raise PatchContentError("patch content doesn't match retainKeys list")
    return {key: value for key, value in document.items() if key in retained}


def _unknown_directive(patch: Mapping[str, Any]) -> PatchError:
    directive = _go_shown(patch[_DIRECTIVE])
    return PatchError(f"unknown patch type: {directive} in map: {_go_shown(patch)}")


def _check_order(patch: Any, order: Any, merge_key: str) -> None:
    """Refuse an invalid order of items, or one that the patch's own items do not follow."""
    if not isinstance(order, list):
        raise PatchFormatError("invalid patch format of setElementOrder list")
    if not order or not isinstance(patch, list):
        return
    wanted = iter([_mark(_key_of(each, merge_key)) for each in order])
    for each in patch:
        if isinstance(each, dict) and _DIRECTIVE in each:
            continue
        if _mark(_key_of(each, merge_key)) not in wanted:
            raise PatchError(
                f"The order in patch list:\n{_go_shown(patch)}\n doesn't match $setElementOrder "
                f"list:\n{_go_shown(order)}\n"
            )


def _merge_field(old: Any, value: Any, field: Schema) -> Any:
    if isinstance(value, dict) and isinstance(old, dict) and "replace" not in field.strategies:
        return _merge_map(old, value, field)
    if (
        isinstance(value, list)
        and isinstance(old, list)
        and "merge" in field.strategies
        and field.form is Form.LIST
    ):
        return _merge_list(old, value, field)
    return without_directives(value)


def without_directives(value: Any) -> Any:
    """Return what a patch adds to nothing: itself without directives and nulls."""
    if isinstance(value, dict):
        return {
            key: without_directives(each)
            for key, each in value.items()
            if each is not None
            and not (isinstance(each, dict) and _DIRECTIVE in each)
            and key not in {_DIRECTIVE, _RETAIN}
            and not key.startswith((_DELETE_PRIMITIVES, _ORDER))
        }
    if isinstance(value, list):
        return [
            without_directives(each)
            for each in value
            if not (isinstance(each, dict) and each.get(_DIRECTIVE) in ("delete", "replace"))
        ]
    return value


def _without_merge_key(entry: Mapping[str, Any], merge_key: str) -> PatchError:
    return PatchError(f"map: {_go_shown(entry)} does not contain declared merge key: {merge_key}")


def _go_shown(value: Any) -> str:
    """Return a value as Go's %v prints it."""
    if isinstance(value, Mapping):
        fields = " ".join(f"{key}:{_go_shown(value[key])}" for key in sorted(value))
        return f"map[{fields}]"
    if isinstance(value, list):
        return f"[{' '.join(map(_go_shown, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)


def _merge_list(old: list[Any], patch: list[Any], schema: Schema) -> list[Any]:
    merge_key = schema.merge_key
    item = schema.item or ANY
    if not merge_key:
        present = {_mark(each) for each in old}
        added = [each for each in patch if _mark(each) not in present]
        return _ordered([*old, *added], patch, old, lambda each: each)
    plain: list[dict[str, Any]] = []
    deleted: set[Hashable] = set()
    replace = False
    for each in patch:
        if not isinstance(each, dict):
            raise PatchError("an item of a list that merges by key must be an object")
        directive = each.get(_DIRECTIVE)
        if directive == "replace":
            replace = True
            if len(each) > 1:
                plain.append({key: value for key, value in each.items() if key != _DIRECTIVE})
        elif directive == "delete":
            if merge_key not in each:
                raise _without_merge_key(each, merge_key)
            deleted.add(_mark(each[merge_key]))
        elif directive is None:
            if merge_key not in each:
                raise _without_merge_key(each, merge_key)
            plain.append(each)
        elif directive == "merge":
            raise PatchError("merging lists cannot yet be specified in the patch")
        else:
            raise _unknown_directive(each)
    if replace:
        return [without_directives(each) for each in plain]
    merged = [
        each
        for each in old
        if not isinstance(each, dict) or _mark(each.get(merge_key)) not in deleted
    ]
    places = _places(each.get(merge_key) if isinstance(each, dict) else _NOWHERE for each in merged)
    for each in plain:
        place = places.setdefault(_mark(each[merge_key]), len(merged))
        if place == len(merged):
            merged.append(without_directives(each))
        else:
            merged[place] = _merge_map(merged[place], each, item)
    return _ordered(merged, plain, old, lambda each: _key_of(each, merge_key))


#: The key of items that have none.
_NOWHERE = ("no key",)


def _mark(value: Any) -> Hashable:
    """Return a hashable stand-in for a JSON value."""
    if isinstance(value, dict | list):
        return (json.dumps(value, sort_keys=True),)
    return value  # type: ignore[no-any-return]  # all other JSON values are hashable


def _places(values: Iterable[Any]) -> dict[Hashable, int]:
    """Return the first position of each value, by its mark."""
    places: dict[Hashable, int] = {}
    for place, value in enumerate(values):
        places.setdefault(_mark(value), place)
    return places


def _key_of(item: Any, merge_key: str) -> Any:
    return item.get(merge_key) if isinstance(item, dict) else item


def _ordered(
    merged: list[Any], wanted: list[Any], live: list[Any], key_of: Callable[[Any], Any]
) -> list[Any]:
    """Order the items as the patch does; other items keep their place relative to them."""
    order = _places(map(key_of, wanted))
    before = _places(map(key_of, live))

    def mark(item: Any) -> Hashable:
        return _mark(key_of(item))

    left = deque(
        sorted(
            (each for each in merged if mark(each) not in order),
            key=lambda each: before.get(mark(each), -1),
        )
    )
    right = deque(
        sorted(
            (each for each in merged if mark(each) in order),
            key=lambda each: order[mark(each)],
        )
    )
    result: list[Any] = []
    while left and right:
        first, second = before.get(mark(left[0])), before.get(mark(right[0]))
        earlier = first is not None and second is not None and first < second
        result.append((left if earlier else right).popleft())
    return [*result, *left, *right]


def _set_order(
    document: dict[str, Any],
    result: dict[str, Any],
    name: str,
    order: Any,
    schema: Schema,
) -> None:
    merged = result.get(name)
    if not isinstance(merged, list) or not isinstance(order, list):
        return
    merge_key = _field(schema, name).merge_key
    live = document.get(name)
    result[name] = _ordered(
        merged,
        order,
        live if isinstance(live, list) else [],
        lambda each: _key_of(each, merge_key),
    )
