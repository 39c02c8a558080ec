"""Measures the throughput of both load balancer providers, in one run.

    python bench/load_balancers.py [--seconds 1] [--rounds 5] [--connections 64]

The client, the backend and each proxy are separate processes. Every round measures, in turn, the
backend directly, the local provider, a hand-written minimal HAProxy configuration, and the HAProxy
provider. The table has the best round of each, because other programs can only slow one down, and
the CPU time that the proxy took in it. Goals: the HAProxy provider reaches 90 % of the minimal
configuration, and the local provider 45 % of direct for keep-alive requests and one stream.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, cast

from rich.console import Console
from rich.table import Table

from listwatch.controllers import AddressPool, HAProxyProvider, LocalProvider, Node
from listwatch.controllers.services.providers.haproxy_process import find_program
from listwatch.testing import free_port, make_service

REQUEST: Final = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
RESPONSE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
STREAM: Final = b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNK: Final = b"x" * 65536
KINDS: Final = ("requests/s", "connections/s", "stream, MB/s")

# --- The backend ---


class Backend(asyncio.Protocol):
    """Answers each request, or sends without end."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer; a request always comes in one piece."""
        assert self._transport is not None
        if data == STREAM:
            self._send()
        else:
            self._transport.write(RESPONSE)

    def _send(self) -> None:
        assert self._transport is not None
        while not self._is_paused and not self._transport.is_closing():
            self._transport.write(CHUNK)

    def pause_writing(self) -> None:
        """Wait until the reader is ready for more."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Continue the stream."""
        self._is_paused = False
        # A write that fails within this call would confuse asyncio.
        asyncio.get_running_loop().call_soon(self._send)


async def serve_backend() -> None:
    """Run the backend until killed."""
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# --- The client ---


class Client(asyncio.Protocol):
    """Sends a request after each response, until the time is up."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self.answers = 0
        self.received = 0
        self.is_over = False
        self._ended = ended
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        """Count, and send the next request once a response is complete."""
        assert self._transport is not None
        self.received += len(data)
        if self.received < len(RESPONSE):
            return
        self.received = 0
        self.answers += 1
        if self.is_over:
            self._transport.abort()
        else:
            self._transport.write(REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - required by asyncio
        """End."""
        self._ended()


async def keep_alive(address: tuple[str, int], seconds: float, connections: int) -> float:
    """Return the requests a second of some connections that stay open."""
    loop = asyncio.get_running_loop()
    over = asyncio.Semaphore(0)
    clients = [
        (await loop.create_connection(lambda: Client(over.release), *address))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds / 4)
    for client in clients:
        client.answers = 0
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    rate = sum(client.answers for client in clients) / (time.perf_counter() - start)
    for client in clients:
        client.is_over = True
    for _ in clients:
        await over.acquire()
    return rate


async def connect(address: tuple[str, int], seconds: float, connections: int) -> float:
    """Return the connections a second, with one request each."""
    loop = asyncio.get_running_loop()
    made = 0
    end = time.perf_counter() + seconds

    async def work() -> None:
        nonlocal made
        while time.perf_counter() < end:
            ended = asyncio.Event()
            _, client = await loop.create_connection(lambda: Client(ended.set), *address)  # noqa: B023 - called at once
            client.is_over = True
            await ended.wait()
            made += client.answers

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(work())
    return made / seconds


async def stream(address: tuple[str, int], seconds: float, connections: int) -> float:  # noqa: ARG001 - like the others
    """Return the megabytes a second of one connection."""
    loop = asyncio.get_running_loop()
    with socket.create_connection(address) as sock:
        sock.setblocking(False)
        await loop.sock_sendall(sock, STREAM)
        buffer = bytearray(1 << 18)
        start = time.perf_counter() + seconds / 4
        received = 0
        while (now := time.perf_counter()) < start + seconds:
            size = await loop.sock_recv_into(sock, buffer)
            received += size if now > start else 0
    return received / seconds / 1e6


# --- Proxies ---


@asynccontextmanager
async def provider(name: str, backend: int) -> AsyncIterator[tuple[str, int]]:
    """Run a provider with one service, and yield its address."""
    pool = AddressPool(["127.91.0.0/16"])
    make = LocalProvider if name == "local" else HAProxyProvider
    port = free_port()
    async with make(pool, backends="node-ports") as made:
        ports = [{"port": port, "nodePort": backend, "protocol": "TCP"}]
        service = make_service(name, uid=name, ports=ports, type="LoadBalancer")
        node = Node(name="n", internal_ips=("127.0.0.1",))
        status = await made.ensure("bench", service, [node])
        yield status.ingress[0].ip, port


async def serve_provider(name: str, backend: int) -> None:
    """Run a provider until killed."""
    async with provider(name, backend) as address:
        print(json.dumps(address), flush=True)
        await asyncio.Event().wait()


MINIMAL: Final = """\
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    server s 127.0.0.1:{backend}
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.terminate()
            running.wait()


