"""One candidate for a Lease: when it may write, and how it interprets what it reads.

The rules are those of client-go's `tools/leaderelection`; `leader_election` lists the additions.
"""

import logging
import random
import socket
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from listwatch.backoff import ELECTION, RELEASE_SHARE
from listwatch.clock import Clock
from listwatch.errors import ConflictError, NotFoundError
from listwatch.objects import Object
from listwatch.printable import printable
from listwatch.runtime.api_time import micro_time
from listwatch.runtime.leading import Clocks, LeadershipGuard
from listwatch.runtime.lease import LeaseClient, LeaseRecord, new_lease

_logger = logging.getLogger(__name__)

T = TypeVar("T")

# client-go: the interval between tries times this must fit in the deadline.
_JITTER = 1.2


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
        labels: of the Lease; other labels stay.
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
        labels: Mapping[str, str] | None = None,
        decorate: Callable[[dict[str, Any]], object] = lambda lease: None,  # noqa: ARG005 - adds nothing
    ) -> None:
        self._client = client
        self._decorate = decorate
        self._labels = dict(labels or {})
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
        except Exception as error:  # noqa: BLE001 - reported; the election continues
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
            # As client-go counts: the first holder of a lease that it creates is no transition.
            transitions=old.transitions + (not ours and (lease is not None or bool(old.acquired))),
        )
        self._claims.append(record.acquired)
        since = [clock() for clock in self._clocks]
        if lease is None:
            body = new_lease(self._namespace, self._name, record)
        else:
            body = record.into(lease.to_dict())
        if self._labels:
            metadata = body["metadata"]
            metadata["labels"] = {**(metadata.get("labels") or {}), **self._labels}
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
