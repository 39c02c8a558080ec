"""Statistics of a reconciler."""

import msgspec

from listwatch.runtime.own_writes import OwnWritesStatistics
from listwatch.workqueue.metrics import HistogramStatistics, WorkQueueStatistics


class ReconcilerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a reconciler; counters start with it.

    Attributes:
        name: the reconciler's name.
        successes: reconciles that succeeded without a requeue.
        requeues: reconciles that asked for a requeue after a time.
        limited_requeues: reconciles that asked for a requeue by the rate limiter.
        errors: reconciles that raised, terminal errors included.
        terminal_errors: errors that are not retried.
        panics: errors of no expected kind: neither a `ListWatchError` nor a time-out.
        timeouts: reconciles cancelled because they took too long, whatever their outcome.
        unseen: reconciles of keys of the primary resource that were never seen: objects deleted
            while nobody watched, if something else woke their keys.
        throttled: times that a hot key was delayed.
        active: reconciles running now.
        concurrency: maximum of `active`.
        duration: durations of reconciles.
        queue: the work queue.
        last_error: the text of the last error; empty before the first.
        own_writes: statistics of waiting for own writes; None if switched off.
    """

    name: str
    successes: int
    requeues: int
    limited_requeues: int
    errors: int
    terminal_errors: int
    panics: int
    timeouts: int
    unseen: int
    throttled: int
    active: int
    concurrency: int
    duration: HistogramStatistics
    queue: WorkQueueStatistics
    last_error: str
    own_writes: OwnWritesStatistics | None = None
