"""The work queue: deduplicates items and never gives one to two workers at a time.

The contract is that of client-go `util/workqueue` (`queue.go`, `delaying_queue.go`,
`rate_limiting_queue.go`), with three differences, all at shutdown: a drain also waits for queued
items and for delayed ones, and it can have a time-out.
"""

import asyncio
import heapq
import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from listwatch.clock import Clock, Timer
from listwatch.errors import QueueClosedError
from listwatch.workqueue.metrics import Histogram, WorkQueueStatistics
from listwatch.workqueue.rate_limiters import RateLimiter, default_rate_limiter

K = TypeVar("K", bound=Hashable)

#: When an item is due, by the clock; a tie-breaker; the item.
_Entry = tuple[float, int, K]

# A worker that always finds an item yields to other tasks after this many seconds.
_YIELD_AFTER = 0.005
# Maximum items made ready at once, so that a million that are due together don't hold the loop.
_BATCH = 1000


class Order(Protocol[K]):
    """Decides which ready item comes next. A `collections.deque` is first in, first out."""

    def append(self, item: K, /) -> None:
        """Add an item that is not queued yet."""

    def popleft(self) -> K:
        """Remove and return the next item."""

    def __len__(self) -> int: ...


class FairOrder(Generic[K]):
    """An `Order` that takes one item of each group in turn, first in, first out in each group.

    Args:
        group: the group of an item, such as its namespace; a pure function.
    """

    __slots__ = ("_group", "_items", "_length", "_turns")

    def __init__(self, group: Callable[[K], Hashable]) -> None:
        self._group = group
        # A group is in _turns if and only if it has items.
        self._items: dict[Hashable, deque[K]] = {}
        self._turns: deque[Hashable] = deque()
        self._length = 0

    def append(self, item: K, /) -> None:
        """Append the item to its group."""
        group = self._group(item)
        items = self._items.get(group)
        if items is None:
            items = self._items[group] = deque()
            self._turns.append(group)
        items.append(item)
        self._length += 1

    def popleft(self) -> K:
        """Remove and return the first item of the next group."""
        group = self._turns.popleft()
        items = self._items[group]
        item = items.popleft()
        if items:
            self._turns.append(group)
        else:
            del self._items[group]
        self._length -= 1
        return item

    def __len__(self) -> int:
        return self._length


