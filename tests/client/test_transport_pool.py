"""Connections kept for later requests."""

import asyncio
import contextlib
import socket
import struct

import pytest

from client.transport_server import (
    CAPTURES,
    CHUNKED,
    OK,
    WIRE,
    Run,
    Server,
    get,
    holding,
    oracle,
    read_all,
    serving,
)
from listwatch.client.connection_pool import ConnectionPool, PoolStatistics
from listwatch.client.transport import stream
from listwatch.clock import Clock, FakeClock
from listwatch.errors import DisconnectedError, TooManyRequestsError
from listwatch.testing.fault_proxy import FaultProxy, Place


def keeping_alive(server: Server) -> Run:
    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                path = (await server.request(reader)).split(b" ")[1]
                writer.write(OK + b"Content-Length: %d\r\n\r\n%s" % (len(path), path))
                if path == b"/close":
                    return

    return run


async def test_a_pool_gives_the_next_request_the_same_connection() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as server:
        for path in ("/a", "/bcd", "/e"):
            assert await get(server, path, pool=pool) == (200, path.encode())
        assert server.connections == 1
        assert pool.statistics().idle == 1
        pool.close()
        await server.ended.wait()


async def test_the_recorded_pair_of_answers_is_read_from_one_connection() -> None:
    data = (WIRE / "keep-alive.response").read_bytes()
    size = CAPTURES["keep-alive"]["reads"][0][1]

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in (data[:size], data[size:]):
                await server.request(reader)
                writer.write(answer)

        return run

    pool = ConnectionPool(Clock())
    async with serving(script) as server:
        first, second = await get(server, pool=pool), await get(server, pool=pool)
        assert (first[0], second[0]) == (200, 404)
        assert first[1] == oracle(data[:size])[3]
        assert second[1] == oracle(data[size:])[3]
        assert server.connections == 1
        pool.close()


async def test_a_connection_that_the_server_closed_meanwhile_costs_one_more() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as server:
        assert await get(server, "/close", pool=pool) == (200, b"/close")
        assert pool.statistics().idle == 1
        assert await get(server, "/b", pool=pool) == (200, b"/b")
        assert server.connections == 2
        pool.close()


async def test_a_request_is_sent_again_only_if_a_waiting_connection_gave_no_byte() -> None:
    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(OK + b"Content-Length: 0\r\n\r\n")
            await server.request(reader)
            if b"/some" in server.requests[-1]:
                writer.write(b"HTTP/1.1 2")
            writer.close()

        return run

    pool = ConnectionPool(Clock())
    async with serving(script) as server:
        assert await get(server, pool=pool) == (200, b"")
        assert await get(server, "/none", pool=pool) == (200, b"")
        assert [request.split(b" ")[1] for request in server.requests] == [b"/", *[b"/none"] * 2]
        assert server.connections == 2
        with pytest.raises(DisconnectedError, match="broke within a response"):
            await get(server, "/some", pool=pool)
        assert server.connections == 2
        assert pool.statistics().idle == 0


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        OK + b"Content-Length: 1\r\n\r\nxy",
    ],
)
async def test_a_connection_that_ends_with_its_answer_is_not_kept(answer: bytes) -> None:
    pool = ConnectionPool(Clock())
    async with serving(holding(answer)) as server:
        assert await get(server, pool=pool) == (200, b"x")
        assert pool.statistics().idle == 0
        await server.ended.wait()


async def test_an_answer_that_was_not_read_to_its_end_is_not_kept() -> None:
    pool = ConnectionPool(Clock())
    async with serving(holding(CHUNKED + b"1\r\nx\r\n")) as server:
        async with stream(server.url, {}, clock=Clock(), pool=pool) as response:
            await anext(response)
        assert pool.statistics().idle == 0
        await server.ended.wait()


async def test_idle_connections_are_closed_after_their_time() -> None:
    clock = FakeClock()
    pool = ConnectionPool(clock, idle_seconds=30)
    async with serving(keeping_alive) as server:
        await get(server, clock=clock, pool=pool)
        await clock.advance(29)
        assert pool.statistics().idle == 1
        await clock.advance(2)
        assert pool.statistics().idle == 0
        await server.ended.wait()
        assert clock.next_timer is None


async def test_a_pool_keeps_no_more_than_its_limit() -> None:
    pool = ConnectionPool(Clock(), max_idle=1)
    async with serving(keeping_alive) as server:
        async with stream(server.url, {}, clock=Clock(), pool=pool) as one:
            await get(server, pool=pool)
            assert pool.statistics() == PoolStatistics(idle=1, used=1)
            await one.read(10)
        assert server.connections == 2
        assert pool.statistics() == PoolStatistics(idle=1, used=0)
        pool.close()


async def test_a_watchs_connection_is_neither_kept_nor_a_kept_one() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as server:
        await get(server, pool=pool)
        assert await get(server, "/?watch=1", pool=pool, keep=False) == (200, b"/?watch=1")
        assert server.connections == 2
        assert pool.statistics() == PoolStatistics(idle=1, used=0)
        pool.close()


async def test_closing_a_pool_ends_what_is_in_use_and_what_begins() -> None:
    pool = ConnectionPool(Clock())
    async with serving(holding(CHUNKED + b"1\r\nx\r\n")) as server:
        async with stream(server.url, {}, clock=Clock(), pool=pool, keep=False) as response:
            assert await anext(response) == [b"x"]
            pool.close()
            with pytest.raises(DisconnectedError, match="the client is closed"):
                await anext(response)
        assert pool.statistics() == PoolStatistics(idle=0, used=0)
        with pytest.raises(DisconnectedError, match="the client is closed"):
            await get(server, pool=pool)


async def test_targets_do_not_share_connections() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as one, serving(keeping_alive) as other:
        await get(one, pool=pool)
        await get(other, pool=pool)
        assert (one.connections, other.connections, pool.statistics().idle) == (1, 1, 2)
        pool.close()
        await one.ended.wait()
        await other.ended.wait()


async def test_a_server_that_resets_the_connection_cuts_the_answer() -> None:
    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(CHUNKED)
            await writer.drain()
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        return run

    async with serving(script) as server:
        with pytest.raises(DisconnectedError, match="the connection broke within a response"):
            await get(server)


async def test_faults_on_the_way_are_told_apart() -> None:
    line = '{"type":"ADDED","object":"Größe"}\n'.encode()
    chunk = b"%x\r\n%s\r\n" % (len(line), line)
    async with (
        serving(holding(CHUNKED + chunk * 2)) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
    ):
        url = f"{proxy.url}/?watch=1"
        proxy.cut(len(CHUNKED + chunk), place=Place.CHARACTER)
        async with stream(url, {}, clock=Clock()) as response:
            body, is_whole = await read_all(response)
            assert body.startswith(line)
            assert body[len(line) :] == b'{"type":"ADDED","object":"Gr' + b"\xc3"
            assert not is_whole
        proxy.answer(TooManyRequestsError("wait", retry_after=1), watch=True)
        async with stream(url, {}, clock=Clock()) as response:
            assert (response.status, response.headers["retry-after"]) == (429, "1")
        proxy.refuse()
        with pytest.raises(DisconnectedError) as refused:
            await get_through(proxy)
        assert refused.value.refused
        proxy.refuse(reset=True)
        with pytest.raises(DisconnectedError) as reset:
            await get_through(proxy)
        assert not reset.value.refused


async def get_through(proxy: FaultProxy) -> None:
    async with stream(proxy.url, {}, clock=Clock()):
        pass
