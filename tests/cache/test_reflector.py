"""The reflector's requests and what its store gets, scene by scene."""

import asyncio
import itertools
import logging
import math
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Deltas, DeltaType, Item
from listwatch.cache.failures import Failure
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    MODIFIED,
    ListerWatcher,
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
    DisconnectedError,
    ExpiredError,
    FrameError,
    ServerTimeoutError,
    TooManyRequestsError,
)
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.testing.fake_controller_source import (
    END,
    SILENCE,
    FakeControllerSource,
    WatchScript,
    pod,
)

REFUSED = DisconnectedError("nobody listens", refused=True)


class Scene:
    """A reflector that feeds a store from a source, and what it asked for, in words."""

    def __init__(
        self,
        *names: str,
        store: Any = None,
        bookmark_seconds: float | None = 60.0,
        **options: Any,
    ) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock, bookmark_seconds=bookmark_seconds)
        for name in names:
            self.source.add(pod(name))
        self.store = store if store is not None else Store()
        self.failures: list[object] = []
        options.setdefault("on_error", self.failures.append)
        options.setdefault("rng", random.Random(1))
        self.reflector = Reflector(self.source, self.store, clock=self.clock, **options)
        self._told = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self.reflector.run())
        await self.clock.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert self.source.open_watches == 0

    def asked(self) -> list[str]:
        """Return the requests since the last call."""
        new, self._told = self.source.requests[self._told :], len(self.source.requests)
        return [in_words(request.options) for request in new]

    def same(self) -> bool:
        return {obj.key: obj for obj in self.store.list()} == self.source.objects


def in_words(options: ListOptions | WatchOptions) -> str:
    if isinstance(options, ListOptions):
        more = " continued" if options.continue_token else ""
        return f"list limit={options.limit} rv={options.resource_version!r}{more}"
    if options.send_initial_events:
        match = options.resource_version_match
        return f"watch-list rv={options.resource_version!r} match={match}"
    return f"watch rv={options.resource_version!r}"


async def test_the_first_request_is_a_stream_of_initial_events_and_then_the_watch() -> None:
    async with Scene("a", "b") as scene:
        assert scene.asked() == ["watch-list rv='' match=NotOlderThan"]
        assert scene.same()
        assert scene.reflector.state is Phase.WATCHING
        assert scene.reflector.last_sync_resource_version == "2"
        options = scene.source.requests[0].options
        assert isinstance(options, WatchOptions)
        assert options.allow_bookmarks
        assert 300 <= options.timeout_seconds < 600
        scene.source.delete("a")
        scene.source.add(pod("c"))
        await scene.clock.settle()
        assert scene.same()
        assert scene.asked() == []
        assert not scene.failures


@pytest.mark.parametrize("mode", ["invalid", ExpiredError("too old")])
async def test_a_server_without_initial_events_is_listed_in_pages(mode: Any) -> None:
    """The first page has no version: with "0" a server ignores the limit."""
    scene = Scene("a", "b", "c", page_size=2)
    scene.source.watch_list = mode
    async with scene:
        await scene.clock.advance(1)
        assert scene.asked() == [
            "watch-list rv='' match=NotOlderThan",
            "list limit=2 rv=''",
            "list limit=2 rv='' continued",
            "watch rv='3'",
        ]
        assert scene.same()


async def test_a_missing_end_of_initial_events_falls_back_to_a_list_for_good() -> None:
    """kubernetes#140890, kubernetes#135895: never retried for ever."""
    scene = Scene("a")
    scene.source.watch_list = "ignored"
    async with scene:
        await scene.clock.advance(9.9)
        assert scene.asked() == ["watch-list rv='' match=NotOlderThan"]
        await scene.clock.advance(0.1)
        assert scene.asked() == ["list limit=500 rv=''", "watch rv='1'"]
        scene.source.modify_drop_watch(pod("a"))
        scene.source.reset_watch()
        await scene.clock.advance(10)
        assert "watch-list" not in " ".join(scene.asked())
        assert scene.same()


