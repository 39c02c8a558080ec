"""The TCP connections of the local provider, on real sockets."""

import asyncio
import socket
from contextlib import AsyncExitStack

import msgspec
import pytest

from controllers.local_bench import Bench, bench, is_over, tcp
from controllers.service_cluster import annotated
from listwatch.controllers.services.providers.frontend import (
    IDLE_TIMEOUT,
    MAX_CONNECTIONS,
)
from listwatch.controllers.services.providers.tcp import TCPListener
from listwatch.controllers.services.service import Service
from listwatch.testing.load_balancer_conformance import (
    ask,
    converse,
    make_service,
    named_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually


async def test_both_directions_end_on_their_own() -> None:
    """A client that half-closes its connection still gets the response."""
    async with bench() as it:
        heard = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            question = await reader.read()
            heard.set()
            writer.write(b"heard " + question)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        service = make_service(ports=[tcp()])
        await it.publish(service, server.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(*await it.ensure(service))
        writer.write(b"all of it")
        writer.write_eof()
        assert await reader.read() == b"heard all of it"
        writer.close()
        server.close()
        await eventually(lambda: it.provider.statistics().traffic.open == 0)
        traffic = it.provider.statistics().traffic
        assert (traffic.bytes_in, traffic.bytes_out) == (9, 15)


async def test_what_one_side_does_not_read_is_held_back() -> None:
    async with bench() as it:
        reading = asyncio.Event()
        received = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            await reading.wait()
            while data := await reader.read(65536):
                received += len(data)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
        service = make_service(ports=[tcp()])
        await it.publish(service, server.sockets[0].getsockname())
        _, writer = await asyncio.open_connection(*await it.ensure(service))
        size = 64 * 1024 * 1024
        writer.write(bytes(size))
        # No public attribute shows the listeners and their connections.
        (listener,) = it.provider._balancers[service.uid].listeners.values()
        assert isinstance(listener, TCPListener)
        traffic = it.provider.statistics

        def is_held_back() -> bool:
            (connection,) = listener.connections
            return traffic().traffic.bytes_in > 0 and not connection.client.transport.is_reading()

        await eventually(is_held_back)
        # The kernel's and the provider's buffers are full; the rest waits at the client.
        assert traffic().traffic.bytes_in < size / 2
        reading.set()
        writer.write_eof()
        await eventually(lambda: received == size)
        writer.close()
        server.close()


async def test_a_reset_is_handed_on() -> None:
    async with bench() as it:
        service = make_service(ports=[tcp()])
        await it.publish(service, await it.server("one"))
        reader, writer = await asyncio.open_connection(*await it.ensure(service))
        await converse(reader, writer)
        assert it.provider.statistics().traffic.open == 1
        writer.transport.abort()
        await eventually(lambda: it.provider.statistics().traffic.open == 0)


async def test_a_service_without_a_backend_ends_connections_at_once() -> None:
    async with bench() as it:
        service = make_service(ports=[tcp()])
        address = await it.ensure(service)
        assert await ask(address) == ""
        assert it.provider.statistics().traffic.failed == 1


async def test_the_next_backend_is_tried_when_one_does_not_take_the_connection() -> None:
    async with bench() as it:
        service = make_service(ports=[tcp()])
        await it.publish(service, ("127.0.0.1", free_port()), await it.server("one"))
        address = await it.ensure(service)
        assert {await ask(address) for _ in range(4)} == {"one hello"}
        assert it.provider.statistics().failed_backends == 1


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_backends_are_told_who_connected(version: str) -> None:
    async with bench() as it:
        seen: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.read(28 if version == "v2" else 1000))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        service = make_service(ports=[tcp()])
        value = service.object.to_dict()
        value["metadata"]["annotations"] = {"local.listwatch/proxy-protocol": version}
        service = Service.of(type(service.object).from_dict(value))
        await it.publish(service, server.sockets[0].getsockname())
        host, port = await it.ensure(service)
        reader, writer = await asyncio.open_connection(host, port)
        source = writer.get_extra_info("sockname")
        assert await reader.read() == b""
        writer.close()
        if version == "v1":
            assert seen[0] == f"PROXY TCP4 {source[0]} {host} {source[1]} {port}\r\n".encode()
        else:
            assert seen[0][:12] == bytes.fromhex("0d0a0d0a000d0a515549540a")
            assert seen[0][16:20] == socket.inet_aton(source[0])
            assert seen[0][20:24] == socket.inet_aton(host)
        server.close()


async def test_connections_to_a_removed_backend_end_with_the_drain_time() -> None:
    async with bench(drain_seconds=30) as it:
        one, two = await it.server("one"), await it.server("two")
        service = make_service(ports=[tcp()])
        await it.publish(service, one)
        reader, writer = await asyncio.open_connection(*await it.ensure(service))
        await converse(reader, writer)
        await it.publish(service, two)
        await it.clock.advance(29)
        assert await converse(reader, writer) == "one hello"
        await it.clock.advance(2)
        assert await is_over(reader, writer)
        writer.transport.abort()


async def test_a_backend_that_comes_back_in_time_keeps_its_connections() -> None:
    async with bench(drain_seconds=30) as it:
        one, two = await it.server("one"), await it.server("two")
        service = make_service(ports=[tcp()])
        await it.publish(service, one)
        reader, writer = await asyncio.open_connection(*await it.ensure(service))
        await converse(reader, writer)
        await it.publish(service, two)
        await it.clock.advance(20)
        await it.publish(service, one)
        await it.clock.advance(40)
        assert await converse(reader, writer) == "one hello"
        writer.transport.abort()


async def test_a_deleted_service_refuses_at_once_and_drains_what_is_open() -> None:
    async with bench(drain_seconds=30) as it:
        service = make_service(ports=[tcp()])
        await it.publish(service, await it.server("one"))
        address = await it.ensure(service)
        reader, writer = await asyncio.open_connection(*address)
        await converse(reader, writer)
        await it.provider.ensure_deleted("c", service)
        assert await ask(address) == ""
        assert len(it.pool) == 0
        assert it.provider.statistics().draining == 1
        assert await converse(reader, writer) == "one hello"
        await it.clock.advance(31)
        await eventually(lambda: it.provider.statistics().draining == 0)
        assert await is_over(reader, writer)
        writer.transport.abort()


async def test_connections_beyond_the_limit_are_refused_and_idle_ones_end() -> None:
    async with bench() as it:
        options = {MAX_CONNECTIONS: "2", IDLE_TIMEOUT: "60s"}
        service = annotated(make_service(ports=[tcp()]), options)
        await it.publish(service, await it.server("one"))
        address = await it.ensure(service)
        first, second = [await asyncio.open_connection(*address) for _ in range(2)]
        assert [await converse(*one) for one in (first, second)] == ["one hello"] * 2
        assert await ask(address) == ""
        await it.clock.advance(40)
        assert await converse(*first) == "one hello"
        await it.clock.advance(30)
        assert await is_over(*second)
        assert await converse(*first) == "one hello"
        assert await ask(address) == "one hello"
        await it.ensure(make_service(ports=[msgspec.to_builtins(service.spec.ports[0])]))
        await it.clock.advance(1000)
        assert await converse(*first) == "one hello"
        for _, writer in (first, second):
            writer.transport.abort()
        await eventually(lambda: it.provider.statistics().traffic.open == 0)


async def test_leaving_ends_every_connection_and_timer() -> None:
    async with AsyncExitStack() as stack:
        it = Bench(health_check_seconds=10)
        async with it.provider:
            service = make_service(ports=[tcp()])
            backend = await stack.enter_async_context(named_server("one"))
            await it.publish(service, backend)
            reader, writer = await asyncio.open_connection(*await it.ensure(service))
            await converse(reader, writer)
        assert await is_over(reader, writer)
        writer.transport.abort()
        assert it.clock.next_timer is None
        assert len(it.pool) == 0


async def test_what_a_client_says_before_its_backend_is_there_arrives_first() -> None:
    """The client sends everything and half-closes before the first backend refuses."""
    async with bench() as it:
        heard: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read())
            writer.write(b"yes")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        dead = [("127.0.0.1", free_port()) for _ in range(4)]
        service = make_service(ports=[tcp()])
        await it.publish(service, *dead, server.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(*await it.ensure(service))
        writer.write(b"early")
        writer.write_eof()
        assert await reader.read() == b"yes"
        assert heard == [b"early"]
        writer.close()
        server.close()


async def test_a_client_that_goes_while_its_backend_is_sought_leaves_nothing() -> None:
    async with bench() as it:
        service = make_service(ports=[tcp()])
        # A full backlog: connections hang until their time-out.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            fillers = []
            for _ in range(3):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
                fillers.append(filler)
            await it.publish(service, full.getsockname())
            _, writer = await asyncio.open_connection(*await it.ensure(service))
            await eventually(lambda: it.provider.statistics().traffic.open == 1)
            writer.transport.abort()
            await it.clock.advance(6)
            await eventually(lambda: it.provider.statistics().traffic.open == 0)
            for filler in fillers:
                filler.close()
