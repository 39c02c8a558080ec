"""A month of churn on the fake clock: an observer's memory must not grow."""

import asyncio
import gc
import logging
import os
import random
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    MODIFIED,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.clock import FakeClock
from listwatch.objects import Object
from listwatch.observe.execute import Executor
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.observer import Observer, Source
from listwatch.observe.options import ObserveOptions
from listwatch.observe.output import OutputStream
from listwatch.observe.page import Page
from listwatch.observe.printing import Printer
from listwatch.observe.reaction import Reaction
from listwatch.observe.state import StateFile

DAY = 86_400.0


class Cluster:
    """A resource without history, whose watches end on request."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 1
        self.waiting: deque[WatchEvent] = deque()
        self.ready = asyncio.Event()
        self.ending = False

    def change(self, kind: str, name: str) -> None:
        self.version += 1
        meta = {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "resourceVersion": str(self.version),
        }
        obj = Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})
        if kind == DELETED:
            del self.objects[name]
        else:
            self.objects[name] = obj
        self.waiting.append(WatchEvent(kind, obj, str(self.version)))
        self.ready.set()

    def end_watch(self) -> None:
        self.ending = True
        self.ready.set()

    async def list(self, _options: ListOptions) -> ObjectList:
        self.waiting.clear()
        return ObjectList(items=list(self.objects.values()), resource_version=str(self.version))

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        yield self._events(options)

    async def _events(self, options: WatchOptions) -> AsyncIterator[Sequence[WatchEvent]]:
        if options.send_initial_events:
            self.waiting.clear()
            for obj in self.objects.values():
                yield [WatchEvent(ADDED, obj, obj.resource_version)]
            version = str(self.version)
            yield [WatchEvent(BOOKMARK, resource_version=version, initial_events_end=True)]
        while not self.ending:
            await self.ready.wait()
            self.ready.clear()
            while self.waiting:
                yield [self.waiting.popleft()]
        self.ending = False


@pytest.mark.timeout(180)
@pytest.mark.proof
async def test_thirty_days_of_churn_leave_memory_flat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "listwatch")  # pytest would keep every record
    clock, cluster, pick = FakeClock(), Cluster(), random.Random(4)
    fd = os.open(os.devnull, os.O_WRONLY)
    null, printer = OutputStream(fd), Printer()
    options = ObserveOptions(resources=("pods",), resync_period=DAY, debounce=1.0, parallel=2)
    state = StateFile(tmp_path / "state", {"cluster": "c"})

    async def exists(_key: str) -> bool:
        return False

    reaction = Reaction(
        options,
        namespaced={"pods": True},
        out=null,
        err=null,
        metrics=ObserveMetrics(),
        printer=printer,
        executor=Executor(clock),
        clock=clock,
        spectator=Page("pods", printer, clock),
    )
    observer = Observer(
        options,
        [Source("pods", cluster, True, exists, "pods.v1.")],
        reaction=reaction,
        known_names=None,
        err=null,
        clock=clock,
        state=state,
    )
    sizes: list[int] = []
    tracemalloc.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(observer.run())
            for day in range(30):
                for turn in range(24):
                    name = f"pod-{day}-{turn}"
                    cluster.change(ADDED, name)
                    await clock.advance(900)
                    cluster.change(MODIFIED, name)
                    await clock.advance(1800)
                    cluster.change(DELETED, name)
                    if pick.random() < 0.2:
                        cluster.end_watch()
                    await clock.advance(900)
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            statistics = observer.statistics()
            observer.stop()
            await running
    finally:
        tracemalloc.stop()
        state.close()
        os.close(fd)
    assert statistics.finished >= 30 * 24 * 3
    assert (statistics.objects, statistics.waiting, statistics.running) == (0, 0, 0)
    # The page keeps the last thousand events; the first days fill it.
    assert max(sizes[15:]) - min(sizes[10:15]) < 100_000, sizes
