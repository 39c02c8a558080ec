import asyncio
from typing import Any

import pytest

from controllers.service_cluster import World, has_finalizer, node, service
from listwatch.controllers.services.provider import ImplementedElsewhereError, RetryAfterError
from listwatch.errors import InternalServerError


def failing(*calls: str, error: Exception | None = None) -> Any:
    def before(call: str, _service: object) -> None:
        if call in calls:
            raise error or RuntimeError("no luck")

    return before


async def test_a_service_gets_finalizer_load_balancer_status_and_events() -> None:
    async with World() as world:
        world.services.add(service("web"))
        world.services.add(service("inside", "ClusterIP"))
        await world.settle()
        assert has_finalizer(world, "web")
        assert world.get("web").status.ingress[0].ip == "192.0.2.1"
        assert not world.get("inside").has_finalizer
        assert world.events == ["EnsuringLoadBalancer web", "EnsuredLoadBalancer web"]
        assert world.provider.nodes == {"uid-of-web": ["n1"]}
        # One patch each for finalizer and status; its own writes cause no more.
        assert (world.provider.calls, world.patches) == (["ensure web"], 2)
        assert world.controller.has_synced


async def test_a_deleted_service_goes_when_its_load_balancer_is_gone() -> None:
    async with World() as world:
        world.services.add(service("web"))
        await world.settle()
        world.events.clear()
        world.delete("web")
        await world.settle()
        assert "default/web" not in world.services.objects
        assert world.provider.balancers == {}
        assert world.events == ["DeletingLoadBalancer web", "DeletedLoadBalancer web"]
        assert world.controller.statistics().services == 0


async def test_a_service_that_is_no_load_balancer_any_more_loses_it_and_stays() -> None:
    async with World() as world:
        world.services.add(service("web"))
        await world.settle()
        world.change("web", type="ClusterIP")
        await world.settle()
        assert world.provider.balancers == {}
        assert not world.get("web").has_finalizer
        assert world.get("web").status.ingress == ()


async def test_a_change_that_happened_while_nobody_watched_is_cleaned_up() -> None:
    world = World()
    value = service("web", "NodePort")
    value["metadata"]["finalizers"] = ["service.kubernetes.io/load-balancer-cleanup"]
    world.services.add(value)
    async with world:
        assert world.provider.calls == ["delete web"]
        assert not world.get("web").has_finalizer


@pytest.mark.parametrize(
    ("spec", "calls"),
    [
        ({"ports": [{"port": 81, "protocol": "TCP"}]}, 2),
        ({"sessionAffinity": "ClientIP"}, 2),
        ({"loadBalancerSourceRanges": ["192.0.2.0/24"]}, 2),
        ({"externalTrafficPolicy": "Local"}, 2),
        ({"healthCheckNodePort": 30000}, 2),
        ({"loadBalancerIP": "192.0.2.9"}, 2),
        ({"externalIPs": ["192.0.2.9"]}, 2),
        ({"ipFamilies": ["IPv4", "IPv6"]}, 2),
        ({"selector": {"app": "x"}}, 1),
        ({"internalTrafficPolicy": "Local"}, 1),
    ],
)
async def test_only_what_matters_to_a_load_balancer_is_ensured_anew(
    spec: dict[str, Any], calls: int
) -> None:
    async with World() as world:
        world.services.add(service("web"))
        await world.settle()
        world.change("web", **spec)
        await world.settle()
        assert world.provider.calls == ["ensure web"] * calls


async def test_other_classes_are_left_alone_to_their_end() -> None:
    async with World() as world:
        world.services.add(service("web", loadBalancerClass="example.com/other"))
        await world.settle()
        value = world.services.objects["default/web"].to_dict()
        value["metadata"]["finalizers"] = ["service.kubernetes.io/load-balancer-cleanup"]
        world.services.modify(value)
        world.delete("web")
        await world.settle()
        assert world.provider.calls == []
        assert "default/web" in world.services.objects


async def test_a_class_of_ones_own_is_served() -> None:
    async with World(load_balancer_class="example.com/own") as world:
        world.services.add(service("web", loadBalancerClass="example.com/own"))
        world.services.add(service("plain"))
        await world.settle()
        assert world.provider.calls == ["ensure web"]


async def test_another_service_of_the_same_name_gets_a_load_balancer_of_its_own() -> None:
    async with World() as world:
        world.services.add(service("web", uid="one"))
        await world.settle()
        # as if somebody had removed the finalizer
        world.services.delete("default/web")
        world.services.add(service("web", uid="two"))
        await world.settle()
        assert list(world.provider.balancers) == ["two"]
        assert world.provider.calls == ["ensure web", "delete web", "ensure web"]


async def test_a_service_deleted_without_its_finalizer_leaves_no_load_balancer() -> None:
    async with World() as world:
        world.services.add(service("web"))
        await world.settle()
        world.services.delete("default/web")
        await world.settle()
        assert world.provider.balancers == {}