async def test_a_slow_stream_of_initial_events_is_waited_for() -> None:
    scene = Scene("a")
    scene.source.watch_list = "ignored"
    async with scene:
        for number in range(20):
            await scene.clock.advance(9)
            obj = Object.from_dict(pod(f"slow{number}"))
            scene.source.send(WatchEvent(ADDED, obj, "5"))
        end = WatchEvent(BOOKMARK, resource_version="5", initial_events_end=True)
        scene.source.send(end)
        await scene.clock.settle()
        assert scene.asked() == ["watch-list rv='' match=NotOlderThan"]
        assert len(scene.store) == 21


async def test_nothing_is_stored_before_the_initial_events_have_ended() -> None:
    """A stream that is cut in the middle leaves the store as it was, and its versions unused."""
    scene = Scene("a", "b")
    cut = WatchScript(then=DisconnectedError("reset by peer"))
    scene.source.watch_list = "ignored"
    scene.source.script_watches(cut)
    async with scene:
        assert scene.reflector.last_sync_resource_version == ""
        assert len(scene.store) == 0
        scene.source.watch_list = "yes"
        await scene.clock.advance(1)
        assert scene.asked() == ["watch-list rv='' match=NotOlderThan"] * 2
        assert scene.same()


async def test_pages_that_expire_are_listed_anew_in_one_piece() -> None:
    scene = Scene("a", "b", "c", page_size=2, watch_list=False)
    source_list = scene.source.list

    async def expire_after_the_first_page(options: ListOptions) -> Any:
        if options.continue_token:
            scene.source.delete(pod("a"))  # what only the first page has is gone
            scene.source.reset_watch()
        return await source_list(options)

    scene.source.list = expire_after_the_first_page  # type: ignore[method-assign]  # a fault
    async with scene:
        assert scene.asked() == [
            "list limit=2 rv=''",
            "list limit=2 rv='' continued",
            "list limit=0 rv=''",
            "watch rv='4'",
        ]
        assert scene.same()


@pytest.mark.parametrize(
    "fault",
    [ExpiredError("too old"), ServerTimeoutError("Too large resource version: 9, current: 2")],
)
async def test_a_version_that_the_server_refuses_leads_to_a_relist_without_one(
    fault: Exception,
) -> None:
    """kubernetes#107133, kubernetes#91073: the refused version is not asked for again."""
    async with Scene("a") as scene:
        scene.source.modify_drop_watch(pod("a"))
        scene.source.end_watches(DisconnectedError("reset by peer"))
        scene.source.fail_watches(fault)
        scene.asked()
        await scene.clock.advance(5)
        assert scene.asked() == ["watch rv='1'", "watch-list rv='' match=NotOlderThan"]
        assert scene.same()


async def test_an_expiry_in_the_stream_leads_to_a_relist() -> None:
    async with Scene("a") as scene:
        scene.source.modify_drop_watch(pod("a"))
        scene.source.send(WatchEvent(ERROR, error=ExpiredError("too old")))
        await scene.clock.advance(1)
        assert scene.asked() == ["watch-list rv='' match=NotOlderThan"] * 2
        assert scene.same()


@pytest.mark.parametrize("ending", [END, DisconnectedError("cut"), FrameError("half an event")])
async def test_a_watch_that_ends_or_breaks_goes_on_where_it_was(ending: Any) -> None:
    async with Scene("a") as scene:
        await scene.clock.advance(50)
        scene.source.modify(pod("a"))
        await scene.clock.settle()
        scene.asked()
        scene.source.end_watches(ending)
        scene.source.add(pod("missed"))
        await scene.clock.advance(1)
        assert scene.asked() == ["watch rv='2'"]
        assert scene.same()


async def test_a_healthy_watch_that_ends_in_order_is_opened_again_at_once() -> None:
    async with Scene("a") as scene:
        scene.asked()
        await scene.clock.advance(50)
        scene.source.end_watches()
        await scene.clock.settle()
        assert scene.asked() == ["watch rv='1'"]
        assert not scene.failures


