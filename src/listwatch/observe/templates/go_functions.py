"""The functions of Go's text/template, and Go's formatting of values."""

import base64
import binascii
import html
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote_plus

from listwatch.observe.templates.template import TemplateError, number_text, same

_VERB = re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d*))?(.)", re.DOTALL)
_TYPES = {str: "string", bool: "bool", int: "int", float: "float64"}


def value_text(value: Any, *, nil: str = "<nil>") -> str:
    """Return a value as Go's `%v` formats it.

    Args:
        value: a JSON value.
        nil: the text of None at the top level.
    """
    if value is None:
        return nil
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{value_text(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(value_text, value))}]"
    return str(value)


def truth(value: Any) -> bool:
    """Return whether Go treats a value as true: anything not empty or zero."""
    return bool(value)


def _equal(first: Any, *others: Any) -> bool:
    if not others:
        raise TemplateError("missing argument for comparison")
    return any(same(first, other) for other in others)


def _less(left: Any, right: Any) -> bool:
    kinds = [
        "number" if isinstance(v, int | float) and not isinstance(v, bool) else type(v).__name__
        for v in (left, right)
    ]
    if kinds[0] != kinds[1] or kinds[0] not in {"number", "str"}:
        raise TemplateError("incompatible types for comparison")
    return bool(left < right)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if value is None:
            raise TemplateError("index of untyped nil")
        if isinstance(value, dict):
            value = value.get(key) if isinstance(key, str) else None
        elif isinstance(value, list | str):
            value = _place(value, key)
        else:
            raise TemplateError(f"can't index item of type {type_name(value)}")
    return value


def _place(value: Any, key: Any) -> Any:
    if not isinstance(key, int) or isinstance(key, bool):
        raise TemplateError(f"cannot index slice/array with type {type_name(key)}")
    if not 0 <= key < len(value):
        raise TemplateError(f"index out of range: {key}")
    return ord(value[key]) if isinstance(value, str) else value[key]


def _slice(value: Any, *bounds: Any) -> Any:
    if not isinstance(value, list | str):
        raise TemplateError(f"can't slice item of type {type_name(value)}")
    if not all(isinstance(bound, int) and 0 <= bound <= len(value) for bound in bounds[:2]):
        raise TemplateError("slice: index out of range")
    first = bounds[0] if bounds else 0
    last = bounds[1] if len(bounds) > 1 else len(value)
    return value[first:last]


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if not isinstance(value, dict | list):
        raise TemplateError(f"len of type {type_name(value)}")
    return len(value)


def _print(*values: Any) -> str:
    pieces: list[str] = []
    for place, value in enumerate(values):
        if place and not isinstance(value, str) and not isinstance(values[place - 1], str):
            pieces.append(" ")
        pieces.append(value_text(value))
    return "".join(pieces)


def _println(*values: Any) -> str:
    return " ".join(map(value_text, values)) + "\n"


def _exists(value: Any, *path: Any) -> bool:
    try:
        return _index(value, *path) is not None
    except TemplateError:
        return False


