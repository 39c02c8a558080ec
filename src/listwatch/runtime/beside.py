"""A coroutine that runs alongside the caller, in the event loop of its own thread."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType

from listwatch.inline import runs_inline

_logger = logging.getLogger(__name__)


class BesideTask:
    """An `async with` block whose body runs alongside a coroutine.

    At the end of the body the coroutine is cancelled and awaited, so its `finally` blocks run. Its
    exception is then raised, or logged if the body raised one itself. If the body is cancelled
    again during this, it stops waiting.

    Args:
        main: the coroutine function; called where it runs.
        name: of the thread.
        threaded: False runs it in the caller's event loop, as everything `runs_inline` does.
    """

    def __init__(
        self, main: Callable[[], Coroutine[object, object, None]], name: str, *, threaded: bool
    ) -> None:
        self._main = main
        self._name = name
        self._threaded = threaded and not runs_inline.get()
        self._stopping = False
        self._own: asyncio.Task[None] | None = None
        # Set by the coroutine itself: a task cancelled before its first step never runs.
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._callers_loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._callers_loop.create_future()
        if not self._threaded:
            self._loop = self._callers_loop
            self._own = self._loop.create_task(self._run(), name=self._name)
            return
        self._loop = asyncio.new_event_loop()
        # A daemon thread, so that a program that ends by an error does not hang.
        threading.Thread(target=self._run_thread, name=self._name, daemon=True).start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._ended.done():
            with contextlib.suppress(RuntimeError):  # its event loop has just ended
                self._loop.call_soon_threadsafe(self._stop)
        try:
            await asyncio.shield(self._ended)
        except Exception:
            if error is None:
                raise
            _logger.exception("%s failed", self._name)
        if self._own is not None:
            await self._own

    def _run_thread(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        error: BaseException | None = None
        self._task = asyncio.current_task()
        try:
            if not self._stopping:
                await self._main()
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - handed to the caller by `_ended`
            error = raised
        with contextlib.suppress(RuntimeError):  # the caller's event loop is closed: nobody waits
            self._callers_loop.call_soon_threadsafe(self._finish, error)

    def _stop(self) -> None:
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def _finish(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None or isinstance(error, asyncio.CancelledError):
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
