"""A queue of changes in one order across all keys."""

from collections import deque
from collections.abc import Sequence

from listwatch.cache.deltas import (
    Delta,
    Deltas,
    DeltaType,
    Item,
    KeyFunc,
    QueueStatistics,
    Rewrite,
)
from listwatch.cache.failures import OnError, log_with_trace
from listwatch.cache.fifo import FIFO, one_delta
from listwatch.clock import Clock, Timer
from listwatch.objects import DeletedFinalStateUnknown, Object, meta_namespace_key

# Accessing an enum member costs seven times as much as a global.
_DELETED = DeltaType.DELETED

_new = Deltas.__new__


class OrderedFIFO(FIFO):
    """A queue that keeps the order of all changes and merges none; see `Queue`.

    Entries leave in the order they came, one change each. Entries in process must finish before
    newer ones leave, so one pop at a time is served. The deletion of an unknown key is queued too.

    A list is one entry (REPLACED_ALL), as are a resync (SYNC_ALL) and a bookmark (BOOKMARK). A
    consumer that notes the version of each applied entry knows that everything up to this version
    is applied. It compares a list with its store itself.

    The rules are those of client-go's `tools/cache/the_real_fifo.go` with atomic events.

    Args:
        key_func: returns the key of an object; not called for tombstones.
        rewrite: changes objects before they are queued, except tombstones and resyncs. If it
            raises, the object is queued unchanged, and the error goes to `on_error`.
        clock: for requeue delays and the ages in `statistics`.
        on_error: called with errors of the rewrite; by default they are logged. Must not raise.
    """

    def __init__(
        self,
        key_func: KeyFunc = meta_namespace_key,
        *,
        rewrite: Rewrite | None = None,
        clock: Clock | None = None,
        on_error: OnError = log_with_trace,
    ) -> None:
        super().__init__(key_func, rewrite=rewrite, clock=clock, on_error=on_error)
        self._items: deque[Deltas] = deque()
        # All of it is older than _items; until it is empty, nothing else is taken.
        self._in_process: Sequence[Deltas] = ()
        # Set while _in_process only waits for its requeue delay.
        self._held: Timer | None = None
        self._initial = 0

    # --- Writing ---

    def delete(self, obj: Item) -> None:
        """Queue the deletion of an object, given as its last state or a tombstone.

        Raises:
            KeyFunctionError: it has no key; nothing was queued.
        """
        if isinstance(obj, Object):
            self._take_in(_DELETED, obj)
        else:
            key = self.key_of(obj)
            self._untouched = False
            self._queue(key, Delta(_DELETED, obj))

    def _take_in(self, kind: DeltaType, obj: Object) -> None:
        # `_queue`, inlined because this runs for each event of a watch.
        try:
            key = self._key_func(obj)
        except Exception:  # noqa: BLE001 - key_of fails again and reports why
            key = self.key_of(obj)
        self._untouched = False
        if self._rewrite is not None:
            obj = self._rewritten(key, obj)
        self._adds += 1
        deltas = _new(Deltas)
        deltas.append(Delta(kind, obj))
        deltas.key = key
        deltas.is_in_initial_list = False
        deltas.queued_at = self._now()
        deltas.popped_at = 0.0
        self._items.append(deltas)
        if self._waiters and not self._in_process:
            self._wake()

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        """Queue a complete list, as one entry.

        Raises:
            KeyFunctionError: there is a rewrite, and an object has no key; nothing was queued.
        """
        if self._rewrite is not None:
            objs = [self._rewritten(self.key_of(obj), obj) for obj in objs]
        initial, self._untouched = self._untouched, False
        delta = Delta(
            DeltaType.REPLACED_ALL, objects=tuple(objs), resource_version=resource_version
        )
        self._queue("", delta, initial=initial)

    def resync(self) -> None:
        """Queue a resync unless one is queued: behind a slow consumer they would pile up."""
        if not any(deltas and deltas[0].type is DeltaType.SYNC_ALL for deltas in self._items):
            self._queue("", Delta(DeltaType.SYNC_ALL))

    def bookmark(self, resource_version: str) -> None:
        """Queue a position, behind everything up to it."""
        self._queue("", Delta(DeltaType.BOOKMARK, resource_version=resource_version))

    # --- The state ---

    def _queue(self, key: str, delta: Delta, *, initial: bool = False) -> None:
        self._adds += 1
        self._initial += initial
        self._items.append(one_delta(delta, key, self._now(), initial=initial))
        if self._waiters and not self._in_process:
            self._wake()

    def _take(self, limit: int) -> Sequence[Deltas]:
        items = self._items
        if self._in_process or not items:
            return ()
        first = items.popleft()
        first.popped_at = now = self._now()
        batch: Sequence[Deltas] = (first,)
        if limit > 1 and first.key:
            by_key = {first.key: first}
            while items and len(by_key) < limit:
                deltas = items[0]
                key = deltas.key
                if key in by_key or not key:
                    break
                deltas.popped_at = now
                by_key[key] = items.popleft()
            batch = tuple(by_key.values())
        self._pops += len(batch)
        self._in_process = batch
        return batch

    def _finish(self, batch: Sequence[Deltas]) -> None:
        if self._initial and batch[0].is_in_initial_list:
            self._initial -= len(batch)
        if self._tries:
            for deltas in batch:
                self._tries.pop(deltas.key, None)
        if len(batch) == len(self._in_process):
            self._in_process = ()
            self._wake_next()
        else:
            ended = {deltas.key for deltas in batch}
            self._in_process = [d for d in self._in_process if d.key not in ended]

    def _wake_next(self) -> None:
        if self._waiters:
            if self._items:
                self._wake()
            elif self._closed:
                self._wake_all()

    def _restore(self, batch: Sequence[Deltas]) -> None:
        self._items.extendleft(reversed(batch))
        self._in_process = ()
        self._wake_next()

    def _hold(self, batch: Sequence[Deltas], delay: float) -> None:
        self._held = self._clock.call_later(delay, self._release, batch)

    def _release(self, batch: Sequence[Deltas]) -> None:
        self._held = None
        self._restore(batch)

    def _is_drained(self) -> bool:
        return not self._items and not self._in_process

    # --- Reading ---

    @property
    def has_synced(self) -> bool:
        """Whether every entry of the first replace was processed.

        True at once if anything else came before a replace.
        """
        return not self._untouched and not self._initial

    def newest(self, key: str) -> Delta | None:
        """Return the newest change of a key that is queued or in process, or None.

        A list that lacks the key counts as its deletion. Scans every entry.
        """
        for source in (self._items, self._in_process):
            for deltas in reversed(source):
                delta = deltas[-1] if deltas else None
                if delta is not None and delta.objects is not None:
                    for obj in delta.objects:
                        if self._key_func(obj) == key:
                            return Delta(DeltaType.REPLACED, obj)
                    return Delta(_DELETED, DeletedFinalStateUnknown(key))
                if delta is not None and deltas.key == key:
                    return delta
        return None

    def newest_of_all(self) -> tuple[dict[str, Item | None], bool]:
        """Return the newest item of each key that is queued or in process, None for a deletion.

        The second result is whether a list is among them, which replaces everything before it.
        """
        newest: dict[str, Item | None] = {}
        has_list = False
        for source in (self._in_process, self._items):
            for deltas in source:
                for delta in deltas:
                    if delta.objects is not None:
                        newest = {self._key_func(obj): obj for obj in delta.objects}
                        has_list = True
                    elif deltas.key:
                        newest[deltas.key] = None if delta.type is _DELETED else delta.object
        return newest, has_list

    def __len__(self) -> int:
        return len(self._items)

    def statistics(self) -> QueueStatistics:
        """Return statistics for metrics."""
        now = self._now()
        held = self._held is not None
        in_process = len(self._in_process)
        return QueueStatistics(
            depth=len(self._items),
            in_process=0 if held else in_process,
            retrying=in_process if held else 0,
            adds=self._adds,
            pops=self._pops,
            failures=self._failures,
            requeues=self._requeues,
            errors=self._errors,
            oldest_age_seconds=now - self._items[0].queued_at if self._items else 0.0,
            longest_running_seconds=(
                now - self._in_process[0].popped_at if in_process and not held else 0.0
            ),
        )
