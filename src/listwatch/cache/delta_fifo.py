"""A queue of changes, kept by key: the unpopped changes of a key stay together."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from listwatch.cache.deltas import (
    Delta,
    Deltas,
    DeltaType,
    Item,
    KeyFunc,
    KnownObjects,
    QueueStatistics,
    Rewrite,
)
from listwatch.cache.failures import OnError, log_with_trace
from listwatch.cache.fifo import FIFO, one_delta
from listwatch.clock import Clock, Timer
from listwatch.errors import ListWatchError
from listwatch.objects import DeletedFinalStateUnknown, Object, meta_namespace_key

#: Shortens the deltas of one key, oldest first, each time one is added. If it returns none, the key
#: leaves the queue. Receives a copy that it may change.
Compressor: TypeAlias = Callable[[Deltas], Sequence[Delta]]

# Accessing an enum member costs seven times as much as a global.
_DELETED = DeltaType.DELETED
_SYNC = DeltaType.SYNC


class CompressorError(ListWatchError):
    """A compressor raised; the key's deltas stayed as they were, followed by the new one."""

    def __init__(self, key: str, error: Exception) -> None:
        self.key = key
        super().__init__(f"compressor failed for {key}: {type(error).__name__}: {error}")
        self.__cause__ = error


class DeltaFIFO(FIFO):
    """A queue with one slot for each key, in the order of first additions; see `Queue`.

    `pop` returns everything that happened to one object since it was last popped, oldest first. Of
    two deletions in a row, the more informative one is kept. There is no order across keys.

    A popped key stays in process until its function returns. Until then its newest object counts as
    known: a deletion, or a replace that lacks it, still queues its deletion, and a resync its
    state. Deltas that arrive in between wait for the next pop of that key.

    The deletion of a key that is neither queued, in process nor known is dropped. Without
    `known_objects` only queued keys and those in process are known, and `resync` does nothing.

    The rules are those of client-go's `tools/cache/delta_fifo.go`, without its bugs.

    Args:
        key_func: returns the key of an object; not called for tombstones.
        compressor: shortens a key's deltas. If it raises, they stay as they are, and the error goes
            to `on_error`.
        known_objects: what the consumer holds.
        rewrite: changes objects before they are queued, except tombstones and resyncs. If it
            raises, the object is queued unchanged, and the error goes to `on_error`.
        emit_replaced: queue objects of a list as REPLACED; otherwise as SYNC.
        clock: for requeue delays and the ages in `statistics`.
        on_error: called with errors of compressor, rewrite and known objects that the queue
            survives; by default they are logged. Must not raise.
    """

    def __init__(
        self,
        key_func: KeyFunc = meta_namespace_key,
        *,
        compressor: Compressor | None = None,
        known_objects: KnownObjects | None = None,
        rewrite: Rewrite | None = None,
        emit_replaced: bool = False,
        clock: Clock | None = None,
        on_error: OnError = log_with_trace,
    ) -> None:
        super().__init__(
            key_func,
            rewrite=rewrite,
            known_objects=known_objects,
            clock=clock,
            on_error=on_error,
        )
        self._compressor = compressor
        self._replaced = DeltaType.REPLACED if emit_replaced else DeltaType.SYNC
        # A key is in at most one of _items and _behind. It may also be in _in_process.
        self._items: OrderedDict[str, Deltas] = OrderedDict()
        # Queued deltas of keys in process that a pop has skipped.
        self._behind: dict[str, Deltas] = {}
        self._in_process: dict[str, Deltas] = {}
        # The keys in process that only wait for their requeue delay.
        self._held: dict[str, Timer] = {}
        self._initial: set[str] = set()

    # --- Writing ---

    def _take_in(self, kind: DeltaType, obj: Object) -> None:
        try:
            key = self._key_func(obj)
        except Exception:  # noqa: BLE001 - key_of fails again and reports why
            key = self.key_of(obj)
        self._untouched = False
        if self._rewrite is not None:
            obj = self._rewritten(key, obj)
        self._queue(kind, key, obj)

    def delete(self, obj: Item) -> None:
        """Queue the deletion of an object, given as its last state or a tombstone, if it is known.

        If known objects fail, the deletion is queued: better twice than never.

        Raises:
            KeyFunctionError: it has no key; nothing was queued.
        """
        key = self.key_of(obj)
        self._untouched = False
        if self._queued(key) is None:
            if (in_process := self._in_process.get(key)) is not None:
                if in_process and in_process[-1].type is _DELETED:
                    return
            elif self._known is None:
                return
            else:
                try:
                    if self._known.get_by_key(key) is None:
                        return
                except Exception as error:  # noqa: BLE001 - a user's function: reported
                    self._report(error)
        if self._rewrite is not None and isinstance(obj, Object):
            obj = self._rewritten(key, obj)
        self._queue(_DELETED, key, obj)

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:  # noqa: ARG002 - ReflectorStore's; no order across keys, so no position
        """Queue a complete list: each object in it, and a tombstone for each known key not in it.

        Of several objects with one key the last counts.

        Raises:
            KeyFunctionError: an object has no key; nothing was queued.
            Exception: listing the known keys failed; nothing was queued.
        """
        listed = {self.key_of(obj): obj for obj in objs}
        known = list(self._known.list_keys()) if self._known is not None else []
        initial, self._untouched = self._untouched, False
        if initial:
            self._initial.update(listed)
        for key, obj in listed.items():
            item = obj if self._rewrite is None else self._rewritten(key, obj)
            self._queue(self._replaced, key, item, initial=initial)
        # Queued is newer than in process, and in process newer than known.
        newest = {
            key: deltas[-1]
            for source in (self._in_process, self._behind, self._items)
            for key, deltas in source.items()
            if deltas and key not in listed
        }
        for key, delta in newest.items():
            if delta.type is not _DELETED:
                self._queue_tombstone(key, delta.object, initial=initial)
        for key in known:
            if key not in listed and key not in newest:
                self._queue_tombstone(key, self._look_up(key), initial=initial)

    def _queue_tombstone(self, key: str, last: Item | None, *, initial: bool) -> None:
        if isinstance(last, DeletedFinalStateUnknown):
            last = last.obj
        if initial:
            self._initial.add(key)
        self._queue(_DELETED, key, DeletedFinalStateUnknown(key, last), initial=initial)

    def _look_up(self, key: str) -> Item | None:
        assert self._known is not None  # noqa: S101 - for the type checker: callers check first
        try:
            return self._known.get_by_key(key)
        except Exception as error:  # noqa: BLE001 - a user's function: reported
            self._report(error)
            return None

    def resync(self) -> None:
        """Queue SYNC for each known object that has nothing queued.

        Does nothing without `known_objects`.

        Raises:
            Exception: listing the known keys failed; nothing was queued.
        """
        if self._known is None:
            return
        known = list(self._known.list_keys())
        for key, deltas in self._in_process.items():
            if deltas and deltas[-1].type is not _DELETED and self._queued(key) is None:
                self._queue_sync(key, deltas[-1].object)
        for key in known:
            if key not in self._in_process and self._queued(key) is None:
                self._queue_sync(key, self._look_up(key))

    def _queue_sync(self, key: str, item: Item | None) -> None:
        if isinstance(item, Object):  # a tombstone has no state to deliver
            self._queue(_SYNC, key, item)

    def bookmark(self, resource_version: str) -> None:
        """Do nothing: without an order across keys no position is true."""

    def add_if_not_present(self, deltas: Deltas) -> None:
        """Queue popped deltas again, unless newer ones of their key are queued.

        Raises:
            KeyFunctionError: they are empty.
        """
        key = self.key_of(deltas)
        self._untouched = False
        if self._queued(key) is None:
            self._adds += len(deltas)
            initial = deltas.is_in_initial_list
            self._items[key] = Deltas(
                deltas, key, is_in_initial_list=initial, queued_at=self._now()
            )
            if key not in self._in_process:
                self._wake()

    # --- The state ---

    def _queued(self, key: str) -> Deltas | None:
        deltas = self._items.get(key)
        return self._behind.get(key) if deltas is None and self._behind else deltas

    def _queue(self, kind: DeltaType, key: str, item: Item, *, initial: bool = False) -> None:
        self._adds += 1
        delta = Delta(kind, item)
        deltas = self._items.get(key)
        if deltas is None and self._behind:
            deltas = self._behind.get(key)
        if deltas is None:
            deltas = one_delta(delta, key, self._now(), initial=initial)
            if self._compressor is not None:
                self._compress(deltas)
                if not deltas:
                    self._forget(key)
                    return
            self._items[key] = deltas
            if self._waiters and key not in self._in_process:
                self._wake()
        else:
            _append(deltas, delta)
            if initial:
                deltas.is_in_initial_list = True
            if self._compressor is not None:
                self._compress(deltas)
                if not deltas:
                    self._leave(key)

    def _leave(self, key: str) -> None:
        if self._items.pop(key, None) is None:
            del self._behind[key]
        self._forget(key)

    def _forget(self, key: str) -> None:
        """Note that nothing of a key is queued any more, because it was compressed away."""
        in_process = self._in_process.get(key)
        if in_process is None:
            self._tries.pop(key, None)
        if in_process is None or not in_process.is_in_initial_list:
            self._initial.discard(key)
        if self._closed and self._is_drained():
            self._wake_all()

    def _compress(self, deltas: Deltas) -> None:
        assert self._compressor is not None  # noqa: S101 - for the type checker: callers check first
        copy = Deltas(
            deltas,
            deltas.key,
            is_in_initial_list=deltas.is_in_initial_list,
            queued_at=deltas.queued_at,
        )
        try:
            kept = list(self._compressor(copy))
        except Exception as error:  # noqa: BLE001 - a user's function: reported, and nothing lost
            self._report(CompressorError(deltas.key, error))
        else:
            deltas[:] = kept

    def _take(self, limit: int) -> Sequence[Deltas]:
        items = self._items
        in_process = self._in_process
        while items:
            key, deltas = items.popitem(last=False)
            if key in in_process:
                self._behind[key] = deltas
                continue
            in_process[key] = deltas
            self._pops += 1
            deltas.popped_at = self._now()
            return (deltas,) if limit == 1 else self._take_more(deltas, limit)
        return ()

    def _take_more(self, first: Deltas, limit: int) -> Sequence[Deltas]:
        items = self._items
        in_process = self._in_process
        batch = [first]
        while items and len(batch) < limit:
            key, deltas = items.popitem(last=False)
            if key in in_process:
                self._behind[key] = deltas
                continue
            if deltas.is_in_initial_list is not first.is_in_initial_list:
                items[key] = deltas
                items.move_to_end(key, last=False)
                break
            in_process[key] = deltas
            deltas.popped_at = first.popped_at
            batch.append(deltas)
        self._pops += len(batch) - 1
        return tuple(batch)

    def _finish(self, batch: Sequence[Deltas]) -> None:
        for deltas in batch:
            key = deltas.key
            del self._in_process[key]
            if deltas.is_in_initial_list:
                self._initial.discard(key)
            if self._tries:
                self._tries.pop(key, None)
            if self._behind and (newer := self._behind.pop(key, None)) is not None:
                self._items[key] = newer
                self._items.move_to_end(key, last=False)
            if self._waiters and key in self._items:
                self._wake()
        if self._closed and self._waiters and self._is_drained():
            self._wake_all()

    def _restore(self, batch: Sequence[Deltas]) -> None:
        for deltas in reversed(batch):
            key = deltas.key
            newer = self._queued(key)
            if newer is None:
                if not deltas:  # the process function emptied it
                    self._finish((deltas,))
                    continue
                self._items[key] = deltas
            else:
                deltas = Deltas(  # noqa: PLW2901 - the caller of pop may hold the old one
                    deltas,
                    key,
                    is_in_initial_list=deltas.is_in_initial_list or newer.is_in_initial_list,
                    queued_at=deltas.queued_at,
                )
                for delta in newer:
                    _append(deltas, delta)
                self._behind.pop(key, None)
                self._items[key] = deltas
                if self._compressor is not None:
                    self._compress(deltas)
            del self._in_process[key]
            if deltas:
                self._items.move_to_end(key, last=False)
                self._wake()
            else:
                self._leave(key)

    def _hold(self, batch: Sequence[Deltas], delay: float) -> None:
        for deltas in batch:
            self._held[deltas.key] = self._clock.call_later(delay, self._release, deltas)

    def _release(self, deltas: Deltas) -> None:
        del self._held[deltas.key]
        self._restore((deltas,))

    def _is_drained(self) -> bool:
        # Keys in _behind are in process too.
        return not self._items and not self._in_process

    # --- Reading ---

    @property
    def has_synced(self) -> bool:
        """Whether every key of the first replace, deletions included, was processed.

        True at once if anything else came before a replace.
        """
        return not self._untouched and not self._initial

    def newest(self, key: str) -> Delta | None:
        """Return the newest change of a key that is queued or in process, or None."""
        deltas = self._queued(key) or self._in_process.get(key)
        return deltas[-1] if deltas else None

    def newest_of_all(self) -> tuple[dict[str, Item | None], bool]:
        """Return the newest item of each key that is queued or in process, None for a deletion.

        The second result is False: no list among them replaces everything before it.
        """
        return {
            key: None if deltas[-1].type is _DELETED else deltas[-1].object
            for source in (self._in_process, self._behind, self._items)
            for key, deltas in source.items()
            if deltas
        }, False

    def list_keys(self) -> list[str]:
        """Return the keys with queued deltas; keys only in process are not included."""
        return [*self._behind, *self._items]

    def __len__(self) -> int:
        return len(self._items) + len(self._behind)

    def statistics(self) -> QueueStatistics:
        """Return statistics for metrics."""
        now = self._now()
        queued = min((d.queued_at for d in self._behind.values()), default=now)
        if self._items:
            queued = min(queued, next(iter(self._items.values())).queued_at)
        popped = (d.popped_at for key, d in self._in_process.items() if key not in self._held)
        return QueueStatistics(
            depth=len(self),
            in_process=len(self._in_process) - len(self._held),
            retrying=len(self._held),
            adds=self._adds,
            pops=self._pops,
            failures=self._failures,
            requeues=self._requeues,
            errors=self._errors,
            oldest_age_seconds=now - queued,
            longest_running_seconds=now - min(popped, default=now),
        )


def _append(deltas: Deltas, delta: Delta) -> None:
    # `merging.ONE_DELETION`, inlined because this runs for each event.
    if deltas and delta.type is _DELETED and deltas[-1].type is _DELETED:
        if isinstance(deltas[-1].object, DeletedFinalStateUnknown):
            deltas[-1] = delta
    else:
        deltas.append(delta)
