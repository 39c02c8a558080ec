"""The TCP transports of the local provider, on pairs of connected sockets."""

import asyncio
import select
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from listwatch.controllers.services.providers.transport import Poller, SocketTransport
from listwatch.testing.waiting import eventually

WAYS = pytest.mark.parametrize("has_epoll", [hasattr(select, "epoll"), False])


class Recorder:
    """Keeps what a transport says."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.said: list[str] = []
        self.error: Exception | None = None

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> None:
        self.said.append("eof")

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append("lost")
        self.error = exc


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection, without blocking."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    for sock in (one, two):
        sock.setblocking(False)
    return one, two


@asynccontextmanager
async def made(poller: Poller) -> AsyncIterator[tuple[SocketTransport, Recorder, socket.socket]]:
    """Provide a transport, its receiver, and the socket of its peer."""
    one, two = connected()
    receiver = Recorder()
    transport = SocketTransport(one, receiver, poller)
    with two:
        yield transport, receiver, two
        transport.abort()
        await eventually(lambda: "lost" in receiver.said)
    assert one.fileno() == -1
    assert receiver.said.count("lost") == 1


async def read_all(sock: socket.socket) -> bytes:
    """Return everything until the peer ends its direction."""
    loop, data = asyncio.get_running_loop(), bytearray()
    while part := await loop.sock_recv(sock, 1 << 16):
        data += part
    return bytes(data)


@WAYS
async def test_what_the_peer_sends_is_received_only_while_reading(has_epoll: bool) -> None:
    async with made(Poller(has_epoll=has_epoll)) as (transport, receiver, peer):
        peer.send(b"one")
        for _ in range(5):
            await asyncio.sleep(0)
        assert not receiver.data
        assert not transport.is_reading()
        transport.resume_reading()
        await eventually(lambda: receiver.data == b"one")
        peer.shutdown(socket.SHUT_WR)
        await eventually(lambda: receiver.said == ["eof"])
        transport.resume_reading()
        assert not transport.is_reading(), "there is nothing more to read"
        assert transport.received == 3


@WAYS
async def test_what_the_peer_does_not_read_is_kept_and_arrives_in_order(has_epoll: bool) -> None:
    async with made(Poller(has_epoll=has_epoll)) as (transport, receiver, peer):
        sent = bytearray()
        while "pause" not in receiver.said:
            part = bytes([len(sent) % 251]) * 50_000
            transport.write(part)
            sent += part
        transport.write_eof()
        transport.write_eof()
        assert await read_all(peer) == sent
        assert receiver.said == ["pause", "resume"]


@WAYS
async def test_close_sends_what_is_kept_first(has_epoll: bool) -> None:
    async with made(Poller(has_epoll=has_epoll)) as (transport, receiver, peer):
        count = 0
        while "pause" not in receiver.said:
            transport.write(bytes(50_000))
            count += 1
        transport.close()
        transport.close()
        transport.write(b"too late")
        assert transport.is_closing()
        assert len(await read_all(peer)) == count * 50_000
        await eventually(lambda: receiver.said[-1] == "lost")
        assert receiver.error is None


@WAYS
async def test_a_reset_is_told_with_its_reason(has_epoll: bool) -> None:
    async with made(Poller(has_epoll=has_epoll)) as (transport, receiver, peer):
        transport.resume_reading()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await eventually(lambda: receiver.said == ["lost"])
        assert isinstance(receiver.error, ConnectionResetError)


@WAYS
async def test_a_write_to_a_peer_that_has_gone_ends_the_connection(has_epoll: bool) -> None:
    async with made(Poller(has_epoll=has_epoll)) as (transport, receiver, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        while not transport.is_closing():
            transport.write(b"x")
        assert receiver.said == [], "it is told later, by the event loop"
        await eventually(lambda: receiver.said == ["lost"])
        assert isinstance(receiver.error, OSError)


@WAYS
async def test_forwarding_holds_a_sender_back_and_loses_nothing(has_epoll: bool) -> None:
    """The slow reader takes megabytes a bit at a time, through two transports of one poller."""
    poller = Poller(has_epoll=has_epoll)
    async with AsyncExitStack() as stack:
        inward, sender, source = await stack.enter_async_context(made(poller))
        outward, slow, target = await stack.enter_async_context(made(poller))

        def pause() -> None:
            slow.said.append("pause")
            inward.pause_reading()

        def resume() -> None:
            slow.said.append("resume")
            inward.resume_reading()

        def end() -> None:
            sender.said.append("eof")
            outward.write_eof()

        slow.pause_writing, slow.resume_writing = pause, resume  # type: ignore[method-assign]
        sender.eof_received = end  # type: ignore[method-assign]
        inward.forward_to(outward)
        inward.resume_reading()
        data = bytes(range(251)) * 48_000
        loop = asyncio.get_running_loop()
        sending = loop.create_task(loop.sock_sendall(source, data))
        await eventually(lambda: "pause" in slow.said)
        assert inward.received < len(data)
        assert not inward.is_reading()
        reading = loop.create_task(read_all(target))
        await sending
        source.shutdown(socket.SHUT_WR)
        assert await reading == data
        assert inward.received == len(data)
        assert sender.data == b""


async def test_a_poller_has_a_file_only_while_there_are_transports() -> None:
    poller = Poller()
    for _ in range(2):
        async with made(poller) as (transport, receiver, peer):
            transport.resume_reading()
            peer.send(b"x")
            await eventually(lambda receiver=receiver: receiver.data == b"x")  # type: ignore[misc]
        assert poller.is_idle
