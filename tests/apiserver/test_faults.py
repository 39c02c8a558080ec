"""Faults on demand: the right effect, on the right requests, the right number of times."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec
import pytest

from api_client import CORE, MAPS, Client, events, names
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.http.faults import Fault
from listwatch.clock import FakeClock
from listwatch.testing import eventually

_LAST_CHUNK = b"0\r\n\r\n"
_BROKEN = (aiohttp.ClientError, ConnectionError)
SINCE = "resourceVersion=1"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(test_api=True, seed=1) as server, Client(server) as client:
        yield client


async def _codes(client: Client, count: int, path: str = MAPS) -> list[int]:
    found = []
    for _ in range(count):
        async with aiohttp.request("GET", client.server.url + path) as response:
            found.append(response.status)
    return found


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
async def test_a_status_is_answered_so_many_times(code: int, reason: str, client: Client) -> None:
    client.server.faults.add(Fault(verb="list", status=code, skip=1, times=2))
    assert await _codes(client, 4) == [200, code, code, 200]
    client.server.faults.add(Fault(status=code, message="in these words"))
    answer = await client.call("GET", MAPS, expect=code)
    assert (answer["reason"], answer["message"]) == (reason, "in these words")
    assert client.server.faults.hits == 3
    assert len(client.server.faults) == 0


@pytest.mark.parametrize("after", [None, 7])
async def test_too_many_requests_are_refused_as_by_a_real_server(
    after: float | None, client: Client
) -> None:
    client.server.faults.add(Fault(status=429, retry_after=after))
    async with aiohttp.request("GET", client.server.url + MAPS) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == str(after or 1)
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert await response.text() == "Too many requests, please try again later.\n"


async def test_a_refusal_says_when_to_come_back(client: Client) -> None:
    client.server.faults.add(Fault(status=503, retry_after=5))
    async with aiohttp.request("GET", client.server.url + MAPS) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert (await response.json())["details"] == {"retryAfterSeconds": 5}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="watch", status=500),
        Fault(resource="secrets", status=500),
        Fault(resource="configmaps.apps", status=500),
        Fault(namespace="kube-system", status=500),
        Fault(name="a", status=500),
        Fault(path="*/secrets*", status=500),
        Fault(user_agent="kubectl/*", status=500),
        Fault(probability=0.0, status=500),
    ],
)
async def test_a_fault_spares_whom_it_is_not_meant_for(fault: Fault, client: Client) -> None:
    client.server.faults.add(fault)
    assert await _codes(client, 2) == [200, 200]
    assert len(client.server.faults) == 1


async def test_a_fault_hits_whom_it_is_meant_for(client: Client) -> None:
    client.server.faults.add(
        Fault(
            verb="get",
            resource="deployments.apps",
            namespace="default",
            name="a",
            path="*/a",
            user_agent="Python/*",
            status=500,
        )
    )
    path = "/apis/apps/v1/namespaces/default/deployments"
    assert await _codes(client, 1, path) == [200]
    assert await _codes(client, 2, f"{path}/a") == [500, 404]


async def test_of_two_faults_the_first_one_hits_until_it_is_used_up(client: Client) -> None:
    client.server.faults.add(Fault(status=500, times=2), Fault(status=503, times=0))
    assert await _codes(client, 4) == [500, 500, 503, 503]
    client.server.faults.clear()
    assert await _codes(client, 1) == [200]


async def test_one_seed_gives_the_same_faults() -> None:
    async def story(seed: int) -> list[int]:
        async with EmbeddedAPIServer(seed=seed) as server, Client(server) as client:
            server.faults.add(Fault(status=500, times=0, probability=0.5))
            return await _codes(client, 20)

    first, again, other = await story(1), await story(1), await story(2)
    assert first == again != other
    assert set(first) == {200, 500}


async def test_a_delay_comes_before_the_answer() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        server.faults.add(Fault(delay=30.0))
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(client.call("GET", MAPS))
            while not server.faults.hits:  # noqa: ASYNC110 - the server sets no event
                await asyncio.sleep(0)
            await clock.advance(29.0)
            assert not answer.done()
            await clock.advance(1.0)
        assert answer.result()["kind"] == "ConfigMapList"


async def test_a_dropped_request_gets_no_answer(client: Client) -> None:
    client.server.faults.add(Fault(drop=True, verb="create"))
    with pytest.raises(_BROKEN):
        await client.create(MAPS, "a")
    assert names(await client.call("GET", MAPS)) == []


async def test_a_silent_request_waits_until_the_client_gives_up(client: Client) -> None:
    client.server.faults.add(Fault(silent=True))
    asking = asyncio.create_task(client.call("GET", MAPS))
    await eventually(lambda: client.server.faults.hits)
    assert await _codes(client, 1) == [200]
    assert not asking.done()
    asking.cancel()
    await asyncio.wait({asking})
    assert await _codes(client, 1) == [200]


async def test_a_list_is_cut_in_its_middle(client: Client) -> None:
    await client.create(MAPS, "a")
    for fault in (Fault(cut_event=True), Fault(cut=10)):
        client.server.faults.add(fault)
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.call("GET", MAPS)
    assert names(await client.call("GET", MAPS)) == ["a"]


@asynccontextmanager
async def _raw_watch(client: Client, query: str = SINCE) -> AsyncIterator[asyncio.StreamReader]:
    """Open a watch over a bare socket: a client library may drop data before a broken end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.server.port)
    writer.write(f"GET {MAPS}?watch=1&{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        yield reader
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> tuple[list[bytes], bool]:
    """Read to the end of the response; return its lines and whether it ended cleanly."""
    received = b""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(40):
            while not received.endswith(_LAST_CHUNK) and (part := await reader.read(65536)):
                received += part
    lines = [line for line in received.splitlines() if line.startswith(b"{")]
    return lines, received.endswith(_LAST_CHUNK)


def _names(lines: list[bytes]) -> list[str]:
    return [json.loads(line)["object"]["metadata"]["name"] for line in lines]


async def test_a_watch_is_cut_in_the_middle_of_an_event(client: Client) -> None:
    client.server.faults.add(Fault(verb="watch", cut_event=True, after=1))
    async with _raw_watch(client) as watch:
        await client.create(MAPS, "a")
        await client.create(MAPS, "b")
        (whole, half), clean = await _read(watch)
    assert _names([whole]) == ["a"]
    assert len(whole) / 3 < len(half) < len(whole) * 2 / 3
    assert not clean


async def test_a_watch_is_cut_in_the_middle_of_a_character(client: Client) -> None:
    client.server.faults.add(Fault(verb="watch", cut_character=True))
    async with _raw_watch(client) as watch:
        await client.create(MAPS, "a")
        await client.create(MAPS, "b", data={"k": "Größe"})
        (whole, half), clean = await _read(watch)
    assert _names([whole]) == ["a"]
    assert half.endswith(b'"Gr\xc3')
    assert not clean


async def test_a_watch_goes_silent_and_stays_open(client: Client) -> None:
    client.server.faults.add(Fault(verb="watch", silent=True, after=1))
    async with client.watch(MAPS, SINCE) as watch:
        for name in "abc":
            await client.create(MAPS, name)
        (first,) = await events(watch, 1)
        assert first["object"]["metadata"]["name"] == "a"
        with pytest.raises(TimeoutError):
            await events(watch, 1, seconds=0.05)
        assert not watch.content.at_eof()


@pytest.mark.parametrize("after", [0, 2])
async def test_a_watch_gets_an_error_event_and_ends(after: int, client: Client) -> None:
    client.server.faults.add(Fault(verb="watch", error_event=410, after=after))
    async with _raw_watch(client) as watch:
        for name in "abc":
            await client.create(MAPS, name)
        lines, clean = await _read(watch)
    assert clean
    assert _names(lines[:-1]) == ["a", "b"][:after]
    assert json.loads(lines[-1])["type"] == "ERROR"
    status = json.loads(lines[-1])["object"]
    assert (status["code"], status["reason"], status["kind"]) == (410, "Expired", "Status")


async def test_a_watch_is_dropped_between_two_events(client: Client) -> None:
    client.server.faults.add(Fault(verb="watch", drop=True, after=2))
    async with _raw_watch(client) as watch:
        for name in "abc":
            await client.create(MAPS, name)
        lines, clean = await _read(watch)
    assert _names(lines) == ["a", "b"]
    assert not clean


async def test_bookmarks_are_withheld_from_one_watch_or_all_and_sent_on_demand(
    client: Client,
) -> None:
    server = client.server
    query = f"{SINCE}&allowWatchBookmarks=true"
    server.faults.add(Fault(verb="watch", withhold_bookmarks=True))
    async with client.watch(MAPS, query) as one, client.watch(MAPS, query) as other:
        # Only the reader knows its streams.
        assert [stream.withhold_bookmarks for stream in server._reader.streams].count(True) == 1
        server.send_bookmarks()
        (bookmark,) = await events(other, 1)
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(server.store.revision)
        server.withhold_bookmarks = True
        # Only the reader knows its streams.
        assert all(stream.withhold_bookmarks for stream in server._reader.streams)
        assert (await events(one, 1))[0]["type"] == "BOOKMARK", "what is asked for is sent"


async def test_going_back_in_time_repeats_versions_with_other_content(client: Client) -> None:
    server = client.server
    first = await client.create(MAPS, "a")
    revision = int(first["metadata"]["resourceVersion"])
    later = await client.create(MAPS, "b")
    async with _raw_watch(client) as watch:
        await watch.readuntil(b'"b"')
        server.rewind(revision)
        assert not (await _read(watch))[1]
    listed = await client.call("GET", MAPS)
    assert names(listed) == ["a"]
    assert listed["metadata"]["resourceVersion"] == str(revision)
    again = await client.create(MAPS, "c")
    assert again["metadata"]["resourceVersion"] == later["metadata"]["resourceVersion"]
    assert again["metadata"]["uid"] != later["metadata"]["uid"]
    async with client.watch(MAPS, f"resourceVersion={revision}") as watch:
        (event,) = await events(watch, 1)
    assert event["object"]["metadata"]["name"] == "c", "no frame of the other past is sent"


_DEFINITION = {
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    }
}
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def test_going_back_takes_back_what_definitions_and_owners_did(client: Client) -> None:
    server = client.server
    owner = await client.create(MAPS, "owner")
    revision = server.store.revision
    await client.create(_DEFINITIONS, "widgets.example.com", **_DEFINITION)
    path = "/apis/example.com/v1/namespaces/default/widgets"

    async def served() -> bool:
        return isinstance(await client.call("GET", path), dict)

    await eventually(served)
    server.take_snapshot()
    await client.call("DELETE", f"{MAPS}/owner", expect=200)
    server.rewind(revision)
    assert not await served()
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    await client.create(MAPS, "owned", metadata={"ownerReferences": [reference]})
    await asyncio.sleep(0)
    assert names(await client.call("GET", MAPS)) == ["owned", "owner"]
    server.rewind()
    assert await served(), "the snapshot was taken while it was"


