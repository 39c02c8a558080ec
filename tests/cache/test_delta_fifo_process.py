"""Popping: keys in process, failures, requeues, cancellations, batches."""

import asyncio
from collections.abc import Sequence

import pytest

from cache.queue_story import (
    A,
    D,
    Popped,
    S,
    U,
    done,
    drain,
    known,
    make,
    raising,
    start,
    story,
)
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import (
    Deltas,
    RequeueError,
)
from listwatch.clock import FakeClock
from listwatch.objects import DeletedFinalStateUnknown, KeyFunctionError

# --- In process ----------------------------------------------------------------------------------


async def test_no_second_pop_gets_a_key_in_process_and_its_new_deltas_come_next() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    first = await start(queue)
    queue.update(make("a", 2))
    queue.add(make("b", 3))
    second = await start(queue)
    assert second.deltas.key == "b"
    third = Popped(queue)
    queue.update(make("a", 4))
    await FakeClock().settle()
    assert not third.started.is_set()
    await first.succeed()
    await third.started.wait()
    assert story(third.deltas) == [(U, "2"), (U, "4")]
    await second.succeed()
    await third.succeed()


async def test_deltas_of_a_key_in_process_keep_their_place_in_the_queue() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    popped = await start(queue)
    queue.update(make("a", 2))
    queue.add(make("b", 3))
    await popped.succeed()
    assert await drain(queue) == [("a", [(U, "2")]), ("b", [(A, "3")])]


async def test_a_replace_that_lacks_a_key_in_process_tells_its_end() -> None:
    """kubernetes#27004: the key was in neither queue nor store, and its object stayed forever."""
    queue = DeltaFIFO(known_objects=known())
    queue.add(make("a", 1))
    queue.update(make("a", 2))
    popped = await start(queue)
    queue.replace([], "3")
    await popped.succeed()
    assert await drain(queue) == [("a", [(D, "†2")])]


async def test_a_deletion_of_a_key_in_process_is_told() -> None:
    for objects in (None, known()):
        queue = DeltaFIFO(known_objects=objects)
        queue.add(make("a", 1))
        popped = await start(queue)
        queue.delete(make("a", 2))
        await popped.succeed()
        assert await drain(queue) == [("a", [(D, "2")])]


async def test_an_object_whose_end_is_in_process_counts_as_gone() -> None:
    queue = DeltaFIFO(known_objects=known(make("a", 1)))
    queue.delete(make("a", 2))
    popped = await start(queue)
    queue.delete(make("a", 2))
    queue.replace([], "3")
    queue.resync()
    await popped.succeed()
    assert await drain(queue) == []


async def test_a_resync_tells_the_newest_state_in_process() -> None:
    queue = DeltaFIFO(known_objects=known(make("a", 1)))
    queue.update(make("a", 2))
    queue.add(make("b", 3))
    first, second = await start(queue), await start(queue)
    queue.resync()
    await first.succeed()
    await second.succeed()
    assert await drain(queue) == [("a", [(S, "2")]), ("b", [(S, "3")])]


async def test_the_newest_change_of_a_key_is_queued_or_in_process() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    popped = await start(queue)
    told = [queue.newest("a")]
    queue.update(make("a", 2))
    told.append(queue.newest("a"))
    assert story(delta for delta in told if delta) == [(A, "1"), (U, "2")]
    await popped.succeed()
    await queue.pop(done)
    assert queue.newest("a") is None


async def test_a_waiting_process_function_holds_back_no_producer() -> None:
    queue = DeltaFIFO()
    queue.add(make("a"))
    popped = await start(queue)
    for n in range(5000):
        queue.add(make(f"o{n}"))
    assert len(queue) == 5000
    await popped.succeed()


async def test_a_process_function_that_empties_its_deltas_breaks_nothing() -> None:
    queue = DeltaFIFO(known_objects=known(make("a")))
    queue.replace([make("a", 1)], "1")
    popped = await start(queue)
    popped.deltas.clear()
    queue.replace([], "2")
    queue.resync()
    queue.delete(make("a", 2))
    assert queue.list_keys() == ["a"]
    await popped.cancel()
    assert await drain(queue) == [("a", [(D, "2")])]
    queue.add(make("b"))
    popped = await start(queue)
    popped.deltas.clear()
    await popped.cancel()
    assert (len(queue), queue.statistics().in_process) == (0, 0)


