import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import Clock, FakeClock
from listwatch.errors import ConfigError
from listwatch.runtime.candidate import ElectionEvent, LeaseTimings, default_identity
from listwatch.runtime.leader_election import LeaderElector
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError
from listwatch.runtime.lease import LeaseClient, LeaseRecord, new_lease
from runtime.lease_server import FAULTS, FaultyLeaseClient, LeaseServer, ProcessClock, opened, until


class Process:
    """A candidate with its own clock, its connection to the server, and endless work."""

    def __init__(
        self,
        server: LeaseServer,
        world: FakeClock,
        name: str,
        faults: list[str] | None = None,
        *,
        skew: float = 0.0,
        acts: list[tuple[float, str]] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.clock = ProcessClock(world, skew)
        self.client = FaultyLeaseClient(server, self.clock, faults or [])
        self.events: list[ElectionEvent] = []
        self.guard: LeadershipGuard | None = None
        self.acts = [] if acts is None else acts
        self.works = False
        self.elector = LeaderElector(
            opened(self.client),
            namespace="default",
            name="lock",
            identity=name,
            clock=self.clock,
            clocks=[self.clock.now],
            rng=random.Random(name),
            on_event=self.events.append,
            threaded=False,
            **options,
        )

    async def work(self, guard: LeadershipGuard) -> None:
        self.guard = guard
        self.works = True
        try:
            while True:
                guard.check()
                self.acts.append((self.clock.now(), self.name))
                await self.clock.sleep(0.5)
        finally:
            self.works = False

    async def campaign(self) -> None:
        """Contend again and again, like a process that is restarted."""
        while True:
            with contextlib.suppress(LeadershipLostError):
                await self.elector.run(self.work)
            await self.clock.sleep(1)


@contextlib.asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(process.campaign()) for process in processes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for _ in range(1000):  # releasing the lease takes time, which passes only here
            await processes[0].clock.world.advance(0.1)
            if all(task.done() for task in tasks):
                break
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}


async def test_the_first_candidate_creates_the_lease_and_leads_at_once() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a")
    async with running(process):
        await world.advance(0.1)
        assert process.works
        assert server.leases["lock"]["spec"] == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2023-11-14T22:13:20.010000Z",
            "renewTime": "2023-11-14T22:13:20.010000Z",
            "leaseTransitions": 0,
        }


async def test_a_leader_renews_every_retry_period_without_reading() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a")
    async with running(process):
        await world.advance(20)
        assert 9 <= len(server.writes) <= 11
        # One read finds nothing; all other requests are writes.
        assert process.client.requests == len(server.writes) + 1


async def test_a_second_candidate_waits_and_takes_over_after_an_orderly_stop_within_one_wait() -> (
    None
):
    world, server = FakeClock(), LeaseServer()
    first, second = Process(server, world, "a"), Process(server, world, "b")
    async with running(second):
        async with running(first):
            await until(world, lambda: first.works or second.works)
            if second.works:  # either may lead first
                first, second = second, first
            await world.advance(30)
            assert not second.works
        if not first.works:
            assert await until(world, lambda: second.works) <= 4.5
            assert server.leases["lock"]["spec"]["leaseTransitions"] == 1


