"""The HAProxy provider with real HAProxy."""

import asyncio
import csv
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from controllers.published import Slices
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.haproxy import HAProxyProvider
from listwatch.controllers.services.providers.haproxy_process import HAProxyError, HAProxyProcess
from listwatch.controllers.services.service import Service
from listwatch.objects import Object
from listwatch.testing.load_balancer_conformance import (
    LoadBalancerConformance,
    Subject,
    ask,
    ask_udp,
    converse,
    make_service,
    named_server,
    named_udp_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually

pytestmark = [pytest.mark.needs("haproxy"), pytest.mark.proof]


class TestHAProxyProvider(LoadBalancerConformance):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[Subject]:
        slices = Slices()
        pool = AddressPool(["127.78.0.0/16"])
        async with HAProxyProvider(
            pool, endpoint_slices=slices.source, health_check_seconds=0.2
        ) as provider:
            yield Subject(provider=provider, publish=slices.publish)
        assert len(pool) == 0


@asynccontextmanager
async def running(slices: Slices, drain_seconds: float = 30) -> AsyncIterator[HAProxyProvider]:
    async with HAProxyProvider(
        AddressPool(["127.78.0.0/16"]),
        endpoint_slices=slices.source,
        health_check_seconds=0.2,
        drain_seconds=drain_seconds,
    ) as provider:
        yield provider


def haproxy_of(provider: HAProxyProvider) -> HAProxyProcess:
    """Return the HAProxy process, which is private, to inject faults."""
    return provider._haproxy.process


async def one_service(
    provider: HAProxyProvider, slices: Slices, *backends: tuple[str, int]
) -> tuple[Service, tuple[str, int]]:
    service = make_service(ports=[{"port": free_port(), "protocol": "TCP", "name": ""}])
    await slices.publish(service, {"": backends})
    status = await provider.ensure("c", service, ())
    address = (status.ingress[0].ip, service.spec.ports[0].port)

    async def answers() -> bool:
        return bool(await ask(address))

    await eventually(answers, "an answer")
    return service, address


async def test_both_families_lead_to_the_backends() -> None:
    slices = Slices()
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(named_server("one"))
        pool = AddressPool(["127.78.0.0/16", "::1/128"])
        provider = await stack.enter_async_context(
            HAProxyProvider(pool, endpoint_slices=slices.source, health_check_seconds=0.2)
        )
        port = {"port": free_port(), "protocol": "TCP", "name": ""}
        both: dict[str, Any] = {
            "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "RequireDualStack",
        }
        service = make_service(ports=[port], **both)
        await slices.publish(service, {"": [backend]})
        status = await provider.ensure("c", service, ())
        assert [":" in each.ip for each in status.ingress] == [True, False]

        async def answers() -> bool:
            asked = [await ask((each.ip, service.spec.ports[0].port)) for each in status.ingress]
            return asked == ["one hello"] * 2

        await eventually(answers, "an answer at both addresses")


async def test_backends_change_without_a_reload() -> None:
    slices = Slices()
    async with running(slices) as provider, AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(named_server(f"s{n}")) for n in range(6)]
        service, address = await one_service(provider, slices, servers[0])
        reloads = provider.statistics().reloads

        async def answer(expected: set[str]) -> bool:
            return {(await ask(address)).split(" ")[0] for _ in range(12)} == expected

        await slices.publish(service, {"": servers[1:4]})
        await eventually(lambda: answer({"s1", "s2", "s3"}), "three others")
        assert provider.statistics().reloads == reloads
        assert provider.statistics().runtime_changes >= 1
        await slices.publish(service, {"": servers})
        await eventually(lambda: answer({f"s{n}" for n in range(6)}), "more than ever before")
        assert provider.statistics().reloads == reloads


