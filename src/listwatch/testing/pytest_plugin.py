"""Fixtures to test programs that use an API server; pytest loads them automatically.

Imports nothing heavier than pytest before a fixture is used.
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from listwatch.client.client import Client
    from listwatch.testing.api_server import APIServer
    from listwatch.testing.webhook_server import WebhookServer

#: As in `listwatch.cache.mutation_detector`, which is not imported for this.
_MUTATION_DETECTOR: Final = "KUBE_CACHE_MUTATION_DETECTOR"
_MARKER: Final = (
    "apiserver(subprocess=False, data=None, tokens='', controllers=True, workloads=False, "
    "seed=None): how the fixture `apiserver` runs its server, see listwatch.testing.APIServer"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `listwatch_mutation_detector` to the project's pytest configuration."""
    parser.addini(
        "listwatch_mutation_detector",
        "let informers detect handlers that change shared objects (default: false)",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and enable the mutation detector if the project asks for it."""
    config.addinivalue_line("markers", _MARKER)
    if config.getini("listwatch_mutation_detector"):
        os.environ.setdefault(_MUTATION_DETECTOR, "1")


@pytest.fixture
def apiserver(request: pytest.FixtureRequest) -> "Iterator[APIServer]":
    """An API server for one test of any kind, configured by the marker `apiserver`."""
    from listwatch.testing.api_server import APIServer  # noqa: PLC0415 - loaded on first use

    marker = request.node.get_closest_marker("apiserver")
    if marker is not None and marker.args:
        pytest.fail("the marker `apiserver` takes keyword arguments alone", pytrace=False)
    try:
        server = APIServer(**(marker.kwargs if marker is not None else {}))
    except TypeError as error:
        pytest.fail(f"the marker `apiserver`: {error}", pytrace=False)
    with server:
        yield server


if find_spec("pytest_asyncio") is None:

    @pytest.fixture
    def webhook_server() -> None:
        """Fail with a message about the missing plugin."""
        pytest.fail(
            "the fixture `webhook_server` is asynchronous and needs pytest-asyncio: install it",
            pytrace=False,
        )

    @pytest.fixture
    def client() -> None:
        """Fail with a message about the missing plugin."""
        pytest.fail(
            "the fixture `client` is asynchronous and needs pytest-asyncio: install it, or reach "
            "the server of the fixture `apiserver` with listwatch.sync and `apiserver.config`",
            pytrace=False,
        )

else:
    import pytest_asyncio

    @pytest_asyncio.fixture(name="client")
    async def _client(apiserver: "APIServer") -> "AsyncIterator[Client]":
        """A client of the server of `apiserver`, for asyncio tests."""
        async with apiserver.client() as client:
            yield client

    @pytest_asyncio.fixture(name="webhook_server")
    async def _webhook_server() -> "AsyncIterator[WebhookServer]":
        """A server for the webhooks of an asyncio test, with a certificate made for it."""
        from listwatch.testing.webhook_server import (  # noqa: PLC0415 - loaded on first use
            WebhookServer,
        )

        async with WebhookServer() as server:
            yield server
