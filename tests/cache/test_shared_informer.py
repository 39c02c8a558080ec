"""Many handlers, one watch, one cache."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from listwatch.cache.deltas import Item
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import Added, Change, Deleted, HandlerFuncs, Updated
from listwatch.cache.processor import Listener, StoppedError
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.shared_cache import NotSyncedError
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.errors import ForbiddenError, InternalServerError, ListWatchError
from listwatch.objects import DeletedFinalStateUnknown, Object, ObjectDecodeError
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


class Recorder:
    """Records each change as text."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:
        self.told.append(f"add {obj.key} {obj.resource_version}" + "!" * is_in_initial_list)

    def on_update(self, old: Object, new: Object) -> None:
        self.told.append(f"update {new.key} {old.resource_version}->{new.resource_version}")

    def on_delete(self, obj: Item) -> None:
        kind = "tombstone" if isinstance(obj, DeletedFinalStateUnknown) else "delete"
        self.told.append(f"{kind} {obj.key}")

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told


class Scene:
    """A source and a shared informer, on a fake clock."""

    def __init__(self, *objects: Mapping[str, Any], **options: Any) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock)
        for obj in objects:
            self.source.add(obj)
        self.failures: list[Failure] = []
        self.failed = asyncio.Event()
        self.informer = SharedInformer(
            self.source, clock=self.clock, on_error=self.on_error, **options
        )

    def on_error(self, failure: Failure) -> None:
        assert isinstance(failure, Failure)
        self.failures.append(failure)
        self.failed.set()

    async def relist(self) -> None:
        self.source.modify_drop_watch(next(iter(self.source.objects.values())))
        self.source.reset_watch()
        await self.clock.advance(5)


async def test_all_handlers_are_told_everything_by_one_watch() -> None:
    scene = Scene(pod("a"))
    first, second = Recorder(), Recorder()
    scene.informer.add_handler(first)
    scene.informer.add_handler(second)
    async with scene.informer:
        await scene.informer.wait_for_sync()
        scene.source.modify(pod("a"))
        scene.source.delete("a")
        await scene.clock.settle()
        assert first.take() == ["add a 1!", "update a 1->2", "delete a"]
        assert second.take() == ["add a 1!", "update a 1->2", "delete a"]
        assert len(scene.source.requests) == 1
    assert not scene.failures


async def test_a_late_handler_is_told_the_cache_and_then_what_comes() -> None:
    scene = Scene(pod("a"), pod("b"))
    async with scene.informer:
        await scene.informer.wait_for_sync()
        recorder = Recorder()
        listener = scene.informer.add_handler(recorder)
        scene.source.modify(pod("b"))
        assert not listener.has_synced
        await listener.wait_for_sync()
        assert recorder.take() == ["add a 1!", "add b 2!"]
        await scene.clock.settle()
        assert recorder.take() == ["update b 2->3"]
        scene.source.add(pod("c"))
        await scene.clock.settle()
        assert recorder.take() == ["add c 4"]


async def test_a_handler_that_joins_during_a_relist_has_no_gap_and_no_repetition() -> None:
    """No handler can join between the swap of the store and the delivery."""
    scene = Scene(*(pod(f"p{i:03}") for i in range(300)))
    recorders: list[Recorder] = []

    class Joining(FakeClock):
        async def sleep(self, seconds: float) -> None:
            # the test needs this moment
            if scene.informer._cache.processor._writing and len(recorders) < 5:
                recorders.append(Recorder())
                scene.informer.add_handler(recorders[-1])
            await super().sleep(seconds)

        def now(self) -> float:
            self._now += 0.003  # work takes time
            return super().now()

    clock = Joining()
    scene.informer = SharedInformer(scene.source, clock=clock, on_error=scene.failures.append)
    async with scene.informer:
        await scene.informer.wait_for_sync()
        recorders.clear()
        scene.source.delete_drop_watch("p000")
        scene.source.modify_drop_watch(pod("p001"))
        scene.source.reset_watch()
        await clock.advance(100)
        assert len(recorders) == 5
        for recorder in recorders:
            told = recorder.told
            adds = [line for line in told if line.startswith("add")]
            assert len(adds) in {299, 300}
            if len(adds) == 300:
                assert told[-2:] == ["tombstone p000", "update p001 2->302"]
            else:
                assert "add p001 302!" in adds
                assert told == adds


