import asyncio
from collections.abc import Callable, Sequence

import pytest

from cache.queue_story import (
    A,
    D,
    Popped,
    R,
    U,
    done,
    drain,
    make,
    pop_all,
    raising,
    start,
    story,
)
from listwatch.cache.deltas import Deltas, DeltaType, Queue, QueueStatistics, RequeueError
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.objects import DeletedFinalStateUnknown, KeyFunctionError, Object

ALL, SYNC_ALL, BOOKMARK = DeltaType.REPLACED_ALL, DeltaType.SYNC_ALL, DeltaType.BOOKMARK


# --- One order -----------------------------------------------------------------------------------


async def test_an_ordered_fifo_is_a_queue() -> None:
    assert isinstance(OrderedFIFO(), Queue)


async def test_changes_come_out_as_they_came_in_and_nothing_is_merged_or_dropped() -> None:
    queue = OrderedFIFO()
    queue.add(make("a", 1))
    queue.add(make("b", 2))
    queue.update(make("a", 3))
    queue.delete(make("b", 4))
    queue.delete(make("b", 5))
    queue.delete(make("unknown", 6))
    queue.delete(DeletedFinalStateUnknown("t", make("t", 7)))
    assert len(queue) == 7
    assert await drain(queue) == [
        ("a", [(A, "1")]),
        ("b", [(A, "2")]),
        ("a", [(U, "3")]),
        ("b", [(D, "4")]),
        ("b", [(D, "5")]),
        ("unknown", [(D, "6")]),
        ("t", [(D, "†7")]),
    ]


async def test_what_has_no_key_is_refused_and_changes_nothing() -> None:
    queue = OrderedFIFO(raising(ZeroDivisionError("oh")), rewrite=lambda obj: obj)  # type: ignore[arg-type]  # never returns
    writes: list[Callable[[Object], None]] = [
        queue.add,
        queue.update,
        queue.delete,
        lambda obj: queue.replace([obj], "1"),
    ]
    for write in writes:
        with pytest.raises(KeyFunctionError, match="ZeroDivisionError: oh"):
            write(make("a"))
    assert (len(queue), queue.has_synced, queue.statistics().adds) == (0, False, 0)


# --- Lists, resyncs and bookmarks ----------------------------------------------------------------


async def test_lists_resyncs_and_bookmarks_are_entries_in_the_order() -> None:
    queue = OrderedFIFO()
    objs = [make("a", 1), make("b", 2)]
    queue.replace(objs, "5")
    queue.update(make("a", 6))
    queue.resync()
    queue.bookmark("7")
    objs.clear()
    replaced, update, sync, bookmark = await pop_all(queue)
    assert [deltas.key for deltas in (replaced, update, sync, bookmark)] == ["", "a", "", ""]
    assert (replaced[0].type, replaced[0].resource_version) == (ALL, "5")
    assert [obj.key for obj in replaced[0].objects or ()] == ["a", "b"]
    assert replaced[0].object is None
    assert story([*update, *sync, *bookmark]) == [(U, "6"), (SYNC_ALL, ""), (BOOKMARK, "7")]


async def test_a_resync_does_not_pile_up_behind_one_that_waits() -> None:
    queue = OrderedFIFO()
    queue.resync()
    queue.resync()
    assert len(queue) == 1
    popped = await start(queue)
    queue.resync()
    queue.update(make("a"))
    queue.resync()
    await popped.succeed()
    assert await drain(queue) == [("", [(SYNC_ALL, "")]), ("a", [(U, "1")])]


# --- Rewrite ---------------------------------------------------------------------------------


async def test_the_rewrite_sees_objects_of_changes_and_lists() -> None:
    def bump(obj: Object) -> Object:
        return make(obj.name, int(obj.resource_version) + 100)

    queue = OrderedFIFO(rewrite=bump)
    queue.replace([make("a", 1)], "9")
    queue.add(make("b", 2))
    queue.delete(make("b", 3))
    queue.delete(DeletedFinalStateUnknown("a", make("a", 4)))
    first, *others = await pop_all(queue)
    objs = list(first[0].objects or ())
    assert [obj.resource_version for obj in objs] == ["101"]
    assert [story(deltas) for deltas in others] == [[(A, "102")], [(D, "103")], [(D, "†4")]]


async def test_a_failing_rewrite_costs_no_object() -> None:
    errors: list[BaseException] = []
    rewrite = raising(ValueError("bad"))
    queue = OrderedFIFO(rewrite=rewrite, on_error=lambda failure: errors.append(failure.error))  # type: ignore[arg-type]  # never returns
    queue.replace([make("a", 1), make("b", 2)], "9")
    queue.update(make("c", 3))
    popped = await pop_all(queue)
    assert sum(len(deltas[0].objects or "1") for deltas in popped) == 3
    assert [str(error) for error in errors] == [
        f"rewrite failed for {key}: ValueError: bad" for key in "abc"
    ]


