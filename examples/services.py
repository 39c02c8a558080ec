"""Load balancers without a cloud: one service's life, with traffic at each step, then many.

Starts the embedded API server, two web servers, and `listwatch service-controller` as a separate
process. A service of type LoadBalancer gets an address that answers; its backends and ports change;
the controller is killed and restarted; the service is deleted. Each step checks status, finalizer,
events and traffic. Then a controller in this process reconciles many services and nodes, and prints
the figures. Exit code 0 if all checks passed, otherwise 1.
"""

import argparse
import asyncio
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from listwatch import APIServer, Client, NotFoundError, Object, load_config
from listwatch.controllers import AddressPool, ClientServices, LocalProvider, ServiceController
from listwatch.testing import eventually, free_port

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
NAMESPACE = "default"

out = Console(highlight=False, soft_wrap=True)


class WrongError(Exception):
    """A check failed."""


# --- Servers, services, endpoints ----------------------------------------------------------------


@asynccontextmanager
async def web_server(name: str) -> AsyncIterator[int]:
    """Run a web server that answers every request with its name; yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(name)}\r\n\r\n"
                writer.write((head + name).encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class Session:
    """A client's connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str, port: int) -> "Session":
        """Connect."""
        return cls(*await asyncio.open_connection(address, port))

    async def get(self) -> str:
        """Send a request and return the response body."""
        async with asyncio.timeout(5):
            self._writer.write(b"GET / HTTP/1.1\r\nHost: demo\r\n\r\n")
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.split("Content-Length: ")[1].split("\r\n")[0])
            return (await self._reader.readexactly(length)).decode()

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


async def fetch(address: str, port: int) -> str:
    """Return an address's response to one request; "" if there is none."""
    try:
        session = await Session.open(address, port)
        try:
            return await session.get()
        finally:
            session.close()
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        return ""


def service(name: str, *ports: int) -> dict[str, Any]:
    """Return a service of type LoadBalancer."""
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": name},
            "ports": [{"port": port, "name": f"p{port}"} for port in ports],
        },
    }


def slice_of(name: str, number: int, backend: int, *ports: int) -> dict[str, Any]:
    """Return an EndpointSlice with one backend for some ports of a service."""
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": f"{name}-{number}",
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        "ports": [{"name": f"p{port}", "port": backend, "protocol": "TCP"} for port in ports],
    }


def node(name: str) -> dict[str, Any]:
    """Return a node."""
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}}


async def until(condition: Callable[[], Awaitable[object]], words: str) -> None:
    """Wait for a condition, at most 20 seconds."""
    try:
        await eventually(condition, words)
    except AssertionError as error:
        raise WrongError(str(error)) from None


# --- One service's life --------------------------------------------------------------------------


class Life:
    """A service, and everything observable about it."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self.address = ""

    async def get(self) -> Object | None:
        """Return the service, or None if it is deleted."""
        try:
            return await self._client.get("services", self.name, NAMESPACE)
        except NotFoundError:
            return None

    async def has_address(self) -> bool:
        """Return whether it has a load balancer; remember its address."""
        found = await self.get()
        if found is None:
            return False
        ingress = found["status"]["loadBalancer"].get("ingress") or [{"ip": ""}]
        self.address = ingress[0]["ip"]
        return bool(self.address) and FINALIZER in found.meta.finalizers

    async def served_ports(self) -> list[int]:
        """Return the ports in its status."""
        found = await self.get()
        if found is None:
            return []
        ingress = found["status"]["loadBalancer"].get("ingress") or [{}]
        return [port["port"] for port in ingress[0].get("ports", ())]

    async def answers(self, port: int, expected: set[str]) -> bool:
        """Return whether exactly these backends answer; the empty name means no answer."""
        return {await fetch(self.address, port) for _ in range(6)} == expected

    async def reasons(self) -> list[str]:
        """Return the reasons of its events, oldest first."""
        events = await self._client.list("events.v1.", NAMESPACE)
        mine = [e for e in events.items if e["involvedObject"]["name"] == self.name]
        # A repetition changes an event's version; its name has the time of the first occurrence.
        mine.sort(key=lambda event: event.name)
        return [event["reason"] for event in mine]


class ControllerProcess:
    """`listwatch service-controller` as a separate process."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "listwatch.cli", "service-controller"),
            *("--log-level", "warning"),
            *self._arguments,
        )

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        return await process.wait()


