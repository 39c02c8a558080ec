"""Many handlers share one watch and one cache."""

import asyncio
import threading

import pytest

from cache.shared_scene import Recorder, Scene
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.processor import Listener, StoppedError
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.objects import Object
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


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
    """A handler that is added between the store's replacement and the delivery joins later."""
    scene = Scene(*(pod(f"p{i:03}") for i in range(300)))
    recorders: list[Recorder] = []

    class Joining(FakeClock):
        async def sleep(self, seconds: float) -> None:
            # private: the store is ahead of the delivery
            if scene.informer._cache.processor._writing and len(recorders) < 5:
                recorders.append(Recorder())
                scene.informer.add_handler(recorders[-1])
            await super().sleep(seconds)

        def now(self) -> float:
            self._now += 0.003  # as if work took time
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
        assert release.wait(50)
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
        release.wait(50)

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
