"""Leader election on a Lease that never lets two leaders write.

The rules are those of client-go's `tools/leaderelection`, with these additions. A leader's time
runs from before the request that renewed it was sent, by every clock of the machine. When that time
is over, work is cancelled, whatever a request or a thread is doing. A guard then refuses the former
leader's writes, and each further step of its work.

One gap remains: a step that has started runs to its next `await`. If the process is stopped within
a step and continues after another leads, the rest of that step still runs.
"""

import asyncio
import logging
import math
import random
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from listwatch.backoff import ELECTION, RELEASE_SHARE
from listwatch.clock import Clock, in_own_task
from listwatch.errors import ConflictError, ListWatchError, NotFoundError
from listwatch.objects import Object
from listwatch.printable import printable
from listwatch.runtime.api_time import micro_time
from listwatch.runtime.beside import BesideTask
from listwatch.runtime.leading import WhileLeading
from listwatch.runtime.lease import (
    LeaseClient,
    LeaseRecord,
    check_lease_name,
    new_lease,
)

_logger = logging.getLogger(__name__)

T = TypeVar("T")

# client-go: the interval between tries times this must fit in the deadline.
_JITTER = 1.2

OpenLeaseClient: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseClient]]
Clocks: TypeAlias = Sequence[Callable[[], float]]


class LeadershipLostError(ListWatchError):
    """This process is not, or no longer, the leader."""


class LeaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings in seconds that all candidates for one lease share; by default client-go's.

    Attributes:
        lease_duration: time without a renewal after which others take over; a whole number.
        renew_deadline: time without a renewal after which the leader stops. Its work has the rest
            of the lease to end.
        retry_period: time between two renewals; candidates wait 1 to 2.2 times that.
    """

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if self.lease_duration < 1 or self.lease_duration != int(self.lease_duration):
            raise ValueError(
                f"lease_duration must be a whole number of seconds, not {self.lease_duration}"
            )
        if not self.lease_duration > self.renew_deadline > _JITTER * self.retry_period > 0:
            raise ValueError(
                f"lease_duration ({self.lease_duration}) must be above renew_deadline "
                f"({self.renew_deadline}), and that above {_JITTER} times retry_period "
                f"({self.retry_period}), and that above 0"
            )

    @property
    def request_timeout(self) -> float:
        """Time limit of one request, in seconds."""
        return max(1.0, self.renew_deadline / 2)


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
                f"{self.identity} is no leader: {self._refusal or 'not elected'}"
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


class ElectionEvent(msgspec.Struct, frozen=True):
    """An event of an election.

    Attributes:
        type: this candidate started or stopped leading, or another one was seen to lead.
        identity: the candidate it is about.
        message: the same in words.
    """

    type: Literal["BecameLeader", "StoppedLeading", "NewLeader"]
    identity: str
    message: str


class LeaderElectionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a candidate.

    Attributes:
        name: the lease's name.
        identity: this candidate.
        is_leader: whether it leads.
        holder: the last known holder of the lease.
        transitions: the lease's count of leaders.
        renewals: successful writes of the lease, including the first.
        slow_renewals: those that needed a read first.
        failures: attempts that failed, except by finding another leader.
        last_error: the text of the last failure; empty after a success.
        seconds_since_renewal: since the last renewal was sent; None while not leading.
    """

    name: str
    identity: str
    is_leader: bool
    holder: str
    transitions: int
    renewals: int
    slow_renewals: int
    failures: int
    last_error: str
    seconds_since_renewal: float | None


