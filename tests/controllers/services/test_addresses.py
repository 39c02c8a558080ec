"""Services keep their addresses through restarts, conflicts and full pools."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controllers.service_cluster import World, service
from listwatch.controllers.services.figures import LoadBalancerFigures
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import AddressTakenError
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.claims import SHARE_ADDRESS, Claim, Wish
from listwatch.controllers.services.providers.frontend import ports_of, status_of
from listwatch.controllers.services.providers.pool_provider import LoadBalancer, PoolProvider
from listwatch.controllers.services.service import LoadBalancerStatus, Service
from listwatch.controllers.services.service_controller import ServiceController
from listwatch.objects import Object


class NoSockets(PoolProvider[LoadBalancer]):
    """Assign addresses as the real providers do, without listening."""

    def __init__(self, pool: AddressPool, clock: Any) -> None:
        super().__init__(pool, backends="node-ports", endpoint_slices=None, clock=clock)

    def _endpoints_changed(self, key: str) -> None:
        raise AssertionError(key)

    async def _change_backends(self, balancer: LoadBalancer) -> None:
        assert balancer.addresses

    def _figures_of(self, balancer: LoadBalancer) -> LoadBalancerFigures:
        raise AssertionError(balancer)

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        assert cluster
        claim = Claim.of(service)

        async def take(_address: str) -> None:
            await asyncio.sleep(0)

        addresses = await self._place(claim, service, take)
        self._pool.keep(claim, addresses)
        made = self._balancers[service.uid] = LoadBalancer(service, addresses)
        made.nodes, made.ports = nodes, ports_of(service)
        await asyncio.sleep(0)
        return status_of(made.addresses, made.ports)

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        assert cluster
        balancer = self._balancers.pop(service.uid, None)
        await asyncio.sleep(0)
        if balancer is not None:
            self._pool.release_all(service.uid)


class Cluster(World):
    """A controller that can be killed and restarted at any moment."""

    def __init__(self, *networks: str) -> None:
        super().__init__()
        self.networks = networks
        self.moves: list[str] = []
        self.doubles: list[dict[str, str]] = []
        self._running: asyncio.Task[None] | None = None

    def addresses(self) -> dict[str, str]:
        found = {}
        for obj in self.services.objects.values():
            status = Service.of(obj).status
            if status.ingress:
                found[obj.name] = status.ingress[0].ip
        return found

    async def _run(self) -> None:
        async with NoSockets(AddressPool(self.networks), self.clock) as provider:
            self.controller = ServiceController(
                provider, self, self.services, self.nodes, recorder=self, clock=self.clock
            )
            await self.controller.run()

    async def start(self) -> None:
        self._running = asyncio.ensure_future(self._run())
        await self.settle()

    async def kill(self) -> None:
        assert self._running is not None
        assert not self._running.done()
        self._running.cancel()
        await asyncio.wait({self._running})

    async def patch(self, service: Service, patch: Mapping[str, Any]) -> Object | None:
        before = self.addresses()
        written = await super().patch(service, patch)
        after = self.addresses()
        claims = {obj.name: claim_of(obj) for obj in self.services.objects.values()}
        for one, other in combinations(after, 2):
            if after[one] == after[other] and not claims[one].may_share(claims[other]):
                self.doubles.append(after)  # not raised: the controller would retry
        for name, address in before.items():
            if after.get(name, address) != address:
                self.moves.append(name)
        return written


def claim_of(obj: Object) -> Claim:
    return Claim.in_status(Service.of(obj))


def shared(name: str, key: str, port: int, **spec: Any) -> dict[str, Any]:
    value = service(name, ports=[{"port": port, "protocol": "TCP"}], **spec)
    value["metadata"]["annotations"] = {SHARE_ADDRESS: key}
    return value


def lb(name: str, **spec: Any) -> dict[str, Any]:
    return service(name, **spec)


async def test_what_had_an_address_keeps_it_over_restarts_and_what_waited_waits() -> None:
    cluster = Cluster("192.0.2.1/32")
    cluster.services.add(lb("zeta"))
    await cluster.start()
    cluster.services.add(lb("alpha"))
    await cluster.settle()
    for _ in range(3):
        assert cluster.addresses() == {"zeta": "192.0.2.1"}
        await cluster.kill()
        await cluster.start()
    await cluster.kill()


@pytest.mark.parametrize("spec", [{}, {"loadBalancerIP": "192.0.2.1"}])
@pytest.mark.parametrize("end", ["delete", "vanish", "type", "move"])
async def test_a_freed_address_reaches_who_waits_at_once(end: str, spec: dict[str, Any]) -> None:
    cluster = Cluster("192.0.2.1/32", "192.0.2.9/32")
    cluster.services.add(lb("holder", loadBalancerIP="192.0.2.1"))
    await cluster.start()
    if end != "move":
        cluster.services.add(lb("other", loadBalancerIP="192.0.2.9"))
    await cluster.settle()
    if end == "move" and not spec:
        cluster.services.add(lb("other", loadBalancerIP="192.0.2.9"))
        await cluster.settle()
    cluster.services.add(lb("waiter", **spec))
    await cluster.clock.advance(100)
    assert "waiter" not in cluster.addresses()
    if end == "delete":
        cluster.delete("holder")
    elif end == "vanish":
        cluster.services.delete("default/holder")
    elif end == "type":
        cluster.change("holder", type="ClusterIP")
    elif spec:
        cluster.change("holder", loadBalancerIP="192.0.2.9")
    else:
        cluster.delete("other")
    await cluster.settle()
    assert cluster.addresses()["waiter"] in {"192.0.2.1", "192.0.2.9"}
    await cluster.kill()


async def test_of_two_that_have_one_address_the_older_keeps_it() -> None:
    cluster = Cluster("192.0.2.0/29")
    for name, year in (("b-old", "2001"), ("a-new", "2002")):
        value = lb(name)
        value["metadata"]["creationTimestamp"] = f"{year}-01-01T00:00:00Z"
        value["metadata"]["finalizers"] = ["service.kubernetes.io/load-balancer-cleanup"]
        value["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.3"}]}}
        cluster.services.add(value)
    await cluster.start()
    found = cluster.addresses()
    assert found["b-old"] == "192.0.2.3"
    assert found["a-new"] != "192.0.2.3"
    await cluster.kill()


async def test_what_another_class_has_is_given_to_nobody() -> None:
    cluster = Cluster("192.0.2.1/32", "192.0.2.2/32")
    value = lb("theirs", loadBalancerClass="example.com/other")
    value["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    cluster.services.add(value)
    await cluster.start()
    for name in ("a", "b"):
        cluster.services.add(lb(name))
    await cluster.settle()
    assert sorted(cluster.addresses().values()) == ["192.0.2.1", "192.0.2.2"]
    cluster.services.delete("default/theirs")
    await cluster.settle()
    assert sorted(cluster.addresses()) == ["a", "b"]
    await cluster.kill()


async def test_services_of_one_key_share_an_address_over_restarts() -> None:
    cluster = Cluster("192.0.2.1/32")
    for number, name in enumerate(("a", "b", "c")):
        cluster.services.add(shared(name, "k", 80 + number))
    cluster.services.add(lb("alone"))
    cluster.services.add(shared("same-port", "k", 80))
    for _ in range(3):
        await cluster.start()
        assert cluster.addresses() == dict.fromkeys("abc", "192.0.2.1")
        await cluster.kill()
    await cluster.start()
    cluster.delete("a")
    await cluster.settle()
    assert cluster.addresses() == dict.fromkeys(["b", "c", "same-port"], "192.0.2.1")
    await cluster.kill()


async def test_a_service_of_two_families_has_an_entry_of_each_and_keeps_both() -> None:
    cluster = Cluster("192.0.2.0/28", "2001:db8::/64")
    dual = {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack"}
    cluster.services.add(lb("web", **dual))
    await cluster.start()
    first = [each.ip for each in cluster.get("web").status.ingress]
    assert [":" in ip for ip in first] == [True, False]
    await cluster.kill()
    await cluster.start()
    assert [each.ip for each in cluster.get("web").status.ingress] == first
    cluster.change("web", ipFamilyPolicy="SingleStack", ipFamilies=["IPv6"])
    await cluster.settle()
    assert [each.ip for each in cluster.get("web").status.ingress] == first[:1]
    await cluster.kill()


async def test_a_family_that_no_pool_has_is_told_and_a_preferred_one_is_left_out() -> None:
    cluster = Cluster("192.0.2.0/28")
    both = ["IPv4", "IPv6"]
    cluster.services.add(lb("six", ipFamilies=["IPv6"], ipFamilyPolicy="SingleStack"))
    cluster.services.add(lb("both", ipFamilies=both, ipFamilyPolicy="RequireDualStack"))
    cluster.services.add(lb("some", ipFamilies=both, ipFamilyPolicy="PreferDualStack"))
    await cluster.start()
    assert list(cluster.addresses()) == ["some"]
    failed = [event for event in cluster.events if event.startswith("SyncLoadBalancerFailed")]
    assert sorted(failed) == ["SyncLoadBalancerFailed both", "SyncLoadBalancerFailed six"]
    await cluster.kill()


NAMES = ("a", "b", "c", "d", "e")
POOLS = (("192.0.2.1/32",), ("192.0.2.0/30",), ("192.0.2.0/29",), ("192.0.2.1/32", "192.0.2.6/32"))
PINS = ("", "", "", "192.0.2.1", "192.0.2.2", "192.0.2.6")
STEPS = {
    "create": 8,
    "delete": 4,
    "vanish": 1,
    "type": 2,
    "pin": 2,
    "kill": 3,
    "watch": 1,
    "wait": 6,
}


async def tell(cluster: Cluster, chance: random.Random, lives: int) -> None:
    (kind,) = chance.choices(list(STEPS), list(STEPS.values()))
    name = chance.choice(NAMES)
    found = cluster.services.objects.get(f"default/{name}")
    is_there = found is not None and found.meta.deletion_timestamp is None
    if kind == "create" and found is None:
        pin = chance.choice(PINS)
        spec = {"loadBalancerIP": pin} if pin else {}
        key, port = chance.choice(["", "", "k"]), 80 + chance.randrange(3)
        cluster.services.add(shared(name, key, port, uid=f"{name}-{lives}", **spec))
    elif kind == "delete" and is_there:
        cluster.delete(name)
    elif kind == "vanish" and found is not None:
        cluster.services.delete(f"default/{name}")
    elif kind == "type" and is_there:
        cluster.change(name, type=chance.choice(["LoadBalancer", "ClusterIP"]))
    elif kind == "pin" and is_there:
        cluster.change(name, loadBalancerIP=chance.choice(PINS))
    elif kind == "kill":
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        await cluster.kill()
        cluster._running = asyncio.ensure_future(cluster._run())
    elif kind == "watch":
        cluster.services.reset_watch()
    elif kind == "wait":
        await cluster.clock.advance(chance.choice([0.0, 0.5, 7.0, 400.0]))


@given(st.integers(0, 2**32))
@example(1)
async def test_no_address_is_given_twice_and_none_changes_without_need(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster(*chance.choice(POOLS))
    pinned: set[str] = set()
    await cluster.start()
    for lives in range(40):
        await tell(cluster, chance, lives)
        pinned |= {
            obj.name
            for obj in cluster.services.objects.values()
            if obj["spec"].get("loadBalancerIP")
        }
        assert cluster.doubles == []
        for name in cluster.moves:
            assert name in pinned, f"{name} moved without need"
    for obj in list(cluster.services.objects.values()):
        if obj["spec"].get("loadBalancerIP") and obj.meta.deletion_timestamp is None:
            cluster.change(obj.name, loadBalancerIP="")
    await cluster.clock.advance(2)
    await cluster.clock.advance(400)
    wanting = sum(
        Service.of(obj).spec.type == "LoadBalancer" for obj in cluster.services.objects.values()
    )
    pool = AddressPool(cluster.networks)
    room = 0
    try:
        for address in pool.candidates(Claim("nobody"), Wish()):
            room += bool(address)
    except AddressTakenError:
        assert len(set(cluster.addresses().values())) <= room
        assert len(cluster.addresses()) >= min(wanting, room)
    await cluster.kill()
