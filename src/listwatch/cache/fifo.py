"""What both queues share: waiting, process functions, requeues, errors, statistics."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from listwatch.backoff import REQUEUE
from listwatch.cache.deltas import (
    BatchProcess,
    Delta,
    Deltas,
    DeltaType,
    Item,
    KeyFunc,
    KnownObjects,
    Process,
    RequeueError,
    Rewrite,
    RewriteError,
)
from listwatch.cache.failures import Failure, OnError, log_with_trace
from listwatch.clock import Clock, is_cancelled
from listwatch.errors import QueueClosedError
from listwatch.objects import (
    DeletedFinalStateUnknown,
    KeyFunctionError,
    Object,
    meta_namespace_key,
)

# Accessing an enum member costs seven times as much as a global.
_ADDED = DeltaType.ADDED
_UPDATED = DeltaType.UPDATED

_new = Deltas.__new__


def one_delta(delta: Delta, key: str, queued_at: float, *, initial: bool) -> Deltas:
    """Return `Deltas((delta,), key, …)`, at a third of the constructor's cost."""
    deltas = _new(Deltas)
    deltas.append(delta)
    deltas.key = key
    deltas.is_in_initial_list = initial
    deltas.queued_at = queued_at
    deltas.popped_at = 0.0
    return deltas


