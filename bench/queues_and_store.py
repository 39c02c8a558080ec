"""Measures queues and store per object: `python bench/queues_and_store.py [--count N]`.

Prints a table of CPU times, each the best of some rounds, with the goals. For scale it shows the
same for the standard library's deque and dict.
"""

import argparse
import asyncio
import gc
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from rich.console import Console
from rich.table import Table

from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.store import Indexer, Store
from listwatch.objects import Object

_ROUNDS = 5
_NAMESPACES = 50

#: A name, seconds per object, and the goal in seconds, if any.
Row = tuple[str, float, float | None]
#: For single items, and for batches.
Goals = tuple[float | None, float | None]
AnyQueue = DeltaFIFO | OrderedFIFO


def make(count: int, version: int) -> list[Object]:
    """Return this many small objects in 50 namespaces."""
    return [
        Object.from_dict(
            {
                "metadata": {
                    "name": f"pod-{n}",
                    "namespace": f"ns-{n % _NAMESPACES}",
                    "uid": f"uid-{n}",
                    "resourceVersion": str(version),
                    "labels": {"app": f"app-{n % 97}"},
                }
            }
        )
        for n in range(count)
    ]


def by_namespace(obj: Object) -> list[str]:
    """Index by namespace."""
    return [obj.meta.namespace]


def by_app(obj: Object) -> list[str]:
    """Index by a label."""
    return [obj.meta.labels["app"]]


def done(_: object) -> None:
    """Process nothing."""


async def done_async(_: object) -> None:
    """Process nothing, asynchronously."""


async def best(work: Callable[[], Awaitable[None]], count: int) -> float:
    """Return the seconds per object in the best round."""
    seconds = []
    for _ in range(_ROUNDS):
        gc.collect()
        began = time.process_time()
        await work()
        seconds.append(time.process_time() - began)
    return min(seconds) / count


async def queue_rows(objs: Sequence[Object], queue: AnyQueue, goals: Goals) -> list[Row]:
    """Time a queue."""
    count = len(objs)
    name = type(queue).__name__

    async def one_by_one() -> None:
        for obj in objs:
            queue.add(obj)
            await queue.pop(done)

    async def one_by_one_async() -> None:
        for obj in objs:
            queue.add(obj)
            await queue.pop(done_async)

    async def all_then_all() -> None:
        for obj in objs:
            queue.add(obj)
        for _ in objs:
            await queue.pop(done)

    async def batches() -> None:
        # A watch's events arrive in groups.
        for start in range(0, count, 100):
            for obj in objs[start : start + 100]:
                queue.add(obj)
            await queue.pop_batch(done)

    async def replace() -> None:
        queue.replace(objs, "1")
        while len(queue):
            await queue.pop_batch(done)

    return [
        (f"{name} add + pop", await best(one_by_one, count), goals[0]),
        (f"{name} add + pop, async process", await best(one_by_one_async, count), None),
        (f"{name} add all, then pop all", await best(all_then_all, count), goals[0]),
        (f"{name} add + pop_batch", await best(batches, count), goals[1]),
        (f"{name} replace + pop_batch", await best(replace, count), None),
    ]


async def plain_rows(objs: Sequence[Object]) -> list[Row]:
    """Time the standard library's containers, for scale."""

    async def append_and_popleft() -> None:
        bare: deque[Object] = deque()
        for obj in objs:
            bare.append(obj)
        while bare:
            bare.popleft()

    async def by_key() -> None:
        bare: dict[str, Object] = {}
        for obj in objs:
            bare[obj.key] = obj

    return [
        ("collections.deque append + popleft", await best(append_and_popleft, len(objs)), None),
        ("dict, by key", await best(by_key, len(objs)), None),
    ]