# --- Failures, requeues, cancellations -----------------------------------------------------------


async def test_a_failing_process_function_is_raised_counted_and_its_deltas_dropped() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    with pytest.raises(ValueError, match="no"):
        await queue.pop(raising(ValueError("no")))
    queue.add(make("a", 2))
    popped = await start(queue)
    await popped.fail(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        popped.task.result()
    statistics = queue.statistics()
    assert (statistics.failures, statistics.depth, statistics.in_process) == (2, 0, 0)


async def test_requeued_deltas_come_back_ahead_of_newer_ones_after_a_growing_delay() -> None:
    clock = FakeClock()
    queue = DeltaFIFO(clock=clock)
    queue.add(make("a", 1))
    queue.add(make("b", 1))
    delays = []
    for version in range(2, 18):
        popped = await start(queue)
        assert popped.deltas.key == "a"
        queue.update(make("a", version))
        await popped.fail(RequeueError())
        assert popped.task.result() is popped.deltas
        assert queue.statistics().retrying == 1
        delays.append(clock.next_timer)
        await clock.advance(clock.next_timer or 0)
    assert delays[:3] == pytest.approx([0.005, 0.01, 0.02])
    assert delays[-3:] == pytest.approx([30.0] * 3)
    popped = await start(queue)
    assert story(popped.deltas) == [(A, "1"), *((U, str(v)) for v in range(2, 18))]
    await popped.succeed()
    queue.update(make("a", 99))
    popped = await start(queue)
    assert popped.deltas.key == "b"
    await popped.succeed()
    await queue.pop(raising(RequeueError()))
    assert clock.next_timer == pytest.approx(0.005)
    assert queue.statistics().requeues == 17


async def test_a_requeue_may_name_its_delay_and_waits_for_it_among_known_keys() -> None:
    clock = FakeClock()
    queue = DeltaFIFO(known_objects=known(), clock=clock)
    queue.add(make("a", 1))
    await queue.pop(raising(RequeueError("later", after=7)))
    waiting = Popped(queue)
    queue.delete(make("a", 2))
    queue.replace([], "3")
    await clock.advance(6.9)
    assert not waiting.started.is_set()
    await clock.advance(0.2)
    assert story(waiting.deltas) == [(A, "1"), (D, "2")]
    await waiting.succeed()


async def test_deletions_on_both_sides_of_a_requeue_are_one() -> None:
    clock = FakeClock()
    queue = DeltaFIFO(known_objects=known(make("a")), clock=clock)
    queue.delete(DeletedFinalStateUnknown("a", make("a", 1)))
    popped = await start(queue)
    queue.replace([make("a", 2)], "2")
    queue.delete(make("a", 3))
    await popped.fail(RequeueError(after=1))
    await clock.advance(1)
    assert await drain(queue) == [("a", [(D, "†1"), (S, "2"), (D, "3")])]


async def test_a_cancelled_process_function_loses_nothing() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    queue.add(make("b", 1))
    popped = await start(queue)
    queue.update(make("a", 2))
    await popped.cancel()
    assert popped.task.cancelled()
    assert await drain(queue) == [("a", [(A, "1"), (U, "2")]), ("b", [(A, "1")])]


async def test_an_interrupt_in_a_process_function_loses_nothing() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    with pytest.raises(KeyboardInterrupt):
        await queue.pop(raising(KeyboardInterrupt()))
    assert await drain(queue) == [("a", [(A, "1")])]


async def test_a_cancelled_waiter_passes_its_wake_on() -> None:
    queue = DeltaFIFO()
    first, second = Popped(queue), Popped(queue)
    await FakeClock().settle()
    queue.add(make("a"))
    first.task.cancel()
    await second.started.wait()
    await second.succeed()
    assert first.task.cancelled()


async def test_a_waiter_that_was_cancelled_gets_no_wake() -> None:
    queue = DeltaFIFO()
    first, second = Popped(queue), Popped(queue)
    await FakeClock().settle()
    first.task.cancel()
    queue.add(make("a"))
    await second.started.wait()
    await second.succeed()
    third = Popped(queue)
    await FakeClock().settle()
    await third.cancel()
    assert not queue._waiters  # a leak shows nowhere else


async def test_a_storm_of_cancellations_loses_nothing_and_leaves_nothing() -> None:
    queue = DeltaFIFO()
    pops = [Popped(queue) for _ in range(200)]
    await asyncio.sleep(0)
    for n in range(100):
        queue.add(make(f"o{n}"))
    for popped in pops[::2]:
        popped.task.cancel()
    await FakeClock().settle()
    started = [popped for popped in pops if popped.started.is_set()]
    assert len(started) == 100
    for popped in pops:
        popped.task.cancel()
    await asyncio.wait([popped.task for popped in pops])
    assert sorted(queue.list_keys()) == sorted(f"o{n}" for n in range(100))
    assert not queue._waiters  # a leak shows nowhere else
    statistics = queue.statistics()
    assert (statistics.in_process, statistics.depth) == (0, 100)


async def test_popped_deltas_may_be_put_back_unless_newer_ones_are_queued() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    deltas = await queue.pop(done)
    queue.add_if_not_present(deltas)
    queue.update(make("a", 2))
    assert await drain(queue) == [("a", [(A, "1"), (U, "2")])]
    assert story(deltas) == [(A, "1")]
    queue.update(make("a", 3))
    queue.add_if_not_present(deltas)
    assert await drain(queue) == [("a", [(U, "3")])]
    waiting = Popped(queue)
    await FakeClock().settle()
    queue.add_if_not_present(deltas)
    await waiting.started.wait()
    await waiting.succeed()
    with pytest.raises(KeyFunctionError):
        queue.add_if_not_present(Deltas())


async def test_popped_deltas_may_be_put_back_from_within_their_process_function() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    await queue.pop(queue.add_if_not_present)
    assert await drain(queue) == [("a", [(A, "1")])]


# --- Batches -------------------------------------------------------------------------------------


async def test_a_batch_takes_what_is_there_up_to_its_limit() -> None:
    queue = DeltaFIFO()
    queue.replace([], "1")
    for name in "abcde":
        queue.add(make(name))
    queue.update(make("b", 2))
    batches: list[list[str]] = []

    def process(batch: Sequence[Deltas]) -> None:
        batches.append([deltas.key for deltas in batch])

    assert await queue.pop_batch(process, 3) == 3
    assert await queue.pop_batch(process) == 2
    assert batches == [["a", "b", "c"], ["d", "e"]]
    with pytest.raises(ValueError, match="1 or more"):
        await queue.pop_batch(process, 0)


async def test_a_batch_ends_where_the_initial_list_does() -> None:
    queue = DeltaFIFO()
    queue.replace([make("a"), make("b")], "1")
    queue.add(make("c"))
    queue.update(make("a", 2))
    sizes = [await queue.pop_batch(done) for _ in range(2)]
    assert sizes == [2, 1]
    assert queue.has_synced


async def test_a_batch_leaves_out_keys_in_process() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    popped = await start(queue)
    queue.update(make("a", 2))
    queue.add(make("b", 1))
    assert await queue.pop_batch(done) == 1
    await popped.succeed()
    assert queue.list_keys() == ["a"]


async def test_a_requeue_may_name_the_keys_of_a_batch_and_a_failure_drops_all() -> None:
    clock = FakeClock()
    queue = DeltaFIFO(clock=clock)
    for name in "abc":
        queue.add(make(name))
    assert await queue.pop_batch(raising(RequeueError(keys=["b"]))) == 3
    assert queue.statistics().retrying == 1
    await clock.advance(1)
    queue.add(make("d"))
    with pytest.raises(ValueError, match="no"):
        await queue.pop_batch(raising(ValueError("no")))
    statistics = queue.statistics()
    assert (statistics.failures, statistics.requeues, statistics.depth) == (2, 1, 0)


async def test_a_cancelled_batch_comes_back_in_its_order() -> None:
    queue = DeltaFIFO()
    for name in "abc":
        queue.add(make(name))
    started = asyncio.Event()

    async def process(_: Sequence[Deltas]) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(queue.pop_batch(process))
    await started.wait()
    queue.add(make("d"))
    queue.update(make("b", 2))
    task.cancel()
    await asyncio.wait([task])
    assert await drain(queue) == [
        ("a", [(A, "1")]),
        ("b", [(A, "1"), (U, "2")]),
        ("c", [(A, "1")]),
        ("d", [(A, "1")]),
    ]