async def live(client: Client, kubeconfig: Path, provider: str) -> None:
    """Take a service through its life, and check every step."""
    port, second = free_port(), free_port()
    web = Life(client, "web")
    controller = ControllerProcess(
        "--kubeconfig", str(kubeconfig), "--no-leader-elect", "--provider", provider,
        "--address-pool", "127.90.0.0/16", "--health-check-period", "0.5",
        *(("--stop-with-controller",) if provider == "haproxy" else ()),
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(web_server("one"))
        two = await stack.enter_async_context(web_server("two"))
        await controller.start()
        stack.push_async_callback(controller.end, signal.SIGKILL)

        await client.create(slice_of("web", 1, one, port, second))
        await client.create(service("web", port))
        await until(web.has_address, "status and finalizer")
        await until(lambda: web.answers(port, {"one"}), "an answer")
        out.print(f"service web has the address {web.address} and answers on port {port}")
        session = await Session.open(web.address, port)
        stack.callback(session.close)
        await session.get()

        await client.create(slice_of("web", 2, two, port, second))
        await until(lambda: web.answers(port, {"one", "two"}), "both backends")
        out.print("a second backend has come: both answer")
        await client.delete("endpointslices", "web-1", NAMESPACE)
        await until(lambda: web.answers(port, {"two"}), "the second backend alone")
        if await session.get() != "one":
            raise WrongError("the open connection was cut")
        out.print("the first backend has gone: new connections avoid it, the open one goes on")

        await client.patch("services", "web", service("web", port, second), NAMESPACE)
        await until(lambda: web.answers(second, {"two"}), "the new port")
        if await session.get() != "one":
            raise WrongError("the open connection was cut")
        await client.patch("services", "web", service("web", second), NAMESPACE)
        await until(lambda: web.answers(port, {""}), "no answer on the old port")
        await until(lambda: _is(web.served_ports, [second]), "the ports in the status")
        out.print(f"port {port} was exchanged for {second}, in traffic and in status")

        await restart(web, controller, second, provider)
        await end(client, web, controller, second)


async def restart(web: Life, controller: ControllerProcess, port: int, provider: str) -> None:
    """Kill the controller and restart it."""
    before = web.address
    await controller.end(signal.SIGKILL)
    if provider == "local":
        await until(lambda: web.answers(port, {""}), "no answer without the controller")
    await controller.start()
    await until(lambda: web.answers(port, {"two"}), "an answer after the restart")
    await web.has_address()
    if web.address != before:
        raise WrongError(f"the address was {before} and is {web.address}")
    out.print(f"the controller was killed and came back: {before} answers again")


async def end(client: Client, web: Life, controller: ControllerProcess, port: int) -> None:
    """Delete the service, and check that nothing is left of it."""
    await client.delete("services", "web", NAMESPACE)
    await until(lambda: _is(web.get, None), "the service's end")
    await until(lambda: web.answers(port, {""}), "the end of traffic")
    await until(lambda: _told(web, "DeletedLoadBalancer"), "the last event")
    reasons = await web.reasons()
    if reasons[:2] != ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]:
        raise WrongError(f"the events begin with {reasons[:2]}")
    out.print(f"the service is deleted, nothing answers; events: {' '.join(reasons)}")
    if code := await controller.end(signal.SIGTERM):
        raise WrongError(f"the controller ended with code {code}")


async def _is(get: Callable[[], Awaitable[object]], expected: object) -> bool:
    return await get() == expected


async def _told(web: Life, reason: str) -> bool:
    return reason in await web.reasons()


# --- Many services -------------------------------------------------------------------------------


async def _in_parallel(calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
    waiting = list(calls)

    async def work() -> None:
        while waiting:
            await waiting.pop()()

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(work())


async def converge(client: Client, services: int, nodes: int) -> None:
    """Reconcile many services and nodes, and print the costs."""
    pool = AddressPool(["127.91.0.0/16"])
    slices = client.list_watch("endpointslices.v1.discovery.k8s.io")
    await _in_parallel([partial(client.create, node(f"node-{n}")) for n in range(nodes)])
    async with LocalProvider(pool, endpoint_slices=slices) as provider:
        controller = ServiceController(
            provider,
            ClientServices(client),
            client.list_watch("services.v1."),
            client.list_watch("nodes.v1."),
            workers=20,
        )
        task = asyncio.ensure_future(controller.run())
        try:
            start = time.monotonic()
            await _in_parallel(
                [partial(client.create, service(f"many-{n}", 8080)) for n in range(services)]
            )

            async def all_have_addresses() -> bool:
                return controller.statistics().ensured >= services

            await until(all_have_addresses, "an address for each service")
            made = time.monotonic() - start
            start = time.monotonic()
            await client.create(node("one-more"))

            async def all_know_the_node() -> bool:
                return controller.statistics().host_update_seconds.count >= services

            await until(all_know_the_node, "the new node with each load balancer")
            noded = time.monotonic() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            out.print(
                f"{services} services and {nodes} nodes: load balancers, finalizers and status in "
                f"{made:.1f} s; one more node with all of them in {noded:.2f} s; "
                f"{peak} MB at most, the API server included"
            )
            start = time.monotonic()
            await _in_parallel(
                [
                    partial(client.delete, "services", f"many-{n}", NAMESPACE)
                    for n in range(services)
                ]
            )

            async def nothing_is_left() -> bool:
                left = await client.list("services", NAMESPACE)
                # The server's own service stays.
                return {s.name for s in left.items} <= {"kubernetes"} and not len(pool)

            await until(nothing_is_left, "the end of all services")
            out.print(f"all deleted in {time.monotonic() - start:.1f} s; no address is left")
        finally:
            task.cancel()
            await asyncio.wait({task})


async def main(arguments: argparse.Namespace) -> int:
    """Run all of it."""
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        async with APIServer() as server:
            kubeconfig.write_text(server.kubeconfig())
            async with Client.from_config(load_config(kubeconfig)) as client:
                await client.create(node("node"))
                try:
                    await live(client, kubeconfig, arguments.provider)
                    await converge(client, arguments.services, arguments.nodes)
                except WrongError as error:
                    out.print(f"WRONG: {error}")
                    return 1
    out.print("Everything was as it should be.")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--provider", choices=["local", "haproxy"], default="local")
    sys.exit(asyncio.run(main(parser.parse_args())))
