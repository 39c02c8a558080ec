"""The reflector on a real server's recorded answers: lists, watches, errors."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from listwatch.cache.frames import ListFrames, WatchFrames
from listwatch.cache.list_watch import ListOptions, ObjectList, WatchEvent, WatchOptions
from listwatch.cache.reflector import Reflector
from listwatch.cache.store import Store
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError, FrameError, StatusError
from listwatch.testing.replay_server import Capture

WIRE = Path(__file__).parents[1] / "data" / "conformance" / "wire"
CUT = "cut"


class Recorded:
    """A `ListerWatcher` that answers with each recording in turn, then with silence."""

    def __init__(self, *names: str) -> None:
        self.captures = [Capture.load(WIRE, name) for name in names]
        self.asked: list[str] = []

    async def list(self, options: ListOptions) -> ObjectList:
        self.asked.append("continued" if options.continue_token else "list")
        frames = ListFrames(options.decoder)
        for piece in pieces(await self._next()):
            frames.feed(piece)
        page = frames.finish()
        if self.captures and (version := asked_version(self.captures[0])):
            # Versions are comparable only within one recording, so take the watch's own.
            page.resource_version = version
        return page

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[Any]:
        what = "watch-list" if options.send_initial_events else options.resource_version
        self.asked.append(f"watch {what}")
        yield self._stream(await self._next(), WatchFrames(options.decoder))

    async def _next(self) -> Capture:
        if not self.captures:
            await asyncio.Event().wait()
        capture = self.captures.pop(0)
        status = int(capture.response.split(b" ", 2)[1])
        if status >= 400:
            head = capture.response.split(b"\r\n\r\n", 1)[0].decode()
            after = re.search(r"(?i)retry-after: *(\d+)", head)
            try:
                body = json.loads(capture.body())
            except ValueError:  # 429 has a plain text body
                body = None
            raise StatusError.from_status(
                body, code=status, retry_after=float(after[1]) if after else None
            )
        return capture

    async def _stream(
        self, capture: Capture, frames: WatchFrames
    ) -> AsyncIterator[Sequence[WatchEvent]]:
        for piece in pieces(capture):
            yield frames.feed(piece)
        if capture.response.endswith(b"\r\n0\r\n\r\n"):
            yield frames.finish()
        elif capture.end == "open":
            await asyncio.Event().wait()
        else:
            raise DisconnectedError("the connection was cut")


def asked_version(capture: Capture) -> str:
    """Return the version that a watch started from, "0" if none."""
    line = capture.request.split(b"\r\n", 1)[0]
    found = re.search(rb"resourceVersion=(\d+)", line)
    if b"watch=" not in line or b" 200 " not in capture.response[:20]:
        return ""
    return found[1].decode() if found else "0"


def pieces(capture: Capture) -> list[bytes]:
    """Cut the body into as many pieces as were recorded, at other places."""
    body = capture.body()
    step = max(1, len(body) // max(1, len(capture.reads)))
    return [body[at : at + step] for at in range(0, len(body), step)]


def told(capture: Capture) -> dict[str, str]:
    """Return the names and versions that result from a stream's events."""
    found: dict[str, str] = {}
    for line in capture.body().split(b"\n"):
        if not line:
            continue
        event = json.loads(line)
        meta = event["object"]["metadata"]
        if event["type"] in {"ADDED", "MODIFIED"}:
            found[meta["name"]] = meta["resourceVersion"]
        elif event["type"] == "DELETED":
            found.pop(meta["name"], None)
    return found


async def reflect(*names: str, watch_list: bool = False, seconds: float = 20) -> tuple[Any, ...]:
    clock = FakeClock()
    recorded = Recorded(*names)
    store = Store()
    failures: list[Any] = []
    reflector = Reflector(
        recorded, store, clock=clock, watch_list=watch_list, on_error=failures.append
    )
    running = asyncio.ensure_future(reflector.run())
    await clock.advance(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert all(
        isinstance(f.error, StatusError | DisconnectedError | FrameError)
        or ("ended the watch" in str(f.error))
        for f in failures
    ), failures
    return store, recorded.asked, reflector


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("watch-burst", []),
        ("watch-crd-deleted", ["watch"]),
        ("watch-gzip-asked", []),
        ("watch-kill", ["watch"]),
        ("watch-large-event", []),
        ("watch-partial-metadata", []),
        ("watch-pods", ["watch"]),
        ("watch-sigterm", ["watch"]),
        ("watch-timeout", ["watch"]),
        ("outage-watch-200-1", ["watch"]),
        ("watch-410-compacted", ["list"]),
        ("watch-410-in-stream", ["list"]),
    ],
)
async def test_each_stream_is_applied_and_followed_by_what_it_calls_for(
    name: str, then: list[str]
) -> None:
    """An ended or cut stream resumes at its last version; an expired one leads to a relist."""
    store, asked, reflector = await reflect("list-empty", name)
    assert {obj.name: obj.resource_version for obj in store.list()} == told(
        Capture.load(WIRE, name)
    )
    assert [request.split()[0] for request in asked] == ["list", "watch", *then]
    if then == ["watch"]:
        assert asked[-1] == f"watch {reflector.last_sync_resource_version}"


async def test_a_stream_of_initial_events_is_the_present_state_and_the_watch() -> None:
    store, asked, reflector = await reflect("watchlist-pods", watch_list=True)
    expected = told(Capture.load(WIRE, "watchlist-pods"))
    assert {obj.name: obj.resource_version for obj in store.list()} == expected
    assert len(expected) == 60
    assert asked == ["watch watch-list", f"watch {reflector.last_sync_resource_version}"]


async def test_pages_are_one_list() -> None:
    store, asked, _ = await reflect("list-paged-1", "list-paged-2", "list-paged-3")
    assert len(store) == 60
    assert asked[:3] == ["list", "continued", "continued"]
    assert asked[3].startswith("watch")


async def test_pages_that_expire_are_listed_in_one_piece() -> None:
    store, asked, _ = await reflect("list-paged-1", "list-410-continue", "list-pods")
    assert len(store) == 60
    assert asked[:3] == ["list", "continued", "list"]


async def test_an_outage_of_the_store_leads_from_initial_events_to_a_list() -> None:
    """A watch-list ends with an error; a list from the cache follows."""
    store, asked, _ = await reflect(
        "outage-watchlist-200-1", "outage-list-rv0-200-1", watch_list=True
    )
    assert len(store) == 34
    assert [request.split()[0] for request in asked] == ["watch", "list", "watch"]


@pytest.mark.parametrize(
    "refusal", ["list-401", "list-403", "list-429", "list-504-too-large-rv", "list-410-exact"]
)
async def test_a_refused_list_is_asked_for_again(refusal: str) -> None:
    store, asked, _ = await reflect(refusal, "list-pods")
    assert len(store) == 60
    assert [request.split()[0] for request in asked] == ["list", "list", "watch"]


@pytest.mark.parametrize(
    ("refusal", "then"),
    [("watch-429", "watch"), ("startup-crd-widgets-watch-503", "list"), ("watch-403", "list")],
)
async def test_a_refused_watch_goes_on_or_is_relisted(refusal: str, then: str) -> None:
    _, asked, _ = await reflect("list-pods", refusal)
    assert [request.split()[0] for request in asked] == ["list", "watch", then]


async def test_a_custom_resource_that_is_not_served_yet_is_waited_for() -> None:
    store, asked, _ = await reflect(
        "startup-crd-widgets-503", "startup-crd-widgets-429", "list-widgets"
    )
    assert len(store) == 20
    assert [request.split()[0] for request in asked] == ["list", "list", "list", "watch"]
