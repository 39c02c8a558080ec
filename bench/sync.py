"""Measures sync, memory and updates of an informer on the embedded API server.

    python bench/sync.py [--pods 10000,50000] [--updates 50000]

The server and the informer run in separate processes; `bench/report.py` has the rivals. A client's
figure is the CPU time of its whole process, from the interpreter's start with all imports until
everything is in memory: on two cores the wall time would mostly measure the server. The floor is a
process in which aiohttp reads the same watch-list bytes and splits lines, so that ratios can be
compared across machines. An MB is a million bytes.
"""

import argparse
import asyncio
import gc
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivals import SENT, cpu_seconds, memory

if TYPE_CHECKING:
    from rich.console import Console

    from listwatch.apiserver.http.tls import TLS

HERE = Path(__file__).parent
#: Seconds between updates that tell when they were sent.
PAUSE = 0.01
Figures = dict[str, Any]


async def serve(pods: int, authority: str) -> None:
    """Serve this many pods, stored without requests.

    On standard input, `fire N` makes N updates, and `tick N` makes N that tell when they were sent.

    Args:
        pods: their number.
        authority: where to write a TLS server's CA certificate; empty for no TLS.
    """
    import msgspec  # noqa: PLC0415 - as above

    from listwatch.apiserver import EmbeddedAPIServer  # noqa: PLC0415 - only this process needs it
    from listwatch.apiserver.user import User  # noqa: PLC0415 - as above
    from listwatch.testing.workload import PodGenerator  # noqa: PLC0415 - as above

    server = EmbeddedAPIServer(
        history_limit=max(200_000, pods * 2),
        backlog_limit=1_000_000,
        tls=_encryption(authority) if authority else None,
        tokens={"t": User("bench", groups=("system:masters",))} if authority else None,
    )
    resource = server.table.get("", "v1", "pods")
    if resource is None:
        raise SystemExit("the server has no pods")
    store, registry = server.store, server.registry
    bucket = registry.bucket(resource)
    generator = PodGenerator(1)
    for number in range(pods):
        pod = generator.pod(number)
        pod["metadata"].setdefault("uid", f"00000000-0000-4000-8000-{number:012d}")
        pod["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        pod["metadata"].setdefault("annotations", {})[SENT] = "0"
        store.put(bucket, registry.entry(resource, pod, store.revision + 1))
    stored = sum(len(entry.data) for entry in bucket.entries.values())
    entries = list(bucket.entries.values())
    async with server:
        print(json.dumps({"url": server.url, "stored": stored}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, count = line.split()[0], int(line.split()[1])
            for number in range(count):
                newer = entries[number % len(entries)].at_revision(store.revision + 1)
                if what == "tick":
                    await asyncio.sleep(PAUSE)
                    stamp = b'"%b":"%d"' % (SENT.encode(), time.monotonic_ns())
                    data = newer.data.replace(b'"%b":"0"' % SENT.encode(), stamp)
                    newer = msgspec.structs.replace(newer, data=data)
                store.put(bucket, newer)
                if not number % 100:
                    await asyncio.sleep(0)


def _encryption(authority: str) -> "TLS":
    import ssl  # noqa: PLC0415 - as above

    import trustme  # noqa: PLC0415 - as above

    from listwatch.apiserver.http.tls import TLS  # noqa: PLC0415 - as above

    ca = trustme.CA()
    ca.cert_pem.write_to_path(authority)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    return TLS(context, authority=ca.cert_pem.bytes().decode())


@contextmanager
def server(pods: int, authority: str = "") -> Iterator[tuple[str, int, subprocess.Popen[str]]]:
    """Run the server with this many pods; yield its URL and the bytes that it stores."""
    with subprocess.Popen(
        [sys.executable, __file__, "serve", str(pods), authority],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            yield ready["url"], ready["stored"], process
        finally:
            process.kill()


async def floor(url: str, pods: int) -> Figures:
    """Only read the watch-list with aiohttp and split it into lines."""
    import aiohttp  # noqa: PLC0415 - only this process needs it

    path = (
        "/api/v1/pods?watch=1&allowWatchBookmarks=true&sendInitialEvents=true"
        "&resourceVersionMatch=NotOlderThan"
    )
    lines, rest = 0, b""
    started = cpu_seconds()
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(read_bufsize=2**18, timeout=timeout) as session,
        session.get(url + path) as response,
    ):
        async for chunk in response.content.iter_any():
            parts = (rest + chunk).split(b"\n")
            rest = parts.pop()
            lines += len(parts)
            if lines > pods:
                break
    return {"cpu": cpu_seconds(), "start": started, "objects": lines - 1, **memory()}


class CountingHandler:
    """Counts its calls."""

    def __init__(self) -> None:
        self.added = self.updated = self.deleted = 0

    def on_add(self, obj: object, is_in_initial_list: bool) -> None:  # noqa: FBT001, ARG002 - the protocol's
        """Count an addition."""
        self.added += 1

    def on_update(self, old: object, new: object) -> None:  # noqa: ARG002 - the protocol's
        """Count an update."""
        self.updated += 1

    def on_delete(self, obj: object) -> None:  # noqa: ARG002 - the protocol's
        """Count a deletion."""
        self.deleted += 1


async def inform(url: str, pods: int, updates: int, *, watch_list: bool) -> Figures:
    """Sync an informer with two indices and a handler, then take updates."""
    import msgspec  # noqa: PLC0415 - only this process needs it

    from listwatch.cache.informer import Informer  # noqa: PLC0415 - as above
    from listwatch.client.client import Client  # noqa: PLC0415 - as above
    from listwatch.client.config import Config  # noqa: PLC0415 - as above

    spec = msgspec.defstruct("Spec", [("nodeName", str, "")], frozen=True, gc=False)
    fields = msgspec.defstruct("Fields", [("spec", spec, spec())], frozen=True, gc=False)

    def by_node(obj: Any) -> tuple[str, ...]:
        node: str = obj.fields.spec.nodeName
        return (node,) if node else ()

    handler = CountingHandler()
    started = cpu_seconds()
    async with Client.from_config(Config(server=url)) as client:
        informer = Informer(
            client.list_watch("pods"),
            handler,
            indexers={"namespace": lambda obj: (obj.namespace,), "node": by_node},
            fields=fields,
            watch_list=watch_list,
        )
        async with informer:
            while handler.added < pods:  # noqa: ASYNC110 - no event would be cheaper
                await asyncio.sleep(0.002)
            figures: Figures = {"cpu": cpu_seconds(), "start": started, **memory()}
            gc.collect()
            figures["rss"] = memory()["rss"]
            figures["objects"] = len(informer.indexer)
            figures["kept"] = sum(obj.stored_bytes for obj in informer.indexer.list())
            if updates:
                before, start = cpu_seconds(), time.perf_counter()
                print(json.dumps({"ready": True}), flush=True)
                while handler.updated < updates:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.002)
                figures["update_cpu"] = cpu_seconds() - before
                figures["update_wall"] = time.perf_counter() - start
            return figures


def run_client(
    process: "subprocess.Popen[str]", url: str, pods: int, *, mode: str, updates: int = 0
) -> Figures:
    """Run one client process and return what it prints last."""
    with subprocess.Popen(
        [sys.executable, __file__, "client", mode, url, str(pods), str(updates)],
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert process.stdin is not None
        figures: Figures = json.loads(client.stdout.readline())
        if figures.get("ready"):
            process.stdin.write(f"fire {updates}\n")
            process.stdin.flush()
            figures = json.loads(client.stdout.readline())
    assert figures["objects"] == pods, figures
    return figures


def measure(pods: int, updates: int, console: "Console") -> None:
    """Measure one size and print its table."""
    from rich.table import Table  # noqa: PLC0415 - the clients, which are measured, don't need it

    with server(pods) as (url, stored, process):
        floors = [run_client(process, url, pods, mode="floor") for _ in range(3)]
        lowest = min(floors, key=lambda figures: float(figures["cpu"]))
        base = lowest["cpu"]
        table = Table(title=f"{pods:,} pods, {stored / pods:,.0f} bytes each")
        columns = ("client", "CPU s", "of it start", "x floor", "RSS MB", "peak MB", "updates/s")
        for column in columns:
            table.add_column(column, justify="left" if column == "client" else "right")
        table.add_row(
            "floor: aiohttp, lines split",
            f"{base:.2f}",
            f"{lowest['start']:.2f}",
            "1.0",
            f"{lowest['rss']:.0f}",
            f"{lowest['peak']:.0f}",
            "",
        )
        for mode in ("watch-list", "list", "watch-list by aiohttp"):
            best = min(
                (run_client(process, url, pods, mode=mode, updates=updates) for _ in range(3)),
                key=lambda figures: float(figures["cpu"]),
            )
            rate = f"{updates / best['update_cpu']:,.0f}" if updates else ""
            kept = f"kept {best['kept'] / 1e6:.0f}"
            if pods >= 50_000:  # with fewer, the interpreter itself dominates
                kept += f", goal {1.1 * best['kept'] / 1e6 + pods * 1024 / 1e6:.0f}"
            table.add_row(
                f"listwatch {importlib.metadata.version('listwatch')}, {mode}",
                f"{best['cpu']:.2f}",
                f"{best['start']:.2f}",
                f"{best['cpu'] / base:.1f}",
                f"{best['rss']:.0f} ({kept})",
                f"{best['peak']:.0f}",
                rate,
            )
    console.print(table)


def main() -> None:
    """Run one of the roles."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(int(sys.argv[2]), sys.argv[3]))
        return
    if sys.argv[1:2] == ["client"]:
        mode, url, pods, updates = sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
        if mode == "floor":
            figures = asyncio.run(floor(url, pods))
        else:
            if mode.endswith("aiohttp"):
                sys.modules["httptools"] = None  # type: ignore[assignment]  # as if not installed
            watch_list = mode.startswith("watch-list")
            figures = asyncio.run(inform(url, pods, updates, watch_list=watch_list))
        print(json.dumps(figures), flush=True)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pods", default="10000,50000", help="sizes, with commas")
    parser.add_argument("--updates", type=int, default=50_000)
    options = parser.parse_args()
    from rich.console import Console  # noqa: PLC0415 - as for the table

    console = Console(width=130)
    console.print(
        f"CPython {platform.python_version()}, "
        + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("aiohttp", "msgspec"))
        + "; CPU of the client's whole process, best of 3; updates/s of one core (CPU)"
    )
    for size in options.pods.split(","):
        measure(int(size), options.updates, console)
    console.print(
        "Goals for 50,000 pods by watch-list: 1.2 s and 2 x the floor, by aiohttp 1.6 s and 3 x; "
        "RSS 1.1 x the bytes kept + 1 KB an object; peak 1.15 x RSS. Updates/s say how "
        "fast the server is as well: bench/informers.py has those of the client alone."
    )


if __name__ == "__main__":
    main()