# --- Synced --------------------------------------------------------------------------------------


async def test_synced_once_the_entries_of_the_first_list_are_processed() -> None:
    queue = OrderedFIFO()
    queue.bookmark("1")
    queue.resync()
    queue.replace([], "9")
    queue.add(make("late"))
    flags = []
    for _ in range(4):
        synced = queue.has_synced
        flags.append(((await queue.pop(done)).is_in_initial_list, synced))
    assert flags == [(False, False), (False, False), (True, False), (False, True)]


async def test_a_change_before_the_first_list_means_synced_at_once() -> None:
    writes: list[Callable[[OrderedFIFO], None]] = [
        lambda queue: queue.add(make("a")),
        lambda queue: queue.update(make("a")),
        lambda queue: queue.delete(make("a")),
        lambda queue: queue.delete(DeletedFinalStateUnknown("a")),
    ]
    for write in writes:
        queue = OrderedFIFO()
        write(queue)
        queue.replace([make("b")], "9")
        assert queue.has_synced
        assert not any(deltas.is_in_initial_list for deltas in await pop_all(queue))


async def test_synced_waits_for_a_cancelled_or_requeued_list() -> None:
    clock = FakeClock()
    queue = OrderedFIFO(clock=clock)
    queue.replace([make("a")], "9")
    popped = await start(queue)
    await popped.cancel()
    popped = await start(queue)
    await popped.fail(RequeueError())
    synced = [queue.has_synced]
    await clock.advance(1)
    with pytest.raises(ValueError, match="no"):
        await queue.pop(raising(ValueError("no")))
    assert [*synced, queue.has_synced] == [False, True]


# --- In process ----------------------------------------------------------------------------------


async def test_nothing_newer_comes_out_before_what_is_in_process_is_done() -> None:
    queue = OrderedFIFO()
    queue.add(make("a"))
    first = await start(queue)
    second = Popped(queue)
    queue.add(make("b"))
    await FakeClock().settle()
    assert (second.started.is_set(), len(queue)) == (False, 1)
    await first.succeed()
    await second.started.wait()
    assert second.deltas.key == "b"
    await second.succeed()


async def test_cancelled_entries_come_back_at_the_head() -> None:
    queue = OrderedFIFO()
    queue.add(make("a", 1))
    queue.add(make("b", 2))
    popped = await start(queue)
    queue.add(make("c", 3))
    waiting = Popped(queue)
    await FakeClock().settle()
    await popped.cancel()
    await waiting.started.wait()
    assert waiting.deltas.key == "a"
    await waiting.cancel()
    assert [key for key, _ in await drain(queue)] == ["a", "b", "c"]


async def test_a_requeue_holds_everything_back_for_a_growing_delay() -> None:
    clock = FakeClock()
    queue = OrderedFIFO(clock=clock)
    queue.replace([make("a")], "1")
    queue.add(make("b"))
    delays = []
    for _ in range(3):
        await queue.pop(raising(RequeueError()))
        waiting = Popped(queue)
        delays.append(clock.next_timer)
        await clock.settle()
        assert not waiting.started.is_set()
        statistics = queue.statistics()
        assert (statistics.depth, statistics.in_process, statistics.retrying) == (1, 0, 1)
        await waiting.cancel()
        await clock.advance(clock.next_timer or 0)
    assert delays == pytest.approx([0.005, 0.01, 0.02])
    assert [deltas[0].type for deltas in await pop_all(queue)] == [ALL, A]
    queue.add(make("c"))
    await queue.pop(raising(RequeueError(after=7)))
    assert clock.next_timer == 7


async def test_a_failing_process_function_is_raised_and_counted() -> None:
    queue = OrderedFIFO()
    queue.add(make("a"))
    queue.add(make("b"))
    with pytest.raises(ValueError, match="no"):
        await queue.pop(raising(ValueError("no")))
    assert [key for key, _ in await drain(queue)] == ["b"]
    assert queue.statistics().failures == 1


async def test_a_storm_of_cancellations_keeps_the_order_and_leaves_nothing() -> None:
    queue = OrderedFIFO()
    pops = [Popped(queue) for _ in range(100)]
    await asyncio.sleep(0)
    for n in range(50):
        queue.add(make(f"o{n}"))
    for popped in pops:
        popped.task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([popped.task for popped in pops])
    assert not queue._waiters  # a leak shows nowhere else
    assert [key for key, _ in await drain(queue)] == [f"o{n}" for n in range(50)]


