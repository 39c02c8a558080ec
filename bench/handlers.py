"""Measures the cost of an informer per object and per handler, without a server or a network.

    python bench/handlers.py [--objects 10000,50000,200000] [--handlers 1,10,100]

Events are fed from memory in batches of twenty, so this measures the reflector, the queue, the
store with two indices, and the handlers' queues. For the last lines a thread reads the cache in a
tight loop, with the interpreter's switch interval of 5 ms and with 0.5 ms. Goals: a constant cost
per object as the number grows, and at least a third of the updates beside the reader.
"""

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rich.console import Console
from rich.table import Table

from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    MODIFIED,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.cache.shared_informer import SharedInformer
from listwatch.objects import Object, decode_object

#: Updates of all handlers together, so that each line takes about a second.
UPDATES = 100_000
BATCH = 20


def pod(number: int, version: int) -> Object:
    """Return a small pod; the measured costs do not depend on its size."""
    return decode_object(
        b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p%d","namespace":"ns%d","uid":"u%d",'
        b'"resourceVersion":"%d"},"spec":{"nodeName":"n%d"}}'
        % (number, number % 20, number, version, number % 100)
    )


class Feed:
    """A `ListerWatcher` that has all its events in memory."""

    def __init__(self, objects: int, updates: int) -> None:
        initial = (pod(number, number + 1) for number in range(objects))
        self.initial = [WatchEvent(ADDED, obj, obj.resource_version) for obj in initial]
        changed = (pod(n % objects, objects + 1 + n) for n in range(updates))
        self.updates = [WatchEvent(MODIFIED, obj, obj.resource_version) for obj in changed]
        self.go = asyncio.Event()

    async def list(self, options: ListOptions) -> ObjectList:
        """Never called, because the watch has initial events."""
        raise AssertionError(options)

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        """Open the stream of everything."""
        assert options.send_initial_events
        yield self._stream()

    async def _stream(self) -> AsyncIterator[Sequence[WatchEvent]]:
        for batch in batches(self.initial):
            yield batch
        version = str(len(self.initial))
        yield [WatchEvent(BOOKMARK, resource_version=version, initial_events_end=True)]
        await self.go.wait()
        for batch in batches(self.updates):
            yield batch
            await asyncio.sleep(0)
        await asyncio.Event().wait()


def batches(events: Sequence[WatchEvent]) -> list[Sequence[WatchEvent]]:
    """Split events into batches."""
    return [events[at : at + BATCH] for at in range(0, len(events), BATCH)]


async def measure(objects: int, handlers: int, *, reader: bool) -> tuple[float, float, float]:
    """Return CPU seconds of the sync, and CPU and clock seconds per update."""
    updates = max(1000, UPDATES // handlers)
    feed = Feed(objects, updates)
    informer = SharedInformer(
        feed, indexers={"node": lambda obj: [obj.name[-1]]}, on_error=lambda _: None
    )
    left = updates * handlers
    done = asyncio.Event()

    def on_update(_: Object, __: Object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    listeners = [informer.add_handler(HandlerFuncs(on_update=on_update)) for _ in range(handlers)]
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            informer.lister.find("p1", "ns1")

    thread = threading.Thread(target=read, daemon=True)
    began = time.process_time()
    async with informer:
        for listener in listeners:
            await listener.wait_for_sync()
        sync = time.process_time() - began
        if reader:
            thread.start()
        began, clock = time.process_time(), time.perf_counter()
        feed.go.set()
        await done.wait()
        cpu, wall = time.process_time() - began, time.perf_counter() - clock
        stop.set()
    return sync, cpu / updates, wall / updates


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", default="10000,50000,200000")
    parser.add_argument("--handlers", default="1,10,100")
    options = parser.parse_args()
    counts = [int(count) for count in options.objects.split(",")]
    lines = [(count, 1, 0.0) for count in counts]
    lines += [(10_000, int(number), 0.0) for number in options.handlers.split(",")[1:]]
    lines += [(10_000, 1, sys.getswitchinterval()), (10_000, 1, 0.0005)]
    table = Table(title="Shared informer, fed from memory")
    for heading in ("objects", "handlers", "reader", "sync us/object", "update us", "updates/s"):
        table.add_column(heading, justify="right")
    for objects, handlers, interval in lines:
        if interval:
            sys.setswitchinterval(interval)
        sync, cpu, wall = asyncio.run(measure(objects, handlers, reader=interval > 0))
        table.add_row(
            f"{objects:,}",
            f"{handlers}",
            f"every {interval * 1000:g} ms" if interval else "",
            f"{sync / objects * 1e6:.1f}",
            f"{cpu * 1e6:.1f}",
            f"{1 / wall:,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
