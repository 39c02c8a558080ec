"""A watch's events reach the store; silence, lost events, and recovery."""

import pytest

from cache.reflector_scene import REFUSED, Scene
from listwatch.cache.failures import Failure
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    MODIFIED,
    ListOptions,
    WatchEvent,
    WatchOptions,
)
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.store import Store
from listwatch.errors import (
    DisconnectedError,
    FrameError,
)
from listwatch.objects import Object, ObjectDecodeError
from listwatch.testing.fake_controller_source import (
    SILENCE,
    pod,
)


async def test_a_lost_event_leads_to_a_relist_and_the_others_are_not_held_up() -> None:
    """An undecodable event must not leave a stale object forever."""
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


@pytest.mark.parametrize("stopped", [True, False])
async def test_how_far_a_watch_came_is_known_after_its_end(stopped: bool) -> None:
    async with Scene("a") as scene:
        scene.source.modify(pod("a"))
        await scene.clock.settle()
        if not stopped:
            scene.source.fail_watches(REFUSED)
            scene.source.end_watches(DisconnectedError("cut"))
            await scene.clock.settle()
            assert scene.reflector.state is Phase.BACKING_OFF
            assert scene.reflector.last_sync_resource_version == "2"
    assert scene.reflector.last_sync_resource_version == "2"
    assert scene.reflector.statistics().resource_version == "2"


async def test_initial_events_of_a_watch_from_anywhere_move_no_position() -> None:
    """They come in any order; the first event other than an addition gives the position."""
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
    """client-go#374, client-go#755: a half-open connection. The watch resumes at its position."""
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
    """Then the watch is given up when it should have ended by itself."""
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
    """A bookmark every two minutes costs three extra requests once, and none after that."""
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
    """A server sends a bookmark 2 s before a watch ends, however short the watch is."""
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
    """kubernetes#107457: its versions are lower than ours, and a watch would hear nothing."""
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
