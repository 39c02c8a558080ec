import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Iterator

import pytest

from api_client import MAPS, Client
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.clock import FakeClock
from listwatch.testing import eventually


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_comes_in_as_the_server_stops_is_closed(turns: int) -> None:
    async with EmbeddedAPIServer() as server:
        client = socket.create_connection((server.host, server.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    client.settimeout(40)
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
            late.settimeout(40)
            answer = await asyncio.to_thread(late.recv, 4096)
            assert answer.startswith(b"HTTP/1.1 200 OK")


_ASK = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_connections_beyond_the_limit_wait_until_one_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock, connection_limit=2) as server:
        where = server.host, server.port
        first, second, third = [await asyncio.open_connection(*where) for _ in range(3)]
        for reader, writer in (first, second, third):
            writer.write(_ASK)
            if reader is not third[0]:
                assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        waiting = asyncio.create_task(third[0].readline())
        for _ in range(20):
            second[1].write(_ASK)  # those that are connected are answered
            await second[0].readuntil(b"HTTP/1.1 200 OK\r\n")
        assert not waiting.done()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"port {server.port} of 127.0.0.1 accepts no connections: 2 are open" in caplog.text
        first[1].close()
        assert await waiting == b"HTTP/1.1 200 OK\r\n"
        for _, writer in (second, third):
            writer.close()


async def test_slow_clients_hold_their_places_only_for_a_while() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock, connection_limit=3) as server:
        where = server.host, server.port
        slow = [await asyncio.open_connection(*where) for _ in range(3)]
        for _, writer in slow:
            writer.write(b"GET /readyz HTT")
        reader, writer = await asyncio.open_connection(*where)
        writer.write(_ASK)
        listening = server._listening
        assert listening is not None
        await eventually(lambda: len(listening._server.connections) == 3, "they are connected")
        await clock.advance(32)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, each in [*slow, (reader, writer)]:
            each.close()


async def test_failed_handshakes_take_no_places() -> None:
    tls = pytest.importorskip("listwatch.apiserver.http.tls").generated_tls("127.0.0.1")
    async with EmbeddedAPIServer(tls=tls, connection_limit=1) as server:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(b"this is no handshake\n" * 10)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        trust = ssl.create_default_context(cadata=tls.authority)
        reader, writer = await asyncio.open_connection(server.host, server.port, ssl=trust)
        writer.write(_ASK)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 1, not 0"):
        EmbeddedAPIServer(connection_limit=0)
