"""The local provider at the limits of the machine, and with abusive clients."""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from controllers.local_bench import bench, tcp
from listwatch.clock import FakeClock
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers import health, udp
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.health import HealthProbe
from listwatch.testing.load_balancer_conformance import (
    ask,
    ask_udp,
    converse,
    make_service,
    named_server,
    named_udp_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually


@contextlib.contextmanager
def few_files() -> Iterator[None]:
    """Limit this process to a few more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        highest = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 60, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("port", [0, -1, 70_000])
async def test_a_port_that_is_none_is_refused_in_words(port: int) -> None:
    async with bench() as it:
        with pytest.raises(ProviderError, match=f"port {port}/TCP: ports are 1 to 65535"):
            await it.ensure(make_service(ports=[{"port": port, "protocol": "TCP"}]))
        assert len(it.pool) == 0


async def test_a_flood_of_udp_clients_neither_takes_all_files_nor_blames_backends() -> None:
    with few_files():
        await flood()


async def flood() -> None:
    async with bench() as it, named_udp_server("one") as one, named_server("two") as two:
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(
            ports=[
                {"port": port, "protocol": "UDP", "name": "u"},
                {"port": port, "protocol": "TCP", "name": "t"},
            ]
        )
        await it.slices.publish(service, {"u": [one], "t": [two]})
        await it.clock.settle()
        address = await it.ensure(service)
        for _ in range(10):
            # Each datagram comes from a new port, whose socket closes at once.
            for _ in range(20):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                    client.sendto(b"flood", address)
            # So that the kernel keeps most of them: what is lost to a full buffer tests nothing.
            await asyncio.sleep(0.01)
        assert await ask_udp(address) == "one hello"
        assert await ask(address) == "two hello"
        assert it.provider.statistics().failed_backends == 0


async def test_a_machine_without_files_is_not_the_backends_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a connection nor a check marks a backend as failed if this process lacks files."""
    async with bench(health_check_seconds=5) as it, named_server("one") as one:
        service = make_service(ports=[tcp()])
        await it.publish(service, one)
        address = await it.ensure(service)
        loop = asyncio.get_running_loop()

        async def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        reader, writer = await asyncio.open_connection(*address)
        assert await converse(reader, writer) == "one hello"
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr(loop, "sock_connect", refuse)
            with socket.socket() as client:
                client.connect(address)  # to the backlog; the loop's own way is patched
                client.setblocking(False)
                assert await loop.sock_recv(client, 1) == b""
            patched.setattr(asyncio, "open_connection", refuse)
            with pytest.raises(OSError, match="Too many open files"):
                await health.check([Backend(*one)], HealthProbe(), it.clock)
            await it.clock.advance(6)
            assert "backends were not checked" in caplog.text
        assert it.provider.statistics().failed_backends == 0
        assert await converse(reader, writer) == "one hello"
        writer.close()


async def test_clients_that_vanished_are_found_by_the_kernel() -> None:
    """TCP keep-alive ends half-open connections, which would stay for ever."""
    async with bench() as it, named_server("one") as one:
        service = make_service(ports=[tcp()])
        await it.publish(service, one)
        reader, writer = await asyncio.open_connection(*await it.ensure(service))
        await converse(reader, writer)
        # No public attribute shows the listeners.
        listener = next(iter(it.provider._balancers[service.uid].listeners.values()))
        (connection,) = listener.connections  # type: ignore[attr-defined]  # a TCP listener
        for end in (connection.client, connection._server):  # both ends
            sock = end.transport.sock
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            between = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
            assert idle + between * sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) <= 300
        writer.close()


async def test_five_hundred_connections_at_once_are_all_answered_and_leave_nothing() -> None:

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async def converse_once(number: int) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"%d" % number)
        writer.write_eof()
        try:
            return await reader.read()
        finally:
            writer.close()

    async with bench() as it:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
        service = make_service(ports=[tcp()])
        await it.publish(service, server.sockets[0].getsockname())
        address = await it.ensure(service)
        answers = await asyncio.gather(*map(converse_once, range(500)))
        assert answers == [b"%d" % number for number in range(500)]
        await eventually(lambda: it.provider.statistics().traffic.open == 0)
        assert it.provider.statistics().traffic.failed == 0
        server.close()


async def test_nodes_are_reached_by_a_family_that_the_service_has() -> None:
    """An IPv6-only service has no node port on IPv4 addresses."""
    async with bench(backends="node-ports") as it:
        nodes = [Node("n", "", ("192.0.2.1", "2001:db8::1")), Node("only-4", "", ("192.0.2.2",))]
        for families, expected in (
            (["IPv6"], {"2001:db8::1"}),
            (["IPv4"], {"192.0.2.1", "192.0.2.2"}),
            (["IPv6", "IPv4"], {"2001:db8::1", "192.0.2.2"}),
            ([], {"192.0.2.1", "192.0.2.2"}),
        ):
            service = make_service(ports=[tcp(nodePort=30_000)], ipFamilies=families)
            await it.ensure(service, *nodes)
            # No public attribute shows the listeners.
            listener = next(iter(it.provider._balancers[service.uid].listeners.values()))
            assert {backend.host for backend in listener.balancer.backends} == expected
            await it.provider.ensure_deleted("c", service)


async def test_many_backends_are_checked_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running = most = 0

    async def check(_backend: Backend, _clock: object) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return True

    monkeypatch.setattr(health, "accepts_connections", check)
    backends = [Backend(f"192.0.2.{number}", 80) for number in range(200)]
    assert (await health.check(backends, HealthProbe(), FakeClock())).failed == set()
    assert 1 < most <= health.CHECKS_AT_ONCE


def test_flows_leave_most_files_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (1024, 4096))
    assert udp.flow_limit() == 256
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (resource.RLIM_INFINITY, -1))
    assert udp.flow_limit() == udp.FLOW_LIMIT


async def test_a_balancer_without_files_pauses_warns_once_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The kernel alone accepts this backend's connections, so they use no files of this process.
    backend = socket.create_server(("127.0.0.1", 0), backlog=200)
    async with bench() as it:
        service = make_service(ports=[tcp()])
        await it.publish(service, backend.getsockname()[:2])
        address = await it.ensure(service)
        with contextlib.ExitStack() as files, contextlib.ExitStack() as stack:
            # The clients' own files are open before the limit, which leaves no room for all.
            clients = [stack.enter_context(socket.socket()) for _ in range(40)]
            files.enter_context(few_files())
            for client in clients:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.connect(address)
            await eventually(lambda: it.provider.statistics().shortages)
            for _ in range(50):
                await it.clock.advance(1)
                # Connections are real: each attempt gets some real time to meet the shortage.
                await asyncio.sleep(0.001)
            assert 1 <= it.provider.statistics().shortages <= 120
            warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
            assert len(warnings) == 1, warnings
            stack.close()

            async def accepts(number: int) -> bool:
                await it.clock.advance(1)  # accepting pauses for a second
                return it.provider.statistics().traffic.accepted == number

            await eventually(partial(accepts, len(clients)))
            with socket.socket() as client:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, address)
                await eventually(partial(accepts, len(clients) + 1))
        assert it.provider.statistics().failed_backends == 0
    backend.close()
