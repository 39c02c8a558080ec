"""CEL's strings extension, version 2, and Kubernetes' functions for regular expressions.

Rules: github.com/google/cel-go, ext/README.md; k8s.io/apiserver, pkg/cel/library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from listwatch.cel.errors import EvaluationError
from listwatch.cel.functions import Function, function, method, plain
from listwatch.cel.patterns import compile_pattern
from listwatch.cel.standard import to_string
from listwatch.cel.types import DYN, INT, STRING, list_of
from listwatch.cel.values import Duration, Timestamp, TypeName, UInt, Value, type_name

_WHITE = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _out_of_range(position: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {position}")


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise _out_of_range(position)
    return text[position : position + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    return text.find(part, start)


def _last_index_of(text: str, part: str, last: int | None = None) -> int:
    if last is None:
        return text.rfind(part)
    if last < 0:
        raise _out_of_range(last)
    if not part:
        return min(last, len(text))
    return text.rfind(part, 0, last + len(part))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, count)


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if separator:
        return text.split(separator, count - 1 if count > 0 else -1)
    if count < 0 or count >= len(text):
        return list(text)
    return [*text[: count - 1], text[count - 1 :]]


def _substring(text: str, start: int, end: int | None = None) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if end is None:
        return text[start:]
    if not 0 <= end <= len(text):
        raise _out_of_range(end)
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    return text[start:end]


def _join(parts: Sequence[Value], separator: str = "") -> str:
    for part in parts:
        if not isinstance(part, str):
            raise EvaluationError(f"join: invalid input: {to_string(part)}")
    return separator.join(parts)  # type: ignore[arg-type]  # checked above


_QUOTED = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def quote(text: str) -> str:
    """Return a text in quotes, with special characters escaped."""
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


#: No double has more digits that are not zero. Without a limit, a short clause could produce a huge
#: string.
_PRECISION_LIMIT = 1_100


def format_text(text: str, arguments: Sequence[Value]) -> str:
    """Format a text with clauses (`%s`, `%d`, `%.2f`, `%e`, `%b`, `%x`, `%X`, `%o`, `%%`).

    Raises EvaluationError for an unknown clause, or a missing or mistyped argument.
    """
    result: list[str] = []
    position = used = 0
    while True:
        start = text.find("%", position)
        if start < 0:
            result.append(text[position:])
            return "".join(result)
        result.append(text[position:start])
        if text.startswith("%%", start):
            result.append("%")
            position = start + 2
            continue
        clause, precision, position = read_clause(text, start)
        if used >= len(arguments):
            raise EvaluationError(f"index {used} out of range")
        result.append(format_one(clause, precision, arguments[used]))
        used += 1


def read_clause(text: str, start: int) -> tuple[str, int, int]:
    """Return a clause's letter, its precision (6 by default) and its end."""
    position = start + 1
    precision = 6
    if text.startswith(".", position):
        end = position + 1
        while text[end : end + 1].isdigit():
            end += 1
        if end == position + 1:
            raise EvaluationError("could not parse formatting clause: unexpected end of string")
        digits = text[position + 1 : end]
        # check the length first: Python refuses to parse very long numbers
        if not digits.isascii() or len(digits) > 4 or int(digits) > _PRECISION_LIMIT:
            raise EvaluationError(
                "could not parse formatting clause: error while parsing precision: "
                f"{quote(digits)} is not a number from 0 to {_PRECISION_LIMIT}"
            )
        precision = int(digits)
        position = end
    if position >= len(text):
        raise EvaluationError("unexpected end of string")
    letter = text[position]
    if letter not in "sdfebxXo":
        raise EvaluationError(
            f'could not parse formatting clause: unrecognized formatting clause "{letter}"'
        )
    return letter, precision, position + 1


def format_one(clause: str, precision: int, value: Value) -> str:
    """Return one argument formatted by its clause."""
    match clause:
        case "s":
            return _shown(value)
        case "d":
            if isinstance(value, int) and not isinstance(value, bool):
                return str(int(value))
            wanted = "decimal clause can only be used on integers"
        case "f" | "e":
            number = _double(value)
            if number is not None:
                return (
                    _fixed(number, precision) if clause == "f" else _scientific(number, precision)
                )
            name = "fixed-point" if clause == "f" else "scientific"
            wanted = f"{name} clause can only be used on doubles"
        case "b":
            if isinstance(value, int):
                return f"{int(value):b}"
            wanted = "only integers and bools can be formatted as binary"
        case "o":
            if isinstance(value, int) and not isinstance(value, bool):
                return f"{int(value):o}"
            wanted = "octal clause can only be used on integers"
        case _:
            if isinstance(value, str | bytes):
                hexadecimal = (value.encode() if isinstance(value, str) else value).hex()
                return hexadecimal if clause == "x" else hexadecimal.upper()
            if isinstance(value, int) and not isinstance(value, bool):
                return f"{int(value):{clause}}"
            wanted = "only integers, byte buffers, and strings can be formatted as hex"
    raise EvaluationError(f"error during formatting: {wanted}, was given {type_name(value)}")


