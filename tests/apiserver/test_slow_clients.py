"""Clients that send slowly, idle or don't read are cut off, and others are served."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from api_client import CORE, MAPS, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.clock import FakeClock
from listwatch.testing import eventually

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(server: EmbeddedAPIServer) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def limited_to(clock: FakeClock, seconds: float) -> None:
    """Wait until the server's next time-out is in `seconds`."""
    await eventually(lambda: clock.next_timer == seconds, f"a limit of {seconds:g} s")


async def test_a_connection_without_a_request_is_closed() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, connected(server) as (reader, writer):
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow:")
        await limited_to(clock, 32)
        await clock.advance(31)
        assert not reader.at_eof()
        await clock.advance(1)
        assert await reader.read() == b""


async def test_a_body_that_does_not_come_in_time_is_504_and_ends_the_connection() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, connected(server) as (reader, writer):
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        writer.write(head.encode() + b'{"metadata"')
        await limited_to(clock, 60)
        await clock.advance(59)
        assert not reader.at_eof()
        await clock.advance(1)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
        assert not server.store.bucket("configmaps").entries


async def test_a_body_that_comes_in_time_is_taken_and_the_connection_goes_on() -> None:
    clock = FakeClock()
    body = json.dumps({"metadata": {"name": "slow"}}).encode()
    async with EmbeddedAPIServer(clock=clock) as server, connected(server) as (reader, writer):
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:5])
        await limited_to(clock, 60)
        await clock.advance(50)
        writer.write(body[5:])
        await eventually(lambda: server.store.bucket("configmaps").entries, "it is stored")
        await clock.advance(100)
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = await reader.read()
        assert answers.startswith(b"HTTP/1.1 201 Created")
        assert answers.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize("size", [100_000_000, 4_000_000])
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(size: int) -> None:
    async with EmbeddedAPIServer() as server, connected(server) as (reader, writer):
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        writer.write(head.encode() + b" " * 4_000_000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")


async def test_many_idle_connections_and_watches_that_do_not_read_hold_nobody_up() -> None:
    clock = FakeClock()
    watch = f"GET {CORE}/configmaps?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: x\r\n\r\n"
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        open_: list[Streams] = []
        try:
            for number in range(200):
                streams = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
                if number % 2:
                    streams[1].write(watch.encode())
                open_.append(streams)
            await eventually(lambda: server.statistics().watchers == 100)
            for number in range(20):
                await client.create(MAPS, f"m{number}", data={"k": "x" * 1000})
            assert len((await client.call("GET", MAPS))["items"]) == 20
        finally:
            for _, writer in open_:
                writer.transport.abort()


async def test_a_large_event_is_not_held_by_each_watch_that_does_not_read() -> None:
    watch = f"GET {CORE}/configmaps?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: x\r\n\r\n"
    async with EmbeddedAPIServer() as server, Client(server) as client:
        async with connected(server) as (_, writer):
            # uvloop's transport has the same methods, but is of another class.
            transport = cast("asyncio.Transport", writer.transport)
            transport.pause_reading()
            writer.write(watch.encode())
            await eventually(lambda: server.statistics().watchers == 1)
            for number in range(10):
                await client.create(MAPS, f"m{number}", data={"k": "x" * 900_000})
            (stream,) = server._reader.streams
            assert stream._transport is not None
            assert stream._transport.get_write_buffer_size() < 300_000
            await client.create(MAPS, "small")
            transport.resume_reading()
        async with client.watch(f"{CORE}/configmaps", "resourceVersion=1") as response:
            told = b""
            while told.count(b"\n") < 11:
                told += await response.content.readany()
        names = [json.loads(line)["object"]["metadata"]["name"] for line in told.splitlines()]
        assert names == [*(f"m{number}" for number in range(10)), "small"]