async def test_no_state_outside_of_the_history_can_be_gone_back_to(client: Client) -> None:
    server = client.server
    await client.create(MAPS, "a")
    server.compact()
    present = server.store.revision
    for revision in (present - 1, present + 1):
        with pytest.raises(ValueError, match=f"no state at revision {revision} is kept"):
            server.rewind(revision)
    with pytest.raises(ValueError, match="name a revision, or take a snapshot"):
        server.rewind()
    server.rewind(present)


@pytest.fixture
async def replica(client: Client) -> AsyncIterator[Client]:
    """A client of the second server on the same store."""
    replica = client.server.replica
    await replica.start()
    async with Client(client.server) as second:
        second.url = replica.url
        yield second


async def test_one_of_two_replicas_falls_behind_and_catches_up(
    client: Client, replica: Client
) -> None:
    await client.create(MAPS, "a")
    client.server.replica.fall_behind()
    stale = client.server.store.revision
    async with replica.watch(MAPS, f"resourceVersion={stale}") as watch:
        new = await client.create(MAPS, "b")
        version = new["metadata"]["resourceVersion"]
        cached = await replica.call("GET", f"{MAPS}?resourceVersion=0")
        assert (names(cached), cached["metadata"]["resourceVersion"]) == (["a"], str(stale))
        await replica.call("GET", f"{MAPS}/b?resourceVersion=0", expect=404)
        await replica.call("GET", f"{MAPS}/b", expect=200)
        assert names(await replica.call("GET", MAPS)) == ["a", "b"], "a consistent read"
        assert names(await client.call("GET", f"{MAPS}?resourceVersion=0")) == ["a", "b"]
        with pytest.raises(TimeoutError):
            await events(watch, 1, seconds=0.05)
        query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        async with replica.watch(MAPS, f"{query}&resourceVersion={stale}") as initial:
            first = await events(initial, 2)
            assert [each["type"] for each in first] == ["ADDED", "BOOKMARK"]
            assert first[1]["object"]["metadata"]["resourceVersion"] == str(stale)
            client.server.replica.catch_up()
            for stream in (watch, initial):
                (event,) = await events(stream, 1)
                assert event["object"]["metadata"]["resourceVersion"] == version


