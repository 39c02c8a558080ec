"""Waiting until nothing of a handler runs any more."""

import asyncio
import threading

import pytest

from cache.shared_scene import Scene
from listwatch.cache.handlers import HandlerFuncs
from listwatch.objects import Object
from listwatch.testing.fake_controller_source import pod


async def test_the_end_of_a_handler_waits_for_the_clean_up_of_its_call() -> None:
    scene = Scene(pod("a"))
    told: list[str] = []

    async def slow(_: Object, __: bool) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await scene.clock.sleep(5)
            told.append("cleaned up")

    listener = scene.informer.add_handler(HandlerFuncs(slow))
    async with scene.informer:
        await scene.clock.settle()
        closing = asyncio.ensure_future(listener.aclose())
        await scene.clock.advance(4)
        assert listener.is_removed
        assert not closing.done()
        await scene.clock.advance(2)
        assert closing.done()
        assert told == ["cleaned up"]


class Blocking:
    """A handler whose calls, on a thread, wait for the release."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.told: list[str] = []

    def __call__(self, obj: Object, _: bool) -> None:
        self.entered.set()
        assert self.release.wait(50)
        self.told.append(obj.name)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 50)


async def test_the_end_of_a_threaded_handler_waits_for_the_call_on_its_thread() -> None:
    scene, handler = Scene(pod("a"), pod("b")), Blocking()
    listener = scene.informer.add_handler(HandlerFuncs(handler), threaded=True)
    async with scene.informer:
        await handler.has_begun()
        closing = asyncio.ensure_future(listener.aclose())
        await scene.clock.settle()
        assert not closing.done()
        handler.release.set()
        await closing
        assert handler.told == ["a"]  # the other one is not wanted any more


async def test_a_threaded_call_can_be_awaited_after_its_informer_has_ended() -> None:
    scene, handler = Scene(pod("a")), Blocking()
    listener = scene.informer.add_handler(HandlerFuncs(handler), threaded=True)
    async with scene.informer:
        await handler.has_begun()
    assert handler.told == []
    handler.release.set()
    await listener.aclose()
    assert handler.told == ["a"]


async def test_a_cancelled_wait_leaves_the_handler_removed() -> None:
    scene = Scene(pod("a"))
    ended = asyncio.Event()

    async def slow(_: Object, __: bool) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ended.wait()

    listener = scene.informer.add_handler(HandlerFuncs(slow))
    async with scene.informer:
        await scene.clock.settle()
        closing = asyncio.ensure_future(listener.aclose())
        await scene.clock.settle()
        closing.cancel()
        await asyncio.wait({closing})
        assert listener.is_removed
        ended.set()
        await listener.aclose()


async def test_a_handler_cannot_await_its_own_end() -> None:
    scene = Scene(pod("a"))

    async def close(_: Object, __: bool) -> None:
        await own.aclose()

    own = scene.informer.add_handler(HandlerFuncs(close), name="selfish")
    async with scene.informer:
        await scene.failed.wait()
        assert "selfish can't await its own end: call remove()" in str(scene.failures[0])
        assert not own.is_removed


async def test_a_handler_that_never_ran_ends_at_once() -> None:
    scene = Scene(pod("a"))
    calls = HandlerFuncs[Object]()
    waiting = scene.informer.add_handler(calls)
    threaded = scene.informer.add_handler(calls, threaded=True)
    await waiting.aclose()
    await threaded.aclose()
    async with scene.informer:
        await scene.informer.wait_for_sync()
        assert scene.informer.statistics().listeners == ()


def test_a_handler_may_await_the_end_of_another() -> None:
    async def run() -> None:
        scene = Scene(pod("a"))
        order: list[str] = []

        async def slow(_: Object, __: bool) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                order.append("slow ended")

        other = scene.informer.add_handler(HandlerFuncs(slow))

        async def close(_: Object, __: bool) -> None:
            await scene.clock.sleep(1)
            await other.aclose()
            order.append("closed")

        scene.informer.add_handler(HandlerFuncs(close))
        async with scene.informer:
            await scene.clock.advance(2)
        assert order == ["slow ended", "closed"]

    asyncio.run(run())


@pytest.mark.parametrize("threaded", [False, True])
async def test_closing_twice_is_closing_once(threaded: bool) -> None:
    scene = Scene(pod("a"))
    listener = scene.informer.add_handler(HandlerFuncs(), threaded=threaded)
    async with scene.informer:
        await listener.wait_for_sync()
        await asyncio.gather(listener.aclose(), listener.aclose())
        assert listener.is_removed
