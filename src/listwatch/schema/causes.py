"""The rules that an object violates, in kube-apiserver's words."""

import json
from collections.abc import Iterable
from typing import NamedTuple


class Cause(NamedTuple):
    """One violated rule."""

    field: str
    reason: str
    message: str


def quoted(value: object) -> str:
    """Return a value as messages show it: strings in Go's quotes, the rest as JSON."""
    if isinstance(value, str):
        return go_quoted(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def go_quoted(text: str) -> str:
    """Return a string as Go's %q prints it."""
    return json.dumps(text, ensure_ascii=False)


def invalid_value(field: str, value: object, why: str) -> Cause:
    """Return the cause for a value that violates a rule."""
    shown = f"Invalid value: {quoted(value)}"
    return Cause(field, "FieldValueInvalid", f"{shown}: {why}" if why else shown)


def required(field: str, why: str = "") -> Cause:
    """Return the cause for a missing value."""
    return Cause(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def forbidden_value(field: str, why: str) -> Cause:
    """Return the cause for a value that is not allowed."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}" if why else "Forbidden")


def not_supported(field: str, value: object, supported: Iterable[str]) -> Cause:
    """Return the cause for a value outside an enumeration."""
    words = ", ".join(go_quoted(word) for word in supported)
    return Cause(
        field,
        "FieldValueNotSupported",
        f"Unsupported value: {quoted(value)}: supported values: {words}",
    )


def duplicate(field: str, value: object) -> Cause:
    """Return the cause for a repeated value."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {quoted(value)}")
