"""A shared informer: iteration, waits, start and end, transforms, decoders and statistics."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from cache.shared_scene import Recorder, Scene
from listwatch.cache.handlers import Added, Change, Deleted, Updated
from listwatch.cache.processor import StoppedError
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.shared_cache import NotSyncedError
from listwatch.errors import ForbiddenError, InternalServerError, ListWatchError
from listwatch.objects import Object, ObjectDecodeError
from listwatch.testing.fake_controller_source import pod


async def test_changes_can_be_iterated_over() -> None:
    scene = Scene(pod("a"))
    seen: list[Change] = []

    async def read() -> None:
        async with aclosing(scene.informer.changes()) as changes:
            async for change in changes:
                seen.append(change)
                if isinstance(change, Deleted):
                    return

    async with scene.informer, asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        await scene.clock.settle()
        scene.source.modify(pod("a"))
        scene.source.delete("a")
    assert [type(change) for change in seen] == [Added, Updated, Deleted]
    assert scene.informer.statistics().listeners == ()


async def test_the_iteration_ends_with_the_informer() -> None:
    scene = Scene(pod("a"))
    seen: list[Change] = []

    async def read() -> None:
        seen.extend([change async for change in scene.informer.changes()])

    async with asyncio.TaskGroup() as tasks, scene.informer:
        tasks.create_task(read())
        await scene.clock.settle()
    assert len(seen) == 1


async def test_ones_own_writes_can_be_waited_for() -> None:
    scene = Scene(pod("a"))
    async with scene.informer:
        await scene.informer.wait_for_sync()
        await scene.informer.wait_for_resource_version("1")
        written = scene.source.modify(pod("a"))
        assert scene.informer.lister.get("a").resource_version == "1"
        await scene.informer.wait_for_resource_version(written.resource_version)
        assert scene.informer.lister.get("a").resource_version == "2"
        scene.source.modify_drop_watch(pod("a"))
        waiting = asyncio.ensure_future(scene.informer.wait_for_resource_version("3", seconds=5))
        await scene.clock.advance(5)
        with pytest.raises(TimeoutError):
            await waiting
        waiting = asyncio.ensure_future(scene.informer.wait_for_resource_version("3"))
        await scene.clock.settle()
        scene.source.send_bookmark()
        await waiting
        with pytest.raises(ValueError, match="not a comparable resource version"):
            await scene.informer.wait_for_resource_version("abc")
        waiting = asyncio.ensure_future(scene.informer.wait_for_resource_version("99"))
        await scene.clock.settle()
    with pytest.raises(StoppedError):
        await waiting
    with pytest.raises(StoppedError):
        await scene.informer.wait_for_resource_version("99")


async def test_a_state_of_the_cache_can_be_waited_for() -> None:
    scene = Scene(pod("a"))
    informer = scene.informer
    asked: list[int] = []

    def has_two(lister: Any) -> bool:
        asked.append(len(lister))
        return len(lister) == 2

    async with informer:
        waiting = asyncio.create_task(informer.wait_for(has_two))
        late = asyncio.create_task(informer.wait_for(lambda lister: len(lister) == 9, seconds=60))
        ended = asyncio.create_task(informer.wait_for(lambda _: False))
        await scene.clock.settle()
        assert not waiting.done()
        scene.source.add(pod("b"))
        await waiting
        assert asked[0] == 1
        assert asked[-1] == 2
        with pytest.raises(ZeroDivisionError):
            await informer.wait_for(lambda _: 1 / 0)
        await scene.clock.advance(61)
        with pytest.raises(TimeoutError):
            await late
        assert [one.name for one in informer.statistics().listeners] == ["wait_for"]
    with pytest.raises(StoppedError):
        await ended


async def test_it_runs_once_and_its_cache_stays() -> None:
    scene = Scene(pod("a"), name="pods")
    async with scene.informer:
        await scene.informer.wait_for_sync()
        states = [(scene.informer.state, scene.informer.is_stopped)]
    states.append((scene.informer.state, scene.informer.is_stopped))
    assert states == [(Phase.WATCHING, False), (Phase.STOPPED, True)]
    assert scene.informer.lister.get("a").name == "a"
    assert scene.clock.next_timer is None
    with pytest.raises(RuntimeError, match="runs once"):
        await scene.informer.run()
    with pytest.raises(StoppedError, match="pods has stopped"):
        scene.informer.add_handler(Recorder())


async def test_an_event_ends_it_in_order() -> None:
    scene = Scene(pod("a"))
    stop = asyncio.Event()
    running = asyncio.ensure_future(scene.informer.run(stop))
    await scene.informer.wait_for_sync()
    stop.set()
    await running
    assert scene.informer.is_stopped
    assert scene.source.open_watches == 0


class UnknownThingError(ListWatchError):
    pass


@pytest.mark.parametrize("error", [ForbiddenError("not you"), UnknownThingError("no such thing")])
async def test_a_lasting_refusal_is_told_to_who_waits_for_the_sync(error: Exception) -> None:
    scene = Scene(pod("a"), startup_deadline=20)
    scene.source.fail_watches(error, 1000)
    scene.source.fail_lists(error, 1000)
    async with scene.informer:
        waiting = asyncio.ensure_future(scene.informer.wait_for_sync())
        await scene.clock.advance(19)
        assert not waiting.done()
        await scene.clock.advance(1)
        with pytest.raises(NotSyncedError, match=str(error)) as caught:
            await waiting
        assert caught.value.__cause__ is error
        scene.source.heal()
        await scene.clock.advance(30)
        assert scene.informer.has_synced


async def test_a_passing_failure_is_waited_for() -> None:
    scene = Scene(pod("a"), startup_deadline=20)
    scene.source.fail_watches(InternalServerError("broken"), 1000)
    scene.source.fail_lists(InternalServerError("broken"), 1000)
    async with scene.informer:
        waiting = asyncio.ensure_future(scene.informer.wait_for_sync())
        await scene.clock.advance(100)
        assert not waiting.done()
        scene.source.heal()
        await scene.clock.advance(30)
        await waiting


async def test_a_transform_takes_parts_away_before_they_are_cached() -> None:
    class Fields(msgspec.Struct, gc=False, frozen=True):
        spec: dict[str, int] = {}

    def transform(obj: Object) -> Object:
        if obj.name == "b" and obj["spec"].get("x") == 1:
            raise ValueError("no b")
        value = obj.to_dict()
        value["spec"].pop("secret", None)
        return Object.from_dict(value)

    scene = Scene(pod("a", secret=1, x=1), pod("b", x=1), transform=transform, fields=Fields)
    recorder = Recorder()
    scene.informer.add_handler(recorder)
    async with scene.informer:
        await scene.informer.wait_for_sync()
        cached = scene.informer.lister.get("a")
        assert cached["spec"] == {"x": 1}
        assert cached.fields == Fields({"x": 1})
        assert cached.partial
        assert [failure.key for failure in scene.failures] == ["b"]
        scene.source.modify(pod("b", x=2))
        await scene.clock.settle()
        scene.source.modify(pod("b", x=1))
        await scene.clock.advance(60)
        assert scene.informer.lister.get("b").resource_version == "3"
        assert scene.informer.statistics().controller.reflector.relists == 1
        scene.source.delete("b")
        await scene.clock.settle()
        assert recorder.take() == ["add a 1!", "add b 3", "tombstone b"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "other", "uid": "uid-1", "resourceVersion": "1"}, "another object, other"),
        ({"name": "a", "uid": "uid-1", "resourceVersion": "7"}, "resource version"),
        ({"name": "a", "uid": "uid-2", "resourceVersion": "1"}, "uid"),
    ],
)
async def test_a_transform_may_not_change_what_an_object_is(
    changed: dict[str, str], words: str
) -> None:
    scene = Scene(pod("a"), transform=lambda _: Object.from_dict({"metadata": changed}))
    async with scene.informer:
        await scene.clock.settle()
        assert words in str(scene.failures[0])
        assert isinstance(scene.failures[0].error, ObjectDecodeError)
        assert len(scene.informer.lister) == 0


async def test_a_decoder_of_ones_own_takes_the_place_of_the_options() -> None:
    def decode(raw: bytes, _: str, __: str) -> Object:
        return Object.from_dict({**msgspec.json.decode(raw), "kind": "Mine"})

    scene = Scene(pod("a"), decoder=decode)
    async with scene.informer:
        await scene.informer.wait_for_sync()
        assert scene.informer.lister.get("a").kind == "Mine"
    with pytest.raises(ValueError, match="takes the place"):
        Scene(decoder=decode, keep_managed_fields=True)


async def test_statistics_tell_how_it_is() -> None:
    scene = Scene(pod("a"))
    scene.informer.add_handler(Recorder(), name="one")
    async with scene.informer:
        await scene.clock.advance(3)
        figures = scene.informer.statistics()
        assert figures.store.objects == 1
        assert figures.controller.has_synced
        assert [one.name for one in figures.listeners] == ["one"]
        assert scene.informer.last_frame_age == 3.0
        assert scene.informer.last_failure is None
        assert scene.informer.resource_version == "1"
