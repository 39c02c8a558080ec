"""Measures controllers that set the status of many custom resources, on the embedded API server.

    python bench/controllers.py [--objects 10000] [--concurrency 32] [--kopf]
    python bench/controllers.py --own-writes 20 --objects 2000
    python bench/controllers.py --history 20 --objects 2000

The server, and each contestant after a fresh start of it, run in separate processes. Every object
is read from a watch and gets one write of its status; kopf adds its own writes. The floor is this
package's client writing the same statuses with the same concurrency, beside a watch and without a
controller: the server's limit. With `--kopf` the pinned version is installed into
`bench/.venv-rivals`.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rivals import cpu_seconds, memory, rivals_python

HERE = Path(__file__).parent
Figures = dict[str, Any]

PROBE = "probes.bench.example.com"
DEFINITION: Figures = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": PROBE},
    "spec": {
        "group": "bench.example.com",
        "scope": "Namespaced",
        "names": {"kind": "Probe", "plural": "probes", "singular": "probe"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
            }
        ],
    },
}


@contextmanager
def server() -> Iterator[str]:
    """Run an API server in a separate process, and yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        process = subprocess.Popen(
            [sys.executable, "-m", "listwatch.cli", "apiserver", "--kubeconfig", str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("listening on "):
                    break
            yield line.split()[2]
        finally:
            process.kill()
            process.wait()


@asynccontextmanager
async def open_client(url: str) -> AsyncIterator[Any]:
    """Open this package's client."""
    from listwatch.client.client import Client  # noqa: PLC0415 - kopf's environment lacks this package
    from listwatch.client.config import Config  # noqa: PLC0415 - as above

    async with Client(Config(server=url)) as client:
        yield client


async def fill(url: str, count: int) -> None:
    """Define the resource and create the objects."""
    async with open_client(url) as client:
        await client.create(DEFINITION)
        numbers = iter(range(count))

        async def create() -> None:
            for number in numbers:
                await client.create(
                    {
                        "apiVersion": "bench.example.com/v1",
                        "kind": "Probe",
                        "metadata": {"name": f"probe-{number}", "namespace": "default"},
                        "spec": {"number": number},
                    },
                    resource=PROBE,
                )

        await asyncio.gather(*(create() for _ in range(16)))


async def floor(url: str, count: int, concurrency: int) -> None:
    """Write the statuses without a controller, beside a watch that only counts."""
    from listwatch.cache.list_watch import WatchOptions  # noqa: PLC0415 - as above

    async with open_client(url) as client:
        names = iter([obj.name for obj in (await client.list(PROBE, "default")).items])
        resource = await client.discovery.find(PROBE)
        seen = 0

        async def watch() -> None:
            nonlocal seen
            async with client.list_watch(resource).watch(WatchOptions()) as events:
                async for batch in events:
                    seen += len(batch)

        async def write() -> None:
            for name in names:
                await client.patch(
                    resource, name, {"status": {"ready": True}}, "default", subresource="status"
                )

        watching = asyncio.ensure_future(watch())
        await asyncio.gather(*(write() for _ in range(concurrency)))
        watching.cancel()
    assert seen >= count


async def listwatch_runtime(url: str, count: int, concurrency: int, **options: Any) -> None:
    """Run a reconciler of this package, with options of its manager."""
    from listwatch.client.config import Config  # noqa: PLC0415 - as above
    from listwatch.runtime import Manager, update_status  # noqa: PLC0415 - as above

    app = Manager("bench", config=Config(server=url), **options)
    probes = app.reconciler("probes", concurrency=concurrency).for_(PROBE)
    done: set[str] = set()
    all_done = asyncio.Event()

    @probes
    async def reconcile(key: str) -> None:
        probe = probes.get(key)
        if probe is not None:
            await update_status(app.client, probe, {"ready": True})
            done.add(key)
            if len(done) == count:
                all_done.set()

    async with app:
        await all_done.wait()


async def kopf_operator(url: str, count: int, concurrency: int) -> None:
    """Run a handler of kopf, which has a worker per object and no limit."""
    del concurrency  # its `worker_limit` keeps a worker for 5 s after its object's last event
    import kopf  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    done: set[str] = set()
    all_done = asyncio.Event()

    @kopf.on.login(registry=registry)  # type: ignore[untyped-decorator]  # the rival has no types here
    def log_in(**_: object) -> Any:
        return kopf.ConnectionInfo(server=url)

    @kopf.on.event("bench.example.com", "v1", "probes", registry=registry)  # type: ignore[untyped-decorator]  # as above
    async def wrote(name: str, status: Any, **_: object) -> None:
        if status.get("ready"):
            done.add(name)
            if len(done) == count:
                all_done.set()

    @kopf.on.create("bench.example.com", "v1", "probes", registry=registry)  # type: ignore[untyped-decorator]  # as above
    async def create(patch: Any, **_: object) -> None:
        patch.status["ready"] = True

    operator = asyncio.ensure_future(
        kopf.operator(registry=registry, settings=settings, namespaces=["default"], standalone=True)
    )
    await asyncio.wait(
        {operator, asyncio.ensure_future(all_done.wait())}, return_when="FIRST_COMPLETED"
    )
    if operator.done():
        operator.result()
    operator.cancel()
    await asyncio.wait([operator])


WITHOUT_OWN_WRITES = "listwatch without own writes"
WITHOUT_HISTORY = "listwatch without history"
CONTESTANTS: dict[str, Callable[[str, int, int], Coroutine[Any, Any, None]]] = {
    "floor": floor,
    "listwatch": listwatch_runtime,
    WITHOUT_OWN_WRITES: partial(listwatch_runtime, reads_own_writes=False),
    WITHOUT_HISTORY: partial(listwatch_runtime, history_bytes=0),
    "kopf": kopf_operator,
}


def contest(name: str, url: str, count: int, concurrency: int) -> None:
    """Run one contestant in this process and print its figures."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    asyncio.run(CONTESTANTS[name](url, count, concurrency))
    figures = {
        "cpu": round(cpu_seconds() - cpu, 3),
        "wall": round(time.perf_counter() - wall, 2),
        "version": importlib.metadata.version("kopf" if name == "kopf" else "listwatch"),
        **{key: round(value, 1) for key, value in memory().items()},
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)  # a rival's threads would keep watching


def run(name: str, count: int, concurrency: int) -> Figures:
    """Run one contestant on a separate server."""
    python = rivals_python() if name == "kopf" else sys.executable
    with server() as url:
        asyncio.run(fill(url, count))
        done = subprocess.run(
            [python, __file__, "--contest", name, url, str(count), str(concurrency)],
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def price(what: str, without: str, rounds: int, count: int, concurrency: int) -> str:
    """Return what something costs: medians of interleaved runs with it and without."""
    spent: dict[str, list[float]] = {"listwatch": [], without: []}
    for number in range(rounds):
        for name in sorted(spent, reverse=number % 2 == 1):
            spent[name].append(run(name, count, concurrency)["cpu"])
    on, off = (statistics.median(spent[name]) for name in ("listwatch", without))
    return (
        f"{what}: CPU {on:.2f} s with, {off:.2f} s without, "
        f"{(on / off - 1) * 100:+.1f} % (medians of {rounds}, {count:,} objects)"
    )


def main() -> None:
    """Run the benchmark and print a table."""
    if sys.argv[1:2] == ["--contest"]:
        name, url, count, concurrency = sys.argv[2:]
        contest(name, url, int(count), int(concurrency))
    from rich.console import Console  # noqa: PLC0415 - kopf's environment lacks it
    from rich.table import Table  # noqa: PLC0415 - as above

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--kopf", action="store_true", help="run kopf, too")
    parser.add_argument("--own-writes", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--history", type=int, default=0, metavar="ROUNDS")
    options = parser.parse_args()
    for what, without, rounds in (
        ("reading one's own writes", WITHOUT_OWN_WRITES, options.own_writes),
        ("the history of keys", WITHOUT_HISTORY, options.history),
    ):
        if rounds:
            print(price(what, without, rounds, options.objects, options.concurrency))
    if options.own_writes or options.history:
        return
    names = ["floor", "listwatch", *(["kopf"] if options.kopf else [])]
    table = Table("", "objects/s", "wall s", "CPU s", "peak MB", "of the floor")
    rates: dict[str, float] = {}
    for name in names:
        figures = run(name, options.objects, options.concurrency)
        rates[name] = options.objects / figures["wall"]
        table.add_row(
            f"{name} {figures['version']}",
            f"{rates[name]:,.0f}",
            f"{figures['wall']:.1f}",
            f"{figures['cpu']:.1f}",
            f"{figures['peak']:.0f}",
            f"{rates[name] / rates['floor']:.2f}",
        )
    console = Console()
    console.print(
        f"{options.objects:,} objects, {options.concurrency} at a time, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    console.print(table)


if __name__ == "__main__":
    main()
