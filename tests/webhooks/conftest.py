"""One API server for all tests of a module; each test finds it without its own objects."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from listwatch import Client
from listwatch.errors import AlreadyExistsError, NotFoundError
from listwatch.resources import definition
from listwatch.testing import APIServer
from webhooks.websites import Website

_NAMESPACED = ("configmaps", "endpointslices.discovery.k8s.io", "secrets", "services")
_CONFIGURATIONS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")


@pytest.fixture(scope="module")
def server() -> Iterator[APIServer]:
    with APIServer() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: APIServer) -> AsyncIterator[Client]:
    async with server.client() as made:
        yield made
        server.heal_webhooks()
        server.clear_faults()
        for resource in _CONFIGURATIONS:
            await made.delete_collection(resource)
        for resource in _NAMESPACED:
            await made.delete_collection(resource, "default")


@pytest_asyncio.fixture
async def websites(client: Client) -> AsyncIterator[Client]:
    """A client of a server that knows websites, and has none."""
    with contextlib.suppress(AlreadyExistsError):
        await client.create(definition(Website))
    yield client
    with contextlib.suppress(NotFoundError):
        await client.patch(
            "customresourcedefinitions",
            "websites.example.com",
            {"spec": {"conversion": {"strategy": "None", "webhook": None}}},
        )
    for namespace in ("default", "other"):
        await client.delete_collection("websites", namespace)