@pytest.mark.parametrize("affinity", ["None", "ClientIP"])
async def test_an_added_backend_is_like_those_of_the_configuration(affinity: str) -> None:
    """HAProxy's state after `add server` is that after a reload: ID, weight, checks."""
    slices = Slices()
    async with running(slices) as provider, AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(named_server(f"s{n}")) for n in range(4)]
        ports = [{"port": free_port(), "protocol": "TCP", "name": ""}]
        service = make_service(ports=ports, sessionAffinity=affinity)
        await slices.publish(service, {"": servers[:1]})
        await provider.ensure("c", service, ())
        await slices.publish(service, {"": servers})

        async def kinds() -> list[tuple[str, ...]]:
            text = await haproxy_of(provider).ask("runtime.sock", ["show stat"])
            columns = [
                "pxname",
                "svname",
                "sid",
                "status",
                "weight",
                "check_rise",
                "check_fall",
                "check_status",
                "addr",
            ]
            rows = csv.DictReader(text.removeprefix("# ").splitlines())
            found = [tuple(row[name] for name in columns) for row in rows if row["check_status"]]
            return [row for row in found if row[3] == "UP" and row[7] == "L4OK"]

        async def all_up() -> list[tuple[str, ...]]:
            found = await kinds()
            return found if len(found) == len(servers) else []

        added = await eventually(all_up, "four healthy backends")
        await reload(provider, 1)
        assert added == await eventually(all_up, "four healthy backends")


async def test_connections_to_a_removed_backend_end_with_the_drain_time() -> None:
    slices = Slices()
    async with (
        running(slices, drain_seconds=0.5) as provider,
        named_server("one") as one,
        named_server("two") as two,
    ):
        service, address = await one_service(provider, slices, one)
        reader, writer = await asyncio.open_connection(*address)
        assert await converse(reader, writer) == "one hello"
        await slices.publish(service, {"": [two]})

        async def moved() -> bool:
            return await ask(address) == "two hello"

        await eventually(moved, "the other backend")
        assert await converse(reader, writer) == "one hello"
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_process_that_dies_is_started_again_with_all_there_was() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        _, address = await one_service(provider, slices, one)
        process = haproxy_of(provider).process
        assert process is not None
        process.kill()

        async def is_back() -> bool:
            return provider.statistics().restarts == 1 and await ask(address) == "one hello"

        await eventually(is_back, "a new process")


async def test_backends_are_told_who_connected() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        service = make_service(ports=[{"port": free_port(), "protocol": "TCP", "name": ""}])
        value = service.object.to_dict()
        value["metadata"]["annotations"] = {"local.listwatch/proxy-protocol": "v1"}
        service = Service.of(Object.from_dict(value))
        await slices.publish(service, {"": [one]})
        status = await provider.ensure("c", service, ())
        address = (status.ingress[0].ip, service.spec.ports[0].port)

        async def is_told() -> bool:
            # The server echoes the first line, which is the header.
            return (await ask(address)).startswith("one PROXY TCP4 127.0.0.1 ")

        await eventually(is_told, "a header")


async def test_udp_is_served_beside_it_without_a_reload_of_its_own() -> None:
    slices = Slices()
    async with (
        running(slices) as provider,
        named_server("tcp") as tcp,
        named_udp_server("udp") as udp,
    ):
        port = free_port()
        ports = [
            {"port": port, "protocol": "TCP", "name": "t"},
            {"port": port, "protocol": "UDP", "name": "u"},
        ]
        service = make_service(ports=ports)
        await slices.publish(service, {"t": [tcp], "u": [udp]})
        status = await provider.ensure("c", service, ())
        address = (status.ingress[0].ip, port)
        assert [(each.protocol, each.port) for each in status.ingress[0].ports] == [
            ("TCP", port),
            ("UDP", port),
        ]

        async def answers() -> bool:
            asked = [await ask(address), await ask_udp(address, seconds=1)]
            return asked == ["tcp hello", "udp hello"]

        await eventually(answers, "an answer by both protocols")
        reloads = provider.statistics().reloads
        alone = make_service("alone", ports=ports[1:])
        await slices.publish(alone, {"u": [udp]})
        status = await provider.ensure("c", alone, ())
        other = (status.ingress[0].ip, port)

        async def answers_alone() -> bool:
            return await ask_udp(other, seconds=1) == "udp hello"

        await eventually(answers_alone, "an answer")
        await provider.ensure_deleted("c", alone)
        assert provider.statistics().reloads == reloads
        await provider.ensure("c", make_service(ports=ports[:1]), ())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(address)
        assert await ask(address) == "tcp hello"


async def test_a_missing_program_is_told_in_words() -> None:
    missing = HAProxyProvider(endpoint_slices=Slices().source, binary="no-such-haproxy")
    with pytest.raises(HAProxyError, match="apt-get install haproxy"):
        async with missing:
            pass


