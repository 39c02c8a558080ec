"""A timer for each object, at an interval that a function of the object returns."""

import asyncio
import heapq
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

from listwatch.cache.deltas import Item
from listwatch.clock import Clock
from listwatch.objects import Object
from listwatch.printable import printable
from listwatch.runtime.reconcile_record import Trigger
from listwatch.runtime.sources import Enqueue
from listwatch.workqueue.priority_queue import LOW_PRIORITY

#: The time of a timer has come.
TIMER: Final = Trigger("Timer")

#: Returns the seconds between two reconciles of an object; None for no timer.
Interval: TypeAlias = Callable[[Object], float | None]
#: Returns when an object was last done: RFC 3339 text, a datetime, or None for never.
LastDone: TypeAlias = Callable[[Object], str | datetime | None]


class _Timer(msgspec.Struct):
    seconds: float
    due: float
    #: When it began, or last went off.
    since: float


class ObjectTimers:
    """Handles changes of a resource, and puts the key of each object whose time has come.

    An object's time is counted from when it was first seen, or was last put. With `last_done` it
    is counted from the time that the object itself records, so it goes on after a restart; an
    object without one is put at once. Between two puts of a key there is always its interval. For
    one event loop.

    Args:
        interval: the seconds of an object, more than 0; None for no timer. Called at each change.
        last_done: reads the object's own record; None to keep no time across restarts.
        put: receives the keys, with low priority.
        report: called with the exceptions of both functions, and a description.
        clock: the time.
    """

    def __init__(
        self,
        interval: Interval,
        last_done: LastDone | None,
        *,
        put: Enqueue,
        report: Callable[[str, Exception], None],
        clock: Clock,
    ) -> None:
        self._interval = interval
        self._last_done = last_done
        self._put = put
        self._report = report
        self._clock = clock
        self._timers: dict[str, _Timer] = {}
        self._heap: list[tuple[float, str]] = []
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._timers)

    # --- The handler ---

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: ARG002, FBT001 - required by the protocol
        """Set the timer of a new object."""
        self._set(obj)

    def on_update(self, old: Object, new: Object) -> None:  # noqa: ARG002 - required by the protocol
        """Set the timer again: the interval or the recorded time may have changed."""
        self._set(new)

    def on_delete(self, obj: Item) -> None:
        """Forget the timer of a deleted object."""
        self._timers.pop(obj.key, None)

    def _set(self, obj: Object) -> None:
        key, now = obj.key, self._clock.now()
        try:
            seconds = self._interval(obj)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"an interval must be more than 0 seconds, not {seconds!r}")  # noqa: TRY301 - reported like what the function raises
            age = self._age(obj)
        except Exception as error:  # noqa: BLE001 - reported; other objects have their timers
            self._report(printable(f"the timer of {key}: {error}"), error)
            return
        if seconds is None:
            self._timers.pop(key, None)
            return
        timer = self._timers.get(key)
        if timer is None:
            timer = self._timers[key] = _Timer(seconds, -1.0, now if age is None else now - age)
        else:
            timer.seconds = seconds
            if age is not None:
                timer.since = max(timer.since, now - age)
        self._schedule(key, timer)

    def _age(self, obj: Object) -> float | None:
        """Return the seconds since the object was last done; None if only seen times count."""
        if self._last_done is None:
            return None
        last = self._last_done(obj)
        if last is None:
            return float("inf")
        if isinstance(last, str):
            last = msgspec.convert(last, datetime)
        if last.tzinfo is None:
            last = last.replace(tzinfo=UTC)
        return max(0.0, self._clock.time() - last.timestamp())

    def _schedule(self, key: str, timer: _Timer) -> None:
        due = max(timer.since + timer.seconds, 0.0)
        if due == timer.due:
            return
        timer.due = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._timers) + 64:
            self._heap = [(each.due, name) for name, each in self._timers.items()]
            heapq.heapify(self._heap)
        if self._heap[0] == (due, key):
            self._news.set()

    # --- The clock ---

    async def run(self) -> None:
        """Put the keys whose time has come, until cancelled."""
        while True:
            self._news.clear()
            self._put_due()
            wait = None if not self._heap else self._heap[0][0] - self._clock.now()
            try:
                async with self._clock.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _put_due(self) -> None:
        now = self._clock.now()
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            timer = self._timers.get(key)
            if timer is None or timer.due != due:
                continue  # deleted, or another time applies
            timer.since = now
            self._schedule(key, timer)
            self._put(key, LOW_PRIORITY, TIMER)
