"""The local provider on real sockets, with time on a fake clock."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from controllers.published import Slices
from controllers.service_cluster import annotated
from listwatch.clock import FakeClock
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.claims import SHARE_ADDRESS, Claim, Wish
from listwatch.controllers.services.providers.frontend import (
    HEALTH_CHECK_PATH,
    IDLE_TIMEOUT,
    MAX_CONNECTIONS,
)
from listwatch.controllers.services.providers.local import LocalProvider
from listwatch.controllers.services.service import Ingress, LoadBalancerStatus, Service
from listwatch.testing.load_balancer_conformance import (
    ask,
    ask_udp,
    converse,
    free_port,
    make_service,
    named_server,
    named_udp_server,
)

Address = tuple[str, int]


class Bench:
    """A provider with what tests need around it."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.slices = Slices()
        self.pool = AddressPool(["127.79.0.0/16", "::1/128"])
        source = None if options.get("backends") == "node-ports" else self.slices.source
        options.setdefault("health_check_seconds", 0)
        self.provider = LocalProvider(
            self.pool, endpoint_slices=source, clock=self.clock, **options
        )
        self.stack = AsyncExitStack()

    async def server(self, name: str) -> Address:
        return await self.stack.enter_async_context(named_server(name))

    async def publish(self, service: Service, *backends: Address, port: str = "") -> None:
        await self.slices.publish(service, {port: backends})
        await self.clock.settle()

    async def ensure(self, service: Service, *nodes: Node) -> Address:
        status = await self.provider.ensure("c", service, nodes)
        return status.ingress[0].ip, service.spec.ports[0].port


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    made = Bench(**options)
    async with made.stack, made.provider:
        await made.clock.settle()
        yield made


def tcp(port: int = 0, **more: Any) -> dict[str, Any]:
    return {"port": port or free_port(), "protocol": "TCP", "name": "", **more}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what sockets do
            await asyncio.sleep(0.005)


async def is_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    try:
        return await converse(reader, writer) == ""
    except ConnectionError:
        return True


async def test_both_directions_end_on_their_own() -> None:
    """A client that has said all still gets the answer that is to come."""
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
        await until(lambda: it.provider.statistics().traffic.open == 0)
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
        before = -1
        while before != (before := it.provider.statistics().traffic.bytes_in):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
        # The rest waits at the client: the kernel's buffers and ours are full.
        assert before < size / 2
        reading.set()
        writer.write_eof()
        await until(lambda: received == size)
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
        await until(lambda: it.provider.statistics().traffic.open == 0)


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
        await until(lambda: it.provider.statistics().draining == 0)
        assert await is_over(reader, writer)
        writer.transport.abort()


async def test_health_checks_find_the_dead_and_the_recovered() -> None:
    async with bench(health_check_seconds=10) as it:
        port = free_port()
        service = make_service(ports=[tcp()])
        await it.publish(service, ("127.0.0.1", port), await it.server("one"))
        await it.ensure(service)

        async def after_a_check(failed: int) -> None:
            await it.clock.advance(10)
            await until(lambda: it.provider.statistics().failed_backends == failed)
            # The checks' task sleeps again, so that the next advance reaches it.
            await asyncio.sleep(0.01)

        await after_a_check(1)
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", port)
        await after_a_check(0)
        server.close()
        await after_a_check(1)


async def test_node_ports_are_checked_at_the_services_health_port() -> None:
    async with bench(backends="node-ports", health_check_seconds=10) as it:
        answers = ["200 OK"]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert (await reader.readline()).startswith(b"GET /healthz ")
            writer.write(f"HTTP/1.0 {answers[0]}\r\n\r\n".encode())
            writer.close()

        health = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, node_port = await it.server("node")
        service = make_service(
            ports=[tcp(nodePort=node_port)],
            externalTrafficPolicy="Local",
            healthCheckNodePort=health.sockets[0].getsockname()[1],
        )
        address = await it.ensure(service, Node("n", "", ("2001:db8::1", "127.0.0.1")))
        assert await ask(address) == "node hello"
        answers[0] = "503 Service Unavailable"
        await it.clock.advance(10)
        await until(lambda: it.provider.statistics().failed_backends == 1)
        await it.provider.update("c", service, ())
        assert it.provider.statistics().backends == 0
        health.close()