async def test_a_handler_that_hangs_delays_no_other_and_not_the_cache() -> None:
    scene = Scene(pod("a"))
    hanging = asyncio.Event()

    async def hang(_: Object, __: bool) -> None:
        await hanging.wait()

    recorder = Recorder()
    stuck = scene.informer.add_handler(HandlerFuncs(hang), name="stuck")
    scene.informer.add_handler(recorder)
    async with scene.informer:
        await scene.informer.wait_for_sync()
        scene.source.add(pod("b"))
        await scene.clock.advance(7)
        assert recorder.take() == ["add a 1!", "add b 2"]
        assert len(scene.informer.lister) == 2
        figures = stuck.statistics()
        assert (figures.name, figures.pending, figures.has_synced) == ("stuck", 1, False)
        assert figures.handler.running_seconds == 7.0
        hanging.set()
        await scene.clock.settle()
        assert stuck.has_synced
        figures = stuck.statistics()
        assert (figures.pending, figures.handler.delivered) == (0, 2)
        assert figures.handler.longest_seconds == 7.0


async def test_one_hanging_handler_of_a_hundred_delays_none() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    for number in range(20):
        source.add(pod(f"p{number}"))
    informer = SharedInformer(source, clock=clock)
    told = [0] * 100

    def counter(place: int) -> HandlerFuncs:
        def count(_: Object, __: bool) -> None:
            told[place] += 1

        return HandlerFuncs(on_add=count)

    async def hang(_: Object, __: bool) -> None:
        await asyncio.Event().wait()

    hanging = informer.add_handler(HandlerFuncs(on_add=hang), max_pending=5)
    others = [informer.add_handler(counter(place)) for place in range(100)]
    async with informer:
        for listener in others:
            await listener.wait_for_sync()
        assert told == [20] * 100
        assert not hanging.has_synced
        assert hanging.statistics().pending == 0
        for number in range(20, 40):
            source.add(pod(f"p{number}"))
        await clock.settle()
        assert told == [40] * 100
        assert hanging.statistics().pending == 20
    assert hanging.is_removed


async def test_a_handler_that_fails_is_reported_and_counted_and_syncs_all_the_same() -> None:
    scene = Scene(pod("a"), pod("b"), name="pods")

    def fail(obj: Object, _: bool) -> None:
        raise ValueError(f"no {obj.name}")

    listener = scene.informer.add_handler(HandlerFuncs(fail), name="mine")
    async with scene.informer:
        await listener.wait_for_sync()
        assert [str(failure) for failure in scene.failures] == [
            "pods: mine: handler of added a: no a",
            "pods: mine: handler of added b: no b",
        ]
        figures = listener.statistics().handler
        assert (figures.delivered, figures.failed) == (2, 2)


async def test_a_handler_may_be_removed_also_by_itself() -> None:
    scene = Scene(pod("a"), pod("b"))
    told: list[str] = []

    def remove(obj: Object, _: bool) -> None:
        told.append(obj.name)
        own.remove()

    own = scene.informer.add_handler(HandlerFuncs(remove))
    recorder = Recorder()
    other = scene.informer.add_handler(recorder)
    async with scene.informer:
        await scene.clock.settle()
        assert told == ["a"]
        assert own.is_removed
        assert len(recorder.take()) == 2
        scene.informer.remove_handler(other)
        other.remove()
        scene.source.add(pod("c"))
        await scene.clock.settle()
        assert recorder.take() == []
        assert scene.informer.statistics().listeners == ()
        with pytest.raises(StoppedError, match="removed"):
            await other.wait_for_sync()


