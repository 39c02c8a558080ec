"""How two states of an object differ, field by field."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from listwatch.printable import printable

_LONGEST_VALUE: Final = 120
#: Change with every write and have no information.
_NOISE: Final = ("metadata.resourceVersion", "metadata.generation")
_MANAGED_FIELDS: Final = "metadata.managedFields*"
#: Of a Secret. kubectl's annotation repeats its data.
_SECRET: Final = ("data", "stringData", "metadata.annotations")
HIDDEN: Final = "(hidden)"


class Difference(msgspec.Struct, frozen=True):
    """A field that differs between two states of an object.

    Attributes:
        path: such as `spec.containers[0].image`; a name that is not a word is quoted in brackets.
        old: the old value; `MISSING` if there was none.
        new: the new value; `MISSING` if there is none.
    """

    path: str
    old: Any
    new: Any


class _Missing:
    def __repr__(self) -> str:
        return "(none)"


#: The value of a missing field.
MISSING: Final = _Missing()


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Yield the fields that differ between two decoded JSON values, as deep as they have names.

    Lists are compared by index. Fields come in the order of the new value, then removed ones.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*new, *(name for name in old if name not in new)]:
            before, after = old.get(name, MISSING), new.get(name, MISSING)
            yield from differences(before, after, _below(path, name))
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            before = old[place] if place < len(old) else MISSING
            after = new[place] if place < len(new) else MISSING
            yield from differences(before, after, f"{path}[{place}]")
    elif type(old) is not type(new) or old != new:
        yield Difference(path, old, new)


def shown_differences(
    old: Any,
    new: Any,
    *,
    is_secret: bool,
    ignored: Iterable[str] = (),
    managed_fields: bool = False,
    expanded: bool = False,
) -> Iterator[tuple[str, str, str]]:
    """Yield path, old and new value of the fields that differ, as text to show.

    Values of a Secret are never shown, and fields that change with every write are left out.

    Args:
        old: the old state, decoded.
        new: the new state, decoded.
        is_secret: they are a Secret.
        ignored: further paths to leave out; `*` stands for anything.
        managed_fields: show `metadata.managedFields`, too.
        expanded: an object or array that came or went is told by its fields.
    """
    patterns = (*_NOISE, *(() if managed_fields else (_MANAGED_FIELDS,)), *ignored)
    found = differences(old, new)
    if expanded:
        found = (leaf for difference in found for leaf in _leaves(difference))
    for difference in found:
        path = difference.path
        if any(matches_path(path, pattern) for pattern in patterns):
            continue
        if is_secret and path.startswith(_SECRET):
            yield printable(path), HIDDEN, HIDDEN
        else:
            yield printable(path), _value(difference.old), _value(difference.new)


def _leaves(difference: Difference) -> Iterator[Difference]:
    """Yield a difference's fields: those that went, then those that came."""
    path, old, new = difference.path, difference.old, difference.new
    if not _has_fields(old) and not _has_fields(new):
        yield difference
        return
    if old is not MISSING:
        for place, value in _fields(path, old):
            yield Difference(place, value, MISSING)
    if new is not MISSING:
        for place, value in _fields(path, new):
            yield Difference(place, MISSING, value)


def _has_fields(value: Any) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not _has_fields(value):
        yield path, value
    elif isinstance(value, dict):
        for name, below in value.items():
            yield from _fields(_below(path, name), below)
    else:
        for place, below in enumerate(value):
            yield from _fields(f"{path}[{place}]", below)


def _below(path: str, name: str) -> str:
    if not name.replace("-", "_").isidentifier():
        return f"{path}[{msgspec.json.encode(name).decode()}]"
    return f"{path}.{name}" if path else name


def matches_path(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, or is below one that does."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}[.[]*")


def _value(value: Any) -> str:
    if value is MISSING:
        return repr(value)
    text = msgspec.json.encode(value).decode()
    return printable(text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…")