async def test_refused_connections_are_waited_for_and_no_relist_follows() -> None:
    """One list of one item asks whether it is the same server; the watch goes on as it was."""
    async with Scene("a") as scene:
        scene.source.end_watches(REFUSED)
        scene.source.fail_watches(REFUSED, math.inf)
        scene.source.fail_lists(REFUSED, math.inf)
        await scene.clock.advance(40)
        scene.source.heal()
        scene.source.add(pod("missed"))
        scene.asked()
        await scene.clock.advance(30)
        assert scene.asked()[-2:] == ["list limit=1 rv=''", "watch rv='1'"]
        assert scene.reflector.statistics().relists == 1
        assert scene.same()


async def test_retry_after_is_the_least_wait() -> None:
    async with Scene("a") as scene:
        scene.source.end_watches(TooManyRequestsError("later", retry_after=20))
        scene.asked()
        await scene.clock.advance(19.9)
        assert scene.asked() == []
        await scene.clock.advance(0.1)
        assert scene.asked() == ["watch rv='1'"]
        failure = scene.failures[0]
        assert isinstance(failure, Failure)
        assert failure.delay == 20


async def test_a_lost_event_leads_to_a_relist_and_the_others_are_not_held_up() -> None:
    """An undecodable event must not leave a stale object for ever."""
    async with Scene("a", "b") as scene:
        scene.source.modify_drop_watch(pod("a"))
        scene.source.send(WatchEvent(MODIFIED, error=ObjectDecodeError("null", key="a")))
        scene.source.modify(pod("b"))
        await scene.clock.settle()
        stored = scene.store.get_by_key("b")
        assert stored is not None
        assert stored.resource_version == "4"
        await scene.clock.advance(1)
        assert scene.asked() == ["watch-list rv='' match=NotOlderThan"] * 2
        assert scene.same()
        failure = scene.failures[0]
        assert isinstance(failure, Failure)
        assert (failure.doing, failure.key) == ("decode", "a")
        assert scene.reflector.statistics().undecodable == 1


@pytest.mark.parametrize(
    "event",
    [
        WatchEvent("MOVED"),
        WatchEvent(ADDED),
        WatchEvent("", error=FrameError("not JSON")),
        WatchEvent("TWIST", Object.from_dict(pod("x")), "3"),
    ],
)
async def test_an_event_that_can_not_be_used_is_reported_and_made_good(event: WatchEvent) -> None:
    async with Scene("a") as scene:
        scene.source.modify_drop_watch(pod("a"))
        scene.source.send(event)
        await scene.clock.advance(1)
        assert scene.same()
        assert len(scene.failures) == 1


async def test_a_store_that_refuses_an_object_costs_no_other() -> None:
    class Picky(Store):
        def update(self, obj: Object) -> None:
            if obj.name == "a" and obj["spec"]:
                raise ValueError("no such a")
            super().update(obj)

    async with Scene("a", "b", store=Picky()) as scene:
        scene.source.modify(pod("a", x=1))
        scene.source.modify(pod("b", x=1))
        await scene.clock.settle()
        stored = scene.store.get_by_key("b")
        assert stored is not None
        assert stored.resource_version == "4"
        await scene.clock.advance(1)
        assert scene.same()


async def test_a_bookmark_moves_the_position_and_reaches_the_store() -> None:
    async with Scene("a") as scene:
        scene.source.modify_drop_watch(pod("a"))
        scene.source.send_bookmark()
        await scene.clock.settle()
        assert scene.reflector.last_sync_resource_version == "2"
        assert scene.store.last_store_sync_resource_version == "2"


async def test_initial_events_of_a_watch_from_anywhere_move_no_position() -> None:
    """They come in any order; the position is known from the first event that is no addition."""
    scene = Scene(watch_list=False)
    async with scene:
        assert scene.asked() == ["list limit=500 rv=''", "watch rv='0'"]
        objects = [scene.source.add_drop_watch(pod(name)) for name in "abc"]
        for obj in reversed(objects):
            scene.source.send(WatchEvent(ADDED, obj, obj.resource_version))
        await scene.clock.settle()
        assert scene.reflector.last_sync_resource_version == "0"
        scene.source.modify(pod("a"))
        await scene.clock.settle()
        assert scene.reflector.last_sync_resource_version == "4"


