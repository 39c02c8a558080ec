"""The template interface, and formatting of values in templates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from listwatch.errors import ListWatchError
from listwatch.objects import Object

#: Maximum values that one rendering may examine.
MOST_STEPS = 1_000_000
_LETTERS_A_STEP = 64
#: Maximum characters of its text.
MOST_LETTERS = MOST_STEPS * _LETTERS_A_STEP


class TemplateSyntaxError(ListWatchError):
    """A template can't be parsed; the message names the position."""


class TemplateError(ListWatchError):
    """A template can't be rendered for an object, for example because a key is missing."""


class TemplateLimitError(TemplateError):
    """A template or an object is too deep, or rendering it would take too much."""


class Template(Protocol):
    """Renders an object as text. Safe to use from any task."""

    def render(self, obj: Object) -> str:
        """Return the text for this object.

        Raises:
            TemplateError: the object lacks something that the template uses.
        """
        ...


class Effort:
    """The cost of one rendering, bounded so that no template can block or fill its process."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def spend(self, steps: int = 1, *, letters: int = 0) -> None:
        """Count steps, and characters written.

        Raises:
            TemplateLimitError: a limit is exceeded.
        """
        self._left -= steps + letters // _LETTERS_A_STEP
        if self._left < 0:
            raise TemplateLimitError("the template takes too many steps or its output is too long")


def json_text(value: Any, *, indent: int = 0) -> str:
    """Return a value as JSON in Go's format: keys sorted, and `<`, `>` and `&` escaped."""
    data = msgspec.json.encode(_with_whole_numbers(value), order="sorted")
    if indent:
        data = msgspec.json.format(data, indent=indent)
    text = data.decode()
    for character, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, escape)
    return text


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, float) and value == int(value) and abs(value) < 1e21:
        return int(value)
    return value


def number_text(value: float) -> str:
    """Return a number as text: the shortest with the same value, whole numbers without a point.

    As Go prints them, except that whole numbers never get an exponent below 1e21.
    """
    if isinstance(value, int):
        return str(value)
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent):+03d}" if exponent else mantissa


def scalar_text(value: Any, *, null: str) -> str:
    """Return a JSON scalar as text, as used in an argument.

    Args:
        value: a string, number, bool or None.
        null: the text of None.
    """
    if value is None:
        return null
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value) if isinstance(value, int | float) else str(value)


def same(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1, but 1 is 1.0."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _ordered(left: Any, right: Any) -> bool:
    return _order_kind(left) is not None and _order_kind(left) is _order_kind(right)


def _order_kind(value: Any) -> type | None:
    if isinstance(value, bool) or value is None or isinstance(value, Mapping):
        return None
    if isinstance(value, str):
        return str
    return None if isinstance(value, Sequence) else float


#: Comparison operators on two JSON values, shared by both template languages.
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": same,
    "!=": lambda a, b: not same(a, b),
    "<": lambda a, b: _ordered(a, b) and a < b,
    "<=": lambda a, b: _ordered(a, b) and a <= b,
    ">": lambda a, b: _ordered(a, b) and a > b,
    ">=": lambda a, b: _ordered(a, b) and a >= b,
}
