import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from api_client import CORE, MAPS, Client, events, names
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


async def test_it_starts_and_stops_at_once_and_leaves_no_task() -> None:
    before = len(asyncio.all_tasks())
    clock = FakeClock()  # stands still: nothing waits for a time-out
    async with (
        EmbeddedAPIServer(clock=clock) as server,
        Client(server) as client,
        client.watch(MAPS, "resourceVersion=0") as watch,
    ):
        await server.stop()
        assert await watch.content.read() == b""
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before


async def test_fifty_servers_run_at_once() -> None:
    servers = [EmbeddedAPIServer() for _ in range(50)]
    await asyncio.gather(*(server.start() for server in servers))
    assert len({server.port for server in servers}) == 50
    await asyncio.gather(*(server.stop() for server in servers))


async def test_a_used_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: "):
            await EmbeddedAPIServer(port=port).start()


async def test_a_restart_keeps_port_and_objects(client: Client) -> None:
    created = await client.create(MAPS, "a")
    url = client.server.url
    async with client.watch(MAPS, f"resourceVersion={created['metadata']['resourceVersion']}") as w:
        await client.server.restart()
        assert await w.content.readline() == b""
    assert client.server.url == url
    assert (await client.call("GET", f"{MAPS}/a"))["metadata"] == created["metadata"]


async def test_the_kubeconfig_names_the_server(client: Client) -> None:
    config = yaml.safe_load(client.server.kubeconfig())
    assert config["clusters"][0]["cluster"] == {"server": client.server.url}
    assert config["current-context"] == config["contexts"][0]["name"]


async def test_pages_are_of_one_revision_while_objects_change(client: Client) -> None:
    for name in "abcde":
        await client.create(MAPS, name)
    first = await client.call("GET", f"{MAPS}?limit=2")
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    await client.call("DELETE", f"{MAPS}/c", expect=200)
    await client.create(MAPS, "bb")
    token = first["metadata"]["continue"]
    second = await client.call("GET", f"{MAPS}?limit=2&continue={token}")
    assert names(second) == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    client.server.compact()
    expired = await client.call("GET", f"{MAPS}?limit=2&continue={token}", expect=410)
    fresh = expired["metadata"]["continue"]
    rest = await client.call("GET", f"{MAPS}?continue={fresh}", expect=200)
    assert names(rest) == ["bb", "d", "e"]


