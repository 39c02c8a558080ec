"""Coordinated leader election: the server chooses among the candidates."""

import asyncio
import random
from typing import Any

import pytest

from listwatch.clock import FakeClock
from listwatch.errors import UnknownResourceError
from listwatch.runtime.api_time import micro_time
from listwatch.runtime.coordinated import Coordination
from listwatch.runtime.leader_election import LeaderElector
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError
from listwatch.runtime.lease import LeaseRecord, new_lease
from runtime.lease_server import FaultyLeaseClient, LeaseServer, ProcessClock, opened, until

VERSIONS = Coordination(binary_version="1.3.0", emulation_version="1.2.0")


class CoordinatedClient(FaultyLeaseClient):
    """A client of Leases whose LeaseCandidates are on another in-memory server."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.leases, ProcessClock(world.clock), [])
        self.world = world

    @property
    def candidates(self) -> FaultyLeaseClient:
        if self.world.candidates is None:
            return Lacking(self.world.leases, self.clock, [])
        return FaultyLeaseClient(self.world.candidates, self.clock, [])


class Lacking(FaultyLeaseClient):
    """A client of a resource that the server does not have."""

    async def get(self, name: str) -> Any:
        raise UnknownResourceError(f"no leasecandidates for {name}")


class World:
    """A server that chooses leaders, and candidates; `choose` is the control plane's part."""

    def __init__(self, *, has_candidates: bool = True) -> None:
        self.clock = FakeClock()
        self.leases = LeaseServer()
        self.candidates = LeaseServer() if has_candidates else None
        self.running: dict[str, asyncio.Task[None]] = {}
        self.guards: dict[str, LeadershipGuard] = {}
        self.reasons: dict[str, str] = {}

    def start(self, name: str, **options: Any) -> None:
        clock = ProcessClock(self.clock)
        elector = LeaderElector(
            opened(CoordinatedClient(self)),
            namespace="default",
            name="lock",
            identity=name,
            coordination=VERSIONS,
            clock=clock,
            clocks=[clock.now],
            rng=random.Random(name),
            threaded=False,
            **options,
        )

        async def work(guard: LeadershipGuard) -> None:
            self.guards[name] = guard
            await asyncio.Event().wait()

        async def run() -> None:
            try:
                await elector.run(work)
            except LeadershipLostError as error:
                self.reasons[name] = str(error)

        self.running[name] = asyncio.ensure_future(run())

    def choose(self, name: str, **spec: Any) -> None:
        now = micro_time(self.clock.time())
        record = LeaseRecord(
            holder=name, duration=15, acquired=now, renewed=now, transitions=spec.pop("count", 0)
        )
        lease = new_lease("default", "lock", record)
        lease["spec"] |= {"strategy": "OldestEmulationVersion", **spec}
        if "lock" in self.leases.leases:
            lease["metadata"] = self.leases.leases["lock"]["metadata"]
            self.leases.update(lease)
        else:
            self.leases.create(lease)

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.leases.leases["lock"]["spec"]
        return spec

    def candidate(self, name: str) -> dict[str, Any]:
        assert self.candidates is not None
        spec: dict[str, Any] = self.candidates.leases[name]["spec"]
        return spec

    def ping(self, name: str, ahead: float = 0.0) -> None:
        assert self.candidates is not None
        found = self.candidates.leases[name]
        pinged = {"pingTime": micro_time(self.clock.time() + ahead)}
        self.candidates.update(found | {"spec": found["spec"] | pinged})

    def leaders(self) -> list[str]:
        return [name for name, guard in self.guards.items() if guard.is_leader]

    async def end(self) -> None:
        for task in self.running.values():
            task.cancel()
        await until(self.clock, lambda: all(task.done() for task in self.running.values()))


async def test_nobody_leads_until_the_server_has_chosen_and_the_chosen_one_renews() -> None:
    world = World()
    world.start("a")
    world.start("b")
    await world.clock.advance(30)
    assert (world.leaders(), world.leases.leases) == ([], {})
    assert world.candidate("a")["leaseName"] == "lock"
    assert world.candidate("a")["binaryVersion"] == "1.3.0"
    assert world.candidate("a")["emulationVersion"] == "1.2.0"
    world.choose("b", count=4)
    await world.clock.advance(60)
    assert world.leaders() == ["b"]
    assert world.spec()["strategy"] == "OldestEmulationVersion"
    assert world.spec()["leaseTransitions"] == 4
    await world.end()


async def test_a_leader_stops_when_the_server_prefers_another_one_who_then_leads() -> None:
    world = World()
    world.start("a")
    world.start("b")
    await world.clock.advance(5)
    world.choose("a")
    await world.clock.advance(10)
    assert world.leaders() == ["a"]
    world.choose("a", preferredHolder="b")
    await world.clock.advance(5)
    assert world.leaders() == []
    assert "the server prefers b" in world.reasons["a"]
    world.choose("b")
    await world.clock.advance(10)
    assert world.leaders() == ["b"]
    await world.end()


async def test_a_lease_that_the_server_gives_to_another_is_lost_at_the_next_renewal() -> None:
    world = World()
    world.start("a")
    await world.clock.advance(5)
    world.choose("a")
    await world.clock.advance(5)
    world.choose("b")
    await world.clock.advance(5)
    assert world.leaders() == []
    assert "b holds the lease" in world.reasons["a"]
    await world.end()


async def test_an_expired_choice_is_not_taken_up_and_waits_for_the_server() -> None:
    world = World()
    world.choose("a")
    world.start("b")
    await world.clock.advance(30)
    assert world.leaders() == []
    await world.end()


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
async def test_a_ping_is_answered_once_even_by_a_clock_that_is_behind(ahead: float) -> None:
    world = World()
    world.start("a")
    await world.clock.advance(5)
    world.ping("a", ahead)
    assert world.candidates is not None
    before = world.candidates.version
    await world.clock.advance(10)
    spec = world.candidate("a")
    assert spec["renewTime"] >= spec["pingTime"]
    assert world.candidates.version == before + 1
    await world.clock.advance(300)
    assert world.candidates.version == before + 2  # once every five minutes without a ping
    await world.end()


async def test_a_server_without_candidates_gets_a_plain_election() -> None:
    world = World(has_candidates=False)
    world.start("a")
    world.start("b")
    await world.clock.advance(20)
    assert len(world.leaders()) == 1
    await world.end()


async def test_the_lease_has_the_labels_of_its_leader_and_keeps_others() -> None:
    world = World(has_candidates=False)
    lease = new_lease("default", "lock", LeaseRecord(), {"keep": "me"})
    world.leases.create(lease)
    world.start("a", labels={"app": "widgets"})
    await world.clock.advance(10)
    assert world.leases.leases["lock"]["metadata"]["labels"] == {"keep": "me", "app": "widgets"}
    assert world.spec()["leaseTransitions"] == 1  # as client-go counts a lease that was there
    await world.end()


def test_an_identity_that_cannot_name_a_candidate_is_refused() -> None:
    client = CoordinatedClient(World())
    with pytest.raises(ValueError, match="'a_b' can't name a Lease"):
        LeaderElector(
            opened(client), namespace="d", name="lock", identity="a_b", coordination=VERSIONS
        )
    made = LeaderElector(opened(client), namespace="d", name="lock", coordination=VERSIONS)
    assert "_" not in made.identity
