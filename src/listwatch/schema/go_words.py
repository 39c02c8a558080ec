"""Formats values as Go prints them, where a real server shows its memory; parses Go's numbers."""

from typing import Any

from listwatch.schema.facts import ANY, Form, Schema


def go_words(value: Any) -> str:
    """Return a decoded JSON value as Go's `%+v` prints it."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return f"map[{' '.join(f'{key}:{go_words(value[key])}' for key in sorted(value))}]"
        case list():
            return f"[{' '.join(map(go_words, value))}]"
    return str(value)


def whole_number(text: str, function: str = "ParseInt") -> int:
    """Parse a 64-bit number like a function of Go's `strconv`; ParseUint accepts no sign.

    Raises:
        ValueError: in Go's words.
    """
    signed = function != "ParseUint"
    digits = text[1:] if signed and text[:1] in {"+", "-"} else text
    why = "invalid syntax"
    if digits.isascii() and digits.isdigit():
        why = "value out of range"
        if len(digits.lstrip("0")) <= 20:  # Python parses longer ones too, but not all
            value = int(text)
            if -(1 << 63) <= value < 1 << 63 if signed else value < 1 << 64:
                return value
    raise ValueError(f'strconv.{function}: parsing "{text}": {why}')


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int():
            return "int64"
        case float():
            return "float64"
        case list():
            return "slice"
    return "map"


def unrestorable(value: Any, schema: Schema) -> str:
    """Return why a strategic merge's result does not fit its type; "" if it does.

    The words are those of `FromUnstructured` (`apimachinery/pkg/runtime/converter.go`), which
    decodes the result, unlike the JSON decoder of the other patches.
    """
    form = schema.form
    if value is None or form is Form.ANY:
        return ""
    if form is Form.STRUCT:
        if not isinstance(value, dict):
            return f"cannot restore struct from: {_kind(value)}"
        parts = ((value.get(name), field) for name, field in schema.fields.items())
        return next(filter(None, (unrestorable(each, field) for each, field in parts)), "")
    item = schema.item
    if form is Form.MAP and item is not None:
        if not isinstance(value, dict):
            return f"cannot restore map from {_kind(value)}"
        return next(filter(None, (unrestorable(each, item) for each in value.values())), "")
    if form is Form.LIST and item is not None:
        if not isinstance(value, list):
            return f"cannot restore slice from {_kind(value)}"
        return next(filter(None, (unrestorable(each, item) for each in value)), "")
    return _scalar(value, form, schema.go_type)


def restored(value: Any, schema: Schema) -> Any:
    """Return a value as `FromUnstructured` decodes it: a number that is too long loses digits."""
    form, item = schema.form, schema.item
    if form is Form.STRUCT and isinstance(value, dict):
        return {key: restored(each, schema.fields.get(key, ANY)) for key, each in value.items()}
    if form is Form.MAP and item is not None and isinstance(value, dict):
        return {key: restored(each, item) for key, each in value.items()}
    if form is Form.LIST and item is not None and isinstance(value, list):
        return [restored(each, item) for each in value]
    if form is Form.INTEGER and isinstance(value, int | float) and not isinstance(value, bool):
        bits = 32 if schema.go_type == "int32" else 64
        half = 1 << (bits - 1)
        return (int(value) + half) % (1 << bits) - half
    return value


def _scalar(value: Any, form: Form, go_type: str) -> str:
    if form is Form.STRING and not isinstance(value, str):
        # Go can convert a whole number to a string, so this case differs
        whole = isinstance(value, int) and not isinstance(value, bool)
        return "cannot convert int64 to string" if whole else "unrecognized type: string"
    if form is Form.BOOLEAN and not isinstance(value, bool):
        return "unrecognized type: bool"
    if form is Form.INTEGER and (isinstance(value, bool) or not isinstance(value, int)):
        if isinstance(value, float):
            return "" if value.is_integer() else f"cannot convert float64 to {go_type}"
        return f"unrecognized type: {go_type}"
    return ""
