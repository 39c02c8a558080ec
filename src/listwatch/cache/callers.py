"""How a handler is called: in the event loop or on a thread."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import msgspec

from listwatch.cache.failures import Failure, OnError
from listwatch.cache.handlers import Change, ResourceEventHandler, notify
from listwatch.clock import Clock, stray
from listwatch.errors import ListWatchError

#: How long a loop over many objects may hold the event loop, in seconds.
YIELD_SECONDS = 0.005
#: A handler that holds the event loop for longer than this is reported, in seconds.
SLOW_SECONDS = 0.1


class SlowHandlerError(ListWatchError):
    """A handler held the event loop, and everything else in it, for too long."""


class HandlerStatistics(msgspec.Struct, frozen=True, gc=False):
    """What a handler received.

    Attributes:
        delivered: changes delivered, including those on which it failed.
        failed: changes on which it raised.
        longest_seconds: duration of its longest call, including waiting.
        running_seconds: duration of the current call so far; 0 if there is none.
    """

    delivered: int
    failed: int
    longest_seconds: float
    running_seconds: float


class Caller:
    """Calls one handler with changes, one at a time, and survives its exceptions.

    For one task at a time.

    Args:
        handler: the handler.
        on_error: called with the handler's exceptions, and when it holds the event loop for too
            long.
        clock: the time.
        name: of the informer or the handler, for `on_error`.
    """

    def __init__(
        self, handler: ResourceEventHandler, *, on_error: OnError, clock: Clock, name: str = ""
    ) -> None:
        self._handler = handler
        self._on_error = on_error
        self._clock = clock
        self._name = name
        self._delivered = self._failed = 0
        self._longest = 0.0
        self._began: float | None = None

    @property
    def is_current_thread(self) -> bool:
        """Whether the current thread belongs to this handler alone."""
        return False

    async def ended(self) -> None:
        """Return when no call of the handler runs, after the task that calls `tell` has ended."""

    def statistics(self) -> HandlerStatistics:
        """Return statistics so far."""
        running = 0.0 if self._began is None else self._clock.now() - self._began
        return HandlerStatistics(self._delivered, self._failed, self._longest, running)

    async def deliver(
        self, changes: Iterable[Change], wanted: Callable[[], bool] | None = None
    ) -> None:
        """Deliver all the changes, in order, letting other tasks run every 5 ms.

        Args:
            changes: the changes.
            wanted: called before each change; delivery stops once it returns False.
        """
        now = self._clock.now
        yielded = began = now()
        try:
            for change in changes:
                if wanted is not None and not wanted():
                    return
                self._began = began
                waiting: object = None
                try:
                    waiting = notify(self._handler, change)
                    if waiting is None:
                        pass
                    elif inspect.iscoroutine(waiting):
                        await _Watched(waiting, now, partial(self._slow, change))
                    elif inspect.isawaitable(waiting):
                        await waiting
                except asyncio.CancelledError as cancellation:
                    self._fail(change, stray(cancellation))
                except Exception as error:  # noqa: BLE001 - reported; the next changes must still arrive
                    self._fail(change, error)
                self._delivered += 1
                ended = now()
                if (took := ended - began) > self._longest:
                    self._longest = took
                if waiting is None and took > SLOW_SECONDS:
                    self._slow(change, took)
                if ended - yielded >= YIELD_SECONDS:
                    self._began = None
                    await self._clock.sleep(0)
                    yielded = ended = now()
                began = ended
        finally:
            self._began = None

    def _fail(self, change: Change, error: BaseException) -> None:
        self._failed += 1
        doing = f"handler of {type(change).__name__.lower()}"
        self._on_error(Failure(error=error, doing=doing, name=self._name, key=change.key))

    def _slow(self, change: Change, seconds: float) -> None:
        """Report a call that held the event loop."""
        error = SlowHandlerError(f"held the event loop for {seconds:.2f} s")
        doing = f"handler of {type(change).__name__.lower()}"
        self._on_error(Failure(error=error, doing=doing, name=self._name, key=change.key))


class _Watched:
    """A coroutine's awaitable that times each step in which the coroutine does not wait."""

    __slots__ = ("_coroutine", "_now", "_report")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        now: Callable[[], float],
        report: Callable[[float], None],
    ) -> None:
        self._coroutine = coroutine
        self._now = now
        self._report = report

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, now = self._coroutine, self._now
        error: BaseException | None = None
        while True:
            began = now()
            try:
                waited_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration:
                return
            finally:
                if (took := now() - began) > SLOW_SECONDS:
                    self._report(took)
            error = None
            try:
                yield waited_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - raised in the coroutine
                error = raised


class ThreadedCaller(Caller):
    """Calls a handler on its own thread, where it may block.

    Batches go to the thread and return whole, so a change costs no switch of threads. Cancelling
    does not wait: the thread ends after its current change. It is a daemon thread, so a hanging
    handler does not prevent exit.

    Args:
        handler: the handler; its methods must not be coroutine functions.
        on_error: as for `Caller`; called in the event loop.
        clock: the time.
        name: as for `Caller`.
    """

    def __init__(
        self, handler: ResourceEventHandler, *, on_error: OnError, clock: Clock, name: str = ""
    ) -> None:
        super().__init__(handler, on_error=on_error, clock=clock, name=name)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()

    @property
    def is_current_thread(self) -> bool:
        """Whether the current thread belongs to this handler alone."""
        return threading.current_thread() is self._thread

    async def deliver(
        self, changes: Iterable[Change], wanted: Callable[[], bool] | None = None
    ) -> None:
        """Deliver all the changes on the thread, and return when that is done."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            name = f"handler {self._name}"
            self._thread = threading.Thread(
                target=self._serve, args=(loop,), name=name, daemon=True
            )
            self._thread.start()
        done: asyncio.Future[list[tuple[Change, BaseException]]] = loop.create_future()
        cancelled = threading.Event()

        def work() -> None:
            failed = self._tell_here(
                changes, lambda: not cancelled.is_set() and (wanted is None or wanted())
            )
            # With a closed loop, nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_finish, done, failed)

        self._work.put(work)
        try:
            for change, error in await done:
                self._fail(change, error)
        finally:
            cancelled.set()

    def close(self) -> None:
        """Let the thread end after its current change."""
        self._work.put(None)

    async def ended(self) -> None:
        """Return when the thread has ended; `close` lets it."""
        if self._thread is not None:
            await self._ended.wait()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._work.get()) is not None:
            work()
        with suppress(RuntimeError):  # as above
            loop.call_soon_threadsafe(self._ended.set)

    def _tell_here(
        self, changes: Iterable[Change], wanted: Callable[[], bool]
    ) -> list[tuple[Change, BaseException]]:
        failed: list[tuple[Change, BaseException]] = []
        now = self._clock.now
        for change in changes:
            if not wanted():
                break
            self._began = began = now()
            try:
                if inspect.iscoroutine(waiting := notify(self._handler, change)):
                    waiting.close()
                    raise TypeError("a threaded handler's methods must not be coroutine functions")  # noqa: TRY301 - handled like a handler's exceptions
            except BaseException as error:  # noqa: BLE001 - reported in the loop; here it would only end the thread
                failed.append((change, error))
            self._delivered += 1
            self._longest = max(self._longest, now() - began)
        self._began = None
        return failed


def _finish(
    done: asyncio.Future[list[tuple[Change, BaseException]]],
    failed: list[tuple[Change, BaseException]],
) -> None:
    if not done.done():
        done.set_result(failed)
