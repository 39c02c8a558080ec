"""Work that takes no step once its leadership is over."""

import asyncio
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from listwatch.runtime.leader_election import LeadershipGuard

T = TypeVar("T")


class WhileLeading(Generic[T]):
    """Awaits work, and asks the guard before each of its steps.

    A process that was stopped and goes on runs what became ready meanwhile, in any order, before
    anybody can cancel it. So each step first compares the clocks. When the leadership is over, the
    work waits for its cancellation, which is on its way, and then gets that; its clean-up runs
    freely. Tasks that the work started itself take their own steps.

    Args:
        work: what only a leader may do; nothing of it runs before this is awaited.
        guard: tells whether this process leads.
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
