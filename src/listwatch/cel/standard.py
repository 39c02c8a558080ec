"""The functions and operators of CEL itself, and its optional values.

Rules: github.com/google/cel-spec, doc/langdef.md; comparisons of numbers of different types as
Kubernetes has them since 1.28.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from listwatch.cel.errors import CostLimitExceededError, EvaluationError
from listwatch.cel.functions import Function, Overload, function, method, plain
from listwatch.cel.patterns import compile_pattern
from listwatch.cel.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    parameter,
    type_of,
)
from listwatch.cel.values import (
    NOTHING,
    Duration,
    Optional,
    Timestamp,
    TypeName,
    UInt,
    Unordered,
    Value,
    bucket,
    checked_int,
    checked_uint,
    equal,
    parse_duration,
    parse_timestamp,
    shown_double,
    type_name,
)

_A, _B, _K, _V = parameter("A"), parameter("B"), parameter("K"), parameter("V")
_NUMBERS = (INT, UINT, DOUBLE)
_INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_DOUBLE = re.compile(
    r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)


#: More items than a request's body can contain. A real server never copies items, so concatenation
#: costs little; here, without a limit, variables that double a list could fill the memory.
_LIST_LIMIT = 1 << 22


def add(one: Value, other: Value) -> Value:
    """Add numbers, concatenate texts and lists, shift times."""
    match one, other:
        case Duration(), Duration():
            return Duration(one.nanoseconds + other.nanoseconds)
        case Timestamp(), Duration():
            return Timestamp(one.nanoseconds + other.nanoseconds)
        case Duration(), Timestamp():
            return Timestamp(one.nanoseconds + other.nanoseconds)
        case (str(), str()) | (bytes(), bytes()):
            return one + other  # type: ignore[operator]  # both have the same type
        case float(), float():
            return one + other
        case UInt(), UInt():
            return checked_uint(int(one) + int(other))
        case int(), int():
            return checked_int(one + other)
        case Unordered(), Sequence():
            return _merged(one, other)
        case Sequence(), Sequence():
            if len(one) + len(other) > _LIST_LIMIT:
                raise CostLimitExceededError
            return [*one, *other]
    raise EvaluationError("no such overload")


def _merged(one: Unordered, other: Sequence[Value]) -> Unordered:
    """Add to a set or a list of type map: existing items keep their place."""
    result = list(one)
    places: dict[object, list[int]] = {}
    for position, item in enumerate(result):
        places.setdefault(bucket(one.key(item)), []).append(position)
    for item in other:
        key = one.key(item)
        known = places.setdefault(bucket(key), [])
        for position in known:
            if equal(one.key(result[position]), key):
                result[position] = item
                break
        else:
            known.append(len(result))
            result.append(item)
    return Unordered(result, one.keys)


def subtract(one: Value, other: Value) -> Value:
    """Subtract numbers and times."""
    match one, other:
        case Timestamp(), Timestamp():
            return Duration(one.nanoseconds - other.nanoseconds)
        case Timestamp(), Duration():
            return Timestamp(one.nanoseconds - other.nanoseconds)
        case Duration(), Duration():
            return Duration(one.nanoseconds - other.nanoseconds)
        case float(), float():
            return one - other
        case UInt(), UInt():
            return checked_uint(int(one) - int(other))
        case int(), int():
            return checked_int(one - other)
    raise EvaluationError("no such overload")


def multiply(one: Value, other: Value) -> Value:
    """Multiply numbers of one type."""
    match one, other:
        case float(), float():
            return one * other
        case UInt(), UInt():
            return checked_uint(int(one) * int(other))
        case int(), int():
            return checked_int(one * other)
    raise EvaluationError("no such overload")


def divide(one: Value, other: Value) -> Value:
    """Divide numbers of one type; integers truncate towards zero."""
    match one, other:
        case float(), float():
            if other == 0.0:
                if one == 0.0 or math.isnan(one):
                    return math.nan
                return math.copysign(math.inf, one) * math.copysign(1.0, other)
            return one / other
        case int(), int():
            if other == 0:
                raise EvaluationError("division by zero")
            result = abs(one) // abs(other)
            if isinstance(one, UInt):
                return UInt(result)
            return checked_int(result if (one < 0) == (other < 0) else -result)
    raise EvaluationError("no such overload")


def modulo(one: Value, other: Value) -> Value:
    """Return the remainder of integers, with the sign of the dividend."""
    match one, other:
        case int(), int():
            if other == 0:
                raise EvaluationError("modulus by zero")
            if other == -1 and one == -(1 << 63):
                raise EvaluationError("integer overflow")
            result = abs(one) % abs(other)
            return UInt(result) if isinstance(one, UInt) else (-result if one < 0 else result)
    raise EvaluationError("no such overload")


def negate(value: Value) -> Value:
    """Negate a number."""
    match value:
        case float():
            return -value
        case int():
            return checked_int(-value)
    raise EvaluationError("no such overload")


def _comparison(name: str, compare: Callable[..., bool]) -> Function:
    label = {"<": "less", "<=": "less_equals", ">": "greater", ">=": "greater_equals"}[name]
    same = (BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION)
    overloads = [plain(f"{label}_{one.kind}", one, one, BOOL) for one in same]
    overloads += [
        plain(f"{label}_{one.kind}_{other.kind}", one, other, BOOL)
        for one in _NUMBERS
        for other in _NUMBERS
        if one != other
    ]

    def call(one: Value, other: Value) -> bool:
        # Like the reference, compare an integer with a double as doubles.
        if type(one) is float or type(other) is float:
            one, other = float(one), float(other)  # type: ignore[arg-type]  # both are numbers
        return compare(one, other)

    return Function(f"_{name}_", tuple(overloads), call)


def contains_key(key: Value, container: Value) -> bool:
    """Return whether a list has an equal element, or a map the key."""
    if isinstance(container, Mapping):
        return key in container and type(key) is not bool
    assert isinstance(container, Sequence)
    return any(equal(key, item) for item in container)


def get_item(container: Value, key: Value) -> Value:
    """Return the element of a list or the value of a map; raise an error if absent."""
    if isinstance(container, Optional):
        return get_optional_item(container, key)
    if isinstance(container, Mapping):
        try:
            return container[key]
        except KeyError:
            raise EvaluationError(f"no such key: {_shown_key(key)}") from None
    if not isinstance(container, Sequence):
        raise EvaluationError("no such overload")
    position = _position(key)
    if not 0 <= position < len(container):
        raise EvaluationError(f"index out of bounds: {position}")
    value: Value = container[position]
    return value


def get_optional_item(container: Value, key: Value) -> Optional:
    """Return the element of a list or the value of a map, if it exists."""
    if isinstance(container, Optional):
        return get_optional_item(container.value, key) if container.present else NOTHING
    if isinstance(container, Mapping):
        return Optional(container[key]) if key in container else NOTHING
    if not isinstance(container, Sequence):
        raise EvaluationError("no such overload")
    position = _position(key)
    return Optional(container[position]) if 0 <= position < len(container) else NOTHING


def _position(key: Value) -> int:
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    if isinstance(key, float) and key.is_integer():
        return int(key)
    raise EvaluationError(f"unsupported index type '{type_name(key)}' in list")


def _shown_key(key: Value) -> str:
    return str(key) if not isinstance(key, bool) else str(key).lower()


def insert(into: Mapping[Value, Value], *what: Value) -> Mapping[Value, Value]:
    """Return a map with a key and value, or the entries of another map, added."""
    if len(what) == 2:
        new: Mapping[Value, Value] = {what[0]: what[1]}
    else:
        (entries,) = what
        assert isinstance(entries, Mapping)
        new = entries
    for key in new:
        if key in into:
            raise EvaluationError(f"insert failed: key {_shown_key(key)} already exists")
    return {**into, **new}


def _length(value: Value) -> int:
    return len(value)  # type: ignore[arg-type]  # overloads: text, bytes, list, map


def to_int(value: Value) -> int:
    """Convert to an integer."""
    match value:
        case float():
            if math.isnan(value) or math.isinf(value) or not -(2.0**63) < value < 2.0**63:
                raise EvaluationError("integer overflow")
            return int(value)
        case int():
            return checked_int(int(value))
        case str():
            if not _INTEGER.fullmatch(value):
                raise EvaluationError(f"strconv.ParseInt: parsing {_quoted(value)}: invalid syntax")
            return checked_int(int(value))
        case Timestamp():
            return value.nanoseconds // 1_000_000_000
        case Duration():
            return value.nanoseconds
    raise EvaluationError("no such overload")


def to_uint(value: Value) -> UInt:
    """Convert to an unsigned integer."""
    match value:
        case float():
            if math.isnan(value) or math.isinf(value) or not 0 <= value < 2.0**64:
                raise EvaluationError("unsigned integer overflow")
            return UInt(int(value))
        case int():
            return checked_uint(int(value))
        case str():
            if not value.isdecimal() or not value.isascii():
                raise EvaluationError(
                    f"strconv.ParseUint: parsing {_quoted(value)}: invalid syntax"
                )
            return checked_uint(int(value))
    raise EvaluationError("no such overload")


def to_double(value: Value) -> float:
    """Convert to a double."""
    match value:
        case float():
            return value
        case int():
            return float(value)
        case str():
            if not _DOUBLE.fullmatch(value):
                raise EvaluationError(
                    f"strconv.ParseFloat: parsing {_quoted(value)}: invalid syntax"
                )
            return float(value)
    raise EvaluationError("no such overload")


def to_bool(value: Value) -> bool:
    """Convert to a boolean."""
    if isinstance(value, bool):
        return value
    if value in {"true", "True", "TRUE", "t", "T", "1"}:
        return True
    if value in {"false", "False", "FALSE", "f", "F", "0"}:
        return False
    raise EvaluationError(f"strconv.ParseBool: parsing {_quoted(str(value))}: invalid syntax")


def to_string(value: Value) -> str:
    """Convert to a text."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float():
            return shown_double(value)
        case int() | Timestamp() | Duration():
            return str(int(value) if isinstance(value, int) else value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
        case TypeName():
            return value.name
    return str(value)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_bytes(value: Value) -> bytes:
    """Convert to bytes."""
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]  # or bytes


