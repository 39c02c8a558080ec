"""Calls a reconciler's function: async, plain or in a thread."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeAlias

from listwatch.clock import Clock, in_own_task, in_thread
from listwatch.inline import runs_inline
from listwatch.printable import printable
from listwatch.runtime.leading import WhileLeading
from listwatch.runtime.results import Result, checked

if TYPE_CHECKING:
    from listwatch.runtime.leading import LeadershipGuard

_logger = logging.getLogger(__name__)

#: A plain function that holds the event loop for this many seconds is logged.
HELD_SECONDS: Final = 0.1

ReconcileFunction: TypeAlias = (
    Callable[[str], Awaitable[Result | None]] | Callable[[str], Result | None]
)


class ReconcileCaller:
    """Calls one function.

    Cancelling takes effect when the function has ended, even in a thread.

    Args:
        name: of the reconciler, for messages.
        function: the function.
        threads: number of threads for a plain function; 0 runs it in the event loop, as does
            `runs_inline`.
        clock: the time.
    """

    def __init__(self, name: str, function: ReconcileFunction, threads: int, clock: Clock) -> None:
        self._name = name
        self._function = function
        self._clock = clock
        self._executor = (
            ThreadPoolExecutor(threads, thread_name_prefix=name)
            if threads > 0 and not runs_inline.get()
            else None
        )

    async def call(self, key: str, guard: "LeadershipGuard | None") -> Result | None:
        """Call the function with a key, and return its result.

        Args:
            key: for the function.
            guard: refuses each step of the function once this process no longer leads.

        Raises:
            TypeError: the function returned something other than None or a `Result`.
            Exception: what the function raises.
        """
        if self._executor is not None:
            return checked(self._name, await self._in_thread(self._executor, key, guard))
        began = self._clock.now()
        outcome = self._function(key)
        held = self._clock.now() - began
        if held > HELD_SECONDS:
            _logger.warning(
                "reconciler %s held the event loop for %.0f ms with %s; use async def or threaded",
                self._name,
                held * 1000,
                printable(key),
            )
        if not inspect.isawaitable(outcome):
            return checked(self._name, outcome)
        waiting = outcome if guard is None else WhileLeading(outcome, guard)
        try:
            return checked(self._name, await in_own_task(lambda: waiting))
        finally:
            if inspect.iscoroutine(outcome):
                outcome.close()  # its task may have been cancelled before the first step

    async def _in_thread(
        self, executor: ThreadPoolExecutor, key: str, guard: "LeadershipGuard | None"
    ) -> object:
        def call() -> object:
            if guard is not None:
                guard.check()  # the thread may have started late
            return self._function(key)

        thread = in_thread(executor, call)
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            # A thread can't be ended from outside, and a key must not be reconciled twice at once.
            await asyncio.wait({thread})
            raise

    def close(self) -> None:
        """Start no more calls in threads."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
