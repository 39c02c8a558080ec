"""The figures of a reflector."""

import msgspec

from listwatch.cache.reflector_machine import Phase


class ReflectorStatistics(msgspec.Struct, frozen=True):
    """What a reflector has done and how it is.

    Attributes:
        state: what it is doing.
        resource_version: everything up to it has been given to the store; unset before a sync.
        last_frame_age: seconds since bytes or events came last; None before that.
        last_error: the last failure, in words; empty before that.
        last_error_age: seconds since then; None before that.
        failures: waits since the watch was last healthy, or the server was back.
        lists: pages of lists asked for.
        watches: watches asked for, those with initial events included.
        probes: questions for the server's version.
        relists: times that the store was given the whole present state, the first time included.
        events: events of watches given to the store.
        bookmarks: bookmarks received.
        undecodable: items and events that were no objects, or that the store refused.
        stale: objects whose present state can't be read; what is in the store of them is older.
        errors: failures, those that were only counted included.
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
    stale: int
    errors: int
