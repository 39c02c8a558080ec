"""The options of reconcilers and of their sources."""

from collections.abc import Sequence
from typing import TypedDict

from listwatch.cache.typed import Into, T
from listwatch.objects import Object, ObjectDecodeError
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.recorded_writes import note_read
from listwatch.runtime.results import TerminalError
from listwatch.workqueue.rate_limiters import RateLimiter


class ReconcilerOptions(TypedDict, total=False):
    """The options of `Manager.reconciler`; see `Reconciler`."""

    concurrency: int
    timeout: float | None
    threaded: bool
    leader_only: bool
    rate_limiter: RateLimiter[str] | None
    hot_key_burst: int
    hot_key_interval: float


class CommonOptions(TypedDict):
    """The options of `Reconciler` that a manager's reconcilers have in common; see there."""

    sync_timeout: float
    own_writes_timeout: float | None
    history_bytes: int
    event_filter: Sequence[Predicate]


def as_type(obj: Object, decode: Into[T]) -> T:
    """Return an object that a reconcile reads, as another type.

    Raises:
        TerminalError: it does not fit the type, so no retry can help until it changes.
    """
    try:
        value: T = obj.decode(decode)
    except ObjectDecodeError as error:
        raise TerminalError(str(error)) from error
    note_read(obj)
    return value
