"""How long to wait before the next try, and how many tries there may be."""

import random
from collections import deque

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that double from `base` to `cap` seconds, each shortened by up to `jitter` of itself.

    With the defaults, requests that are each preceded by their delay number at most 9 in the
    first minute and 3 a minute later, and nobody waits longer than 30 s. client-go
    (`tools/cache/reflector.go`) has the same base and cap but lengthens by the jitter, up to 60 s.
    Stateless: who waits counts. Safe to share.

    Attributes:
        base: seconds of the first delay.
        cap: seconds that no delay exceeds.
        jitter: 0 to 1, the part of a delay that chance may take away.
    """

    base: float = 0.8
    cap: float = 30.0
    jitter: float = 0.25

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after so many failures before this one."""
        # 2 ** 40 is far beyond any cap; a larger power would overflow a float in time.
        nominal = min(self.cap, self.base * 2.0 ** min(failures, 40))
        return nominal * (1.0 - self.jitter * rng.random())


class RequestBudget:
    """Bounds the requests of one reflector while something is wrong, whatever goes wrong.

    A bad time begins with a failure and ends with a healthy watch. A reflector's waits keep below
    these bounds by themselves, except where a server comes and goes, so that waits are short again
    and again. A list counts as one request, whatever its pages.

    Args:
        minute: seconds that are meant by a minute: fewer for one whose waits are shorter.
    """

    #: Requests in the first minute of a bad time, and in any minute after that.
    FIRST = 12
    LATER = 4

    def __init__(self, minute: float = 60.0) -> None:
        self._minute = minute
        self._began: float | None = None
        self._times: deque[float] = deque(maxlen=self.FIRST)

    def failed(self, now: float) -> None:
        """Note a failure, at a time of the clock."""
        if self._began is None:
            self._began = now

    def recovered(self) -> None:
        """Note that the bad time is over."""
        self._began = None
        self._times.clear()

    def spend(self, now: float) -> None:
        """Count a request that is sent now."""
        if self._began is not None:
            self._times.append(now)

    def refund(self) -> None:
        """Forget the last request: nobody listened, so that it reached no server."""
        if self._times:
            self._times.pop()

    def delay(self, now: float) -> float:
        """Return how many seconds the next request must wait; usually 0."""
        if self._began is None:
            return 0.0
        first_ends = self._began + self._minute
        if now < first_ends:
            return first_ends - now if len(self._times) == self.FIRST else 0.0
        recent = [at for at in self._times if at >= first_ends and at > now - self._minute]
        return recent[-self.LATER] + self._minute - now if len(recent) >= self.LATER else 0.0
