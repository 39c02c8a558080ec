"""A queue with groups takes from each in turn."""

from typing import TYPE_CHECKING

import pytest

from listwatch.clock import FakeClock
from listwatch.workqueue.work_queue import FairOrder, WorkQueue
from workqueue.taking import take_all

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


async def test_a_fair_queue_takes_one_item_of_each_group_in_turn(clock: FakeClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, group=lambda key: key.split("/")[0])
    for item in ("a/1", "a/2", "a/3", "b/1", "c/1", "b/2"):
        queue.add(item)
    assert await take_all(queue) == ["a/1", "b/1", "c/1", "a/2", "b/2", "a/3"]


async def test_a_crowded_group_does_not_hold_up_another(clock: FakeClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, group=lambda key: key.split("/")[0])
    for number in range(100_000):
        queue.add(f"crowded/{number}")
    queue.add("quiet/1")
    assert [await queue.get() for _ in range(2)] == ["crowded/0", "quiet/1"]


async def test_a_group_without_items_leaves_nothing_behind() -> None:
    order: FairOrder[str] = FairOrder(lambda key: key)
    for number in range(100):
        order.append(f"{number}")
    for _ in range(100):
        order.popleft()
    # a leak shows nowhere else
    assert (len(order), order._items, len(order._turns)) == (0, {}, 0)


async def test_a_group_function_that_raises_is_seen_at_once_and_adds_nothing(
    clock: FakeClock,
) -> None:
    def group(key: str) -> str:
        if key == "bad":
            raise LookupError("no group")
        return key

    queue: WorkQueue[str] = WorkQueue(clock=clock, group=group)
    with pytest.raises(LookupError):
        queue.add("bad")
    with pytest.raises(LookupError):
        queue.add_after("bad", 1)
    queue.add("good")
    state = queue.statistics()
    assert (state.depth, state.waiting, state.adds) == (1, 0, 1)


async def test_a_group_that_is_not_hashable_is_refused_wherever_an_item_is_added(
    clock: FakeClock,
) -> None:
    groups: dict[str, object] = {"a": "fine"}
    group: Callable[[str], Hashable] = groups.__getitem__
    queue: WorkQueue[str] = WorkQueue(clock=clock, group=group)
    queue.add("a")
    item = await queue.get()
    groups["a"] = ["not", "hashable"]
    for add in (queue.add, lambda item: queue.add_after(item, 1)):
        with pytest.raises(TypeError, match="unhashable type: 'list'"):
            add("a")
    queue.done(item)
    state = queue.statistics()
    assert (state.depth, state.waiting, state.processing) == (0, 0, 0)


async def test_an_item_added_while_processed_keeps_to_its_group(clock: FakeClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, group=lambda key: key[0])
    queue.add("a1")
    async with queue.item() as item:
        queue.add(item)
        queue.add("a2")
        queue.add("b1")
    assert await take_all(queue) == ["a2", "b1", "a1"]
