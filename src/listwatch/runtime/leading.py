"""Whether this process leads, by every clock it has; and work that stops once it does not."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Generic, TypeAlias, TypeVar

from listwatch.clock import Clock
from listwatch.errors import ListWatchError

T = TypeVar("T")

Clocks: TypeAlias = Sequence[Callable[[], float]]


class LeadershipLostError(ListWatchError):
    """This process is not, or no longer, the leader."""


def machine_clocks(clock: Clock) -> Clocks:
    """Return the clocks that measure a leader's time; the one furthest ahead counts.

    Linux's monotonic clock stops while the machine is suspended, and its boot-time clock while a
    virtual machine is; the wall clock's jump then shows it.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    clocks: list[Callable[[], float]] = [clock.now, clock.time]
    if boot_time is not None:
        clocks.append(lambda: time.clock_gettime(boot_time))
    return clocks


class LeadershipGuard:
    """Knows whether this process leads now; checked before every write that only a leader may do.

    It compares clocks, so no other thread or task must notice anything first: a process that was
    stopped and continues is refused from the first check on. Once it has refused, it never agrees
    again. Any thread may call it.

    Call `check` right before an effect outside the API server too, such as a call of a cloud API.

    A write already sent when the time ends can't be called back. So limit it to `remaining`
    seconds, and send the resourceVersion that it is based on, which is the API server's fencing.

    Attributes:
        identity: this candidate.
        transitions: the lease's count of leaders, higher for each later leader.
    """

    def __init__(self, identity: str, transitions: int, clocks: Clocks) -> None:
        self.identity = identity
        self.transitions = transitions
        self._clocks = clocks
        self._deadlines: tuple[float, ...] | None = None
        self._refusal = ""

    @classmethod
    def unlimited(cls, identity: str) -> "LeadershipGuard":
        """Return the guard of a process that leads without an election, until `end`."""
        guard = cls(identity, 0, ())
        guard.extend((), 0.0)
        return guard

    def remaining(self) -> float:
        """Return for how many seconds this process leads without another renewal; 0 for not."""
        if self._refusal or self._deadlines is None:
            return 0.0
        left = min(
            (
                deadline - clock()
                for deadline, clock in zip(self._deadlines, self._clocks, strict=True)
            ),
            default=math.inf,
        )
        if left <= 0:
            self.end("the lease was not renewed in time")
            return 0.0
        return left

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now."""
        return self.remaining() > 0

    def check(self) -> None:
        """Return if this process leads now.

        Raises:
            LeadershipLostError: it does not lead, and must not write.
        """
        if self.remaining() <= 0:
            raise LeadershipLostError(
                f"{self.identity} is not the leader: {self._refusal or 'not elected'}"
            )

    @property
    def refusal(self) -> str:
        """The reason why this process no longer leads; empty while it does."""
        return self._refusal

    def end(self, reason: str) -> None:
        """Refuse from now on. Calling it again is harmless; the first reason stays."""
        if not self._refusal:
            self._refusal = reason

    def extend(self, since: Sequence[float], seconds: float) -> None:
        """Lead until this many seconds after these clock readings."""
        self._deadlines = tuple(start + seconds for start in since)


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

    def __init__(self, work: Awaitable[T], guard: LeadershipGuard) -> None:
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
