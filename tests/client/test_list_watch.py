"""A reflector's source sends the list and watch requests that its options say."""

import asyncio
import json
from typing import Any

import pytest

from client.raw_server import SOON, serving
from listwatch.cache.list_watch import (
    KnowsObjects,
    ListerWatcher,
    ListOptions,
    WatchEvent,
    WatchOptions,
)
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.discovery import Resource
from listwatch.client.http import SILENCE_TIMEOUT
from listwatch.clock import FakeClock
from listwatch.errors import (
    DisconnectedError,
    FrameError,
    InternalServerError,
    NotFoundError,
    UnknownResourceError,
)
from listwatch.objects import ObjectDecoder, decode_object
from listwatch.testing.scripted_server import ScriptedServer, respond

CM = Resource(version="v1", plural="configmaps", kind="ConfigMap")
NODE = Resource(version="v1", plural="nodes", kind="Node", namespaced=False)
EMPTY = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": []}


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")


def event(name: str, **more: Any) -> bytes:
    value = {"metadata": {"name": name, "resourceVersion": "1"}, **more}
    return json.dumps({"type": "ADDED", "object": value}).encode() + b"\n"


async def test_a_cluster_scoped_resource_is_listed_as_a_whole_whatever_the_namespace(
    server: ScriptedServer, client: Client
) -> None:
    server.answers["/api/v1/nodes"] = EMPTY | {"kind": "NodeList"}
    await client.list_watch(NODE, "shop").list(ListOptions(decoder=decode))
    assert server.targets == ["GET /api/v1/nodes"]


async def test_a_list_asks_for_what_its_options_say(server: ScriptedServer, client: Client) -> None:
    server.answers["/api/v1/namespaces/shop/configmaps"] = EMPTY
    source = client.list_watch(
        CM, "shop", label_selector="a in (b,c)", field_selector="metadata.name=x"
    )
    assert isinstance(source, ListerWatcher)
    await source.list(
        ListOptions(
            resource_version="5", resource_version_match="NotOlderThan", limit=500, decoder=decode
        )
    )
    selectors = "labelSelector=a+in+%28b%2Cc%29&fieldSelector=metadata.name%3Dx"
    path = "GET /api/v1/namespaces/shop/configmaps"
    assert server.targets[-1] == (
        f"{path}?{selectors}&limit=500&resourceVersion=5&resourceVersionMatch=NotOlderThan"
    )
    await source.list(ListOptions(limit=500, continue_token="t+/="))
    assert server.targets[-1] == f"{path}?{selectors}&limit=500&continue=t%2B%2F%3D"


decode = ObjectDecoder()


async def test_a_watch_asks_for_what_its_options_say(
    server: ScriptedServer, client: Client
) -> None:
    server.answers["/api/v1/configmaps"] = chunked()
    source = client.list_watch(CM)
    async with source.watch(
        WatchOptions(
            resource_version_match="NotOlderThan", send_initial_events=True, timeout_seconds=300
        )
    ) as stream:
        assert [batch async for batch in stream] == []
    assert server.targets[-1] == (
        "GET /api/v1/configmaps?watch=true&resourceVersionMatch=NotOlderThan"
        "&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=300"
    )
    async with source.watch(WatchOptions(resource_version="9", allow_bookmarks=False)):
        pass
    assert server.targets[-1] == "GET /api/v1/configmaps?watch=true&resourceVersion=9"


async def test_the_resource_is_looked_up_once_and_late(
    server: ScriptedServer, client: Client
) -> None:
    source = client.list_watch("cm")
    assert server.requests == []
    server.answers["/api"] = {"versions": ["v1"]}
    server.answers["/apis"] = {"groups": []}
    server.answers["/api/v1"] = {"resources": []}
    with pytest.raises(UnknownResourceError, match="'gadgets'"):
        await client.list_watch("gadgets").list(ListOptions())
    server.answers["/api/v1"] = {
        "resources": [{"name": "configmaps", "kind": "ConfigMap", "shortNames": ["cm"]}]
    }
    server.answers["/api/v1/configmaps"] = EMPTY
    await source.list(ListOptions())
    asked = len(server.targets)
    await source.list(ListOptions())
    assert server.targets[asked:] == ["GET /api/v1/configmaps"]
    assert str(await source.resource()) == "configmaps"


async def test_a_resource_that_moves_to_another_version_is_found_again(
    server: ScriptedServer, client: Client
) -> None:
    def serve(version: str) -> None:
        server.answers.clear()
        named = {"groupVersion": f"e.com/{version}", "version": version}
        server.answers["/api"] = {"versions": []}
        server.answers["/apis"] = {"groups": [{"name": "e.com", "versions": [named]}]}
        listed = {"resources": [{"name": "widgets", "kind": "Widget"}]}
        server.answers[f"/apis/e.com/{version}"] = listed
        server.answers[f"/apis/e.com/{version}/widgets"] = {**EMPTY, "kind": "WidgetList"}

    serve("v1")
    source = client.list_watch("widgets")
    await source.list(ListOptions())
    serve("v2")
    with pytest.raises(NotFoundError):
        async with source.watch(WatchOptions()):
            pass
    await source.list(ListOptions())
    assert server.targets[-1] == "GET /apis/e.com/v2/widgets"
    serve("v3")
    with pytest.raises(NotFoundError):
        await source.list(ListOptions())
    await source.list(ListOptions())
    assert server.targets[-1] == "GET /apis/e.com/v3/widgets"


