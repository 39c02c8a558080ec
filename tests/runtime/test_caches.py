import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from listwatch.cache.factory import Selection
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.list_watch import BOOKMARK, WatchEvent
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError
from listwatch.runtime.caches import STALE_SECONDS, Cache, Caches
from listwatch.runtime.metrics import Measured, collect
from listwatch.testing.fake_controller_source import SILENCE, FakeControllerSource
from metric_samples import samples_of


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock)
        self.caches = Caches(self.clock)
        self.cache = self.caches.of(Selection("pods"))

    def list_watch(self, resource: str, namespace: str | None = None, **options: Any) -> Any:
        del resource, namespace, options
        return self.source

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Cache]:
        self.caches.open(self)
        task = asyncio.ensure_future(self.caches.run())
        await self.clock.advance(1)
        try:
            yield self.cache
        finally:
            task.cancel()
            await asyncio.wait({task})


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}}


async def test_a_cache_tells_whether_it_can_be_relied_on_and_why_not() -> None:
    world = World()
    health = world.cache.health()
    assert (health.name, health.ready, health.problem) == ("pods", False, "not started")
    world.source.watch_list = "invalid"
    world.source.fail_lists(DisconnectedError("no route to host"), 3)
    async with world.running() as cache:
        health = cache.health()
        assert not health.ready
        assert health.problem.startswith("not synced: pods: list: no route to host")
        await world.clock.advance(60)
        assert cache.health().ready

        world.source.fail_watches(DisconnectedError("reset by peer"), 1000)
        world.source.fail_lists(DisconnectedError("reset by peer"), 1000)
        world.source.end_watches()
        await world.clock.advance(30)
        health = cache.health()
        assert not health.ready
        assert health.problem.startswith("failing: pods: ")
        assert "reset by peer" in health.problem
        assert 25 <= health.since <= 32


async def test_a_cache_that_hears_nothing_is_stale() -> None:
    world = World()
    async with world.running() as cache:
        assert cache.health().ready
        world.source.silence_watches()
        world.source.fail_watches(SILENCE, 1000)
        world.source.fail_lists(SILENCE, 1000)
        await world.clock.advance(STALE_SECONDS + 5)
        health = cache.health()
        assert not health.ready
        assert "silent" in health.problem
        assert health.since > 100


async def test_all_handlers_of_a_cache_are_told_and_waited_for() -> None:
    world = World()
    world.source.add(pod("a"))
    told: list[str] = []

    def handler(name: str) -> HandlerFuncs:
        return HandlerFuncs(on_add=lambda obj, _: told.append(f"{name} {obj.key}"))

    for name in ("x", "y"):
        world.cache.add_handler(handler(name), name)
    async with world.running() as cache:
        await cache.wait_for_sync(1)
        assert sorted(told) == ["x ns/a", "y ns/a"]
        cache.add_handler(handler("late"), "late")
        await cache.wait_for_sync(1)
        assert told[2:] == ["late ns/a"]


def test_one_selection_has_one_cache_and_one_kind_of_fields() -> None:
    class Fields(msgspec.Struct):
        pass

    class Others(msgspec.Struct):
        pass

    caches = Caches(FakeClock())
    cache = caches.of(Selection("pods"))
    assert caches.of(Selection("pods")) is cache
    assert caches.of(Selection("pods", "ns")) is not cache
    cache.want_fields(None)
    cache.want_fields(Fields)
    cache.want_fields(Fields)
    with pytest.raises(ValueError, match="two reconcilers use different fields= for pods"):
        cache.want_fields(Others)


def test_a_cache_is_there_once_the_manager_has_started() -> None:
    caches = Caches(FakeClock())
    with pytest.raises(RuntimeError, match="once the manager has started"):
        _ = caches.of(Selection("pods")).indexer
    with pytest.raises(RuntimeError, match="once the manager has started"):
        _ = caches.factory


@pytest.mark.parametrize(
    ("version", "value"),
    [("7", 7.0), ("9" * 5000, 999_999_999_999_999.0), ("x", None)],
    ids=["short", "long", "no number"],
)
async def test_the_metric_of_a_version_has_its_last_15_digits(
    version: str, value: float | None
) -> None:
    world = World()
    world.source.add(pod("a"))
    async with world.running():
        world.source.send(WatchEvent(BOOKMARK, resource_version=version))
        await world.clock.advance(1)
        sources = Measured(list, lambda: [world.cache], lambda: None, lambda: None)
        found = samples_of(collect(sources)).get(("informer_store_resource_version", "pods"))
    assert found == value