async def test_a_silent_peer_is_replaced_after_75_seconds_by_one_request() -> None:
    """client-go#374, client-go#755: a half-open connection. The watch goes on where it was."""
    async with Scene("a") as scene:
        await scene.clock.advance(61)
        scene.source.silence_watches()
        scene.source.modify(pod("a"))
        scene.asked()
        await scene.clock.advance(73)
        assert scene.asked() == []
        await scene.clock.advance(1)
        assert scene.asked() == ["watch rv='1'"]
        assert scene.same()


async def test_a_peer_that_falls_silent_before_its_first_bookmark_is_found_as_soon() -> None:
    async with Scene("a") as scene:
        scene.source.silence_watches()
        scene.source.modify(pod("a"))
        scene.asked()
        await scene.clock.advance(75)
        assert scene.asked() == ["watch rv='1'"]
        assert scene.same()


async def test_two_silences_in_a_row_mean_that_no_bookmarks_come() -> None:
    """Then a peer is given up when its watch should have ended by itself."""
    scene = Scene("a", bookmark_seconds=None)
    async with scene:
        scene.asked()
        await scene.clock.advance(150)
        assert scene.asked() == ["watch rv='1'", "list limit=1 rv=''", "watch rv='1'"]
        seconds = watch_options(scene).timeout_seconds
        scene.source.silence_watches()
        scene.source.modify(pod("a"))
        await scene.clock.advance(seconds + 9)
        assert scene.asked() == []
        await scene.clock.advance(1)
        assert scene.asked() == ["list limit=1 rv=''", "watch rv='1'"]
        assert scene.same()


async def test_silence_counts_again_when_a_bookmark_has_come() -> None:
    scene = Scene("a", bookmark_seconds=None)
    async with scene:
        await scene.clock.advance(150)
        scene.source.send_bookmark()
        await scene.clock.settle()
        scene.asked()
        await scene.clock.advance(76)
        assert scene.asked() == ["watch rv='1'"]


async def test_the_interval_of_a_server_with_rare_bookmarks_is_learnt() -> None:
    """One that sends one in two minutes loses three requests once, and none after that."""
    scene = Scene("a", bookmark_seconds=120.0)
    async with scene:
        await scene.clock.advance(150)
        scene.asked()
        seconds = watch_options(scene).timeout_seconds
        await scene.clock.advance(seconds + 200)
        assert scene.asked() == ["watch rv='1'"]
        assert len([failure for failure in scene.failures if "silent" in str(failure)]) == 2
        scene.source.silence_watches()
        await scene.clock.advance(155)
        assert scene.asked() == ["watch rv='1'"]


async def test_the_interval_is_not_learnt_from_the_bookmark_before_the_end() -> None:
    """A server sends one 2 s before the watch ends, however soon that is."""
    scene = Scene("a", bookmark_seconds=120.0)
    async with scene:
        await scene.clock.advance(150 + 120)
        seconds = watch_options(scene).timeout_seconds
        await scene.clock.advance(seconds - 120 - 2)
        scene.source.send_bookmark()
        scene.asked()
        await scene.clock.advance(2 + 125)
        assert scene.asked() == ["watch rv='1'"]


def watch_options(scene: Scene) -> WatchOptions:
    options = scene.source.requests[-1].options
    assert isinstance(options, WatchOptions)
    return options


async def test_a_quiet_watch_with_bookmarks_is_no_silent_one() -> None:
    async with Scene("a") as scene:
        options = scene.source.requests[0].options
        assert isinstance(options, WatchOptions)
        scene.asked()
        await scene.clock.advance(options.timeout_seconds - 1)
        assert scene.asked() == []
        assert not scene.failures


async def test_a_watch_that_is_not_answered_is_given_up_after_75_seconds() -> None:
    scene = Scene("a")
    scene.source.fail_watches(SILENCE)
    async with scene:
        await scene.clock.advance(74)
        assert len(scene.asked()) == 1
        await scene.clock.advance(2)
        assert scene.same()