class WorkQueue(Generic[K]):
    """A queue of keys for any number of workers.

    Adding a waiting item again has no effect. Adding an item that a worker is processing requeues
    it when that worker calls `done`. So two workers never have the same item, and no change is
    missed.

    An item is hashable and immutable: a key, not the object itself.

    Bound to one event loop. Call all methods in that loop's thread; they never block it. Any
    thread may call `len`, `statistics` and `num_requeues`; `listwatch.workqueue.threads` gives
    threads the rest. The worker that has waited longest is served first. A worker that always
    finds an item yields to other tasks every 5 ms.

    Args:
        name: labels the metrics; a queue without a name has none.
        clock: the time.
        rate_limiter: the delays of `add_rate_limited`; by default `default_rate_limiter`.
        group: maps an item to its group, for example a namespace. The queue then takes one item
            of each group in turn. Must be a pure function.
    """

    def __init__(
        self,
        *,
        name: str = "",
        clock: Clock | None = None,
        rate_limiter: RateLimiter[K] | None = None,
        group: Callable[[K], Hashable] | None = None,
    ) -> None:
        self.name = name
        self._clock = clock or Clock()
        self._now = self._clock.now
        self._rate_limiter = rate_limiter or default_rate_limiter(self._clock)
        self._group = group
        self._use_order(deque() if group is None else FairOrder(group))
        # An item that is due is in _dirty, with the time since when. It is also in _ready, unless
        # it is in _processing, whose values are the times of the take.
        self._dirty: dict[K, float] = {}
        self._processing: dict[K, float] = {}
        # The heap may also hold stale entries, left by an earlier time or a cancellation: those
        # that differ from the ones in _waiting. They are removed in their turn, or when half of the
        # heap is stale.
        self._waiting: dict[K, _Entry[K]] = {}
        self._heap: list[_Entry[K]] = []
        self._sequence = itertools.count()
        self._timer: Timer | None = None
        self._timer_due = math.inf
        self._getters: deque[asyncio.Future[None]] = deque()
        self._drainers: deque[asyncio.Future[bool]] = deque()
        self._shutting_down = False
        self._yielded_at = self._now()
        #: The seconds from due until taken of the item taken last.
        self.last_wait = 0.0
        self._adds = 0
        self._retries = 0
        self._queue_duration = Histogram()
        self._work_duration = Histogram()

    def _use_order(self, order: Order[K]) -> None:
        self._ready = order
        self._push = order.append
        self._pop = order.popleft

    def __len__(self) -> int:
        """Return the number of items that are ready now."""
        return len(self._ready)

    def __bool__(self) -> bool:
        return True  # an empty queue is a queue

    @property
    def shutting_down(self) -> bool:
        """Whether the queue refuses new items."""
        return self._shutting_down

    # Adding

    def add(self, item: K) -> None:
        """Queue the item now. Do nothing if the queue is shutting down.

        Raises:
            TypeError: the item is not hashable.
        """
        if self._shutting_down:
            return
        try:
            if item in self._dirty:
                return
        except TypeError as error:
            raise unhashable(item) from error
        self._make_ready(item)

    def add_after(self, item: K, seconds: float) -> None:
        """Queue the item after this many seconds; now, if 0 or less.

        The earliest of several times for one item applies. A plain `add` does not cancel it. Do
        nothing if the queue is shutting down. The cost is logarithmic in the delayed items.

        Raises:
            TypeError: the item is not hashable.
            ValueError: `seconds` is infinite or not a number.
        """
        if self._shutting_down:
            return
        check_delay(item, seconds)
        if seconds <= 0:
            self.add(item)
        else:
            self._wait(item, seconds)
        self._retries += 1

    def add_rate_limited(self, item: K) -> None:
        """Queue a failed item again after the rate limiter's delay.

        If the rate limiter raises, the exception propagates and the item is not queued.
        """
        if not self._shutting_down:
            check_hashable(item)
            self.add_after(item, self._rate_limiter.when(item))

    def forget(self, item: K) -> None:
        """Reset the item's failures in the rate limiter, after success or giving up.

        A delayed item stays queued.
        """
        self._rate_limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """Return the item's failures since the last `forget`, as counted by the rate limiter."""
        return self._rate_limiter.num_requeues(item)

    def due_in(self, item: K) -> float | None:
        """Return the seconds until a queued item is due, 0 or less if it is; None if not queued."""
        if (since := self._dirty.get(item)) is not None:
            return since - self._now()
        entry = self._waiting.get(item)
        return None if entry is None else entry[0] - self._now()

    @property
    def oldest(self) -> K | None:
        """The item that has been due longest, or None; an item due again keeps its place."""
        return next(iter(self._dirty), None)

    # Working

    async def get(self) -> K:
        """Return the next item, waiting if necessary. Always call `done` with it afterwards.

        Prefer `item`, which calls `done` itself. A cancelled `get` has taken nothing.

        Raises:
            QueueClosedError: the queue is shutting down and empty.
        """
        while True:
            if self._ready:
                now = self._now()
                if now - self._yielded_at < _YIELD_AFTER:
                    return self._take(now)
                self._yielded_at = now
                try:
                    await asyncio.sleep(0)
                except BaseException:
                    self._pass_on()
                    raise
                if self._ready:
                    return self._take(now)
            if self._shutting_down and not self._waiting:  # a drain keeps delayed items
                raise QueueClosedError(f"work queue {self.name!r} was shut down")
            await self._wait_for_item()

    def done(self, item: K) -> None:
        """Mark the work on a taken item as finished, successful or not.

        Raises:
            ValueError: no worker has the item.
        """
        try:
            started = self._processing.pop(item)
        except KeyError:
            raise ValueError(f"done({item!r}): no worker has taken it, or it is done") from None
        self._work_duration.observe(self._now() - started)
        if item in self._dirty:
            self._push(item)
            if self._getters:
                self._wake_one()
        elif self._drainers:
            self._finish_drain()

    def item(self, *, requeue: bool = False) -> "TakenItem[K]":
        """Return a context manager that takes an item and calls `done` at the end.

        Use it as `async with queue.item() as key`. An exception in the body propagates.

        Args:
            requeue: on success, `forget` the item; on an `Exception`, requeue it rate limited; on
                a cancellation, which is not the item's fault, requeue it at once. Nothing is
                requeued while the queue is shutting down.

        Raises:
            QueueClosedError: as `get`.
        """
        return TakenItem(self, requeue)

    def requeue(self, item: K, *, failed: bool) -> None:
        """Requeue a taken item: rate limited if it `failed`, otherwise at once."""
        if failed:
            self.add_rate_limited(item)
        else:
            self.add(item)

    def put_back(self, item: K) -> None:
        """Return a taken but unprocessed item to the queue, even during a shutdown."""
        if item in self._processing:
            self._dirty.setdefault(item, self._now())
        self.done(item)

    # The end

    def shut_down(self) -> None:
        """Refuse new items, drop delayed ones, and let the workers take the rest.

        Ends a running drain. Calling it again has no effect.
        """
        self._shutting_down = True
        self._drop_waiting()
        self._wake_all()
        while self._drainers:
            _resolve(self._drainers.popleft(), self._is_idle())

    async def shut_down_with_drain(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - measured by the queue's own clock
        *,
        drop_waiting: bool = False,
    ) -> bool:
        """Refuse new items, and return when all queued items are done.

        The workers must continue. Items that fail during the drain are not requeued. Delayed items
        are processed at their time. A cancellation leaves the drain unfinished: call this again
        to continue, or `shut_down` to end it.

        Args:
            timeout: seconds until the drain is ended as by `shut_down`.
            drop_waiting: drop delayed items.

        Returns:
            True if everything was done, False if `shut_down` ended the drain first.

        Raises:
            TimeoutError: the timeout expired; the message has the remaining items.
        """
        self._shutting_down = True
        if drop_waiting:
            self._drop_waiting()
        self._release_workers()
        if self._is_idle():
            self._finish_drain()  # dropping delayed items may have ended an earlier call's drain
            return True
        drained: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._drainers.append(drained)
        try:
            async with self._clock.timeout(timeout):
                return await drained
        except TimeoutError:
            if drained.done() and not drained.cancelled():  # both in the same turn of the loop
                return drained.result()
            left = (
                f"work queue {self.name!r} was not drained within {timeout} s: "
                f"{len(self._ready)} ready, {len(self._waiting)} waiting, "
                f"{len(self._processing)} in process"
            )
            self.shut_down()
            raise TimeoutError(left) from None
        finally:
            if drained in self._drainers:
                self._drainers.remove(drained)

    def statistics(self) -> WorkQueueStatistics:
        """Return current statistics. The cost is linear in the items in process."""
        now = self._now()
        running = [now - started for started in list(self._processing.values())]
        return WorkQueueStatistics(
            name=self.name,
            depth=len(self._dirty),
            depth_by_priority={},
            waiting=len(self._waiting),
            processing=len(running),
            idle_workers=len(self._getters),
            adds=self._adds,
            retries=self._retries,
            queue_duration=self._queue_duration.statistics(),
            work_duration=self._work_duration.statistics(),
            unfinished_work_seconds=sum(running),
            longest_running_processor_seconds=max(running, default=0.0),
            shutting_down=self._shutting_down,
        )

    # Taking

    def _take(self, now: float) -> K:
        item = self._pop()
        try:
            due_since = self._dirty.pop(item)
        except KeyError:
            raise RuntimeError(
                f"{item!r} was changed while it was queued: queue immutable keys"
            ) from None
        self.last_wait = wait = now - due_since
        self._queue_duration.observe(wait)
        self._processing[item] = now
        return item

    async def _wait_for_item(self) -> None:
        getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except BaseException:
            if getter in self._getters:
                self._getters.remove(getter)
            else:
                self._pass_on()
            raise
        self._yielded_at = self._now()

    def _pass_on(self) -> None:
        """Wake another worker for the item that this worker was woken for."""
        if self._ready:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._getters:
            self._wake_one()

    # Becoming ready

    def _make_ready(self, item: K) -> None:
        if item in self._dirty:
            return
        if item not in self._processing:
            self._push(item)
        elif self._group is not None:
            hash(self._group(item))  # raise here, not in another caller's `done`
        self._dirty[item] = self._now()
        self._adds += 1
        if self._getters and self._ready:
            self._wake_one()

    def _wait(self, item: K, seconds: float) -> None:
        due = self._now() + seconds
        try:
            known = self._waiting.get(item)
        except TypeError as error:
            raise unhashable(item) from error
        if known is not None and known[0] <= due:
            return
        if self._group is not None:
            hash(self._group(item))  # raise here, where the caller sees it
        if due < self._timer_due:
            self._set_timer(due)  # first, because it raises without a running event loop
        entry = self._waiting[item] = (due, next(self._sequence), item)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._drop_stale_entries()

    def _cancel_wait(self, item: K) -> None:
        if self._waiting.pop(item, None) is None:
            return
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._drop_stale_entries()
        self._release_workers()

    def _drop_stale_entries(self) -> None:
        waiting = self._waiting
        self._heap = [entry for entry in self._heap if waiting.get(entry[2]) is entry]
        heapq.heapify(self._heap)

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._heap.clear()
        self._set_timer(math.inf)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = math.inf
        if due < math.inf:
            self._timer = self._clock.call_later(due - self._now(), self._on_timer)
            self._timer_due = due

    def _on_timer(self) -> None:
        self._timer = None
        heap, waiting, now = self._heap, self._waiting, self._now()
        try:
            for _ in range(_BATCH):
                if not heap or heap[0][0] > now:
                    break
                entry = heapq.heappop(heap)
                item = entry[2]
                if waiting.get(item) is entry:
                    del waiting[item]
                    self._make_ready(item)
        finally:
            self._set_timer(heap[0][0] if heap else math.inf)
            self._release_workers()

    # Draining

    def _release_workers(self) -> None:
        """Wake all workers of a drain that has no delayed items left."""
        if self._shutting_down and not self._waiting:
            self._wake_all()  # there may be more workers than items to come

    def _is_idle(self) -> bool:
        return not (self._ready or self._processing or self._waiting)

    def _finish_drain(self) -> None:
        if self._is_idle():
            while self._drainers:
                _resolve(self._drainers.popleft(), True)


