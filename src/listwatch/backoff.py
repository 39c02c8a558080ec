"""Delays before retries, and limits on tries.

Every wait after a failure follows a `Backoff`. Those of the package are listed below, each with the
reason for its values.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from listwatch.clock import Clock

T = TypeVar("T")

#: No jitter: a lone waiter collides with nobody.
_EXACT: Final = (1.0, 1.0)


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that grow from `base` to `cap` seconds, each multiplied by a random factor.

    Stateless: the caller counts failures. Safe to share between tasks and threads.

    Attributes:
        base: the first delay, in seconds.
        cap: upper bound of the delays in seconds, before the random factor.
        factor: ratio of each delay to the one before it.
        spread: minimum and maximum of the random factor; equal values mean no jitter.
        tries: maximum number of tries; None for no limit.
    """

    base: float
    cap: float
    factor: float = 2.0
    spread: tuple[float, float] = (0.75, 1.0)
    tries: int | None = None

    def delay(self, failures: int, rng: random.Random | None = None) -> float:
        """Return the delay in seconds after this many earlier failures.

        Args:
            failures: 0 or more.
            rng: source of randomness; by default Python's own.
        """
        try:
            nominal = min(self.base * self.factor**failures, self.cap)
        except OverflowError:  # far beyond any cap
            nominal = self.cap if self.base else 0.0
        least, greatest = self.spread
        if least == greatest:
            return nominal * least
        return nominal * (random if rng is None else rng).uniform(least, greatest)

    def starting_at(self, seconds: float) -> "Backoff":
        """Return the same with another first delay, and a cap at least as long."""
        return msgspec.structs.replace(self, base=seconds, cap=max(self.cap, seconds))

    def constant(self, seconds: float) -> "Backoff":
        """Return the same with one delay for every failure."""
        return msgspec.structs.replace(self, base=seconds, cap=seconds)


# --- The delays of the package -------------------------------------------------------------------

#: Lists and watches. If each request is preceded by its delay, there are at most 9 in the first
#: minute and 3 per minute later, and nobody waits longer than 30 s. client-go
#: (`tools/cache/reflector.go`) has the same base and cap but adds jitter, up to 60 s.
REFLECTOR: Final = Backoff(base=0.8, cap=30.0)
#: Entries of a DeltaFIFO whose process function asks for a retry. This is work within the process,
#: so the first tries may come fast; the cap is a reflector's, because events wait behind it.
REQUEUE: Final = Backoff(base=0.005, cap=30.0, spread=_EXACT)
#: Keys of a work queue (client-go `DefaultTypedControllerRateLimiter`). A key that fails for hours
#: may wait a quarter of an hour, because any change of its object wakes it at once.
WORK_ITEM: Final = Backoff(base=0.005, cap=1000.0, spread=_EXACT)
#: The same without a shared bucket (client-go `DefaultTypedItemBasedRateLimiter`).
LONE_WORK_ITEM: Final = Backoff(base=0.001, cap=1000.0, spread=_EXACT)
#: Load balancers, which cost money and are slow to create (cloud-provider `service.Controller`).
LOAD_BALANCER: Final = Backoff(base=5.0, cap=300.0, spread=_EXACT)
#: A conflict with another change (client-go `retry.DefaultBackoff`, but at most a second). The
#: other writer has finished, so the next try comes at once.
CONFLICT: Final = Backoff(base=0.01, cap=1.0, factor=5.0, spread=(1.0, 1.1), tries=6)
#: A request that the server asks to retry: minimum delay; the server gives the actual one.
PUT_OFF: Final = Backoff(base=0.1, cap=0.1, spread=_EXACT, tries=6)
#: Attempts to connect, which cost a server no request; clients should not connect all at once.
CONNECT: Final = Backoff(base=1.0, cap=1.0, spread=(1.0, 3.0))
#: Time limit of such an attempt in seconds; longer after each that timed out.
CONNECT_LIMIT: Final = Backoff(base=5.0, cap=30.0, spread=_EXACT)
#: A server just started by a user who waits at the command line.
SERVER_START: Final = Backoff(base=0.2, cap=0.2, spread=_EXACT)
#: What a manager looks up before it starts; a probe may restart a process that waits longer.
START: Final = Backoff(base=1.0, cap=10.0, spread=_EXACT)
#: The certificate and configurations of webhooks, by which API servers find them: nothing else
#: reveals that a failure is over, and few requests are needed.
WEBHOOKS: Final = Backoff(base=1.0, cap=30.0)
#: Requests of a storage migration, which may run for hours: a server may restart meanwhile.
MIGRATION: Final = Backoff(base=1.0, cap=30.0, tries=7)
#: A stream of keys from outside the cluster: nothing in the cluster reveals what it missed.
STREAM: Final = Backoff(base=1.0, cap=30.0, spread=_EXACT)
#: Events (client-go `tools/record`): no work waits for them, and after two minutes they are old
#: news.
EVENT: Final = Backoff(base=10.0, cap=10.0, spread=_EXACT, tries=12)
#: A candidate without the lease (client-go `JitterFactor`, 1.2); its base is `retry_period`.
ELECTION: Final = Backoff(base=2.0, cap=2.0, spread=(1.0, 2.2))
#: Fraction of `retry_period` between tries to release the lease, for which a successor waits.
RELEASE_SHARE: Final = 0.25
#: A command whose exit code asks for a retry; its base is `--retry-delay`.
COMMAND: Final = Backoff(base=1.0, cap=60.0, spread=_EXACT)
#: A command that can't start for lack of files, processes or memory: given up after 15 s.
COMMAND_START: Final = Backoff(base=0.5, cap=8.0, spread=_EXACT, tries=6)
#: A child program of ours that ended and is restarted.
RESTART: Final = Backoff(base=1.0, cap=1.0, spread=_EXACT)
#: A UDP backend that refused a datagram: only another datagram, which may be lost, shows whether it
#: is back.
DATAGRAM: Final = Backoff(base=2.0, cap=60.0, spread=_EXACT)