async def test_nothing_is_left_of_it_at_the_end() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        _, address = await one_service(provider, slices, one)
        directory, process = haproxy_of(provider).directory, haproxy_of(provider).process
        assert process is not None
        assert directory.exists()
    assert not directory.exists()
    assert process.returncode is not None
    assert await ask(address) == ""


def test_many_ensured_at_once_share_their_reloads() -> None:
    async def main() -> None:
        slices = Slices()
        async with running(slices) as provider:
            services = [
                make_service(f"s{n}", ports=[{"port": free_port(), "protocol": "TCP", "name": ""}])
                for n in range(30)
            ]
            await asyncio.gather(*(provider.ensure("c", service, ()) for service in services))
            assert provider.statistics().load_balancers == 30
            assert provider.statistics().reloads <= 5

    asyncio.run(main())


async def test_node_ports_follow_the_nodes() -> None:
    async with named_server("node") as (host, node_port):
        provider = HAProxyProvider(
            AddressPool(["127.78.0.0/16"]), backends="node-ports", health_check_seconds=0.2
        )
        async with provider:
            ports = [{"port": free_port(), "protocol": "TCP", "nodePort": node_port}]
            service = make_service(ports=ports)
            await provider.update("c", service, ())
            status = await provider.get("c", service)
            assert status is not None
            address = (status.ingress[0].ip, service.spec.ports[0].port)
            assert await ask(address) == ""
            await provider.update("c", service, [Node("n", "", (host,))])

            async def answers() -> bool:
                return await ask(address) == "node hello"

            await eventually(answers, "the node")


async def test_a_wanted_address_is_moved_to_and_one_that_is_taken_leaves_all_as_it_was() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        service, old = await one_service(provider, slices, one)
        ports = [{"port": old[1], "protocol": "TCP", "name": ""}]
        with socket.socket() as taken:
            taken.bind(("127.78.200.1", old[1]))
            taken.listen()
            moved = make_service(ports=ports, loadBalancerIP="127.78.200.1")
            with pytest.raises(ProviderError, match="another program listens"):
                await provider.ensure("c", moved, ())
        assert await ask(old) == "one hello"
        await provider.ensure("c", moved, ())

        async def has_moved() -> bool:
            return await ask(("127.78.200.1", old[1])) == "one hello" and await ask(old) == ""

        await eventually(has_moved, "the other address")
        assert service.uid == moved.uid


async def test_a_configuration_that_is_refused_changes_nothing() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        _, address = await one_service(provider, slices, one)
        bad = make_service("bad", uid="a name with blanks", ports=[{"port": free_port()}])
        with pytest.raises(HAProxyError, match="rejected its configuration"):
            await provider.ensure("c", bad, ())
        assert await provider.get("c", bad) is None
        assert await ask(address) == "one hello"
        good = make_service("good", ports=[{"port": free_port(), "name": ""}])
        await slices.publish(good, {"": [one]})
        status = await provider.ensure("c", good, ())

        async def answers() -> bool:
            return await ask((status.ingress[0].ip, good.spec.ports[0].port)) == "one hello"

        await eventually(answers, "the next change")


async def test_a_uid_can_not_add_a_line_to_the_configuration() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        odd = make_service("odd", uid="u\nlisten x\n", ports=[{"port": free_port(), "name": ""}])
        await slices.publish(odd, {"": [one]})
        status = await provider.ensure("c", odd, ())
        (ingress,) = status.ingress

        async def answers() -> bool:
            return await ask((ingress.ip, ingress.ports[0].port)) == "one hello"

        await eventually(answers, "the answer")


async def test_its_figures_go_on_over_a_reload() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        service, address = await one_service(provider, slices, one)
        asked = 3
        for _ in range(asked):
            assert await ask(address) == "one hello"

        async def are_counted() -> bool:
            await provider._haproxy.read_traffic()
            traffic = provider.figures().load_balancers[0].traffic
            return traffic.accepted >= asked and traffic.bytes_in >= asked * len("hello\n")

        await eventually(are_counted, "the figures")
        await provider.ensure("c", make_service("other", ports=[{"port": free_port()}]), ())
        assert await are_counted()
        figures = provider.figures()
        assert figures.counters["reloads"] == 2
        assert (figures.problem, figures.load_balancers[0].name) == ("", service.object.name)
        assert figures.load_balancers[0].backends == 1


