"""The cost of finding known objects when a server sends undecodable ones."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from listwatch.cache.deltas import Delta, Item
from listwatch.cache.list_watch import ListOptions, ObjectList, WatchEvent, WatchOptions
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.reflector import Reflector
from listwatch.clock import FakeClock
from listwatch.objects import Object, ObjectDecodeError


class CountingQueue(OrderedFIFO):
    """Counts the entries that its lookups visit."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.looked_at = 0

    def newest(self, key: str) -> Delta | None:
        self.looked_at += len(self)
        return super().newest(key)

    def newest_of_all(self) -> tuple[dict[str, Item | None], bool]:
        self.looked_at += len(self)
        return super().newest_of_all()


def _object(name: str) -> Object:
    meta = {"name": name, "uid": name, "resourceVersion": "1"}
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


class Poisoned:
    """A resource with pages of eleven objects, of which only one is decodable."""

    def __init__(self, items: int) -> None:
        self._errors = [ObjectDecodeError("no object", key=f"p{n}") for n in range(items)]

    async def list(self, options: ListOptions) -> ObjectList:
        at = int(options.continue_token or 0)
        more = str(at + 10) if at + 10 < len(self._errors) else ""
        return ObjectList(
            items=[_object(f"readable-{at}")],
            undecodable=self._errors[at : at + 10],
            resource_version="9",
            continue_token=more,
        )

    @asynccontextmanager
    async def watch(
        self, options: WatchOptions
    ) -> AsyncIterator[AsyncIterator[Sequence[WatchEvent]]]:
        async def batches() -> AsyncIterator[Sequence[WatchEvent]]:
            if options.send_initial_events:
                for error in self._errors:
                    yield [WatchEvent("ADDED", error=error)]
                yield [WatchEvent("BOOKMARK", None, "9", initial_events_end=True)]
            await asyncio.Event().wait()

        yield batches()


@pytest.mark.parametrize("watch_list", [False, True], ids=["list", "watch-list"])
async def test_ten_times_the_poison_costs_ten_times_the_looks_at_a_queue(
    watch_list: bool,
) -> None:
    async def looked_at(items: int) -> int:
        clock = FakeClock()
        queue = CountingQueue(clock)
        for number in range(items):
            queue.add(_object(f"p{number}"))
        reflector = Reflector(
            Poisoned(items),
            queue,
            watch_list=watch_list,
            clock=clock,
            page_size=10,
            on_error=lambda _: None,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(reflector.run())
            await clock.settle()
            assert reflector.last_sync_resource_version == "9"
            assert reflector.statistics().stale == items
            running.cancel()
        return queue.looked_at

    assert await looked_at(1000) <= 11 * await looked_at(100)
