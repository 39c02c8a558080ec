"""Tests that every load balancer provider must pass, for providers' own test suites.

    class TestMyProvider(LoadBalancerConformance):
        @asynccontextmanager
        async def open(self):
            async with MyProvider() as provider:
                yield Subject(provider=provider, publish=...)

Works with pytest and, together with `unittest.TestCase`, with unittest; needs no plugin.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import LoadBalancerProvider
from listwatch.controllers.services.service import LoadBalancerStatus, Service
from listwatch.objects import Object
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually

_SECONDS = 20.0
_ANSWER_SECONDS = 15.0
CLUSTER = "conformance"

#: Host and port.
Address: TypeAlias = tuple[str, int]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A provider under test.

    Attributes:
        provider: the provider.
        publish: makes the endpoints of a service's ports known to it: the addresses for each port's
            name. It may return before they take effect.
        nodes: given to the provider.
        lacks: features it does not support: "udp", "affinity", "source-ranges", "restart".
    """

    provider: LoadBalancerProvider
    publish: Callable[[Service, Mapping[str, Sequence[Address]]], Awaitable[None]]
    nodes: Sequence[Node] = (Node("node-1", "", ("127.0.0.1",)),)
    lacks: frozenset[str] = frozenset()


def make_service(
    name: str = "web", *, uid: str = "", status: LoadBalancerStatus | None = None, **spec: Any
) -> Service:
    """Return a service of type LoadBalancer; `ports` are in the wire format."""
    meta = {"name": name, "namespace": "conformance", "uid": uid or f"uid-{name}"}
    value = {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": meta,
        "spec": {"type": "LoadBalancer", **spec},
        "status": {"loadBalancer": status.to_dict() if status else {}},
    }
    return Service.of(Object.from_dict(value))


@asynccontextmanager
async def named_server(name: str) -> AsyncIterator[Address]:
    """Run a TCP server that answers each line with its name and that line."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            while line := await reader.readline():
                writer.write(f"{name} ".encode() + line)
                await writer.drain()
        except ConnectionError:
            pass  # a test has cut it
        finally:
            open_writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield host, port
    finally:
        server.close()
        for writer in list(open_writers):
            writer.transport.abort()
        for _ in range(3):  # the handlers see their connections end
            await asyncio.sleep(0)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]  # typeshed names the base
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self._transport is not None:
            self._transport.sendto(self._name + b" " + data, addr)


@asynccontextmanager
async def named_udp_server(name: str) -> AsyncIterator[Address]:
    """Run a UDP server that answers each datagram with its name and that datagram."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(name), local_addr=("127.0.0.1", 0)
    )
    try:
        host, port = transport.get_extra_info("sockname")
        yield host, port
    finally:
        transport.close()


async def ask(address: Address, words: str = "hello") -> str:
    """Send a line over a new connection and return the answer; "" if there is none."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(*address)
            try:
                return await converse(reader, writer, words)
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return ""


async def converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: str = "hello"
) -> str:
    """Send a line and return the answer; "" if the connection has ended."""
    async with asyncio.timeout(_ANSWER_SECONDS):
        writer.write(words.encode() + b"\n")
        return (await reader.readline()).decode().strip()


async def ask_udp(
    address: Address, words: str = "hello", *, seconds: float = _ANSWER_SECONDS
) -> str:
    """Send a datagram and return the answer; "" if there is none within some seconds."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(address)
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(sock, words.encode())
                return (await loop.sock_recv(sock, 1000)).decode()
        except (OSError, TimeoutError):
            return ""


async def _soon(condition: Callable[[], Awaitable[bool]], words: str) -> None:
    await eventually(condition, words, seconds=_SECONDS)


