"""Replicas with a fixed share of the objects, on a server with `shardSelector`."""

import asyncio
from typing import Any

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.runtime.manager import Manager
from listwatch.shard_range import ShardRange


def config_map(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def test_each_object_is_cached_and_reconciled_by_the_replica_of_its_part(
    server: EmbeddedAPIServer, client: Client
) -> None:
    calls: list[tuple[int, str, bool]] = []
    news = asyncio.Event()

    def replica(index: int) -> Manager:
        app = Manager(f"replica-{index}", config=Config(server=server.url), health_port=None)
        maps = app.reconciler("maps").for_(
            "configmaps", namespace="default", shard=ShardRange.of(index, 2)
        )

        @maps
        async def reconcile(key: str) -> None:
            calls.append((index, key, maps.get(key) is not None))
            news.set()

        return app

    async def until(count: int) -> None:
        async with asyncio.timeout(45):
            while len(calls) < count:
                news.clear()
                await news.wait()

    parts: dict[str, int] = {}

    async def create(name: str) -> None:
        obj = await client.create(config_map(name))
        parts[obj.key] = [ShardRange.of(index, 2).contains(obj.uid) for index in range(2)].index(
            True
        )

    for number in range(10):
        await create(f"old-{number}")
    there = len((await client.list("configmaps", "default")).items)
    apps = [replica(0), replica(1)]
    async with apps[0], apps[1]:
        await until(there)
        for number in range(10):
            await create(f"new-{number}")
        await until(there + 10)
        cached = [{obj.key for obj in app.caches[0].indexer.list()} for app in apps]
        for key in parts:
            await client.delete("configmaps", key.partition("/")[2], "default")
        await until(there + 10 + 20)
    assert set(parts.values()) == {0, 1}
    assert not cached[0] & cached[1]
    for key, index in parts.items():
        assert key in cached[index]
        assert [call for call in calls if call[1] == key] == [
            (index, key, True),
            (index, key, False),
        ]