async def test_a_list_is_given_up_that_does_not_begin_or_falls_silent() -> None:
    scene = Scene("a", watch_list=False)
    scene.source.fail_lists(SILENCE, 2)
    async with scene:
        await scene.clock.advance(149)
        assert len(scene.asked()) == 1
        await scene.clock.advance(2)
        request = scene.source.requests[1].options
        assert isinstance(request, ListOptions)
        assert request.progress is not None
        await scene.clock.advance(100)
        request.progress()
        await scene.clock.advance(74)
        assert len(scene.asked()) == 1
        await scene.clock.advance(3)
        assert scene.same()


async def test_a_server_that_was_set_back_is_noticed_after_an_outage() -> None:
    """kubernetes#107457: its versions are lower than ours, and its watch would stay deaf."""
    scene = Scene("a")
    backup = scene.source.backup()
    async with scene:
        for _ in range(5):
            scene.source.modify(pod("a"))
        await scene.clock.settle()
        scene.source.end_watches(REFUSED)
        scene.source.fail_watches(REFUSED)
        scene.source.restore(backup)
        await scene.clock.advance(10)
        assert scene.same()


async def test_a_server_that_was_set_back_is_noticed_by_its_silence() -> None:
    scene = Scene("a")
    backup = scene.source.backup()
    async with scene:
        for _ in range(5):
            scene.source.modify(pod("a"))
        await scene.clock.advance(61)
        scene.source.restore(backup)
        await scene.clock.advance(151)
        assert scene.same()


@pytest.mark.parametrize("kind", [BOOKMARK, MODIFIED])
async def test_a_version_that_goes_backwards_leads_to_a_relist(kind: str) -> None:
    async with Scene("a", "b") as scene:
        old = scene.source.objects["a"]
        scene.source.modify_drop_watch(pod("a"))
        scene.source.send(WatchEvent(kind, None if kind == BOOKMARK else old, "1"))
        await scene.clock.advance(1)
        assert scene.same()
        assert scene.reflector.statistics().relists == 2


async def test_a_deletion_may_carry_the_version_of_the_last_state() -> None:
    async with Scene("a", "b") as scene:
        scene.source.send(WatchEvent(DELETED, scene.source.objects["a"], "1"))
        await scene.clock.settle()
        assert scene.store.list_keys() == ["b"]
        assert scene.reflector.last_sync_resource_version == "2"
        assert scene.reflector.statistics().relists == 1


# --- A peer that means harm --------------------------------------------------------------------


class Flood:
    """A `ListerWatcher` whose watches never wait: the same batch again and again."""

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
    """The event loop gets its turn all the while, and nobody is told of each of a thousand."""
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
    """A `ListerWatcher` whose lists have no end."""

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
    """New tokens and a new object in each page are progress, and yet have no end."""
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


# --- A resource that is defined no more ----------------------------------------------------------


@pytest.mark.parametrize("watch_list", [True, False])
async def test_what_is_defined_no_more_is_gone_within_30_seconds_and_listed_when_it_is_back(
    watch_list: bool,
) -> None:
    async with Scene("a", "b", watch_list=watch_list) as scene:
        await scene.clock.advance(100)
        scene.source.defined = False
        scene.source.end_watches()
        await scene.clock.advance(30)
        assert scene.store.list_keys() == []
        assert scene.source.inquiries == 1
        scene.asked()
        await scene.clock.advance(600)
        assert len(scene.asked()) <= 40
        assert scene.source.inquiries == 1
        scene.source.delete("a")
        scene.source.defined = True
        await scene.clock.advance(31)
        assert scene.store.list_keys() == ["b"]
        assert scene.same()
        scene.source.add(pod("c"))
        await scene.clock.settle()
        assert scene.same()