class TakenItem(Generic[K]):
    """The `async with` block around one item's work; see `WorkQueue.item`."""

    __slots__ = ("_item", "_queue", "_requeue")

    _item: K

    def __init__(self, queue: WorkQueue[K], requeue: bool) -> None:  # noqa: FBT001 - private call
        self._queue = queue
        self._requeue = requeue

    async def __aenter__(self) -> K:
        self._item = item = await self._queue.get()
        return item

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._requeue:
            finish(self._queue, self._item, kind)
        else:
            self._queue.done(self._item)


def finish(queue: WorkQueue[K], item: K, kind: type[BaseException] | None) -> None:
    """Finish an item according to the exception that its work raised; see `WorkQueue.item`."""
    try:
        if kind is None:
            queue.forget(item)
        else:
            queue.requeue(item, failed=issubclass(kind, Exception))
    finally:
        queue.done(item)


def _resolve(future: asyncio.Future[bool], value: bool) -> None:  # noqa: FBT001 - the result
    if not future.done():
        future.set_result(value)


def check_delay(item: object, seconds: object) -> None:
    """Raise a ValueError if the delay is not finite."""
    if not (isinstance(seconds, int | float) and seconds <= sys.float_info.max):
        raise ValueError(f"{item!r} can't be delayed by {seconds!r} seconds: use a finite number")


def check_hashable(item: object) -> None:
    """Raise a TypeError if the item is not hashable."""
    try:
        hash(item)
    except TypeError as error:
        raise unhashable(item) from error


def unhashable(item: object) -> TypeError:
    """Return the error for an unhashable item."""
    return TypeError(
        f"a {type(item).__name__} is not hashable and can't be queued: queue a key instead"
    )
