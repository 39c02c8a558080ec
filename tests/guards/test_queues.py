"""The queues' cost per event, per listed object and per item."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import pytest

from guards.counting import ELSEWHERE, bytes_kept, calls, guard
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Deltas
from listwatch.cache.event_queue import EventQueue
from listwatch.cache.handlers import Added, Change, Updated
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.pending import Pending
from listwatch.clock import FakeClock
from listwatch.objects import Object
from listwatch.workqueue.priority_queue import PriorityQueue
from listwatch.workqueue.work_queue import WorkQueue

FIFOS: dict[str, Callable[[], Any]] = {
    "ordered-fifo": lambda: OrderedFIFO(clock=FakeClock()),
    "delta-fifo": lambda: DeltaFIFO(clock=FakeClock(), emit_replaced=True),
    "event-queue": lambda: EventQueue(clock=FakeClock()),
}

WORK_QUEUES: dict[str, Callable[[], WorkQueue[str]]] = {
    "work-queue": lambda: WorkQueue(clock=FakeClock()),
    "fair-queue": lambda: WorkQueue(clock=FakeClock(), group=lambda key: key[-1]),
    "priority-queue": lambda: PriorityQueue(clock=FakeClock()),
}


def _object(number: int, version: int = 1) -> Object:
    meta = {"name": f"p{number}", "uid": f"uid-{number}", "resourceVersion": str(version)}
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


def _ignore(_: Deltas | Sequence[Deltas]) -> None:
    """Process nothing."""


@pytest.mark.parametrize("kind", FIFOS)
async def test_an_event_that_is_popped_alone_costs_what_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        queue, objects = FIFOS[kind](), [_object(number) for number in range(items)]
        with calls() as counted:
            for obj in objects:
                queue.update(obj)
                await queue.pop(_ignore)
        return counted

    await guard(f"{kind}-event", work)


@pytest.mark.parametrize("kind", FIFOS)
async def test_an_event_that_is_popped_in_a_batch_costs_what_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        queue, objects = FIFOS[kind](), [_object(number) for number in range(items)]
        popped = 0
        with calls() as counted:
            for obj in objects:
                queue.add(obj)
                queue.update(obj)
            while len(queue):
                popped += await queue.pop_batch(_ignore)
        assert popped >= items
        return counted

    await guard(f"{kind}-batch", work)


@pytest.mark.parametrize("kind", FIFOS)
async def test_a_listed_object_costs_what_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        queue, objects = FIFOS[kind](), [_object(number) for number in range(items)]
        with calls() as counted:
            for _ in range(2):
                queue.replace(objects, "1")
                while len(queue):
                    await queue.pop_batch(_ignore)
        return counted

    await guard(f"{kind}-listed", work)


@pytest.mark.parametrize("kind", FIFOS)
async def test_an_event_that_waits_keeps_the_memory_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        queue, objects = FIFOS[kind](), [_object(number) for number in range(items)]
        for obj in objects:
            assert obj.key  # the object caches it
        with bytes_kept() as counted:
            for obj in objects:
                queue.update(obj)
        return counted

    await guard(f"{kind}-kept", work)


@pytest.mark.parametrize("bound", [None, 1])
async def test_a_change_that_waits_for_a_handler_costs_what_it_did(bound: int | None) -> None:
    async def work(items: int) -> Mapping[str, int]:
        changes: list[Change] = []
        for number in range(items):
            old, new = _object(number), _object(number, 2)
            changes += [Added(old), Updated(old, new)]
        pending = Pending(bound)
        taken = 0
        with calls() as counted:
            pending.put(changes)
            while batch := pending.take(16):
                assert isinstance(batch, Sequence)
                taken += len(batch)
        assert taken == (2 * items if bound is None else items)
        return counted

    await guard(f"pending-{'merged' if bound else 'unbound'}", work)


@pytest.mark.parametrize("kind", WORK_QUEUES)
async def test_a_key_that_succeeds_costs_what_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        queue = WORK_QUEUES[kind]()
        with calls() as counted:
            for number in range(items):
                queue.add(f"ns/{number}")
            for _ in range(items):
                async with queue.item(requeue=True):
                    pass
        return counted

    await guard(f"{kind}-key", work)


@pytest.mark.parametrize("kind", WORK_QUEUES)
async def test_an_item_that_is_added_again_costs_what_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        queue = WORK_QUEUES[kind]()
        with calls() as counted:
            for number in range(items):
                queue.add(f"ns/{number}")
                queue.add(f"ns/{number}")
                item = await queue.get()
                queue.add(item)
                queue.done(item)
                queue.done(await queue.get())
        return counted

    await guard(f"{kind}-again", work)


@pytest.mark.parametrize("kind", ["work-queue", "priority-queue"])
async def test_an_item_that_waits_for_its_time_costs_what_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        clock = FakeClock()
        queue: WorkQueue[str] = (
            PriorityQueue(clock=clock) if kind == "priority-queue" else WorkQueue(clock=clock)
        )
        with calls() as counted:
            for number in range(items):
                queue.add_after(f"ns/{number}", 1 + number / 1000)
            await clock.advance(60)
            assert len(queue) == items
            assert queue.statistics().depth == items
        return counted

    await guard(f"{kind}-delayed", work)


@pytest.mark.parametrize("kind", WORK_QUEUES)
async def test_an_item_that_is_queued_keeps_the_memory_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        queue, keys = WORK_QUEUES[kind](), [f"ns/{number}" for number in range(items)]
        with bytes_kept() as counted:
            for key in keys:
                queue.add(key)
        return counted

    await guard(f"{kind}-kept", work)


@pytest.mark.parametrize("kind", ["work-queue", "priority-queue"])
async def test_items_that_are_done_keep_no_memory(kind: str) -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = (
        PriorityQueue(clock=clock) if kind == "priority-queue" else WorkQueue(clock=clock)
    )
    rounds = iter(range(100))

    async def kept_by(times: int) -> Mapping[str, int]:
        with bytes_kept() as kept:
            for number in islice(rounds, times):
                for key in range(200):
                    queue.add_rate_limited(f"{number}/{key}")
                await clock.advance(3600)
                for _ in range(200):
                    item = await queue.get()
                    queue.requeue(item, failed=True)
                    queue.done(item)
                await clock.advance(3600)
                for _ in range(200):
                    async with queue.item(requeue=True):
                        pass
        return kept

    await kept_by(2)
    few, many = await kept_by(2), await kept_by(20)
    # Other code in the process, such as threads of other tests, allocates elsewhere.
    grown = {stage: size - few.get(stage, 0) for stage, size in many.items() if stage != ELSEWHERE}
    assert sum(grown.values()) < 3600, f"an item that is done keeps memory; what grew: {grown}"
