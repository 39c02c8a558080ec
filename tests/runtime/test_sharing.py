import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError
from listwatch.runtime.sharing import KeyShare, ShareMember, owner
from runtime.lease_server import FAULTS, FaultyLeaseClient, LeaseServer, ProcessClock, opened, until

KEYS = [f"ns/key-{number}" for number in range(24)]


@given(st.sets(st.text("abcdef", min_size=1), min_size=1, max_size=6), st.text())
def test_a_key_belongs_to_one_member_whatever_their_order(members: set[str], key: str) -> None:
    found = owner(key, members)
    assert found in members
    assert owner(key, sorted(members, reverse=True)) == found


@given(st.sets(st.text("abcdef", min_size=1), min_size=2, max_size=6), st.text())
def test_a_member_that_goes_moves_only_its_own_keys(members: set[str], key: str) -> None:
    found = owner(key, members)
    for gone in members - {found}:
        assert owner(key, members - {gone}) == found


def test_keys_are_spread_evenly() -> None:
    members = ["a", "b", "c", "d"]
    counts = Counter(owner(f"ns/{number}", members) for number in range(4000))
    assert all(850 < counts[member] < 1150 for member in members)


def test_a_claim_holds_where_both_views_and_no_rival_agree() -> None:
    mine = [key for key in KEYS if owner(key, ["a", "b"]) == "a"]
    assert [key for key in KEYS if KeyShare("a").accepts(key)] == []
    assert [key for key in KEYS if KeyShare("a", ("a", "b")).accepts(key)] == mine
    alone = KeyShare("a", ("a",), {"b": ("b",)})
    assert [key for key in KEYS if alone.accepts(key)] == []
    joining = KeyShare("a", ("a",), {"b": ()}, ("a", "b"))
    assert [key for key in KEYS if joining.accepts(key)] == mine


class Member:
    """A process that works on all keys of its share, repeatedly."""

    def __init__(
        self,
        server: LeaseServer,
        world: FakeClock,
        name: str,
        everyone: list["Member"],
        faults: list[str] | None = None,
        skew: float = 0.0,
    ) -> None:
        self.name = name
        self.clock = ProcessClock(world, skew)
        self.client = FaultyLeaseClient(server, self.clock, faults or [])
        self.everyone = everyone
        everyone.append(self)
        self.working: set[str] = set()
        self.overlaps: list[str] = []
        self.done: Counter[str] = Counter()
        self.guard: LeadershipGuard | None = None
        self.seconds = 0.6
        self._accepts: Callable[[str], bool] = bool
        self._ended = asyncio.Event()
        self._rng = random.Random(name)
        self.runs = 0

    # As a reconciler does

    def share(self, accepts: Callable[[str], bool]) -> None:
        self._accepts = accepts

    async def drained(self, keeps: Callable[[str], bool]) -> None:
        while not all(keeps(key) for key in self.working):
            self._ended.clear()
            await self._ended.wait()

    def wake(self, wanted: Callable[[str], bool]) -> None:
        assert all(self._accepts(key) for key in KEYS if wanted(key))

    async def _work(self, guard: LeadershipGuard) -> None:
        self.guard = guard
        try:
            async with asyncio.TaskGroup() as group:
                for key in KEYS:
                    group.create_task(self._work_on(key, guard))
        finally:
            self.working.clear()

    async def _work_on(self, key: str, guard: LeadershipGuard) -> None:
        while True:
            await self.clock.sleep(self._rng.uniform(0.1, 1.0))
            if not self._accepts(key):
                continue
            self.working.add(key)
            end = self.clock.now() + self._rng.uniform(0, 2 * self.seconds)
            while self.clock.now() < end:
                if not guard.is_leader:  # as a fenced write would find out
                    break
                for other in self.everyone:
                    if other is not self and key in other.working and other.may_act:
                        self.overlaps.append(f"{self.name} and {other.name} on {key}")
                await self.clock.sleep(0.2)
            self.working.discard(key)
            self.done[key] += 1
            self._ended.set()

    @property
    def may_act(self) -> bool:
        return self.guard is not None and self.guard.is_leader

    def member(self) -> ShareMember:
        self.runs += 1
        member = ShareMember(
            opened(self.client),
            namespace="default",
            group="widgets",
            member=f"{self.name}{self.runs}",
            clock=self.clock,
            clocks=[self.clock.now],
            rng=random.Random(self.name),
            threaded=False,
        )
        member.share(self)
        return member

    async def live(self) -> None:
        while True:
            with contextlib.suppress(LeadershipLostError):
                await self.member().run(self._work)
            await self.clock.sleep(1)


