"""Health checks, together and one by one."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/healthz", 200),
        ("/livez/ping", 200),
        ("/readyz/etcd", 200),
        ("/readyz/poststarthook/rbac/bootstrap-roles", 200),
        ("/readyz/informer-sync", 200),
        ("/livez/informer-sync", 404),
        ("/healthz/none", 404),
        ("/healthzz", 404),
    ],
)
async def test_a_check_is_there_or_not(client: Client, path: str, code: int) -> None:
    answer = await client.call("GET", path, expect=code)
    assert answer == ("ok" if code == 200 else "404 page not found\n")


async def test_the_list_says_what_was_left_out_and_what_could_not_be(client: Client) -> None:
    url = f"{client.server.url}/livez?verbose&exclude=etcd&exclude=none"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        lines = (await answer.text()).splitlines()
    assert lines[0] == "[+]ping ok"
    assert "[+]etcd excluded: ok" in lines
    assert lines[-2:] == [
        'warn: some health checks cannot be excluded: no matches for "none"',
        "livez check passed",
    ]
