"""Several namespaces are read and delivered like one."""

import asyncio
from typing import Any

import pytest

from listwatch.cache.factory import InformerFactory
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.list_watch import ListerWatcher
from listwatch.clock import FakeClock
from listwatch.errors import NotFoundError
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


class Cluster:
    def __init__(self, source: FakeControllerSource) -> None:
        self.source = source
        self.asked: list[str | None] = []

    def list_watch(self, resource: str, namespace: str | None = None, **_: Any) -> ListerWatcher:
        assert resource == "pods"
        self.asked.append(namespace)
        return self.source.list_watch(namespace=namespace or "")


async def test_the_chosen_namespaces_are_read_and_no_other_is_asked_for() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    for namespace in ("n1", "n2", "n3"):
        source.add(pod("a", namespace, labels={"in": namespace}))
    cluster = Cluster(source)
    factory = InformerFactory(cluster, clock=clock)
    pods = factory.namespaces("pods", ["n1", "n2"])
    told: list[str] = []
    listener = pods.add_handler(
        HandlerFuncs(
            lambda obj, _: told.append(f"add {obj.key}"),
            on_delete=lambda obj: told.append(f"delete {obj.key}"),
        )
    )
    async with factory:
        await pods.wait_for_sync()
        await listener.wait_for_sync()
        assert pods.has_synced
        assert listener.has_synced
        assert sorted(told) == ["add n1/a", "add n2/a"]
        assert cluster.asked == ["n1", "n2"]
        assert sorted(obj.key for obj in pods.lister.list()) == ["n1/a", "n2/a"]
        assert [obj.key for obj in pods.lister.list("in=n2")] == ["n2/a"]
        assert [obj.key for obj in pods.lister.by_index("namespace", "n1")] == ["n1/a"]
        assert pods.lister.by_owner("nobody") == []
        assert pods.lister.get("a", "n1").key == "n1/a"
        assert pods.lister.find("a", "n3") is None
        assert len(pods.lister) == 2
        with pytest.raises(NotFoundError, match="'n3' is not watched; watched are n1, n2"):
            pods.lister.get("a", "n3")
        source.delete("n1/a")
        await clock.settle()
        assert told[-1] == "delete n1/a"
        listener.remove()
        source.delete("n2/a")
        await clock.settle()
        assert told[-1] == "delete n1/a"
        assert factory.informer("pods", "n1") is pods.informers["n1"]


async def test_a_namespace_that_may_not_be_read_is_told_to_who_waits() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    factory = InformerFactory(Cluster(source), clock=clock, startup_deadline=5)
    pods = factory.namespaces("pods", ["n1", "n2"])
    refused = NotFoundError("no such resource")
    source.fail_lists(refused, 1000)
    source.fail_watches(refused, 1000)
    async with factory:
        waiting = asyncio.ensure_future(pods.wait_for_sync())
        await clock.advance(10)
        with pytest.raises(ExceptionGroup):
            await waiting


async def test_a_cluster_scoped_resource_in_namespaces_is_watched_and_told_once() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("node", ""))

    class WholeCluster(Cluster):
        def list_watch(self, resource: str, namespace: str | None = None, **_: Any) -> Any:
            assert namespace in {"n1", "n2"}
            return super().list_watch(resource, "")

    factory = InformerFactory(WholeCluster(source), clock=clock)
    nodes = factory.namespaces("pods", ["n1", "n2"], decode=dict)
    told: list[str] = []
    listener = nodes.add_handler(
        HandlerFuncs(
            lambda obj, _: told.append(f"add {obj['metadata']['name']}"),
            lambda _, new: told.append(f"update {new['metadata']['name']}"),
            lambda _: told.append("delete"),
        )
    )
    async with factory:
        await nodes.wait_for_sync()
        await listener.wait_for_sync()
        source.modify(pod("node", ""))
        source.add(pod("other", ""))
        source.delete("other")
        await clock.settle()
        assert told == ["add node", "update node", "add other", "delete"]
        assert [obj["metadata"]["name"] for obj in nodes.lister.list()] == ["node"]
        assert nodes.lister.get("node")["metadata"]["name"] == "node"
        await listener.aclose()
        source.delete("node")
        await clock.settle()
        assert told[4:] == []
