"""The table columns in a custom resource's definition."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from listwatch.apiserver.kinds.cells import AGE_DESCRIPTION, NAME_DESCRIPTION, age

Object = dict[str, Any]

#: No list index has more digits.
_INDEX_DIGITS = 18
_STEP = re.compile(
    r"\.([^.\[\]]+)|\[([0-9]+|\*)\]|\['([^']+)'\]|\[\?\(@\.([^=]+)==[\"']([^\"']*)[\"']\)\]"
)


def json_path(text: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that evaluates a simple JSON path, or None."""
    expression = text.strip().removeprefix("{").removesuffix("}")
    # a dot in a key is escaped with a backslash
    expression = expression.replace("\\.", "\0")
    steps = list(_STEP.finditer(expression))

    def find(value: Any) -> Any:
        for step in steps:
            name, index, quoted_name, key, wanted = step.groups()
            if name is not None or quoted_name is not None:
                name = (name or quoted_name).replace("\0", ".")
                value = value.get(name) if isinstance(value, Mapping) else None
            elif index is not None:
                if not isinstance(value, list) or not value:
                    return None
                position = 0 if index == "*" else int(index[:_INDEX_DIGITS])
                value = value[position] if position < len(value) else None
            else:
                items = value if isinstance(value, list) else ()
                value = next(
                    (
                        each
                        for each in items
                        if isinstance(each, Mapping) and str(each.get(key.strip())) == wanted
                    ),
                    None,
                )
            if value is None:
                return None
        return value

    return find


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
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
