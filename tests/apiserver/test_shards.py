"""`shardSelector` (KEP-5866) on the server."""

from typing import Any

import aiohttp
import msgspec

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.shard_range import ShardRange

PATH = "/api/v1/namespaces/default/configmaps"
HALF = ShardRange.of(0, 2)


async def test_lists_and_watches_hold_the_part_and_lists_echo_the_selector() -> None:
    async with EmbeddedAPIServer() as server, aiohttp.ClientSession(server.url) as session:
        wanted: set[str] = set()
        others: set[str] = set()
        for number in range(20):
            body = {"metadata": {"name": f"c{number}"}}
            async with session.post(PATH, json=body) as response:
                metadata = (await response.json())["metadata"]
            (wanted if HALF.contains(metadata["uid"]) else others).add(metadata["name"])
        assert wanted
        assert others
        query = {"shardSelector": HALF.selector}
        async with session.get(PATH, params=query) as response:
            answer: dict[str, Any] = await response.json()
        names = {item["metadata"]["name"] for item in answer["items"]}
        assert (names & wanted, names & others) == (wanted, set())
        assert answer["metadata"]["shardInfo"] == {"selector": HALF.selector}
        query |= {"watch": "true", "timeoutSeconds": "1"}
        async with session.get(PATH, params=query) as response:
            events = [msgspec.json.decode(line) for line in (await response.read()).splitlines()]
        names = {event["object"]["metadata"]["name"] for event in events}
        assert (names & wanted, names & others) == (wanted, set())


async def test_a_selector_that_is_no_range_is_a_bad_request() -> None:
    async with (
        EmbeddedAPIServer() as server,
        aiohttp.ClientSession(server.url) as session,
        session.get(PATH, params={"shardSelector": "all"}) as response,
    ):
        assert response.status == 400
        assert "'all' is not like shardRange(" in (await response.json())["message"]