def default_identity() -> str:
    """Return a unique name for this process."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


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


class Candidate:
    """One candidate for a lease: the rules, in the event loop that runs them.

    Programs use `LeaderElector`, which runs this in its own thread.

    Args:
        client: reads and writes the lease.
        namespace: the lease's namespace.
        name: the lease's name.
        identity: a name for this process that no other process ever had.
        timings: seconds, the same for all candidates.
        on_event: called with each event, in this event loop.
        clock: the time.
        clocks: measure a leader's time.
        rng: spreads the candidates' tries.
        decorate: changes the decoded Lease before it is written.
    """

    def __init__(
        self,
        client: LeaseClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timings: LeaseTimings,
        on_event: Callable[[ElectionEvent], None],
        clock: Clock,
        clocks: Clocks,
        rng: random.Random,
        decorate: Callable[[dict[str, Any]], object] = lambda lease: None,  # noqa: ARG005 - nothing to add
    ) -> None:
        self._client = client
        self._decorate = decorate
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timings = timings
        self._backoff = ELECTION.constant(timings.retry_period)
        self._on_event = on_event
        self._clock = clock
        self._clocks = clocks
        self._rng = rng
        #: Set while this candidate leads, and afterwards with the reason why it stopped.
        self.guard: LeadershipGuard | None = None
        # What was seen last, and since when by our own clock. Only our clock decides when it
        # expires, so that machines whose clocks differ agree (client-go).
        self._lease: Object | None = None
        self._record = LeaseRecord()
        self._record_since = 0.0
        # The acquire times that we have sent and that the lease may contain. A record with our
        # identity and another time belongs to a process with the same name, and must expire like
        # any other's. Bounded, because a lease that can be read but not written adds one with each
        # try.
        self._claims: deque[str] = deque(maxlen=256)
        self._renewals = 0
        self._slow_renewals = 0
        self._failures = 0
        self._last_error = ""
        self._renewed_at: float | None = None

    async def acquire(self) -> LeadershipGuard:
        """Return when this candidate leads. Failures are retried for ever, with a delay."""
        while True:
            await self.renew(None)
            if self.guard is not None and self.guard.is_leader:
                self._tell("BecameLeader", self._identity, f"{self._identity} became leader")
                return self.guard
            self.guard = None
            await self._clock.sleep(self._backoff.delay(0, self._rng))

    async def hold(self) -> str:
        """Renew until leadership is lost, and return the reason."""
        guard = self.guard
        if guard is None:
            raise RuntimeError("no lease is held: call acquire first")
        while (left := guard.remaining()) > 0:
            await self._clock.sleep(min(self._timings.retry_period, left))
            if (left := guard.remaining()) > 0:
                await self.renew(left)
        self._stopped(guard)
        return guard.refusal

    async def resign(self, *, release: bool) -> None:
        """Stop leading. Does nothing unless this candidate leads.

        Args:
            release: release the lease, so that another candidate need not wait until it expires.
                Conflicts and failures are retried until the renew deadline, then the lease is left
                to expire.
        """
        guard = self.guard
        if guard is None or (left := guard.remaining()) <= 0:
            return
        guard.end("it resigned")
        self._stopped(guard)
        if not release:
            return
        try:
            async with self._clock.timeout(left):
                while not await self._try_release():
                    await self._clock.sleep(RELEASE_SHARE * self._timings.retry_period)
        except TimeoutError:
            _logger.warning("lease %s could not be released; it will expire", self._key)

    def statistics(self) -> LeaderElectionStatistics:
        """Return the current state; any thread may call this."""
        guard, renewed_at = self.guard, self._renewed_at
        leads = guard is not None and guard.is_leader
        return LeaderElectionStatistics(
            name=self._name,
            identity=self._identity,
            is_leader=leads,
            holder=self._record.holder,
            transitions=self._record.transitions,
            renewals=self._renewals,
            slow_renewals=self._slow_renewals,
            failures=self._failures,
            last_error=self._last_error,
            seconds_since_renewal=(
                self._clock.now() - renewed_at if leads and renewed_at is not None else None
            ),
        )

    # --- One attempt ---

    async def renew(self, limit: float | None) -> bool:
        """Try once to acquire or renew the lease, within this many seconds.

        Returns:
            False if that failed; `guard` shows who holds the lease.
        """
        try:
            async with self._clock.timeout(limit):
                await self._attempt()
        except Exception as error:  # noqa: BLE001 - whatever a lock raises, the election goes on; it is reported
            self.report(error)
            return False
        self._last_error = ""
        return True

    def report(self, error: Exception) -> None:
        """Count and log a failure."""
        self._failures += 1
        words = printable(f"{type(error).__name__}: {error}")
        if words != self._last_error:  # a server that is away fails every 2 s with the same words
            _logger.warning("lease %s: %s", self._key, words)
        self._last_error = words

    async def _attempt(self) -> None:
        """Acquire or renew the lease, if allowed; raise what the client raises."""
        if self._leads and self._lease is not None:
            try:
                await self._write(self._lease)
            except ConflictError:
                pass  # another writer changed the lease: read it
            except Exception as error:  # noqa: BLE001 - a lost answer looks the same; the read decides
                self.report(error)
            else:
                return
            self._slow_renewals += 1
        try:
            lease = await self._request(self._client.get(self._name))
        except NotFoundError:
            # The holder seen last keeps acting for a while after the lease was deleted.
            if not self._is_held_by_another():
                await self._write(None)
            return
        self._observe(lease)
        if self._leads and self.guard is not None and not self._is_ours(self._record):
            self.guard.end(f"{printable(self._record.holder) or 'nobody'} holds the lease")
        elif not self._is_held_by_another():
            await self._write(lease)

    def _is_held_by_another(self) -> bool:
        record = self._record
        if not record.holder or self._is_ours(record):
            return False
        duration = record.duration or self._timings.lease_duration
        return self._clock.now() < self._record_since + duration

    def _is_ours(self, record: LeaseRecord) -> bool:
        return record.holder == self._identity and record.acquired in self._claims

    @property
    def _leads(self) -> bool:
        return self.guard is not None and self.guard.is_leader

    async def _write(self, lease: Object | None) -> None:
        """Write the lease as ours and lead, or keep leading, from now on."""
        now = micro_time(self._clock.time())
        # Without a lease, the record seen last counts: none, or our own deleted one.
        old = self._record if lease is None else LeaseRecord.of(lease)
        ours = self._is_ours(old)
        record = LeaseRecord(
            holder=self._identity,
            duration=self._timings.lease_duration,
            acquired=old.acquired if ours else now,
            renewed=now,
            # The first holder of a new lease is not a transition.
            transitions=old.transitions + (not ours and bool(old.acquired)),
        )
        self._claims.append(record.acquired)
        since = [clock() for clock in self._clocks]
        if lease is None:
            body = new_lease(self._namespace, self._name, record)
        else:
            body = record.into(lease.to_dict())
        self._decorate(body)
        if lease is None:
            written = await self._request(self._client.create(body))
        else:
            written = await self._request(self._client.update(body))
        self._claims.clear()  # an earlier claim can no longer get through
        self._claims.append(record.acquired)
        self._observe(written)
        self._renewals += 1
        self._renewed_at = since[0]
        guard = self.guard
        if guard is None or not ours:
            guard = self.guard = LeadershipGuard(self._identity, record.transitions, self._clocks)
        guard.extend(since, self._timings.renew_deadline)

    async def _request(self, call: Coroutine[object, object, T]) -> T:
        async with self._clock.timeout(self._timings.request_timeout):
            return await call

    def _observe(self, lease: Object) -> None:
        record = LeaseRecord.of(lease)
        self._lease = lease
        if record == self._record:
            return
        before, self._record = self._record.holder, record
        self._record_since = self._clock.now()
        if record.holder not in {"", before, self._identity}:
            self._tell("NewLeader", record.holder, f"{printable(record.holder)} leads")

    async def _try_release(self) -> bool:
        try:
            lease = await self._request(self._client.get(self._name))
            record = LeaseRecord.of(lease)
            if not self._is_ours(record):
                return True
            free = LeaseRecord(
                holder="",
                duration=1,
                acquired=micro_time(self._clock.time()),
                renewed=micro_time(self._clock.time()),
                transitions=record.transitions,
            )
            self._observe(await self._request(self._client.update(free.into(lease.to_dict()))))
        except NotFoundError:
            return True
        except Exception as error:  # noqa: BLE001 - retried by the caller, which has a deadline
            self.report(error)
            return False
        return True

    def _stopped(self, guard: LeadershipGuard) -> None:
        self._tell(
            "StoppedLeading", self._identity, f"{self._identity} stopped leading: {guard.refusal}"
        )

    def _tell(
        self,
        kind: Literal["BecameLeader", "StoppedLeading", "NewLeader"],
        identity: str,
        message: str,
    ) -> None:
        _logger.info("lease %s: %s", self._key, message)
        try:
            self._on_event(ElectionEvent(kind, identity, message))
        except Exception:
            _logger.exception("lease %s: the event hook failed", self._key)

    @property
    def _key(self) -> str:
        return f"{self._namespace}/{self._name}"


class Contender(Protocol):
    """What a `LeaderElector` runs."""

    async def acquire(self) -> LeadershipGuard:
        """Return once this process may act."""
        ...

    async def hold(self) -> str:
        """Keep it until it is lost, and return the reason."""
        ...

    async def resign(self, *, release: bool) -> None:
        """Stop acting."""
        ...

    def statistics(self) -> LeaderElectionStatistics:
        """Return the current state."""
        ...


def _led(
    work: Callable[[LeadershipGuard], Awaitable[T]], guard: LeadershipGuard
) -> WhileLeading[T]:
    return WhileLeading(work(guard), guard)


class LeaderElector:
    """Runs work while this process leads.

    The election runs in its own thread and event loop, so that work that blocks the caller's event
    loop does not lose the leadership.

    Args:
        open_client: opens the client of the lease's namespace; called in that thread, because a
            client belongs to one event loop.
        namespace: the lease's namespace.
        name: the lease's name.
        identity: a name for this process that no other process ever had; by default the host's name
            and a random part. After a crash, a process with a new name waits until the lease
            expires.
        timings: seconds, the same for all candidates.
        release_on_stop: release the lease once the work has ended.
        on_event: called with each event, in that thread; must be quick.
        on_overrun: called in that thread if the work has not ended when others may lead; a program
            should then kill itself.
        clock: the time.
        clocks: measure a leader's time; by default `machine_clocks`.
        rng: spreads the candidates' tries.
        threaded: False runs the election in the caller's event loop, for tests.
    """

    def __init__(
        self,
        open_client: OpenLeaseClient,
        *,
        namespace: str,
        name: str,
        identity: str = "",
        timings: LeaseTimings | None = None,
        release_on_stop: bool = True,
        on_event: Callable[[ElectionEvent], None] = lambda event: None,  # noqa: ARG005 - nobody listens
        on_overrun: Callable[[], None] | None = None,
        clock: Clock | None = None,
        clocks: Clocks | None = None,
        rng: random.Random | None = None,
        threaded: bool = True,
    ) -> None:
        check_lease_name(name)
        self.namespace = namespace
        self.name = name
        self.identity = identity or default_identity()
        self.timings = timings or LeaseTimings()
        self._open_client = open_client
        self._release_on_stop = release_on_stop
        self._on_event = on_event
        self._on_overrun = on_overrun
        self._clock = clock or Clock()
        self._clocks = clocks if clocks is not None else machine_clocks(self._clock)
        self._rng = rng or random.Random()  # noqa: S311 - spreads tries, no secret
        self._threaded = threaded
        self._candidate: Contender | None = None

    def statistics(self) -> LeaderElectionStatistics:
        """Return the current state; any thread may call this."""
        if self._candidate is not None:
            return self._candidate.statistics()
        return LeaderElectionStatistics(
            name=self.name,
            identity=self.identity,
            is_leader=False,
            holder="",
            transitions=0,
            renewals=0,
            slow_renewals=0,
            failures=0,
            last_error="",
            seconds_since_renewal=None,
        )

    async def run(
        self, work: Callable[[LeadershipGuard], Awaitable[T]], *, guard_steps: bool = True
    ) -> T:
        """Wait for leadership, then run `work(guard)`, and return or raise its outcome.

        When leadership is lost, `renew_deadline` seconds after the last renewal was sent, the work
        is cancelled; it has the rest of the lease's duration to end. When `run` is cancelled, the
        work is cancelled first, under renewals, and then the lease is released. A second
        cancellation does not wait for that. Once the guard has refused, the work only takes steps
        to end; tasks that it started continue until they are cancelled.

        Args:
            work: what only a leader may do.
            guard_steps: check the guard before each step of the work; False leaves that to the
                work.

        Raises:
            LeadershipLostError: leadership was lost; raised once the work has ended.
            Exception: whatever opening the client raised.
        """
        loop = asyncio.get_running_loop()
        # None: the election ended without a leader.
        elected: asyncio.Future[LeadershipGuard | None] = loop.create_future()
        # Expires when leadership is lost.
        term = self._clock.timeout(None)
        work_ended = threading.Event()

        def lost() -> None:
            if not elected.done():
                elected.set_result(None)
            term.postpone(0)

        def became_leader(guard: LeadershipGuard) -> None:
            if not elected.done():
                elected.set_result(guard)

        async def campaign() -> None:
            try:
                async with self._open_client() as client:
                    await self._campaign(
                        client,
                        lambda guard: loop.call_soon_threadsafe(became_leader, guard),
                        lambda: loop.call_soon_threadsafe(lost),
                        work_ended,
                    )
            except Exception:
                loop.call_soon_threadsafe(lost)
                raise

        guard: LeadershipGuard | None = None
        async with BesideTask(campaign, f"lease {self.name}", threaded=self._threaded):
            try:
                async with term:
                    guard = await elected
                    if guard is not None:
                        guard.check()  # this event loop may have been busy since
                        led = partial(_led, work, guard) if guard_steps else partial(work, guard)
                        return await in_own_task(led)
            except TimeoutError:
                if not term.expired:
                    raise
            finally:
                work_ended.set()
        raise LeadershipLostError(
            f"{self.identity} lost lease {self.namespace}/{self.name}"
            + (f": {guard.refusal}" if guard is not None else "")
            + (f" ({error})" if (error := self.statistics().last_error) else "")
        )

    async def _campaign(
        self,
        client: LeaseClient,
        became_leader: Callable[[LeadershipGuard], object],
        lost: Callable[[], object],
        work_ended: threading.Event,
    ) -> None:
        candidate = self._candidate = self.make_candidate(client)
        try:
            became_leader(await candidate.acquire())
            await candidate.hold()
            lost()
            await self._watch_overrun(work_ended)
        finally:
            await candidate.resign(release=self._release_on_stop)

    def make_candidate(self, client: LeaseClient) -> Contender:
        """Return the contender; called in the election's event loop."""
        return self.make_lease_candidate(client)

    def make_lease_candidate(
        self,
        client: LeaseClient,
        decorate: Callable[[dict[str, Any]], object] = lambda lease: None,  # noqa: ARG005 - nothing to add
    ) -> Candidate:
        """Return the candidate for the lease, with these options."""
        return Candidate(
            client,
            namespace=self.namespace,
            name=self.name,
            identity=self.identity,
            timings=self.timings,
            on_event=self._on_event,
            clock=self._clock,
            clocks=self._clocks,
            rng=self._rng,
            decorate=decorate,
        )

    async def _watch_overrun(self, work_ended: threading.Event) -> None:
        await self._clock.sleep(self.timings.lease_duration - self.timings.renew_deadline)
        if not work_ended.is_set() and self._on_overrun is not None:
            _logger.critical(
                "lease %s/%s: the work goes on although others may lead", self.namespace, self.name
            )
            self._on_overrun()
