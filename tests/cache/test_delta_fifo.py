import asyncio
from collections.abc import Callable, Sequence

import pytest

from cache.queue_story import (
    A,
    Broken,
    D,
    Everything,
    Popped,
    R,
    S,
    U,
    done,
    drain,
    known,
    make,
    pop_all,
    raising,
    start,
    story,
)
from listwatch.cache.delta_fifo import CompressorError, DeltaFIFO
from listwatch.cache.deltas import (
    Delta,
    Deltas,
    DeltaType,
    Item,
    KnownObjects,
    Queue,
    QueueStatistics,
    RequeueError,
    TransformError,
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
    errors: list[Exception] = []
    queue = DeltaFIFO(known_objects=objects, on_error=errors.append)
    queue.delete(make("a", 2))
    assert await drain(queue) == [("a", [(D, "2")])]
    assert [str(error) for error in errors] == ["no a today"] * isinstance(objects, Broken)
    assert queue.statistics().errors == len(errors)


# --- Replace -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("emit_replaced", "kind"), [(True, R), (False, S)])
async def test_a_replace_tells_objects_as_replaced_or_as_sync(
    emit_replaced: bool,
    kind: DeltaType,
) -> None:
    queue = DeltaFIFO(emit_replaced=emit_replaced)
    queue.replace([make("a", 1), make("b", 2)], "9")
    assert await drain(queue) == [("a", [(kind, "1")]), ("b", [(kind, "2")])]


async def test_a_replace_tells_the_end_of_queued_and_of_known_keys_that_it_lacks() -> None:
    queue = DeltaFIFO(known_objects=known(make("k", 1), make("q", 1), make("both", 1)))
    queue.add(make("q", 5))
    queue.update(make("new", 6))
    queue.replace([make("both", 7)], "9")
    assert await drain(queue) == [
        ("q", [(A, "5"), (D, "†5")]),
        ("new", [(U, "6"), (D, "†6")]),
        ("both", [(S, "7")]),
        ("k", [(D, "†1")]),
    ]


async def test_an_object_that_is_only_in_the_queue_at_a_relist_gets_its_end() -> None:
    """kubernetes#115658: it stayed in the store for ever."""
    for objects in (None, known()):
        queue = DeltaFIFO(known_objects=objects)
        queue.add(make("a", 1))
        queue.replace([], "2")
        assert await drain(queue) == [("a", [(A, "1"), (D, "†1")])]


async def test_a_replace_tells_no_second_end_and_wraps_no_tombstone_in_another() -> None:
    queue = DeltaFIFO(known_objects=known(make("a", 1), make("b", 1)))
    queue.delete(make("a", 2))
    queue.delete(DeletedFinalStateUnknown("b", make("b", 3)))
    queue.replace([], "9")
    queue.replace([], "10")
    assert await drain(queue) == [("a", [(D, "2")]), ("b", [(D, "†3")])]


@pytest.mark.parametrize("objects", [Broken(["a"]), Everything()])
async def test_the_end_of_an_object_in_unknown_state_is_a_tombstone_without_object(
    objects: Broken | Everything,
) -> None:
    class Listing(Everything):
        def list_keys(self) -> list[str]:
            return ["a"]

    errors: list[Exception] = []
    known_objects = objects if isinstance(objects, Broken) else Listing()
    queue = DeltaFIFO(known_objects=known_objects, on_error=errors.append)
    queue.replace([], "9")
    assert await drain(queue) == [("a", [(D, "†?")])]
    assert len(errors) == isinstance(objects, Broken)


async def test_a_replace_after_a_queued_deletion_tells_the_object_again() -> None:
    """kubernetes#83810: a Sync behind a Deleted was dropped, and the object was lost."""
    queue = DeltaFIFO(known_objects=known(make("a", 1)))
    queue.delete(make("a", 2))
    queue.replace([make("a", 3)], "3")
    assert await drain(queue) == [("a", [(D, "2"), (S, "3")])]


async def test_a_replace_whose_keys_cannot_be_told_queues_nothing() -> None:
    def by_version(item: object) -> str:
        if not isinstance(item, Object) or item.resource_version == "0":
            raise ZeroDivisionError("version 0")
        return item.resource_version

    queue = DeltaFIFO(by_version)
    with pytest.raises(KeyFunctionError, match="rv=0>: ZeroDivisionError: version 0"):
        queue.replace([make("a", 1), make("b", 0)], "9")
    broken = DeltaFIFO(known_objects=Broken())
    with pytest.raises(OSError, match="no keys today"):
        broken.replace([make("a", 1)], "9")
    for untouched in (queue, broken):
        assert (len(untouched), untouched.has_synced) == (0, False)


async def test_the_last_of_several_listed_objects_with_one_key_counts() -> None:
    queue = DeltaFIFO()
    queue.replace([make("a", 1), make("a", 2)], "9")
    assert await drain(queue) == [("a", [(S, "2")])]


# --- Synced --------------------------------------------------------------------------------------


async def test_synced_once_every_item_of_the_first_replace_is_processed() -> None:
    queue = DeltaFIFO(known_objects=known(make("old")))
    queue.resync()
    queue.bookmark("1")
    assert not queue.has_synced
    queue = DeltaFIFO(known_objects=known(make("old")))
    queue.replace([make("a"), make("b")], "9")
    queue.add(make("late"))
    flags: list[bool] = []
    for _ in range(4):
        assert not queue.has_synced or flags == [True] * 3
        seen: list[bool] = []
        deltas = await queue.pop(lambda _, seen=seen: seen.append(queue.has_synced))  # type: ignore[misc]  # mypy can't infer a lambda with a default
        assert seen == [len(flags) == 3]
        flags.append(deltas.is_in_initial_list)
    assert flags == [True, True, True, False]
    assert queue.has_synced


async def test_a_pending_deletion_of_the_first_replace_counts_for_synced() -> None:
    queue = DeltaFIFO(known_objects=known(make("gone")))
    queue.replace([], "9")
    assert not queue.has_synced
    assert (await queue.pop(done)).is_in_initial_list
    assert queue.has_synced


async def test_an_empty_first_replace_or_an_earlier_change_means_synced_at_once() -> None:
    queue = DeltaFIFO()
    queue.replace([], "9")
    assert queue.has_synced
    writes: list[Callable[[DeltaFIFO], None]] = [
        lambda queue: queue.add(make("a")),
        lambda queue: queue.update(make("a")),
        lambda queue: queue.delete(make("a")),
        lambda queue: queue.add_if_not_present(Deltas([Delta(A, make("a"))], "a")),
    ]
    for write in writes:
        queue = DeltaFIFO()
        write(queue)
        assert queue.has_synced
        queue.replace([make("b")], "9")
        assert queue.has_synced
        assert {deltas.is_in_initial_list for deltas in await pop_all(queue)} == {False}


async def test_a_resync_in_process_at_the_first_replace_does_not_count_for_synced() -> None:
    queue = DeltaFIFO(known_objects=known(make("a", 1)))
    queue.resync()
    popped = await start(queue)
    queue.replace([make("a", 2)], "2")
    await popped.succeed()
    synced = [queue.has_synced]
    popped = await start(queue)
    assert popped.deltas.is_in_initial_list
    await popped.succeed()
    assert [*synced, queue.has_synced] == [False, True]

    queue = DeltaFIFO(known_objects=known(make("a", 1)))
    queue.resync()
    queue.replace([make("a", 2)], "2")
    assert (await queue.pop(done)).is_in_initial_list

    queue = DeltaFIFO(known_objects=known(make("a", 1)), compressor=lambda deltas: deltas[-1:])
    queue.resync()
    popped = await start(queue)
    queue.replace([make("a", 2)], "2")
    await popped.cancel()
    popped = await start(queue)
    assert (story(popped.deltas), popped.deltas.is_in_initial_list) == ([(S, "2")], True)
    await popped.succeed()
    assert queue.has_synced


async def test_synced_waits_for_requeued_and_cancelled_items() -> None:
    clock = FakeClock()
    queue = DeltaFIFO(clock=clock)
    queue.replace([make("a")], "9")
    popped = await start(queue)
    assert not queue.has_synced
    await popped.cancel()
    assert not queue.has_synced
    popped = await start(queue)
    await popped.fail(RequeueError())
    assert not queue.has_synced
    await clock.advance(1)
    assert (await queue.pop(done)).is_in_initial_list
    assert queue.has_synced


async def test_a_failed_item_is_processed_as_far_as_synced_goes() -> None:
    queue = DeltaFIFO()
    queue.replace([make("a")], "9")
    with pytest.raises(ValueError, match="no"):
        await queue.pop(raising(ValueError("no")))
    assert queue.has_synced


# --- Resync --------------------------------------------------------------------------------------


async def test_a_resync_tells_known_objects_that_have_nothing_queued() -> None:
    queue = DeltaFIFO(known_objects=known(make("a", 1), make("b", 1), make("c", 1)))
    queue.update(make("a", 2))
    queue.delete(make("b", 2))
    queue.resync()
    assert await drain(queue) == [("a", [(U, "2")]), ("b", [(D, "2")]), ("c", [(S, "1")])]


async def test_a_resync_without_known_objects_does_nothing() -> None:
    queue = DeltaFIFO()
    queue.add(make("a"))
    popped = await start(queue)
    queue.resync()
    assert len(queue) == 0
    await popped.succeed()


async def test_a_resync_skips_what_cannot_be_looked_up_or_has_no_state() -> None:
    class Odd(Everything):
        def list_keys(self) -> list[str]:
            return ["gone", "unknown", "broken", "a"]

        def get_by_key(self, key: str) -> Item | None:
            if key == "broken":
                raise OSError(key)
            items: dict[str, Item] = {
                "unknown": DeletedFinalStateUnknown("unknown"),
                "a": make("a", 7),
            }
            return items.get(key)

    errors: list[Exception] = []
    queue = DeltaFIFO(known_objects=Odd(), on_error=errors.append)
    queue.resync()
    assert await drain(queue) == [("a", [(S, "7")])]
    assert len(errors) == 1
    with pytest.raises(OSError, match="no keys today"):
        DeltaFIFO(known_objects=Broken()).resync()


# --- Keys and transformers -----------------------------------------------------------------------


def test_the_key_of_deltas_is_their_newest_objects_and_a_tombstones_its_own() -> None:
    queue = DeltaFIFO()
    assert queue.key_of(make("a")) == "a"
    assert queue.key_of(DeletedFinalStateUnknown("ns/t")) == "ns/t"
    both = Deltas([Delta(A, make("a")), Delta(D, DeletedFinalStateUnknown("b"))])
    assert queue.key_of(both) == "b"
    with pytest.raises(KeyFunctionError, match="deltas without a delta"):
        queue.key_of(Deltas())
    with pytest.raises(KeyFunctionError, match="a Bookmark delta is of no object"):
        queue.key_of(Deltas([Delta(DeltaType.BOOKMARK)]))


async def test_what_has_no_key_is_refused_and_changes_nothing() -> None:
    queue = DeltaFIFO(raising(ZeroDivisionError("oh")))  # type: ignore[arg-type]  # never returns
    writes: list[Callable[[Object], None]] = [queue.add, queue.update, queue.delete]
    for write in writes:
        with pytest.raises(KeyFunctionError, match="ZeroDivisionError: oh"):
            write(make("a"))
    assert (len(queue), queue.has_synced, queue.statistics().adds) == (0, False, 0)


async def test_the_transformer_sees_every_object_but_resyncs_and_tombstones() -> None:
    def bump(obj: Object) -> Object:
        return make(obj.name, int(obj.resource_version) + 100)

    store = known(make("k", 1), make("s", 1))
    queue = DeltaFIFO(transformer=bump, known_objects=store)
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
async def test_a_failing_transformer_costs_no_object(wrong: Callable[[Object], Object]) -> None:
    errors: list[Exception] = []
    queue = DeltaFIFO(transformer=wrong, on_error=errors.append)
    queue.replace([make("a", 1), make("b", 2)], "9")
    queue.update(make("a", 3))
    assert await drain(queue) == [("a", [(S, "1"), (U, "3")]), ("b", [(S, "2")])]
    assert all(isinstance(error, TransformError) for error in errors)
    assert [str(error)[:24] for error in errors] == [
        f"transformer failed for {key}" for key in "aba"
    ]
    assert errors[0].__cause__ is not None


async def test_without_on_error_such_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = DeltaFIFO(transformer=raising(ValueError("bad")))  # type: ignore[arg-type]  # never returns
    queue.add(make("a"))
    assert [record.getMessage() for record in caplog.records] == [
        "transformer failed for a: ValueError: bad"
    ]


# --- Compressor ----------------------------------------------------------------------------------


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

    errors: list[Exception] = []
    queue = DeltaFIFO(compressor=wreck, on_error=errors.append)
    for version in range(3):
        queue.update(make("a", version))
    assert await drain(queue) == [("a", [(U, "0"), (U, "1"), (U, "2")])]
    assert [str(error) for error in errors] == ["compressor failed for a: ValueError: two"]
    assert isinstance(errors[0], CompressorError)


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
    """kubernetes#27004: between queue and store it was nowhere, and stayed as a ghost."""
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
    assert not queue._waiters


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
    assert not queue._waiters
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


# --- Closing and figures -------------------------------------------------------------------------


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
