"""The parts of a program: each ends with its block, and a failure of one stops all."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from listwatch.clock import Clock, stray
from listwatch.errors import unwrap
from listwatch.signal_handlers import handling

_logger = logging.getLogger(__name__)

Task: TypeAlias = Callable[[], Awaitable[object]]


class Part:
    """A task that is cancelled once, however many callers end it."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self._is_ending = False

    def cancel(self) -> None:
        """Cancel the part, once."""
        if not self._is_ending:
            self._is_ending = True
            self.task.cancel()


class Parts:
    """Runs the parts of a program.

    For one event loop.

    Args:
        clock: the time.
        grace: seconds for a cancelled part to end.
    """

    def __init__(self, clock: Clock, grace: float) -> None:
        self._clock = clock
        self.grace = grace
        #: Set once everything is to stop.
        self.stopping = asyncio.Event()
        #: The part that failed first, and its exception.
        self.failure: tuple[str, BaseException] | None = None
        #: Whether the process may be killed if a part does not end.
        self.owns_process = False

    @contextlib.asynccontextmanager
    async def running(self, name: str, run: Task) -> AsyncIterator[Part]:
        """Run something alongside the body, and end it with the body."""
        task = asyncio.get_running_loop().create_task(self._watched(name, run), name=name)
        part = Part(task)
        try:
            yield part
        finally:
            await self._end(name, part)

    async def _end(self, name: str, part: Part) -> None:
        """Cancel a part and wait for its end; if it never ends, kill the process if allowed."""
        part.cancel()
        task = part.task
        try:
            async with self._clock.timeout(self.grace):
                await asyncio.wait({task})
        except TimeoutError:
            # The lease must not be released while the work continues, so the process can't
            # continue.
            fate = "the process is killed" if self.owns_process else "everything waits for it"
            _logger.critical(
                "%s still runs %g s after it was cancelled, so %s", name, self.grace, fate
            )
            if self.owns_process:
                kill_process()
            await asyncio.wait({task})

    async def _watched(self, name: str, run: Task) -> None:
        try:
            await run()
        except (KeyboardInterrupt, SystemExit):
            raise
        except asyncio.CancelledError as cancellation:
            self.fail(name, stray(cancellation))
        except BaseException as error:  # noqa: BLE001 - kept, stops everything, and is raised at the end
            self.fail(name, error)

    def fail(self, name: str, error: BaseException) -> None:
        """Record a part's failure, and stop everything."""
        error = unwrap(error)
        if self.failure is None:
            self.failure = (name, error)
            _logger.error("%s failed, stopping everything: %s", name, error)
        else:
            _logger.error("%s failed too: %s", name, error)
        self.stopping.set()

    async def until_stopping(self, task: "asyncio.Task[None]") -> None:
        """Return when the task has ended, or everything is to stop."""
        stopping = asyncio.get_running_loop().create_task(self.stopping.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()


@contextlib.contextmanager
def cancelled_at_once(parts: Sequence[Part]) -> Iterator[None]:
    """Cancel all parts when the body is cancelled, before waiting for any of them."""
    try:
        yield
    except asyncio.CancelledError:
        for part in parts:
            part.cancel()
        raise


@contextlib.contextmanager
def stopped_by_signals(stopping: asyncio.Event) -> Iterator[None]:
    """Set the event at the first SIGTERM or SIGINT, and cancel the body at the second."""
    task = asyncio.current_task()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            _logger.warning("%s again: stopping at once", number.name)
            if task is not None:
                task.cancel()
            return
        _logger.info("%s: stopping", number.name)
        stopping.set()

    try:
        with handling((signal.SIGTERM, signal.SIGINT), on_signal):
            yield
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise


def kill_process() -> None:
    """End the process at once, as a failure."""
    # Another process may lead by now, and this one can't be stopped otherwise.
    os._exit(70)