async def store_rows(objs: Sequence[Object], newer: Sequence[Object]) -> list[Row]:
    """Time the store with and without indices."""
    count = len(objs)
    rows: list[Row] = []
    indexed = Indexer(indexers={"namespace": by_namespace, "app": by_app})
    for name, store in (("Store", Store()), ("Indexer, 2 indices,", indexed)):
        turn = [objs, newer]

        async def put(store: Store = store, turn: list[Sequence[Object]] = turn) -> None:
            turn.reverse()
            for obj in turn[0]:
                store.put(obj.key, obj)

        async def replace(store: Store = store, turn: list[Sequence[Object]] = turn) -> None:
            turn.reverse()
            await store.replace_in_steps(turn[0], "1")

        async def relist(store: Store = store, turn: list[Sequence[Object]] = turn) -> None:
            await store.replace_in_steps(turn[0], "1")

        async def read(store: Store = store) -> None:
            store.list()

        rows += [
            (f"{name} put", await best(put, count), None),
            (f"{name} replace_in_steps", await best(replace, count), None),
            (f"{name} replace_in_steps, nothing new", await best(relist, count), None),
            (f"{name} list", await best(read, count), None),
        ]

    async def by_index() -> None:
        for n in range(_NAMESPACES):
            assert len(indexed.by_index("namespace", f"ns-{n}")) == count // _NAMESPACES

    rows.append(("Indexer by_index, of all namespaces", await best(by_index, count), None))
    return rows


async def longest_pause(objs: Sequence[Object], newer: Sequence[Object]) -> float:
    """Return the longest CPU time for which a replace in steps blocks other tasks."""
    store = Indexer(indexers={"namespace": by_namespace, "app": by_app})
    store.replace(objs, "1")
    longest = 0.0
    running = True

    async def look() -> None:
        nonlocal longest
        last = time.process_time()
        while running:
            await asyncio.sleep(0)
            now = time.process_time()
            longest, last = max(longest, now - last), now

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        await store.replace_in_steps(newer, "2")
        running = False
    return longest


def reads_beside_a_writer(objs: Sequence[Object], newer: Sequence[Object]) -> tuple[int, float]:
    """Return how many lists two threads read while one writes for a second, and its puts."""
    store = Indexer(indexers={"namespace": by_namespace, "app": by_app})
    store.replace(objs, "1")
    stop = threading.Event()
    reads = [0, 0]

    def read(which: int) -> None:
        while not stop.is_set():
            assert len(store.list()) == len(objs)
            reads[which] += 1

    threads = [threading.Thread(target=read, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    puts = 0
    until = time.perf_counter() + 1
    while time.perf_counter() < until:
        for obj in newer[:1000]:
            store.put(obj.key, obj)
        puts += 1000
    stop.set()
    for thread in threads:
        thread.join()
    return sum(reads), puts


def main() -> None:
    """Run everything and print the table; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=50_000, help="objects (50000)")
    count = max(1, parser.parse_args().count // _NAMESPACES) * _NAMESPACES
    objs, newer = make(count, 1), make(count, 2)
    rows = [
        *asyncio.run(plain_rows(objs)),
        *asyncio.run(queue_rows(objs, DeltaFIFO(), (2e-6, None))),
        *asyncio.run(queue_rows(objs, OrderedFIFO(), (None, None))),
        *asyncio.run(store_rows(objs, newer)),
    ]
    table = Table(
        title=f"{count} objects, Python {platform.python_version()}, best of {_ROUNDS}",
        title_justify="left",
    )
    table.add_column("work")
    table.add_column("CPU µs an object", justify="right")
    table.add_column("goal", justify="right")
    missed = False
    for name, seconds, goal in rows:
        met = goal is None or seconds <= goal
        missed |= not met
        told = "" if goal is None else f"≤ {goal * 1e6:g}" + ("" if met else " missed")
        table.add_row(name, f"{seconds * 1e6:.2f}", told)
    pause = asyncio.run(longest_pause(objs, newer))
    table.add_row("longest pause in a replace_in_steps, CPU ms", f"{pause * 1e3:.1f}", "≈ 5")
    reads, puts = reads_beside_a_writer(objs, newer)
    table.add_row("lists a second by 2 threads beside a writer", str(reads), "")
    table.add_row("… and its puts a second", str(int(puts)), "")
    Console(width=90).print(table)
    sys.exit(missed)


if __name__ == "__main__":
    main()