def _base64_decode(text: Any) -> str:
    try:
        return base64.b64decode(str(text), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise TemplateError(f"unable to decode base64: {error}") from None


def type_name(value: Any) -> str:
    """Return Go's name of a value's type."""
    if value is None:
        return "nil"
    if isinstance(value, dict):
        return "map[string]interface {}"
    return _TYPES.get(type(value), "[]interface {}")


# --- printf --------------------------------------------------------------------------------------


def _printf(layout: Any, *values: Any) -> str:
    if not isinstance(layout, str):
        raise TemplateError("printf needs a text first")
    rest = list(values)

    def verb(match: re.Match[str]) -> str:
        flags, width, precision, letter = match.groups()
        if letter == "%":
            return "%"
        if not rest:
            return f"%!{letter}(MISSING)"
        value = rest.pop(0)
        # Go's own limit.
        if width and len(width) > 6:
            return "%!(BADWIDTH)" + _formatted(letter, value, flags, precision)
        if precision and len(precision) > 6:
            return "%!(BADPREC)" + _formatted(letter, value, flags, None)
        text = _formatted(letter, value, flags, precision)
        return _padded(text, flags, width, number=letter in "dfeEgGxXob")

    text = _VERB.sub(verb, layout)
    if rest:
        extra = ", ".join(f"{type_name(value)}={value_text(value)}" for value in rest)
        text += f"%!(EXTRA {extra})"
    return text


def _padded(text: str, flags: str, width: str, *, number: bool) -> str:
    if not width:
        return text
    if "-" in flags:
        return text.ljust(int(width))
    if "0" in flags and number:
        return text.zfill(int(width))
    return text.rjust(int(width))


def _formatted(letter: str, value: Any, flags: str, precision: str | None) -> str:
    plus = "+" if "+" in flags else ""
    cut = None if precision is None else int(precision or 0)
    text: str | None = None
    if letter == "v":
        text = value_text(value)
    elif letter == "T":
        text = type_name(value)
    elif isinstance(value, bool):
        text = value_text(value) if letter == "t" else None
    elif isinstance(value, str):
        text = _formatted_text(letter, value, cut)
    elif isinstance(value, int | float):
        text = _formatted_number(letter, value, plus, cut)
    elif letter == "s" and value is not None:
        text = value_text(value)
    if text is not None:
        return text
    what = f"{type_name(value)}={value_text(value)}" if value is not None else "<nil>"
    return f"%!{letter}({what})"


def _formatted_text(letter: str, text: str, cut: int | None) -> str | None:
    if letter == "s":
        return text[:cut]
    if letter == "q":
        return _quoted(text)
    if letter in "xX":
        digits = text.encode().hex()
        return digits.upper() if letter == "X" else digits
    return None


def _formatted_number(letter: str, value: float, plus: str, cut: int | None) -> str | None:
    if letter in "gG" and cut is None:
        return plus + number_text(value)
    if letter in "feEgG":
        return format(float(value), f"{plus}.{6 if cut is None else cut}{letter}")
    if not isinstance(value, int):
        return None
    if letter in "dxXob":
        return format(value, plus + letter)
    if letter == "c":
        return _character(value)
    return f"U+{value:04X}" if letter == "U" else None


def _character(code: int) -> str:
    valid = 0 <= code < 0xD800 or 0xE000 <= code < 0x110000
    return chr(code) if valid else "\ufffd"


def _quoted(text: str) -> str:
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    letters = (
        escapes.get(letter)
        or (
            letter
            if letter.isprintable()
            else f"\\u{ord(letter):04x}"
            if ord(letter) > 127
            else f"\\x{ord(letter):02x}"
        )
        for letter in text
    )
    return f'"{"".join(letters)}"'


_SCRIPT = {"\\": "\\\\", "'": "\\'", '"': '\\"'}
_SCRIPT_CODES = frozenset("<>&=")


def _script(*values: Any) -> str:
    """Return the values as the inside of a string of JavaScript, as Go's `js` writes it."""
    return "".join(
        _SCRIPT.get(letter)
        or (
            letter
            if letter.isprintable() and letter not in _SCRIPT_CODES
            else f"\\u{ord(letter):04X}"
        )
        for letter in _print(*values)
    )


#: The functions except `and` and `or`, which do not evaluate all of their arguments.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "base64decode": _base64_decode,
    "eq": _equal,
    "exists": _exists,
    "ge": lambda left, right: not _less(left, right),
    "gt": lambda left, right: _less(right, left),
    "html": lambda *values: (
        html.escape(_print(*values)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    ),
    "index": _index,
    "js": _script,
    "le": lambda left, right: not _less(right, left),
    "len": _length,
    "lt": _less,
    "ne": lambda left, right: not same(left, right),
    "not": lambda value: not truth(value),
    "print": _print,
    "printf": _printf,
    "println": _println,
    "slice": _slice,
    "urlquery": lambda *values: quote_plus(_print(*values)),
}
