"""The server on uvloop."""

import asyncio

import pytest

from api_client import MAPS, Client, events
from listwatch.apiserver import EmbeddedAPIServer

uvloop = pytest.importorskip("uvloop")


def test_watches_stay_open_under_uvloop() -> None:
    async def watch_changes() -> list[str]:
        async with EmbeddedAPIServer() as server, Client(server) as client:
            await client.create(MAPS, "a")
            async with client.watch(MAPS, "resourceVersion=0") as watch:
                found = await events(watch, 1)
                await client.create(MAPS, "b")
                found += await events(watch, 1)
                await server.restart()
                assert await watch.content.readline() == b""
            await client.create(MAPS, "c")
            return [event["object"]["metadata"]["name"] for event in found]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(watch_changes()) == ["a", "b"]
