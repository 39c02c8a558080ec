import asyncio
import contextlib
import socket

import pytest

from listwatch.apiserver.server import APIServer


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_comes_in_as_the_server_stops_is_closed(turns: int) -> None:
    async with APIServer() as server:
        client = socket.create_connection((server.host, server.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    client.settimeout(5)
    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
