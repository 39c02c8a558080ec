"""A work queue with priorities, in which the low ones never starve.

The contract is that of controller-runtime's `pkg/controller/priorityqueue`, with three repairs:
the low priorities get a share of the work, the queue can be drained, and a second shut down is
harmless.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import msgspec

from listwatch.clock import Clock
from listwatch.workqueue.metrics import WorkQueueStatistics
from listwatch.workqueue.rate_limiters import ItemExponentialFailureRateLimiter, RateLimiter
from listwatch.workqueue.work_queue import WorkQueue, check_delay, check_hashable

K = TypeVar("K", bound=Hashable)

#: The priority of what needs no haste: the objects of an initial list, updates without a change.
LOW_PRIORITY = -100

# One of so many takes is for the oldest item, if that is over age.
_AGED_SHARE = 4


class PriorityQueue(WorkQueue[K]):
    """A `WorkQueue` in which items of higher priority come first, those of one as they came.

    An item is there once: added again, it has the higher of its priorities and the earlier of its
    times. A higher priority moves it to the end of that level, as does its time having come. While
    a worker has an item, `priority_of` tells the priority that it had.

    So that a steady stream of urgent items can't hold up the others for ever, one take in four is
    for the item that has been ready longest, provided that this is over `ageing` seconds.

    Args:
        name: labels the metrics; a queue without a name has none.
        clock: the time.
        rate_limiter: how long `add_rate_limited` waits; by default each item by itself waits
            5 ms · 2ⁿ, 1000 s at most, with no common bucket.
        ageing: seconds after which an item is taken out of turn; None is never.
    """

    def __init__(
        self,
        *,
        name: str = "",
        clock: Clock | None = None,
        rate_limiter: RateLimiter[K] | None = None,
        ageing: float | None = 30.0,
    ) -> None:
        super().__init__(
            name=name,
            clock=clock,
            rate_limiter=rate_limiter or ItemExponentialFailureRateLimiter(),
        )
        if ageing is not None and not ageing >= 0:
            raise ValueError(
                f"ageing must be 0 seconds or more, or None to disable it, not {ageing}"
            )
        # The priority of every item that is due or waits, and of every item in process.
        self._priority: dict[K, int] = {}
        self._priority_in_process: dict[K, int] = {}
        self._by_priority = _PriorityOrder(self._clock, ageing, self._priority)
        self._use_order(self._by_priority)

    def add(self, item: K, *, priority: int = 0) -> None:
        """Make the item due for work now, also if it waits. Dropped when shutting down."""
        self.add_with(item, priority=priority)

    def add_after(self, item: K, seconds: float, *, priority: int = 0) -> None:
        """Make the item due for work after so many seconds; now, if 0 or less or if it is due.

        Raises:
            ValueError: `seconds` is infinite or not a number.
        """
        self.add_with(item, priority=priority, after=seconds)

    def add_rate_limited(self, item: K, *, priority: int = 0) -> None:
        """Make the item due for work when the rate limiter says so, or now if it is due."""
        self.add_with(item, priority=priority, rate_limited=True)

    def add_with(
        self, item: K, *, priority: int = 0, after: float | None = None, rate_limited: bool = False
    ) -> None:
        """Make the item due for work.

        Dropped when the queue is shutting down. What the rate limiter raises comes out of here,
        and then the item was not added.

        Args:
            item: the key.
            priority: higher comes first.
            after: seconds until it is due; None, 0 or less is now.
            rate_limited: ask the rate limiter when it is due; with an `after` other than 0, the
                earlier counts.

        Raises:
            TypeError: the item is not hashable, or the priority no integer.
            ValueError: a waiting time is infinite or not a number.
        """
        if self._shutting_down:
            return
        check_hashable(item)
        if not isinstance(priority, int):
            raise TypeError(f"the priority of {item!r} must be an int, not {priority!r}")
        if rate_limited:
            limited = self._rate_limiter.when(item)
            after = min(after, limited) if after else limited
        if after is not None:
            check_delay(item, after)
        known = self._priority.get(item)
        if known is None or priority > known:
            self._priority[item] = priority
        if item in self._dirty:
            if known is not None and priority > known and item not in self._processing:
                self._by_priority.move(item)
        elif after is not None and after > 0:
            self._wait(item, after)
        else:
            self._cancel_wait(item)
            self._make_ready(item)
        if after is not None:
            self._retries += 1

    def priority_of(self, item: K) -> int:
        """Return the priority with which a worker took this item; for adding it again with it.

        Raises:
            ValueError: no worker has the item.
        """
        try:
            return self._priority_in_process[item]
        except KeyError:
            raise ValueError(f"priority_of({item!r}): no worker has taken it") from None

    def requeue(self, item: K, *, failed: bool) -> None:
        """Add a taken item again with its priority: rate limited if it `failed`, else at once."""
        self.add_with(item, priority=self.priority_of(item), rate_limited=failed)

    def put_back(self, item: K) -> None:
        """Be done with an item that was taken and not worked on: it is due again, in any state."""
        if item in self._processing:
            priority = self.priority_of(item)
            self._priority[item] = max(priority, self._priority.get(item, priority))
            self._cancel_wait(item)
        super().put_back(item)

    def done(self, item: K) -> None:
        """Say that the work on a taken item is over, well or badly.

        Raises:
            ValueError: no worker has the item, so this call is one too many.
        """
        super().done(item)
        del self._priority_in_process[item]

    def statistics(self) -> WorkQueueStatistics:
        """Return the state of this moment, with the depth of every priority."""
        depths = dict(self._by_priority.depths)
        for item in list(self._processing):  # those added again are due, but not ready
            if item in self._dirty:
                priority = self._priority.get(item, 0)
                depths[priority] = depths.get(priority, 0) + 1
        return msgspec.structs.replace(super().statistics(), depth_by_priority=depths)

    def _take(self, now: float) -> K:
        item = super()._take(now)
        self._priority_in_process[item] = self._priority.pop(item)
        return item

    def _drop_waiting(self) -> None:
        for item in self._waiting:  # none of them is due: an item that is due doesn't wait
            del self._priority[item]
        super()._drop_waiting()


class _Entry(Generic[K]):
    """A ready item. `taken`: popped through one order; it leaves the other one lazily."""

    __slots__ = ("item", "priority", "ready_at", "sequence", "taken")

    def __init__(self, item: K, ready_at: float) -> None:
        self.item = item
        self.ready_at = ready_at
        self.priority = 0
        self.sequence = 0
        self.taken = False


class _PriorityOrder(Generic[K]):
    """The ready items by priority and, if they age, also by age.

    Entries leave the order that they are not taken from late: when they come to its front, or
    when more than half of it is such entries.
    """

    def __init__(self, clock: Clock, ageing: float | None, priority: Mapping[K, int]) -> None:
        self._now = clock.now
        self._ageing = ageing
        self._priority = priority
        self._entries: dict[K, _Entry[K]] = {}
        self._heap: list[tuple[int, int, _Entry[K]]] = []
        self._by_age: deque[_Entry[K]] = deque()
        self._sequence = itertools.count()
        self._takes_since_aged = 0
        #: How many items there are of each priority.
        self.depths: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, item: K, /) -> None:
        entry = self._entries[item] = _Entry(item, self._now())
        self._place(entry)
        if self._ageing is not None:
            self._by_age.append(entry)
            if len(self._by_age) > 2 * len(self._entries) + 64:
                self._by_age = deque(entry for entry in self._by_age if not entry.taken)

    def move(self, item: K) -> None:
        """Give a ready item its new priority, last among those of that priority."""
        entry = self._entries[item]
        self._count(entry.priority, -1)
        self._place(entry)

    def popleft(self) -> K:
        entry = self._over_age() or self._highest()
        entry.taken = True
        self._count(entry.priority, -1)
        if self._entries.pop(entry.item, None) is None:  # the item was changed: its taker says so
            self._entries = {
                ready.item: ready for ready in self._entries.values() if not ready.taken
            }
        return entry.item

    def _place(self, entry: _Entry[K]) -> None:
        entry.priority = self._priority[entry.item]
        entry.sequence = next(self._sequence)
        self._count(entry.priority, 1)
        heapq.heappush(self._heap, (-entry.priority, entry.sequence, entry))
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [place for place in self._heap if _is_current(place)]
            heapq.heapify(self._heap)

    def _count(self, priority: int, change: int) -> None:
        count = self.depths.get(priority, 0) + change
        if count:
            self.depths[priority] = count
        else:
            del self.depths[priority]

    def _over_age(self) -> _Entry[K] | None:
        if self._ageing is None:
            return None
        self._takes_since_aged += 1
        while self._by_age[0].taken:
            self._by_age.popleft()
        oldest = self._by_age[0]
        if self._takes_since_aged < _AGED_SHARE or self._now() - oldest.ready_at <= self._ageing:
            return None
        self._takes_since_aged = 0
        return oldest

    def _highest(self) -> _Entry[K]:
        while True:
            place = heapq.heappop(self._heap)
            if _is_current(place):
                return place[2]


def _is_current(place: tuple[int, int, _Entry[K]]) -> bool:
    _, sequence, entry = place
    return not entry.taken and entry.sequence == sequence
