from collections.abc import AsyncIterator

import pytest

from listwatch.client import connection_pool, connections
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.testing.scripted_server import ScriptedServer


@pytest.fixture(params=["httptools", "aiofastnet", "aiohttp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each transport.

    They are the package's own, with asyncio's and with aiofastnet's connections, and aiohttp.
    """
    monkeypatch.setattr(connections, "_HAS_TRANSPORT", request.param != "aiohttp")
    monkeypatch.setattr(connection_pool, "_HAS_AIOFASTNET", request.param == "aiofastnet")
    return str(request.param)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[Client]:
    async with Client.from_config(Config(server=server.url, namespace="shop")) as made:
        yield made
