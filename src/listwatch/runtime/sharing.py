"""Lets replicas share the keys of their reconcilers, never two of them working on one key at once.

Each member has its own Lease, which it renews like a leader. The Lease carries the *view* that the
member works by: the members that it knows. A key belongs to the member with the highest hash of key
and member (rendezvous hashing), so a member that joins or leaves moves only its own keys.

Views then differ for a while. So a member works on a key only if

1. its own written view gives it the key, and 2. no other live member's view, read after its own was
written, gives that other one the key.

Of two members that claim a key, one wrote its view first; the other reads that view and waits.
Before a member writes a view that takes keys from it, it lets the work on them end. A member that
is silent for its lease's duration has stopped working by then, like a leader. A model test with
faults and a test with two processes check this.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from listwatch.clock import Clock
from listwatch.errors import ConflictError, NotFoundError
from listwatch.objects import Object
from listwatch.runtime.candidate import (
    Candidate,
    ElectionEvent,
    LeaderElectionStatistics,
    LeaseTimings,
)
from listwatch.runtime.leader_election import Contender, LeaderElector, OpenLeaseClient
from listwatch.runtime.leading import Clocks, LeadershipGuard
from listwatch.runtime.lease import LeaseClient, LeaseRecord

T = TypeVar("T")

#: The label that finds a group's Leases, and the annotation with a member's view. They say "shard"
#: so that members of older versions are found too.
GROUP_LABEL = "listwatch/shard-group"
VIEW_ANNOTATION = "listwatch/shard-view"

# A released or expired lease is deleted after this many times its duration.
_KEEP_DEAD = 4


def owner(key: str, members: Iterable[str]) -> str:
    """Return the member that a key belongs to; empty if there are no members."""
    return max(members, key=lambda member: _weight(member, key), default="")


def _weight(member: str, key: str) -> tuple[bytes, str]:
    return blake2b(f"{member}\0{key}".encode(), digest_size=8).digest(), member


class KeyShare(msgspec.Struct, frozen=True):
    """The keys that a member may work on.

    Attributes:
        member: the member.
        view: the members in its written view; empty claims nothing.
        rivals: the views of other live members that differ from its own.
        next_view: the view it is about to write, if any; it gives up the keys that this view takes
            away.
    """

    member: str
    view: tuple[str, ...] = ()
    rivals: Mapping[str, tuple[str, ...]] = {}
    next_view: tuple[str, ...] | None = None

    def accepts(self, key: str) -> bool:
        """Return whether the member may work on the key."""
        if owner(key, self.view) != self.member:
            return False
        if self.next_view is not None and owner(key, self.next_view) != self.member:
            return False
        return all(owner(key, view) != rival for rival, view in self.rivals.items())


class _Seen(msgspec.Struct):
    record: LeaseRecord
    view: tuple[str, ...]
    #: Since when this has been so, by our own clock.
    since: float


class SharesWork(Protocol):
    """Work whose keys are shared; a `Reconciler` is one. For the event loop of the work."""

    def share(self, accepts: Callable[[str], bool]) -> None:
        """Call this before working on a key."""
        ...

    async def drained(self, keeps: Callable[[str], bool]) -> None:
        """Return when no key is in process that `keeps` rejects."""
        ...

    def wake(self, wanted: Callable[[str], bool]) -> None:
        """Work on the wanted keys soon."""
        ...


#: Called with a claim: returns when nothing outside the claim is worked on any more.
Settle: TypeAlias = Callable[[KeyShare], Awaitable[None]]


class Membership:
    """One member of a group: the rules, in the event loop that runs them.

    Programs use `ShareMember`.

    Args:
        client: of the leases' namespace.
        make_candidate: creates the candidate for the member's own lease, given the function that
            decorates it.
        group: the group's name.
        member: this member's name.
        timings: seconds.
        settle: applies a claim to the work.
        clock: the time.
    """

    def __init__(
        self,
        client: LeaseClient,
        make_candidate: Callable[[Callable[[dict[str, Any]], object]], Candidate],
        *,
        group: str,
        member: str,
        timings: LeaseTimings,
        settle: Settle,
        clock: Clock,
    ) -> None:
        self._client = client
        self._candidate = make_candidate(self._decorate)
        self._group = group
        self._member = member
        self._timings = timings
        self._settle = settle
        self._clock = clock
        # The view that every write of the lease carries from now on. While it is unknown whether
        # such a write succeeded, the claim has it as the next view.
        self._view: tuple[str, ...] = ()
        self._claim = KeyShare(member)
        self._seen: dict[str, _Seen] = {}
        self._settling: asyncio.Task[None] | None = None

    async def acquire(self) -> LeadershipGuard:
        """Join the group, claiming nothing yet."""
        return await self._candidate.acquire()

    async def hold(self) -> str:
        """Take part until its own lease is lost, and return the reason."""
        guard = self._candidate.guard
        if guard is None:
            raise RuntimeError("not a member yet: call acquire first")
        try:
            while (left := guard.remaining()) > 0:
                again = False
                try:
                    async with self._clock.timeout(left):
                        again = await self._take_part()
                except TimeoutError:
                    continue  # the guard shows whether this was the end
                if not again:
                    pause = min(self._timings.retry_period, guard.remaining())
                    await self._wait_for_settling(pause)
        finally:
            if self._settling is not None:
                self._settling.cancel()
                await asyncio.wait({self._settling})
        return guard.refusal

    async def resign(self, *, release: bool) -> None:
        """Leave the group; the work has ended."""
        await self._candidate.resign(release=release)

    def statistics(self) -> LeaderElectionStatistics:
        """Return the state of its own lease."""
        return self._candidate.statistics()

    def _decorate(self, lease: dict[str, Any]) -> None:
        metadata = lease["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), GROUP_LABEL: self._group}
        annotations = metadata.get("annotations") or {}
        metadata["annotations"] = {**annotations, VIEW_ANNOTATION: ",".join(self._view)}

    async def _take_part(self) -> bool:
        """Write the view, read the others' and proceed; return True to do so again at once."""
        if not await self._candidate.renew(None) or not await self._look():
            return False
        if self._settling is not None:
            if not self._settling.done():
                return False
            self._settling.result()
            self._settling = None
            if self._view != self._claim.next_view:
                # Nothing outside the next view is worked on any more, so it may be written.
                self._view = self._claim.next_view or ()
                return True
        # Our view has been written, and the others' were read afterwards.
        target = tuple(sorted({self._member, *self._live()}))
        if target != self._view:
            claim = KeyShare(self._member, self._view, self._rivals(), target)
        else:
            claim = KeyShare(self._member, self._view, self._rivals())
        if claim == self._claim:
            return False
        self._claim = claim
        if claim.next_view is None:
            await self._settle(claim)
            return False
        self._settling = asyncio.ensure_future(self._settle(claim))
        return False

    async def _wait_for_settling(self, seconds: float) -> None:
        """Sleep, but not beyond the time at which a new view may be written."""
        settling = self._settling
        if settling is None:
            await self._clock.sleep(seconds)
            return
        try:
            async with self._clock.timeout(seconds):
                await asyncio.wait({settling})
        except TimeoutError:
            return

    def _live(self) -> list[str]:
        now = self._clock.now()
        return [
            name
            for name, seen in self._seen.items()
            if seen.record.holder and now < seen.since + self._duration(seen.record)
        ]

    def _duration(self, record: LeaseRecord) -> float:
        return record.duration or self._timings.lease_duration

    def _rivals(self) -> dict[str, tuple[str, ...]]:
        return {
            name: self._seen[name].view
            for name in self._live()
            if self._seen[name].view != self._view
        }

    async def _look(self) -> bool:
        """Read the others' leases; return False if that failed."""
        try:
            async with self._clock.timeout(self._timings.request_timeout):
                leases = await self._client.list(f"{GROUP_LABEL}={self._group}")
                self._note(leases)
                await self._delete_dead(leases)
        except Exception as error:  # noqa: BLE001 - as for renewals: reported, and tried again
            self._candidate.report(error)
            return False
        return True

    def _note(self, leases: Sequence[Object]) -> None:
        now = self._clock.now()
        names = set()
        for lease in leases:
            name = self._member_of(lease)
            names.add(name)
            record, view = LeaseRecord.of(lease), _view_of(lease)
            known = self._seen.get(name)
            if name == self._member:
                continue
            if known is None or (known.record, known.view) != (record, view):
                self._seen[name] = _Seen(record, view, now)
        for name in [name for name in self._seen if name not in names]:
            # A member whose lease was deleted may continue until it would have expired.
            if name not in self._live():
                del self._seen[name]

    async def _delete_dead(self, leases: Sequence[Object]) -> None:
        live, now = set(self._live()), self._clock.now()
        for lease in leases:
            name = self._member_of(lease)
            if name == self._member or name in live:
                continue
            if now - self._seen[name].since > _KEEP_DEAD * self._timings.lease_duration:
                try:
                    await self._client.delete(lease.name, resource_version=lease.resource_version)
                except (NotFoundError, ConflictError):
                    continue  # another member was faster, or this one is alive

    def _member_of(self, lease: Object) -> str:
        return lease.name.removeprefix(f"{self._group}.")


