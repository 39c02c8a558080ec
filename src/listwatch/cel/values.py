"""The values of expressions as Python objects.

bool, int, float, str, bytes, None, list and dict represent themselves; this module has the types
that Python lacks. All are immutable by convention: an evaluation never changes a given value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeAlias, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from listwatch.cel.errors import EvaluationError

Value: TypeAlias = object

_SECOND = 1_000_000_000


class UInt(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()


def in_int64(number: int) -> bool:
    """Return whether an integer fits into a signed 64-bit integer."""
    return -(1 << 63) <= number < 1 << 63


def checked_int(number: int) -> int:
    """Return an integer, or raise EvaluationError if it exceeds 64 bits."""
    if not in_int64(number):
        raise EvaluationError("integer overflow")
    return number


def checked_uint(number: int) -> UInt:
    """Return an unsigned integer, or raise EvaluationError if it exceeds 64 bits."""
    if not 0 <= number < 1 << 64:
        raise EvaluationError("unsigned integer overflow")
    return UInt(number)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A duration in whole nanoseconds."""

    nanoseconds: int

    def __post_init__(self) -> None:
        """Refuse durations over 64 bits."""
        if not in_int64(self.nanoseconds):
            raise EvaluationError("integer overflow")

    def __str__(self) -> str:
        """Return seconds, with as many decimals as needed: `1.5s`."""
        whole, rest = divmod(abs(self.nanoseconds), _SECOND)
        sign = "-" if self.nanoseconds < 0 else ""
        fraction = f".{rest:09}".rstrip("0") if rest else ""
        return f"{sign}{whole}{fraction}s"


_EARLIEST = -62135596800
_LATEST = 253402300799


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A timestamp, in whole nanoseconds since 1970 in UTC."""

    nanoseconds: int

    def __post_init__(self) -> None:
        """Refuse times outside the years 1 to 9999."""
        if not _EARLIEST <= self.nanoseconds // _SECOND <= _LATEST:
            raise EvaluationError("timestamp overflow")

    def __str__(self) -> str:
        """Return RFC 3339 with as many decimals as needed."""
        seconds, rest = divmod(self.nanoseconds, _SECOND)
        fraction = f".{rest:09}".rstrip("0") if rest else ""
        return _datetime(seconds).strftime("%Y-%m-%dT%H:%M:%S").zfill(19) + fraction + "Z"

    def in_zone(self, zone: str | None) -> datetime:
        """Return the wall clock in a zone, a name such as `Europe/Berlin` or an offset `+01:00`.

        Truncates to microseconds. Raises EvaluationError for an invalid zone.
        """
        return _datetime(self.nanoseconds // _SECOND).astimezone(_zone(zone)) + timedelta(
            microseconds=self.nanoseconds % _SECOND // 1000
        )


def _datetime(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def _zone(name: str | None) -> timezone | ZoneInfo:
    if name is None or name == "UTC":
        return UTC
    offset = re.fullmatch(r"([+-]?)(\d\d):(\d\d)", name)
    if offset:
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        if span >= timedelta(days=1):
            raise EvaluationError(f"unknown time zone {name}")
        return timezone(-span if offset[1] == "-" else span)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError(f"unknown time zone {name}") from None


_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII
)


def parse_timestamp(text: str) -> Timestamp:
    """Parse RFC 3339. Raises ValueError for anything else."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"parsing time {text!r}")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if second == 60:
        raise ValueError(f"parsing time {text!r}: second out of range")
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1))
    if match[8] != "Z":
        hours, minutes = int(match[8][1:3]), int(match[8][4:6])
        offset = hours * 3600 + minutes * 60
        seconds -= -offset if match[8][0] == "-" else offset
    nanoseconds = int((match[7] or ".0")[1:10].ljust(9, "0"))
    return Timestamp(seconds * _SECOND + nanoseconds)


def parse_date(text: str) -> Timestamp:
    """Parse `2024-01-02` as midnight UTC. Raises ValueError for anything else."""
    return parse_timestamp(f"{text}T00:00:00Z")


