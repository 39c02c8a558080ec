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
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from listwatch.clock import Clock, in_own_task
from listwatch.runtime.beside import BesideTask
from listwatch.runtime.candidate import (
    Candidate,
    ElectionEvent,
    LeaderElectionStatistics,
    LeaseTimings,
    default_identity,
)
from listwatch.runtime.coordinated import (
    CoordinatedCandidate,
    CoordinatedLeaseClient,
    Coordination,
)
from listwatch.runtime.leading import (
    Clocks,
    LeadershipGuard,
    LeadershipLostError,
    WhileLeading,
    machine_clocks,
)
from listwatch.runtime.lease import LeaseClient, check_lease_name

_logger = logging.getLogger(__name__)

T = TypeVar("T")

OpenLeaseClient: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseClient]]


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
        release_on_stop: release the lease once the work has ended, so that a successor need not
            wait until it expires. Never before: client-go's `ReleaseOnCancel` releases at once,
            while the work may still run. A lease that was lost is not released.
        labels: of the Lease; other labels stay.
        coordination: let the server choose the leader where it can (KEP-4355); None for a plain
            election. The client must have LeaseCandidates, as `ClientLeases` does.
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
        labels: Mapping[str, str] | None = None,
        coordination: Coordination | None = None,
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
        if coordination is not None:  # it also names the LeaseCandidate
            identity = identity or default_identity().replace("_", "-").lower()
            check_lease_name(identity)
        self.identity = identity or default_identity()
        self.timings = timings or LeaseTimings()
        self._open_client = open_client
        self._release_on_stop = release_on_stop
        self._labels = dict(labels or {})
        self.coordination = coordination
        self._on_event = on_event
        self._on_overrun = on_overrun
        self._clock = clock or Clock()
        self._clocks = clocks if clocks is not None else machine_clocks(self._clock)
        self._rng = rng or random.Random()  # noqa: S311 - spreads tries, not cryptography
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
        decorate: Callable[[dict[str, Any]], object] = lambda lease: None,  # noqa: ARG005 - adds nothing
    ) -> Candidate:
        """Return the candidate for the lease, with these options."""
        options: dict[str, Any] = {
            "namespace": self.namespace,
            "name": self.name,
            "identity": self.identity,
            "timings": self.timings,
            "on_event": self._on_event,
            "clock": self._clock,
            "clocks": self._clocks,
            "rng": self._rng,
            "labels": self._labels,
            "decorate": decorate,
        }
        if self.coordination is not None:
            coordinated = cast("CoordinatedLeaseClient", client)
            return CoordinatedCandidate(coordinated, self.coordination, **options)
        return Candidate(client, **options)

    async def _watch_overrun(self, work_ended: threading.Event) -> None:
        await self._clock.sleep(self.timings.lease_duration - self.timings.renew_deadline)
        if not work_ended.is_set() and self._on_overrun is not None:
            _logger.critical(
                "lease %s/%s: the work continues although others may lead",
                self.namespace,
                self.name,
            )
            self._on_overrun()