async def test_failures_come_back_after_5_s_doubled_up_to_300_s() -> None:
    async with World() as world:
        world.provider.before = failing("ensure")
        world.services.add(service("web"))
        await world.settle()
        times = []
        seen = 1
        for _ in range(900):
            await world.clock.advance(1)
            if len(world.provider.calls) > seen:
                seen = len(world.provider.calls)
                times.append(round(world.clock.now() - 1001))
        assert times == [5, 15, 35, 75, 155, 315, 615]
        assert world.events.count("SyncLoadBalancerFailed web") == 8
        assert world.controller.statistics().retrying == 1
        world.provider.before = failing()
        await world.clock.advance(300)
        assert world.get("web").status.ingress


async def test_a_change_is_tried_at_once_though_a_retry_waits() -> None:
    async with World() as world:
        world.provider.before = failing("ensure")
        world.services.add(service("web"))
        await world.clock.advance(100)
        world.provider.before = failing()
        world.change("web", sessionAffinity="ClientIP")
        await world.settle()
        assert world.get("web").status.ingress
        assert world.controller.statistics().retrying == 0


async def test_a_provider_may_say_when_to_come_back_which_is_no_failure() -> None:
    async with World() as world:
        world.provider.before = failing("ensure", error=RetryAfterError("not yet", 30))
        world.services.add(service("web"))
        await world.settle()
        await world.clock.advance(65)
        assert world.provider.calls == ["ensure web"] * 3
        assert world.controller.statistics().failures == 0
        assert "SyncLoadBalancerFailed web" not in world.events


async def test_a_service_that_is_implemented_elsewhere_is_not_tried_again() -> None:
    async with World() as world:
        world.provider.before = failing("ensure", error=ImplementedElsewhereError("theirs"))
        world.services.add(service("web"))
        await world.clock.advance(250)
        assert world.provider.calls == ["ensure web"]
        assert world.events == ["EnsuringLoadBalancer web"]


async def test_a_provider_that_hangs_is_cancelled_and_called_again() -> None:
    async with World(provider_timeout=60) as world:
        world.provider.before = lambda _call, _service: asyncio.Event().wait()
        world.services.add(service("web"))
        await world.clock.advance(59)
        assert (world.provider.running, world.events) == (1, ["EnsuringLoadBalancer web"])
        await world.clock.advance(2)
        assert world.provider.running == 0
        assert world.events[-1] == "SyncLoadBalancerFailed web"
        world.provider.before = failing()
        await world.clock.advance(5)
        assert world.get("web").status.ingress


async def test_half_a_load_balancer_is_removed_with_its_service() -> None:
    async with World() as world:
        world.provider.before = failing("ensure")
        world.services.add(service("web"))
        await world.settle()
        assert world.provider.balancers
        world.delete("web")
        await world.settle()
        assert world.provider.balancers == {}
        assert world.services.objects == {}
        assert world.controller.statistics().retrying == 0


async def test_a_deletion_during_the_creation_waits_for_it_and_leaves_nothing() -> None:
    async with World() as world:
        made = asyncio.Event()
        world.provider.before = lambda call, _service: made.wait() if call == "ensure" else None
        world.services.add(service("web"))
        await world.settle()
        world.delete("web")
        await world.settle()
        assert world.provider.calls == ["ensure web"]
        made.set()
        await world.settle()
        assert world.provider.calls == ["ensure web", "delete web"]
        assert (world.provider.balancers, world.services.objects) == ({}, {})


async def test_a_deletion_that_fails_keeps_the_service_until_it_succeeds() -> None:
    async with World() as world:
        world.services.add(service("web"))
        await world.settle()
        world.provider.before = failing("delete")
        world.delete("web")
        await world.settle()
        assert has_finalizer(world, "web")
        assert world.events[-1] == "DeleteLoadBalancerFailed web"
        world.provider.before = failing()
        await world.clock.advance(5)
        assert world.services.objects == {}


async def test_a_failed_cleanup_of_what_the_server_has_forgotten_is_tried_again() -> None:
    async with World() as world:
        world.services.add(service("web"))
        await world.settle()
        world.provider.before = failing("delete")
        world.services.delete("default/web")
        await world.clock.advance(400)  # includes a resync
        assert world.provider.balancers
        assert world.provider.calls[1:] == ["delete web"] * len(world.provider.calls[1:])
        world.provider.before = failing()
        await world.clock.advance(300)
        assert world.provider.balancers == {}


async def test_a_server_that_refuses_writes_is_tried_again_and_nothing_is_made_before() -> None:
    async with World() as world:
        world.broken = InternalServerError("no")
        world.services.add(service("web"))
        await world.settle()
        assert world.provider.calls == []
        world.broken = None
        await world.clock.advance(5)
        assert world.get("web").status.ingress
        world.broken = InternalServerError("no")
        world.delete("web")
        await world.settle()
        world.broken = None
        await world.clock.advance(5)
        assert world.services.objects == {}


