"""How a watch ends, how its events go wrong, and the figures of a reflector."""

import msgspec

from listwatch.cache.list_watch import ADDED, DELETED, ERROR, MODIFIED, WatchEvent
from listwatch.cache.reflector_machine import Phase
from listwatch.errors import ListWatchError, StatusError
from listwatch.objects import ObjectDecodeError


class WatchEndedError(ListWatchError):
    """A watch ended in order, but too soon."""


class SetBackError(WatchEndedError):
    """The server is older than what it told before: it was restored from a backup."""


def raise_if_end(event: WatchEvent) -> None:
    """Raise the error of an ERROR event, after which a watch brings nothing more.

    Raises:
        StatusError: what the server says.
    """
    if event.type == ERROR or isinstance(event.error, StatusError):
        if isinstance(event.error, StatusError):
            raise event.error
        raise StatusError("an ERROR event without a status") from event.error


def event_error(event: WatchEvent) -> Exception:
    """Return what to report of an event that can't be given to a store."""
    if event.error is not None:
        return event.error
    if event.type in {ADDED, MODIFIED, DELETED}:
        return ObjectDecodeError(f"a {event.type} event without an object")
    return ObjectDecodeError(
        f"an event of the unknown type {event.type!r}",
        key=None if event.object is None else event.object.key,
    )


def set_back(version: str, last: str) -> SetBackError:
    """Return the error of a version that is lower than the last one."""
    return SetBackError(f"the server went back from resource version {last} to {version}")


def retry_after(error: BaseException | None) -> float:
    """Return how many seconds the server asks to wait; 0 if it doesn't."""
    return (error.retry_after or 0.0) if isinstance(error, StatusError) else 0.0


class ReflectorStatistics(msgspec.Struct, frozen=True):
    """What a reflector has done and how it is.

    Attributes:
        state: what it is doing.
        resource_version: everything up to it has been given to the store; unset before a sync.
        last_frame_age: seconds since bytes or events came last; None before that.
        last_error: the last failure, in words; empty before that.
        last_error_age: seconds since then; None before that.
        failures: waits since the watch was last healthy.
        lists: pages of lists asked for.
        watches: watches asked for, those with initial events included.
        probes: questions for the server's version.
        relists: times that the store was given the whole present state, the first time included.
        events: events of watches given to the store.
        bookmarks: bookmarks received.
        undecodable: items and events that were no objects, or that the store refused.
        errors: failures reported, undecodable ones included.
    """

    state: Phase
    resource_version: str
    last_frame_age: float | None
    last_error: str
    last_error_age: float | None
    failures: int
    lists: int
    watches: int
    probes: int
    relists: int
    events: int
    bookmarks: int
    undecodable: int
    errors: int
