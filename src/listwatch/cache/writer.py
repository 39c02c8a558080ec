"""Writes a cache: applies deltas to the store, notes its version, and reports the changes.

The only place that compares uids.
"""

import asyncio
import heapq
import itertools
from collections.abc import Sequence

from listwatch.cache.callers import YIELD_SECONDS
from listwatch.cache.deltas import Delta, Deltas, DeltaType, Item
from listwatch.cache.failures import Failure, OnError
from listwatch.cache.handlers import Added, Change, Deleted, Updated, last_state
from listwatch.cache.mutation_detector import MutationDetector
from listwatch.cache.processor import Processor, StoppedError
from listwatch.cache.reflector_machine import is_comparable, is_older
from listwatch.cache.store import IndexFunctionError, Replacement, Store
from listwatch.clock import Clock
from listwatch.objects import DeletedFinalStateUnknown, Object

#: Steps between two looks at the clock.
_STEPS = 256
# Accessing an enum member costs seven times as much as a global.
_DELETED = DeltaType.DELETED
_SYNC = DeltaType.SYNC
_NOT_ONE_OBJECT = frozenset({DeltaType.REPLACED_ALL, DeltaType.SYNC_ALL, DeltaType.BOOKMARK})


class DeltaProcessor:
    """Applies deltas to a store and returns the changes to deliver to handlers.

    - A new object under a key with another uid replaces the old one: a deletion, then an addition.
      (client-go delivers only an update, kubernetes#133565.)
    - An object whose uid and version are already stored is delivered only for a resync.
    - A complete list is one swap of the store; its deletions come first, then the rest in the
      list's order.
    - The deletion of an object that is not stored is not delivered.

    For one task at a time, the only writer of the store.

    Args:
        store: the store to write.
        on_error: called for objects that an index function refuses; their keys stay as they are.
        clock: decides when to let other tasks run.
        name: the informer's name, for `on_error`.
        ordered: deltas come in the server's order, so the version of one implies that everything
            before it was applied.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_error: OnError,
        clock: Clock,
        name: str = "",
        ordered: bool = True,
    ) -> None:
        self._store = store
        self._on_error = on_error
        self._clock = clock
        self._name = name
        self._ordered = ordered

    async def apply(self, batch: Sequence[Deltas]) -> list[Change]:
        """Apply the deltas in order and return the changes, in the order of delivery."""
        if len(batch) > 1 or batch[0][0].type not in _NOT_ONE_OBJECT:
            return self._apply_batch(batch)
        changes: list[Change] = []
        for delta in batch[0]:
            await self._apply_to_all(delta, initial=batch[0].is_in_initial_list, changes=changes)
        return changes

    def _apply_batch(self, batch: Sequence[Deltas]) -> list[Change]:
        changes: list[Change] = []
        put, remove, emit = self._store.put, self._store.remove, changes.append
        version = ""
        for deltas in batch:
            key, initial = deltas.key, deltas.is_in_initial_list
            for delta in deltas:
                kind, item = delta.type, delta.object
                if kind is _DELETED or not isinstance(item, Object):
                    if item is None:
                        raise ValueError(f"a {kind} delta without an object, in a batch")
                    if (old := remove(key)) is not None:
                        emit(Deleted(_gone(key, old, item)))
                    if isinstance(item, Object):
                        version = item.meta.resource_version or version
                    continue
                try:
                    old = put(key, item)
                except IndexFunctionError as error:
                    self._report(error)
                    continue
                meta = item.meta
                version = meta.resource_version or version
                if old is None:
                    emit(Added(item, initial))
                elif old.meta.uid != meta.uid:
                    emit(Deleted(DeletedFinalStateUnknown(key, old)))
                    emit(Added(item, initial))
                elif old.meta.resource_version == meta.resource_version != "":
                    put(key, old)  # so that the `old` of an update is the last delivered `new`
                    if kind is _SYNC:
                        emit(Updated(old, old, True))
                else:
                    emit(Updated(old, item, kind is _SYNC))
        if self._ordered:
            self._store.bookmark(version)
        return changes

    async def _apply_to_all(self, delta: Delta, *, initial: bool, changes: list[Change]) -> None:
        match delta.type:
            case DeltaType.BOOKMARK:
                self._store.bookmark(delta.resource_version)
            case DeltaType.SYNC_ALL:
                changes += [Updated(obj, obj, is_resync=True) for obj in self._store.list()]
            case DeltaType.REPLACED_ALL:
                replacement = await self._store.replace_in_steps(
                    delta.objects or (), delta.resource_version, on_error=self._report
                )
                await self._compare(replacement, initial=initial, changes=changes)
            case _:
                raise ValueError(f"a {delta.type} delta cannot apply to all objects")

    async def _compare(
        self, replacement: Replacement, *, initial: bool, changes: list[Change]
    ) -> None:
        old, new = replacement.old, replacement.new
        came: list[Change] = []
        yielded = self._clock.now()
        for key, gone in old.items():
            now = new.get(key)
            if now is None or now.meta.uid != gone.meta.uid:
                changes.append(Deleted(DeletedFinalStateUnknown(key, gone)))
        for step, (key, obj) in enumerate(new.items()):
            was = old.get(key)
            if was is None or was.meta.uid != obj.meta.uid:
                came.append(Added(obj, initial))
            elif was is not obj and not _is_same(was, obj):
                came.append(Updated(was, obj))
            if not step % _STEPS and self._clock.now() - yielded >= YIELD_SECONDS:
                await self._clock.sleep(0)
                yielded = self._clock.now()
        changes += came

    def _report(self, error: IndexFunctionError) -> None:
        self._on_error(Failure(error=error, doing="index", name=self._name, key=error.key))


def _is_same(old: Object, new: Object) -> bool:
    version = new.meta.resource_version
    return version != "" and old.meta.resource_version == version and old.meta.uid == new.meta.uid


def _gone(key: str, old: Object, item: Item | None) -> Item:
    """Return what to deliver for a deletion: a state of the very object that was stored."""
    last = last_state(item) if item is not None else None
    if item is not None and last is not None and last.meta.uid == old.meta.uid:
        return item
    return DeletedFinalStateUnknown(key, old)


class CacheWriter:
    """The only writer of a shared informer's store; it also delivers the changes.

    The store has a change before any listener sees it, and no listener joins between the two. Write
    from one task at a time; any task of its event loop may wait.

    Args:
        store: the store to write.
        processor: delivers the changes.
        on_error: called for objects that an index function refuses.
        clock: the time.
        name: the informer's name, for errors.
        detector: receives every written object, if given.
    """

    def __init__(
        self,
        store: Store,
        processor: Processor,
        *,
        on_error: OnError,
        clock: Clock,
        name: str = "",
        detector: MutationDetector | None = None,
    ) -> None:
        self._store = store
        self._processor = processor
        self._deltas = DeltaProcessor(store, on_error=on_error, clock=clock, name=name)
        self._detector = detector
        self._waiters = _VersionWaiters()
        self._clock = clock
        self._name = name
        self._ended = False

    async def write(self, batch: Sequence[Deltas]) -> None:
        """Apply deltas in order, deliver the changes, and wake tasks waiting for their version."""
        changes: Sequence[Change] = ()
        self._processor.begin()
        try:
            changes = await self._deltas.apply(batch)
            if self._detector is not None:
                self._detect(self._detector, changes)
        finally:
            self._processor.finish(changes)
        if self._waiters:
            self._waiters.wake(self._store.last_store_sync_resource_version)

    @staticmethod
    def _detect(detector: MutationDetector, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Added):
                detector.add(change.obj)
            elif isinstance(change, Updated) and change.new is not change.old:
                detector.add(change.new)

    async def wait_for(self, resource_version: str, seconds: float | None) -> None:
        """Wait until everything up to a version is written.

        Args:
            resource_version: a decimal number.
            seconds: time limit; None for no limit.

        Raises:
            TimeoutError: the time limit expired.
            StoppedError: the writer ended before that.
        """
        if _reaches(self._store.last_store_sync_resource_version, resource_version):
            return
        if self._ended:
            raise StoppedError(f"{self._name or 'the informer'} has ended")
        waiter = self._waiters.add(resource_version)
        try:
            async with self._clock.timeout(seconds):
                await waiter
        finally:
            self._waiters.discard(waiter)

    def end(self) -> None:
        """Stop writing: tasks waiting for a version get a `StoppedError`."""
        self._ended = True
        self._waiters.fail(f"{self._name or 'the informer'} has ended")


class _VersionWaiters:
    """Tasks waiting for versions. A wake costs in proportion to those whose version has come."""

    def __init__(self) -> None:
        # Ordered by version, then by arrival. Abandoned entries are removed once they are half of
        # it.
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._order = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, version: str) -> "asyncio.Future[None]":
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        heapq.heappush(self._heap, (int(version), next(self._order), waiter))
        return waiter

    def discard(self, waiter: "asyncio.Future[None]") -> None:
        self._waiting.discard(waiter)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if entry[2] in self._waiting]
            heapq.heapify(self._heap)

    def wake(self, version: str) -> None:
        if not is_comparable(version):
            return
        reached = int(version)
        while self._heap and self._heap[0][0] <= reached:
            waiter = heapq.heappop(self._heap)[2]
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, reason: str) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StoppedError(reason))


def _reaches(mine: str, wanted: str) -> bool:
    return mine.isdecimal() and not is_older(mine, wanted)
