"""Connecting: addresses, TLS, time-outs, and cancellation at any time."""

import asyncio
import errno
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Never

import pytest
import trustme

from client.raw_server import know_no_host, refusing
from client.transport_server import (
    CHUNKED,
    OK,
    Run,
    Server,
    answering,
    by_hand,
    failure,
    get,
    holding,
    receive,
    serving,
)
from listwatch.client import connection_pool
from listwatch.client.transport import stream
from listwatch.client.transport_connection import Target
from listwatch.clock import Clock, FakeClock
from listwatch.errors import DisconnectedError
from listwatch.testing import eventually


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
async def test_a_refused_connection_says_so(family: socket.AddressFamily, host: str) -> None:
    with refusing(host, family) as port:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with pytest.raises(DisconnectedError) as caught:
            async with stream(f"http://{authority}/", {}, clock=Clock()):
                pytest.fail("connected")
    assert str(caught.value) == f"http://{authority}: no connection: Connection refused"
    assert caught.value.refused


async def test_a_missing_unix_socket_counts_as_refused(tmp_path: Path) -> None:
    with pytest.raises(DisconnectedError, match="no connection: No such file") as caught:
        async with stream("http://h/", {}, clock=Clock(), unix_socket=str(tmp_path / "none")):
            pytest.fail("connected")
    assert caught.value.refused


async def test_a_name_with_several_addresses_is_refused_only_if_all_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look_up(_target: Target) -> list[str]:
        return ["::1", "127.0.0.1"]

    monkeypatch.setattr(connection_pool, "_look_up", look_up)
    async with serving(answering(OK + b"Content-Length: 1\r\n\r\nx")) as server:
        assert await get(server) == (200, b"x")
    with refusing() as server.port:
        server.url = f"http://127.0.0.1:{server.port}"
        with pytest.raises(DisconnectedError) as caught:
            await get(server)
        assert caught.value.refused


async def test_an_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    know_no_host(monkeypatch)
    with pytest.raises(
        DisconnectedError, match="http://nowhere:80: the host is unknown: Name"
    ) as caught:
        async with stream("http://nowhere:80/", {}, clock=Clock()):
            pytest.fail("connected")
    assert not caught.value.refused


async def test_speaks_to_an_ipv6_address() -> None:
    async with serving(answering(OK + b"Content-Length: 1\r\n\r\nx"), "::1") as server:
        assert await get(server) == (200, b"x")
        assert b"\r\nHost: [::1]:%d\r\n" % server.port in server.requests[0]


async def test_speaks_through_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    server = Server(answering(OK + b"\r\nx"))
    async with await asyncio.start_unix_server(server.handle, path):
        server.url = "http://kubernetes.local"
        assert await get(server, unix_socket=path) == (200, b"x")
        assert b"\r\nHost: kubernetes.local\r\n" in server.requests[0]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_speaks_tls_and_reads_a_large_body(authority: trustme.CA) -> None:
    body = bytes(range(256)) * 8192
    script = answering(OK + b"Content-Length: %d\r\n\r\n" % len(body), body)
    async with serving(script, ssl=server_context(authority)) as server:
        assert await get(server, ssl=client_context(authority)) == (200, body)


async def test_the_certificate_may_have_another_name(authority: trustme.CA) -> None:
    script = answering(OK + b"Content-Length: 1\r\n\r\nx")
    async with serving(script, ssl=server_context(authority, "api.example")) as server:
        context = client_context(authority)
        with pytest.raises(DisconnectedError, match="certificate is not trusted: IP address mism"):
            await get(server, ssl=context)
        assert await get(server, ssl=context, server_hostname="api.example") == (200, b"x")


async def test_an_unknown_authority_is_not_trusted(authority: trustme.CA) -> None:
    async with serving(answering(), ssl=server_context(authority)) as server:
        with pytest.raises(DisconnectedError, match="not trusted: unable to get local") as caught:
            await get(server, ssl=ssl.create_default_context())
        assert not caught.value.refused