async def test_the_newest_change_of_a_key_is_queued_or_in_process() -> None:
    queue = OrderedFIFO()
    queue.add(make("a", 1))
    popped = await start(queue)
    told = [queue.newest("a")]
    queue.update(make("a", 2))
    queue.bookmark("3")
    told.append(queue.newest("a"))
    queue.replace([make("b", 3), make("a", 4)], "5")
    told.append(queue.newest("a"))
    queue.replace([make("b", 3)], "6")
    told.append(queue.newest("a"))
    queue.add(make("c", 7))
    assert story(delta for delta in told if delta) == [(A, "1"), (U, "2"), (R, "4"), (D, "†?")]
    await popped.succeed()
    await pop_all(queue)
    assert queue.newest("a") is None


# --- Batches -------------------------------------------------------------------------------------


async def sizes(queue: OrderedFIFO, limit: int = 1000) -> list[int]:
    return [await queue.pop_batch(done, limit) for _ in iter(lambda: len(queue), 0)]


async def test_a_batch_has_different_keys_and_ends_before_one_that_comes_again() -> None:
    queue = OrderedFIFO()
    for name in "abcabd":
        queue.add(make(name))
    assert await sizes(queue) == [3, 3]
    for n in range(2500):
        queue.add(make(f"o{n}"))
    assert await queue.pop_batch(done) == 1000  # the default limit
    assert await sizes(queue) == [1000, 500]
    queue.add(make("a"))
    with pytest.raises(ValueError, match="1 or more"):
        await queue.pop_batch(done, 0)
    assert await sizes(queue, 1) == [1]


async def test_lists_resyncs_and_bookmarks_are_batches_of_their_own() -> None:
    queue = OrderedFIFO()
    queue.replace([make("a")], "1")
    for name in "ab":
        queue.add(make(name))
    queue.bookmark("2")
    queue.bookmark("3")
    queue.add(make("c"))
    queue.resync()
    queue.add(make("d"))
    assert await sizes(queue) == [1, 2, 1, 1, 1, 1, 1]


async def test_a_requeue_may_name_the_keys_of_a_batch() -> None:
    clock = FakeClock()
    queue = OrderedFIFO(clock=clock)
    for name in "abcd":
        queue.add(make(name))
    assert await queue.pop_batch(raising(RequeueError(keys={"b", "d"}))) == 4
    queue.add(make("e"))
    await clock.advance(1)
    assert [key for key, _ in await drain(queue)] == ["b", "d", "e"]
    queue.add(make("f"))
    await queue.pop_batch(raising(RequeueError(keys=[])))
    assert queue.statistics().retrying == 0


async def test_a_cancelled_batch_comes_back_in_its_order() -> None:
    queue = OrderedFIFO()
    for name in "abc":
        queue.add(make(name))
    started = asyncio.Event()

    async def process(_: Sequence[Deltas]) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(queue.pop_batch(process))
    await started.wait()
    queue.add(make("d"))
    task.cancel()
    await asyncio.wait([task])
    assert [key for key, _ in await drain(queue)] == list("abcd")


# --- Closing and statistics ----------------------------------------------------------------------


async def test_a_closed_queue_is_drained_and_then_refuses_pops_but_takes_writes() -> None:
    queue = OrderedFIFO()
    queue.add(make("a"))
    popped = await start(queue)
    pops = [Popped(queue) for _ in range(3)]
    await FakeClock().settle()
    queue.close()
    await FakeClock().settle()
    assert not any(waiting.task.done() for waiting in pops)
    await popped.succeed()
    results = await asyncio.gather(*(waiting.task for waiting in pops), return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosedError] * 3
    queue.add(make("b"))
    assert [key for key, _ in await drain(queue)] == ["b"]
    with pytest.raises(QueueClosedError):
        await queue.pop_batch(done)


async def test_statistics_count_and_measure_with_the_clock() -> None:
    clock = FakeClock()
    queue = OrderedFIFO(clock=clock)
    assert queue.statistics() == QueueStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
    queue.add(make("a", 1))
    await clock.advance(3)
    queue.update(make("a", 2))
    await clock.advance(1)
    assert queue.statistics().oldest_age_seconds == 4
    popped = await start(queue)
    await clock.advance(2)
    assert queue.statistics() == QueueStatistics(1, 1, 0, 2, 1, 0, 0, 0, 3.0, 2.0)
    await popped.cancel()
    assert queue.statistics() == QueueStatistics(2, 0, 0, 2, 1, 0, 1, 0, 6.0, 0.0)
