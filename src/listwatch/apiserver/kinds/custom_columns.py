"""The table columns in a custom resource's definition."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from listwatch.apiserver.kinds.cells import AGE_DESCRIPTION, NAME_DESCRIPTION, age

Object = dict[str, Any]
_encode_sorted = msgspec.json.Encoder(order="sorted").encode

#: No list index has more digits.
_INDEX_DIGITS = 18
_STEP = re.compile(
    r"\.(?P<name>[^.\[\]]+)"
    r"|\[(?P<slice>-?[0-9]*(?::-?[0-9]*){1,2})\]"
    r"|\[(?P<index>-?[0-9]+|\*)\]"
    r"|\[(?P<quote>['\"])(?P<quoted>.+?)(?P=quote)\]"
    r"|\[\?\((?P<filter>.*?)\)\]"
)
_FILTER = re.compile(
    r"\s*@(?P<path>[^=!<>]*?)\s*(?:(?P<compare>==|!=|<=|>=|<|>)\s*(?P<wanted>.*?))?\s*"
)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_Step = Callable[[Any], Iterable[Any]]


def json_path(text: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that finds the first value at a JSON path, or None."""
    expression = text.strip().removeprefix("{").removesuffix("}")
    steps = _steps(expression)

    def find(value: Any) -> Any:
        return next(iter(_found(value, steps)), None)

    return find


def _steps(expression: str) -> list[_Step]:
    # a backslash escapes a dot in a key
    return [_step(each) for each in _STEP.finditer(expression.replace("\\.", "\0"))]


def _found(value: Any, steps: Iterable[_Step]) -> list[Any]:
    values = [value]
    for step in steps:
        values = [each for one in values for each in step(one) if each is not None]
    return values


def _step(match: re.Match[str]) -> _Step:
    parts = match.groupdict()
    if parts["filter"] is not None:
        return _filter(parts["filter"])
    if parts["slice"] is not None:
        return _slice(parts["slice"])
    name, index = parts["name"] or parts["quoted"], parts["index"]
    if "*" in (name, index):
        return lambda value: (
            value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        )
    if index is not None:
        position = int(index[:_INDEX_DIGITS])
        return lambda value: (
            value[position : position + 1 or None] if isinstance(value, list) else ()
        )
    key = name.replace("\0", ".")
    return lambda value: (value.get(key),) if isinstance(value, Mapping) else ()


def _slice(text: str) -> _Step:
    bounds = slice(*(int(each[:_INDEX_DIGITS]) if each else None for each in text.split(":")))
    if bounds.step is not None and bounds.step <= 0:
        return lambda _: ()
    return lambda value: value[bounds] if isinstance(value, list) else ()


def _filter(text: str) -> _Step:
    parts = _FILTER.fullmatch(text)
    if parts is None:
        return lambda _: ()
    steps = _steps(parts["path"])
    compare = _COMPARE.get(parts["compare"] or "")
    wanted = _literal(parts["wanted"] or "")

    def chosen(item: Any) -> bool:
        found = _found(item, steps)
        if compare is None or not found:
            return bool(found)
        if isinstance(found[0], bool) != isinstance(wanted, bool):
            return False
        try:
            return compare(found[0], wanted)
        except TypeError:
            return False  # the value has another type

    return lambda value: filter(chosen, value) if isinstance(value, list) else ()


def _literal(text: str) -> Any:
    if text[:1] in {"'", '"'}:
        return text[1:-1]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def columns_of(version: Mapping[str, Any]) -> tuple[list[Object], list[tuple[Any, str]]]:
    """Return a version's columns, each with its JSON path function and type."""
    columns: list[Object] = [
        {
            "name": "Name",
            "type": "string",
            "format": "name",
            "description": NAME_DESCRIPTION,
            "priority": 0,
        }
    ]
    cells: list[tuple[Any, str]] = [(json_path(".metadata.name"), "string")]
    given = version.get("additionalPrinterColumns") or [
        {
            "name": "Age",
            "type": "date",
            "jsonPath": ".metadata.creationTimestamp",
            "description": AGE_DESCRIPTION,
        }
    ]
    for column in given:
        path = column.get("jsonPath", "")
        described = column.get("description")
        columns.append(
            {
                "name": column["name"],
                "type": column["type"],
                "format": column.get("format", ""),
                "description": described
                or f"Custom resource definition column (in JSONPath format): {path}",
                "priority": column.get("priority", 0),
            }
        )
        cells.append((json_path(path), column["type"]))
    return columns, cells


def column_value(
    obj: Mapping[str, Any], get: Callable[[Mapping[str, Any]], Any], kind: str, now: float
) -> Any:
    """Return the cell of a custom column; null if nothing is found."""
    value = get(obj)
    if value is None:
        return None
    if kind == "date":
        return age(value, now) if isinstance(value, str) else None
    if kind == "integer":
        return int(value) if isinstance(value, int | float) else None
    if kind == "number":
        return value if isinstance(value, int | float) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    return value if isinstance(value, str) else _encode_sorted(value).decode()
