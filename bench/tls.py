"""Measures what TLS, the event loop and a busy thread cost an informer, as ratios of one run.

    python bench/tls.py [--pods 50000] [--updates 20000] [--runs 3] [--write]
    python bench/tls.py --render  # only print the tables of bench/results/tls.json

The server, a separate process, sends prepared bytes, each watch event in its own HTTP chunk, TLS
record and call. Each client is a process: it syncs an informer with its default indices, takes
updates, takes events with pauses for the latency, and takes updates again next to a thread that
computes, and next to one that reads the cache, both without a pause and at Python's default switch
interval. CPU is of the whole process; the sync's is without the start of the interpreter and the
imports. The limit is a client that receives the same bytes with asyncio and httptools, decodes type
and identity of each event with msgspec, and drops it. The runs of all kinds alternate.

With `--write`, figures, versions and the machine's state are written to bench/results/tls.json, and
the tables made of it between the marks in docs/informers.md. `chrt -r 2` before the command keeps
other programs from disturbing it.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from informers import Handler
from publishing import publish
from rivals import cpu_seconds, memory
from tls_server import HOST, PAGE_PODS, server

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "bench" / "results" / "tls.json"
PAGE: Final = ROOT / "docs" / "informers.md"
MARK: Final = "python bench/tls.py"

#: By name: TLS, aiofastnet, uvloop.
KINDS: Final = {
    f"{'TLS' if tls else 'plain'}, {name}": (tls, fast, uvloop)
    for tls in (False, True)
    for name, fast, uvloop in (
        ("asyncio", False, False),
        ("uvloop", False, True),
        ("aiofastnet", True, False),
        ("aiofastnet and uvloop", True, True),
    )
}
LIMIT: Final = "limit"
#: Lists, read with and without gzip.
LISTS: Final = {
    f"{'TLS' if tls else 'plain'}, {'gzip' if coded else 'identity'}": (tls, coded)
    for tls in (False, True)
    for coded in (False, True)
}
THREADS: Final = ("computes", "reads")
#: Without aiofastnet, TLS next to a thread is slow; its rate is constant from the start.
FEWER: Final = 20
#: How long a thread runs next to an idle event loop, to compare.
IDLE_SECONDS: Final = 0.25

Figures: TypeAlias = dict[str, Any]


# --- The clients ---------------------------------------------------------------------------------


def tell(figures: Figures) -> None:
    """Report figures, and that the next order may come."""
    print(json.dumps(figures), flush=True)


async def order() -> list[str]:
    """Return the next order of the benchmark."""
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.split()


class Busy:
    """A thread that computes, or reads the cache, without a pause, and counts its turns."""

    def __init__(self, what: str, look_up: Callable[[], object]) -> None:
        self.turns = 0
        self._stop = threading.Event()
        self._step = self._compute if what == "computes" else look_up
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for _ in range(10):
                self._step()
            self.turns += 1

    def _compute(self) -> None:
        sum(range(1000))

    def stop(self) -> None:
        """Stop at the next turn."""
        self._stop.set()


async def inform(port: int, authority: str) -> None:
    """Sync an informer by a watch, and report the cost of each order."""
    from listwatch import Client, SharedInformer  # noqa: PLC0415 - only this process needs it
    from listwatch.client.config import Config  # noqa: PLC0415 - as above
    from listwatch.client.discovery import Resource  # noqa: PLC0415 - as above

    config = Config(
        server=f"{'https' if authority else 'http'}://127.0.0.1:{port}",
        certificate_authority=authority,
    )
    handler = Handler(0, timed=False)
    async with Client.from_config(config) as client:
        started = cpu_seconds()
        informer = SharedInformer(
            client.list_watch(Resource(version="v1", plural="pods", kind="Pod"))
        )
        listener = informer.add_handler(handler)
        async with informer:
            await listener.wait_for_sync()
            cpu = cpu_seconds() - started
            kept = sum(obj.stored_bytes for obj in informer.indexer.list())
            tell({"cpu": cpu, "kept": kept, **memory()})
            while words := await order():
                what, thread, events = words[0], words[1], int(words[2])
                handler.left, handler.done = events, asyncio.Event()
                handler.seconds, handler.timed = [], what == "ticks"
                beside = None
                if thread != "none":
                    beside = Busy(thread, lambda: informer.lister.find("nobody", "team-1"))
                    await asyncio.sleep(IDLE_SECONDS)
                turns = 0 if beside is None else beside.turns
                tell({})
                before, began = cpu_seconds(), time.perf_counter()
                await handler.done.wait()
                wall, cpu = time.perf_counter() - began, cpu_seconds() - before
                figures = {"cpu": cpu, "wall": wall, "seconds": sorted(handler.seconds)}
                if beside is not None:
                    beside.stop()
                    figures["thread"] = (beside.turns - turns) / wall * IDLE_SECONDS / turns
                tell(figures)


async def list_all(port: int, authority: str, *, coded: bool) -> None:
    """Sync an informer by lists, and report the cost."""
    from listwatch import Client, SharedInformer  # noqa: PLC0415 - only this process needs it
    from listwatch.client.config import Config  # noqa: PLC0415 - as above
    from listwatch.client.discovery import Resource  # noqa: PLC0415 - as above

    config = Config(
        server=f"{'https' if authority else 'http'}://{HOST}:{port}",
        certificate_authority=authority,
        disable_compression=not coded,
    )
    async with Client.from_config(config) as client:
        started, began = cpu_seconds(), time.perf_counter()
        source = client.list_watch(Resource(version="v1", plural="pods", kind="Pod"))
        informer = SharedInformer(source, watch_list=False)
        async with informer:
            await informer.wait_for_sync()
            tell({"cpu": cpu_seconds() - started, "wall": time.perf_counter() - began})


async def limit(port: int) -> None:
    """Receive a watch and decode its events, and nothing else."""
    import httptools  # noqa: PLC0415 - only this process needs it
    import msgspec  # noqa: PLC0415 - as above

    class Meta(msgspec.Struct, gc=False):
        name: str = ""
        namespace: str = ""
        uid: str = ""
        resourceVersion: str = ""  # noqa: N815 - the name in JSON
        annotations: msgspec.Raw = msgspec.Raw(b"")

    class Thing(msgspec.Struct, gc=False):
        metadata: Meta

    class Event(msgspec.Struct, gc=False):
        type: str
        object: Thing

    decode = msgspec.json.Decoder(Event).decode

    class Receiver(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.left, self.done, self.synced = 0, asyncio.Event(), asyncio.Event()
            self._buffer = memoryview(bytearray(2**21))
            self._parser = httptools.HttpResponseParser(self)

        def get_buffer(self, _: int) -> memoryview:
            return self._buffer

        def buffer_updated(self, count: int) -> None:
            self._parser.feed_data(self._buffer[:count])

        def on_body(self, body: bytes) -> None:
            for line in body.split(b"\n") if body.count(b"\n") > 1 else (body,):
                self.on_line(line)

        held = b""

        def on_line(self, line: bytes) -> None:
            # A read may end within a chunk, whose parts are then two pieces.
            line = self.held + line if self.held else line
            try:
                event = decode(line)
            except msgspec.DecodeError:
                self.held = line
                return
            self.held = b""
            if event.type == "BOOKMARK":
                self.synced.set()
            elif event.type == "MODIFIED":
                self.left -= 1
                if not self.left:
                    self.done.set()

    receiver = Receiver()
    started = cpu_seconds()
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: receiver, "127.0.0.1", port
    )
    transport.write(b"GET /?watch=true&sendInitialEvents=true HTTP/1.1\r\nHost: limit\r\n\r\n")
    await receiver.synced.wait()
    tell({"cpu": cpu_seconds() - started, **memory()})
    while words := await order():
        receiver.left, receiver.done = int(words[2]), asyncio.Event()
        tell({})
        before, began = cpu_seconds(), time.perf_counter()
        await receiver.done.wait()
        tell({"cpu": cpu_seconds() - before, "wall": time.perf_counter() - began})
    transport.close()


def run_client(kind: str, port: int, authority: str) -> None:
    """Run a client in this process."""
    if kind == LIMIT:
        asyncio.run(limit(port))
        return
    if kind in LISTS:
        asyncio.run(list_all(port, authority, coded=LISTS[kind][1]))
        return
    _, fast, uvloop = KINDS[kind]
    if not fast:
        sys.modules["aiofastnet"] = None  # type: ignore[assignment]  # as if not installed
    work = inform(port, authority)
    if uvloop:
        import uvloop as loop  # noqa: PLC0415 - only this process needs it

        loop.run(work)
    else:
        asyncio.run(work)


# --- The benchmark -------------------------------------------------------------------------------


class Run:
    """A client's process, which does what it is told."""

    def __init__(
        self, kind: str, port: int, authority: str, process: "subprocess.Popen[str]"
    ) -> None:
        self._server = process
        self._client = subprocess.Popen(
            [sys.executable, __file__, "client", kind, str(port), authority],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> Figures:
        """Return the next figures."""
        assert self._client.stdout is not None
        figures: Figures = json.loads(self._client.stdout.readline())
        return figures

    def do(self, what: str, thread: str, events: int) -> Figures:
        """Let the server send events, and return what they cost the client."""
        assert self._client.stdin is not None
        assert self._server.stdin is not None
        self._client.stdin.write(f"{what} {thread} {events}\n")
        self._client.stdin.flush()
        self.read()
        self._server.stdin.write(f"{what} {events}\n")
        self._server.stdin.flush()
        return self.read()

    def end(self, *, watches: bool) -> None:
        """End the process and its watch."""
        self._client.communicate()
        if watches:
            assert self._server.stdin is not None
            self._server.stdin.write("end 0\n")
            self._server.stdin.flush()


def measure(kind: str, run: Run, updates: int, events: int) -> Figures:
    """Return the figures of one run."""
    figures: Figures = {"sync": run.read()}
    if kind in LISTS:
        run.end(watches=False)
        return figures
    figures["updates"] = {**run.do("fire", "none", updates), "events": updates}
    if kind != LIMIT:
        slow = KINDS[kind][0] and not KINDS[kind][1]
        late = run.do("ticks", "none", events)["seconds"]
        figures["latency"] = {
            name: late[int(len(late) * part)] for name, part in (("median", 0.5), ("p99", 0.99))
        }
        for thread in THREADS:
            some = updates // FEWER if slow else updates
            beside = run.do("fire", thread, some)
            figures[thread] = {"wall": beside["wall"], "thread": beside["thread"], "events": some}
    run.end(watches=True)
    return figures


def report(count: int, updates: int, events: int, runs: int) -> Figures:
    """Run everything and return the report."""
    found: dict[str, list[Figures]] = {}
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        authority = str(Path(folder) / "ca.pem")
        with server(count, "") as plain, server(count, authority) as secure:
            for number in range(runs + 1):
                for kind in (LIMIT, *KINDS, *LISTS):
                    if not number and kind not in LISTS:
                        continue  # the first pages have to be made
                    tls = kind.startswith("TLS")
                    port, process = secure if tls else plain
                    run = Run(kind, port, authority if tls else "", process)
                    figures = measure(kind, run, updates, events)
                    if number:
                        found.setdefault(kind, []).append(figures)
                    print(kind, figures["sync"], file=sys.stderr, flush=True)
    packages = ("aiofastnet", "httptools", "listwatch", "msgspec", "uvloop")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "pods": count,
        "versions": {
            "CPython": platform.python_version(),
            "OpenSSL": ssl.OPENSSL_VERSION.split()[1],
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "machine": {
            "cores": os.cpu_count(),
            "load before": round(before[0], 2),
            "switch interval": sys.getswitchinterval(),
        },
        "runs": found,
    }


# --- The tables ----------------------------------------------------------------------------------


def summary(runs: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the least CPU, the highest rates and the median latencies of the runs of a kind."""
    sync = min(run["sync"]["cpu"] for run in runs)
    if "updates" not in runs[0]:
        return {"sync": sync}
    best: Figures = {
        "sync": sync,
        "update": min(run["updates"]["cpu"] / run["updates"]["events"] for run in runs) * 1e6,
        "rate": max(run["updates"]["events"] / run["updates"]["wall"] for run in runs),
    }
    if "latency" in runs[0]:
        for name in ("median", "p99"):
            best[name] = 1000 * statistics.median(run["latency"][name] for run in runs)
        for thread in THREADS:
            rates = [(run[thread]["events"] / run[thread]["wall"], run[thread]) for run in runs]
            best[thread], run = max(rates, key=lambda each: each[0])
            best[f"{thread}: share"] = run["thread"]
    return best


def tables(result: Mapping[str, Any]) -> str:
    """Return the Markdown made of a report."""
    best = {kind: summary(runs) for kind, runs in result["runs"].items()}
    floor, first = best[LIMIT], next(iter(KINDS))
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    machine = result["machine"]
    lines = [
        (
            f"{result['date']}, {machine['cores']} cores, load before {machine['load before']}; "
            f"{versions}; best of {len(result['runs'][first])} alternating runs."
        ),
        "",
        (
            f"| connection | sync of {result['pods']:,} pods, CPU s | CPU μs an update | updates/s "
            "| next to a thread that computes | next to one that reads | latency, median / p99 |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in KINDS:
        row, plain = best[kind], best[kind.replace("TLS", "plain")]
        over = kind.startswith("TLS")
        cells = [
            f"{row[name]:.{digits}f}" + (f" (x {row[name] / plain[name]:.2f})" if over else "")
            for name, digits in (("sync", 2), ("update", 1))
        ]
        rate = f"{row['rate']:,.0f}"
        beside = [
            f"{row[name]:,.0f} ({row[name] / row['rate']:.0%}), {row[f'{name}: share']:.0%}"
            for name in THREADS
        ]
        late = f"{row['median']:.2f} / {row['p99']:.2f} ms"
        lines.append(f"| {' | '.join([kind, *cells, rate, *beside, late])} |")
    lines.append(
        f"| the limit: receive and decode | {floor['sync']:.2f} | {floor['update']:.1f} "
        f"| {floor['rate']:,.0f} | | | |"
    )
    fast, runs = best["plain, aiofastnet"], result["runs"]["plain, aiofastnet"]
    size = min((run["sync"] for run in runs), key=lambda each: float(each["rss"]))
    lines += [
        "",
        (
            f"With aiofastnet, a plain sync costs {fast['sync'] / floor['sync']:.1f} times the "
            f"limit, and an update {fast['update'] / floor['update']:.1f} times. Then a process "
            f"of {size['rss']:.0f} MB (peak {size['peak']:.0f} MB) holds {size['kept'] / 1e6:.0f} "
            "MB of objects."
        ),
        "",
        f"| list in pages of {PAGE_PODS}, aiofastnet | identity, CPU s | gzip, CPU s |",
        "|---|---:|---:|",
    ]
    for scheme in ("plain", "TLS"):
        costs = [f"{best[f'{scheme}, {form}']['sync']:.2f}" for form in ("identity", "gzip")]
        lines.append(f"| {scheme} | {' | '.join(costs)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run one of the roles."""
    match sys.argv[1:]:
        case ["client", kind, port, authority]:
            run_client(kind, int(port), authority)
            return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=200, help="for the latency")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--render", action="store_true", help="only print the last results")
    parser.add_argument("--write", action="store_true", help="write results and documentation")
    options = parser.parse_args()
    if options.render:
        result = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        result = report(options.pods, options.updates, options.events, options.runs)
    text = tables(result)
    print(text)
    if options.write:
        publish(RESULTS, PAGE, MARK, result, text)


if __name__ == "__main__":
    main()
