"""Connections are accepted, and wait where the process has no files left for them."""

import asyncio
import errno
import logging
import os
import socket
import ssl

import pytest

from listwatch.acceptor import Acceptor
from listwatch.clock import Clock, FakeClock


class _Greeter(asyncio.Protocol):
    """Greets and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write to the client."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


class _Limit:
    """Stands for `socket.accept`: fails as at a limit, and counts how often it was tried."""

    def __init__(self, number: int, wanted: int = 1) -> None:
        self._number = number
        self.wanted = wanted
        self.reached = asyncio.Event()
        self.tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        """Fail."""
        self.tries += 1
        if self.tries == self.wanted:
            self.reached.set()
        raise OSError(self._number, os.strerror(self._number))


async def _greeting(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_at_the_limit_of_open_files_it_tries_each_second_and_says_so_each_minute(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, limit = FakeClock(), _Limit(number)
    acceptor = Acceptor("127.0.0.1", 0, _Greeter, clock)
    await acceptor.start()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(socket.socket, "accept", limit.accept)
        clients = [asyncio.create_task(_greeting(acceptor.port)) for _ in range(3)]
        await limit.reached.wait()
        for _ in range(119):
            await clock.advance(1)
        assert limit.tries == 120
        why = os.strerror(number).lower()
        line = f"port {acceptor.port} accepts no connections: {why}; trying again each second"
        assert [record.getMessage() for record in caplog.records] == [line, line]
    await clock.advance(1)
    assert await asyncio.gather(*clients) == 3 * [b"hello"]
    await acceptor.close()


async def test_another_error_of_accept_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = _Limit(errno.ECONNABORTED, 2)
    acceptor = Acceptor("127.0.0.1", 0, _Greeter, FakeClock())
    await acceptor.start()
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", aborted.accept)
        client = asyncio.create_task(_greeting(acceptor.port))
        await aborted.reached.wait()  # at once, since the next connection may be a good one
    assert await client == b"hello"
    await acceptor.close()


async def test_a_name_of_several_addresses_has_one_port() -> None:
    acceptor = Acceptor("localhost", 0, _Greeter, Clock())
    await acceptor.start()
    assert acceptor.port > 0
    assert await _greeting(acceptor.port) == b"hello"
    await acceptor.close()
    await acceptor.close()
    with pytest.raises(ConnectionRefusedError):
        await _greeting(acceptor.port)


async def test_a_port_in_use_leaves_nothing_behind() -> None:
    first = Acceptor("127.0.0.1", 0, _Greeter, Clock())
    await first.start()
    second = Acceptor("127.0.0.1", first.port, _Greeter, Clock())
    with pytest.raises(OSError, match="in use"):
        await second.start()
    assert await _greeting(first.port) == b"hello"
    await first.close()


async def test_a_client_that_speaks_no_tls_costs_only_itself() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    acceptor = Acceptor("127.0.0.1", 0, _Greeter, Clock(), tls=context)
    await acceptor.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", acceptor.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert b"hello" not in await reader.read()
    writer.close()
    await acceptor.close()


async def test_a_handshake_that_never_ends_does_not_hold_up_the_end() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    acceptor = Acceptor("127.0.0.1", 0, _Greeter, Clock(), tls=context)
    await acceptor.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", acceptor.port)
    await asyncio.sleep(0)
    await acceptor.close()
    assert await reader.read() == b""
    writer.close()