async def test_single_requests_go_to_the_replica_that_is_behind(client: Client) -> None:
    await client.create(MAPS, "a")
    client.server.replica.fall_behind(client.server.store.revision - 1)
    client.server.faults.add(Fault(stale=True, verb="list"))
    assert names(await client.call("GET", f"{MAPS}?resourceVersion=0")) == []
    assert names(await client.call("GET", f"{MAPS}?resourceVersion=0")) == ["a"]
    with pytest.raises(ValueError, match="no state at revision 10000 is kept"):
        client.server.replica.fall_behind(10_000)


async def test_the_replica_stops_with_its_server() -> None:
    async with EmbeddedAPIServer() as server:
        await server.replica.start()
        url = server.replica.url
        async with aiohttp.request("GET", url + "/healthz") as response:
            assert response.status == 200
    with pytest.raises(aiohttp.ClientConnectorError):
        async with aiohttp.request("GET", url + "/healthz"):
            pass


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": 200}, "status of a fault must be between 400 and 599, not 200"),
        ({"error_event": 1}, "error_event of a fault must be between 400 and 599"),
        ({"probability": 2.0}, "probability of a fault must be from 0 to 1"),
        ({"delay": -1.0}, "delay of a fault must not be negative"),
    ],
)
def test_an_impossible_fault_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Fault(**fields)
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.json.decode(json.dumps(fields), type=Fault)