async def test_another_informers_handler_is_refused_and_stays() -> None:
    scene, other = Scene(pod("a"), name="pods"), Scene(name="nodes")
    recorder = Recorder()
    listener = scene.informer.add_handler(recorder, name="mine")
    with pytest.raises(ValueError, match="mine is not a handler of nodes"):
        other.informer.remove_handler(listener)
    async with scene.informer:
        await listener.wait_for_sync()
        assert recorder.take() == ["add a 1!"]
        view = scene.informer.view(dict)
        view.remove_handler(listener)
        view.remove_handler(listener)
        assert listener.is_removed


def test_a_handler_may_be_removed_while_no_event_loop_runs() -> None:
    scene = Scene(pod("a"))
    told = Recorder()
    gone = scene.informer.add_handler(told, resync_period=10)
    threaded = scene.informer.add_handler(told, threaded=True)
    gone.remove()
    threaded.remove()
    assert scene.informer.statistics().listeners == ()

    async def run() -> Listener:
        stays = scene.informer.add_handler(HandlerFuncs(), resync_period=10)
        async with scene.informer:
            await stays.wait_for_sync()
        return stays

    ended = asyncio.run(run())
    ended.remove()
    assert (told.told, ended.is_removed) == ([], True)


async def test_a_threaded_handler_may_remove_itself_and_what_it_raises_is_reported() -> None:
    scene = Scene(pod("a"), pod("b"))
    told: list[str] = []

    def remove(obj: Object, _: bool) -> None:
        told.append(obj.name)
        own.remove()
        raise ValueError("at the end")

    own = scene.informer.add_handler(HandlerFuncs(remove), threaded=True, resync_period=10)
    async with scene.informer:
        await scene.failed.wait()
        with pytest.raises(StoppedError, match="removed"):
            await own.wait_for_sync()
        assert [str(failure) for failure in scene.failures] == [
            "HandlerFuncs: handler of added a: at the end"
        ]
        assert scene.informer.statistics().listeners == ()
        scene.source.add(pod("c"))
        await scene.clock.advance(20)
        assert told == ["a"]


async def test_a_handler_may_be_removed_from_any_thread() -> None:
    scene = Scene(pod("a"))
    recorder = Recorder()
    listener = scene.informer.add_handler(recorder)
    async with scene.informer:
        await listener.wait_for_sync()
        recorder.take()
        await asyncio.to_thread(listener.remove)
        assert listener.is_removed
        scene.source.add(pod("b"))
        await scene.clock.settle()
        assert recorder.take() == []
        assert scene.informer.statistics().listeners == ()


async def test_a_handler_that_hangs_may_be_removed() -> None:
    scene = Scene(pod("a"))
    ended: list[str] = []

    async def hang(_: Object, __: bool) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")

    listener = scene.informer.add_handler(HandlerFuncs(hang))
    async with scene.informer:
        await scene.clock.settle()
        listener.remove()
        await scene.clock.settle()
        assert ended == ["yes"]


async def test_an_unchanged_object_is_told_to_nobody_after_a_relist() -> None:
    scene = Scene(*(pod(f"p{i}") for i in range(5)))
    recorder = Recorder()
    scene.informer.add_handler(recorder)
    async with scene.informer:
        await scene.clock.settle()
        recorder.take()
        kept = scene.informer.lister.get("p4")
        await scene.relist()
        assert recorder.take() == ["update p0 1->6"]
        assert scene.informer.lister.get("p4") is kept


async def test_each_handler_has_its_own_resyncs() -> None:
    scene = Scene(pod("a"), resync_period=10)
    usual, often, never = Recorder(), Recorder(), Recorder()
    scene.informer.add_handler(usual)
    scene.informer.add_handler(often, resync_period=4)
    scene.informer.add_handler(never, resync_period=0)
    async with scene.informer:
        await scene.clock.advance(13)
        assert usual.take() == ["add a 1!", "update a 1->1"]
        assert often.take() == ["add a 1!", *["update a 1->1"] * 3]
        assert never.take() == ["add a 1!"]

    fresh = Scene().informer
    with pytest.raises(ValueError, match="1 s or more"):
        fresh.add_handler(usual, resync_period=0.5)