@contextlib.asynccontextmanager
async def living(*members: Member) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(member.live()) for member in members]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for _ in range(1000):
            await members[0].clock.world.advance(0.1)
            if all(task.done() for task in tasks):
                break
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}


async def test_members_share_all_keys_and_take_over_from_one_that_stops() -> None:
    world, server, everyone = FakeClock(), LeaseServer(), list[Member]()
    a, b, c = (Member(server, world, name, everyone) for name in "abc")
    async with living(a, b):
        async with living(c):
            await world.advance(30)
            for member in everyone:
                member.done.clear()
            await world.advance(10)
            shares = [set(member.done) for member in everyone]
            assert set.union(*shares) == set(KEYS)
            assert sum(map(len, shares)) == len(KEYS)
            assert all(shares)
        # c left in an orderly way: its keys move as soon as the others look again.
        a.done.clear()
        b.done.clear()
        await world.advance(8)
        assert set(a.done) | set(b.done) == set(KEYS)
        assert shares[0] <= set(a.done)  # It keeps its keys.
        assert shares[1] <= set(b.done)
    assert not any(member.overlaps for member in everyone)


async def test_a_member_that_dies_is_followed_when_its_lease_has_expired() -> None:
    world, server, everyone = FakeClock(), LeaseServer(), list[Member]()
    a, b = (Member(server, world, name, everyone) for name in "ab")
    async with living(a, b):
        await world.advance(20)
        b.clock.pause(10_000)
        a.done.clear()
        await world.advance(14)
        assert set(a.done) != set(KEYS)
        a.done.clear()
        await until(world, lambda: set(a.done) == set(KEYS), 10)
        await world.advance(100)
        # The live members delete the dead member's lease.
        assert [name for name in server.leases if name.startswith("widgets.b")] == []
        b.clock.paused_until = 0


async def test_a_key_in_work_is_not_handed_over_before_its_work_ends() -> None:
    world, server, everyone = FakeClock(), LeaseServer(), list[Member]()
    a, b = (Member(server, world, name, everyone) for name in "ab")
    a.seconds = 20
    async with living(a):
        await world.advance(5)
        async with living(b):
            await world.advance(120)
            assert b.done
    assert not a.overlaps
    assert not b.overlaps


async def test_a_view_whose_write_is_slow_is_compared_with_what_was_written_meanwhile() -> None:
    world, server, everyone = FakeClock(), LeaseServer(), list[Member]()
    a = Member(server, world, "a", everyone, [*["ok"] * 6, "slow", "slow", *["ok"] * 10_000])
    b = Member(server, world, "b", everyone)
    async with living(a):
        await world.advance(3.5)
        async with living(b):
            await world.advance(60)
            assert a.done
            assert b.done
    assert not a.overlaps
    assert not b.overlaps


async def test_a_member_whose_lease_is_lost_accepts_nothing() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Member(server, world, "a", [])
    member = process.member()
    task = asyncio.ensure_future(member.run(process._work))  # the leader's work
    await world.advance(10)
    assert member.accepts("ns/key-1")
    assert process.guard is not None
    process.guard.end("for the test")
    assert not member.accepts("ns/key-1")
    task.cancel()
    await world.advance(10)
    assert task.cancelled() or isinstance(task.exception(), LeadershipLostError)


PAUSES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300), st.integers(1, 80)), max_size=4)


@given(st.tuples(FAULTS, FAULTS, FAULTS), PAUSES, st.tuples(*[st.floats(0.1, 6)] * 3), st.data())
def test_no_key_is_worked_on_by_two_members_whatever_fails(
    faults: tuple[list[str], ...],
    pauses: list[tuple[int, int, int]],
    seconds: tuple[float, ...],
    data: Any,
) -> None:
    """Members join and leave, answers are lost and late, pauses exceed the lease."""
    joins = data.draw(st.tuples(*[st.integers(0, 100)] * 3))

    async def scenario() -> None:
        world, server, everyone = FakeClock(), LeaseServer(), list[Member]()
        for name, some_faults, length in zip("abc", faults, seconds, strict=True):
            Member(server, world, name, everyone, some_faults).seconds = length
        async with contextlib.AsyncExitStack() as stack:
            for step in range(240):
                for member, join in zip(everyone, joins, strict=True):
                    if join == step:
                        await stack.enter_async_context(living(member))
                for who, at, length in pauses:
                    if at == step:
                        everyone[who].clock.pause(length / 2)
                await world.advance(0.5)
                assert [line for member in everyone for line in member.overlaps] == []
            for member in everyone:
                member.client.faults = []
                member.done.clear()
            await until(world, lambda: len({k for m in everyone for k in m.done}) == len(KEYS), 120)
            assert [line for member in everyone for line in member.overlaps] == []

    asyncio.run(scenario())