# -- over HTTP -------------------------------------------------------------------------------


async def test_faults_are_scripted_over_http(client: Client) -> None:
    faults = [{"verb": "list", "status": 429, "times": 2, "retry_after": 1}]
    assert await client.call("POST", "/-/faults", faults, expect=200) == {"hits": 0, "waiting": 1}
    assert await _codes(client, 3) == [429, 429, 200]
    assert await client.call("GET", "/-/faults", expect=200) == {"hits": 2, "waiting": 0}
    for count in (1, 2):
        answer = await client.call("POST", "/-/add-faults", [{"status": 503, "verb": "list"}])
        assert answer["waiting"] == count
    await client.call("POST", "/-/faults", [], expect=200)
    await client.call("PUT", "/-/faults", [], expect=405)
    await client.call("POST", "/-/faults", b"x" * 4_000_000, expect=413)
    for wrong in ([{"status": 200}], [{"sttus": 500}], {"status": 500}, b"{"):
        answer = await client.call("POST", "/-/faults", wrong, expect=400)
        assert set(answer) == {"error"}
    answer = await client.call("GET", "/-/nothing", expect=404)
    assert answer["error"].startswith("no such control: nothing; there are add-faults, bookmarks, ")


async def test_everything_else_is_asked_for_over_http(client: Client) -> None:
    first = await client.create(MAPS, "a")
    revision = int(first["metadata"]["resourceVersion"])
    await client.create(MAPS, "b")
    replica = await client.call("POST", "/-/replica", {"revision": revision}, expect=200)
    async with aiohttp.request("GET", f"{replica['url']}{MAPS}?resourceVersion=0") as response:
        assert names(await response.json()) == ["a"]
    assert await client.call("POST", "/-/replica", {"stale": False}, expect=200) == replica
    assert await client.call("POST", "/-/rewind", {"revision": revision}) == {"revision": revision}
    assert names(await client.call("GET", MAPS)) == ["a"]
    assert await client.call("POST", "/-/snapshot", {}) == {"revision": revision}
    await client.create(MAPS, "c")
    assert await client.call("POST", "/-/rewind", {}) == {"revision": revision}
    answer = await client.call("POST", "/-/rewind", {"revision": 10_000}, expect=400)
    assert answer["error"].startswith("no state at revision 10000 is kept")
    assert await client.call("POST", "/-/compact", {}) == {"compacted": revision}
    assert await client.call("POST", "/-/stale", True) == {"stale": True}
    assert await client.call("POST", "/-/stale", False) == {"stale": False}
    async with _raw_watch(client, f"resourceVersion={revision}&allowWatchBookmarks=true") as watch:
        await client.call("POST", "/-/bookmarks", {"withhold": True}, expect=200)
        await client.call("POST", "/-/bookmarks", {}, expect=200)
        await watch.readuntil(b'"BOOKMARK"')
        cut = await client.call("POST", "/-/cut-watches", expect=200)
        assert cut == {"cut": 1}
        assert not (await _read(watch))[1]