def role(*arguments: str) -> Any:
    """Return a context that runs this file in another role."""
    return process(sys.executable, __file__, *arguments)


def first_line(running: subprocess.Popen[str]) -> Any:
    """Return what a role says when it is ready."""
    assert running.stdout is not None
    return json.loads(running.stdout.readline())


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its descendants so far."""
    total = 0.0
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0]) / 1e9
    return total


# --- Measuring ---


def measured(options: argparse.Namespace) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return, by kind and way, each round's rate and the proxy's CPU microseconds per unit."""
    haproxy = find_program("haproxy")
    found: dict[str, dict[str, list[tuple[float, float]]]] = {kind: {} for kind in KINDS}
    with ExitStack() as stack:
        backend = first_line(stack.enter_context(role("--role", "backend")))
        ways: dict[str, tuple[Any, int]] = {"direct": (("127.0.0.1", backend), 0)}
        local = stack.enter_context(role("--role", "local", "--backend", str(backend)))
        ways["local"] = first_line(local), local.pid
        if haproxy is not None:
            port = free_port()
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / "cfg").write_text(MINIMAL.format(port=port, backend=backend))
            minimal = stack.enter_context(process(haproxy, "-db", "-f", str(folder / "cfg")))
            ways["minimal"] = ("127.0.0.1", port), minimal.pid
            full = stack.enter_context(role("--role", "haproxy", "--backend", str(backend)))
            ways["haproxy"] = first_line(full), full.pid
        time.sleep(0.5)  # HAProxy listens, and checks its backends for the first time
        for _ in range(options.rounds):
            for kind in KINDS:
                for way, (address, pid) in ways.items():
                    before = cpu_seconds(pid) if pid else 0.0
                    arguments = ["--kind", kind, "--at", json.dumps(address)]
                    arguments += ["--seconds", str(options.seconds)]
                    arguments += ["--connections", str(options.connections)]
                    with role("--role", "client", *arguments) as client:
                        rate = first_line(client)
                    spent = cpu_seconds(pid) - before if pid else 0.0
                    micros = spent * 1e6 / max(rate * options.seconds, 1)
                    found[kind].setdefault(way, []).append((rate, micros))
    return found


#: Way, its reference, and the goal in per cent, by kind.
GOALS: Final = {
    "local": ("direct", {"requests/s": 45, "stream, MB/s": 45}),
    "haproxy": ("minimal", dict.fromkeys(KINDS, 90)),
}


def report(found: dict[str, dict[str, list[tuple[float, float]]]]) -> bool:
    """Print the table; return whether every goal is reached."""
    best = {
        kind: {way: max(rounds) for way, rounds in ways.items()} for kind, ways in found.items()
    }
    table = Table("", "way", "rate", "proxy's CPU, us a unit", "of", "ratio", "goal")
    reached = True
    for kind, ways in best.items():
        for way, (rate, cpu) in ways.items():
            of, goals = GOALS.get(way, ("", {}))
            row = [kind, way, f"{rate:,.0f}", f"{cpu:.1f}" if cpu else "", of, "", ""]
            if of:
                ratio = 100 * rate / ways[of][0]
                row[5] = f"{ratio:.0f} %"
                if kind in goals:
                    row[6] = f"{goals[kind]} %"
                    reached &= ratio >= goals[kind]
            table.add_row(*row)
    Console().print(table)
    return reached


def main() -> int:
    """Measure; the exit code says whether every goal was reached."""
    parser = argparse.ArgumentParser(description="throughput of the load balancer providers")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    for name in ("role", "kind", "at"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--backend", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is None:
        return 0 if report(measured(options)) else 1
    if options.role == "backend":
        asyncio.run(serve_backend())
    elif options.role == "client":
        clients = dict(zip(KINDS, (keep_alive, connect, stream), strict=True))
        run = clients[options.kind]
        at = tuple(json.loads(options.at))
        print(asyncio.run(run(at, options.seconds, options.connections)), flush=True)
    else:
        asyncio.run(serve_provider(options.role, options.backend))
    return 0


if __name__ == "__main__":
    sys.exit(main())
