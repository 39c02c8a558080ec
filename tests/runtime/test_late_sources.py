"""Sources added to a running reconciler."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from listwatch.cache.shared_cache import NotSyncedError
from listwatch.errors import DisconnectedError
from runtime.reconciler_world import World, owned, widget

if TYPE_CHECKING:
    from listwatch.runtime.reconciler import Reconciler


async def test_a_watch_that_comes_late_starts_at_once() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("secret").add(widget("s"))
    async with world.running() as reconciler:
        reconciler.watches("secret", lambda obj: [f"of-{obj.name}"])
        await world.clock.advance(1)
        assert world.calls == ["of-s"]
        world.source("secret").add(widget("t"))
        await world.clock.advance(1)
        assert world.calls[1:] == ["of-t"]
        assert [obj.name for obj in reconciler.lister("secret").list()] == ["s", "t"]


async def test_a_late_source_of_a_cache_that_is_there_hears_of_what_is_there() -> None:
    world = World()
    world.reconciler.for_("widget").reads("secret")
    world.source("secret").add(widget("s"))
    async with world.running() as reconciler:
        reconciler.watches("secret", lambda obj: [obj.name])
        await world.clock.advance(1)
        assert world.calls == ["s"]
        assert len(list(world.caches)) == 2


async def test_what_is_owned_and_named_late_wakes_its_owners() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("gadget").add(owned("g", "a"))
    async with world.running() as reconciler:
        reconciler.owns("gadget")
        await world.clock.advance(1)
        assert world.calls == ["ns/a"]
        world.source("gadget").add(owned("h", "b"))
        await world.clock.advance(1)
        assert world.calls[1:] == ["ns/b"]


async def test_no_reconcile_begins_before_a_late_cache_has_synced() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("secret").fail_lists(DisconnectedError("away"), 3)
    world.source("secret").watch_list = "invalid"
    async with world.running() as reconciler:
        reconciler.reads("secret")
        world.source("widget").add(widget("a"))
        await world.clock.advance(0.5)
        assert world.calls == []
        await world.clock.advance(60)
        assert world.calls == ["ns/a"]
        assert reconciler.lister("secret").list() == []


async def test_a_stop_does_not_wait_for_a_late_cache() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("secret").fail_lists(DisconnectedError("away"), 1000)
    world.source("secret").watch_list = "invalid"
    world.reconciler(world.reconcile)
    await world.reconciler.prepare(world)
    world.caches.open(world)
    caches = asyncio.ensure_future(world.caches.run())
    running = asyncio.ensure_future(world.reconciler.run())
    await world.clock.advance(1)
    world.reconciler.reads("secret")
    world.source("widget").add(widget("a"))
    await world.clock.advance(1)
    world.reconciler.stop()
    await world.clock.advance(1)
    assert running.done()
    await running
    assert world.calls == []
    caches.cancel()
    await asyncio.wait({caches})


async def test_a_late_cache_that_does_not_sync_ends_the_reconciler_with_the_reason() -> None:
    world = World(sync_timeout=30)
    world.reconciler.for_("widget")
    world.source("secret").fail_lists(DisconnectedError("away"), 1000)
    world.source("secret").watch_list = "invalid"
    world.reconciler(world.reconcile)
    await world.reconciler.prepare(world)
    world.caches.open(world)
    caches = asyncio.ensure_future(world.caches.run())
    running = asyncio.ensure_future(world.reconciler.run())
    await world.clock.advance(1)
    world.reconciler.reads("secret")
    await world.clock.advance(31)
    with pytest.raises(ExceptionGroup) as caught:
        await running
    assert caught.group_contains(NotSyncedError, match="cache of secret has not synced")
    caches.cancel()
    await asyncio.wait({caches})


async def test_timers_and_streams_that_come_late_begin_at_once() -> None:
    world = World()
    world.reconciler.for_("widget")

    async def stream() -> AsyncIterator[str]:
        yield "from/stream"
        await asyncio.Event().wait()

    async with world.running() as reconciler:
        reconciler.every(10, lambda: ["from/timer"]).events(stream)
        await world.clock.advance(1)
        assert world.calls == ["from/stream"]
        await world.clock.advance(10)
        assert world.calls[1:] == ["from/timer"]


async def test_a_reconciler_can_be_for_a_resource_that_is_named_late() -> None:
    world = World()
    world.source("widget").add(widget("a"))
    async with world.running() as reconciler:
        reconciler.for_("widget")
        await world.clock.advance(1)
        assert world.calls == ["ns/a"]


@pytest.mark.parametrize("moment", ["prepared", "waiting"])
async def test_sources_may_come_between_the_preparation_and_the_work(moment: str) -> None:
    world = World()
    world.reconciler.for_("widget").reads("config")
    world.reconciler(world.reconcile)
    world.source("widget").add(widget("a"))
    world.source("gadget").add(owned("g", "b"))
    world.source("config").watch_list = "invalid"
    world.source("config").fail_lists(DisconnectedError("away"), 2)
    await world.reconciler.prepare(world)
    if moment == "prepared":
        world.reconciler.owns("gadget")
    world.caches.open(world)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(world.caches.run()),
            group.create_task(world.reconciler.run()),
        ]
        await world.clock.advance(0.1)
        if moment == "waiting":
            world.reconciler.owns("gadget")
        await world.clock.advance(60)
        assert sorted(world.calls) == ["ns/a", "ns/b"]
        for task in tasks:
            task.cancel()


async def test_a_source_that_can_not_begin_is_an_error() -> None:
    class Fields(msgspec.Struct):
        spec: int = 0

    world = World()
    world.reconciler.for_("widget")
    async with world.running() as reconciler:
        with pytest.raises(ValueError, match="widget has started without fields="):
            reconciler.owns("widget", fields=Fields)
        errors: list[str] = []

        def add() -> None:
            try:
                reconciler.reads("secret")
            except RuntimeError as error:
                errors.append(str(error))
            try:
                reconciler.every(1)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=add)
        thread.start()
        thread.join()
        words = "reconciler test has started: add sources in its manager's event loop"
        assert errors == [words, words]
    adders: list[Callable[[], Reconciler]] = [
        lambda: reconciler.reads("x"),
        lambda: reconciler.owns("x"),
        lambda: reconciler.watches("x", lambda _: []),
        lambda: reconciler.every(1),
        lambda: reconciler.events(stream_of_nothing),
    ]
    for add_late in adders:
        with pytest.raises(RuntimeError, match="has stopped: sources can no longer be added"):
            add_late()


async def stream_of_nothing() -> AsyncIterator[str]:
    yield "never"
