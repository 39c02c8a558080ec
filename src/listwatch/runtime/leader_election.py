"""Leader election on a Lease, which never lets two leaders write.

The rules are those of client-go's `tools/leaderelection`; what is added to them: a leader's time
runs from before the request that renewed it was sent, by every clock that the machine has; work is
cancelled when that time is over, whatever a request or a thread is doing; and a guard refuses what
a leader whose time is over still wants to do: its writes, and each further step of its work.

What is left: a step that has begun goes on to its next `await`. If the process is stopped in the
middle of one and goes on after another leads, the rest of that step still runs.
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

# client-go: the time between two tries, and so many times that at most, must fit in the deadline.
_JITTER = 1.2

OpenLeaseClient: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseClient]]
Clocks: TypeAlias = Sequence[Callable[[], float]]


class LeadershipLostError(ListWatchError):
    """This process is not, or no longer, the leader."""


class LeaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that candidates for one lease agree on; the defaults are the reference's.

    Attributes:
        lease_duration: after so long without a renewal others take over; a whole number.
        renew_deadline: after so long without a renewal the leader stops. What is left of the
            lease is the time that its work has to come to an end.
        retry_period: between two renewals; candidates wait one to 2.2 times that.
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
        """Seconds that one request may take."""
        return max(1.0, self.renew_deadline / 2)


class LeadershipGuard:
    """Tells whether this process leads now; asked before every write that only a leader may do.

    It compares clocks, so it needs no other thread or task to have noticed anything: a process
    that was stopped and continues gets its refusal from the first question on. Once it has refused
    it never agrees again. Any thread may ask.

    Ask `check` right before an effect outside of the API server too, such as a call of a cloud.

    A write that is under way when the time ends can't be called back. So give it no longer than
    `remaining` seconds, and the resourceVersion that it rests on, which is what an API server has
    for fencing.

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
        """Return for how many seconds this process leads, if nothing is renewed; 0 is not."""
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
            LeadershipLostError: it doesn't, and must not write.
        """
        if self.remaining() <= 0:
            raise LeadershipLostError(
                f"{self.identity} is no leader: {self._refusal or 'not elected'}"
            )

    @property
    def refusal(self) -> str:
        """Why this process leads no longer; empty while it does."""
        return self._refusal

    def end(self, reason: str) -> None:
        """Refuse from now on. Harmless when called again; the first reason stays."""
        if not self._refusal:
            self._refusal = reason

    def extend(self, since: Sequence[float], seconds: float) -> None:
        """Lead until so many seconds after these readings of the clocks."""
        self._deadlines = tuple(start + seconds for start in since)


class ElectionEvent(msgspec.Struct, frozen=True):
    """What happened in an election.

    Attributes:
        type: this candidate began to lead, it stopped, or another one is seen to lead.
        identity: of whom.
        message: the same in words.
    """

    type: Literal["BecameLeader", "StoppedLeading", "NewLeader"]
    identity: str
    message: str


class LeaderElectionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a candidate at one moment.

    Attributes:
        name: the lease's name.
        identity: this candidate.
        is_leader: whether it leads.
        holder: who was seen to hold the lease last.
        transitions: the lease's count of leaders.
        renewals: successful writes of the lease, the first one included.
        slow_renewals: those that needed a read before.
        failures: attempts that failed otherwise than by finding another leader.
        last_error: the last failure in words; empty since an attempt succeeded.
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
    """Return a name for this process that no other one has."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def machine_clocks(clock: Clock) -> Clocks:
    """Return the clocks that a leader's time is measured by; the one furthest on counts.

    Linux's monotonic clock stands still while the machine is suspended, the boot-time clock while
    a virtual machine is; then the wall clock's jump tells.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    clocks: list[Callable[[], float]] = [clock.now, clock.time]
    if boot_time is not None:
        clocks.append(lambda: time.clock_gettime(boot_time))
    return clocks


class Candidate:
    """One candidate for a lease: the rules, in the event loop that runs them.

    `LeaderElector` is what programs use: it runs this in a thread of its own.

    Args:
        client: reads and writes the lease.
        namespace: where the lease is.
        name: the lease's name.
        identity: names this process, and no other process of past or present.
        timings: seconds, the same for all candidates.
        on_event: told what happens, in this event loop.
        clock: the time.
        clocks: what a leader's time is measured by.
        rng: spreads the candidates' tries.
        decorate: changes the Lease, in its decoded form, before it is written.
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
        #: Present while this candidate leads, and afterwards with the reason why not.
        self.guard: LeadershipGuard | None = None
        # What was seen last, and since when by our own clock it has been so: only that clock says
        # when it expires, so that machines whose clocks differ agree (client-go).
        self._lease: Object | None = None
        self._record = LeaseRecord()
        self._record_since = 0.0
        # The acquire times that we have sent and that may stand in the lease. A record with our
        # identity and another time is that of a process which was given the same name, and must
        # expire like any other's. Bounded, since a lease that can be read and not written gets
        # one more with each try.
        self._claims: deque[str] = deque(maxlen=256)
        self._renewals = 0
        self._slow_renewals = 0
        self._failures = 0
        self._last_error = ""
        self._renewed_at: float | None = None

    async def acquire(self) -> LeadershipGuard:
        """Return when this candidate leads. Failures are retried for ever, with their delay."""
        while True:
            await self.renew(None)
            if self.guard is not None and self.guard.is_leader:
                self._tell("BecameLeader", self._identity, f"{self._identity} became leader")
                return self.guard
            self.guard = None
            await self._clock.sleep(self._backoff.delay(0, self._rng))

    async def hold(self) -> str:
        """Renew until leadership is lost, and return why."""
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
        """Lead no longer. Does nothing unless this candidate leads.

        Args:
            release: give the lease up, so that another candidate need not wait until it expires.
                Conflicts and failures are retried until the time to renew is over, then the lease
                is left to expire.
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
        """Return the state of this moment; any thread may ask."""
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
        """Try once to acquire or renew the lease, in so many seconds at most.

        Returns:
            False if that failed; who holds the lease is told by `guard`.
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
        """Acquire or renew the lease, if it may be; raises what the lock raises."""
        if self._leads and self._lease is not None:
            try:
                await self._write(self._lease)
            except ConflictError:
                pass  # somebody has changed the lease: look
            except Exception as error:  # noqa: BLE001 - a lost answer looks the same; the read decides
                self.report(error)
            else:
                return
            self._slow_renewals += 1
        try:
            lease = await self._request(self._client.get(self._name))
        except NotFoundError:
            # Who was seen to hold a lease goes on acting for a while after it was deleted.
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
        """Write the lease as ours and lead, or go on leading, from now on."""
        now = micro_time(self._clock.time())
        # Without a lease what was seen of it last counts: nothing, or our own that was deleted.
        old = self._record if lease is None else LeaseRecord.of(lease)
        ours = self._is_ours(old)
        record = LeaseRecord(
            holder=self._identity,
            duration=self._timings.lease_duration,
            acquired=old.acquired if ours else now,
            renewed=now,
            # The first holder of a new lease follows nobody.
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
        self._claims.clear()  # an earlier claim can't come through any more
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
        """Return when there is something to act for."""
        ...

    async def hold(self) -> str:
        """Go on until that is lost, and return why."""
        ...

    async def resign(self, *, release: bool) -> None:
        """Act no longer."""
        ...

    def statistics(self) -> LeaderElectionStatistics:
        """Return the state of this moment."""
        ...


def _led(
    work: Callable[[LeadershipGuard], Awaitable[T]], guard: LeadershipGuard
) -> WhileLeading[T]:
    return WhileLeading(work(guard), guard)


class LeaderElector:
    """Runs work while this process leads.

    Everything that concerns the lease happens in a thread and an event loop of its own, so that
    work which holds the caller's event loop does not lose the leadership.

    Args:
        open_client: opens the client of the lease's namespace; called in that thread, since a
            client belongs to one event loop.
        namespace: where the lease is.
        name: the lease's name.
        identity: names this process, and no other process of past or present; by default the
            host's name and a random part. After a crash a process that has a new name waits until
            the lease expires.
        timings: seconds, the same for all candidates.
        release_on_stop: give the lease up once the work has ended.
        on_event: told what happens, in that thread; must be quick.
        on_overrun: called in that thread when the work has not ended although others may lead
            from now on; a program of its own had best kill itself.
        clock: the time.
        clocks: what a leader's time is measured by; by default `machine_clocks`.
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
        """Return the state of this moment; any thread may ask."""
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
        """Wait for leadership, then run `work(guard)`, and return or raise what it does.

        When leadership is lost the work is cancelled, `renew_deadline` seconds after the last
        renewal was sent, so it has the rest of the lease's duration for its end. When this is
        cancelled the work is cancelled first, under renewals; then the lease is given up. A second
        cancellation does not wait for that. Once the guard has refused, the work takes no step but
        to end; tasks that it started do until they are cancelled.

        Args:
            work: what only a leader may do.
            guard_steps: ask the guard before each step of the work; False leaves that to the work.

        Raises:
            LeadershipLostError: leadership was lost, once the work has ended.
            Exception: whatever opening the client raised.
        """
        loop = asyncio.get_running_loop()
        # None: the election has ended without.
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
        """Return what contends; called in the election's event loop."""
        return self.make_lease_candidate(client)

    def make_lease_candidate(
        self,
        client: LeaseClient,
        decorate: Callable[[dict[str, Any]], object] = lambda lease: None,  # noqa: ARG005 - nothing to add
    ) -> Candidate:
        """Return what keeps the lease, with these options."""
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
