"""A server for tests of policies."""

from collections.abc import AsyncIterator

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from policy_server import Policies


@pytest.fixture
async def policies() -> AsyncIterator[Policies]:
    async with EmbeddedAPIServer(seed=1) as server, Client(server) as client:
        yield Policies(server, client)