_UNITS = {
    "ns": 1, "us": 1000, "µs": 1000, "μs": 1000, "ms": 1_000_000,
    "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND,
}  # fmt: skip
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> Duration:
    """Parse a duration in Go's format: `1h30m`, `-1.5s`, `0`. Raises ValueError otherwise."""
    body = text[1:] if text[:1] in {"+", "-"} else text
    if body == "0":
        return Duration(0)
    total = position = 0
    while position < len(body):
        match = _DURATION_PART.match(body, position)
        if match is None:
            break
        whole, _, fraction = match[1].partition(".")
        unit = _UNITS[match[2]]
        total += int(whole or "0") * unit
        if fraction:
            total += int(fraction) * unit // 10 ** len(fraction)
        position = match.end()
    if not body or position < len(body):
        raise ValueError(f"time: invalid duration {text!r}")
    return Duration(-total if text[0] == "-" else total)


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as a value: the result of `type(x)`."""

    name: str


class Optional:
    """A value that may be absent. `NOTHING` is the absent one."""

    __slots__ = ("_present", "_value")

    def __init__(self, value: Value = None, *, present: bool = True) -> None:
        self._value = value
        self._present = present

    @property
    def present(self) -> bool:
        """Return whether there is a value."""
        return self._present

    @property
    def value(self) -> Value:
        """Return the value. Raises EvaluationError if there is none."""
        if not self._present:
            raise EvaluationError("optional.none() dereference")
        return self._value


NOTHING = Optional(present=False)


class Unordered(Sequence[Value]):
    """A list without a meaningful order: `x-kubernetes-list-type: set` or `map`.

    `keys` names the fields that identify the items of a list of type map; it is empty for a set.
    """

    __slots__ = ("items", "keys")

    def __init__(self, items: Sequence[Value], keys: tuple[str, ...] = ()) -> None:
        self.items = items
        self.keys = keys

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Value: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Value]: ...

    def __getitem__(self, index: int | slice) -> Value:
        return self.items[index]

    def key(self, item: Value) -> Value:
        """Return what identifies this item."""
        if self.keys and isinstance(item, Mapping):
            return tuple(item.get(name) for name in self.keys)
        return item


def type_name(value: Value) -> str:
    """Return the name of a value's type, as `type(x)` and messages show it."""
    match value:
        case None:
            return "null_type"
        case bool():
            return "bool"
        case UInt():
            return "uint"
        case int():
            return "int"
        case float():
            return "double"
        case str():
            return "string"
        case bytes():
            return "bytes"
        case Mapping():
            return getattr(value, "type_name", "map")
        case Sequence():
            return "list"
        case Timestamp():
            return "google.protobuf.Timestamp"
        case Duration():
            return "google.protobuf.Duration"
        case TypeName():
            return "type"
        case Optional():
            return "optional_type"
    return str(getattr(value, "type_name", type(value).__name__))


_PLAIN = (bool, int, UInt, float, str, bytes, type(None))


def equal(one: Value, other: Value) -> bool:
    """Compare like CEL: numbers by value across types, anything else within its type."""
    kind, other_kind = type(one), type(other)
    if kind in _PLAIN and other_kind in _PLAIN:
        if kind is other_kind:
            return one == other
        if bool in {kind, other_kind}:
            return False
        if float in {kind, other_kind} and str not in {kind, other_kind}:
            return _as_doubles(one, other)
        return one == other
    if isinstance(one, Optional) and isinstance(other, Optional):
        if not (one.present and other.present):
            return one.present == other.present
        return equal(one.value, other.value)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _equal_maps(one, other)
    if isinstance(one, bytes | str) or isinstance(other, bytes | str):
        return False
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        if len(one) != len(other):
            return False
        if isinstance(one, Unordered) or isinstance(other, Unordered):
            return _equal_sets(one, other)
        return all(map(equal, one, other))
    return kind is other_kind and one == other


def _as_doubles(one: Value, other: Value) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return float(one) == float(other)
    return False


def _equal_maps(one: Mapping[Value, Value], other: Mapping[Value, Value]) -> bool:
    if len(one) != len(other):
        return False
    missing = object()
    for key, value in one.items():
        found = other.get(key, missing)
        if found is missing or not equal(value, found):
            return False
    return True


def _equal_sets(one: Sequence[Value], other: Sequence[Value]) -> bool:
    sets = [each for each in (one, other) if isinstance(each, Unordered)]
    remaining: dict[object, list[Value]] = {}
    for item in other:
        remaining.setdefault(bucket(sets[0].key(item)), []).append(item)
    for item in one:
        candidates = remaining.get(bucket(sets[0].key(item)), [])
        for position, candidate in enumerate(candidates):
            if equal(item, candidate):
                del candidates[position]
                break
        else:
            return False
    return True


def bucket(value: Value) -> object:
    """Return a hash key that is the same for equal values, and different for most others."""
    if isinstance(value, bool | str | bytes):
        return type(value), value
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, tuple):  # the keys of an item
        return tuple(map(bucket, value))
    if isinstance(value, Mapping | Sequence):
        return len(value)
    return type(value)


def size(value: Value) -> int:
    """Return the size that costs are based on; 1 for values without one."""
    if isinstance(value, Optional):
        return size(value.value) if value.present else 1
    if isinstance(value, str | bytes | Mapping | Sequence):
        return len(value)
    return 1


def shown_double(number: float) -> str:
    """Return a double as `string(x)` prints it: Go's %g with the shortest digits."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    digits = repr(number)
    mantissa, _, exponent = digits.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if fraction == "0":
        fraction = ""
    all_digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(all_digits))
    significant = all_digits.rstrip("0")
    if not significant:
        return f"{sign}0"
    if -4 <= point - 1 < 21:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{significant}"
        if len(significant) <= point:
            return sign + significant.ljust(point, "0")
        return f"{sign}{significant[:point]}.{significant[point:]}"
    rest = f".{significant[1:]}" if len(significant) > 1 else ""
    shift = point - 1
    return f"{sign}{significant[0]}{rest}e{'-' if shift < 0 else '+'}{abs(shift):02}"
