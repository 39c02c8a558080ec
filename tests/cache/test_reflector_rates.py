"""Requests stay few during every lasting fault, and the cache is right soon after it."""

import asyncio
import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from listwatch.cache.list_watch import BOOKMARK, ERROR, MODIFIED, WatchEvent
from listwatch.cache.reflector import Reflector
from listwatch.cache.store import Store
from listwatch.clock import FakeClock
from listwatch.errors import (
    DisconnectedError,
    ExpiredError,
    ForbiddenError,
    FrameError,
    InternalServerError,
    NotFoundError,
    ServerTimeoutError,
    TooManyRequestsError,
    UnauthorizedError,
)
from listwatch.testing.fake_controller_source import (
    END,
    SILENCE,
    Backup,
    FakeControllerSource,
    SourceFault,
    WatchScript,
    pod,
)

Setup = Callable[[FakeControllerSource], None]

REFUSED = DisconnectedError("nobody listens", refused=True)
GARBAGE = WatchEvent("", error=FrameError("not JSON"))


def everything(fault: SourceFault) -> Setup:
    def setup(source: FakeControllerSource) -> None:
        source.fail_lists(fault, math.inf)
        source.fail_watches(fault, math.inf)

    return setup


def watches(fault: SourceFault) -> Setup:
    return lambda source: source.fail_watches(fault, math.inf)


def lists(fault: SourceFault) -> Setup:
    def setup(source: FakeControllerSource) -> None:
        source.watch_list = "invalid"
        source.fail_lists(fault, math.inf)
        source.modify_drop_watch(pod("busy", missed=True))
        source.reset_watch()

    return setup


def scripted(script: WatchScript) -> Setup:
    return lambda source: source.script_watches(script, math.inf)


def one_event_then_end(source: FakeControllerSource) -> None:
    def events() -> list[WatchEvent]:
        obj = source.modify_drop_watch(pod("busy"))
        return [WatchEvent(MODIFIED, obj, obj.resource_version)]

    source.script_watches(WatchScript(events=events, then=END), math.inf)


def one_bookmark_then_end(source: FakeControllerSource) -> None:
    def events() -> list[WatchEvent]:
        return [WatchEvent(BOOKMARK, resource_version=source.resource_version)]

    source.script_watches(WatchScript(events=events, then=END), math.inf)


def watch_list_expired(source: FakeControllerSource) -> None:
    source.watch_list = ExpiredError("too old")


def no_watch_works_but_lists_do(source: FakeControllerSource) -> None:
    source.watch_list = "invalid"
    source.fail_watches(InternalServerError("no watches"), math.inf)


def no_end_bookmark(source: FakeControllerSource) -> None:
    source.watch_list = "ignored"


def no_end_bookmark_and_short_watches(source: FakeControllerSource) -> None:
    source.watch_list = "ignored"
    source.script_watches(WatchScript(then=END), math.inf)


def error_event(error: Exception) -> Setup:
    return scripted(WatchScript(events=[WatchEvent(ERROR, error=error)]))


FAULTS: dict[str, Setup] = {
    "refused": everything(REFUSED),
    "refused watches": watches(REFUSED),
    "no route": everything(DisconnectedError("no route to host")),
    "500": everything(InternalServerError("broken")),
    "500 on watches": watches(InternalServerError("broken")),
    "500 on watches, no watch-list": no_watch_works_but_lists_do,
    "500 on lists": lists(InternalServerError("broken")),
    "429": everything(TooManyRequestsError("later", retry_after=1)),
    "429 on watches": watches(TooManyRequestsError("later")),
    "429 on lists": lists(TooManyRequestsError("later")),
    "410": everything(ExpiredError("too old")),
    "410 on watches": watches(ExpiredError("too old")),
    "410 on lists": lists(ExpiredError("too old")),
    "410 in the stream": error_event(ExpiredError("too old")),
    "429 in the stream": error_event(TooManyRequestsError("later")),
    "500 in the stream": error_event(InternalServerError("broken")),
    "too large version": everything(ServerTimeoutError("Too large resource version")),
    "too large version on watches": watches(ServerTimeoutError("Too large resource version")),
    "401": everything(UnauthorizedError()),
    "403": everything(ForbiddenError()),
    "404": everything(NotFoundError()),
    "garbage instead of answers": everything(FrameError("not JSON")),
    "garbage in an open watch": scripted(WatchScript(events=[GARBAGE])),
    "garbage, then the end": scripted(WatchScript(events=[GARBAGE], then=END)),
    "instant end": scripted(WatchScript(then=END)),
    "instant end without backlog": scripted(WatchScript(backlog=False, then=END)),
    "one event, then the end": one_event_then_end,
    "one bookmark, then the end": one_bookmark_then_end,
    "cut at once": scripted(WatchScript(then=DisconnectedError("reset by peer"))),
    "half an event": scripted(WatchScript(then=FrameError("half an event"))),
    "time-outs": everything(TimeoutError("not within 75 s")),
    "watch-list expired": watch_list_expired,
    "no end bookmark": no_end_bookmark,
    "no end bookmark and short watches": no_end_bookmark_and_short_watches,
    "watches that know nothing older": scripted(
        WatchScript(events=[WatchEvent(BOOKMARK, resource_version="1")])
    ),
}


