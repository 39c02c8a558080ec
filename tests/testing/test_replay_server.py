import asyncio
import socket

import pytest

from listwatch.testing.replay_server import Capture, ReplayServer
from listwatch.testing.waiting import eventually


def looked_at() -> int:
    """Count the event loop's files."""
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined] # every selector loop has it


def connect(server: ReplayServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_comes_in_as_the_server_ends_is_closed(turns: int) -> None:
    before = looked_at()
    async with ReplayServer() as server:
        client = connect(server)
        for _ in range(turns):
            await asyncio.sleep(0)
    with client:
        assert looked_at() == before
        assert client.recv(1) == b""


@pytest.mark.parametrize("end", ["open", "closed by server"])
async def test_a_connection_whose_client_reads_nothing_is_closed_at_the_end(end: str) -> None:
    before = looked_at()
    capture = Capture(name="long", response=bytes(2**24), end=end)
    async with ReplayServer([capture]) as server:
        client = connect(server)
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(lambda: server.requests)
    with client:
        assert looked_at() == before


async def test_without_a_recording_a_connection_is_closed_without_an_answer() -> None:
    async with ReplayServer() as server:
        with connect(server) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    assert (server.connections, len(server.requests)) == (1, 1)