def to_timestamp(value: Value) -> Timestamp:
    """Convert to a timestamp: from seconds since 1970, or from RFC 3339."""
    match value:
        case Timestamp():
            return value
        case int():
            return Timestamp(value * 1_000_000_000)
    try:
        return parse_timestamp(str(value))
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def to_duration(value: Value) -> Duration:
    """Convert to a duration: from nanoseconds, or from a text such as `1h30m`."""
    match value:
        case Duration():
            return value
        case int():
            return Duration(int(value))
    try:
        return parse_duration(str(value))
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def to_type(value: Value) -> TypeName:
    """Return the type of a value."""
    return TypeName(type_name(value))


def _matches(text: str, pattern: str) -> bool:
    return compile_pattern(pattern).search(text) is not None


def _first_part(text: str, part: str) -> bool:
    return text.startswith(part)


def _last_part(text: str, part: str) -> bool:
    return text.endswith(part)


def _calendar(name: str, read: Callable[[Timestamp, str | None], int]) -> Function:
    def call(value: Value, zone: str | None = None) -> int:
        assert isinstance(value, Timestamp)
        return read(value, zone)

    label = f"timestamp_to_{name}"
    return function(
        name,
        call,
        method(label, TIMESTAMP, INT),
        method(f"{label}_with_tz", TIMESTAMP, STRING, INT),
    )