async def reload(provider: HAProxyProvider, number: int) -> None:
    """Force a reload by creating an unrelated service."""
    reloads = provider.statistics().reloads
    other = make_service(f"other-{number}", ports=[{"port": free_port()}])
    await provider.ensure("c", other, ())
    assert provider.statistics().reloads > reloads


async def ask_from(client: str, address: tuple[str, int]) -> str:
    reader, writer = await asyncio.open_connection(*address, local_addr=(client, 0))
    try:
        return await converse(reader, writer)
    finally:
        writer.transport.abort()


async def test_clients_keep_their_backends_over_reloads() -> None:
    slices = Slices()
    async with running(slices) as provider, AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(named_server(f"s{n}")) for n in range(3)]
        port = {"port": free_port(), "protocol": "TCP", "name": ""}
        service = make_service(ports=[port], sessionAffinity="ClientIP")
        await slices.publish(service, {"": servers})
        status = await provider.ensure("c", service, ())
        address = (status.ingress[0].ip, service.spec.ports[0].port)

        async def answers() -> bool:
            return len({await ask(address) for _ in range(1)}) == 1 and bool(await ask(address))

        await eventually(answers, "an answer")
        clients = [f"127.0.2.{number}" for number in range(1, 13)]
        before = {client: await ask_from(client, address) for client in clients}
        assert len(set(before.values())) > 1
        for number in range(3):
            await reload(provider, number)
            assert {client: await ask_from(client, address) for client in clients} == before


async def test_a_backend_that_is_down_stays_so_over_a_reload() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        # Nobody listens there.
        gone = ("127.0.0.1", free_port())
        _, address = await one_service(provider, slices, one, gone)

        async def is_known() -> bool:
            await provider._haproxy.read_traffic()
            return provider.figures().load_balancers[0].failed_backends == 1

        await eventually(is_known, "the backend that is down")
        await reload(provider, 1)
        text = await haproxy_of(provider).ask("runtime.sock", ["show stat"])
        states = [line.split(",")[17] for line in text.splitlines() if ",s" in line]
        assert sum(state.startswith("DOWN") for state in states) == 1
        assert await ask(address) == "one hello"


@pytest.mark.parametrize("removed", ["service", "backend"])
async def test_connections_from_before_a_reload_end_with_what_was_removed(removed: str) -> None:
    slices = Slices()
    async with (
        running(slices, drain_seconds=0.5) as provider,
        named_server("one") as one,
        named_server("two") as two,
    ):
        service, address = await one_service(provider, slices, one)
        stays = make_service("stays", ports=[{"port": free_port(), "protocol": "TCP", "name": ""}])
        await slices.publish(stays, {"": [two]})
        status = await provider.ensure("c", stays, ())
        other = (status.ingress[0].ip, stays.spec.ports[0].port)

        async def answers() -> bool:
            return await ask(other) == "two hello"

        await eventually(answers, "the other service")
        ends, goes_on = [await asyncio.open_connection(*one) for one in (address, other)]
        assert await converse(*goes_on) == "two hello"
        assert await converse(*ends) == "one hello"
        for number in range(2):
            await reload(provider, number)
        if removed == "service":
            await provider.ensure_deleted("c", service)
        else:
            await slices.publish(service, {"": [two]})
        assert await asyncio.wait_for(ends[0].read(), 15) == b""
        assert await converse(*goes_on) == "two hello"
        for _, writer in (ends, goes_on):
            writer.transport.abort()


async def test_old_workers_end_after_their_time() -> None:
    slices = Slices()
    async with (
        HAProxyProvider(
            AddressPool(["127.78.0.0/16"]),
            endpoint_slices=slices.source,
            health_check_seconds=0.2,
            old_worker_seconds=1,
        ) as provider,
        named_server("one") as one,
    ):
        _, address = await one_service(provider, slices, one)
        connection = await asyncio.open_connection(*address)
        assert await converse(*connection) == "one hello"
        await reload(provider, 1)

        async def are_gone() -> bool:
            return not await haproxy_of(provider).old_workers()

        assert not await are_gone()
        await eventually(are_gone, "the end of the old worker")
        connection[1].transport.abort()
