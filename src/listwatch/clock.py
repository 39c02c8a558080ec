"""Time, injected: every timer, sleep and time-out of the package goes through a `Clock`."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Cancel the callback. Harmless after it has run, and when called twice."""


class Timeout:
    """An asynchronous context manager that cancels its body when the time is over.

    The body's task gets `asyncio.CancelledError` at its next await, and the `async with` statement
    raises `TimeoutError` instead. A cancellation from outside passes through unchanged, even if
    both come at once. `expired` is true once the time was over.
    """

    __slots__ = ("_clock", "_seconds", "_task", "_timer", "_was_cancelling", "expired")

    def __init__(self, clock: "Clock", seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._timer: Timer | None = None
        self._task: asyncio.Task[Any] | None = None
        self._was_cancelling = 0
        self.expired = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a Timeout needs a running task")
        self._was_cancelling = self._task.cancelling()
        if self._seconds is not None:
            self._timer = self._clock.call_later(self._seconds, self._expire)
        return self

    def _expire(self) -> None:
        if self._task is not None:
            self.expired = True
            self._task.cancel()

    def postpone(self, seconds: float | None) -> None:
        """Reset the limit, counted from now; None removes it. No effect once expired."""
        if self.expired or self._task is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._seconds = seconds
        self._timer = None if seconds is None else self._clock.call_later(seconds, self._expire)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if (
            self.expired
            and task is not None
            and task.uncancel() <= self._was_cancelling
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        ):
            raise TimeoutError(f"not finished within {self._seconds:g} s") from error


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def stray(cancellation: asyncio.CancelledError) -> RuntimeError:
    """Return the error to report for a cancellation that did not come from outside this task.

    Awaiting a cancelled task of your own raises it. A TaskGroup takes a task that ends with it for
    one that was cancelled on purpose, and reports nothing.

    Raises:
        CancelledError: the one given, because the current task is being cancelled.
    """
    if is_cancelled():
        raise cancellation
    error = RuntimeError("an awaited task or future was cancelled")
    error.__cause__ = cancellation
    return error


async def in_own_task(work: Callable[[], Awaitable[T]]) -> T:
    """Run foreign code in a separate task, and return or raise its outcome.

    Until Python 3.13, a TaskGroup that fails leaves its own task counted as cancelled for good
    (`Task.cancelling`). Use this if you need that count after foreign code. Cancelling the caller
    cancels the work, and takes effect when the work has ended.
    """

    async def run() -> T:
        return await work()

    return await asyncio.create_task(run())


def in_thread(executor: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run foreign code in a thread, with the caller's context variables.

    A future can't hold StopIteration: it would never be done. As in a generator (PEP 479), it
    becomes a RuntimeError. Cancelling the future does not end a running thread.
    """

    def run() -> T:
        try:
            return work()
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    return asyncio.get_running_loop().run_in_executor(executor, copy_context().run, run)


class Clock:
    """The real clock.

    One instance may be shared by any number of tasks and threads; `sleep`, `call_later` and
    `timeout` use the caller's running event loop.
    """

    def now(self) -> float:
        """Return monotonic seconds; only differences are meaningful."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since 1970 in UTC, for timestamps; may jump."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds; 0 or less lets the other tasks run once."""
        await asyncio.sleep(max(0.0, seconds))

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> Timer:
        """Call `callback(*args)` in the running event loop after this many seconds."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback, *args)

    def timeout(self, seconds: float | None) -> Timeout:
        """Return an `async with` time limit in seconds; None for no limit."""
        return Timeout(self, seconds)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _FakeTimer:
    __slots__ = ("args", "callback", "when")

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[object, ...]
    ) -> None:
        self.when = when
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None
        self.args = ()


class FakeClock(Clock):
    """A clock for tests that stands still until `advance` moves it.

    Timers run in order of time, those of one instant in the order in which they were set. Between
    two timers, every task runs until all tasks wait. For one event loop.

    Args:
        now: first value of `now`, in seconds.
        time: first value of `time`, in seconds since 1970.
    """

    def __init__(self, now: float = 1000.0, time: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall_offset = time - now
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Return the seconds that `advance` has reached."""
        return self._now

    def time(self) -> float:
        """Return the wall clock's seconds since 1970, which move with `now`."""
        return self._now + self._wall_offset

    def set_time(self, seconds: float) -> None:
        """Let the wall clock jump to this many seconds since 1970; `now` and timers stay."""
        self._wall_offset = seconds - self._now

    def stall(self, seconds: float) -> None:
        """Let time pass while nothing runs, as if the event loop were blocked.

        Timers that become due run with the next `advance`.
        """
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Return once `advance` has moved the clock by this many seconds."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, _wake, future)
        try:
            await future
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> Timer:
        """Call `callback(*args)` once `advance` has moved the clock by this many seconds."""
        timer = _FakeTimer(self._now + max(0.0, seconds), callback, args)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    @property
    def next_timer(self) -> float | None:
        """Seconds until the next timer, or None if there is none."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self._now) if self._timers else None

    async def settle(self) -> None:
        """Let every task run until all of them wait for a timer, a peer or each other."""
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        if ready is None:  # not asyncio's own event loop: some turns and some time must do
            for seconds in (0.0, 0.002):
                await asyncio.sleep(seconds)  # for threads, which look up addresses there
                for _ in range(100):
                    await asyncio.sleep(0)
            return
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110 - no event tells that all tasks wait
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the clock by this many seconds, running what becomes due in order."""
        end = self._now + seconds
        await self.settle()
        while (wait := self.next_timer) is not None and self._now + wait <= end + 1e-9:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            callback = timer.callback
            if callback is not None:
                callback(*timer.args)
            await self.settle()
        self._now = max(self._now, end)
        await self.settle()
