"""Measures several informers in one event loop, in a thread each, and in a process each.

    python bench/many_cores.py [--informers 2] [--pods 2000] [--updates 20000] [--runs 3] [--write]

Each informer has a server process of its own that sends prepared updates as fast as they are taken.
Updates/s are those of all informers together, by the clock from the first update to the last
handler's call. So the servers need cores, too: on two cores, two processes gain less than twice as
much. With `--write`, the figures are written to bench/results/many_cores.json, and the table made
of it into docs/informers.md.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from informers import Handler
from publishing import publish
from rivals import cpu_seconds
from tls import PAGE, ROOT
from tls_server import server

__all__ = ["PAGE", "RESULTS", "table"]

RESULTS: Final = ROOT / "bench" / "results" / "many_cores.json"
MARK: Final = "python bench/many_cores.py"
FORMS: Final = {
    "loop": "one event loop",
    "threads": "a thread each",
    "processes": "a process each",
}
Figures: TypeAlias = dict[str, Any]


class Barrier:
    """Counts informers that have synced, and those that are done, in any thread."""

    def __init__(self, informers: int) -> None:
        self._lock = threading.Lock()
        self._left = {"synced": informers, "done": informers}
        self._before = 0.0

    def pass_(self, what: str) -> None:
        """Report when all informers have come this far."""
        with self._lock:
            self._left[what] -= 1
            if self._left[what]:
                return
        if what == "synced":
            self._before = cpu_seconds()
        print(json.dumps({"cpu": cpu_seconds() - self._before}), flush=True)


async def inform(port: int, updates: int, barrier: Barrier) -> None:
    """Sync an informer, take the updates."""
    from listwatch import Client, SharedInformer  # noqa: PLC0415 - only this process needs it
    from listwatch.client.config import Config  # noqa: PLC0415 - as above
    from listwatch.client.discovery import Resource  # noqa: PLC0415 - as above

    handler = Handler(updates, timed=False)
    async with Client.from_config(Config(server=f"http://127.0.0.1:{port}")) as client:
        source = client.list_watch(Resource(version="v1", plural="pods", kind="Pod"))
        informer = SharedInformer(source)
        listener = informer.add_handler(handler)
        async with informer:
            await listener.wait_for_sync()
            barrier.pass_("synced")
            await handler.done.wait()
            barrier.pass_("done")


def run_client(form: str, updates: int, ports: list[int]) -> None:
    """Run informers for these ports in this process."""
    barrier = Barrier(len(ports))

    async def together() -> None:
        async with asyncio.TaskGroup() as tasks:
            for port in ports:
                tasks.create_task(inform(port, updates, barrier))

    if form != "threads":
        asyncio.run(together())
        return
    threads = [
        threading.Thread(target=lambda port=port: asyncio.run(inform(port, updates, barrier)))
        for port in ports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(form: str, informers: int, pods: int, updates: int) -> Figures:
    """Return the figures of one run."""
    with ExitStack() as stack:
        servers = [stack.enter_context(server(pods, "")) for _ in range(informers)]
        ports = [str(port) for port, _ in servers]
        groups = [[port] for port in ports] if form == "processes" else [ports]
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "client", form, str(updates), *group],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for group in groups
        ]

        def read() -> list[Figures]:
            lines = []
            for client in clients:
                assert client.stdout is not None
                lines.append(json.loads(client.stdout.readline()))
            return lines

        read()
        began = time.perf_counter()
        for _, process in servers:
            assert process.stdin is not None
            process.stdin.write(f"fire {updates}\n")
            process.stdin.flush()
        done = read()
        wall = time.perf_counter() - began
        return {
            "rate": informers * updates / wall,
            "us": sum(each["cpu"] for each in done) / informers / updates * 1e6,
        }


def table(result: Mapping[str, Any]) -> str:
    """Return the Markdown made of a report."""
    rows = {
        form: max(runs, key=lambda each: float(each["rate"]))
        for form, runs in result["runs"].items()
    }
    first = rows["loop"]["rate"]
    lines = [
        (
            f"{result['date']}, {result['cores']} cores, which the {result['informers']} servers "
            f"share; CPython {result['python']}, listwatch {result['listwatch']}; best of "
            f"{len(result['runs']['loop'])} alternating runs."
        ),
        "",
        f"| {result['informers']} informers in | updates/s of all | | CPU μs an update |",
        "|---|---:|---:|---:|",
    ]
    for form, words in FORMS.items():
        row = rows[form]
        lines.append(
            f"| {words} | {row['rate']:,.0f} | x {row['rate'] / first:.2f} | {row['us']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run one of the roles."""
    if sys.argv[1:2] == ["client"]:
        run_client(sys.argv[2], int(sys.argv[3]), [int(port) for port in sys.argv[4:]])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--informers", type=int, default=2)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write results and documentation")
    options = parser.parse_args()
    found: dict[str, list[Figures]] = {form: [] for form in FORMS}
    for _ in range(options.runs):
        for form in FORMS:
            found[form].append(measure(form, options.informers, options.pods, options.updates))
            print(form, found[form][-1], file=sys.stderr)
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "listwatch": importlib.metadata.version("listwatch"),
        "informers": options.informers,
        "runs": found,
    }
    text = table(result)
    print(text)
    if options.write:
        publish(RESULTS, PAGE, MARK, result, text)


if __name__ == "__main__":
    main()
