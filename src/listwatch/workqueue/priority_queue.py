"""A work queue with priorities in which low ones never starve.

The contract is that of controller-runtime's `pkg/controller/priorityqueue`, with three fixes: low
priorities get a share of the work, the queue can be drained, and shutting down twice is harmless.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import msgspec

from listwatch.clock import Clock
from listwatch.workqueue.metrics import WorkQueueStatistics
from listwatch.workqueue.rate_limiters import ItemExponentialFailureRateLimiter, RateLimiter
from listwatch.workqueue.work_queue import WorkQueue, check_delay, check_hashable

K = TypeVar("K", bound=Hashable)

#: Priority of work that can wait: the objects of an initial list, updates without a change.
LOW_PRIORITY = -100

# One in this many takes goes to the oldest item, if it has waited too long.
_AGED_SHARE = 4


class PriorityQueue(WorkQueue[K]):
    """A `WorkQueue` that serves higher priorities first, and equal ones in order.

    An item is queued once: adding it again keeps the higher priority and the earlier time. A higher
    priority moves the item to the end of that level, as does becoming due. While a worker has an
    item, `priority_of` returns the priority that it had.

    So that urgent items can't starve the others, one take in four goes to the item that has been
    ready longest, if that is over `ageing` seconds.

    With `fair_by`, groups of items with equal priority take turns: while a group has a ready item,
    no other group is served more than twice before it, except by age.

    Args:
        name: labels the metrics; a queue without a name has none.
        clock: the time.
        rate_limiter: the delays of `add_rate_limited`; by default 5 ms · 2ⁿ per item, at most 1000
            s, with no shared bucket.
        ageing: seconds after which an item is taken out of turn; None for never.
        fair_by: returns the group of an item, such as its tenant; None for no groups.
    """

    def __init__(
        self,
        *,
        name: str = "",
        clock: Clock | None = None,
        rate_limiter: RateLimiter[K] | None = None,
        ageing: float | None = 30.0,
        fair_by: Callable[[K], Hashable] | None = None,
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
        # The priority of every item that is due, waiting or in process.
        self._priority: dict[K, int] = {}
        self._priority_in_process: dict[K, int] = {}
        self._by_priority = _PriorityOrder(self._clock, ageing, self._priority, fair_by)
        self._use_order(self._by_priority)

    def add(self, item: K, *, priority: int = 0) -> None:
        """Make the item due now, even if it is waiting. Dropped during a shutdown."""
        self.add_with(item, priority=priority)

    def add_after(self, item: K, seconds: float, *, priority: int = 0) -> None:
        """Make the item due after this many seconds; now, if 0 or less or if it is due already.

        Raises:
            ValueError: `seconds` is infinite or not a number.
        """
        self.add_with(item, priority=priority, after=seconds)

    def add_rate_limited(self, item: K, *, priority: int = 0) -> None:
        """Make the item due after the rate limiter's delay, or now if it is due already."""
        self.add_with(item, priority=priority, rate_limited=True)

    def add_with(
        self, item: K, *, priority: int = 0, after: float | None = None, rate_limited: bool = False
    ) -> None:
        """Make the item due.

        Dropped during a shutdown. If the rate limiter raises, the exception propagates and the item
        is not added.

        Args:
            item: the key.
            priority: higher priorities come first.
            after: seconds until it is due; None, 0 or less for now.
            rate_limited: apply the rate limiter's delay; with an `after` other than 0, the earlier
                time applies.

        Raises:
            TypeError: the item is not hashable, or the priority is not an integer.
            ValueError: a delay is infinite or not a number.
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
        """Return the priority with which a worker took this item, to requeue it with the same one.

        Raises:
            ValueError: no worker has the item.
        """
        try:
            return self._priority_in_process[item]
        except KeyError:
            raise ValueError(f"priority_of({item!r}): no worker has taken it") from None

    def requeue(self, item: K, *, failed: bool) -> None:
        """Requeue a taken item with its priority: rate limited if it `failed`, else at once."""
        self.add_with(item, priority=self.priority_of(item), rate_limited=failed)

    def put_back(self, item: K) -> None:
        """Return a taken but unprocessed item to the queue, even during a shutdown."""
        if item in self._processing:
            priority = self.priority_of(item)
            self._priority[item] = max(priority, self._priority.get(item, priority))
            self._cancel_wait(item)
        super().put_back(item)

    def done(self, item: K) -> None:
        """Mark the work on a taken item as finished, successful or not.

        Raises:
            ValueError: no worker has the item.
        """
        super().done(item)
        del self._priority_in_process[item]

    def statistics(self) -> WorkQueueStatistics:
        """Return the current state, with the depth of every priority."""
        depths = dict(self._by_priority.depths)
        for item in list(self._processing):  # items added again are due, but not ready
            if item in self._dirty:
                priority = self._priority.get(item, 0)
                depths[priority] = depths.get(priority, 0) + 1
        return msgspec.structs.replace(super().statistics(), depth_by_priority=depths)

    def _take(self, now: float) -> K:
        item = super()._take(now)
        self._priority_in_process[item] = self._priority.pop(item)
        return item

    def _drop_waiting(self) -> None:
        for item in self._waiting:  # none of them is due: a due item does not wait
            del self._priority[item]
        super()._drop_waiting()


class _Entry(Generic[K]):
    """A ready item. `taken`: popped through one order; removed lazily from the other."""

    __slots__ = ("item", "priority", "ready_at", "sequence", "taken")

    def __init__(self, item: K, ready_at: float) -> None:
        self.item = item
        self.ready_at = ready_at
        self.priority = 0
        self.sequence = 0
        self.taken = False


class _PriorityOrder(Generic[K]):
    """The ready items by priority and, if they age, also by age.

    Entries taken through one order leave the other lazily: when they reach its front, or when they
    are more than half of it. Groups take turns by fair queueing: an item's round is the one after
    the last of its group, or after the one being served if that is later.
    """

    def __init__(
        self,
        clock: Clock,
        ageing: float | None,
        priority: Mapping[K, int],
        fair_by: Callable[[K], Hashable] | None,
    ) -> None:
        self._now = clock.now
        self._ageing = ageing
        self._priority = priority
        self._entries: dict[K, _Entry[K]] = {}
        self._heap: list[tuple[int, int, int, _Entry[K]]] = []
        self._fair_by = fair_by
        #: For each priority, the round being served, and the last round of each group.
        self._rounds: dict[int, int] = {}
        self._last_rounds: dict[int, dict[Hashable, int]] = {}
        self._by_age: deque[_Entry[K]] = deque()
        self._sequence = itertools.count()
        self._takes_since_aged = 0
        #: Number of items of each priority.
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
        """Give a ready item its new priority, last among the items of that priority."""
        entry = self._entries[item]
        self._count(entry.priority, -1)
        self._place(entry)

    def popleft(self) -> K:
        entry = self._over_age() or self._highest()
        entry.taken = True
        self._count(entry.priority, -1)
        if self._entries.pop(entry.item, None) is None:  # mutated while queued
            self._entries = {
                ready.item: ready for ready in self._entries.values() if not ready.taken
            }
        return entry.item

    def _place(self, entry: _Entry[K]) -> None:
        entry.priority = self._priority[entry.item]
        entry.sequence = next(self._sequence)
        self._count(entry.priority, 1)
        turn = 0 if self._fair_by is None else self._turn(entry.priority, self._fair_by(entry.item))
        heapq.heappush(self._heap, (-entry.priority, turn, entry.sequence, entry))
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [place for place in self._heap if _is_current(place)]
            heapq.heapify(self._heap)

    def _turn(self, priority: int, group: Hashable) -> int:
        """Return the round in which the next item of a group is served."""
        served = self._rounds.get(priority, 0)
        last = self._last_rounds.setdefault(priority, {})
        turn = last[group] = max(served, last.get(group, 0)) + 1
        if len(last) > 2 * self.depths[priority] + 64:  # a group behind has nothing waiting
            self._last_rounds[priority] = {g: at for g, at in last.items() if at > served}
        return turn

    def _count(self, priority: int, change: int) -> None:
        count = self.depths.get(priority, 0) + change
        if count:
            self.depths[priority] = count
        else:
            del self.depths[priority]
            self._rounds.pop(priority, None)
            self._last_rounds.pop(priority, None)

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
                if self._fair_by is not None:
                    self._rounds[-place[0]] = place[1]
                return place[-1]


def _is_current(place: tuple[int, int, int, _Entry[K]]) -> bool:
    _, _, sequence, entry = place
    return not entry.taken and entry.sequence == sequence
