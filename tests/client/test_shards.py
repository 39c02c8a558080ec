"""A shard of a resource, selected by the server, or by the client if the server can't."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.cache.list_watch import ListOptions, WatchOptions
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.shard_range import ShardRange


@pytest.fixture(params=[True, False], ids=["sharding server", "server without"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client of a server that supports shardSelector, and of one that ignores it."""
    async with EmbeddedAPIServer() as server, aiohttp.ClientSession() as session:

        async def forward(asked: web.Request) -> web.StreamResponse:
            query = [item for item in asked.query.items() if item[0] != "shardSelector"]
            async with session.request(
                asked.method,
                f"{server.url}{asked.path}",
                params=query,
                data=await asked.read(),
                headers={"Content-Type": asked.content_type},
            ) as answer:
                response = web.StreamResponse(
                    status=answer.status, headers={"Content-Type": answer.content_type}
                )
                await response.prepare(asked)
                async for data in answer.content.iter_any():
                    await response.write(data)
                return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        old = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            url = server.url if request.param else old
            async with Client(Config(server=url)) as client:
                yield client
        finally:
            await runner.cleanup()


def config_map(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def test_the_parts_are_disjoint_and_whole_and_the_echo_tells_who_chose(
    client: Client, request: pytest.FixtureRequest
) -> None:
    uids = {(await client.create(config_map(f"c{number}"))).uid for number in range(20)}
    parts: list[set[str]] = []
    for index in range(2):
        shard = ShardRange.of(index, 2)
        source = client.list_watch("configmaps", "default", shard=shard)
        part = {obj.uid for obj in (await source.list(ListOptions())).items}
        assert source.server_shards is ("server without" not in request.node.name)
        assert part == {uid for uid in uids if shard.contains(uid)}
        parts.append(part)
    assert parts[0] | parts[1] == uids
    assert all(parts)


async def test_a_watch_tells_of_its_part_only(client: Client) -> None:
    source = client.list_watch("configmaps", "default", shard=ShardRange.of(0, 2))
    version = (await source.list(ListOptions())).resource_version
    wanted = []
    for number in range(20):
        obj = await client.create(config_map(f"c{number}"))
        if ShardRange.of(0, 2).contains(obj.uid):
            wanted.append(obj.name)
    seen: list[str] = []
    async with source.watch(WatchOptions(resource_version=version)) as events:
        async for batch in events:
            seen += [event.object.name for event in batch if event.object is not None]
            if len(seen) >= len(wanted):
                break
    assert seen == wanted
