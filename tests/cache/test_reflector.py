"""The reflector's requests and what its store gets, scene by scene."""

import asyncio
import logging
import math
import random
from collections.abc import Sequence
from typing import Any, Self

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
    ListOptions,
    WatchEvent,
    WatchOptions,
)
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
from listwatch.objects import Object, ObjectDecodeError
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

    def __init__(self, *names: str, store: Any = None, **options: Any) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock)
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


async def test_a_silent_peer_that_has_sent_bookmarks_is_given_up_after_150_seconds() -> None:
    """client-go#374, client-go#755: a half-open connection."""
    async with Scene("a") as scene:
        await scene.clock.advance(61)
        scene.source.silence_watches()
        scene.source.modify(pod("a"))
        scene.asked()
        await scene.clock.advance(148)
        assert scene.asked() == []
        await scene.clock.advance(2)
        assert scene.asked() == ["list limit=1 rv=''", "watch rv='1'"]
        assert scene.same()


async def test_a_silent_peer_without_bookmarks_is_given_up_after_its_own_time() -> None:
    scene = Scene("a")
    scene.source._bookmark_seconds = None
    async with scene:
        options = scene.source.requests[0].options
        assert isinstance(options, WatchOptions)
        scene.source.silence_watches()
        scene.source.modify(pod("a"))
        scene.asked()
        await scene.clock.advance(options.timeout_seconds + 9)
        assert scene.asked() == []
        await scene.clock.advance(1)
        assert scene.asked() == ["list limit=1 rv=''", "watch rv='1'"]
        assert scene.same()


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


async def test_a_list_is_given_up_150_seconds_after_its_last_sign_of_life() -> None:
    scene = Scene("a", watch_list=False)
    scene.source.fail_lists(SILENCE)
    async with scene:
        request = scene.source.requests[0].options
        assert isinstance(request, ListOptions)
        assert request.progress is not None
        await scene.clock.advance(100)
        request.progress()
        await scene.clock.advance(149)
        assert len(scene.asked()) == 1
        await scene.clock.advance(2)
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


async def test_a_resync_that_is_not_wanted_is_left_out() -> None:
    store = Resyncs()
    async with Scene("a", store=store, resync_period=10, should_resync=lambda: False) as scene:
        await scene.clock.advance(45)
        assert store.count == 0


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
        with pytest.raises(RuntimeError, match="runs already"):
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
