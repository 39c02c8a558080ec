from collections.abc import AsyncIterator

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer() as server:
        yield server


@pytest.fixture
async def client(server: EmbeddedAPIServer) -> AsyncIterator[Client]:
    async with Client(Config(server=server.url)) as client:
        yield client