async def test_workers_are_concurrent_and_never_two_on_one_service() -> None:
    async with World(workers=4) as world:
        working: list[str] = []
        ready = asyncio.Event()

        async def work(name: str) -> None:
            assert name not in working
            working.append(name)
            await ready.wait()
            working.remove(name)

        world.provider.before = lambda _call, service: work(service.object.name)
        for number in range(10):
            world.services.add(service(f"s{number}"))
        await world.settle()
        for number in range(10):
            world.change(f"s{number}", sessionAffinity="ClientIP")
        await world.settle()
        assert world.provider.most_running == 4
        ready.set()
        await world.settle()
        assert len(world.provider.balancers) == 10


async def test_a_load_balancer_that_vanished_is_found_within_the_service_period() -> None:
    async with World(service_sync_period=300) as world:
        world.services.add(service("web"))
        await world.settle()
        world.provider.balancers.clear()
        await world.clock.advance(300)
        assert world.provider.balancers
        assert world.provider.calls == ["ensure web"] * 2


async def test_a_status_that_somebody_emptied_is_written_again_and_another_is_left() -> None:
    async with World() as world:
        world.services.add(service("web"))
        await world.settle()
        value = world.services.objects["default/web"].to_dict()
        value["status"] = {}
        world.services.modify(value)
        await world.settle()
        assert world.get("web").status.ingress[0].ip == "192.0.2.1"
        value["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.77"}]}}
        world.services.modify(value)
        patches = world.patches
        await world.clock.advance(700)
        assert world.get("web").status.ingress[0].ip == "192.0.2.77"
        assert world.patches <= patches + 1  # at most the finalizer, which this write removed


async def test_two_controllers_by_mistake_come_to_rest() -> None:
    async with World() as world:
        other = World()
        other.services, other.nodes = world.services, world.nodes
        other.clock = world.clock
        other.controller = type(other.controller)(
            other.provider, other, world.services, world.nodes, clock=world.clock
        )
        task = asyncio.create_task(other.controller.run())
        world.services.add(service("web"))
        await world.clock.advance(10)
        writes = world.patches + other.patches
        await world.clock.advance(2000)
        assert world.patches + other.patches == writes
        world.delete("web")
        await world.clock.advance(10)
        assert (world.provider.balancers, other.provider.balancers) == ({}, {})
        task.cancel()
        await asyncio.wait({task})


async def test_new_nodes_reach_every_load_balancer() -> None:
    async with World() as world:
        world.services.add(service("a"))
        world.services.add(service("b"))
        await world.settle()
        world.nodes.add(node("n2"))
        await world.settle()
        assert set(map(tuple, world.provider.nodes.values())) == {("n1", "n2")}
        assert sorted(world.provider.calls[2:]) == ["update a", "update b"]
        assert world.events[-2:] == ["UpdatedLoadBalancer a", "UpdatedLoadBalancer b"]


async def test_a_heartbeat_of_a_node_is_no_change() -> None:
    async with World() as world:
        world.services.add(service("a"))
        await world.settle()
        ready = [{"type": "Ready", "status": "False"}]
        world.nodes.modify(node("n1", conditions=ready))
        await world.clock.advance(250)
        assert world.provider.calls == ["ensure a"]


async def test_nodes_that_a_load_balancer_does_not_take_are_tried_again_by_a_worker() -> None:
    async with World() as world:
        world.services.add(service("a"))
        await world.settle()
        world.provider.before = failing("update")
        world.nodes.add(node("n2"))
        await world.settle()
        assert world.events[-1] == "UpdateLoadBalancerFailed a"
        await world.clock.advance(6)
        assert world.provider.nodes == {"uid-of-a": ["n1", "n2"]}
        assert world.provider.calls == ["ensure a", "update a", "ensure a"]
        statistics = world.controller.statistics()
        assert (statistics.node_errors, statistics.retrying) == (1, 0)


async def test_no_node_at_all_is_a_warning() -> None:
    world = World()
    world.nodes.delete("n1")
    async with world:
        world.services.add(service("a"))
        await world.settle()
        assert "UnAvailableLoadBalancer a" in world.events


async def test_no_node_is_no_matter_where_traffic_goes_to_endpoints() -> None:
    world = World()
    world.nodes.delete("n1")
    world.provider.needs_nodes = False
    async with world:
        world.services.add(service("a"))
        await world.settle()
        assert world.events == ["EnsuringLoadBalancer a", "EnsuredLoadBalancer a"]


async def test_both_lists_may_fail_for_long_and_all_comes_right() -> None:
    world = World()
    world.services.add(service("a"))
    for source in (world.services, world.nodes):
        source.fail_watches(InternalServerError("down"), times=3)
        source.fail_lists(InternalServerError("down"), times=3)
    async with world:
        assert world.provider.calls == []
        await world.clock.advance(120)
        assert world.get("a").status.ingress


async def test_an_object_that_is_no_service_costs_only_itself() -> None:
    async with World() as world:
        value = service("bad")
        value["spec"]["ports"] = "many"
        world.services.add(value)
        world.services.add(service("good"))
        await world.settle()
        assert world.provider.calls == ["ensure good"]
        assert world.controller.statistics().failures == 1
