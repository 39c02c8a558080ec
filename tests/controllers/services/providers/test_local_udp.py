"""The UDP clients of the local provider, on real sockets."""

import asyncio
import socket
from typing import Any, cast

import pytest

from controllers.local_bench import Address, Bench, bench
from listwatch.accepting import ShortageLog
from listwatch.controllers.services.providers.balancing import Backend, Balancer
from listwatch.controllers.services.providers.listening import Rules
from listwatch.controllers.services.providers.udp import UDPListener
from listwatch.testing.load_balancer_conformance import (
    ask_udp,
    make_service,
    named_udp_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually


async def test_udp_clients_keep_their_backend_while_they_speak() -> None:
    async with bench() as it, named_udp_server("one") as one, named_udp_server("two") as two:
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
        await it.publish(service, one, two)
        host, _ = await it.ensure(service)
        assert {await ask_udp((host, port)) for _ in range(4)} == {"one hello", "two hello"}
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect((host, port))
            answers = set()
            for _ in range(4):
                await loop.sock_sendall(sock, b"x")
                answers.add(await loop.sock_recv(sock, 100))
            assert len(answers) == 1
        assert it.provider.statistics().traffic.open == 5
        await it.clock.advance(120)
        assert it.provider.statistics().traffic.open == 0


async def refuse(it: Bench, address: Address) -> None:
    """Send a datagram to each of two backends, and wait until one is known to refuse them."""
    for _ in range(2):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"hello", address)
    await eventually(lambda: it.provider.statistics().failed_backends == 1)


async def test_a_udp_backend_that_refuses_is_passed_over() -> None:
    async with bench() as it, named_udp_server("one") as one:
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
        await it.publish(service, one, ("127.0.0.1", free_port(socket.SOCK_DGRAM)))
        address = await it.ensure(service)
        await refuse(it, address)
        assert [await ask_udp(address) for _ in range(6)] == ["one hello"] * 6
        assert it.provider.statistics().failed_backends == 1


async def test_a_udp_backend_that_refused_is_tried_again_ever_later_until_it_answers() -> None:
    async with bench() as it, named_udp_server("one") as one:
        gone = ("127.0.0.1", free_port(socket.SOCK_DGRAM))
        service = make_service(ports=[{"port": free_port(), "protocol": "UDP", "name": ""}])
        await it.publish(service, one, gone)
        address = await it.ensure(service)
        await refuse(it, address)
        for delay in (2, 4, 8):
            await it.clock.advance(delay - 0.1)
            assert it.provider.statistics().failed_backends == 1
            await it.clock.advance(0.1)
            assert it.provider.statistics().failed_backends == 0
            if delay < 8:
                await refuse(it, address)
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Echo, local_addr=gone
        )
        answers = {await ask_udp(address) for _ in range(4)}
        assert answers == {"one hello", "back hello"}
        transport.close()
        await refuse(it, address)
        await it.clock.advance(2)
        assert it.provider.statistics().failed_backends == 0


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(b"back " + data, addr)


async def test_udp_from_elsewhere_than_the_source_ranges_is_dropped() -> None:
    async with bench() as it, named_udp_server("one") as one:
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(
            ports=[{"port": port, "protocol": "UDP", "name": ""}],
            loadBalancerSourceRanges=["192.0.2.0/24"],
        )
        await it.publish(service, one)
        host, _ = await it.ensure(service)
        assert await ask_udp((host, port), seconds=0.5) == ""
        traffic = it.provider.statistics().traffic
        assert (traffic.refused, traffic.accepted) == (1, 0)


async def test_udp_clients_of_a_removed_backend_move_with_the_drain_time() -> None:
    async with (
        bench(drain_seconds=30) as it,
        named_udp_server("one") as one,
        named_udp_server("two") as two,
    ):
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
        await it.publish(service, one)
        host, _ = await it.ensure(service)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect((host, port))

            async def answer() -> bytes:
                await loop.sock_sendall(sock, b"x")
                async with asyncio.timeout(30):
                    return await loop.sock_recv(sock, 100)

            assert await answer() == b"one x"
            await it.publish(service, two)
            assert await answer() == b"one x"
            await it.clock.advance(31)
            assert await answer() == b"two x"
        await it.provider.ensure_deleted("c", service)
        assert await ask_udp((host, port), seconds=0.5) == ""


async def test_udp_flows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("listwatch.controllers.services.providers.udp.FLOW_LIMIT", 3)
    async with bench() as it, named_udp_server("one") as one:
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
        await it.publish(service, one)
        host, _ = await it.ensure(service)
        for _ in range(5):
            assert await ask_udp((host, port)) == "one hello"
        assert it.provider.statistics().traffic.open == 3


async def test_udp_without_a_backend_is_dropped_and_counted() -> None:
    async with bench() as it:
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
        host, _ = await it.ensure(service)
        assert await ask_udp((host, port), seconds=0.5) == ""
        assert it.provider.statistics().traffic.failed == 1


async def test_a_udp_backend_that_comes_back_in_time_keeps_its_clients() -> None:
    async with (
        bench(drain_seconds=30) as it,
        named_udp_server("one") as one,
        named_udp_server("two") as two,
    ):
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
        await it.publish(service, one)
        host, _ = await it.ensure(service)
        assert await ask_udp((host, port)) == "one hello"
        await it.publish(service, two)
        await it.clock.advance(20)
        await it.publish(service, one)
        await it.clock.advance(15)
        assert it.provider.statistics().traffic.open == 1


async def test_a_backend_that_a_check_found_healthy_too_early_has_its_whole_delay_again() -> None:
    """One that refuses again, before the first delay has ended, is left alone for the second."""
    at = Backend("127.0.0.1", 9)
    async with bench() as it:
        listener = UDPListener(
            "127.0.0.1",
            0,
            Balancer(it.clock),
            Rules(),
            clock=it.clock,
            drain_seconds=0,
            shortages=ShortageLog(it.clock),
        )
        listener.set_backends([at])
        listener.refused_by(at, ConnectionRefusedError())  # next try in 2 s
        await it.clock.advance(1)
        listener.balancer.report(at, well=True)
        listener.refused_by(at, ConnectionRefusedError())  # next try in 4 s
        await it.clock.advance(3.9)
        assert listener.balancer.failed == {at}
        await it.clock.advance(0.1)
        assert not listener.balancer.failed
        listener.close(drain=False)
