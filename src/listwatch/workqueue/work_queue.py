"""The work queue: each item once, never with two workers, later if it has to wait.

The contract is that of client-go `util/workqueue` (`queue.go`, `delaying_queue.go`,
`rate_limiting_queue.go`), with three differences, all at the end of a queue's life: a drain also
waits for what is queued, and for items whose time has not come, and a drain can have a time-out.
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

# A worker that never has to wait lets the other tasks run after this many seconds.
_YIELD_AFTER = 0.005
# Items made ready in one go, so that a million that fall due together don't hold the loop.
_BATCH = 1000


class Order(Protocol[K]):
    """Which of the ready items comes next; a `collections.deque` is first in, first out."""

    def append(self, item: K, /) -> None:
        """Take in an item that is not in it."""

    def popleft(self) -> K:
        """Take out the next item."""

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
        """Put the item last in its group."""
        group = self._group(item)
        items = self._items.get(group)
        if items is None:
            items = self._items[group] = deque()
            self._turns.append(group)
        items.append(item)
        self._length += 1

    def popleft(self) -> K:
        """Take the first item of the group whose turn it is."""
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

    An item that is added again while it waits for a worker is there once, in its first place; one
    that is added while a worker has it comes again when that worker is done. So two workers never
    have the same item, and no change is missed.

    An item is anything hashable that stays as it is: a key, not the object itself.

    Belongs to one event loop: all methods are for that loop's thread and never block it
    (`listwatch.workqueue.threads` is for other threads), except `len`, `statistics` and
    `num_requeues`, which any thread may call. Of two or more workers, the one that waits longest
    is served first. A worker that always finds an item lets other tasks run every 5 ms.

    Args:
        name: labels the metrics; a queue without a name has none.
        clock: the time.
        rate_limiter: how long `add_rate_limited` waits; by default `default_rate_limiter`.
        group: makes the queue fair among groups of items, for instance namespaces: it takes
            one item of each group in turn. A pure function of the item.
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
        # An item that is due for work is in _dirty, with the time since when; it is in _ready
        # too, unless it is in _processing, where the values are the times of the take.
        self._dirty: dict[K, float] = {}
        self._processing: dict[K, float] = {}
        # The heap may also hold entries that an earlier time or a cancellation made stale: those
        # that are not the ones in _waiting. They go when half of it are such, or in their turn.
        self._waiting: dict[K, _Entry[K]] = {}
        self._heap: list[_Entry[K]] = []
        self._sequence = itertools.count()
        self._timer: Timer | None = None
        self._timer_due = math.inf
        self._getters: deque[asyncio.Future[None]] = deque()
        self._drainers: deque[asyncio.Future[bool]] = deque()
        self._shutting_down = False
        self._yielded_at = self._now()
        self._adds = 0
        self._retries = 0
        self._queue_duration = Histogram()
        self._work_duration = Histogram()

    def _use_order(self, order: Order[K]) -> None:
        self._ready = order
        self._push = order.append
        self._pop = order.popleft

    def __len__(self) -> int:
        """Return how many items a worker could take now."""
        return len(self._ready)

    def __bool__(self) -> bool:
        return True  # an empty queue is a queue

    @property
    def shutting_down(self) -> bool:
        """Whether the queue refuses new items."""
        return self._shutting_down

    # Adding

    def add(self, item: K) -> None:
        """Make the item due for work now. Dropped when the queue is shutting down.

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
        """Make the item due for work after so many seconds; now, if 0 or less.

        Of several times for one item the earliest counts. A plain `add` meanwhile does not cancel
        it. Dropped when the queue is shutting down. Costs a logarithm of the waiting items.

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
        """Make the item due for work when the rate limiter says so; a failed item's way back.

        What the rate limiter raises comes out of here, and then the item was not added.
        """
        if not self._shutting_down:
            check_hashable(item)
            self.add_after(item, self._rate_limiter.when(item))

    def forget(self, item: K) -> None:
        """Tell the rate limiter that the item has succeeded or was given up.

        An item that already waits stays so.
        """
        self._rate_limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """Return the item's failures since it was last forgotten, by the rate limiter's count."""
        return self._rate_limiter.num_requeues(item)

    # Working

    async def get(self) -> K:
        """Take the next item, waiting for one if need be. Call `done` with it, whatever happens.

        Prefer `item`, which can't forget to. A cancelled `get` has taken nothing.

        Raises:
            QueueClosedError: the queue is shutting down, and nothing is left to take.
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
            if self._shutting_down and not self._waiting:  # a drain keeps those that wait
                raise QueueClosedError(f"work queue {self.name!r} was shut down")
            await self._wait_for_item()

    def done(self, item: K) -> None:
        """Say that the work on a taken item is over, well or badly.

        Raises:
            ValueError: no worker has the item, so this call is one too many.
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
        """Return `async with queue.item() as key`, which takes an item and is done with it.

        An exception in the body passes through; the worker's loop decides what it means.

        Args:
            requeue: after a body without an exception `forget` the item; after an `Exception` add
                it again rate limited; after a cancellation, which is not the item's fault, add it
                again at once. While the queue is shutting down nothing is added.

        Raises:
            QueueClosedError: as `get`.
        """
        return TakenItem(self, requeue)

    def requeue(self, item: K, *, failed: bool) -> None:
        """Add a taken item again: rate limited if it `failed`, else at once."""
        if failed:
            self.add_rate_limited(item)
        else:
            self.add(item)

    def put_back(self, item: K) -> None:
        """Be done with an item that was taken and not worked on: it is due again, in any state."""
        if item in self._processing:
            self._dirty.setdefault(item, self._now())
        self.done(item)

    # The end

    def shut_down(self) -> None:
        """Refuse new items from now on, drop the waiting ones, and let the workers take the rest.

        Ends a drain that is going on. Harmless when called again.
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
        """Refuse new items from now on, and return when all those that are here are done.

        The workers must go on; items that fail now are not added again. Items that wait for their
        time are worked on when it has come. Cancelling this leaves the queue in the middle of the
        drain: call it again to go on, or `shut_down` to end it.

        Args:
            timeout: seconds after which the drain is given up as by `shut_down`.
            drop_waiting: forget the items whose time has not come.

        Returns:
            True when everything was done, False when `shut_down` ended the drain before.

        Raises:
            TimeoutError: the time was over first; the message tells what was left.
        """
        self._shutting_down = True
        if drop_waiting:
            self._drop_waiting()
        self._release_workers()
        if self._is_idle():
            self._finish_drain()  # dropping the waiting items may have ended an earlier call's
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
        """Return the state of this moment. Costs a look at each item in process."""
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
        self._queue_duration.observe(now - due_since)
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
        """Leave the item that this worker was woken for to another one."""
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
            hash(self._group(item))  # what this may raise is raised here, not in another's `done`
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
            hash(self._group(item))  # what this may raise is raised here, where the caller sees it
        if due < self._timer_due:
            self._set_timer(due)  # first of all, since without a running event loop it raises
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
        """End the wait of all workers in a drain in which no waiting item is left."""
        if self._shutting_down and not self._waiting:
            self._wake_all()  # there may be more of them than there are items to come

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
    """Be done with an item by the kind of exception that its work raised; see `WorkQueue.item`."""
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
    """Raise a ValueError if this is no time to wait."""
    if not (isinstance(seconds, int | float) and seconds <= sys.float_info.max):
        raise ValueError(f"{item!r} can't be delayed by {seconds!r} seconds: use a finite number")


def check_hashable(item: object) -> None:
    """Raise a TypeError if this is no key."""
    try:
        hash(item)
    except TypeError as error:
        raise unhashable(item) from error


def unhashable(item: object) -> TypeError:
    """Return the error for an item that can't be a key."""
    return TypeError(
        f"a {type(item).__name__} is not hashable and can't be queued: queue a key instead"
    )