class FIFO(ABC):
    """The part of a queue that does not depend on its order; see `Queue` for the contract.

    Args:
        key_func: returns the key of an object; not called for tombstones, which carry their key.
        rewrite: changes each object before it is queued. If it raises, the object is queued
            unchanged, so that no change is lost, and the error goes to `on_error`.
        known_objects: what the consumer holds, to find deletions.
        clock: for requeue delays and for the ages in `statistics`.
        on_error: called with errors of a rewrite, a compressor or known objects that the queue
            survives. By default they are logged. Must not raise.
    """

    def __init__(
        self,
        key_func: KeyFunc = meta_namespace_key,
        *,
        rewrite: Rewrite | None = None,
        known_objects: KnownObjects | None = None,
        clock: Clock | None = None,
        on_error: OnError = log_with_trace,
    ) -> None:
        self._key_func = key_func
        self._rewrite = rewrite
        self._known = known_objects
        self._clock = clock if clock is not None else Clock()
        self._now = self._clock.now
        self._on_error = on_error
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        # Nothing was given yet: the first replace decides what the initial list is.
        self._untouched = True
        self._tries: dict[str, int] = {}
        self._adds = 0
        self._pops = 0
        self._failures = 0
        self._requeues = 0
        self._errors = 0

    # --- What each queue does differently ---

    @abstractmethod
    def _take(self, limit: int) -> Sequence[Deltas]:
        """Move what may be processed now into process; return nothing if there is none."""

    @abstractmethod
    def _finish(self, batch: Sequence[Deltas]) -> None:
        """Finish processing these entries, part of one batch, for good."""

    @abstractmethod
    def _restore(self, batch: Sequence[Deltas]) -> None:
        """Move these entries from in process back to the head, before newer ones of their keys."""

    @abstractmethod
    def _hold(self, batch: Sequence[Deltas], delay: float) -> None:
        """Keep these entries in process for this many seconds, then restore them."""

    @abstractmethod
    def _is_drained(self) -> bool:
        """Whether nothing is queued or in process."""

    @abstractmethod
    def _take_in(self, kind: DeltaType, obj: Object) -> None:
        """Queue a change of one object; without a key, raise `KeyFunctionError`."""

    # --- Writing ---

    def add(self, obj: Object) -> None:
        """Queue a new object.

        Raises:
            KeyFunctionError: it has no key; nothing was queued.
        """
        self._take_in(_ADDED, obj)

    def update(self, obj: Object) -> None:
        """Queue an object's new state.

        Raises:
            KeyFunctionError: it has no key; nothing was queued.
        """
        self._take_in(_UPDATED, obj)

    # --- Popping ---

    async def pop(self, process: Process) -> Deltas:
        """Wait for an entry, process it, and return it: see `Queue.pop`."""
        while not (batch := self._take(1)):
            await self._wait()
        deltas = batch[0]
        try:
            if (pending := process(deltas)) is not None:
                await pending
        except BaseException as error:
            if self._settle(batch, error):
                raise
        else:
            self._finish(batch)
        return deltas

    async def pop_batch(self, process: BatchProcess, limit: int = 1000) -> int:
        """Wait for entries, process them, and return their number: see `Queue.pop_batch`."""
        if limit < 1:
            raise ValueError(f"the batch limit must be 1 or more, not {limit}")
        while not (batch := self._take(limit)):
            await self._wait()
        try:
            if (pending := process(batch)) is not None:
                await pending
        except BaseException as error:
            if self._settle(batch, error):
                raise
        else:
            self._finish(batch)
        return len(batch)

    def _settle(self, batch: Sequence[Deltas], error: BaseException) -> bool:
        """Finish or put back what a process function failed on; return whether to raise."""
        if isinstance(error, RequeueError):
            again = [d for d in batch if error.keys is None or d.key in error.keys]
            done = [d for d in batch if error.keys is not None and d.key not in error.keys]
            if done:
                self._finish(done)
            if again:
                self._requeues += len(again)
                self._hold(again, self._delay(again, error.after))
            return False
        # A process function that awaited something cancelled has failed too.
        is_stray = isinstance(error, asyncio.CancelledError) and not is_cancelled()
        if isinstance(error, Exception) or is_stray:
            self._failures += len(batch)
            self._finish(batch)
        else:
            self._requeues += len(batch)
            self._restore(batch)
        return True

    def _delay(self, batch: Sequence[Deltas], after: float | None) -> float:
        tries = 0
        for deltas in batch:
            tries = max(tries, count := self._tries.get(deltas.key, 0))
            self._tries[deltas.key] = count + 1
        if after is not None:
            return after
        return REQUEUE.delay(tries)

    async def _wait(self) -> None:
        if self._closed and self._is_drained():
            raise QueueClosedError("the queue is closed and empty")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self._wake()  # this waiter was chosen for an entry but leaves: wake the next
            else:
                with suppress(ValueError):  # a wake has skipped and removed it
                    self._waiters.remove(waiter)
            raise

    def _wake(self) -> None:
        waiters = self._waiters
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake()

    @property
    def known_objects(self) -> KnownObjects | None:
        """What the consumer is known to hold."""
        return self._known

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Make pops raise `QueueClosedError` once the queue is empty. Writes are still accepted."""
        self._closed = True
        self._wake_all()

    # --- Keys and errors ---

    def key_of(self, item: Item | Deltas) -> str:
        """Return the key of an object, of a tombstone, or of deltas (that of the newest).

        Raises:
            KeyFunctionError: it has no key.
        """
        if not isinstance(item, Object) and isinstance(item, Deltas):
            if not item:
                raise KeyFunctionError("an empty list of deltas has no key")
            newest = item[-1].object
            if newest is None:
                raise KeyFunctionError(f"a {item[-1].type} delta has no object and so no key")
            item = newest
        if not isinstance(item, Object) and isinstance(item, DeletedFinalStateUnknown):
            return item.key
        try:
            return self._key_func(item)
        except KeyFunctionError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            raise KeyFunctionError(
                f"key function failed for {item!r}: {type(error).__name__}: {error}"
            ) from error

    def _rewritten(self, key: str, obj: Object) -> Object:
        assert self._rewrite is not None  # noqa: S101 - for the type checker: callers check first
        try:
            result = self._rewrite(obj)
            if not isinstance(result, Object):
                raise TypeError(f"it returned a {type(result).__name__}, not an Object")  # noqa: TRY301 - handled like its exceptions
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a user's function: reported, and the object kept
            self._report(RewriteError(key, error))
            return obj
        return result

    def _report(self, error: Exception) -> None:
        self._errors += 1
        key = getattr(error, "key", None)
        self._on_error(Failure(error=error, doing="queue", key=key))
