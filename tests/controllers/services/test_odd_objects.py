"""Malformed services and nodes affect only themselves, and are reported."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.service_cluster import World, node, service
from listwatch.runtime.reconciler import Reconciler

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 70_000) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
SPEC = st.dictionaries(
    st.sampled_from(
        [
            "type",
            "ports",
            "sessionAffinity",
            "sessionAffinityConfig",
            "loadBalancerIP",
            "loadBalancerSourceRanges",
            "loadBalancerClass",
            "ipFamilies",
            "healthCheckNodePort",
            "externalIPs",
        ]
    ),
    JSON | st.just("LoadBalancer"),
    max_size=4,
)


async def test_a_service_that_can_not_be_read_is_told_in_an_event() -> None:
    async with World() as world:
        world.services.add(service("bad", ports="many"))
        await world.settle()
        assert world.events == ["SyncLoadBalancerFailed bad"]


async def test_null_is_no_value() -> None:
    async with World() as world:
        nulls: dict[str, Any] = dict.fromkeys(
            ("loadBalancerSourceRanges", "externalIPs", "sessionAffinityConfig", "ipFamilies")
        )
        value = service("a", ports=[{"port": 80, "nodePort": None, "name": None}], **nulls)
        value["status"] = {"loadBalancer": {"ingress": None}}
        world.services.add(value)
        world.nodes.add({**node("n2"), "spec": None})
        await world.settle()
        assert world.provider.calls == ["ensure a"]
        assert world.provider.nodes["uid-of-a"] == ["n1", "n2"]


@given(spec=JSON | SPEC, status=JSON, annotations=JSON, node_spec=JSON, node_status=JSON)
def test_whatever_an_object_is_made_of_its_neighbour_gets_a_load_balancer(
    spec: object, status: object, annotations: object, node_spec: object, node_status: object
) -> None:
    async def main() -> None:
        async with World() as world:
            value = {**service("odd"), "spec": spec, "status": status}
            value["metadata"]["annotations"] = annotations
            world.services.add(value)
            world.nodes.add({**node("odd"), "spec": node_spec, "status": node_status})
            world.services.add(service("good"))
            await world.settle()
            assert "ensure good" in world.provider.calls
            world.services.modify(service("odd"))
            await world.settle()
            assert "ensure odd" in world.provider.calls
            for name in ("odd", "good"):
                world.delete(name)
            await world.clock.advance(400)
            assert not world.services.objects
            assert not world.provider.balancers

    asyncio.run(main())


async def test_what_breaks_the_controller_comes_out_as_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()

    async def breaks(_: object, __: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Reconciler, "run", breaks)
    with pytest.raises(ZeroDivisionError):
        await world.controller.run()
