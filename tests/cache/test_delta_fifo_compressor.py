"""A compressor may drop deltas of its key, but never those of another key."""

import asyncio
from collections.abc import Sequence

import pytest

from cache.queue_story import (
    A,
    D,
    Everything,
    Popped,
    U,
    done,
    drain,
    make,
    start,
)
from listwatch.cache.delta_fifo import CompressorError, DeltaFIFO
from listwatch.cache.deltas import (
    Delta,
    Deltas,
)
from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError


async def test_a_compressor_to_the_newest_leaves_one_delta_of_each_key() -> None:
    queue = DeltaFIFO(compressor=lambda deltas: deltas[-1:])
    queue.add(make("a", 1))
    queue.add(make("b", 1))
    queue.update(make("a", 2))
    queue.delete(make("b", 2))
    queue.update(make("a", 3))
    assert await drain(queue) == [("a", [(U, "3")]), ("b", [(D, "2")])]


def forget_births_with_ends(deltas: Deltas) -> Sequence[Delta]:
    return [] if deltas[0].type is A and deltas[-1].type is D else deltas


async def test_a_key_whose_deltas_are_all_compressed_away_leaves_the_queue() -> None:
    queue = DeltaFIFO(compressor=forget_births_with_ends)
    queue.add(make("a", 1))
    queue.add(make("b", 1))
    queue.delete(make("a", 2))
    assert queue.list_keys() == ["b"]
    queue.delete(make("a", 3))
    assert queue.list_keys() == ["b"]
    queue.add(make("a", 4))
    assert await drain(queue) == [("b", [(A, "1")]), ("a", [(A, "4")])]


async def test_a_key_compressed_away_no_longer_holds_back_synced() -> None:
    queue = DeltaFIFO(compressor=lambda deltas: [] if deltas[-1].type is D else deltas)
    queue.replace([make("a", 1)], "9")
    queue.delete(make("a", 2))
    assert queue.has_synced
    queue = DeltaFIFO(compressor=lambda _: [])
    queue.replace([make("a", 1)], "9")
    assert queue.has_synced


async def test_a_closed_queue_ends_when_its_last_key_is_compressed_away() -> None:
    queue = DeltaFIFO(compressor=forget_births_with_ends, known_objects=Everything())
    queue.add(make("a", 1))
    popped = await start(queue)
    queue.add(make("a", 2))
    queue.close()
    waiting = asyncio.create_task(queue.pop(done))
    await FakeClock().settle()
    queue.delete(make("a", 3))
    assert not waiting.done()
    await popped.succeed()
    with pytest.raises(QueueClosedError):
        await waiting


async def test_what_is_in_process_is_not_compressed_with_what_comes_later() -> None:
    queue = DeltaFIFO(compressor=forget_births_with_ends)
    queue.add(make("a", 1))
    popped = await start(queue)
    queue.delete(make("a", 2))
    await popped.succeed()
    assert await drain(queue) == [("a", [(D, "2")])]


async def test_deltas_that_wait_behind_their_key_in_process_may_be_compressed_away() -> None:
    queue = DeltaFIFO(compressor=forget_births_with_ends)
    queue.add(make("a", 1))
    first = await start(queue)
    queue.add(make("a", 2))
    queue.add(make("b", 3))
    second = await start(queue)
    queue.delete(make("a", 4))
    assert queue.list_keys() == []
    await first.succeed()
    await second.succeed()
    assert await drain(queue) == []


async def test_cancelled_deltas_are_compressed_with_newer_ones() -> None:
    queue = DeltaFIFO(compressor=forget_births_with_ends)
    queue.replace([], "1")
    queue.add(make("a", 1))
    popped = await start(queue)
    queue.delete(make("a", 2))
    await popped.cancel()
    assert queue.list_keys() == []
    assert queue.statistics().in_process == 0


async def test_a_closed_queue_ends_when_cancelled_deltas_are_compressed_away() -> None:
    queue = DeltaFIFO(compressor=forget_births_with_ends)
    queue.add(make("a", 1))
    popped = await start(queue)
    queue.close()
    pops = [Popped(queue) for _ in range(2)]
    queue.delete(make("a", 2))
    await FakeClock().settle()
    await popped.cancel()
    results = await asyncio.gather(*(waiting.task for waiting in pops), return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosedError] * 2


async def test_an_initial_item_in_process_counts_although_newer_deltas_were_compressed_away() -> (
    None
):
    queue = DeltaFIFO(compressor=lambda deltas: [] if deltas[-1].type is D else deltas)
    queue.replace([make("a", 1)], "9")
    popped = await start(queue)
    queue.delete(make("a", 2))
    synced = [queue.has_synced]
    await popped.succeed()
    assert [*synced, queue.has_synced] == [False, True]


async def test_a_failing_compressor_costs_no_delta() -> None:
    def wreck(deltas: Deltas) -> Sequence[Delta]:
        if len(deltas) == 2:
            deltas.clear()
            raise ValueError("two")
        return deltas

    errors: list[BaseException] = []
    queue = DeltaFIFO(compressor=wreck, on_error=lambda failure: errors.append(failure.error))
    for version in range(3):
        queue.update(make("a", version))
    assert await drain(queue) == [("a", [(U, "0"), (U, "1"), (U, "2")])]
    assert [str(error) for error in errors] == ["compressor failed for a: ValueError: two"]
    assert isinstance(errors[0], CompressorError)
