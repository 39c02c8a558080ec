"""The body of `async with manager`, which runs while the manager does."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING

from listwatch.errors import ListWatchError

if TYPE_CHECKING:
    from listwatch.clock import Clock, Timeout


class ManagerError(ListWatchError):
    """A part of the program failed and everything was stopped; the cause is chained."""


class BodyScope:
    """Begins a body when a manager is ready, and ends it if the manager ends first.

    Args:
        name: of the manager's task.
        serve: runs the manager.
        ready: set when the body may begin.
        clock: the time.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[], Coroutine[object, object, None]],
        ready: asyncio.Event,
        clock: "Clock",
    ) -> None:
        self._scope: Timeout | None = clock.timeout(None)
        self._serving = asyncio.get_running_loop().create_task(serve(), name=name)
        self._ready = ready

    async def enter(self) -> None:
        """Return when the body may begin.

        Raises:
            ManagerError: the manager failed, or was stopped before.
        """
        serving = self._serving
        ready = asyncio.get_running_loop().create_task(self._ready.wait())
        try:
            await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            serving.cancel()
            await asyncio.wait({serving})
            raise
        finally:
            ready.cancel()
        if serving.done():
            serving.result()
            raise ManagerError("the manager was stopped before its caches synced")
        if self._scope is not None:
            await self._scope.__aenter__()
        serving.add_done_callback(self._end_body)

    def _end_body(self, _: object) -> None:
        if self._scope is not None:
            self._scope.postpone(0)

    async def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Wait for the end of the manager; return whether that ended the body."""
        scope, self._scope = self._scope, None
        assert scope is not None  # noqa: S101 - a body is left once
        was_ended = False
        try:
            await asyncio.wait({self._serving})
        except asyncio.CancelledError:
            self._serving.cancel()
            raise
        finally:
            try:
                await scope.__aexit__(kind, error, traceback)
            except TimeoutError:
                was_ended = True
        self._serving.result()
        return was_ended