async def test_a_crashed_leader_is_followed_when_its_lease_has_expired() -> None:
    world, server = FakeClock(), LeaseServer()
    record = LeaseRecord(holder="dead", duration=15, acquired="2020-01-01T00:00:00.000000Z")
    server.create(new_lease("default", "lock", record))
    process = Process(server, world, "a")
    async with running(process):
        waited = await until(world, lambda: process.works)
        assert 15 <= waited <= 15 + 4.5
        assert server.leases["lock"]["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("skew", [-86400.0, 86400.0])
async def test_a_wall_clock_that_is_a_day_off_takes_no_leadership(skew: float) -> None:
    world, server = FakeClock(), LeaseServer()
    leader, other = Process(server, world, "a"), Process(server, world, "b", skew=skew)
    async with running(leader):
        await world.advance(1)
        async with running(other):
            await world.advance(120)
            assert leader.works
            assert not other.works


async def test_the_holders_own_duration_counts_not_the_challengers() -> None:
    world, server = FakeClock(), LeaseServer()
    server.create(new_lease("default", "lock", LeaseRecord(holder="dead", duration=60)))
    process = Process(server, world, "a")
    async with running(process):
        assert 60 <= await until(world, lambda: process.works, 90) <= 65


async def test_a_process_of_the_same_identity_waits_like_any_other() -> None:
    world, server = FakeClock(), LeaseServer()
    first, twin = Process(server, world, "a"), Process(server, world, "a")
    async with running(first):
        await world.advance(1)
        async with running(twin):
            await world.advance(60)
            assert (first.works, twin.works) == (True, False)


async def test_an_acquisition_whose_answer_is_lost_is_recognised_as_ours() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a", ["ok", "lose", *["ok"] * 1000])
    async with running(process):
        assert await until(world, lambda: process.works) <= 4.5


async def test_work_is_cancelled_at_the_renew_deadline_when_every_renewal_fails() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a", ["ok", "ok", *["refuse"] * 1000])
    async with running(process):
        await until(world, lambda: process.works)
        guard = process.guard
        assert guard is not None
        assert 9.5 <= await until(world, lambda: not process.works) <= 10.1
        assert "not renewed" in guard.refusal
        with pytest.raises(
            LeadershipLostError, match="a is not the leader: the lease was not renewed"
        ):
            guard.check()


async def test_work_in_which_a_task_group_has_failed_is_ended_as_any_other() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a", ["ok", "ok", *["refuse"] * 1000])

    async def fail() -> None:
        raise LookupError

    async def work(_: LeadershipGuard) -> None:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        await world.sleep(1000)

    lost = asyncio.ensure_future(process.elector.run(work))
    await until(world, lost.done)
    with pytest.raises(LeadershipLostError, match="the lease was not renewed in time"):
        await lost


async def test_the_error_of_a_lost_leadership_names_what_kept_it_from_renewing() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a", ["ok", "ok", *["refuse"] * 1000])
    lost = asyncio.ensure_future(process.elector.run(process.work))
    await until(world, lost.done)
    words = r"a lost lease default/lock: the lease was not renewed in time \(\w+Error: .+\)"
    with pytest.raises(LeadershipLostError, match=words):
        await lost


async def test_a_request_that_hangs_does_not_hold_up_the_loss() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a", ["ok", "ok", *["hang"] * 1000])
    async with running(process):
        await until(world, lambda: process.works)
        assert await until(world, lambda: not process.works) <= 10.1


async def test_a_failure_that_passes_costs_nothing() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a", ["ok", "ok", *["refuse"] * 6, *["ok"] * 1000])
    async with running(process):
        await world.advance(60)
        assert process.works
        statistics = process.elector.statistics()
        assert statistics.is_leader
        assert (statistics.failures, statistics.slow_renewals) == (6, 3)
        assert statistics.last_error == ""


async def test_a_lease_that_another_holds_ends_leadership_at_the_next_renewal() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a")
    async with running(process):
        await world.advance(1)
        stolen = LeaseRecord(holder="thief", duration=15, acquired="x").into(server.leases["lock"])
        server.update(stolen)
        assert await until(world, lambda: not process.works) <= 2.1
        assert process.guard is not None
        assert process.guard.refusal == "thief holds the lease"


async def test_a_deleted_lease_is_created_again_by_its_holder_and_taken_by_no_one_who_saw_it() -> (
    None
):
    world, server = FakeClock(), LeaseServer()
    leader, other = Process(server, world, "a"), Process(server, world, "b")
    async with running(leader):
        await world.advance(1)
        async with running(other):
            await world.advance(5)
            del server.leases["lock"]
            await world.advance(30)
            assert (leader.works, other.works) == (True, False)
            assert server.leases["lock"]["spec"]["holderIdentity"] == "a"


async def test_fields_of_other_writers_survive_a_renewal() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a")
    async with running(process):
        await world.advance(1)
        lease = server.leases["lock"]
        lease["metadata"]["labels"] = {"team": "x"}
        lease["spec"]["strategy"] = "OldestEmulationVersion"
        server.update(lease)
        await world.advance(10)
        assert server.leases["lock"]["metadata"]["labels"] == {"team": "x"}
        assert server.leases["lock"]["spec"]["strategy"] == "OldestEmulationVersion"
        assert process.works


async def test_the_lease_is_renewed_until_the_work_has_ended_and_then_released() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a")
    ended_at = 0.0

    async def slow_to_stop(guard: LeadershipGuard) -> None:
        nonlocal ended_at
        try:
            await process.clock.sleep(1000)
        finally:
            await process.clock.sleep(25)
            guard.check()
            ended_at = world.now()

    task = asyncio.ensure_future(process.elector.run(slow_to_stop))
    await world.advance(1)
    task.cancel()
    await world.advance(30)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended_at == pytest.approx(1000.0 + 1 + 25)
    spec = server.leases["lock"]["spec"]
    assert ("holderIdentity" in spec, spec["leaseDurationSeconds"]) == (False, 1)


async def test_a_conflict_while_releasing_is_retried() -> None:
    world, server = FakeClock(), LeaseServer()
    # get, create; then the release: get, refused update, get, update
    process = Process(server, world, "a", ["ok", "ok", "ok", "refuse", "ok", "ok"])

    async def nothing(guard: LeadershipGuard) -> str:
        guard.check()
        return "done"

    task = asyncio.ensure_future(process.elector.run(nothing))
    await world.advance(5)
    assert await task == "done"
    assert "holderIdentity" not in server.leases["lock"]["spec"]


async def test_without_release_the_lease_is_left_to_expire_and_the_stop_is_told() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a", release_on_stop=False)
    async with running(process):
        await world.advance(1)
    assert server.leases["lock"]["spec"]["holderIdentity"] == "a"
    assert [event.type for event in process.events] == ["BecameLeader", "StoppedLeading"]


async def test_events_tell_of_every_change_of_leader() -> None:
    world, server = FakeClock(), LeaseServer()
    leader, other = Process(server, world, "a"), Process(server, world, "b")
    async with running(other):
        async with running(leader):
            await world.advance(10)
        await world.advance(10)
    told = [(e.type, e.identity) for e in (*leader.events, *other.events)]
    assert sorted(told) == sorted(
        [
            ("NewLeader", "b") if ("BecameLeader", "a") not in told else ("NewLeader", "a"),
            *[(kind, name) for kind, name in told if kind != "NewLeader"],
        ]
    )


async def test_what_the_work_raises_comes_out_and_the_lease_is_released() -> None:
    world, server = FakeClock(), LeaseServer()
    process = Process(server, world, "a")

    async def fail(guard: LeadershipGuard) -> None:
        guard.check()
        raise ConfigError("no such thing")

    task = asyncio.ensure_future(process.elector.run(fail))
    await world.advance(5)
    with pytest.raises(ConfigError, match="no such thing"):
        await task
    assert "holderIdentity" not in server.leases["lock"]["spec"]


async def test_a_candidate_that_is_stopped_while_it_waits_ends_at_once_and_writes_nothing() -> None:
    world, server = FakeClock(), LeaseServer()
    server.create(new_lease("default", "lock", LeaseRecord(holder="other", duration=1000)))
    process = Process(server, world, "a")
    task = asyncio.ensure_future(process.elector.run(process.work))
    await world.advance(10)
    task.cancel()
    await world.settle()
    assert task.cancelled()
    assert server.writes == [("lock", "other")]
    assert [event.type for event in process.events] == ["NewLeader"]
    assert not process.elector.statistics().is_leader
    assert process.elector.statistics().holder == "other"


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_client_that_can_not_be_opened_is_an_error_of_run(*, threaded: bool) -> None:
    def broken() -> contextlib.AbstractAsyncContextManager[LeaseClient]:
        raise ConfigError("no kubeconfig")

    elector = LeaderElector(broken, namespace="default", name="lock", threaded=threaded)

    async def work(guard: LeadershipGuard) -> None:
        raise AssertionError(guard)

    with pytest.raises(ConfigError, match="no kubeconfig"):
        await elector.run(work)


async def test_work_that_outlives_the_lease_is_told_to_a_last_resort() -> None:
    world, server = FakeClock(), LeaseServer()
    overruns: list[float] = []
    process = Process(
        server,
        world,
        "a",
        ["ok", "ok", *["refuse"] * 1000],
        on_overrun=lambda: overruns.append(world.now()),
    )

    async def stubborn(guard: LeadershipGuard) -> None:
        guard.check()
        try:
            await process.clock.sleep(1000)
        finally:
            await process.clock.sleep(20)

    task = asyncio.ensure_future(process.elector.run(stubborn))
    await world.advance(40)
    with pytest.raises(LeadershipLostError):
        await task
    assert overruns == [pytest.approx(1015.0, abs=0.1)]


@pytest.mark.parametrize(
    ("timings", "words"),
    [
        ({"lease_duration": 10}, "above renew_deadline"),
        ({"renew_deadline": 2.3}, "above 1.2 times"),
        ({"lease_duration": 15.5}, "whole number"),
        ({"retry_period": 0}, "above 0"),
    ],
)
def test_timings_that_can_not_be_safe_are_refused(timings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LeaseTimings(**timings)


def test_a_name_that_no_lease_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="'My_Lock' can't name a Lease"):
        LeaderElector(opened(None), namespace="d", name="My_Lock")  # type: ignore[arg-type] # never opened


def test_each_process_has_an_identity_of_its_own() -> None:
    assert default_identity() != default_identity()


async def test_while_the_event_loop_is_held_the_lease_is_renewed_and_the_leadership_kept() -> None:
    server = LeaseServer()
    timings = LeaseTimings(lease_duration=40, renew_deadline=30, retry_period=0.1)
    elector = LeaderElector(
        opened(FaultyLeaseClient(server, _RealClock(), [])),
        namespace="default",
        name="lock",
        timings=timings,
    )

    async def hold_the_loop(guard: LeadershipGuard) -> int:
        before, left = elector.statistics().renewals, guard.remaining()
        # Block the event loop: a renewal then proves that another thread renews.
        began = time.monotonic()
        while elector.statistics().renewals < before + 2:
            threading.Event().wait(0.01)
        # Of the time until the last renewal, the lease has lost nothing.
        assert guard.remaining() > left - (time.monotonic() - began)
        guard.check()
        return elector.statistics().renewals - before

    assert await elector.run(hold_the_loop) >= 2
    assert "holderIdentity" not in server.leases["lock"]["spec"]


class _RealClock(ProcessClock):
    def __init__(self) -> None:
        super().__init__(FakeClock())

    async def sleep(self, seconds: float) -> None:
        await Clock().sleep(seconds)


async def test_clocks_that_have_gone_on_end_the_leadership_although_the_monotonic_one_stood() -> (
    None
):
    readings = [100.0, 5000.0]
    guard = LeadershipGuard("a", 3, [lambda: readings[0], lambda: readings[1]])
    assert not guard.is_leader
    guard.extend(readings, 10)
    assert guard.remaining() == 10
    readings[1] += 10  # suspended for ten seconds
    with pytest.raises(LeadershipLostError):
        guard.check()
    readings[1] -= 10
    assert not guard.is_leader  # A guard that refused once refuses for ever.


PAUSES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 300), st.integers(1, 80)), max_size=4)


@given(FAULTS, FAULTS, PAUSES, st.integers(-100, 100))
def test_there_are_never_two_acting_leaders_and_faults_that_end_leave_one(
    faults_a: list[str], faults_b: list[str], pauses: list[tuple[int, int, int]], skew: int
) -> None:
    """Random lost answers, hanging and late requests, skewed clocks and paused processes."""

    async def scenario() -> None:
        world, server = FakeClock(), LeaseServer()
        acts: list[tuple[float, str]] = []
        pair = [
            Process(server, world, "a", faults_a, acts=acts),
            Process(server, world, "b", faults_b, skew=skew, acts=acts),
        ]
        async with running(*pair):
            for step in range(600):
                for who, at, length in pauses:
                    if at == step:
                        pair[who].clock.pause(length / 2)
                await world.advance(0.25)
                acting = [p for p in pair if p.guard is not None and p.guard.is_leader]
                assert len(acting) <= 1
                working = [p for p in pair if p.works and not p.clock.paused]
                assert len(working) <= 1
            for process in pair:
                process.client.faults = []
            await until(world, lambda: any(p.works for p in pair), 120)

    asyncio.run(scenario())
