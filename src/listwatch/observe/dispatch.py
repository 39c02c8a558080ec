"""Chooses the next change to run: several at a time, one object's in order and one at a time."""

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from listwatch.clock import Clock, Timer
from listwatch.observe.changes import Observation, merged


class DispatchStatistics(msgspec.Struct, frozen=True):
    """The state of a dispatcher.

    Attributes:
        waiting: changes waiting for their turn.
        running: changes running now.
        finished: changes that have run.
        collapsed: changes merged into a later one of their object.
    """

    waiting: int
    running: int
    finished: int
    collapsed: int


class _Entry(msgspec.Struct):
    change: Observation
    numbers: list[int]
    due: float


class _Lane(msgspec.Struct):
    """The changes of one object."""

    entries: deque[_Entry]
    running: bool = False
    timer: Timer | None = None


class Dispatcher:
    """Runs changes in order of arrival, with a limit on how many run at once.

    One object's changes run one after the other. With a limit of one, the order is that of arrival
    over all objects. For one event loop. `submit` never waits, so running changes never delay the
    observer.

    Args:
        run: runs the given changes; an exception ends `work`.
        parallel: maximum calls of `run` at a time.
        batch: maximum changes of one call, all of different objects.
        together: whether a change may be in one call with a later one.
        debounce: seconds that an object's first change waits for more; changes in that time become
            one, with the latest state. 0 runs each.
        clock: the time.
        progressed: called when `finished_up_to` has grown.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Observation]], Awaitable[None]],
        *,
        parallel: int = 1,
        batch: int = 1,
        together: Callable[[Observation, Observation], bool] = lambda _, __: True,
        debounce: float = 0.0,
        clock: Clock,
        progressed: Callable[[], None] | None = None,
    ) -> None:
        self._run = run
        self._progressed = progressed
        self._parallel = parallel
        self._batch = batch
        self._together = together
        self._debounce = debounce
        self._clock = clock
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._ready: list[tuple[int, tuple[str, str]]] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self._last = 0
        self._unfinished: set[int] = set()
        self._oldest = 1  # every lower number is finished
        self._floor_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._stopped = False
        self._running = self._finished = self._collapsed = 0

    def submit(self, change: Observation) -> int:
        """Queue a change; return its number, which increases by one with each change."""
        self._last += 1
        number = self._last
        self._unfinished.add(number)
        lane_key = (change.resource, change.key)
        lane = self._lanes.get(lane_key)
        if lane is None:
            lane = self._lanes[lane_key] = _Lane(deque())
        if not (self._debounce and lane.entries and self._collapse(lane, change, number)):
            due = self._clock.now() + self._debounce
            lane.entries.append(_Entry(change, [number], due))
        self._offer(lane_key, lane)
        return number

    def _collapse(self, lane: _Lane, change: Observation, number: int) -> bool:
        entry = lane.entries[-1]
        together = merged(entry.change, change)
        if len(together) > 1:
            return False
        self._collapsed += 1
        if together:
            entry.change = together[0]
            entry.numbers.append(number)
        else:
            lane.entries.pop()
            self._finish([*entry.numbers, number])
        return True

    def _offer(self, key: tuple[str, str], lane: _Lane) -> None:
        """Make a lane's first change ready to run, or set a timer for that."""
        if lane.running or lane.timer is not None:
            return
        if not lane.entries:
            self._lanes.pop(key, None)
            return
        first = lane.entries[0]
        wait = first.due - self._clock.now() if self._debounce else 0.0
        if wait > 0:
            lane.timer = self._clock.call_later(wait, self._due, key, lane)
            return
        heapq.heappush(self._ready, (first.numbers[0], key))
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    def _due(self, key: tuple[str, str], lane: _Lane) -> None:
        lane.timer = None
        self._offer(key, lane)

    async def work(self) -> None:
        """Run changes until `stop`, or until one raises; then wait for the running ones."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._parallel):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while not self._stopped:
            taken = self._take_batch()
            if not taken:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                continue
            self._running += len(taken)
            try:
                await self._run([entry.change for _, _, entry in taken])
            finally:
                self._running -= len(taken)
                for _, lane, _ in taken:
                    lane.running = False
            self._finished += len(taken)
            for key, lane, entry in taken:
                self._finish(entry.numbers)
                self._offer(key, lane)

    def _take_batch(self) -> list[tuple[tuple[str, str], _Lane, _Entry]]:
        """Take the changes of one call; their lanes count as running."""
        taken: list[tuple[tuple[str, str], _Lane, _Entry]] = []
        while self._ready and len(taken) < self._batch:
            number, key = self._ready[0]
            lane = self._lanes.get(key)
            # A lane may have been offered twice, or have lost its first change to a merge.
            first = lane.entries[0] if lane and not lane.running and lane.entries else None
            if lane is None or first is None or first.numbers[0] != number:
                heapq.heappop(self._ready)
                continue
            if taken and not self._together(taken[-1][2].change, first.change):
                break
            heapq.heappop(self._ready)
            lane.entries.popleft()
            lane.running = True
            taken.append((key, lane, first))
        return taken

    def _finish(self, numbers: list[int]) -> None:
        self._unfinished.difference_update(numbers)
        before = self._oldest
        while self._oldest <= self._last and self._oldest not in self._unfinished:
            self._oldest += 1
        waiting = []
        for number, waiter in self._floor_waiters:
            if number >= self._oldest:
                waiting.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._floor_waiters = waiting
        if self._progressed is not None and self._oldest > before:
            self._progressed()

    @property
    def last(self) -> int:
        """The number of the latest change."""
        return self._last

    @property
    def finished_up_to(self) -> int:
        """The highest number up to which every change is finished."""
        return self._oldest - 1

    async def finished(self, number: int) -> None:
        """Wait until every change up to this number is finished."""
        if number < self._oldest:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._floor_waiters.append((number, waiter))
        await waiter

    def stop(self) -> None:
        """Start nothing more; `work` returns when the running changes have ended."""
        self._stopped = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)

    def statistics(self) -> DispatchStatistics:
        """Return the current state."""
        waiting = sum(len(lane.entries) for lane in self._lanes.values())
        return DispatchStatistics(waiting, self._running, self._finished, self._collapsed)