async def test_resyncs_do_not_pile_up_behind_a_slow_handler() -> None:
    scene = Scene(pod("a"), pod("b"))

    async def slow(_: Object, __: Object) -> None:
        await scene.clock.sleep(30)

    listener = scene.informer.add_handler(HandlerFuncs(on_update=slow), resync_period=1)
    async with scene.informer:
        await scene.clock.advance(25)
        assert listener.statistics().pending <= 4


async def test_a_bound_merges_what_waits() -> None:
    scene = Scene(pod("a"))
    told: list[str] = []
    go_on = asyncio.Event()

    async def on_update(old: Object, new: Object) -> None:
        await go_on.wait()
        told.append(f"{old.resource_version}->{new.resource_version}")

    async with scene.informer:
        await scene.informer.wait_for_sync()
        listener = scene.informer.add_handler(HandlerFuncs(on_update=on_update), max_pending=3)
        await listener.wait_for_sync()
        for _ in range(10):
            scene.source.modify(pod("a"))
            await scene.clock.settle()
        assert listener.statistics().pending == 1
        assert listener.statistics().merged == 8
        go_on.set()
        await scene.clock.settle()
        assert told == ["1->2", "2->11"]


async def test_a_threaded_handler_may_block_its_own_thread() -> None:
    scene = Scene(pod("a"))
    release, threads = threading.Event(), set()
    told: list[str] = []

    def block(obj: Object, _: bool) -> None:
        threads.add(threading.current_thread().name)
        assert release.wait(20)
        told.append(obj.name)
        if obj.name == "b":
            raise ValueError("no b")

    recorder = Recorder()
    listener = scene.informer.add_handler(HandlerFuncs(block), name="blocking", threaded=True)
    scene.informer.add_handler(recorder)
    async with scene.informer:
        await scene.informer.wait_for_sync()
        scene.source.add(pod("b"))
        await scene.clock.settle()
        assert recorder.take() == ["add a 1!", "add b 2"]
        assert told == []
        release.set()
        await listener.wait_for_sync()
        await scene.failed.wait()
        assert threads == {"handler blocking"}
        assert str(scene.failures[0]) == "blocking: handler of added b: no b"


async def test_a_threaded_handler_that_hangs_holds_up_no_end() -> None:
    scene = Scene(pod("a"))
    release, entered = threading.Event(), threading.Event()

    def block(_: Object, __: bool) -> None:
        entered.set()
        release.wait(20)

    scene.informer.add_handler(HandlerFuncs(block), threaded=True)
    async with scene.informer:
        assert await asyncio.to_thread(entered.wait, 20)
    assert scene.informer.is_stopped
    release.set()


async def test_a_coroutine_function_is_no_threaded_handler() -> None:
    scene = Scene(pod("a"))

    async def wrong(_: Object, __: bool) -> None: ...

    scene.informer.add_handler(HandlerFuncs(wrong), threaded=True)
    async with scene.informer:
        await scene.failed.wait()
        assert "must not be coroutine functions" in str(scene.failures[0])


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_handler_that_holds_the_loop_is_named(kind: str) -> None:
    scene = Scene(pod("a"), pod("b"))

    def hold(obj: Object, _: bool) -> None:
        if obj.name == "b":
            scene.clock.stall(0.2)

    async def hold_and_wait(obj: Object, initial: bool) -> None:
        await scene.clock.sleep(1)
        hold(obj, initial)
        await scene.clock.sleep(1)

    handler = HandlerFuncs(hold if kind == "def" else hold_and_wait)
    scene.informer.add_handler(handler, name="greedy")
    async with scene.informer:
        await scene.clock.advance(10)
        assert [str(failure) for failure in scene.failures] == [
            "greedy: handler of added b: held the event loop for 0.20 s"
        ]


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