def _clock(name: str, part: Callable[[Timestamp, str | None], int], unit: int) -> Function:
    def call(value: Value, zone: str | None = None) -> int:
        if isinstance(value, Duration):
            whole = abs(value.nanoseconds) // unit
            return -whole if value.nanoseconds < 0 else whole
        assert isinstance(value, Timestamp)
        return part(value, zone)

    return function(
        name,
        call,
        method(f"timestamp_to_{name}", TIMESTAMP, INT),
        method(f"timestamp_to_{name}_with_tz", TIMESTAMP, STRING, INT),
        method(f"duration_to_{name}", DURATION, INT),
    )


def _is_zero(value: Value) -> bool:
    match value:
        case None:
            return True
        case Duration() | Timestamp():
            return value.nanoseconds == 0
        case str() | bytes() | Mapping() | Sequence():
            return len(value) == 0
        case bool() | int() | float():
            return not value
    return False


def _unwrap(items: Sequence[Optional]) -> list[Value]:
    return [item.value for item in items if item.present]


def _conversion(name: str, call: Callable[..., Value], result: Type, *sources: Type) -> Function:
    return Function(
        name,
        tuple(plain(f"{source.kind}_to_{result.kind}", source, result) for source in sources),
        call,
    )


def _arithmetic(sign: str, label: str, call: Callable[..., Value], *more: Overload) -> Function:
    numbers = _NUMBERS if sign != "%" else _NUMBERS[:2]
    overloads = [plain(f"{label}_{one.kind}", one, one, one) for one in numbers]
    return Function(f"_{sign}_", (*overloads, *more), call)