async def test_a_restart_is_answered_before_it_happens(client: Client) -> None:
    await client.create(MAPS, "a")
    async with _raw_watch(client) as watch:
        answer = await client.call("POST", "/-/restart", {"downtime": 0.05}, expect=200)
        assert answer == {}
        lines, clean = await _read(watch)
        assert (_names(lines), clean) == (["a"], True)

    async def is_back() -> bool:
        try:
            return names(await client.call("GET", MAPS)) == ["a"]
        except aiohttp.ClientConnectorError:
            return False

    await eventually(is_back)
    answer = await client.call("POST", "/-/restart", {"downtime": "x"}, expect=400)
    assert "Expected `float`" in answer["error"]


async def test_nobody_else_gets_the_port_while_the_server_restarts() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        server.restart_soon(downtime=60)
        await eventually(lambda: clock.next_timer == 60)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(server.host, server.port)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((server.host, server.port))
        await clock.advance(60)
        answer = await eventually(
            lambda: client.call("GET", MAPS, expect=200), ignoring=aiohttp.ClientConnectorError
        )
        assert names(answer) == []


async def test_a_server_that_is_stopped_while_it_restarts_stays_stopped() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server:
        server.restart_soon(downtime=60)
        server.restart_soon(downtime=60)
        await eventually(lambda: clock.next_timer == 60)
        await server.stop()
        await clock.advance(120)
        with pytest.raises(aiohttp.ClientConnectorError):
            async with aiohttp.request("GET", server.url + "/healthz"):
                pass


async def test_without_the_test_api_nobody_controls_the_server() -> None:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        for path in ("/-/compact", "/-/faults", "/-/restart"):
            await client.call("POST", path, {}, expect=404)
        assert names(await client.call("GET", f"{CORE}/pods")) == []