async def http_server(stack: AsyncExitStack, answer: Callable[[str], str]) -> Address:
    """Serve HTTP; the answer is what follows "HTTP/1.0 " for a path."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).decode().split(" ")[1]
        writer.write(f"HTTP/1.0 {answer(path)}\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stack.callback(server.close)
    host, port = server.sockets[0].getsockname()
    return host, port


async def test_nodes_get_a_share_for_each_of_their_endpoints() -> None:
    async with bench(backends="node-ports", health_check_seconds=10) as it:
        header = "X-Load-Balancing-Endpoint-Weight"
        at = await http_server(it.stack, lambda _: f"200 OK\r\n{header}: 7")
        local: dict[str, Any] = {"externalTrafficPolicy": "Local", "healthCheckNodePort": at[1]}
        service = make_service(ports=[tcp(nodePort=30_000)], **local)
        await it.ensure(service, Node("n", "", ("127.0.0.1",)))
        # the sockets, to fail them
        (listener,) = it.provider._balancers[service.uid].listeners.values()
        told: list[Any] = []
        listener.balancer.set_weights = told.append  # type: ignore[assignment, method-assign]  # to see what comes
        await it.clock.advance(10)
        await until(lambda: bool(told))
        assert told == [{Backend("127.0.0.1", 30_000): 7}]


async def test_a_path_is_checked_that_the_service_names() -> None:
    async with bench(health_check_seconds=10) as it:
        status = {"/ready": "200 OK", "/": "200 OK"}
        backend = await http_server(it.stack, lambda path: status.get(path, "404 Not Found"))
        plain = make_service(ports=[tcp()])
        for path, failed in (("/ready", 0), ("/none", 1)):
            service = annotated(plain, {HEALTH_CHECK_PATH: path})
            await it.publish(service, backend)
            await it.ensure(service)
            await it.clock.advance(10)
            await until(lambda failed=failed: it.provider.statistics().failed_backends == failed)  # type: ignore[misc]  # the loop's value
            await asyncio.sleep(0.01)


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
        await until(lambda: it.provider.statistics().traffic.open == 0)


async def test_new_nodes_are_sent_to_and_an_unknown_service_is_ensured() -> None:
    async with bench(backends="node-ports") as it:
        _, node_port = await it.server("node")
        service = make_service(ports=[tcp(nodePort=node_port)])
        await it.provider.update("c", service, [Node("n", "", ("127.0.0.1",))])
        status = await it.provider.get("c", service)
        assert status is not None
        assert await ask((status.ingress[0].ip, service.spec.ports[0].port)) == "node hello"


async def test_one_port_that_can_not_be_had_leaves_nothing_of_the_service() -> None:
    async with bench() as it:
        free = free_port()
        service = make_service(ports=[tcp(free, name="a"), tcp(1, name="b", protocol="SCTP")])
        with pytest.raises(ProviderError, match="1/SCTP"):
            await it.ensure(service)
        assert it.provider.statistics().listeners == 0
        assert len(it.pool) == 0


async def test_a_change_that_fails_leaves_what_was_there() -> None:
    async with bench() as it:
        service = make_service(ports=[tcp(name="a")])
        await it.publish(service, await it.server("one"), port="a")
        host, port = await it.ensure(service)
        with socket.socket() as taken:
            taken.bind((host, 0))
            taken.listen()
            number = taken.getsockname()[1]
            changed = make_service(ports=[tcp(port, name="a"), tcp(number, name="b")])
            with pytest.raises(ProviderError, match=f"another program listens on {host} port"):
                await it.ensure(changed)
        assert await ask((host, port)) == "one hello"
        assert it.provider.statistics().listeners == 1
        await it.ensure(changed)
        assert it.provider.statistics().listeners == 2


async def test_a_new_service_goes_round_an_address_whose_port_is_taken() -> None:
    async with bench() as it:
        port = free_port()
        first = next(it.pool.candidates(Claim("uid-web"), Wish()))
        with socket.socket() as taken:
            taken.bind((first, port))
            taken.listen()
            host, _ = await it.ensure(make_service(ports=[tcp(port)]))
            assert host != first
            assert len(it.pool) == 1
            # An address that clients know is waited for.
            known = LoadBalancerStatus((Ingress(ip=first),))
            with pytest.raises(ProviderError, match="another program"):
                await it.ensure(make_service("known", ports=[tcp(port)], status=known))
            assert len(it.pool) == 1


async def test_both_families_lead_to_the_backends_of_one() -> None:
    async with bench() as it:
        both: dict[str, Any] = {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"}
        service = make_service(ports=[tcp()], **both)
        await it.publish(service, await it.server("one"))
        status = await it.provider.ensure("c", service, ())
        addresses = [each.ip for each in status.ingress]
        port = service.spec.ports[0].port
        assert addresses[0] == "::1"
        assert [await ask((ip, port)) for ip in addresses] == ["one hello"] * 2
        alone = make_service(ports=[tcp(port)], ipFamilies=["IPv4"])
        status = await it.provider.ensure("c", alone, ())
        assert [each.ip for each in status.ingress] == addresses[1:]
        assert await ask(("::1", port)) == ""
        assert await ask((addresses[1], port)) == "one hello"


async def test_two_services_share_an_address_and_leave_it_one_by_one() -> None:
    async with bench() as it:
        made = {}
        for name in ("a", "b"):
            service = annotated(make_service(name, ports=[tcp()]), {SHARE_ADDRESS: "k"})
            await it.publish(service, await it.server(name))
            made[name] = await it.ensure(service)
        assert made["a"][0] == made["b"][0]
        assert [await ask(made["a"]), await ask(made["b"])] == ["a hello", "b hello"]
        await it.provider.ensure_deleted("c", make_service("a"))
        assert [await ask(made["a"]), await ask(made["b"])] == ["", "b hello"]
        assert len(it.pool) == 1


async def test_a_wanted_address_is_moved_to_and_the_old_one_given_back() -> None:
    async with bench() as it:
        port = free_port()
        service = make_service(ports=[tcp(port)])
        await it.publish(service, await it.server("one"))
        old, _ = await it.ensure(service)
        moved = make_service(ports=[tcp(port)], loadBalancerIP="127.79.200.1")
        assert await it.ensure(moved) == ("127.79.200.1", port)
        assert await ask(("127.79.200.1", port)) == "one hello"
        assert await ask((old, port)) == ""
        assert len(it.pool) == 1


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


async def test_a_udp_backend_that_refuses_is_passed_over() -> None:
    async with bench() as it, named_udp_server("one") as one:
        port = free_port(socket.SOCK_DGRAM)
        service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
        await it.publish(service, one, ("127.0.0.1", free_port(socket.SOCK_DGRAM)))
        host, _ = await it.ensure(service)
        answers = [await ask_udp((host, port)) for _ in range(6)]
        assert answers.count("one hello") >= 5
        assert it.provider.statistics().failed_backends == 1


async def test_a_udp_backend_that_refused_is_tried_again_ever_later_until_it_answers() -> None:
    async with bench() as it, named_udp_server("one") as one:
        gone = ("127.0.0.1", free_port(socket.SOCK_DGRAM))
        service = make_service(ports=[{"port": free_port(), "protocol": "UDP", "name": ""}])
        await it.publish(service, one, gone)
        address = await it.ensure(service)

        async def refuse() -> None:
            for _ in range(2):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                    client.sendto(b"hello", address)
            await until(lambda: it.provider.statistics().failed_backends == 1)

        await refuse()
        for delay in (2, 4, 8):
            await it.clock.advance(delay - 0.1)
            assert it.provider.statistics().failed_backends == 1
            await it.clock.advance(0.1)
            assert it.provider.statistics().failed_backends == 0
            if delay < 8:
                await refuse()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Echo, local_addr=gone
        )
        answers = {await ask_udp(address) for _ in range(4)}
        assert answers == {"one hello", "back hello"}
        transport.close()
        await refuse()
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
        assert await ask_udp((host, port)) == ""
        traffic = it.provider.statistics().traffic
        assert (traffic.refused, traffic.accepted) == (1, 0)


async def test_tcp_and_udp_may_share_a_port() -> None:
    async with bench() as it, named_udp_server("one") as udp:
        port = free_port()
        service = make_service(
            ports=[
                {"port": port, "protocol": "UDP", "name": "u"},
                {"port": port, "protocol": "TCP", "name": "t"},
            ]
        )
        tcp_address = await it.server("tcp")
        await it.slices.publish(service, {"u": [udp], "t": [tcp_address]})
        await it.clock.settle()
        host, _ = await it.ensure(service)
        assert await ask((host, port)) == "tcp hello"
        assert await ask_udp((host, port)) == "one hello"


@pytest.mark.parametrize(
    ("annotations", "spec", "words"),
    [
        ({"local.listwatch/proxy-protocol": "v3"}, {}, "must be none, v1 or v2"),
        ({}, {"loadBalancerSourceRanges": ["everybody"]}, "'everybody' is not a network"),
        ({}, {"loadBalancerIP": "192.0.2.1"}, "not in the provider's range"),
    ],
)
async def test_what_can_not_be_done_is_refused_in_words(
    annotations: dict[str, str], spec: dict[str, Any], words: str
) -> None:
    async with bench() as it:
        value = make_service(ports=[tcp()], **spec).object.to_dict()
        value["metadata"]["annotations"] = annotations
        with pytest.raises(ProviderError, match=words):
            await it.ensure(Service.of(make_service().object.from_dict(value)))
        assert it.provider.statistics().load_balancers == 0


async def test_a_provider_that_does_not_run_says_so_and_errors_of_the_body_come_out_plain() -> None:
    it = Bench()
    with pytest.raises(ProviderError, match="async with"):
        await it.ensure(make_service(ports=[tcp()]))
    with pytest.raises(KeyError):
        async with it.provider:
            raise KeyError
    with pytest.raises(ValueError, match="endpoint_slices="):
        LocalProvider(backends="node-ports", endpoint_slices=it.slices.source)


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
    """The client has sent all and half-closed before the first backend refused."""
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
        # Nobody answers there: the connection hangs until its time-out.
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
            await until(lambda: it.provider.statistics().traffic.open == 1)
            writer.transport.abort()
            await it.clock.advance(6)
            await until(lambda: it.provider.statistics().traffic.open == 0)
            for filler in fillers:
                filler.close()


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
                async with asyncio.timeout(5):
                    return await loop.sock_recv(sock, 100)

            assert await answer() == b"one x"
            await it.publish(service, two)
            assert await answer() == b"one x"
            await it.clock.advance(31)
            assert await answer() == b"two x"
        await it.provider.ensure_deleted("c", service)
        assert await ask_udp((host, port)) == ""


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
        assert await ask_udp((host, port)) == ""
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
