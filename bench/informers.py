"""What a shared informer does with a stream of updates, beside nothing but reading it.

    python bench/informers.py [--pods 5000] [--updates 50000] [--events 1000]

The server is a process of its own that only sends bytes made before, each event in an HTTP chunk
of its own and by a call of its own, as kube-apiserver does. So the client is what is measured, by
its own CPU. The floor reads the same bytes and counts the lines. Beside a thread that reads the
cache in a tight loop the clock counts, also without that thread. Latency is from just before
the server's call to the handler's, on one machine's clock, with a pause between two events. The
last line has what packed objects take.
"""

import argparse
import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rivals import cpu_seconds, memory

from listwatch.testing.workload import PodGenerator

PAUSE = 0.005
_STAMP = "bench/sent"


def chunk(event: bytes) -> bytes:
    """Return an event as an HTTP chunk."""
    return b"%x\r\n%s\n\r\n" % (len(event) + 1, event)


def pods(count: int) -> list[tuple[bytes, bytes]]:
    """Return pods as a server sends them, cut where the resource version belongs."""
    generator, made = PodGenerator(1), []
    for number in range(count):
        pod = generator.pod(number)
        pod["metadata"]["uid"] = f"00000000-0000-4000-8000-{number:012d}"
        pod["metadata"]["resourceVersion"] = "RV"
        pod["metadata"]["annotations"][_STAMP] = "0"
        before, after = msgspec.json.encode(pod).split(b'"RV"')
        made.append((before + b'"', b'"' + after))
    return made


def serve(count: int) -> None:
    """Answer watches; for each line of standard input, send events to the one that is open."""
    made = pods(count)
    version = count
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
def server(count: int) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Run the server; gives its port."""
    with subprocess.Popen(
        [sys.executable, __file__, "serve", str(count)],
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
    """Counts updates, and knows how long each was on its way."""

    def __init__(self, updates: int, *, timed: bool) -> None:
        self.left = updates
        self.done = asyncio.Event()
        self.seconds: list[float] = []
        self._timed = timed

    def on_add(self, obj: object, is_in_initial_list: bool) -> None:  # noqa: FBT001 - the protocol's
        """Ignore it."""

    def on_delete(self, obj: object) -> None:
        """Ignore it."""

    def on_update(self, old: object, new: Any) -> None:  # noqa: ARG002 - the protocol's
        """Count it."""
        if self._timed:
            now = time.monotonic_ns()
            self.seconds.append((now - int(new["metadata"]["annotations"][_STAMP])) / 1e9)
        self.left -= 1
        if not self.left:
            self.done.set()


async def inform(port: int, updates: int, *, timed: bool, reader: bool) -> dict[str, Any]:
    """Sync, say so, take the updates and return what they cost."""
    from listwatch import Client, SharedInformer  # noqa: PLC0415 - only this process needs it
    from listwatch.client.config import Config  # noqa: PLC0415 - as above
    from listwatch.client.discovery import Resource  # noqa: PLC0415 - as above

    handler = Handler(updates, timed=timed)
    async with Client.from_config(Config(server=f"http://127.0.0.1:{port}")) as client:
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
    port: int, process: "subprocess.Popen[str]", kind: str, what: str, events: int
) -> dict[str, Any]:
    """Run one client in a process of its own and return its figures."""
    with subprocess.Popen(
        [sys.executable, __file__, "client", kind, what, str(port), str(events)],
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


def packed(count: int) -> dict[str, float]:
    """Return what a packed object takes in a store, in bytes."""
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
    """Play one of the parts."""
    match sys.argv[1:]:
        case ["serve", count]:
            serve(int(count))
            return
        case ["client", kind, what, port, events]:
            if kind == "floor":
                figures = asyncio.run(floor(int(port), int(events)))
            else:
                if kind == "aiohttp":
                    sys.modules["httptools"] = None  # type: ignore[assignment]  # as if not installed
                if kind == "reader-0.5":
                    sys.setswitchinterval(0.0005)
                figures = asyncio.run(
                    inform(
                        int(port),
                        int(events),
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
        walls = {
            kind: min(
                run(address, process, kind, "fire", options.updates)["wall"] for _ in range(3)
            )
            for kind in ("httptools", "reader", "reader-0.5")
        }
        late = run(address, process, "httptools", "ticks", options.events)["seconds"]
    alone = walls["httptools"]
    console.print(
        f"by the clock {options.updates / alone:,.0f} updates/s; beside a reader "
        f"{options.updates / walls['reader']:,.0f} ({alone / walls['reader']:.0%}), with a switch "
        f"interval of 0.5 ms {options.updates / walls['reader-0.5']:,.0f} "
        f"({alone / walls['reader-0.5']:.0%}); goal: a third"
    )
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