def _view_of(lease: Object) -> tuple[str, ...]:
    annotations = lease["metadata"].get("annotations") or {}
    return tuple(name for name in annotations.get(VIEW_ANNOTATION, "").split(",") if name)


class ShareMember(LeaderElector):
    """Runs work on this process's share of the keys.

    Use it like a `LeaderElector`, after calling `share` for each reconciler: `run` joins the group,
    and cancels the work when the member's own lease is lost. `Manager(sharing=...)` does all of
    that.

    A reconcile that never ends blocks the handover of its key for ever; give reconcilers a
    `timeout`.

    Args:
        open_client: as for `LeaderElector`.
        namespace: of the leases.
        group: the group's name; the leases' names begin with it.
        member: a name for this process that no other process ever had, valid as the end of a
            Lease's name; by default random.
        options: the others are those of `LeaderElector`.
    """

    def __init__(
        self,
        open_client: OpenLeaseClient,
        *,
        namespace: str,
        group: str,
        member: str = "",
        timings: LeaseTimings | None = None,
        release_on_stop: bool = True,
        on_event: Callable[[ElectionEvent], None] = lambda event: None,  # noqa: ARG005 - nobody listens
        on_overrun: Callable[[], None] | None = None,
        clock: Clock | None = None,
        clocks: Clocks | None = None,
        rng: random.Random | None = None,
        threaded: bool = True,
    ) -> None:
        member = member or secrets.token_hex(6)
        super().__init__(
            open_client,
            namespace=namespace,
            name=f"{group}.{member}",
            identity=member,
            timings=timings,
            release_on_stop=release_on_stop,
            on_event=on_event,
            on_overrun=on_overrun,
            clock=clock,
            clocks=clocks,
            rng=rng,
            threaded=threaded,
        )
        self.group = group
        self._work: list[SharesWork] = []
        self._claim = KeyShare(member)
        self._work_loop: asyncio.AbstractEventLoop | None = None
        self._guard: LeadershipGuard | None = None

    def share(self, work: SharesWork) -> None:
        """Share the keys of this work; call it before `run`."""
        work.share(self.accepts)
        self._work.append(work)

    def accepts(self, key: str) -> bool:
        """Return whether this process may start work on the key now; in the work's event loop."""
        guard = self._guard
        return guard is not None and guard.is_leader and self._claim.accepts(key)

    @property
    def claim(self) -> KeyShare:
        """The keys that this process may work on."""
        return self._claim

    async def run(
        self, work: Callable[[LeadershipGuard], Awaitable[T]], *, guard_steps: bool = True
    ) -> T:
        """Join the group, then run `work(guard)`; see `LeaderElector.run`.

        Raises:
            LeadershipLostError: its own lease was lost; raised once the work has ended.
        """
        self._work_loop = asyncio.get_running_loop()

        async def guarded(guard: LeadershipGuard) -> T:
            self._guard = guard
            try:
                return await work(guard)
            finally:
                self._guard = None
                self._claim = KeyShare(self.identity)

        return await super().run(guarded, guard_steps=guard_steps)

    def make_candidate(self, client: LeaseClient) -> Contender:
        """Return the contender, in the election's event loop."""
        return Membership(
            client,
            lambda decorate: self.make_lease_candidate(client, decorate),
            group=self.group,
            member=self.identity,
            timings=self.timings,
            settle=self._settle_from_anywhere,
            clock=self._clock,
        )

    async def _settle_from_anywhere(self, claim: KeyShare) -> None:
        loop = self._work_loop
        if loop is None or loop is asyncio.get_running_loop():
            await self._settle(claim)
        else:
            settling = self._settle(claim)
            try:
                future = asyncio.run_coroutine_threadsafe(settling, loop)
            except RuntimeError:  # the work's event loop is closed
                settling.close()
                raise
            await asyncio.wrap_future(future)

    async def _settle(self, claim: KeyShare) -> None:
        before, self._claim = self._claim, claim

        def gained(key: str) -> bool:
            return claim.accepts(key) and not before.accepts(key)

        for work in self._work:
            work.wake(gained)
        if claim.next_view is not None:
            for work in self._work:
                await work.drained(claim.accepts)
