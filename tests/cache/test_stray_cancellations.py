"""A cancellation that nobody requested counts as a failure, not as a silent end."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from listwatch.cache.controller import Controller, ControllerConfig
from listwatch.cache.deltas import Deltas
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.list_watch import ListOptions, ObjectList, WatchOptions, WatchStream
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.objects import Object
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


def refuse_a(obj: Object) -> Object:
    if obj.name == "a":
        raise asyncio.CancelledError
    return obj


def index(obj: Object) -> Iterable[str]:
    return [refuse_a(obj).name]


def model(value: dict[str, Any]) -> str:
    return refuse_a(Object.from_dict(value)).name


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"indexers": {"name": index}}, "index"),
        ({"transform": refuse_a}, "decode"),
        ({"decode": model}, "handler of added"),
    ],
)
async def test_a_function_of_the_users_costs_only_the_object_that_it_failed_on(
    options: dict[str, Any], reported: str
) -> None:
    clock = FakeClock()
    failures, told = list[Failure](), list[object]()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))
    informer: SharedInformer[Any] = SharedInformer(
        source, clock=clock, on_error=failures.append, **options
    )
    async with informer:
        informer.add_handler(HandlerFuncs(lambda obj, _: told.append(str(obj))))
        await clock.settle()
        source.add(pod("b"))
        await clock.settle()
        assert [("b" in str(name)) for name in told] == [True]
        assert {(failure.doing, failure.key) for failure in failures} == {(reported, "a")}


class Cancelling:
    """A source whose first answers are cancellations, as from a closed session."""

    def __init__(self, source: FakeControllerSource) -> None:
        self._source = source
        self.lists = self.watches = 0

    async def list(self, options: ListOptions) -> ObjectList:
        self.lists += 1
        if self.lists == 1:
            raise asyncio.CancelledError
        return await self._source.list(options)

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        self.watches += 1
        if self.watches == 1:
            raise asyncio.CancelledError
        return self._source.watch(options)


@pytest.mark.parametrize("watch_list", [False, True])
async def test_a_source_that_raises_it_is_asked_again_later(watch_list: bool) -> None:
    clock = FakeClock()
    failures = list[Failure]()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))
    cancelling = Cancelling(source)
    informer = SharedInformer(
        cancelling, clock=clock, on_error=failures.append, watch_list=watch_list
    )
    async with informer:
        await clock.settle()
        assert (cancelling.lists + cancelling.watches, informer.has_synced) == (1, False)
        await clock.advance(10)
        assert informer.lister.get("a").name == "a"
        assert str(failures[0].error) == "an awaited task or future was cancelled"
        assert failures[0].delay is not None


@pytest.mark.parametrize("way", ["one", "batch"])
async def test_a_process_function_that_raises_it_has_failed_and_is_not_called_in_a_loop(
    way: str,
) -> None:
    clock = FakeClock()
    failures, calls = list[Failure](), list[object]()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))

    async def process(deltas: object) -> None:
        calls.append(deltas)
        if len(calls) == 1:
            raise asyncio.CancelledError

    async def process_batch(batch: Iterable[Deltas]) -> None:
        await process(batch)

    controller = Controller(
        ControllerConfig(
            queue=OrderedFIFO(),
            lister_watcher=source,
            process=process if way == "one" else None,
            process_batch=process_batch if way == "batch" else None,
            clock=clock,
            on_error=failures.append,
        )
    )
    running = asyncio.ensure_future(controller.run())
    await clock.settle()
    source.add(pod("b"))
    await clock.settle()
    assert not running.done()
    assert len(calls) == 2
    assert [failure.doing for failure in failures] == ["process"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