def _double(value: Value) -> float | None:
    if isinstance(value, float):
        return value
    if value in {"NaN", "Infinity", "-Infinity"}:
        return float(str(value))
    return None


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return None


def _fixed(number: float, precision: int) -> str:
    return _special(number) or f"{number:,.{precision}f}"


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _scientific(number: float, precision: int) -> str:
    special = _special(number)
    if special:
        return special
    mantissa, _, exponent = f"{number:.{precision}e}".partition("e")
    sign = "-" if exponent.startswith("-") else ""
    # The reference formats for a locale: a times sign and superscript digits.
    return f"{mantissa}\u202f\u00d7\u202f10{(sign + exponent[1:]).translate(_SUPERSCRIPT)}"


def _shown(value: Value) -> str:
    match value:
        case None:
            return "null"
        case str():
            return value
        case bool() | int() | float() | bytes() | Timestamp() | Duration() | TypeName():
            return to_string(value)
        case Mapping():
            entries = sorted((_inside(k), _inside(v)) for k, v in value.items())
            return "{" + ", ".join(f"{key}:{held}" for key, held in entries) + "}"
        case Sequence():
            return "[" + ", ".join(_inside(item) for item in value) + "]"
    raise EvaluationError(
        "error during formatting: string clause can only be used on strings, bools, bytes, ints, "
        f"doubles, maps, lists, types, durations, and timestamps, was given {type_name(value)}"
    )


def _inside(value: Value) -> str:
    match value:
        case str():
            return quote(value)
        case bytes():
            return "b" + quote(to_string(value))
        case bool() | UInt() | int():
            return to_string(value)
        case float():
            return _special(value) or f"{value:.6f}"
        case Timestamp():
            return f'timestamp("{value}")'
        case Duration():
            return f'duration("{value}")'
        case TypeName():
            return f"type({value.name})"
    return _shown(value)


def _find(text: str, pattern: str) -> str:
    found = compile_pattern(pattern).search(text)
    return "" if found is None else found[0]


def _find_all(text: str, pattern: str, count: int = -1) -> list[str]:
    found = [match[0] for match in compile_pattern(pattern).finditer(text)]
    return found if count < 0 else found[:count]


STRINGS: tuple[Function, ...] = (
    function("charAt", _char_at, method("string_char_at_int", STRING, INT, STRING)),
    function(
        "lowerAscii",
        lambda text: text.translate(_LOWER),
        method("string_lower_ascii", STRING, STRING),
    ),
    function(
        "upperAscii",
        lambda text: text.translate(_UPPER),
        method("string_upper_ascii", STRING, STRING),
    ),
    function(
        "replace",
        _replace,
        method("string_replace_string_string", STRING, STRING, STRING, STRING),
        method("string_replace_string_string_int", STRING, STRING, STRING, INT, STRING),
    ),
    function(
        "split",
        _split,
        method("string_split_string", STRING, STRING, list_of(STRING)),
        method("string_split_string_int", STRING, STRING, INT, list_of(STRING)),
    ),
    function(
        "substring",
        _substring,
        method("string_substring_int", STRING, INT, STRING),
        method("string_substring_int_int", STRING, INT, INT, STRING),
    ),
    function("trim", lambda text: text.strip(_WHITE), method("string_trim", STRING, STRING)),
    function("format", format_text, method("string_format", STRING, list_of(DYN), STRING)),
    function("strings.quote", quote, plain("strings_quote", STRING, STRING)),
    function(
        "join",
        _join,
        method("list_join", list_of(STRING), STRING),
        method("list_join_string", list_of(STRING), STRING, STRING),
    ),
    function("find", _find, method("string_find_string", STRING, STRING, STRING)),
    function(
        "findAll",
        _find_all,
        method("string_find_all_string", STRING, STRING, list_of(STRING)),
        method("string_find_all_string_int", STRING, STRING, INT, list_of(STRING)),
    ),
)

INDEX_OF_TEXT: tuple[Callable[..., int], Callable[..., int]] = (_index_of, _last_index_of)

__all__ = ["INDEX_OF_TEXT", "STRINGS", "format_one", "format_text", "quote", "read_clause"]
