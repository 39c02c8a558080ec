"""Statistics of a reflector."""

import msgspec

from listwatch.cache.reflector_machine import Phase


class ReflectorStatistics(msgspec.Struct, frozen=True):
    """What a reflector has done, and its state.

    Attributes:
        state: the current activity.
        resource_version: everything up to it has been given to the store; unset before a sync.
        last_frame_age: seconds since the last bytes or events; None before the first.
        last_error: the text of the last failure; empty before the first.
        last_error_age: seconds since then; None before that.
        failures: waits since the watch was last healthy, or the server was back.
        lists: pages of lists requested.
        watches: watches requested, including those with initial events.
        probes: requests for the server's version.
        relists: times that the store was given the whole current state, including the first.
        events: events of watches given to the store.
        bookmarks: bookmarks received.
        undecodable: items and events that can't be decoded, or that the store refused.
        stale: objects whose current state can't be decoded; the store has an older one.
        errors: failures, including those only counted.
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