@pytest.mark.parametrize("knows", [True, False])
async def test_a_404_alone_empties_nothing(knows: bool) -> None:
    """A replica that has just started, or an older one, says so too."""
    scene = Scene("a", "b")
    if knows:
        scene.source.provable = False
    else:
        source = scene.source
        plain = SimpleNamespace(list=source.list, watch=source.watch)
        scene.reflector = Reflector(
            cast("ListerWatcher", plain), scene.store, clock=scene.clock, on_error=lambda _: None
        )
    async with scene:
        await scene.clock.advance(100)
        scene.source.defined = False
        scene.source.end_watches()
        scene.asked()
        await scene.clock.advance(60)
        assert len(scene.asked()) <= 12
        await scene.clock.advance(600)
        assert len(scene.asked()) <= 40
        assert scene.store.list_keys() == ["a", "b"]
        scene.source.defined = True
        scene.source.add(pod("c"))
        await scene.clock.advance(61)
        assert scene.same()


async def test_an_inquiry_that_fails_is_reported_and_repeated() -> None:
    scene = Scene("a")
    is_gone = scene.source.is_gone
    answers: list[Exception] = [DisconnectedError("reset by peer"), RuntimeError("?")]

    async def inquire() -> bool:
        if answers:
            raise answers.pop()
        return await is_gone()

    scene.source.is_gone = inquire  # type: ignore[method-assign]  # a fault
    async with scene:
        scene.source.defined = False
        scene.source.end_watches()
        await scene.clock.advance(60)
        assert scene.store.list_keys() == []
        told = [f for f in scene.failures if isinstance(f, Failure)]
        assert [f.doing for f in told].count("look for the definition") == 2


class Resyncs(Store):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def resync(self) -> None:
        self.count += 1
        if self.count == 2:
            raise RuntimeError("not now")


async def test_resyncs_go_on_whatever_the_watch_does_and_they_raise() -> None:
    store = Resyncs()
    scene = Scene("a", store=store, resync_period=10)
    scene.source.fail_watches(REFUSED, math.inf)
    async with scene:
        await scene.clock.advance(45)
        assert store.count == 4
        assert any(isinstance(f, Failure) and f.doing == "resync" for f in scene.failures)


def open_watch(_: Scene) -> None: ...
def hang_lists(scene: Scene) -> None:
    scene.source.watch_list = "invalid"
    scene.source.fail_lists(SILENCE)


def hang_watches(scene: Scene) -> None:
    scene.source.fail_watches(SILENCE)


def refuse(scene: Scene) -> None:
    scene.source.fail_watches(REFUSED, math.inf)


def no_end(scene: Scene) -> None:
    scene.source.watch_list = "ignored"


@pytest.mark.parametrize(
    ("setup", "state"),
    [
        (open_watch, Phase.WATCHING),
        (hang_lists, Phase.LISTING),
        (hang_watches, Phase.WATCH_LISTING),
        (no_end, Phase.WATCH_LISTING),
        (refuse, Phase.BACKING_OFF),
    ],
)
async def test_it_stops_at_once_in_every_state_and_can_begin_anew(setup: Any, state: Phase) -> None:
    scene = Scene("a")
    setup(scene)
    async with scene:
        assert scene.reflector.state is state
    assert scene.reflector.state is Phase.STOPPED
    assert scene.clock.next_timer is None
    scene.source.heal()
    scene.source.watch_list = "yes"
    async with scene:
        assert scene.same()


async def test_it_does_not_run_twice_at_once() -> None:
    async with Scene("a") as scene:
        with pytest.raises(RuntimeError, match="is already running"):
            await scene.reflector.run()


async def test_statistics_tell_how_it_is() -> None:
    scene = Scene("a", name="pods")
    async with scene:
        scene.source.modify(pod("a"))
        await scene.clock.settle()
        scene.source.end_watches(DisconnectedError("reset by peer"))
        await scene.clock.advance(5)
        figures = scene.reflector.statistics()
        assert figures.state is Phase.WATCHING
        assert figures.resource_version == "2"
        assert figures.last_frame_age == 5.0
        assert figures.last_error == "pods: watch: reset by peer; next try in 0.7 s"
        assert figures.last_error_age == 5.0
        assert (figures.watches, figures.lists, figures.relists) == (2, 0, 1)
        assert (figures.events, figures.bookmarks, figures.errors) == (1, 1, 1)


