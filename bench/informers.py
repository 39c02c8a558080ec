"""Measures a shared informer on a stream of updates, against merely reading the stream.

    python bench/informers.py [--pods 5000] [--updates 50000] [--events 1000]

The server is a separate process that only sends prepared bytes, each event in its own HTTP chunk
and by its own call, as kube-apiserver does. So this measures the client's CPU time. The floor reads
the same bytes and counts the lines. Beside a thread that reads the cache in a tight loop, wall time
is measured, with and without that thread, plain and with TLS. Latency is from just before the
server's call to the handler's, with a pause between two events. The last line shows the size of
packed objects.
"""

import argparse
import asyncio
import gc
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import trustme
from rich.console import Console
from rich.table import Table
from rivals import cpu_seconds, memory

from listwatch.testing.workload import PodGenerator

PAUSE = 0.005
#: Python's default switch interval and shorter ones, in milliseconds.
INTERVALS = ("5", "0.5", "0.1", "0.02")
_STAMP = "bench/sent"


def chunk(event: bytes) -> bytes:
    """Return an event as an HTTP chunk."""
    return b"%x\r\n%s\n\r\n" % (len(event) + 1, event)


def pods(count: int) -> list[tuple[bytes, bytes]]:
    """Return pods as a server sends them, split at the resource version."""
    generator, made = PodGenerator(1), []
    for number in range(count):
        pod = generator.pod(number)
        pod["metadata"]["uid"] = f"00000000-0000-4000-8000-{number:012d}"
        pod["metadata"]["resourceVersion"] = "RV"
        pod["metadata"]["annotations"][_STAMP] = "0"
        before, after = msgspec.json.encode(pod).split(b'"RV"')
        made.append((before + b'"', b'"' + after))
    return made


