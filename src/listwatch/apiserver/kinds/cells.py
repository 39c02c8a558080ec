"""The cells of tables: ages, fields, lists, selectors.

The rules are those of `pkg/printers/internalversion`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from listwatch.selector import LabelSelector, SelectorError

Object = Mapping[str, Any]


Cell = Callable[[Object, float], Any]


NONE = "<none>"


UNKNOWN = "<unknown>"


NAME_DESCRIPTION = (
    "Name must be unique within a namespace. Is required when creating resources, although some "
    "resources may allow a client to request the generation of an appropriate name automatically. "
    "Name is primarily intended for creation idempotence and configuration definition. Cannot be "
    "updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)


AGE_DESCRIPTION = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. "
    "It is not guaranteed to be set in happens-before order across separate operations. Clients "
    "may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the "
    "system. Read-only. Null for lists. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)


def duration(seconds: float) -> str:
    """Return a duration as `apimachinery/pkg/util/duration` formats it for people."""
    whole = int(seconds)
    if whole < 0:
        return "0s" if whole == -1 else "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    years = days // 365
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def age(timestamp: str | None, now: float) -> str:
    """Return how long ago a timestamp was; `<unknown>` without one."""
    if not timestamp:
        return UNKNOWN
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return "<invalid>"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return duration(now - then.timestamp())


def at(obj: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj


def field(path: str, absent: Any = "") -> Cell:
    """Return a cell function that shows the value at a path."""

    def cell(obj: Object, _: float) -> Any:
        value = at(obj, path)
        return absent if value is None else value

    return cell


def text(path: str, absent: str = NONE) -> Cell:
    """Return a cell function that shows the value at a path as text."""

    def cell(obj: Object, _: float) -> str:
        value = at(obj, path)
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if value not in (None, "") else absent

    return cell


def count(path: str) -> Cell:
    """Return a cell function that counts the entries at a path."""
    return lambda obj, _: len(at(obj, path) or ())


def join(items: Iterable[object], separator: str = ",") -> str:
    """Return the items in one line; `<none>` without any."""
    return separator.join(map(str, items)) or NONE


def labels(labels: Object | None) -> str:
    """Return labels as `key=value` in order; `<none>` without any."""
    return join(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def selector(path: str) -> Cell:
    """Return a cell function that shows the label selector at a path."""

    def cell(obj: Object, _: float) -> str:
        try:
            return str(LabelSelector.from_dict(at(obj, path) or {})) or NONE
        except SelectorError:
            return "<error>"

    return cell


def more(items: list[str], most: int = 3) -> str:
    """Return the first items, and how many more there are."""
    if not items:
        return NONE
    rest = len(items) - most
    return ",".join(items[:most]) + (f" + {rest} more..." if rest > 0 else "")
