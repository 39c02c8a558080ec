import asyncio
from collections.abc import Callable

import pytest

from cache.queue_story import (
    A,
    Broken,
    D,
    Everything,
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
    Delta,
    Deltas,
    DeltaType,
    Item,
    KnownObjects,
    Queue,
    QueueStatistics,
    RequeueError,
    RewriteError,
)
from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.objects import DeletedFinalStateUnknown, KeyFunctionError, Object

# --- One slot for each key -----------------------------------------------------------------------


async def test_a_delta_fifo_is_a_queue() -> None:
    assert isinstance(DeltaFIFO(), Queue)
    assert isinstance(Everything(), KnownObjects)


async def test_each_key_has_one_slot_where_it_was_first_added() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    queue.add(make("b", 2))
    queue.update(make("a", 3))
    queue.delete(make("b", 4))
    queue.update(make("a", 5))
    assert (len(queue), queue.list_keys()) == (2, ["a", "b"])
    assert await drain(queue) == [
        ("a", [(A, "1"), (U, "3"), (U, "5")]),
        ("b", [(A, "2"), (D, "4")]),
    ]
    assert queue.list_keys() == []


async def test_deltas_know_their_key_and_their_oldest_and_newest() -> None:
    queue = DeltaFIFO()
    queue.add(make("a", 1))
    queue.update(make("a", 2))
    seen: list[Deltas] = []
    returned = await queue.pop(seen.append)
    assert seen == [returned]
    assert (returned.key, returned.is_in_initial_list) == ("a", False)
    assert story([returned.oldest(), returned.newest()]) == [(A, "1"), (U, "2")]
    with pytest.raises(IndexError):
        Deltas().newest()


async def test_of_two_deletions_the_one_that_knows_more_is_kept() -> None:
    last, tombstone = make("a", 2), DeletedFinalStateUnknown("a", make("a", 1))
    newer = DeletedFinalStateUnknown("a", make("a", 3))
    cases: list[tuple[list[Item], list[tuple[DeltaType, str]]]] = [
        ([last, tombstone], [(D, "2")]),
        ([tombstone, last], [(D, "2")]),
        ([last, make("a", 3)], [(D, "2")]),
        ([tombstone, newer], [(D, "†3")]),
        ([tombstone, last, newer], [(D, "2")]),
    ]
    for deletions, kept in cases:
        queue = DeltaFIFO(known_objects=Everything())
        for item in deletions:
            queue.delete(item)
        assert await drain(queue) == [("a", kept)]


async def test_nothing_else_is_merged() -> None:
    queue = DeltaFIFO(known_objects=Everything())
    for version in range(3):
        queue.add(make("a", version))
        queue.update(make("a", version))
        queue.update(make("a", version))
        queue.delete(make("a", version))
    (_, told), *others = await drain(queue)
    assert [kind for kind, _ in told] == [A, U, U, D] * 3
    assert others == []


# --- Deletions -----------------------------------------------------------------------------------


async def test_a_deletion_of_what_is_neither_queued_nor_known_is_dropped() -> None:
    for queue in (DeltaFIFO(), DeltaFIFO(known_objects=known(make("x")))):
        queue.delete(make("a"))
        queue.delete(DeletedFinalStateUnknown("a"))
        assert len(queue) == 0
        queue.add(make("a", 1))
        queue.delete(make("a", 2))
        assert await drain(queue) == [("a", [(A, "1"), (D, "2")])]


@pytest.mark.parametrize("objects", [known(make("a")), Everything(), Broken([])])
async def test_a_deletion_of_what_is_or_may_be_known_is_queued(objects: KnownObjects) -> None:
    errors: list[BaseException] = []
    queue = DeltaFIFO(known_objects=objects, on_error=lambda failure: errors.append(failure.error))
    queue.delete(make("a", 2))
    assert await drain(queue) == [("a", [(D, "2")])]
    assert [str(error) for error in errors] == ["no a today"] * isinstance(objects, Broken)
    assert queue.statistics().errors == len(errors)


# --- Keys and rewrites -----------------------------------------------------------------------


def test_the_key_of_deltas_is_their_newest_objects_and_a_tombstones_its_own() -> None:
    queue = DeltaFIFO()
    assert queue.key_of(make("a")) == "a"
    assert queue.key_of(DeletedFinalStateUnknown("ns/t")) == "ns/t"
    both = Deltas([Delta(A, make("a")), Delta(D, DeletedFinalStateUnknown("b"))])
    assert queue.key_of(both) == "b"
    with pytest.raises(KeyFunctionError, match="empty list of deltas"):
        queue.key_of(Deltas())
    with pytest.raises(KeyFunctionError, match="a Bookmark delta has no object"):
        queue.key_of(Deltas([Delta(DeltaType.BOOKMARK)]))


