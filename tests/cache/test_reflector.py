"""The reflector's requests, and the changes its store gets."""

import logging
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cache.reflector_scene import REFUSED, Scene
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Deltas, DeltaType, Item
from listwatch.cache.failures import Failure
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    ListerWatcher,
    ListOptions,
    WatchEvent,
    WatchOptions,
)
from listwatch.cache.reflector import Reflector
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.store import Store
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
    WatchScript,
    pod,
)


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
    """The first page asks for no version: with "0", a server ignores the limit."""
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
    """kubernetes#140890, kubernetes#135895: the watch-list was retried forever."""
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
    """A stream cut in the middle changes nothing in the store, and its versions go unused."""
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
            scene.source.delete(pod("a"))  # on the first page only
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
    """kubernetes#107133, kubernetes#91073: the refused version is not requested again."""
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
    """A list of one item checks that it is the same server; then the watch resumes."""
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


# --- A resource whose definition is deleted ------------------------------------------------------


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
    """A server replica that has just started, or is older, answers 404 too."""
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
    """An undecodable object does not count as deleted."""
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
    """Neither for an object in the queue nor for a known one."""
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
    """A store that only records its calls."""

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