async def test_events_of_one_chunk_come_in_one_batch(
    server: ScriptedServer, client: Client
) -> None:
    one, two, three = (event(name) for name in "abc")
    server.answers["/api/v1/configmaps"] = chunked(one + two + three[:9], three[9:])
    async with client.list_watch(CM).watch(WatchOptions()) as stream:
        events = [event async for batch in stream for event in batch]
    assert [e.object.name for e in events if e.object] == ["a", "b", "c"]


async def test_half_an_event_at_the_orderly_end_is_an_error(
    server: ScriptedServer, client: Client
) -> None:
    server.answers["/api/v1/configmaps"] = chunked(event("a"), b'{"type":"ADD')
    names = []

    async def read() -> None:
        async with client.list_watch(CM).watch(WatchOptions()) as stream:
            async for batch in stream:
                names.extend([e.object.name for e in batch if e.object])

    with pytest.raises(FrameError, match="ended in the middle of an event"):
        await read()
    assert names == ["a"]


@pytest.mark.usefixtures("transport")
async def test_closing_the_client_ends_a_watch_that_is_read(server: ScriptedServer) -> None:
    server.answers["/api/v1/configmaps"] = chunked(event("a"), end=False)
    client = Client.from_config(Config(server=server.url))
    opened = asyncio.Event()

    async def read() -> None:
        async with client.list_watch(CM).watch(WatchOptions()) as stream:
            async for _ in stream:
                opened.set()

    asked = asyncio.Event()

    def keep_silent(_request: bytes) -> bytes:
        asked.set()
        return b""

    server.answers["/silent"] = keep_silent
    reading = asyncio.ensure_future(read())
    waiting = asyncio.ensure_future(client.http.request("GET", "/silent"))
    await opened.wait()
    await asked.wait()
    await client.close()
    async with asyncio.timeout(SOON):
        for call in (reading, waiting):
            with pytest.raises(DisconnectedError):
                await call


async def test_metadata_only_asks_for_it_and_marks_the_objects(
    server: ScriptedServer, client: Client
) -> None:
    item = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "a"},
    }
    server.answers["/api/v1/configmaps"] = {
        **EMPTY,
        "kind": "PartialObjectMetadataList",
        "items": [item],
    }
    source = client.list_watch(CM, metadata_only=True)
    answer = await source.list(ListOptions())
    assert [obj.partial for obj in answer.items] == [True]
    assert server.header("accept") == (
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    )
    server.answers["/api/v1/configmaps"] = chunked(event("b"), event("c", **item))
    async with source.watch(WatchOptions()) as stream:
        events = [event async for batch in stream for event in batch]
    # A server that does not know this format sends whole objects, which are not partial.
    assert [(e.object.name, e.object.partial) for e in events if e.object] == [
        ("b", False),
        ("a", True),
    ]
    assert server.header("accept") == (
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    )


async def test_progress_is_told_while_a_list_arrives(
    server: ScriptedServer, client: Client
) -> None:
    server.answers["/api/v1/configmaps"] = EMPTY
    told = []
    await client.list_watch(CM).list(ListOptions(progress=lambda: told.append(1)))
    assert told


async def test_a_silent_list_is_given_up(server: ScriptedServer) -> None:
    clock = FakeClock()
    server.answers["/api/v1/configmaps"] = chunked(b'{"items":[', end=False)
    async with Client.from_config(Config(server=server.url), clock=clock) as client:
        reading = asyncio.ensure_future(client.list_watch(CM).list(ListOptions()))
        while not reading.done():
            await asyncio.sleep(0)
            if server.requests:  # connecting takes real time, in which the clock stands
                await clock.advance(5)
        with pytest.raises(TimeoutError, match="nothing for 150 s within a list of configmaps"):
            await reading


@pytest.mark.usefixtures("transport")
async def test_a_list_that_takes_long_and_is_never_silent_for_long_succeeds() -> None:
    clock = FakeClock()
    arrived = asyncio.Event()
    body = json.dumps({**EMPTY, "items": [{"metadata": {"name": n}} for n in "abcd"]}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 40):
            arrived.clear()
            writer.write(body[start : start + 40])
            await arrived.wait()
            await clock.advance(SILENCE_TIMEOUT - 1)

    async with (
        serving(serve) as url,
        Client.from_config(Config(server=url), clock=clock) as client,
    ):
        answer = await client.list_watch(CM).list(ListOptions(progress=arrived.set))
    assert [obj.name for obj in answer.items] == ["a", "b", "c", "d"]
    assert clock.now() > 3 * SILENCE_TIMEOUT


