"""Every recording of a real server, replayed to the client in its original pieces."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from listwatch.cache.list_watch import (
    BOOKMARK,
    ERROR,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
)
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.discovery import Resource
from listwatch.clock import FakeClock
from listwatch.errors import (
    AlreadyExistsError,
    ConflictError,
    DisconnectedError,
    ExpiredError,
    ForbiddenError,
    FrameError,
    InternalServerError,
    InvalidError,
    ListWatchError,
    NotAcceptableError,
    NotFoundError,
    ServerTimeoutError,
    ServiceUnavailableError,
    StatusError,
    TooManyRequestsError,
    UnauthorizedError,
    UnsupportedMediaTypeError,
)
from listwatch.objects import Object, ObjectDecoder
from listwatch.testing.replay_server import Capture, ReplayServer

pytestmark = pytest.mark.usefixtures("transport")

WIRE = Path(__file__).parents[1] / "data" / "conformance" / "wire"
INDEX = [entry["name"] for entry in json.loads((WIRE / "index.json").read_bytes())]
PODS = Resource(version="v1", plural="pods", kind="Pod")
WIDGETS = Resource(group="example.com", version="v1", plural="widgets", kind="Widget")

#: Keeps every field, so that the result can be compared with the recording.
whole = ObjectDecoder(keep_managed_fields=True)

Read = Callable[[Client], Awaitable[Any]]


def load(name: str) -> Capture:
    return Capture.load(WIRE, name)


async def replay(capture: Capture, read: Read) -> Any:
    async with ReplayServer([capture]) as server:
        config = Config(server=server.url, token="admin-token")
        async with Client.from_config(config) as client:
            return await read(client)


async def list_pods(client: Client) -> object:
    return await client.list_watch(PODS, "shop").list(ListOptions())


async def list_widgets(client: Client) -> object:
    return await client.list_watch(WIDGETS, "shop").list(ListOptions())


def watching(resource: Resource, count: int | None = None) -> Read:
    """Read a watch to its end, or `count` events if the recording left it open."""

    async def read(client: Client) -> object:
        events: list[WatchEvent] = []
        async with client.list_watch(resource, "shop").watch(WatchOptions()) as stream:
            async for batch in stream:
                events += batch
                if count is not None and len(events) >= count:
                    break
        return events

    return read


async def get_pod(client: Client) -> object:
    return await client.get(PODS, "p", "shop")


CONFIG_MAP = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}}
CONFIG_MAPS = Resource(version="v1", plural="configmaps", kind="ConfigMap")


async def create(client: Client) -> object:
    return await client.create(CONFIG_MAP, resource=CONFIG_MAPS, namespace="shop")


async def update(client: Client) -> object:
    return await client.update(CONFIG_MAP, resource=CONFIG_MAPS, namespace="shop")


async def readyz(client: Client) -> object:
    return (await client.http.request("GET", "/readyz")).body


REFUSED: dict[str, tuple[Read, type[ListWatchError], int, float | None, str]] = {
    "create-409": (create, AlreadyExistsError, 409, None, "already exists"),
    "create-422": (create, InvalidError, 422, None, "is invalid"),
    "get-404": (get_pod, NotFoundError, 404, None, "not found"),
    "get-404-crd": (get_pod, NotFoundError, 404, None, "404 page not found"),
    "list-401": (list_pods, UnauthorizedError, 401, None, "Unauthorized"),
    "list-403": (list_pods, ForbiddenError, 403, None, "cannot list"),
    "list-410-continue": (list_pods, ExpiredError, 410, None, "continue"),
    "list-410-exact": (list_pods, ExpiredError, 410, None, "too old"),
    "list-429": (list_pods, TooManyRequestsError, 429, 1.0, "Too many requests, please try again"),
    "list-504-too-large-rv": (
        list_pods,
        ServerTimeoutError,
        504,
        1.0,
        "Too large resource version",
    ),
    "not-acceptable-406": (list_pods, NotAcceptableError, 406, None, "Available representations"),
    "outage-create-504-1": (create, ServerTimeoutError, 504, None, "context deadline exceeded"),
    "startup-403-0": (readyz, ForbiddenError, 403, None, "cannot get path"),
    "startup-500-0": (readyz, InternalServerError, 500, None, "[+]ping ok [+]log ok"),
    "startup-503-0": (list_widgets, ServiceUnavailableError, 503, 5.0, "before all known HTTP"),
    "startup-crd-group-503": (readyz, ServiceUnavailableError, 503, 5.0, "before all known HTTP"),
    "startup-crd-widgets-429": (list_widgets, TooManyRequestsError, 429, 1.0, "(re)initializing"),
    "startup-crd-widgets-503": (list_widgets, ServiceUnavailableError, 503, 5.0, "known HTTP"),
    "startup-crd-widgets-discovery-503": (readyz, ServiceUnavailableError, 503, 5.0, "known HTTP"),
    "startup-crd-widgets-watch-503": (
        watching(WIDGETS),
        ServiceUnavailableError,
        503,
        5.0,
        "known HTTP",
    ),
    "unsupported-415": (create, UnsupportedMediaTypeError, 415, None, "media type"),
    "update-409": (update, ConflictError, 409, None, "the object has been modified"),
    "watch-403": (watching(PODS), ForbiddenError, 403, None, "cannot watch"),
    "watch-429": (watching(PODS), TooManyRequestsError, 429, 1.0, "Too many requests"),
}

BROKEN: dict[str, Read] = {
    "outage-get-none-1": get_pod,
    "outage-list-page-none-1": list_pods,
    "outage-list-slow-none-1": list_pods,
}

EVENTS = Resource(version="v1", plural="events", kind="Event")

# The number of items, whether more pages follow, and the number of remaining items.
LISTS: dict[str, tuple[Resource, int, bool, int | None]] = {
    "list-410-continue-inconsistent": (EVENTS, 2, True, 2),
    "list-empty": (PODS, 0, False, None),
    "list-paged-1": (PODS, 25, True, 35),
    "list-paged-2": (PODS, 25, True, 10),
    "list-paged-3": (PODS, 10, False, None),
    "list-partial-metadata": (PODS, 60, False, None),
    "list-pods": (PODS, 60, False, None),
    "list-pods-gzip": (PODS, 60, False, None),
    "list-widgets": (WIDGETS, 20, False, None),
    "outage-list-rv0-200-1": (CONFIG_MAPS, 34, False, None),
}

# The types of the events, and whether the server ended the stream in an orderly way.
WATCHES: dict[str, tuple[Resource, list[str], bool]] = {
    "outage-watch-200-1": (CONFIG_MAPS, [], True),
    "outage-watchlist-200-1": (CONFIG_MAPS, ["ERROR"], True),
    "watch-410-compacted": (EVENTS, ["ERROR"], True),
    "watch-410-in-stream": (PODS, ["ERROR"], True),
    "watch-burst": (CONFIG_MAPS, ["ADDED"] * 20, False),
    "watch-crd-deleted": (WIDGETS, ["MODIFIED"] + ["DELETED"] * 20, True),
    "watch-gzip-asked": (CONFIG_MAPS, ["ADDED"], False),
    "watch-kill": (CONFIG_MAPS, ["ADDED"], False),
    "watch-large-event": (CONFIG_MAPS, ["ADDED", "DELETED"], False),
    "watch-partial-metadata": (CONFIG_MAPS, ["ADDED"] * 28, False),
    "watch-pods": (PODS, ["ADDED", "MODIFIED", "MODIFIED", "DELETED", "BOOKMARK"], True),
    "watch-sigterm": (CONFIG_MAPS, ["ADDED", "BOOKMARK"], True),
    "watch-timeout": (CONFIG_MAPS, ["ADDED", "DELETED"], True),
    "watchlist-pods": (PODS, ["ADDED"] * 60 + ["BOOKMARK", "MODIFIED", "BOOKMARK"], True),
}

OTHER = {
    "connection-close",
    "create-201",
    "create-warning",
    "during-sigterm",
    "get-configmap",
    "keep-alive",
    "list-table",
    "outage-readyz-200-1",
    "watch-table",
}


def test_every_recording_is_replayed() -> None:
    assert sorted([*REFUSED, *BROKEN, *LISTS, *WATCHES, *OTHER]) == sorted(INDEX)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_the_error_of_its_kind(name: str) -> None:
    read, kind, code, retry_after, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        await replay(load(name), read)
    error = caught.value
    assert isinstance(error, StatusError)
    assert type(error) is kind
    assert (error.code, error.retry_after) == (code, retry_after)
    assert words in str(error)


@pytest.mark.parametrize("name", BROKEN)
async def test_no_answer_at_all_is_a_broken_connection(name: str) -> None:
    with pytest.raises(DisconnectedError, match="closed the connection") as caught:
        await replay(load(name), BROKEN[name])
    assert not caught.value.refused


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_is_what_its_body_says(name: str) -> None:
    resource, count, more, remaining = LISTS[name]
    capture = load(name)

    async def read(client: Client) -> ObjectList:
        source = client.list_watch(resource, "shop", metadata_only="partial" in name)
        return await source.list(ListOptions(decoder=whole))

    answer = await replay(capture, read)
    body = capture.body()
    body = gzip.decompress(body) if name == "list-pods-gzip" else body
    expected = json.loads(body)
    assert [json.loads(obj.raw) for obj in answer.items] == expected["items"]
    assert len(answer.items) == count
    assert {(obj.kind, obj.api_version) for obj in answer.items} <= {
        (resource.kind, resource.api_version),
        ("PartialObjectMetadata", "meta.k8s.io/v1"),
    }
    assert answer.resource_version == expected["metadata"]["resourceVersion"]
    assert (bool(answer.continue_token), answer.remaining) == (more, remaining)
    assert answer.undecodable == []


@pytest.mark.parametrize("name", WATCHES)
async def test_a_watch_is_what_its_body_says(name: str) -> None:
    resource, types, has_end = WATCHES[name]
    capture = load(name)
    expected = [json.loads(line) for line in capture.body().splitlines()]
    assert [event["type"] for event in expected] == types
    events: list[WatchEvent] = []

    async def read(client: Client) -> None:
        source = client.list_watch(resource, "shop", metadata_only="partial" in name)
        async with source.watch(WatchOptions(decoder=whole)) as stream:
            async for batch in stream:
                events.extend(batch)
                if len(events) >= len(types) and not has_end and name != "watch-kill":
                    break

    if name == "watch-kill":
        with pytest.raises(DisconnectedError, match="broke within a response"):
            await replay(capture, read)
    else:
        await replay(capture, read)
    assert [event.type for event in events] == types
    for event, line in zip(events, expected, strict=True):
        version = line["object"].get("metadata", {}).get("resourceVersion", "")
        assert event.resource_version == version
        if event.object is not None:
            assert json.loads(event.object.raw) == line["object"]
        assert (event.object is None) == (event.type in {BOOKMARK, ERROR})
    assert [i for i, event in enumerate(events) if event.initial_events_end] == (
        [60] if name == "watchlist-pods" else []
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("outage-watchlist-200-1", InternalServerError),
        ("watch-410-compacted", ExpiredError),
        ("watch-410-in-stream", ExpiredError),
    ],
)
async def test_an_error_within_a_watch_is_of_its_kind(name: str, kind: type[StatusError]) -> None:
    (event,) = await replay(load(name), watching(PODS))
    assert type(event.error) is kind


@pytest.mark.parametrize("name", ["list-table", "watch-table"])
async def test_a_table_is_no_list_and_no_object(name: str) -> None:
    capture = load(name)
    if name == "list-table":
        with pytest.raises(FrameError, match="the body is Table"):
            await replay(capture, list_pods)
        return
    lines = capture.body().splitlines()
    events = await replay(capture, watching(PODS, len(lines)))
    assert len(events) == len(lines) > 0
    assert {type(event.error) for event in events} == {FrameError}


@pytest.mark.parametrize("name", ["create-201", "create-warning", "get-configmap"])
async def test_an_object_is_what_its_body_says(name: str, caplog: pytest.LogCaptureFixture) -> None:
    capture = load(name)

    async def get(client: Client) -> Object:
        return await client.get(CONFIG_MAPS, "c", "shop")

    obj = await replay(capture, get if name == "get-configmap" else create)
    assert json.loads(obj.raw) == json.loads(capture.body())
    warned = 'unknown field "nope"' in caplog.text
    assert warned == (name == "create-warning")


@pytest.mark.parametrize("name", ["connection-close", "during-sigterm"])
async def test_a_connection_that_the_server_closes_is_not_used_again(name: str) -> None:
    async with (
        ReplayServer([load(name), load("get-configmap")]) as server,
        Client.from_config(Config(server=server.url)) as client,
    ):
        for _ in range(2):
            assert (await client.get(CONFIG_MAPS, "c", "shop")).kind == "ConfigMap"
    assert server.connections == 2


async def test_one_connection_serves_many_requests() -> None:
    both = load("keep-alive")
    at = both.response.index(b"HTTP/1.1", 1)
    answers = [
        Capture(name=str(n), response=part)
        for n, part in enumerate((both.response[:at], both.response[at:]))
    ]
    async with (
        ReplayServer([*answers, load("list-429"), load("get-configmap")]) as server,
        Client.from_config(Config(server=server.url)) as client,
    ):
        first = await client.http.request("GET", "/first")
        with pytest.raises(NotFoundError, match="nope"):
            await client.http.request("GET", "/second")
        with pytest.raises(TooManyRequestsError):
            await client.http.request("GET", "/third")
        assert (await client.get(CONFIG_MAPS, "c", "shop")).kind == "ConfigMap"
    assert first.body == answers[0].body()
    assert server.connections == 1


async def test_readyz_answers_words() -> None:
    assert await replay(load("outage-readyz-200-1"), readyz) == b"ok"


async def test_the_recorded_pauses_are_kept_on_the_clock() -> None:
    """Events and the end of the stream come with the recorded delays."""
    clock = FakeClock()
    capture = load("watch-pods")
    times: list[float] = []
    begin = clock.now()

    async def read(client: Client) -> None:
        async with client.list_watch(PODS, "shop").watch(WatchOptions()) as stream:
            async for batch in stream:
                times.extend([clock.now() - begin] * len(batch))

    async with (
        ReplayServer([capture], clock=clock) as server,
        Client.from_config(Config(server=server.url), clock=clock) as client,
        asyncio.TaskGroup() as tasks,
    ):
        reading = tasks.create_task(read(client))
        while not reading.done():
            await clock.advance(0.1)
    assert len(times) == 5
    assert times[-1] - times[0] == pytest.approx(capture.reads[-2][0] - capture.reads[0][0], abs=1)


@pytest.mark.parametrize("name", ["watch-pods", "list-pods", "list-pods-gzip", "list-429"])
@pytest.mark.parametrize("size", [1, 17, 1000])
async def test_the_client_reads_the_same_however_the_wire_is_cut(name: str, size: int) -> None:
    capture = load(name)
    if size == 1:  # the head and the beginning of the body byte by byte
        capture = capture.recut([1] * 1500)
    else:
        capture = capture.recut([size] * (min(len(capture.response), 60_000) // size + 1))
    if name == "watch-pods":
        assert [e.type for e in await replay(capture, watching(PODS))] == WATCHES[name][1]
    elif name == "list-429":
        with pytest.raises(TooManyRequestsError):
            await replay(capture, list_pods)
    else:
        assert len((await replay(capture, list_pods)).items) == 60


async def test_a_list_that_is_cut_short_on_the_wire_is_no_list() -> None:
    capture = load("list-pods")
    short = msgspec.structs.replace(
        capture, response=capture.response[:200_000], end="tcp closed without TLS close_notify"
    )
    with pytest.raises(DisconnectedError):
        await replay(short.recut([50_000] * 4), list_pods)
