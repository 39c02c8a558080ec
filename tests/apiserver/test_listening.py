import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator

import pytest

from api_client import MAPS, Client
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.clock import FakeClock


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_comes_in_as_the_server_stops_is_closed(turns: int) -> None:
    async with EmbeddedAPIServer() as server:
        client = socket.create_connection((server.host, server.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    client.settimeout(5)
    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Keep this process from opening any more files or sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        lowest = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_at_the_limit_of_open_files_it_answers_who_is_there_and_then_everybody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        await client.create(MAPS, "a")
        with socket.socket() as late:
            with no_more_files():
                late.connect((server.host, server.port))
                late.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                for number in range(20):
                    await clock.advance(1)
                    await client.create(MAPS, f"m{number}")
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert f"port {server.port} of 127.0.0.1 accepts no connections" in caplog.text
            await clock.advance(1)
            late.settimeout(5)
            answer = await asyncio.to_thread(late.recv, 4096)
            assert answer.startswith(b"HTTP/1.1 200 OK")