async def test_an_answer_that_is_no_list_is_told(server: ScriptedServer, client: Client) -> None:
    server.answers["/api/v1/configmaps"] = respond(b"<html>welcome", type_="text/html")
    with pytest.raises(FrameError, match="is not an object but a web page"):
        await client.list_watch(CM).list(ListOptions())


# --- Single objects ------------------------------------------------------------------------------


def not_found(name: str) -> bytes:
    details = {"name": name, "kind": "configmaps"}
    status = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
    return respond({**status, "details": details}, code=404)


async def test_only_a_404_of_the_very_object_says_that_it_is_gone(
    server: ScriptedServer, client: Client
) -> None:
    source = client.list_watch(CM)
    assert isinstance(source, KnowsObjects)
    path = "/api/v1/namespaces/n/configmaps/a"
    server.answers[path] = {"metadata": {"name": "a", "namespace": "n"}, "kind": "ConfigMap"}
    server.answers[path]["apiVersion"] = "v1"
    found = await source.find("n/a", decode_object)
    assert found is not None
    assert found.key == "n/a"
    server.answers[path] = not_found("a")
    assert await source.find("n/a", decode_object) is None
    server.answers[path] = not_found("another")
    with pytest.raises(NotFoundError):
        await source.find("n/a", decode_object)
    server.answers[path] = respond({"message": "404 page not found"}, code=404)
    with pytest.raises(NotFoundError):  # from a load balancer, or a server that is starting
        await source.find("n/a", decode_object)
    server.answers[path] = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "a"}}
    with pytest.raises(FrameError, match="in place of n/a"):
        await source.find("n/a", decode_object)
    server.answers[path]["metadata"]["namespace"] = "n"
    with pytest.raises(FrameError, match=r"sent Service"):
        await source.find("n/a", decode_object)
    server.answers[path] = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": 5}
    with pytest.raises(FrameError, match="sent no object"):
        await source.find("n/a", decode_object)
    server.answers[path] = respond({}, code=500)
    with pytest.raises(InternalServerError):
        await source.find("n/a", decode_object)


async def test_an_object_that_left_the_selection_is_not_among_those_watched(
    server: ScriptedServer, client: Client
) -> None:
    source = client.list_watch(CM, "n", label_selector="a=b", field_selector="metadata.name!=c")
    item = {"metadata": {"name": "a", "namespace": "n"}, "kind": "ConfigMap", "apiVersion": "v1"}
    server.answers["/api/v1/namespaces/n/configmaps/a"] = item
    server.answers["/api/v1/namespaces/n/configmaps"] = {**EMPTY, "items": [item]}
    assert await source.find("n/a", decode_object) is not None
    assert server.targets[-1] == (
        "GET /api/v1/namespaces/n/configmaps?labelSelector=a%3Db&"
        "fieldSelector=metadata.name%21%3Dc%2Cmetadata.name%3Da"
    )
    server.answers["/api/v1/namespaces/n/configmaps"] = {**EMPTY, "kind": "PodList"}
    with pytest.raises(FrameError, match="sent PodList"):
        await source.find("n/a", decode_object)
    server.answers["/api/v1/namespaces/n/configmaps"] = EMPTY
    assert await source.find("n/a", decode_object) is None


#: Stands for an empty batch, which is a sign of life.
GAP = WatchEvent("a batch without events")


@pytest.mark.usefixtures("transport")
async def test_space_without_end_is_an_error_and_no_sign_of_life(server: ScriptedServer) -> None:
    """Otherwise blank lines would keep a watch alive for ever."""
    blank = b"\n" * 65536
    server.answers["/api/v1/configmaps"] = chunked(*[b"\n"] * 20, event("a"), *[blank] * 40)
    async with Client.from_config(Config(server=server.url)) as client:
        names: list[str] = []

        async def read() -> None:
            async with client.list_watch(CM).watch(WatchOptions()) as stream:
                async for batch in stream:
                    names.extend([e.object.name if e.object else e.type for e in batch or [GAP]])

        with pytest.raises(FrameError, match="only white space"):
            await read()
    assert names == ["a"]


@pytest.mark.usefixtures("transport")
async def test_the_event_loop_gets_its_turn_between_the_parts_of_a_long_piece(
    server: ScriptedServer,
) -> None:
    server.answers["/api/v1/configmaps"] = chunked(event("a") * 5000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Client.from_config(Config(server=server.url)) as client:
        counting = asyncio.ensure_future(count())
        async with client.list_watch(CM).watch(WatchOptions()) as stream:
            sizes = [len(batch) async for batch in stream]
        counting.cancel()
    assert sum(sizes) == 5000
    assert max(sizes) <= 1000
    assert turns >= len(sizes) - 1
