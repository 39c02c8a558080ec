"""Work that stops at its next step once leadership is over."""

import asyncio
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from listwatch.runtime.leader_election import LeadershipGuard

T = TypeVar("T")


class WhileLeading(Generic[T]):
    """Awaits work, and checks the guard before each of its steps.

    A process that was stopped and continues runs everything that became ready in between, in any
    order, before any of it can be cancelled. So each step first compares the clocks. When
    leadership is over, the work waits for the cancellation that is on its way; its clean-up runs
    freely. Tasks started by the work are not guarded.

    Args:
        work: what only a leader may do; it does not start before this is awaited.
        guard: knows whether this process leads.
    """

    def __init__(self, work: Awaitable[T], guard: "LeadershipGuard") -> None:
        self._work = work
        self._guard = guard

    def __await__(self) -> Generator[object, None, T]:
        steps = self._work.__await__()
        is_over = False
        try:
            while True:
                if not is_over and not self._guard.is_leader:
                    try:
                        yield from asyncio.get_running_loop().create_future().__await__()
                    except asyncio.CancelledError as cancellation:
                        is_over = True
                        waiting = steps.throw(cancellation)
                else:
                    waiting = next(steps)
                while True:
                    try:
                        yield waiting
                        break
                    except BaseException as error:  # noqa: BLE001 - handed to the work, whatever it is
                        is_over = is_over or isinstance(error, asyncio.CancelledError)
                        waiting = steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()
