"""Accepting connections at the limit of open files."""

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from listwatch.accepting import (
    PAUSE_SECONDS,
    WARNING_SECONDS,
    Acceptor,
    ShortageLog,
    listening_sockets,
    raise_file_limit,
)
from listwatch.clock import FakeClock
from listwatch.runtime.health import HealthServer
from listwatch.runtime.metrics import Measured, make_registry
from listwatch.testing import eventually


class Listening(socket.socket):
    """A listening socket that can't accept connections while `error` is set."""

    error: OSError | None = None
    accepts = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.accepts += 1
        if self.error is not None:
            raise self.error
        return super().accept()


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.sock = Listening()
        self.sock.setblocking(False)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(16)
        self.shortages = ShortageLog(self.clock)
        self.acceptor = Acceptor(self.sock, Greeting, shortages=self.shortages, clock=self.clock)

    async def greeted(self) -> bytes:
        reader, writer = await asyncio.open_connection(*self.sock.getsockname())
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.acceptor.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EPERM])
async def test_accepting_pauses_warns_once_a_minute_and_recovers(
    world: World, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert await world.greeted() == b"hello"
    world.sock.error, world.sock.accepts = OSError(code, "no more"), 0
    waiting = [asyncio.ensure_future(world.greeted()) for _ in range(5)]
    await eventually(lambda: world.sock.accepts)
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.sock.accepts == 1
    for _ in range(150):
        await world.clock.advance(PAUSE_SECONDS)
        await asyncio.sleep(0.001)
    assert 100 <= world.sock.accepts <= 151
    assert world.shortages.count == world.sock.accepts
    assert len(caplog.messages) == 1 + 150 // WARNING_SECONDS
    assert caplog.messages[0].startswith("port ")
    assert "ulimit -n" in caplog.messages[0]
    world.sock.error = None
    await world.clock.advance(PAUSE_SECONDS)
    assert await asyncio.gather(*waiting) == [b"hello"] * 5


async def test_a_pause_ends_with_the_acceptor(world: World) -> None:
    world.acceptor.pause(OSError(errno.EMFILE, "no more"))
    world.acceptor.close()
    world.acceptor.close()
    world.acceptor.pause(OSError(errno.EMFILE, "no more"))
    assert world.clock.next_timer is None
    assert world.sock.fileno() == -1


async def test_one_minute_has_one_warning_whatever_lacks(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    shortages = ShortageLog(clock)
    for number in range(1000):
        shortages.tell(f"thing {number}", OSError(errno.EMFILE, "no more"))
    assert (len(caplog.messages), shortages.count) == (1, 1000)
    await clock.advance(60)
    shortages.tell("another", OSError(errno.EMFILE, "no more"))
    assert caplog.messages[1].startswith("another: no more")


async def test_sockets_listen_on_every_address_of_a_host() -> None:
    for host in ("127.0.0.1", "localhost", None):
        for sock in await listening_sockets(host, 0):
            with sock:
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
                assert not sock.getblocking()


async def test_health_at_the_limit_of_files_costs_one_line_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    parts = Measured(list, list, lambda: None, lambda: None)
    async with HealthServer(list, make_registry(parts), clock=clock) as server:
        clients = [socket.socket() for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as probe:
            lowest = probe.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            for client in clients:
                client.connect(("127.0.0.1", server.port))
                client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            for _ in range(20):
                await clock.advance(PAUSE_SECONDS)
                await asyncio.sleep(0.001)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert len(warnings) == 1
        await clock.advance(PAUSE_SECONDS)
        for client in clients:
            client.settimeout(30)
            answer = await asyncio.to_thread(client.recv, 4096)
            assert answer.startswith(b"HTTP/1.0 200 OK")
            client.close()


async def test_a_handshake_that_never_ends_does_not_hold_up_the_end() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    clock = FakeClock()
    (sock,) = await listening_sockets("127.0.0.1", 0)
    acceptor = Acceptor(
        sock, Greeting, shortages=ShortageLog(clock), clock=clock, ssl_context=context
    )
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    await eventually(lambda: acceptor._starting)  # private: no event tells of a handshake
    await acceptor.aclose()
    assert await reader.read() == b""
    writer.close()


async def test_a_connection_that_was_just_taken_ends_with_the_acceptor(world: World) -> None:
    client = socket.create_connection(world.sock.getsockname())
    while not world.acceptor._taken:  # private: stops before the connection's task begins
        world.acceptor._accept()
    await world.acceptor.aclose()
    with client:
        assert await asyncio.to_thread(client.recv, 1) == b""


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 4096),
        (4096, 4096, 4096),
        (1024, 2**30, 1_048_576),
        (1024, resource.RLIM_INFINITY, 1_048_576),
        (2**30, 2**30, 2**30),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one(
    soft: int, hard: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, new: limits.append(new))
    assert raise_file_limit() == expected
    assert limits[-1] == (expected, hard)


def test_a_limit_that_can_not_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: int, _limits: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 1024
