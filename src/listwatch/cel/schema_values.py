"""JSON as values of expressions: each field is converted to its schema's type when read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from listwatch.cel.errors import EvaluationError
from listwatch.cel.values import (
    Unordered,
    Value,
    parse_date,
    parse_duration,
    parse_timestamp,
)

if TYPE_CHECKING:
    from listwatch.cel.schema_types import SchemaType


def to_value(data: object, of: SchemaType) -> Value:
    """Return JSON data as a value of a type. Copies nothing: objects and lists convert on read.

    Fields missing in the schema are invisible. Raises EvaluationError if a text does not match its
    format.
    """
    match of.type.kind:
        case "object" if isinstance(data, Mapping):
            return _Object(data, of)
        case "map" if isinstance(data, Mapping) and of.item is not None:
            if of.item.type.kind in _AS_THEY_ARE:
                return data
            item = of.item
            return {key: to_value(value, item) for key, value in data.items()}
        case "list" if isinstance(data, Sequence) and of.item is not None:
            return _list(data, of)
        case "double" if isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        case "bytes" | "timestamp" | "duration" if isinstance(data, str):
            return _formatted(data, of.format)
        case "int" if isinstance(data, float) and data.is_integer():
            return int(data)
    return data


_AS_THEY_ARE = frozenset({"string", "int", "bool"})


def _list(data: Sequence[object], of: SchemaType) -> Value:
    assert of.item is not None
    if of.item.type.kind in _AS_THEY_ARE:
        items: Sequence[Value] = data
    else:
        item = of.item
        items = [to_value(one, item) for one in data]
    return items if of.unordered is None else Unordered(items, of.unordered)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


_FORMATS: Mapping[str, Callable[[str], Value]] = {
    "byte": _bytes,
    "date": parse_date,
    "date-time": parse_timestamp,
    "duration": parse_duration,
}


def _formatted(text: str, name: str) -> Value:
    try:
        return _FORMATS[name](text)
    except ValueError as error:
        raise EvaluationError(f"value is no {name}: {error}") from None


class _Object(Mapping[Value, Value]):
    """A JSON object with the field names that expressions use."""

    __slots__ = ("_data", "_of", "_read")

    def __init__(self, data: Mapping[str, object], of: SchemaType) -> None:
        self._data = data
        self._of = of
        self._read: dict[Value, Value] = {}

    @property
    def type_name(self) -> str:
        """Return the name of the object's type."""
        return self._of.type.name

    def __getitem__(self, name: Value) -> Value:
        read = self._read
        if name in read:
            return read[name]
        of = self._of
        data = self._data[of.names[name]]  # type: ignore[index]  # a name or a KeyError
        if data is None:
            # A null field counts as unset.
            raise KeyError(name)
        value = read[name] = to_value(data, of.fields[name])  # type: ignore[index]  # as above
        return value

    def __contains__(self, name: object) -> bool:
        names = self._of.names
        return name in names and self._data.get(names[name]) is not None  # type: ignore[index]  # a name

    def __iter__(self) -> Iterator[Value]:
        return (name for name, real in self._of.names.items() if self._data.get(real) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