async def test_failures_are_logged_unless_told_to_a_hook(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene("a", name="pods", on_error=None)
    scene.source.fail_watches(REFUSED, math.inf)
    with caplog.at_level(logging.WARNING, "listwatch"):
        async with scene:
            await scene.clock.advance(60)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("pods: watch with initial events: nobody listens; next try in 0.")
    assert len(lines) <= scene.reflector.statistics().errors


async def become_undecodable(scene: Scene) -> None:
    scene.source.poison.add("b")
    scene.source.modify_drop_watch(pod("b"))
    scene.source.reset_watch()
    await scene.clock.advance(5)
    assert scene.reflector.statistics().relists == 2


@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_store_keeps_what_has_become_undecodable(watch_list: bool) -> None:
    """It is not taken for deleted."""
    async with Scene("a", "b", watch_list=watch_list) as scene:
        await become_undecodable(scene)
        assert sorted(scene.store.list_keys()) == ["a", "b"]


def undecodable(kind: str, key: str) -> WatchEvent:
    error = ObjectDecodeError("no object", key=key)
    return WatchEvent(kind, resource_version="9", error=error)


@pytest.mark.parametrize(
    "events",
    [
        (WatchEvent(ADDED, Object.from_dict(pod("b"))), undecodable(DELETED, "b")),
        (undecodable(ADDED, "b"), undecodable(DELETED, "b")),
        (WatchEvent(DELETED, Object.from_dict(pod("b"))), undecodable(ADDED, "b")),
    ],
)
async def test_what_ends_among_the_initial_events_is_not_kept(events: Sequence[WatchEvent]) -> None:
    async with Scene("a", "b") as scene:
        assert scene.store.list_keys() == ["a", "b"]
        begin = WatchEvent(ADDED, scene.source.objects["a"])
        end = WatchEvent(BOOKMARK, resource_version="9", initial_events_end=True)
        scene.source.script_watches(WatchScript(backlog=False, events=[begin, *events, end]))
        scene.reflector.relist()
        await scene.clock.advance(5)
        assert scene.reflector.statistics().relists == 2
        assert scene.store.list_keys() == ["a"]


@pytest.mark.parametrize("watch_list", [True, False])
@pytest.mark.parametrize("processed", [True, False])
async def test_a_queue_tells_no_deletion_of_what_has_become_undecodable(
    watch_list: bool, processed: bool
) -> None:
    """Whether it still waits in the queue or is among the known objects."""
    known = Store()
    queue = DeltaFIFO(known_objects=known)
    told: list[DeltaType] = []

    def process(deltas: Deltas) -> None:
        told.extend(delta.type for delta in deltas)
        item = deltas.newest().object
        assert isinstance(item, Object)
        known.add(item)

    async with Scene("a", "b", store=queue, watch_list=watch_list) as scene:
        while processed and len(queue):
            await queue.pop(process)
        await become_undecodable(scene)
        while len(queue):
            await queue.pop(process)
    assert set(told) == {DeltaType.SYNC}
    assert sorted(known.list_keys()) == ["a", "b"]


class Takes:
    """A store that only writes down."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def add(self, obj: Object) -> None:
        self.taken.append(f"add {obj.key}")

    def update(self, obj: Object) -> None:
        self.taken.append(f"update {obj.key}")

    def delete(self, obj: Item) -> None:
        self.taken.append(f"delete {obj.key}")

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        self.taken.append(f"replace {len(objs)} {resource_version}")

    def resync(self) -> None:
        self.taken.append("resync")

    def bookmark(self, resource_version: str) -> None:
        self.taken.append(f"bookmark {resource_version}")


async def test_any_store_is_fed_in_the_order_of_the_events() -> None:
    store: Any = Takes()
    async with Scene("a", store=store) as scene:
        scene.source.add(pod("b"))
        scene.source.modify(pod("b"))
        scene.source.delete("b")
        scene.source.send_bookmark()
        await scene.clock.settle()
    assert store.taken == ["replace 1 1", "add b", "update b", "delete b", "bookmark 4"]
