"""A factory shares informers, starts them on request, and names those that are missing."""

import asyncio

import msgspec
import pytest

from listwatch.cache.factory import InformerFactory
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.processor import StoppedError
from listwatch.clock import FakeClock
from listwatch.errors import NotFoundError
from listwatch.shard_range import ShardRange
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


class Cluster:
    """Resources in memory, by name."""

    def __init__(self, clock: FakeClock, *resources: str) -> None:
        self.clock = clock
        self.sources = {name: FakeControllerSource(clock=clock) for name in resources}
        self.asked: list[str] = []

    def list_watch(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        shard: ShardRange | None = None,
    ) -> ListerWatcher:
        del shard
        self.asked.append(f"{resource} {namespace} {label_selector} {metadata_only}")
        return self.sources[resource].list_watch(
            label_selector=label_selector,
            field_selector=field_selector,
            namespace=namespace or "",
        )


class Scene:
    def __init__(self, *resources: str) -> None:
        self.clock = FakeClock()
        self.cluster = Cluster(self.clock, *resources)
        self.factory = InformerFactory(self.cluster, clock=self.clock, on_error=lambda _: None)


async def test_there_is_one_informer_for_each_selection() -> None:
    class Fields(msgspec.Struct):
        spec: dict[str, int] = {}

    factory = Scene("pods", "nodes").factory
    first = factory.informer("pods")
    assert factory.informer("pods") is first
    others = [
        factory.informer("nodes"),
        factory.informer("pods", "ns"),
        factory.informer("pods", label_selector="a=b"),
        factory.informer("pods", field_selector="metadata.name=a"),
        factory.informer("pods", metadata_only=True),
        factory.informer("pods", fields=Fields),
    ]
    assert len({id(informer) for informer in [first, *others]}) == 7
    assert len(factory) == 7
    assert str(others[2].name) == "pods a=b"


async def test_informers_are_started_with_it_or_when_they_are_asked_for() -> None:
    scene = Scene("pods", "nodes")
    scene.cluster.sources["pods"].add(pod("a", "ns"))
    scene.cluster.sources["nodes"].add(pod("n"))
    pods = scene.factory.lister("pods", "ns")
    assert await scene.factory.wait_for_cache_sync(0) == {"pods": "not started"}
    async with scene.factory:
        assert await scene.factory.wait_for_cache_sync() == {}
        assert pods.get("a").key == "ns/a"
        nodes = scene.factory.lister("nodes")
        assert await scene.factory.wait_for_cache_sync() == {}
        assert nodes.get("n").name == "n"
    assert all(informer.is_stopped for informer in scene.factory)
    with pytest.raises(StoppedError):
        scene.factory.informer("nodes", "late")
    with pytest.raises(RuntimeError, match="runs once"):
        await scene.factory.run()
    with pytest.raises(RuntimeError, match="runs once"):
        await scene.factory.__aenter__()


async def test_a_resource_may_appear_later_and_others_do_not_wait_for_it() -> None:
    """A resource that disappears is polled rarely (kubernetes#79610)."""
    scene = Scene("pods", "widgets")
    widgets = scene.cluster.sources["widgets"]
    missing = NotFoundError("the server could not find the requested resource")
    widgets.fail_lists(missing, 10_000)
    widgets.fail_watches(missing, 10_000)
    added: list[str] = []
    scene.factory.informer("pods")
    scene.factory.informer("widgets").add_handler(
        HandlerFuncs(lambda obj, _: added.append(obj.name))
    )
    async with scene.factory:
        waiting = asyncio.ensure_future(scene.factory.wait_for_cache_sync(10))
        await scene.clock.advance(10)
        (name, why), *rest = (await waiting).items()
        assert (name, rest) == ("widgets", [])
        assert "could not find the requested resource" in why
        before = len(widgets.requests)
        await scene.clock.advance(600)
        assert len(widgets.requests) - before <= 40
        widgets.heal()
        widgets.add(pod("w"))
        await scene.clock.advance(30)
        assert added == ["w"]
        assert await scene.factory.wait_for_cache_sync() == {}


async def test_a_resource_that_disappears_is_asked_for_rarely_and_comes_back() -> None:
    scene = Scene("widgets")
    widgets = scene.cluster.sources["widgets"]
    widgets.add(pod("w"))
    informer = scene.factory.informer("widgets")
    async with scene.factory:
        assert await scene.factory.wait_for_cache_sync() == {}
        await scene.clock.advance(60)
        missing = NotFoundError("the server could not find the requested resource")
        widgets.fail_lists(missing, 10_000)
        widgets.fail_watches(missing, 10_000)
        widgets.reset_watch()
        before = len(widgets.requests)
        await scene.clock.advance(60)
        assert 2 <= len(widgets.requests) - before <= 12
        assert [obj.name for obj in informer.lister.list()] == ["w"]
        widgets.heal()
        widgets.add(pod("new"))
        widgets.delete("w")
        await scene.clock.advance(30)
        assert [obj.name for obj in informer.lister.list()] == ["new"]


async def test_indices_can_be_asked_for_by_each() -> None:
    scene = Scene("pods")
    scene.cluster.sources["pods"].add(pod("a"))
    async with scene.factory:
        informer = scene.factory.informer("pods", indexers={"name": lambda obj: [obj.name]})
        await informer.wait_for_sync()
        again = scene.factory.informer(
            "pods", indexers={"name": lambda _: [], "first": lambda obj: [obj.name[0]]}
        )
        assert again is informer
        assert informer.indexer.index_keys("name", "a") == ["a"]
        assert informer.indexer.index_keys("first", "a") == ["a"]


async def test_a_dropped_informer_ends_alone_and_the_next_request_starts_another() -> None:
    scene = Scene("pods", "nodes")
    scene.cluster.sources["pods"].add(pod("a"))
    told: list[str] = []
    async with scene.factory:
        pods, nodes = scene.factory.informer("pods"), scene.factory.informer("nodes")
        listener = pods.add_handler(HandlerFuncs(lambda obj, _: told.append(obj.name)))
        await listener.wait_for_sync()
        await scene.factory.drop(pods)
        assert (pods.is_stopped, nodes.is_stopped, len(scene.factory)) == (True, False, 1)
        scene.cluster.sources["pods"].add(pod("b"))
        again = scene.factory.informer("pods")
        await again.wait_for_sync()
        assert again is not pods
        assert sorted(obj.name for obj in again.lister.list()) == ["a", "b"]
        assert [obj.name for obj in pods.lister.list()] == ["a"]
        assert told == ["a"]
        with pytest.raises(ValueError, match="pods is not one of this factory"):
            await scene.factory.drop(pods)


async def test_a_view_drops_its_informer_also_before_the_start() -> None:
    scene = Scene("pods")
    pods = scene.factory.informer("pods")
    listener = pods.add_handler(HandlerFuncs())
    await scene.factory.drop(pods.view(dict))
    assert len(scene.factory) == 0
    with pytest.raises(StoppedError):
        await listener.wait_for_sync()
    async with scene.factory:
        await scene.clock.settle()
    assert scene.cluster.sources["pods"].requests == []