async def test_what_has_no_key_is_refused_and_changes_nothing() -> None:
    queue = DeltaFIFO(raising(ZeroDivisionError("oh")))  # type: ignore[arg-type]  # never returns
    writes: list[Callable[[Object], None]] = [queue.add, queue.update, queue.delete]
    for write in writes:
        with pytest.raises(KeyFunctionError, match="ZeroDivisionError: oh"):
            write(make("a"))
    assert (len(queue), queue.has_synced, queue.statistics().adds) == (0, False, 0)


async def test_the_rewrite_sees_every_object_but_resyncs_and_tombstones() -> None:
    def bump(obj: Object) -> Object:
        return make(obj.name, int(obj.resource_version) + 100)

    store = known(make("k", 1), make("s", 1))
    queue = DeltaFIFO(rewrite=bump, known_objects=store)
    queue.add(make("a", 1))
    queue.update(make("a", 2))
    queue.delete(make("a", 3))
    queue.replace([make("r", 4), make("s", 5)], "9")
    queue.delete(DeletedFinalStateUnknown("k", make("k", 6)))
    assert await drain(queue) == [
        ("a", [(A, "101"), (U, "102"), (D, "103")]),
        ("r", [(S, "104")]),
        ("s", [(S, "105")]),
        ("k", [(D, "†6")]),
    ]
    queue.resync()
    assert await drain(queue) == [("k", [(S, "1")]), ("s", [(S, "1")])]


@pytest.mark.parametrize("wrong", [raising(ValueError("bad")), lambda _: None])
async def test_a_failing_rewrite_costs_no_object(wrong: Callable[[Object], Object]) -> None:
    errors: list[BaseException] = []
    queue = DeltaFIFO(rewrite=wrong, on_error=lambda failure: errors.append(failure.error))
    queue.replace([make("a", 1), make("b", 2)], "9")
    queue.update(make("a", 3))
    assert await drain(queue) == [("a", [(S, "1"), (U, "3")]), ("b", [(S, "2")])]
    assert all(isinstance(error, RewriteError) for error in errors)
    assert [str(error)[:20] for error in errors] == [f"rewrite failed for {key}" for key in "aba"]
    assert errors[0].__cause__ is not None


async def test_without_on_error_such_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = DeltaFIFO(rewrite=raising(ValueError("bad")))  # type: ignore[arg-type]  # never returns
    queue.add(make("a"))
    assert [record.getMessage() for record in caplog.records] == [
        "queue a: rewrite failed for a: ValueError: bad"
    ]


# --- Closing and statistics ----------------------------------------------------------------------


async def test_a_closed_queue_is_drained_and_then_refuses_pops_but_takes_writes() -> None:
    queue = DeltaFIFO()
    queue.add(make("a"))
    queue.close()
    queue.close()
    assert queue.closed
    await queue.pop(done)
    with pytest.raises(QueueClosedError, match="closed and empty"):
        await queue.pop(done)
    queue.add(make("b"))
    assert await queue.pop_batch(done) == 1
    with pytest.raises(QueueClosedError):
        await queue.pop_batch(done)


async def test_closing_ends_all_waiting_pops() -> None:
    queue = DeltaFIFO()
    pops = [Popped(queue) for _ in range(3)]
    await FakeClock().settle()
    queue.close()
    results = await asyncio.gather(*(popped.task for popped in pops), return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosedError] * 3


async def test_a_closed_queue_is_not_empty_while_something_may_come_back() -> None:
    clock = FakeClock()
    queue = DeltaFIFO(clock=clock)
    queue.add(make("a"))
    popped = await start(queue)
    queue.close()
    waiting, other = Popped(queue), Popped(queue)
    await clock.settle()
    await popped.fail(RequeueError(after=5))
    await clock.advance(4)
    assert not waiting.task.done()
    await clock.advance(1)
    assert waiting.started.is_set()
    await waiting.succeed()
    with pytest.raises(QueueClosedError):
        await other.task


async def test_statistics_count_and_measure_with_the_clock() -> None:
    clock = FakeClock()
    queue = DeltaFIFO(clock=clock)
    assert queue.statistics() == QueueStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
    queue.add(make("a", 1))
    queue.update(make("a", 2))
    await clock.advance(3)
    queue.add(make("b"))
    await clock.advance(1)
    assert queue.statistics().oldest_age_seconds == 4
    popped = await start(queue)
    await clock.advance(2)
    assert queue.statistics() == QueueStatistics(1, 1, 0, 3, 1, 0, 0, 0, 3.0, 2.0)
    queue.update(make("a", 3))
    await queue.pop(done)
    waiting = Popped(queue)
    await clock.advance(5)
    assert queue.statistics().oldest_age_seconds == 5
    await popped.succeed()
    await waiting.started.wait()
    await waiting.succeed()