def on(*kinds: type[Exception]) -> Callable[[Exception, float], float | None]:
    """Return an `after` for `retry` that retries only on errors of these types."""
    return lambda error, delay: delay if isinstance(error, kinds) else None


async def retry(
    call: Callable[[], Awaitable[T]],
    backoff: Backoff,
    after: Callable[[Exception, float], float | None],
    *,
    clock: Clock,
    rng: random.Random | None = None,
) -> T:
    """Call until that succeeds, and return the result.

    Args:
        call: the function to try. A cancellation passes through.
        backoff: the delays, and the number of tries.
        after: gets an error and the back-off's delay, and returns the seconds to wait before the
            next try, or None to give up. Not called after the last try.
        clock: the time.
        rng: source of randomness.

    Raises:
        Exception: the last exception of `call`.
    """
    failures = 0
    while True:
        try:
            return await call()
        except Exception as error:
            if failures + 1 == backoff.tries:
                raise
            seconds = after(error, backoff.delay(failures, rng))
            if seconds is None:
                raise
        failures += 1
        await clock.sleep(seconds)


class RequestBudget:
    """Bounds the requests of one reflector during a bad time, whatever fails.

    A bad time begins with a failure and ends with a healthy watch. A reflector's delays stay within
    these bounds by themselves, unless a server comes and goes, which makes delays short again and
    again. A list counts as one request, whatever its pages.

    Args:
        minute: length of a minute in seconds: less for a reflector with shorter delays.
    """

    #: Requests in the first minute of a bad time, and in any later minute.
    FIRST = 12
    LATER = 4

    def __init__(self, minute: float = 60.0) -> None:
        self._minute = minute
        self._began: float | None = None
        self._times: deque[float] = deque(maxlen=self.FIRST)

    def failed(self, now: float) -> None:
        """Note a failure, at this time of the clock."""
        if self._began is None:
            self._began = now

    def recovered(self) -> None:
        """Note the end of the bad time."""
        self._began = None
        self._times.clear()

    def spend(self, now: float) -> None:
        """Count a request sent now."""
        if self._began is not None:
            self._times.append(now)

    def refund(self) -> None:
        """Forget the last request: nothing listened, so it reached no server."""
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