def same(store: Store, source: FakeControllerSource) -> bool:
    return {obj.key: obj for obj in store.list()} == source.objects


@pytest.mark.parametrize("synced_before", [False, True], ids=["from the start", "later"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_requests_are_few_under_a_lasting_fault_and_the_cache_is_right_after_it(
    fault: str, synced_before: bool
) -> None:
    """At most 12 in the first minute and 4 in any later one; right 30 s after the fault ends."""
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    for name in ("busy", "gone", "stays"):
        source.add(pod(name))
    failures: list[object] = []
    store = Store()
    reflector = Reflector(
        source, store, clock=clock, on_error=failures.append, rng=random.Random(fault)
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reflector.run())
        if synced_before:
            await clock.advance(100)
            assert same(store, source)
        before = len(source.requests)
        began = clock.now()
        FAULTS[fault](source)
        source.end_watches(DisconnectedError("reset by peer"))
        await clock.advance(900)
        times = [request.at - began for request in source.requests[before:]]
        assert sum(at < 60 for at in times) <= 12, times
        for at in times:
            in_a_minute = [other for other in times if at <= other < at + 60]
            assert at < 60 or len(in_a_minute) <= 4, in_a_minute

        source.heal()
        source.watch_list = "yes"
        source.delete("gone")
        source.add(pod("new"))
        await clock.advance(30)
        assert same(store, source)
        source.modify(pod("stays", late=True))
        await clock.advance(30)
        assert same(store, source)
        running.cancel()
    assert failures


async def test_silence_of_everything_is_noticed_and_survived() -> None:
    """A silent peer is given up after 75 s, and gets few requests while the silence lasts."""
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))
    store = Store()
    reflector = Reflector(source, store, clock=clock, on_error=lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reflector.run())
        await clock.advance(100)
        before = len(source.requests)
        source.silence_watches()
        everything(SILENCE)(source)
        source.modify_drop_watch(pod("a", changed=True))
        await clock.advance(75)
        assert len(source.requests) == before + 1
        await clock.advance(1200)
        assert len(source.requests) - before <= 15
        source.heal()
        await clock.advance(150 + 30)
        assert same(store, source)
        running.cancel()


def compacted(source: FakeControllerSource) -> None:
    source.reset_watch()


def restored(source: FakeControllerSource) -> None:
    source.restore(Backup({}, 1))


def as_it_was(_: FakeControllerSource) -> None: ...


@pytest.mark.parametrize(
    ("away", "meanwhile"),
    [
        (0.5, as_it_was),
        (0.5, compacted),
        (30.0, as_it_was),
        (30.0, restored),
        (900.0, compacted),
        (900.0, restored),
    ],
)
@pytest.mark.parametrize("watch_list", ["yes", "invalid"])
async def test_after_an_outage_the_cache_is_right_soon_however_long_it_was(
    away: float, watch_list: Any, meanwhile: Setup
) -> None:
    """After refused connections: within 5 s (median) and 10 s (worst) of the server's return."""
    took: list[float] = []
    for seed in range(5):
        clock = FakeClock()
        source = FakeControllerSource(clock=clock, watch_list=watch_list)
        for name in "abc":
            source.add(pod(name))
        store = Store()
        reflector = Reflector(
            source, store, clock=clock, on_error=lambda _: None, rng=random.Random(seed)
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(reflector.run())
            await clock.advance(100)
            assert same(store, source)
            source.refuse()
            before = len(source.requests)
            await clock.advance(away)
            assert len(source.requests) == before
            meanwhile(source)
            source.accept()
            source.add(pod("new"))
            began = clock.now()
            while not same(store, source):
                await clock.advance(0.1)
                assert clock.now() - began <= 10
            took.append(clock.now() - began)
            assert len(source.requests) - before <= 4
            running.cancel()
    assert statistics.median(took) <= 5


async def test_a_server_that_comes_and_goes_is_not_asked_often() -> None:
    """Every return makes the waits short again, and still the requests stay few."""
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))
    store = Store()
    reflector = Reflector(source, store, clock=clock, on_error=lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reflector.run())
        await clock.advance(100)
        before, began = len(source.requests), clock.now()
        for _ in range(150):
            source.refuse()
            await clock.advance(3)
            source.accept()
            await clock.advance(3)
        times = [request.at - began for request in source.requests[before:]]
        assert sum(at < 60 for at in times) <= 12, times
        for at in times:
            assert at < 60 or sum(at <= other < at + 60 for other in times) <= 4, times
        source.add(pod("b"))
        await clock.advance(60)
        assert same(store, source)
        running.cancel()