def _never(*_: Value) -> Value:
    raise AssertionError("the program has its own code for this operator")


_OPTIONAL_V = optional_of(_V)
_OPTIONAL_A = optional_of(_A)

STANDARD: tuple[Function, ...] = (
    function("_&&_", _never, plain("logical_and", BOOL, BOOL, BOOL)),
    function("_||_", _never, plain("logical_or", BOOL, BOOL, BOOL)),
    function("!_", operator.not_, plain("logical_not", BOOL, BOOL)),
    function("@not_strictly_false", _never, plain("not_strictly_false", BOOL, BOOL)),
    function("_?_:_", _never, plain("conditional", BOOL, _A, _A, _A)),
    function("_==_", equal, plain("equals", _A, _A, BOOL)),
    function("_!=_", lambda a, b: not equal(a, b), plain("not_equals", _A, _A, BOOL)),
    _comparison("<", operator.lt),
    _comparison("<=", operator.le),
    _comparison(">", operator.gt),
    _comparison(">=", operator.ge),
    _arithmetic(
        "+", "add", add,
        plain("add_bytes", BYTES, BYTES, BYTES),
        plain("add_string", STRING, STRING, STRING),
        plain("add_list", list_of(_A), list_of(_A), list_of(_A)),
        plain("add_duration_duration", DURATION, DURATION, DURATION),
        plain("add_duration_timestamp", DURATION, TIMESTAMP, TIMESTAMP),
        plain("add_timestamp_duration", TIMESTAMP, DURATION, TIMESTAMP),
    ),
    _arithmetic(
        "-", "subtract", subtract,
        plain("subtract_duration_duration", DURATION, DURATION, DURATION),
        plain("subtract_timestamp_duration", TIMESTAMP, DURATION, TIMESTAMP),
        plain("subtract_timestamp_timestamp", TIMESTAMP, TIMESTAMP, DURATION),
    ),
    _arithmetic("*", "multiply", multiply),
    _arithmetic("/", "divide", divide),
    _arithmetic("%", "modulo", modulo),
    function("-_", negate, plain("negate_int64", INT, INT), plain("negate_double", DOUBLE, DOUBLE)),
    function(
        "@in", contains_key,
        plain("in_list", _A, list_of(_A), BOOL), plain("in_map", _A, map_of(_A, _B), BOOL),
    ),
    function(
        "_[_]", get_item,
        plain("index_list", list_of(_A), INT, _A),
        plain("index_map", map_of(_A, _B), _A, _B),
        plain("optional_list_index_int", optional_of(list_of(_V)), INT, _OPTIONAL_V),
        plain("optional_map_index_value", optional_of(map_of(_K, _V)), _K, _OPTIONAL_V),
    ),
    function(
        "_[?_]", get_optional_item,
        plain("list_optindex_optional_int", list_of(_V), INT, _OPTIONAL_V),
        plain("optional_list_optindex_optional_int", optional_of(list_of(_V)), INT, _OPTIONAL_V),
        plain("map_optindex_optional_value", map_of(_K, _V), _K, _OPTIONAL_V),
        plain("optional_map_optindex_optional_value", optional_of(map_of(_K, _V)), _K, _OPTIONAL_V),
    ),
    function(
        "@insert", insert,
        plain("@mapInsert_map_key_value", map_of(_K, _V), _K, _V, map_of(_K, _V)),
        plain("@mapInsert_map_map", map_of(_K, _V), map_of(_K, _V), map_of(_K, _V)),
    ),
    function(
        "size", _length,
        *chain.from_iterable(
            (plain(f"size_{one.kind}", one, INT), method(f"{one.kind}_size", one, INT))
            for one in (STRING, BYTES, list_of(_A), map_of(_A, _B))
        ),
    ),
    _conversion("int", to_int, INT, INT, UINT, DOUBLE, STRING, TIMESTAMP, DURATION),
    _conversion("uint", to_uint, UINT, UINT, INT, DOUBLE, STRING),
    _conversion("double", to_double, DOUBLE, DOUBLE, INT, UINT, STRING),
    _conversion("bool", to_bool, BOOL, BOOL, STRING),
    _conversion(
        "string", to_string, STRING,
        STRING, BOOL, INT, UINT, DOUBLE, BYTES, TIMESTAMP, DURATION, IP, CIDR,
    ),
    _conversion("bytes", to_bytes, BYTES, BYTES, STRING),
    _conversion("timestamp", to_timestamp, TIMESTAMP, TIMESTAMP, STRING, INT),
    _conversion("duration", to_duration, DURATION, DURATION, STRING, INT),
    function("dyn", lambda value: value, plain("to_dyn", _A, DYN)),
    function("type", to_type, plain("type", _A, type_of(_A))),
    function("contains", operator.contains, method("contains_string", STRING, STRING, BOOL)),
    function("startsWith", _first_part, method("starts_with_string", STRING, STRING, BOOL)),
    function("endsWith", _last_part, method("ends_with_string", STRING, STRING, BOOL)),
    function(
        "matches", _matches,
        method("matches_string", STRING, STRING, BOOL), plain("matches", STRING, STRING, BOOL),
    ),
    _calendar("getFullYear", lambda at, zone: at.in_zone(zone).year),
    _calendar("getMonth", lambda at, zone: at.in_zone(zone).month - 1),
    _calendar("getDate", lambda at, zone: at.in_zone(zone).day),
    _calendar("getDayOfMonth", lambda at, zone: at.in_zone(zone).day - 1),
    _calendar("getDayOfWeek", lambda at, zone: at.in_zone(zone).isoweekday() % 7),
    _calendar("getDayOfYear", lambda at, zone: at.in_zone(zone).timetuple().tm_yday - 1),
    _clock("getHours", lambda at, zone: at.in_zone(zone).hour, 3600 * 1_000_000_000),
    _clock("getMinutes", lambda at, zone: at.in_zone(zone).minute, 60 * 1_000_000_000),
    _clock("getSeconds", lambda at, zone: at.in_zone(zone).second, 1_000_000_000),
    _clock("getMilliseconds", lambda at, zone: at.in_zone(zone).microsecond // 1000, 1_000_000),
    function("optional.of", Optional, plain("optional_of", _V, _OPTIONAL_V)),
    function("optional.none", lambda: NOTHING, plain("optional_none", _OPTIONAL_V)),
    function(
        "optional.ofNonZeroValue",
        lambda value: NOTHING if _is_zero(value) else Optional(value),
        plain("optional_ofNonZeroValue", _V, _OPTIONAL_V),
    ),
    function("value", lambda held: held.value, method("optional_value", _OPTIONAL_V, _V)),
    function("hasValue", lambda held: held.present, method("optional_hasValue", _OPTIONAL_V, BOOL)),
    function(
        "or", lambda one, other: one if one.present else other,
        method("optional_or_optional", _OPTIONAL_V, _OPTIONAL_V, _OPTIONAL_V),
    ),
    function(
        "orValue", lambda held, other: held.value if held.present else other,
        method("optional_orValue_value", _OPTIONAL_V, _V, _V),
    ),
    function(
        "first", lambda items: Optional(items[0]) if items else NOTHING,
        method("list_first", list_of(_V), _OPTIONAL_V),
    ),
    function(
        "last", lambda items: Optional(items[-1]) if items else NOTHING,
        method("list_last", list_of(_V), _OPTIONAL_V),
    ),
    function(
        "optional.unwrap", _unwrap, plain("optional_unwrap", list_of(_OPTIONAL_V), list_of(_V)),
    ),
    function(
        "unwrapOpt", _unwrap, method("optional_unwrapOpt", list_of(_OPTIONAL_V), list_of(_V)),
    ),
)  # fmt: skip
"""Nothing depends on the order, except the order in messages."""

__all__ = ["STANDARD"]