@pytest.mark.parametrize("token", ["x", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ", "%00"])
async def test_a_broken_continue_token_is_refused(client: Client, token: str) -> None:
    answer = await client.call("GET", f"{MAPS}?continue={token}", expect=400)
    assert answer["message"].startswith("continue key is not valid")


async def test_a_watch_gets_every_change_in_order_with_one_chunk_each(client: Client) -> None:
    async with client.watch(MAPS, "resourceVersion=1") as watch:
        for number in range(100):
            await client.create(MAPS, f"m{number:03d}")
        found = await events(watch, 100)
    assert [event["object"]["metadata"]["name"] for event in found] == [
        f"m{number:03d}" for number in range(100)
    ]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in found]
    assert versions == sorted(versions)


async def test_a_client_that_never_reads_is_cut_off() -> None:
    """Changes wait as references to the store's bytes; at the limit, the client is cut off."""
    async with EmbeddedAPIServer(backlog_limit=50) as server, Client(server) as client:
        with socket.socket() as idle:
            idle.setblocking(False)
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(idle, ("127.0.0.1", server.port))
            await loop.sock_sendall(
                idle, f"GET {MAPS}?watch=1&resourceVersion=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            await loop.sock_recv(idle, 10)
            await client.create(MAPS, "big", data={"k": "x" * 500_000})
            for number in range(100):
                await client.merge(f"{MAPS}/big", {"data": {"n": str(number)}})
                if not server.statistics().watchers:
                    break
            await asyncio.sleep(0)
            assert server.statistics().watchers == 0


@pytest.mark.parametrize("query", ["resourceVersion=0", "resourceVersion=1"])
async def test_a_client_that_never_reads_does_not_outlive_its_watch(query: str) -> None:
    """Initial and later events cost at most one buffer until the watch times out."""
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        for number in range(30):
            await client.create(MAPS, f"big{number}", data={"k": "x" * 500_000})
        with socket.socket() as idle:
            idle.setblocking(False)
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(idle, ("127.0.0.1", server.port))
            path = f"{MAPS}?watch=1&{query}&timeoutSeconds=60"
            await loop.sock_sendall(idle, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await loop.sock_recv(idle, 10)
            await clock.advance(64)
            (stream,) = server._reader.streams
            assert stream._transport is not None
            assert stream._transport.get_write_buffer_size() < 1_000_000
            await clock.advance(1)
            assert server.statistics().watchers == 0


async def test_bookmarks_come_once_a_minute_and_before_the_end() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        query = "resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=100"
        async with client.watch(MAPS, query) as watch:
            await clock.advance(60.0)
            first = await events(watch, 1)
            await client.create(MAPS, "a")
            await clock.advance(38.0)
            second = await events(watch, 2)
            await clock.advance(2.0)
            assert await watch.content.readline() == b""
    assert [event["type"] for event in first + second] == ["BOOKMARK", "ADDED", "BOOKMARK"]
    revision = second[1]["object"]["metadata"]["resourceVersion"]
    assert revision == second[0]["object"]["metadata"]["resourceVersion"]


async def test_a_body_over_the_limit_is_413(client: Client) -> None:
    body = {"metadata": {"name": "a"}, "data": {"k": "x" * (3 * 1024 * 1024)}}
    answer = await client.call("POST", MAPS, body, expect=413)
    assert answer["message"] == "Request entity too large: limit is 3145728"


async def test_objects_of_any_text_come_back_as_they_were(client: Client) -> None:
    text = 'ünïcode \u2028 "quoted" \\ 𝄞 "resourceVersion":"7"'
    await client.create(MAPS, "a", data={"k": text})
    await client.call("DELETE", f"{MAPS}/a", expect=200)
    await client.create(MAPS, "a", metadata={"annotations": {"a": text}}, data={"k": text})
    async with client.watch(MAPS, "resourceVersion=0") as watch:
        await client.call("DELETE", f"{MAPS}/a", expect=200)
        added, deleted = await events(watch, 2)
    assert added["object"]["data"] == deleted["object"]["data"] == {"k": text}
    version = deleted["object"]["metadata"]["resourceVersion"]
    assert int(version) == int(added["object"]["metadata"]["resourceVersion"]) + 1


async def test_discovery_lists_a_custom_resource_while_it_is_served(client: Client) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "metadata": {"name": "builds.build.openshift.io"},
        "spec": {
            "group": "build.openshift.io",
            "scope": "Namespaced",
            "names": {"plural": "builds", "kind": "Build"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client.call("POST", crds, definition, expect=201)
    found = await client.call("GET", "/apis/build.openshift.io/v1", expect=200)
    assert [row["name"] for row in found["resources"]] == ["builds"]
    builds = "/apis/build.openshift.io/v1/namespaces/default/builds"
    build = {"apiVersion": "build.openshift.io/v1", "kind": "Build", "metadata": {"name": "b"}}
    await client.call("POST", builds, {**build, "status": {"phase": "New"}}, expect=201)
    assert names(await client.call("GET", builds)) == ["b"]
    async with client.watch(builds, "resourceVersion=0") as watch:
        await client.call("DELETE", f"{crds}/builds.build.openshift.io", expect=200)
        added, deleted = await events(watch, 2)
        assert (added["type"], deleted["type"]) == ("ADDED", "DELETED")
        assert await watch.content.readline() == b""
    gone = await client.call("GET", builds, expect=404)
    assert gone == "404 page not found\n"


async def test_service_addresses_and_generated_names_repeat_with_the_seed() -> None:
    found = []
    for _ in range(2):
        async with EmbeddedAPIServer(seed=7) as server, Client(server) as client:
            body = {"metadata": {"generateName": "g-"}}
            made = await client.call("POST", MAPS, body, expect=201)
            found.append((made["metadata"]["name"], made["metadata"]["uid"]))
    assert found[0] == found[1]
    assert re.fullmatch(r"g-[a-z0-9]{5}", found[0][0])


async def test_an_answer_is_yaml_when_yaml_is_asked_for(client: Client) -> None:
    await client.create(MAPS, "a", data={"k": "2024-01-01"})
    text = await client.call("GET", f"{MAPS}/a", headers={"Accept": "application/yaml"})
    assert yaml.safe_load(text)["data"] == {"k": "2024-01-01"}


async def test_a_pod_is_bound_evicted_and_told_of_as_a_table(client: Client) -> None:
    pods = f"{CORE}/pods"
    spec = {"containers": [{"name": "c", "image": "i:1"}]}
    await client.create(pods, "p", spec=spec)
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    await client.call("POST", f"{pods}/p/binding", binding, expect=201)
    await client.call("POST", f"{pods}/p/binding", binding, expect=409)
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = await client.call("GET", pods, headers=accept)
    assert table["rows"][0]["cells"][:4] == ["p", "0/1", "Pending", "0"]
    assert table["rows"][0]["cells"][6] == "n1"
    eviction: dict[str, Any] = {"metadata": {"name": "q"}}
    await client.call("POST", f"{pods}/p/eviction", eviction, expect=400)
    eviction = {"metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "another"}}}
    await client.call("POST", f"{pods}/p/eviction", eviction, expect=409)
    eviction["deleteOptions"] = {"gracePeriodSeconds": 7}
    await client.call("POST", f"{pods}/p/eviction", eviction, expect=201)
    evicted = await client.call("GET", f"{pods}/p", expect=200)
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_metrics_tell_the_figures_of_the_store(client: Client) -> None:
    text = await client.call("GET", "/metrics", expect=200)
    revision = client.server.statistics().revision
    assert f"listwatch_apiserver_resource_version {revision}\n" in text


async def test_every_collection_can_be_listed_as_json_table_and_metadata(client: Client) -> None:
    """No built-in resource fails in any of these formats."""
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    for resource in client.server.table:
        if "list" not in resource.verbs:
            continue
        root = f"/apis/{resource.group}" if resource.group else "/api"
        for accept in ("application/json", table, partial):
            path = f"{root}/{resource.version}/{resource.name}"
            answer = await client.call("GET", path, headers={"Accept": accept}, expect=200)
            assert "metadata" in answer, json.dumps(answer)[:200]
