"""Deltas of lists and resyncs, and the moment a queue has synced."""

from typing import TYPE_CHECKING

import pytest

from cache.queue_story import (
    A,
    Broken,
    D,
    Everything,
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
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import (
    Delta,
    Deltas,
    DeltaType,
    Item,
    RequeueError,
)
from listwatch.clock import FakeClock
from listwatch.objects import DeletedFinalStateUnknown, KeyFunctionError, Object

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """kubernetes#115658: it stayed in the store forever."""
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

    errors: list[BaseException] = []
    known_objects = objects if isinstance(objects, Broken) else Listing()
    queue = DeltaFIFO(
        known_objects=known_objects, on_error=lambda failure: errors.append(failure.error)
    )
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

    errors: list[BaseException] = []
    queue = DeltaFIFO(known_objects=Odd(), on_error=lambda f: errors.append(f.error))
    queue.resync()
    assert await drain(queue) == [("a", [(S, "7")])]
    assert len(errors) == 1
    with pytest.raises(OSError, match="no keys today"):
        DeltaFIFO(known_objects=Broken()).resync()
