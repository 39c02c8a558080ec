"""The services, backends and addresses of the local provider, on real sockets."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from controllers.local_bench import Address, Bench, bench, tcp
from controllers.service_cluster import annotated
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.claims import SHARE_ADDRESS, Claim, Wish
from listwatch.controllers.services.providers.frontend import (
    HEALTH_CHECK_PATH,
)
from listwatch.controllers.services.providers.local import LocalProvider
from listwatch.controllers.services.service import Ingress, LoadBalancerStatus, Service
from listwatch.testing.load_balancer_conformance import (
    ask,
    ask_udp,
    make_service,
    named_udp_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually


async def test_health_checks_find_the_dead_and_the_recovered() -> None:
    async with bench(health_check_seconds=10) as it:
        port = free_port()
        service = make_service(ports=[tcp()])
        await it.publish(service, ("127.0.0.1", port), await it.server("one"))
        await it.ensure(service)

        async def after_a_check(failed: int) -> None:
            await it.clock.advance(10)
            await eventually(lambda: it.provider.statistics().failed_backends == failed)

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
        await eventually(lambda: it.provider.statistics().failed_backends == 1)
        await it.provider.update("c", service, ())
        assert it.provider.statistics().backends == 0
        health.close()


async def http_server(stack: AsyncExitStack, answer: Callable[[str], str]) -> Address:
    """Serve HTTP/1.0; `answer` returns the status line and headers for a path."""

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
        # No public attribute shows the listeners.
        (listener,) = it.provider._balancers[service.uid].listeners.values()
        told: list[Any] = []
        listener.balancer.set_weights = told.append  # type: ignore[assignment, method-assign]  # to see the weights
        await it.clock.advance(10)
        await eventually(lambda: bool(told))
        assert told == [{Backend("127.0.0.1", 30_000): 7}]


async def test_a_path_is_checked_that_the_service_names() -> None:
    async with bench(health_check_seconds=10) as it:
        status = {"/ready": "200 OK", "/": "200 OK"}
        backend = await http_server(it.stack, lambda path: status.get(path, "404 Not Found"))
        plain = make_service(ports=[tcp()])
        # Each check changes the number of failed backends: so it is known to have ended.
        for path, failed in (("/none", 1), ("/ready", 0)):
            service = annotated(plain, {HEALTH_CHECK_PATH: path})
            await it.publish(service, backend)
            await it.ensure(service)
            await it.clock.advance(10)
            statistics = it.provider.statistics
            await eventually(lambda: statistics().failed_backends == failed)  # noqa: B023 - at once


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
            number = free_port()
            taken.bind((host, number))
            taken.listen()
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
            # A known address is not replaced.
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
