"""How long to wait before the next try, and how many tries there may be.

Every wait after a failure follows a `Backoff`; those of the package itself stand below, each with
the reason for its figures.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from listwatch.clock import Clock

T = TypeVar("T")

#: No chance: what is waited for alone meets nobody.
_EXACT: Final = (1.0, 1.0)


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that grow from `base` to `cap` seconds, each times a factor that chance chooses.

    Stateless: who waits counts. Safe to share between tasks and threads.

    Attributes:
        base: seconds of the first delay.
        cap: seconds that no delay exceeds, before chance.
        factor: how many times longer each delay is than the one before it.
        spread: the least and the greatest factor of chance; equal ones leave nothing to it.
        tries: how often something is tried in all; None is for ever.
    """

    base: float
    cap: float
    factor: float = 2.0
    spread: tuple[float, float] = (0.75, 1.0)
    tries: int | None = None

    def delay(self, failures: int, rng: random.Random | None = None) -> float:
        """Return the seconds to wait after so many failures before this one.

        Args:
            failures: 0 or more.
            rng: chance; Python's own if not given.
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
        """Return the same with another first delay, and a cap that is no shorter than that."""
        return msgspec.structs.replace(self, base=seconds, cap=max(self.cap, seconds))

    def constant(self, seconds: float) -> "Backoff":
        """Return the same with one delay for every failure."""
        return msgspec.structs.replace(self, base=seconds, cap=seconds)


# --- The waits of the package --------------------------------------------------------------------

#: Lists and watches. Requests that are each preceded by their delay number at most 9 in the first
#: minute and 3 a minute later, and nobody waits longer than 30 s. client-go
#: (`tools/cache/reflector.go`) has the same base and cap but lengthens by chance, up to 60 s.
REFLECTOR: Final = Backoff(base=0.8, cap=30.0)
#: Entries of a DeltaFIFO whose process function asks for another try: work in this process alone,
#: so that the first tries may come fast, and a reflector's cap, since events wait behind it.
REQUEUE: Final = Backoff(base=0.005, cap=30.0, spread=_EXACT)
#: Keys of a work queue (client-go `DefaultTypedControllerRateLimiter`): a key that fails for hours
#: may wait for a quarter of one, since any change of its object brings it at once.
WORK_ITEM: Final = Backoff(base=0.005, cap=1000.0, spread=_EXACT)
#: The same without a bucket beside it (client-go `DefaultTypedItemBasedRateLimiter`).
LONE_WORK_ITEM: Final = Backoff(base=0.001, cap=1000.0, spread=_EXACT)
#: Load balancers, which cost money and are slow to make (cloud-provider `service.Controller`).
LOAD_BALANCER: Final = Backoff(base=5.0, cap=300.0, spread=_EXACT)
#: A change that met another one (client-go `retry.DefaultBackoff`, but never longer than a second):
#: the other writer is done already, so that the next try comes at once.
CONFLICT: Final = Backoff(base=0.01, cap=1.0, factor=5.0, spread=(1.0, 1.1), tries=6)
#: A request that the server puts off: the server itself says for how long, this is the least.
PUT_OFF: Final = Backoff(base=0.1, cap=0.1, spread=_EXACT, tries=6)
#: Tries to connect, which cost a server no request; many clients should not try together.
CONNECT: Final = Backoff(base=1.0, cap=1.0, spread=(1.0, 3.0))
#: Seconds that one of these tries may take; longer after each that took longer.
CONNECT_LIMIT: Final = Backoff(base=5.0, cap=30.0, spread=_EXACT)
#: A server that somebody has just started, and waits for at the command line.
SERVER_START: Final = Backoff(base=0.2, cap=0.2, spread=_EXACT)
#: What a manager looks up before it starts; a probe may restart a process that waits for longer.
START: Final = Backoff(base=1.0, cap=10.0, spread=_EXACT)
#: A stream of keys from outside of the cluster: nothing in the cluster tells what it missed.
STREAM: Final = Backoff(base=1.0, cap=30.0, spread=_EXACT)
#: Events (client-go `tools/record`): no one's work waits for them, and after two minutes they are
#: no news.
EVENT: Final = Backoff(base=10.0, cap=10.0, spread=_EXACT, tries=12)
#: A candidate without the lease (client-go `JitterFactor`, 1.2); its base is `retry_period`.
ELECTION: Final = Backoff(base=2.0, cap=2.0, spread=(1.0, 2.2))
#: The part of `retry_period` between two tries to give the lease up, for which a successor waits.
RELEASE_SHARE: Final = 0.25
#: A command that asks by its exit code to be run again; its base is `--retry-delay`.
COMMAND: Final = Backoff(base=1.0, cap=60.0, spread=_EXACT)
#: A command that can't be started for want of files, processes or memory: given up after 15 s.
COMMAND_START: Final = Backoff(base=0.5, cap=8.0, spread=_EXACT, tries=6)
#: A program of our own that has ended and is started again, here and nowhere else.
RESTART: Final = Backoff(base=1.0, cap=1.0, spread=_EXACT)


def on(*kinds: type[Exception]) -> Callable[[Exception, float], float | None]:
    """Return what `retry` asks if only errors of these kinds are worth another try."""
    return lambda error, delay: delay if isinstance(error, kinds) else None


async def retry(
    call: Callable[[], Awaitable[T]],
    backoff: Backoff,
    after: Callable[[Exception, float], float | None],
    *,
    clock: Clock,
    rng: random.Random | None = None,
) -> T:
    """Call until that succeeds, and return what it returns.

    Args:
        call: what to try. A cancellation passes through.
        backoff: the delays, and how often it is tried.
        after: gets an error and the delay of the back-off, and returns the seconds to wait before
            the next try; None where none makes sense. Not asked after the last try.
        clock: the time.
        rng: chance.

    Raises:
        Exception: what `call` raised last.
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
