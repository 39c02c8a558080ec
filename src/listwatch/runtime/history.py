"""What happened to the keys of a reconciler: the records of the last reconciles of each key."""

from collections import OrderedDict, deque
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from listwatch.clock import Clock
from listwatch.runtime.reconcile_context import ReconcileContext
from listwatch.runtime.reconcile_record import (
    CACHE_BYTES,
    RECORD_BYTES,
    REQUEUE,
    RETRY,
    ReconcileRecord,
    Trigger,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from listwatch.client.request_target import RequestTarget
    from listwatch.objects import Object
    from listwatch.runtime.caches import Cache

#: Maximum records of one key.
RECORDS_PER_KEY: Final = 10
#: Maximum records of a reconciler's last failures.
MAX_FAILURES: Final = 50
#: Bytes for the records of one reconciler.
HISTORY_BYTES: Final = 8 * 2**20
#: From this many reconciles in a row that a key's own writes woke, it counts as hot.
HOT_WAKES: Final = 5
# Nothing was merged into the first trigger.
_ALONE: Final = (0, None)
_read_at: Final = attrgetter("read_at")


class KeyHistory(msgspec.Struct, gc=False):
    """The last reconciles of one key.

    Attributes:
        records: oldest first.
        own_wakes: the number of reconciles in a row that the key's own writes woke.
        total: the number of all reconciles, including dropped ones.
        size: the approximate bytes of the records.
    """

    records: list[ReconcileRecord] = []
    own_wakes: int = 0
    total: int = 0
    size: int = 0

    def drop_states(self) -> int:
        """Forget the states of written objects; return the number of bytes freed."""
        freed = sum(record.drop_states() for record in self.records)
        self.size -= freed
        return freed


class History:
    """Records the reconciles of a reconciler, in bounded memory. For one event loop.

    If the records need more bytes than allowed, those of the keys that were reconciled longest ago
    are dropped first; then, of keys in trouble, the states of written objects, and last the keys.

    Args:
        caches: its caches; more may be added.
        find: returns the cached object that a request is about.
        max_bytes: limit of the records' approximate size.
        clock: the time.
    """

    def __init__(
        self,
        caches: "Iterable[Cache]",
        find: "Callable[[RequestTarget], Object | None]",
        *,
        max_bytes: int = HISTORY_BYTES,
        clock: Clock,
    ) -> None:
        #: The monotonic clock.
        self.now = clock.now
        self._caches = caches
        #: Returns the cached object that a request is about.
        self.find = find
        self._max_bytes = max_bytes
        # The first trigger of each key in the queue; the number of further ones and the last one.
        self._first: dict[str, Trigger] = {}
        self._merged: dict[str, tuple[int, Trigger]] = {}
        self._quiet: OrderedDict[str, KeyHistory] = OrderedDict()
        self._troubled: OrderedDict[str, KeyHistory] = OrderedDict()
        #: The approximate size of all records.
        self.size = 0
        #: The last failed reconciles, oldest first.
        self.failures: deque[ReconcileRecord] = deque(maxlen=MAX_FAILURES)
        #: The reconciles that run now, by key.
        self.running: dict[str, ReconcileRecord] = {}

    # --- Input ---

    def woken(self, key: str, trigger: Trigger) -> None:
        """Record that a key was put into the queue."""
        first = self._first.get(key)
        if first is None or first is RETRY or first is REQUEUE:
            self._first[key] = trigger  # a change comes before the time of a retry
        elif trigger is not RETRY and trigger is not REQUEUE:
            number, _ = self._merged.get(key, (0, None))
            self._merged[key] = (number + 1, trigger)

    def forget(self, key: str) -> None:
        """Drop the triggers of a key that is not reconciled here."""
        self._first.pop(key, None)
        self._merged.pop(key, None)

    def begin(self, context: ReconcileContext, waited: float, now: float) -> ReconcileRecord:
        """Record the start of a reconcile.

        Args:
            context: identifies it.
            waited: seconds in the queue, from due until taken.
            now: the monotonic time.
        """
        key = context.key
        trigger = self._first.pop(key, None)
        merged, newest = self._merged.pop(key, _ALONE) if self._merged else _ALONE
        last = newest or trigger
        wakes_itself = False
        if last is not None and last.version:
            known = self._quiet.get(key) or self._troubled.get(key)
            if known is not None:
                wakes_itself = last.version in known.records[-1].written
        caches = tuple(map(_read_at, self._caches))
        record = self.running[key] = ReconcileRecord(
            id=context.id,
            key=key,
            attempt=context.attempt,
            began=now,
            waited=waited,
            trigger=trigger,
            newest=newest,
            merged=merged,
            wakes_itself=wakes_itself,
            caches=caches,
            size=RECORD_BYTES + CACHE_BYTES * len(caches),
        )
        return record

    def end(
        self,
        record: ReconcileRecord,
        now: float,
        result: str,
        error: BaseException | None = None,
        next_in: float | None = None,
    ) -> None:
        """Record the end of a reconcile.

        Args:
            record: what `begin` returned.
            now: the monotonic time.
            result: as in the record.
            error: the exception of a failed one.
            next_in: seconds until the next try.
        """
        key = record.key
        record.seconds = now - record.began
        record.result = result
        record.next_in = next_in
        if error is not None:
            record.fail(error)
            self.failures.append(record)
        self.running.pop(key, None)
        known = self._quiet.pop(key, None) or self._troubled.pop(key, None) or KeyHistory()
        known.total += 1
        known.own_wakes = known.own_wakes + 1 if record.wakes_itself else 0
        known.records.append(record)
        size = record.size
        if len(known.records) > RECORDS_PER_KEY:
            dropped = known.records.pop(0)
            size -= dropped.size
            dropped.drop_states()  # `failures` may keep it
        known.size += size
        self.size += size
        is_in_trouble = record.error or known.own_wakes >= HOT_WAKES
        (self._troubled if is_in_trouble else self._quiet)[key] = known
        if self.size > self._max_bytes:
            self._shrink()

    def _shrink(self) -> None:
        while self._quiet and self.size > self._max_bytes:
            self._drop(self._quiet.popitem(last=False)[1])
        if self.size <= self._max_bytes:
            return
        # Make room for many: the keys are looked at one by one.
        enough = self._max_bytes - self._max_bytes // 16
        for known in self._troubled.values():
            self.size -= known.drop_states()
            if self.size <= enough:
                return
        while self._troubled and self.size > enough:
            self._drop(self._troubled.popitem(last=False)[1])

    def _drop(self, known: KeyHistory) -> None:
        self.size -= known.size
        known.drop_states()  # `failures` may keep a record

    # --- Output ---

    def of(self, key: str) -> KeyHistory | None:
        """Return what is known about a key; None if nothing is, any more."""
        return self._quiet.get(key) or self._troubled.get(key)

    def waking(self, key: str) -> tuple[Trigger | None, int]:
        """Return the first trigger of a key in the queue, and the number of further ones."""
        return self._first.get(key), self._merged.get(key, (0, None))[0]

    def troubled(self) -> list[str]:
        """Return the keys in trouble."""
        return list(self._troubled)

    def own_wakes(self, key: str) -> int:
        """Return the number of the key's last reconciles in a row that its own writes woke."""
        known = self.of(key)
        return 0 if known is None else known.own_wakes

    def keys(self) -> list[str]:
        """Return the keys of which anything is known, those in trouble first."""
        return [*reversed(self._troubled), *reversed(self._quiet)]

    def recent(self, limit: int) -> list[ReconcileRecord]:
        """Return the last reconciles of the keys reconciled last, the newest first."""
        newest = [
            known.records[-1]
            for each in (self._quiet, self._troubled)
            for known in islice(reversed(each.values()), limit)
        ]
        return sorted(newest, key=lambda record: record.began, reverse=True)[:limit]

    def __len__(self) -> int:
        return len(self._quiet) + len(self._troubled)