def serve(count: int, authority: str) -> None:
    """Serve watches; for each line of standard input, send events to the open one.

    Args:
        count: number of pods.
        authority: where to write a TLS server's CA certificate; empty for no TLS.
    """
    made = pods(count)
    version = count
    context: ssl.SSLContext | None = None
    if authority:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(authority)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ca.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number, (before, after) in enumerate(made):
                event = b'{"type":"ADDED","object":%b%d%b}' % (before, number + 1, after)
                connection.sendall(chunk(event))
            connection.sendall(
                chunk(
                    b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{'
                    b'"resourceVersion":"%d",'
                    b'"annotations":{"k8s.io/initial-events-end":"true"}}}}' % version
                )
            )
            what, events = sys.stdin.readline().split()
            for number in range(int(events)):
                before, after = made[number % count]
                version += 1
                if what == "ticks":
                    time.sleep(PAUSE)
                    stamp = b'"%b":"%d"' % (_STAMP.encode(), time.monotonic_ns())
                    before = before.replace(b'"%b":"0"' % _STAMP.encode(), stamp)
                event = b'{"type":"MODIFIED","object":%b%d%b}' % (before, version, after)
                connection.sendall(chunk(event))
            sys.stdin.readline()
            connection.close()


@contextmanager
def server(count: int, authority: str = "") -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Run the server; yield its port."""
    with subprocess.Popen(
        [sys.executable, __file__, "serve", str(count), authority],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


class Handler:
    """Counts updates, and records their latency."""

    def __init__(self, updates: int, *, timed: bool) -> None:
        self.left = updates
        self.done = asyncio.Event()
        self.seconds: list[float] = []
        self.timed = timed

    def on_add(self, obj: object, is_in_initial_list: bool) -> None:  # noqa: FBT001 - the protocol's
        """Ignore it."""

    def on_delete(self, obj: object) -> None:
        """Ignore it."""

    def on_update(self, old: object, new: Any) -> None:  # noqa: ARG002 - the protocol's
        """Count it."""
        if self.timed:
            now = time.monotonic_ns()
            self.seconds.append((now - int(new["metadata"]["annotations"][_STAMP])) / 1e9)
        self.left -= 1
        if not self.left:
            self.done.set()


async def inform(
    port: int, updates: int, authority: str, *, timed: bool, reader: bool
) -> dict[str, Any]:
    """Sync, report it, take the updates and return the costs."""
    from listwatch import Client, SharedInformer  # noqa: PLC0415 - only this process needs it
    from listwatch.client.config import Config  # noqa: PLC0415 - as above
    from listwatch.client.discovery import Resource  # noqa: PLC0415 - as above

    handler = Handler(updates, timed=timed)
    scheme = "https" if authority else "http"
    config = Config(server=f"{scheme}://127.0.0.1:{port}", certificate_authority=authority)
    async with Client.from_config(config) as client:
        resource = Resource(version="v1", plural="pods", kind="Pod")
        informer = SharedInformer(client.list_watch(resource))
        listener = informer.add_handler(handler)
        async with informer:
            await listener.wait_for_sync()
            stop = threading.Event()

            def read() -> None:
                while not stop.is_set():
                    informer.lister.find("nobody", "team-1")

            if reader:
                threading.Thread(target=read, daemon=True).start()
            print("{}", flush=True)
            before, began = cpu_seconds(), time.perf_counter()
            await handler.done.wait()
            stop.set()
            return {
                "cpu": cpu_seconds() - before,
                "wall": time.perf_counter() - began,
                "seconds": sorted(handler.seconds),
            }


async def floor(port: int, updates: int) -> dict[str, Any]:
    """Read the same with aiohttp and count lines."""
    import aiohttp  # noqa: PLC0415 - only this process needs it

    async def lines(many: int) -> None:
        while many > 0:
            many -= (await response.content.readany()).count(b"\n")

    async with (
        aiohttp.ClientSession(read_bufsize=2**18) as session,
        session.get(f"http://127.0.0.1:{port}/?count={updates}") as response,
    ):
        while b"initial-events-end" not in await response.content.readany():
            pass
        print("{}", flush=True)
        before = cpu_seconds()
        await lines(updates)
        return {"cpu": cpu_seconds() - before}


def run(
    port: int,
    process: "subprocess.Popen[str]",
    kind: str,
    what: str,
    events: int,
    authority: str = "",
) -> dict[str, Any]:
    """Run one client in a separate process and return its figures."""
    with subprocess.Popen(
        [sys.executable, __file__, "client", kind, what, str(port), str(events), authority],
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert process.stdin is not None
        client.stdout.readline()
        process.stdin.write(f"{what} {events}\n")
        process.stdin.flush()
        figures: dict[str, Any] = json.loads(client.stdout.readline())
    process.stdin.write("end\n")
    process.stdin.flush()
    return figures


def beside_a_reader(count: int, updates: int, *, tls: bool) -> Iterator[str]:
    """Yield the rate alone, then the rates beside a reader for each switch interval."""
    with tempfile.TemporaryDirectory() as folder:
        authority = str(Path(folder) / "ca.pem") if tls else ""
        with server(count, authority) as (port, process):

            def rate(kind: str, events: int) -> float:
                best: float = min(
                    run(port, process, kind, "fire", events, authority)["wall"] for _ in range(3)
                )
                return events / best

            alone = rate("httptools", updates)
            yield f"{alone:,.0f}"
            for interval in INTERVALS:
                # With TLS it takes long, and the rate is constant from the start.
                beside = rate(f"reader-{interval}", updates // 20 if tls else updates)
                yield f"{beside:,.0f} ({beside / alone:.0%})"


def packed(count: int) -> dict[str, float]:
    """Return the size of a packed object in a store, in bytes."""
    from listwatch.cache.compression import ZstdCodec  # noqa: PLC0415 - needs an extra
    from listwatch.cache.store import Indexer  # noqa: PLC0415 - for this process only
    from listwatch.objects import ObjectDecoder  # noqa: PLC0415 - as above

    codec = ZstdCodec()
    decode = ObjectDecoder(codec=codec)
    indexer = Indexer(indexers={"namespace": lambda obj: (obj.namespace,)})
    generator = PodGenerator(1)
    before, cpu = 0.0, 0.0
    for number in range(count):
        raw = msgspec.json.encode(generator.pod(number))
        if number == count // 2:  # the dictionary and the interpreter are not the objects
            gc.collect()
            before = memory()["rss"]
        began = time.process_time()
        indexer.add(decode(raw))
        cpu += time.process_time() - began
    gc.collect()
    grown = (memory()["rss"] - before) * 1e6 / (count - count // 2)
    statistics = codec.statistics()
    return {
        "raw": statistics.raw_bytes / count,
        "packed": statistics.packed_bytes / count,
        "resident": grown,
        "us": cpu / count * 1e6,
    }


def main() -> None:
    """Run one of the roles."""
    match sys.argv[1:]:
        case ["serve", count, authority]:
            serve(int(count), authority)
            return
        case ["client", kind, what, port, events, authority]:
            if kind == "floor":
                figures = asyncio.run(floor(int(port), int(events)))
            else:
                if kind == "aiohttp":
                    sys.modules["httptools"] = None  # type: ignore[assignment]  # as if not installed
                if kind.startswith("reader-"):
                    sys.setswitchinterval(float(kind.removeprefix("reader-")) / 1000)
                figures = asyncio.run(
                    inform(
                        int(port),
                        int(events),
                        authority,
                        timed=what == "ticks",
                        reader=kind.startswith("reader"),
                    )
                )
            print(json.dumps(figures), flush=True)
            return
        case ["packed", count]:
            print(json.dumps(packed(int(count))))
            return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--events", type=int, default=1000, help="for the latency")
    options = parser.parse_args()
    console = Console(width=100)
    rates = Table(title=f"Updates of {options.pods:,} pods; best of 3")
    for column in ("client", "CPU us an update", "x floor", "updates/s of a core", "goal"):
        rates.add_column(column, justify="left" if column == "client" else "right")
    with server(options.pods) as (address, process):
        best = {
            kind: min(run(address, process, kind, "fire", options.updates)["cpu"] for _ in range(3))
            for kind in ("floor", "aiohttp", "httptools")
        }
        for kind, goal in (("floor", ""), ("aiohttp", ">= 40,000"), ("httptools", ">= 50,000")):
            each = best[kind] / options.updates
            share = best[kind] / best["floor"]
            rates.add_row(kind, f"{each * 1e6:.1f}", f"{share:.1f}", f"{1 / each:,.0f}", goal)
        console.print(rates)
        late = run(address, process, "httptools", "ticks", options.events)["seconds"]
    table = Table(title="Updates/s by the clock, beside a thread that reads in a tight loop")
    for column in ("connection", "alone", *(f"every {interval} ms" for interval in INTERVALS)):
        table.add_column(column, justify="left" if column == "connection" else "right")
    for name in ("plain", "TLS"):
        table.add_row(name, *beside_a_reader(options.pods, options.updates, tls=name == "TLS"))
    console.print(table)
    console.print("goal beside the thread, at Python's own switch interval of 5 ms: a third")
    median, high = (late[int(len(late) * part)] * 1000 for part in (0.5, 0.99))
    console.print(
        f"event sent -> handler: median {median:.2f} ms, p99 {high:.2f} ms of {len(late):,} events "
        f"{PAUSE * 1000:g} ms apart; goal: p99 <= 2 ms, idle"
    )
    output = subprocess.run(
        [sys.executable, __file__, "packed", str(options.pods)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    zstd = json.loads(output)
    console.print(
        f"compress='zstd': {zstd['raw']:,.0f} bytes are packed in {zstd['packed']:,.0f}; with "
        f"metadata and an index {zstd['resident']:,.0f} bytes resident for an object (goal: "
        f"<= 2 KB); {zstd['us']:.0f} us to decode, pack and store"
    )


if __name__ == "__main__":
    main()
