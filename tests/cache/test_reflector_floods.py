"""Watches with endless useless events, and lists whose pages never end."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from cache.reflector_scene import Scene
from listwatch.cache.failures import Failure
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    MODIFIED,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.cache.pages import pages
from listwatch.cache.reflector import Reflector
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.store import Store
from listwatch.clock import FakeClock
from listwatch.errors import (
    FrameError,
)
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.testing.fake_controller_source import (
    pod,
)


class Flood:
    """A `ListerWatcher` whose watches repeat one batch without waiting."""

    def __init__(self, batch: Sequence[WatchEvent]) -> None:
        self.batch = batch
        self.silent = False
        self.watches = self.batches = 0

    async def list(self, options: ListOptions) -> ObjectList:
        del options
        return ObjectList(items=[Object.from_dict(pod("a"))], resource_version="1")

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        del options
        self.watches += 1
        yield self._events()

    async def _events(self) -> AsyncIterator[Sequence[WatchEvent]]:
        while not self.silent:
            self.batches += 1
            yield self.batch
        await asyncio.Event().wait()


FLOODS: dict[str, Sequence[WatchEvent]] = {
    "unknown types": [WatchEvent("MOVED")] * 50,
    "no JSON": [WatchEvent("", error=FrameError("not JSON"))] * 50,
    "undecodable objects": [WatchEvent(MODIFIED, error=ObjectDecodeError("?"))] * 50,
    "one bookmark": [WatchEvent(BOOKMARK, resource_version="1")] * 50,
    "the same event": [WatchEvent(ADDED, Object.from_dict(pod("a")), "1")] * 50,
    "bytes without an event": [],
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_stream_of_nothing_useful_is_ended_with_a_wait(
    flood: str, watch_list: bool
) -> None:
    """The event loop keeps running, and a thousand failures are not reported one by one."""
    clock = FakeClock()
    source = Flood(FLOODS[flood])
    failures: list[Failure] = []
    reflector = Reflector(
        source,
        Store(),
        clock=clock,
        watch_list=watch_list,
        on_error=failures.append,
        rng=random.Random(1),
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reflector.run())
        turns = 0
        while not failures or failures[-1].doing == "decode":
            await asyncio.sleep(0)
            turns += 1
            assert turns < 10_000
        assert reflector.state in {Phase.BACKING_OFF, Phase.LISTING}
        if FLOODS[flood]:
            assert source.batches <= 30
        else:
            assert turns >= source.batches // 256
        await clock.advance(60)
        assert source.watches <= 12
        running.cancel()
    assert len([failure for failure in failures if failure.doing == "decode"]) <= 800
    assert reflector.statistics().errors >= len(failures)


async def test_a_stream_that_is_useful_may_have_much_that_is_not() -> None:
    async with Scene("a") as scene:
        for number in range(20):
            for _ in range(900):
                scene.source.send_bookmark()
            await scene.clock.settle()
            scene.source.modify(pod("a", number=number))
            await scene.clock.settle()
        assert scene.same()
        assert not scene.failures


async def test_failures_of_one_kind_are_told_at_a_bounded_rate_and_all_are_counted() -> None:
    async with Scene("a") as scene:
        scene.source.send(*[WatchEvent("MOVED")] * 900)
        await scene.clock.settle()
        assert len(scene.failures) == 100
        assert scene.reflector.statistics().errors == 900
        await scene.clock.advance(11)
        scene.source.send(WatchEvent("MOVED"))
        await scene.clock.settle()
        last = scene.failures[-1]
        assert isinstance(last, Failure)
        assert last.more == 800


class Pages(Flood):
    """A `ListerWatcher` whose lists never end."""

    def __init__(self, tokens: Iterator[str], items: Iterator[list[Object]]) -> None:
        super().__init__([])
        self.tokens = tokens
        self.items = items
        self.lists = 0

    async def list(self, options: ListOptions) -> ObjectList:
        del options
        self.lists += 1
        return ObjectList(
            items=next(self.items), resource_version="1", continue_token=next(self.tokens)
        )


OBJECTS = [Object.from_dict(pod(name)) for name in "abcdef"]


@pytest.mark.parametrize(
    ("tokens", "items"),
    [
        (itertools.repeat("again"), itertools.repeat([])),
        (itertools.repeat("again"), ([obj] for obj in itertools.cycle(OBJECTS))),
        (itertools.cycle("ab"), itertools.repeat(OBJECTS)),
        (map(str, itertools.count()), itertools.repeat([])),
        (map(str, itertools.count()), itertools.repeat(OBJECTS)),
        (map(str, itertools.count()), itertools.cycle([OBJECTS[:3], OBJECTS[3:]])),
    ],
)
async def test_pages_that_lead_nowhere_end_the_list_with_a_wait(
    tokens: Iterator[str], items: Iterator[list[Object]]
) -> None:
    clock = FakeClock()
    source = Pages(tokens, items)
    failures: list[Failure] = []
    reflector = Reflector(source, Store(), clock=clock, watch_list=False, on_error=failures.append)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reflector.run())
        await clock.settle()
        assert reflector.state is Phase.BACKING_OFF
        assert source.lists <= 12
        assert isinstance(failures[0].error, FrameError)
        assert failures[0].delay is not None
        await clock.advance(600)
        assert source.lists <= 12 * 30
        running.cancel()


@pytest.mark.parametrize("page_size", [500, 11])
async def test_pages_with_hardly_an_item_end_the_list_and_full_ones_do_not(page_size: int) -> None:
    """Each page has a new token and a new object, and still the list never ends."""
    objects = (Object.from_dict(pod(f"p{number}")) for number in itertools.count())
    sparse = Pages(map(str, itertools.count()), ([obj] for obj in objects))
    listing = pages(sparse.list, page_size=page_size, decoder=decode_object)
    with pytest.raises(FrameError, match="100 pages of one list with hardly an item"):
        async for _ in listing:
            pass
    assert sparse.lists == 100
    tokens = iter([*map(str, range(200)), ""])
    full = Pages(tokens, ([next(objects), next(objects)] for _ in itertools.count()))
    listing = pages(full.list, page_size=min(page_size, 20), decoder=decode_object)
    assert len([page async for page in listing]) == 201


async def test_a_server_may_leave_pages_empty() -> None:
    tokens = iter([*"abcdefghi", ""])
    items = iter([[OBJECTS[0]], *[[]] * 8, [OBJECTS[1]]])
    store = Store()
    source = Pages(tokens, items)
    source.silent = True
    clock = FakeClock()
    reflector = Reflector(source, store, clock=clock, watch_list=False)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reflector.run())
        await clock.settle()
        running.cancel()
    assert store.list_keys() == ["a", "b"]
