"""Timers and streams, which put keys into a reconciler's queue."""

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from functools import partial
from typing import Final

from listwatch.backoff import STREAM
from listwatch.cache.handlers import ResourceEventHandler
from listwatch.clock import Clock
from listwatch.printable import printable
from listwatch.runtime.object_timers import TIMER, Interval, LastDone, ObjectTimers
from listwatch.runtime.reconcile_record import Trigger
from listwatch.runtime.sources import Enqueue
from listwatch.workqueue.priority_queue import LOW_PRIORITY

_STREAM: Final = Trigger("Stream")


class Feeds:
    """Timers and streams that put keys into a queue, in a task group once there is one.

    Args:
        put: receives the keys, their priority and what woke them.
        report: called with exceptions of timers and streams, and a description.
        clock: the time.
    """

    def __init__(
        self, put: Enqueue, report: Callable[[str, Exception], None], clock: Clock
    ) -> None:
        self._put = put
        self._report = report
        self._clock = clock
        self._feeds: list[tuple[str, Callable[[], Coroutine[object, object, None]]]] = []
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[asyncio.Task[None], str] = {}

    @property
    def are_running(self) -> bool:
        """Whether new timers and streams start at once."""
        return self._group is not None

    def every(self, name: str, seconds: float, keys: Callable[[], Iterable[str]]) -> None:
        """Put these keys at this interval, with low priority."""
        self.add(name, partial(self._tick, seconds, keys))

    def time_objects(
        self, name: str, interval: Interval, last_done: LastDone | None
    ) -> ResourceEventHandler:
        """Put the key of each object at its own interval; see `ObjectTimers`.

        Args:
            name: for `remove`.
            interval: as there.
            last_done: as there.

        Returns:
            A handler that must get the objects' changes.
        """
        timers = ObjectTimers(
            interval, last_done, put=self._put, report=self._report, clock=self._clock
        )
        self.add(name, timers.run)
        return timers

    def follow(self, name: str, stream: Callable[[], AsyncIterable[str]]) -> None:
        """Put the keys that a stream yields."""
        self.add(name, partial(self._follow, stream))

    def add(self, name: str, feed: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a coroutine function as long as the sources run."""
        self._feeds.append((name, feed))
        if self._group is not None:
            _ = self.spawn(feed(), name)

    async def remove(self, name: str) -> bool:
        """End all timers and streams of a name; return whether there were any."""
        kept = [(each, feed) for each, feed in self._feeds if each != name]
        if len(kept) == len(self._feeds):
            return False
        self._feeds = kept
        ending = {task for task, each in self._tasks.items() if each == name}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        return True

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Start them in this group."""
        self._group = group
        for name, feed in self._feeds:
            _ = self.spawn(feed(), name)

    def end(self) -> None:
        """Cancel them."""
        self._group = None
        for task in self._tasks:
            task.cancel()

    def spawn(self, work: Coroutine[object, object, None], name: str = "") -> asyncio.Task[None]:
        """Run something alongside the sources."""
        assert self._group is not None  # noqa: S101 - callers check first
        try:
            task = self._group.create_task(work)
        except RuntimeError:  # the group is ending
            work.close()
            raise
        self._tasks[task] = name
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        return task

    async def _tick(self, seconds: float, keys: Callable[[], Iterable[str]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                for key in keys():
                    self._put(key, LOW_PRIORITY, TIMER)
            except Exception as error:  # noqa: BLE001 - reported; the next try may succeed
                self._report(printable(f"the keys of a timer: {error}"), error)

    async def _follow(self, stream: Callable[[], AsyncIterable[str]]) -> None:
        failures = 0
        while True:
            try:
                async for key in stream():
                    failures = 0
                    self._put(key, 0, _STREAM)
            except Exception as error:  # noqa: BLE001 - reported, and retried below
                self._report(printable(f"a stream of events failed: {error}"), error)
            await self._clock.sleep(STREAM.delay(failures))
            failures += 1
