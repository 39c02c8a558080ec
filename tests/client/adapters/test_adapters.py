"""The client works on other libraries' sessions, tested with the real libraries."""

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.cache.list_watch import ListOptions, WatchOptions
from listwatch.client.adapters import client_of
from listwatch.client.client import Client
from listwatch.client.response import HEADERS_TIMEOUT
from listwatch.clock import FakeClock
from listwatch.errors import (
    AlreadyExistsError,
    DisconnectedError,
    ListWatchError,
    NotFoundError,
    UnauthorizedError,
)
from listwatch.testing import eventually
from listwatch.testing.scripted_server import ScriptedServer, respond
from third_party import needed


def kubeconfig(directory: Path, server: str, token: str) -> str:
    path = directory / "config"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: shop}}}}]
clusters: [{{name: c, cluster: {{server: "{server}"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
"""
    )
    return str(path)


# Each builds the other library's client from a kubeconfig file, and closes it.


@asynccontextmanager
async def kubernetes(path: str) -> AsyncIterator[Any]:
    library = needed("kubernetes")
    settings = library.client.Configuration()
    await asyncio.to_thread(library.config.load_kube_config, path, client_configuration=settings)
    api_client = library.client.ApiClient(settings)
    yield api_client
    api_client.rest_client.pool_manager.clear()


@asynccontextmanager
async def kubernetes_aio(path: str) -> AsyncIterator[Any]:
    aio = needed("kubernetes.aio")
    settings = aio.client.Configuration()
    await aio.config.load_kube_config(path, client_configuration=settings)
    async with aio.client.ApiClient(settings) as api_client:
        yield api_client


@asynccontextmanager
async def kubernetes_asyncio(path: str) -> AsyncIterator[Any]:
    library = needed("kubernetes_asyncio")
    settings = library.client.Configuration()
    await library.config.load_kube_config(path, client_configuration=settings)
    async with library.client.ApiClient(settings) as api_client:
        yield api_client


@asynccontextmanager
async def lightkube(path: str) -> AsyncIterator[Any]:
    library = needed("lightkube")
    config = library.KubeConfig.from_file(path)
    client = library.Client(config=config, trust_env=False)
    yield client
    client._client._client.close()  # It has no public close().


@asynccontextmanager
async def lightkube_async(path: str) -> AsyncIterator[Any]:
    library = needed("lightkube")
    config = library.KubeConfig.from_file(path)
    client = library.AsyncClient(config=config, trust_env=False)
    yield client
    await client.close()


@asynccontextmanager
async def kr8s(path: str) -> AsyncIterator[Any]:
    library = needed("kr8s")
    api = await library.asyncio.api(kubeconfig=path)
    yield api
    if api._session is not None:  # It has no public close().
        await api._session.aclose()  # It has no public close().


pytestmark = pytest.mark.filterwarnings("ignore:Kubernetes version:UserWarning")  # of kr8s


@pytest.fixture(autouse=True)
def version(server: ScriptedServer) -> None:
    server.answers["/version/"] = {"gitVersion": "v1.35.0", "major": "1", "minor": "35"}


MAKERS = [kubernetes, kubernetes_aio, kubernetes_asyncio, lightkube, lightkube_async, kr8s]
Make = Callable[..., Awaitable[Client]]


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def made(server: str, bearer: str = "any", clock: FakeClock | None = None) -> Client:
            path = kubeconfig(tmp_path, server, bearer)
            theirs = await stack.enter_async_context(request.param(path))
            return await stack.enter_async_context(client_of(theirs, clock=clock))

        yield made


@pytest.fixture
async def real() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer() as server:
        yield server


def config_map(name: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}}


async def test_their_session_reads_writes_and_watches(make: Make, real: EmbeddedAPIServer) -> None:
    client = await make(real.url)
    namespace = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}
    await client.create(namespace)
    made = await client.create(config_map("a"), namespace="shop")
    with pytest.raises(AlreadyExistsError):
        await client.create(config_map("a"), namespace="shop")
    patched = await client.patch("cm", "a", {"data": {"k": "ä"}}, "shop")
    assert patched["data"]["k"] == "ä"
    source = client.list_watch("cm", "shop")
    listed = await source.list(ListOptions())
    assert [(obj.key, obj.uid) for obj in listed.items] == [("shop/a", made.uid)]
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        async with source.watch(WatchOptions(resource_version=listed.resource_version)) as stream:
            async for batch in stream:
                seen.extend((event.type, event.object.name) for event in batch if event.object)
                if len(seen) == 2:
                    return

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        await client.create(config_map("b"), namespace="shop")
        await client.delete("cm", "a", "shop")
    assert seen == [("ADDED", "b"), ("DELETED", "a")]
    with pytest.raises(NotFoundError):
        await client.get("cm", "a", "shop")


async def test_their_credentials_are_sent(make: Make, server: ScriptedServer) -> None:
    server.answers["/x"] = {"ok": 1}
    client = await make(server.url, "s3cret")
    assert (await client.http.request("GET", "/x", [("a", "b c")])).body == b'{"ok": 1}'
    assert server.header("authorization") == "Bearer s3cret"
    assert server.targets[-1] == "GET /x?a=b+c"
    server.answers["/x"] = respond(b"who?", code=401, type_="text/plain")
    with pytest.raises(UnauthorizedError, match=r"who\?"):
        await client.http.request("GET", "/x")
    for _ in range(3):  # the connection is used again, or replaced
        server.answers["/x"] = {}
        await client.http.request("POST", "/x", body=b"{}")
    assert server.body() == {}


async def test_a_refused_and_a_broken_connection_are_told(
    make: Make, server: ScriptedServer
) -> None:
    client = await make(server.url)
    server.answers["/x"] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nha"
    with pytest.raises(DisconnectedError, match="broke"):
        await client.http.request("GET", "/x")
    await server.__aexit__(None, None, None)
    with pytest.raises(DisconnectedError) as caught:
        await client.http.request("GET", "/x")
    assert caught.value.refused
    await server.__aenter__()


async def test_a_broken_answer_shows_nothing_of_the_credentials(
    make: Make, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sw0rdfish-planted"
    shown: list[str] = []
    client = await make(server.url, secret)
    for answer in (
        f"HTTP/1.1 {secret} OK\r\n\r\n",
        f"HTTP/1.1 200 OK\r\n{secret} x: x\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Length: {secret}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{secret}\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 17\r\n\r\n{secret}",
    ):
        end = "\r\nConnection: close\r\n"
        server.answers["/x"] = answer.replace("\r\n", end, 1).encode()
        try:
            await client.http.request("GET", "/x")
        except ListWatchError as error:
            shown += traceback.format_exception(error)
    assert shown
    assert secret not in "".join(shown)
    assert len(server.requests) >= 5
    ours = [record for record in caplog.records if record.name.startswith("listwatch")]
    assert not [record for record in ours if secret in record.getMessage()]


async def test_leaving_a_watch_ends_it_at_once(make: Make, server: ScriptedServer) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.answers["/x"] = head + b"3\r\nabc\r\n"
    client = await make(server.url)
    opened = asyncio.Event()

    async def read() -> None:
        async with client.http.stream("/x", watch=True) as body:
            assert await body.read() == b"abc"
            opened.set()
            await body.read()

    reading = asyncio.ensure_future(read())
    async with asyncio.timeout(5):
        await asyncio.wait(
            [reading, asyncio.ensure_future(opened.wait())], return_when="FIRST_COMPLETED"
        )
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await eventually(
            lambda: not any(thread.name.startswith("listwatch") for thread in threading.enumerate())
        )


async def test_no_answer_is_given_up(make: Make, server: ScriptedServer) -> None:
    clock = FakeClock()
    server.answers["/x"] = b""
    client = await make(server.url, clock=clock)
    asking = asyncio.ensure_future(client.http.request("GET", "/x"))
    await eventually(lambda: "GET /x" in server.targets)
    await clock.advance(HEADERS_TIMEOUT)
    with pytest.raises(TimeoutError, match="did not respond in time"):
        await asking


async def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no adapter for a builtins\.int"):
        client_of(7)
