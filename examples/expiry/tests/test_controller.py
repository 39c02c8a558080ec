"""Two replicas of the controller against an API server in this process."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from listwatch.client.client import Client
from listwatch.runtime import Manager, load_app
from listwatch.testing import APIServer


def app_for(apiserver: APIServer) -> Manager:
    path = Path(__file__).parent.parent / "controller.py"
    return load_app(path, config=apiserver.config)


def config_map(name: str, seconds: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"example.com/expire-after": seconds},
        },
    }


async def until(ask: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(30):
        while not await ask():  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(0.02)


async def names(client: Client) -> set[str]:
    found = await client.list("configmaps", "default")
    return {obj.name for obj in found.items if "expire-after" in str(obj["metadata"])}


async def test_replicas_delete_what_has_expired_each_its_own_share(
    apiserver: APIServer, client: Client
) -> None:
    for number in range(20):
        _ = await client.create(config_map(f"soon-{number}", "0"))
    _ = await client.create(config_map("later", "3600"))
    _ = await client.create(config_map("wrong", "soon"))
    async with app_for(apiserver) as first, app_for(apiserver) as second:

        async def only_two_left() -> bool:
            return await names(client) == {"later", "wrong"}

        await until(only_two_left)

        async def both_share() -> bool:
            return all(len(app.members) == 2 for app in (first, second))

        await until(both_share)
        for number in range(20):
            _ = await client.create(config_map(f"more-{number}", "0"))
        await until(only_two_left)
        done = [app.reconcilers[0].statistics().successes for app in (first, second)]
        assert all(done), done
