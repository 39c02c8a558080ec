"""The fake source behaves like a server, even where that is inconvenient."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from listwatch.cache.list_watch import (
    BOOKMARK,
    ListerWatcher,
    ListOptions,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.clock import FakeClock
from listwatch.errors import (
    AlreadyExistsError,
    DisconnectedError,
    ExpiredError,
    InvalidError,
    NotFoundError,
    ServerTimeoutError,
)
from listwatch.objects import Object
from listwatch.testing.fake_controller_source import (
    END,
    SILENCE,
    FakeControllerSource,
    WatchScript,
    pod,
)


def a_source(*names: str, **options: Any) -> FakeControllerSource:
    source = FakeControllerSource(clock=FakeClock(), **options)
    for name in names:
        source.add(pod(name))
    return source


class Reader:
    """Read a watch in a task."""

    def __init__(self, source: ListerWatcher, **options: Any) -> None:
        self.source = source
        self.options = WatchOptions(**options)
        self.events: list[WatchEvent] = []
        self.error: Exception | None = None
        self.ended = False
        self._task: asyncio.Task[None] | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "list[WatchEvent]":
        stream = await self._stack.enter_async_context(self.source.watch(self.options))
        self._task = asyncio.ensure_future(self._read(stream))
        await settle()
        return self.events

    async def _read(self, stream: WatchStream) -> None:
        try:
            async for batch in stream:
                self.events += batch
        except DisconnectedError as error:
            self.error = error
        self.ended = True

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._stack.aclose()


async def settle() -> None:
    await FakeClock().settle()


def words(events: Sequence[WatchEvent]) -> list[str]:
    return [
        " ".join(
            [
                event.type,
                event.object.name if event.object else "-",
                event.resource_version,
                *(["end"] if event.initial_events_end else []),
            ]
        )
        for event in events
    ]


async def test_it_is_a_lister_watcher() -> None:
    assert isinstance(a_source(), ListerWatcher)
    assert isinstance(a_source().list_watch(namespace="x"), ListerWatcher)


async def test_every_change_takes_the_next_version() -> None:
    source = a_source("a")
    assert source.objects["a"].resource_version == "1"
    assert source.modify(pod("a", x=1)).resource_version == "2"
    assert source.delete("a").resource_version == "3"
    assert source.add(pod("a")).resource_version == "4"
    assert source.resource_version == "4"


async def test_an_object_lives_under_one_uid() -> None:
    source = a_source("a")
    first = source.objects["a"].uid
    assert source.modify(pod("a")).uid == first
    source.delete(pod("a"))
    assert source.add(pod("a")).uid not in {first, ""}
    assert source.add(pod("own", uid="u")).uid == "u"


async def test_names_are_taken_or_missing() -> None:
    source = a_source("a")
    with pytest.raises(AlreadyExistsError, match="'a' already exists"):
        source.add(pod("a"))
    with pytest.raises(NotFoundError, match="'b' not found"):
        source.modify(pod("b"))
    with pytest.raises(NotFoundError, match="'b' not found"):
        source.delete("b")


async def test_what_is_given_and_what_is_got_are_copies() -> None:
    source = a_source()
    given = pod("a")
    source.add(given)
    assert "resourceVersion" not in given["metadata"]
    given["spec"]["changed"] = True
    listed = (await source.list(ListOptions())).items[0]
    assert listed["spec"] == {}
    assert listed is not source.objects["a"]


async def test_a_list_has_the_order_of_keys_and_the_present_version() -> None:
    source = a_source("c", "a", "b")
    page = await source.list(ListOptions())
    assert [obj.key for obj in page.items] == ["a", "b", "c"]
    assert (page.resource_version, page.continue_token, page.remaining) == ("3", "", None)


async def test_pages_are_of_one_version() -> None:
    source = a_source("a", "b", "c")
    first = await source.list(ListOptions(limit=2))
    assert ([obj.key for obj in first.items], first.remaining) == (["a", "b"], 1)
    source.delete("c")
    second = await source.list(ListOptions(limit=2, continue_token=first.continue_token))
    assert [obj.key for obj in second.items] == ["c"]
    assert second.resource_version == first.resource_version == "3"
    assert second.continue_token == ""


async def test_pages_expire_with_a_reset() -> None:
    source = a_source("a", "b")
    first = await source.list(ListOptions(limit=1))
    source.reset_watch()
    with pytest.raises(ExpiredError, match="continue"):
        await source.list(ListOptions(continue_token=first.continue_token))


async def test_a_version_of_zero_ignores_the_limit() -> None:
    source = a_source("a", "b")
    page = await source.list(ListOptions(resource_version="0", limit=1))
    assert len(page.items) == 2


async def test_a_list_from_the_future_is_refused() -> None:
    with pytest.raises(ServerTimeoutError) as caught:
        await a_source("a").list(ListOptions(resource_version="9"))
    assert caught.value.is_too_large_resource_version


async def test_a_watch_brings_what_came_since_its_version_and_what_comes() -> None:
    source = a_source("a", "b", "c")
    async with Reader(source, resource_version="1") as events:
        source.modify(pod("a"))
        source.delete("b")
        await settle()
        assert words(events) == ["ADDED b 2", "ADDED c 3", "MODIFIED a 4", "DELETED b 5"]
    assert source.open_watches == 0


async def test_a_watch_from_anywhere_begins_with_what_there_is() -> None:
    source = a_source("b", "a")
    async with Reader(source, resource_version="0") as events:
        assert words(events) == ["ADDED a 2", "ADDED b 1"]


async def test_initial_events_end_with_a_bookmark_that_says_so() -> None:
    source = a_source("a")
    async with Reader(source, send_initial_events=True) as events:
        assert words(events) == ["ADDED a 1", "BOOKMARK - 1 end"]


async def test_initial_events_may_be_unknown_or_without_end() -> None:
    source = a_source("a", watch_list="ignored")
    async with Reader(source, send_initial_events=True) as events:
        assert words(events) == ["ADDED a 1"]
    source.watch_list = "invalid"
    with pytest.raises(InvalidError, match="sendInitialEvents"):
        await Reader(source, send_initial_events=True).__aenter__()


async def test_a_version_from_before_a_reset_is_expired() -> None:
    source = a_source("a", "b")
    reader = Reader(source, resource_version="2")
    async with reader:
        source.reset_watch()
        await settle()
        assert reader.ended
    with pytest.raises(ExpiredError, match=r"too old resource version: 1 \(2\)"):
        await Reader(source, resource_version="1").__aenter__()
    async with Reader(source, resource_version="2") as events:
        assert events == []


async def test_dropped_changes_reach_lists_and_older_watches_only() -> None:
    source = a_source("a")
    async with Reader(source, resource_version="1") as events:
        source.modify_drop_watch(pod("a"))
        source.add_drop_watch(pod("b"))
        source.delete_drop_watch("b")
        await settle()
        assert events == []
    async with Reader(source, resource_version="1") as events:
        assert words(events) == ["MODIFIED a 2", "ADDED b 3", "DELETED b 4"]


async def test_selectors_see_objects_come_and_go() -> None:
    """Leaving the selection is a deletion with the last selected state and the new version."""
    source = a_source()
    chosen = source.list_watch(label_selector="on=y", namespace="ns")
    source.add(pod("a", "ns", labels={"on": "y"}))
    source.add(pod("a", "other", labels={"on": "y"}))
    source.add(pod("b", "ns"))
    assert [obj.key for obj in (await chosen.list(ListOptions())).items] == ["ns/a"]
    async with Reader(chosen, resource_version="3") as events:
        source.modify(pod("b", "ns", labels={"on": "y"}))
        source.modify(pod("b", "ns", labels={"on": "y", "more": "1"}))
        source.modify(pod("b", "ns"))
        source.delete("ns/b")
        await settle()
        assert words(events) == ["ADDED b 4", "MODIFIED b 5", "DELETED b 6"]
        last = events[-1].object
        assert last is not None
        assert last.labels == {"on": "y", "more": "1"}
        assert last.resource_version == "6"


async def test_fields_select_too() -> None:
    source = a_source("a")
    source.add(pod("b", nodeName="n1"))
    chosen = source.list_watch(field_selector="spec.nodeName=n1,metadata.name!=c")
    assert [obj.key for obj in (await chosen.list(ListOptions())).items] == ["b"]


async def test_bookmarks_come_by_the_clock_and_on_demand() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock, bookmark_seconds=60)
    async with Reader(source) as events:
        await clock.advance(120)
        assert words(events) == ["BOOKMARK - 0", "BOOKMARK - 0"]
        source.add_drop_watch(pod("a"))
        source.send_bookmark()
        await settle()
        assert words(events)[2:] == ["BOOKMARK - 1"]
    async with Reader(source, allow_bookmarks=False) as events:
        await clock.advance(120)
        assert words(events) == ["ADDED a 1"]
    assert clock.next_timer is None


async def test_a_watch_ends_by_its_own_time() -> None:
    clock = FakeClock()
    reader = Reader(FakeControllerSource(clock=clock), timeout_seconds=30)
    async with reader:
        await clock.advance(29)
        assert not reader.ended
        await clock.advance(1)
        assert reader.ended


async def test_faults_are_answered_so_many_times() -> None:
    source = a_source("a")
    source.fail_lists(OSError("down"), 2)
    for _ in range(2):
        with pytest.raises(OSError, match="down"):
            await source.list(ListOptions())
    assert len((await source.list(ListOptions())).items) == 1
    source.fail_watches(OSError("down"))
    with pytest.raises(OSError, match="down"):
        await Reader(source).__aenter__()
    source.fail_lists(OSError("down"))
    source.heal()
    assert len((await source.list(ListOptions())).items) == 1


async def test_silence_answers_nothing_and_can_be_cancelled() -> None:
    source = a_source("a")
    source.fail_lists(SILENCE)
    waiting = asyncio.ensure_future(source.list(ListOptions()))
    await settle()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_scripts_say_what_watches_do() -> None:
    source = a_source("a", "b")
    bookmark = WatchEvent(BOOKMARK, resource_version="2")
    source.script_watches(WatchScript(events=[bookmark], then=END))
    source.script_watches(WatchScript(backlog=False, events=lambda: [bookmark]))
    reader = Reader(source, resource_version="1")
    async with reader as events:
        assert words(events) == ["ADDED b 2", "BOOKMARK - 2"]
        assert reader.ended
    reader = Reader(source, resource_version="1")
    async with reader as events:
        assert words(events) == ["BOOKMARK - 2"]
        assert not reader.ended


async def test_open_watches_can_be_cut_and_silenced() -> None:
    source = a_source()
    cut, deaf = Reader(source), Reader(source)
    async with cut:
        source.end_watches(DisconnectedError("reset by peer"))
        await settle()
        assert str(cut.error) == "reset by peer"
    async with deaf as events:
        source.silence_watches()
        source.add(pod("a"))
        source.end_watches()
        await settle()
        assert (events, deaf.ended) == ([], False)


async def test_poisoned_objects_can_not_be_decoded() -> None:
    source = a_source("a", "b")
    source.poison.add("b")
    page = await source.list(ListOptions())
    assert [obj.key for obj in page.items] == ["a"]
    assert [error.key for error in page.undecodable] == ["b"]
    async with Reader(source, resource_version="1") as events:
        assert words(events) == ["ADDED - 2"]
        assert events[0].error is not None


async def test_a_restored_source_is_deaf_to_watches_from_its_future() -> None:
    source = a_source("a")
    backup = source.backup()
    for _ in range(3):
        source.modify(pod("a"))
    source.restore(backup)
    assert source.resource_version == "1"
    async with Reader(source, resource_version="4") as events:
        for _ in range(4):
            source.modify(pod("a"))
        await settle()
        assert words(events) == ["MODIFIED a 5"]


async def test_readers_get_what_their_own_decoder_makes() -> None:
    source = a_source("a")

    def decode(raw: bytes, kind: str, api_version: str) -> Object:
        value = msgspec.json.decode(raw)
        return Object.from_dict({**value, "seen": [kind, api_version]})

    page = await source.list(ListOptions(decoder=decode))
    assert page.items[0]["seen"] == ["Pod", "v1"]


async def test_requests_are_written_down() -> None:
    source = a_source()
    await source.list(ListOptions(limit=7))
    async with Reader(source, resource_version="3"):
        pass
    assert [request.options for request in source.requests] == [
        ListOptions(limit=7),
        WatchOptions(resource_version="3"),
    ]


async def test_hammering_changes_loses_nothing() -> None:
    """With many writers, the events of a watch add up to the final state."""
    source = a_source()

    async def write(writer: int) -> None:
        for number in range(50):
            name = f"w{writer}-{number % 3}"
            if name in source.objects:
                if number % 2:
                    source.modify(pod(name))
                else:
                    source.delete(name)
            else:
                source.add(pod(name))
            await asyncio.sleep(0)

    async with Reader(source) as events:
        async with asyncio.TaskGroup() as tasks:
            for writer in range(5):
                tasks.create_task(write(writer))
        await settle()
        versions = [int(event.resource_version) for event in events]
        assert versions == list(range(1, 251))
        state: dict[str, Object] = {}
        for event in events:
            assert event.object is not None
            if event.type == "DELETED":
                del state[event.object.key]
            else:
                state[event.object.key] = event.object
        assert state == source.objects