@asynccontextmanager
async def _connected(
    address: Address,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Provide a connection that ends with the test, even a failing one."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def _address(status: LoadBalancerStatus, port: int) -> Address:
    assert status.ingress, "ensure returned no address"  # noqa: S101 - a test suite
    ingress = status.ingress[0]
    return ingress.ip or ingress.hostname, port


def _tcp(port: int, name: str = "") -> dict[str, Any]:
    return {"port": port, "protocol": "TCP", "name": name}


async def _answers(address: Address, expected: set[str]) -> bool:
    return {(await ask(address)).split(" ")[0] for _ in range(4)} == expected


def _expect(condition: object, words: str) -> None:
    if not condition:
        raise AssertionError(words)


class LoadBalancerConformance(ABC):
    """The tests: subclass it, implement `open`, and let pytest or unittest collect them."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Subject]:
        """Start an empty provider; leaving stops it and removes everything it made."""

    def _run(self, test: Callable[[Subject], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), self.open() as subject:
                await test(subject)

        asyncio.run(main())

    def test_a_name_belongs_to_one_uid(self) -> None:
        """The name never changes, differs by uid, and fits the limits of clouds."""

        async def test(subject: Subject) -> None:
            one, again = make_service("a", uid="1"), make_service("b", uid="1")
            name = subject.provider.name(CLUSTER, one)
            _expect(name == subject.provider.name(CLUSTER, again), "one uid, two names")
            other = subject.provider.name(CLUSTER, make_service("a", uid="2"))
            _expect(name != other, "two uids, one name")
            _expect(0 < len(name) <= 63, f"a name of {len(name)} characters")

        self._run(test)

    def test_what_is_ensured_is_told_by_get_and_carries_traffic(self) -> None:
        """A new load balancer carries traffic, and `get` reports it."""

        async def test(subject: Subject) -> None:
            async with named_server("one") as backend:
                service = make_service(ports=[_tcp(free_port())])
                _expect(await subject.provider.get(CLUSTER, service) is None, "get before ensure")
                await subject.publish(service, {"": [backend]})
                status = await subject.provider.ensure(CLUSTER, service, subject.nodes)
                _expect(await subject.provider.get(CLUSTER, service) == status, "get differs")
                address = _address(status, service.spec.ports[0].port)
                await _soon(lambda: _answers(address, {"one"}), "traffic flows")
                await subject.provider.ensure_deleted(CLUSTER, service)

        self._run(test)

    def test_ensuring_again_changes_nothing(self) -> None:
        """The status stays, and an open connection continues."""

        async def test(subject: Subject) -> None:
            async with (
                _one_service(subject) as (service, address, status),
                _connected(address) as connection,
            ):
                first = await converse(*connection)
                again = await subject.provider.ensure(CLUSTER, service, subject.nodes)
                await subject.provider.update(CLUSTER, service, subject.nodes)
                _expect(again == status, f"{status} became {again}")
                _expect(await converse(*connection) == first, "the connection was cut")

        self._run(test)

    def test_two_services_are_reached_apart(self) -> None:
        """Two services, also with the same port, lead to their own backends."""

        async def test(subject: Subject) -> None:
            async with named_server("one") as one, named_server("two") as two:
                port = free_port()
                a, b = make_service("a", ports=[_tcp(port)]), make_service("b", ports=[_tcp(port)])
                await subject.publish(a, {"": [one]})
                await subject.publish(b, {"": [two]})
                first, second = await asyncio.gather(
                    subject.provider.ensure(CLUSTER, a, subject.nodes),
                    subject.provider.ensure(CLUSTER, b, subject.nodes),
                )
                await _soon(lambda: _answers(_address(first, port), {"one"}), "first")
                await _soon(lambda: _answers(_address(second, port), {"two"}), "second")
                await subject.provider.ensure_deleted(CLUSTER, a)
                await _soon(lambda: _answers(_address(second, port), {"two"}), "the other")
                await subject.provider.ensure_deleted(CLUSTER, b)

        self._run(test)

    def test_backends_change_without_a_connection_lost(self) -> None:
        """All backends get their share; a new set serves new connections; open ones continue."""

        async def test(subject: Subject) -> None:
            async with (
                named_server("one") as one,
                named_server("two") as two,
                _one_service(subject) as (service, address, _),
            ):
                await subject.publish(service, {"": [one]})
                await _soon(lambda: _answers(address, {"one"}), "the first set")
                async with _connected(address) as connection:
                    await converse(*connection)
                    await subject.publish(service, {"": [one, two]})
                    await _soon(lambda: _answers(address, {"one", "two"}), "both")
                    await subject.publish(service, {"": [two]})
                    await _soon(lambda: _answers(address, {"two"}), "the second set")
                    answer = await converse(*connection, "still")
                    _expect(answer == "one still", f"the open connection answered {answer!r}")

        self._run(test)

    def test_no_connection_fails_while_things_change_around_it(self) -> None:
        """New connections to one service succeed while others, and its ports, change."""

        async def test(subject: Subject) -> None:
            async with _one_service(subject) as (service, address, status):
                answers: list[str] = []
                changing = True

                async def ask_on() -> None:
                    while changing:
                        answers.append(await ask(address))

                async def more_answers(before: int) -> None:
                    # The first of the two answers may be older than the last change.
                    await eventually(lambda: len(answers) >= before + 2, seconds=_SECONDS)

                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(ask_on())
                    for number in range(3):
                        other = make_service(f"other-{number}", ports=[_tcp(free_port())])
                        await subject.provider.ensure(CLUSTER, other, subject.nodes)
                        more = [_tcp(address[1]), _tcp(free_port(), "more")]
                        changed = make_service(ports=more, status=status)
                        await subject.provider.ensure(CLUSTER, changed, subject.nodes)
                        await subject.provider.ensure(CLUSTER, service, subject.nodes)
                        await subject.provider.ensure_deleted(CLUSTER, other)
                        await more_answers(len(answers))
                    changing = False
                _expect(set(answers) == {"one hello"}, f"the answers were {set(answers)}")

        self._run(test)

    def test_a_backend_that_dies_is_passed_over(self) -> None:
        """One of two backends stops listening: after a while every request is answered."""

        async def test(subject: Subject) -> None:
            async with named_server("two") as two, _one_service(subject) as (service, address, _):
                async with named_server("one") as one:
                    await subject.publish(service, {"": [one, two]})
                    await _soon(lambda: _answers(address, {"one", "two"}), "both")
                await _soon(lambda: _answers(address, {"two"}), "only the living")

        self._run(test)

    def test_ports_come_and_go_beside_each_other(self) -> None:
        """A new port is served, a removed one refused, and a remaining one keeps everything."""

        async def test(subject: Subject) -> None:
            async with named_server("one") as one:
                stays, goes, comes = free_port(), free_port(), free_port()
                before = make_service(ports=[_tcp(stays, "stays"), _tcp(goes, "goes")])
                everything = {"stays": [one], "goes": [one], "comes": [one]}
                await subject.publish(before, everything)
                status = await subject.provider.ensure(CLUSTER, before, subject.nodes)
                await _soon(lambda: _answers(_address(status, stays), {"one"}), "one")
                await _soon(lambda: _answers(_address(status, goes), {"one"}), "the other")
                after = make_service(
                    ports=[_tcp(stays, "stays"), _tcp(comes, "comes")], status=status
                )
                async with _connected(_address(status, stays)) as connection:
                    await converse(*connection)
                    changed = await subject.provider.ensure(CLUSTER, after, subject.nodes)
                    _expect(changed.ingress[0].ip == status.ingress[0].ip, "the address changed")
                    await _soon(lambda: _answers(_address(changed, comes), {"one"}), "the new")
                    await _soon(lambda: _answers(_address(changed, goes), {""}), "the removed")
                    _expect(await converse(*connection) == "one hello", "the connection was cut")
                await subject.provider.ensure_deleted(CLUSTER, after)

        self._run(test)

    def test_source_ranges_keep_others_out(self) -> None:
        """Clients outside loadBalancerSourceRanges get no answer; a change takes effect."""

        async def test(subject: Subject) -> None:
            if "source-ranges" in subject.lacks:
                return
            async with _one_service(subject) as (service, address, _):
                port = service.spec.ports[0].port
                closed = make_service(ports=[_tcp(port)], loadBalancerSourceRanges=["192.0.2.0/24"])
                await subject.provider.ensure(CLUSTER, closed, subject.nodes)
                await _soon(lambda: _answers(address, {""}), "kept out")
                opened = make_service(ports=[_tcp(port)], loadBalancerSourceRanges=["127.0.0.0/8"])
                await subject.provider.ensure(CLUSTER, opened, subject.nodes)
                await _soon(lambda: _answers(address, {"one"}), "let in")

        self._run(test)

    def test_a_client_keeps_its_backend_if_asked_for(self) -> None:
        """With sessionAffinity ClientIP, one backend answers one client."""

        async def test(subject: Subject) -> None:
            if "affinity" in subject.lacks:
                return
            async with named_server("one") as one, named_server("two") as two:
                service = make_service(ports=[_tcp(free_port())], sessionAffinity="ClientIP")
                await subject.publish(service, {"": [one, two]})
                status = await subject.provider.ensure(CLUSTER, service, subject.nodes)
                address = _address(status, service.spec.ports[0].port)

                async def is_answered() -> bool:
                    return bool(await ask(address))

                await _soon(is_answered, "traffic")
                answers = {(await ask(address)) for _ in range(8)}
                _expect(len(answers) == 1, f"one client got {answers}")
                await subject.provider.ensure_deleted(CLUSTER, service)

        self._run(test)

    def test_udp_is_answered_by_whom_it_was_sent_to(self) -> None:
        """Datagrams pass, and their answers come from the load balancer's address."""

        async def test(subject: Subject) -> None:
            if "udp" in subject.lacks:
                return
            async with named_udp_server("one") as one:
                port = free_port(socket.SOCK_DGRAM)
                service = make_service(ports=[{"port": port, "protocol": "UDP", "name": ""}])
                await subject.publish(service, {"": [one]})
                status = await subject.provider.ensure(CLUSTER, service, subject.nodes)
                address = _address(status, port)

                async def is_answered() -> bool:
                    return await ask_udp(address, seconds=1) == "one hello"

                await _soon(is_answered, "datagrams")
                await subject.provider.ensure_deleted(CLUSTER, service)

        self._run(test)

    def test_what_is_deleted_is_gone_and_deleting_again_is_nothing(self) -> None:
        """Deleting also works for a service that never had a load balancer."""

        async def test(subject: Subject) -> None:
            await subject.provider.ensure_deleted(CLUSTER, make_service("never"))
            async with _one_service(subject) as (service, address, _):
                await subject.provider.ensure_deleted(CLUSTER, service)
                _expect(await subject.provider.get(CLUSTER, service) is None, "get after delete")
                await _soon(lambda: _answers(address, {""}), "no answer")
                await subject.provider.ensure_deleted(CLUSTER, service)

        self._run(test)

    def test_a_protocol_that_it_does_not_know_is_refused_and_leaves_nothing(self) -> None:
        """A port of protocol SCTP: an error names it, and nothing is left behind."""

        async def test(subject: Subject) -> None:
            bad = [_tcp(free_port(), "a"), {"port": 99, "protocol": "SCTP", "name": "b"}]
            service = make_service(ports=bad)
            try:
                await subject.provider.ensure(CLUSTER, service, subject.nodes)
            except Exception as error:  # noqa: BLE001 - any kind will do, but it must name it
                _expect("SCTP" in str(error), f"the error does not name SCTP: {error}")
            else:
                raise AssertionError("a port of protocol SCTP was taken")
            _expect(await subject.provider.get(CLUSTER, service) is None, "something is left")
            await subject.provider.ensure_deleted(CLUSTER, service)

        self._run(test)

    def test_a_cancelled_call_leaves_nothing_that_deleting_does_not_remove(self) -> None:
        """`ensure` is cancelled at each of its first awaits."""

        async def test(subject: Subject) -> None:
            for turns in range(4):
                service = make_service(f"cancelled-{turns}", ports=[_tcp(free_port())])
                task = asyncio.ensure_future(
                    subject.provider.ensure(CLUSTER, service, subject.nodes)
                )
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                await subject.provider.ensure_deleted(CLUSTER, service)
                _expect(await subject.provider.get(CLUSTER, service) is None, "left over")

        self._run(test)

    def test_a_new_provider_gives_the_address_that_the_status_tells(self) -> None:
        """After a restart the service keeps its address."""

        async def main() -> None:
            port = free_port()
            async with asyncio.timeout(60), AsyncExitStack() as stack:
                backend = await stack.enter_async_context(named_server("one"))
                async with self.open() as subject:
                    if "restart" in subject.lacks:
                        return
                    service = make_service(ports=[_tcp(port)])
                    status = await subject.provider.ensure(CLUSTER, service, subject.nodes)
                async with self.open() as subject:
                    service = make_service(ports=[_tcp(port)], status=status)
                    await subject.publish(service, {"": [backend]})
                    again = await subject.provider.ensure(CLUSTER, service, subject.nodes)
                    _expect(again == status, f"{status} became {again}")
                    address = _address(again, port)
                    await _soon(lambda: _answers(address, {"one"}), "traffic")
                    await subject.provider.ensure_deleted(CLUSTER, service)

        asyncio.run(main())


@asynccontextmanager
async def _one_service(
    subject: Subject,
) -> AsyncIterator[tuple[Service, Address, LoadBalancerStatus]]:
    """Provide a service with the backend "one"."""
    async with named_server("one") as backend:
        service = make_service(ports=[_tcp(free_port())])
        await subject.publish(service, {"": [backend]})
        status = await subject.provider.ensure(CLUSTER, service, subject.nodes)
        address = _address(status, service.spec.ports[0].port)
        await _soon(lambda: _answers(address, {"one"}), "traffic flows")
        yield service, address, status
        await subject.provider.ensure_deleted(CLUSTER, service)