async def test_plain_text_in_place_of_tls_is_no_tls(authority: trustme.CA) -> None:
    def script(_server: Server) -> Run:
        async def run(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            await writer.drain()

        return run

    async with serving(script) as server:
        server.url = server.url.replace("http", "https")
        with pytest.raises(DisconnectedError, match="does not speak TLS"):
            await get(server, ssl=client_context(authority))


async def test_a_connection_that_is_not_made_in_time_is_given_up(authority: trustme.CA) -> None:
    clock = FakeClock()
    accepted = asyncio.Event()

    def silent(_server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            accepted.set()
            await reader.read()

        return run

    async with serving(silent) as server, asyncio.TaskGroup() as group:
        server.url = server.url.replace("http", "https")
        request = get(server, ssl=client_context(authority), clock=clock, connect_timeout=7)
        task = group.create_task(failure(request))
        await accepted.wait()
        await clock.advance(6.9)
        assert not task.done()
        await clock.advance(0.2)
        error = await task
        assert isinstance(error, DisconnectedError)
        assert str(error) == f"{server.url}: no connection within 7 s"
        assert not error.refused


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nX: y\r\n"])
async def test_headers_that_do_not_come_in_time_are_given_up(part: bytes) -> None:
    clock = FakeClock()
    async with serving(holding(part)) as server, asyncio.TaskGroup() as group:
        task = group.create_task(failure(get(server, clock=clock, headers_timeout=75)))
        await eventually(lambda: len(server.requests) == 1)
        await clock.advance(74.9)
        assert not task.done()
        await clock.advance(0.2)
        error = await task
        assert isinstance(error, TimeoutError)
        assert str(error) == f"{server.url} sent no response within 75 s"
        await server.ended.wait()
    assert clock.next_timer is None


async def test_nothing_limits_the_time_of_a_body() -> None:
    clock = FakeClock()
    async with serving(holding(CHUNKED + b"1\r\nx\r\n")) as server:
        async with stream(server.url, {}, clock=clock) as response:
            assert await anext(response) == [b"x"]
            assert clock.next_timer is None
        await server.ended.wait()


async def test_a_server_that_closes_at_once_gave_no_answer() -> None:
    async with serving(answering()) as server:
        with pytest.raises(DisconnectedError, match="the server closed the connection") as caught:
            await get(server)
        assert not caught.value.refused


async def test_the_kernel_looks_for_dead_hosts() -> None:
    async with (
        serving(holding(CHUNKED)) as server,
        stream(server.url, {}, clock=Clock()) as response,
    ):
        network = response._connection._transport
        assert network is not None
        sock: socket.socket = network.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        tcp = socket.IPPROTO_TCP
        first = sock.getsockopt(tcp, socket.TCP_KEEPIDLE)
        others = sock.getsockopt(tcp, socket.TCP_KEEPINTVL) * sock.getsockopt(
            tcp, socket.TCP_KEEPCNT
        )
        assert first + others <= 60
        assert sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 60_000


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("is_secure", [False, True])
async def test_a_cancel_at_any_time_leaves_nothing(
    turns: int, is_secure: bool, authority: trustme.CA
) -> None:
    context = server_context(authority) if is_secure else None
    trust = client_context(authority) if is_secure else None
    async with (
        serving(holding(CHUNKED + b"1\r\nx\r\n"), ssl=context) as server,
        asyncio.TaskGroup() as group,
    ):
        task = group.create_task(get(server, ssl=trust))
        for _ in range(2**turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("fast", [True, False], ids=["aiofastnet", "asyncio"])
async def test_a_slow_reader_of_tiny_chunks_gets_all_of_them_by_tls(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    """Reading pauses with received bytes at hand, and the server sends no more."""
    if fast:
        pytest.importorskip("aiofastnet")
    monkeypatch.setattr(connection_pool, "_HAS_AIOFASTNET", fast)
    part = 40_000
    ready = asyncio.Event()

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(CHUNKED + b"1\r\nx\r\n" * part)
            await ready.wait()
            writer.write(b"1\r\nx\r\n" * part)
            await asyncio.Event().wait()

        return run

    async with serving(script, ssl=server_context(authority)) as server:
        context = client_context(authority)
        async with stream(server.url, {}, clock=Clock(), ssl=context) as response:
            for _ in range(2):
                left = part
                while left:
                    pieces = await response.read_pieces()
                    assert set(pieces) == {b"x"}
                    left -= len(pieces)
                ready.set()


def test_tls_with_tiny_chunks_receives_less_into_the_same_buffer() -> None:
    connection, wire = by_hand(ssl.create_default_context())
    whole = len(connection.get_buffer(-1))
    receive(connection, CHUNKED)
    with socket.socket() as sock:
        wire.socket = sock
        before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        receive(connection, b"1\r\nx\r\n" * 1000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == before
        receive(connection, b"1\r\nx\r\n" * 20_000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 128 * 1024
    assert len(connection.get_buffer(-1)) == whole


@pytest.mark.parametrize("fault", ["gone", "full"])
async def test_tls_needs_no_room_for_temporary_files(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def refuse(*_: object, **__: object) -> Never:
        raise OSError(errno.ENOSPC, "No space left on device")

    script = answering(OK + b"Content-Length: 1\r\n\r\nx")
    async with serving(script, ssl=server_context(authority)) as server:
        context = client_context(authority)
        if fault == "gone":
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        else:
            monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
        assert await get(server, ssl=context) == (200, b"x")
