import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Hashable

import pytest

from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.workqueue.priority_queue import PriorityQueue
from listwatch.workqueue.rate_limiters import (
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
)
from listwatch.workqueue.work_queue import FairOrder, WorkQueue


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=0.0)


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue[str]:
    return WorkQueue(
        name="test", clock=clock, rate_limiter=ItemExponentialFailureRateLimiter(1, 1000)
    )


async def take_all(queue: WorkQueue[str]) -> list[str]:
    """Take and finish every ready item."""
    items = []
    while len(queue):
        async with queue.item() as item:
            items.append(item)
    return items


# Adding, taking, being done


async def test_items_come_first_in_first_out(queue: WorkQueue[str]) -> None:
    for item in "abc":
        queue.add(item)
    assert len(queue) == 3
    assert await take_all(queue) == ["a", "b", "c"]
    assert len(queue) == 0


async def test_an_item_added_while_queued_is_there_once_in_its_first_place(
    queue: WorkQueue[str],
) -> None:
    for item in "abab":
        queue.add(item)
    assert await take_all(queue) == ["a", "b"]


async def test_an_item_added_while_processed_is_queued_again_at_done_and_not_before(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert len(queue) == 1
    queue.done("a")
    assert len(queue) == 2
    assert await take_all(queue) == ["b", "a"]


async def test_an_item_added_while_processed_wakes_a_waiting_worker_at_done(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    await queue.get()
    getting = asyncio.ensure_future(queue.get())
    await clock.settle()
    queue.add("a")
    await clock.settle()
    assert not getting.done()
    queue.done("a")
    assert await getting == "a"


async def test_a_woken_get_cancelled_after_its_item_was_stolen_wakes_nobody(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    first, second = (asyncio.ensure_future(queue.get()) for _ in range(2))
    await clock.settle()
    queue.add("a")
    assert await queue.get() == "a"
    first.cancel()
    await clock.settle()
    assert (first.cancelled(), queue.statistics().idle_workers) == (True, 1)
    queue.add("b")
    assert await second == "b"


async def test_a_done_item_is_not_queued_again_by_itself(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.done(await queue.get())
    assert len(queue) == 0


async def test_get_waits_for_an_item(queue: WorkQueue[str], clock: FakeClock) -> None:
    getting = asyncio.ensure_future(queue.get())
    await clock.settle()
    assert not getting.done()
    queue.add("a")
    assert await getting == "a"


async def test_the_worker_that_waits_longest_is_served_first(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    getting = []
    for _ in range(3):
        getting.append(asyncio.ensure_future(queue.get()))
        await clock.settle()
    for number, item in enumerate("abc"):
        queue.add(item)
        assert queue.statistics().idle_workers == 2 - number  # each item wakes one
    assert await asyncio.gather(*getting) == ["a", "b", "c"]


async def test_a_cancelled_get_loses_nothing(queue: WorkQueue[str], clock: FakeClock) -> None:
    getting = asyncio.ensure_future(queue.get())
    await clock.settle()
    queue.add("a")
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert (len(queue), queue.statistics().processing) == (1, 0)
    assert await queue.get() == "a"


async def test_a_get_cancelled_as_its_item_arrives_passes_it_to_the_next_worker(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    first, second = (asyncio.ensure_future(queue.get()) for _ in range(2))
    await clock.settle()
    queue.add("a")  # wakes the first
    first.cancel()
    assert await second == "a"
    assert first.cancelled()


async def test_a_get_cancelled_while_it_waits_is_passed_over(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    first, second = (asyncio.ensure_future(queue.get()) for _ in range(2))
    await clock.settle()
    first.cancel()
    queue.add("a")  # before the first has run
    await clock.settle()
    assert (first.cancelled(), second.done()) == (True, True)
    assert queue.statistics().idle_workers == 0


async def test_an_item_stolen_from_a_woken_worker_lets_it_wait_on(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    getting = asyncio.ensure_future(queue.get())
    await clock.settle()
    queue.add("a")
    assert await queue.get() == "a"
    await clock.settle()
    assert not getting.done()
    queue.add("b")
    assert await getting == "b"


class _SlowMachineClock(FakeClock):
    """A clock on a machine where 10 ms pass between any two looks at it."""

    def now(self) -> float:
        self._now += 0.01
        return self._now


async def test_a_get_cancelled_while_it_lets_others_run_passes_its_item_to_the_next_worker() -> (
    None
):
    clock = _SlowMachineClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    first, second = (asyncio.ensure_future(queue.get()) for _ in range(2))
    await clock.settle()
    queue.add("a")  # wakes the first
    await asyncio.sleep(0)  # which lets others run before it takes the item
    first.cancel()
    await clock.settle()
    assert (first.cancelled(), second.done()) == (True, True)
    assert await second == "a"


class _Mutable:
    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mutable) and self.number == other.number

    def __repr__(self) -> str:
        return f"Mutable {self.number}"


@pytest.mark.parametrize(
    "make",
    [WorkQueue[_Mutable], lambda clock: WorkQueue(clock=clock, group=str), PriorityQueue[_Mutable]],
)
async def test_a_key_that_was_changed_while_queued_is_named_and_costs_no_other(
    clock: FakeClock, make: Callable[..., WorkQueue[_Mutable]]
) -> None:
    queue = make(clock=clock)
    changed, good = _Mutable(1), _Mutable(2)
    queue.add(changed)
    queue.add(good)
    changed.number = 3
    with pytest.raises(RuntimeError, match="Mutable 3 was changed while it was queued"):
        await queue.get()
    assert await queue.get() is good
    assert len(queue) == 0


async def test_done_twice_is_an_error_and_queues_nothing(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await queue.get()
    queue.done("a")
    with pytest.raises(ValueError, match=r"done\('a'\): no worker has taken it, or it is done"):
        queue.done("a")
    assert len(queue) == 0


async def test_done_without_get_does_not_queue_a_queued_item_twice(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    with pytest.raises(ValueError, match="no worker has taken it"):
        queue.done("a")
    assert await take_all(queue) == ["a"]


async def test_what_is_no_key_is_refused_by_name(queue: WorkQueue[str]) -> None:
    key: str = ["a"]  # type: ignore[assignment]  # what a caller without a type checker may pass
    for add in (queue.add, queue.add_rate_limited, lambda item: queue.add_after(item, 1)):
        with pytest.raises(TypeError, match="a list can't be queued, for it is not hashable"):
            add(key)
    assert (len(queue), queue.statistics().waiting) == (0, 0)


async def test_an_empty_queue_is_still_true(queue: WorkQueue[str]) -> None:
    assert queue


async def test_a_worker_that_always_finds_an_item_lets_others_run_every_5_ms(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for number in range(100):
        queue.add(str(number))
    turns = 0

    async def work() -> None:
        while len(queue):
            async with queue.item():
                clock._now += 0.001

    async def other() -> None:
        nonlocal turns
        while len(queue):
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        group.create_task(other())
    assert 15 <= turns <= 22


async def test_a_get_cancelled_while_it_lets_others_run_takes_nothing(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    await clock.advance(1)
    getting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    getting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await getting
    assert (len(queue), queue.statistics().processing) == (1, 0)


async def test_an_item_gone_while_a_worker_lets_others_run_is_waited_for(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    await clock.advance(1)
    slow = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert await queue.get() == "a"
    await clock.settle()
    assert not slow.done()
    queue.add("b")
    assert await slow == "b"


# async with queue.item()


async def test_item_is_done_after_its_body(queue: WorkQueue[str]) -> None:
    queue.add("a")
    async with queue.item() as item:
        assert (item, queue.statistics().processing) == ("a", 1)
    assert (len(queue), queue.statistics().processing) == (0, 0)


async def test_item_is_done_after_an_error_which_passes_through(queue: WorkQueue[str]) -> None:
    queue.add("a")
    with pytest.raises(LookupError, match="handler"):
        async with queue.item():
            raise LookupError("handler")
    state = queue.statistics()
    assert (state.depth, state.waiting, state.processing) == (0, 0, 0)


async def test_item_with_requeue_adds_a_failed_item_rate_limited_and_forgets_a_good_one(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    for attempt in (1, 2):
        with pytest.raises(LookupError):
            async with queue.item(requeue=True):
                raise LookupError
        assert (len(queue), queue.num_requeues("a")) == (0, attempt)
        await clock.advance(2.0 ** (attempt - 1))
        assert len(queue) == 1
    async with queue.item(requeue=True):
        pass
    assert (len(queue), queue.num_requeues("a")) == (0, 0)


async def test_item_with_requeue_adds_a_cancelled_item_at_once_and_blames_it_not(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")

    async def work() -> None:
        async with queue.item(requeue=True):
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await clock.settle()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (len(queue), queue.num_requeues("a")) == (1, 0)
    assert queue.statistics().processing == 0


async def test_a_cancelled_item_without_requeue_is_done(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")

    async def work() -> None:
        async with queue.item():
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await clock.settle()
    working.cancel()
    await asyncio.wait([working])
    assert (len(queue), queue.statistics().processing) == (0, 0)


async def test_put_back_leaves_the_item_due_also_in_a_shut_down_queue(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    queue.shut_down()
    queue.put_back(await queue.get())
    assert await take_all(queue) == ["a"]
    with pytest.raises(ValueError, match="no worker has taken it"):
        queue.put_back("a")


class _Broken(ItemFastSlowRateLimiter[str]):
    def when(self, item: str, /) -> float:
        raise RuntimeError(f"no idea about {item}")


async def test_a_rate_limiter_that_raises_is_seen_and_the_item_is_done(
    clock: FakeClock,
) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, rate_limiter=_Broken(1, 1, 1))
    with pytest.raises(RuntimeError, match="no idea about b"):
        queue.add_rate_limited("b")
    queue.add("a")
    with pytest.raises(RuntimeError, match="no idea about a") as caught:
        async with queue.item(requeue=True):
            raise LookupError("handler")
    assert isinstance(caught.value.__context__, LookupError)
    state = queue.statistics()
    assert (state.depth, state.waiting, state.processing) == (0, 0, 0)


# Waiting


async def test_an_item_comes_when_its_time_has_come_and_not_before(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5)
    await clock.advance(4.999)
    assert (len(queue), queue.statistics().waiting) == (0, 1)
    await clock.advance(0.001)
    assert (len(queue), queue.statistics().waiting) == (1, 0)


@pytest.mark.parametrize("seconds", [0, 0.0, -1, -math.inf, -1e300])
async def test_a_time_that_is_over_is_now(queue: WorkQueue[str], seconds: float) -> None:
    queue.add_after("a", seconds)
    assert await take_all(queue) == ["a"]


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 10**400, None, "5"])
async def test_a_time_that_never_comes_is_refused(
    queue: WorkQueue[str], clock: FakeClock, seconds: float
) -> None:
    with pytest.raises(ValueError, match=r"'a' can't wait .* seconds: give a finite number"):
        queue.add_after("a", seconds)

    class Nonsense(ItemFastSlowRateLimiter[str]):
        def when(self, item: str, /) -> float:
            del item
            return seconds

    limited: WorkQueue[str] = WorkQueue(clock=clock, rate_limiter=Nonsense(1, 1, 1))
    with pytest.raises(ValueError, match=r"'a' can't wait .* seconds: give a finite number"):
        limited.add_rate_limited("a")
    for state in (queue.statistics(), limited.statistics()):
        assert (state.depth, state.waiting, state.retries) == (0, 0, 0)


def test_without_an_event_loop_nothing_can_wait_and_nothing_stays() -> None:
    queue: WorkQueue[str] = WorkQueue()
    with pytest.raises(RuntimeError, match="no running event loop"):
        queue.add_after("a", 60)
    assert queue.statistics().waiting == 0

    async def main() -> str:
        queue.add_after("b", 1e-9)
        return await queue.get()

    assert asyncio.run(main()) == "b"


async def test_a_huge_time_waits(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_after("a", 1e300)
    queue.add_after("b", 1)
    await clock.advance(1e9)
    assert await take_all(queue) == ["b"]
    assert queue.statistics().waiting == 1


async def test_a_huge_time_is_none_to_the_real_clock() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 1e300)
    await asyncio.sleep(0)
    assert queue.statistics().waiting == 1
    queue.shut_down()


@pytest.mark.parametrize("times", [(3, 5), (5, 3), (5, 3, 4)])
async def test_of_several_times_the_earliest_counts_and_the_item_comes_once(
    queue: WorkQueue[str], clock: FakeClock, times: tuple[int, ...]
) -> None:
    for seconds in times:
        queue.add_after("a", seconds)
    await clock.advance(2.9)
    assert len(queue) == 0
    await clock.advance(0.1)
    assert await take_all(queue) == ["a"]
    await clock.advance(10)
    assert len(queue) == 0


async def test_a_plain_add_does_not_cancel_a_waiting_entry(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5)
    queue.add("a")
    assert await take_all(queue) == ["a"]
    await clock.advance(5)
    assert await take_all(queue) == ["a"]


async def test_items_come_in_the_order_of_their_times(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for item, seconds in (("c", 3), ("a", 1), ("d", 3), ("b", 2)):
        queue.add_after(item, seconds)
    await clock.advance(3)
    assert await take_all(queue) == ["a", "b", "c", "d"]


async def test_an_item_whose_time_comes_while_processed_comes_again_after_done(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    async with queue.item():
        queue.add_after("a", 1)
        await clock.advance(1)
        assert len(queue) == 0
    assert await take_all(queue) == ["a"]


async def test_there_is_one_timer_however_many_items_wait(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for number in range(1000):
        queue.add_after(f"{number}", 1000 - number)
    assert sum(timer.callback is not None for _, _, timer in clock._timers) == 1


async def test_a_timer_that_fires_early_makes_nothing_due_and_is_set_again(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5)
    clock._now += 4.999
    queue._on_timer()
    assert (len(queue), queue.statistics().waiting) == (0, 1)
    await clock.advance(0.001)
    assert await take_all(queue) == ["a"]


async def test_earlier_times_and_ended_waits_leave_no_entries_behind(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for number in range(10_000):
        queue.add_after("a", 100_000 - number)
    assert len(queue._heap) <= 2 + 64
    await clock.advance(100_000)
    assert (len(queue._heap), len(queue._waiting), clock.next_timer) == (0, 0, None)


async def test_a_crowd_that_falls_due_at_once_comes_in_batches_in_order(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for number in range(2500):
        queue.add_after(f"{number}", 1)
    clock._now += 1
    queue._on_timer()
    assert len(queue) == 1000
    await clock.advance(0)
    assert await take_all(queue) == [f"{number}" for number in range(2500)]


async def test_rate_limited_items_wait_longer_each_time_until_forgotten(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for seconds in (1, 2, 4):
        queue.add_rate_limited("a")
        await clock.advance(seconds - 0.001)
        assert len(queue) == 0
        await clock.advance(0.001)
        assert await take_all(queue) == ["a"]
    assert queue.num_requeues("a") == 3
    queue.forget("a")
    assert queue.num_requeues("a") == 0
    queue.add_rate_limited("a")
    await clock.advance(1)
    assert await take_all(queue) == ["a"]


async def test_forget_leaves_a_waiting_item_waiting(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add_rate_limited("a")
    queue.forget("a")
    await clock.advance(1)
    assert await take_all(queue) == ["a"]


async def test_by_default_a_failed_item_waits_5_ms_and_the_hundredth_failure_a_while(
    clock: FakeClock,
) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add_rate_limited("a")
    await clock.advance(0.0049)
    assert len(queue) == 0
    await clock.advance(0.0001)
    assert len(queue) == 1
    for _ in range(99):
        queue.add_rate_limited("a")  # spends a token each, though the item is there once
    queue.add_rate_limited("b")
    await clock.advance(0.08)
    assert "b" in queue._waiting


# Fairness


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


# Shutting down


async def test_shut_down_refuses_new_items_and_lets_the_queued_be_taken(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    queue.shut_down()
    assert queue.shutting_down
    queue.add("b")
    queue.add_after("c", 1)
    queue.add_after("c", 0)
    queue.add_rate_limited("d")
    assert queue.num_requeues("d") == 0
    assert await take_all(queue) == ["a"]
    with pytest.raises(QueueClosedError, match="work queue 'test' was shut down"):
        await queue.get()


async def test_shut_down_ends_every_waiting_get(queue: WorkQueue[str], clock: FakeClock) -> None:
    getting = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await clock.settle()
    queue.shut_down()
    results = await asyncio.gather(*getting, return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosedError] * 3


async def test_shut_down_drops_the_waiting_items_and_their_timer(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 1)
    queue.shut_down()
    queue.shut_down()
    assert (clock.next_timer, queue._heap) == (None, [])
    await clock.advance(1)
    assert (len(queue), queue.statistics().waiting) == (0, 0)


async def test_an_item_added_again_before_the_shut_down_still_comes_after_it(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    async with queue.item():
        queue.add("a")
        queue.shut_down()
    assert await take_all(queue) == ["a"]


async def test_a_drain_waits_for_what_is_queued_and_what_is_in_process(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    queue.add("b")
    first = await queue.get()
    draining = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    queue.add("late")
    queue.done(first)
    await clock.settle()
    assert not draining.done()
    second = await queue.get()
    await clock.settle()
    assert not draining.done()
    queue.done(second)
    assert await draining is True
    assert second == "b"


async def test_a_drain_of_an_idle_queue_is_over_at_once(queue: WorkQueue[str]) -> None:
    assert await queue.shut_down_with_drain() is True
    assert await queue.shut_down_with_drain() is True


async def test_a_drain_waits_for_an_item_that_was_added_again_while_processed(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    item = await queue.get()
    queue.add("a")
    draining = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    queue.done(item)
    await clock.settle()
    assert not draining.done()
    assert await take_all(queue) == ["a"]
    assert await draining is True


async def test_a_drain_does_not_lose_waiting_items_and_keeps_workers_for_them(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    worked: list[tuple[float, str]] = []

    async def work() -> None:
        with contextlib.suppress(QueueClosedError):
            while True:
                async with queue.item() as item:
                    worked.append((clock.now(), item))

    workers = [asyncio.ensure_future(work()) for _ in range(3)]
    queue.add_after("a", 5)
    queue.add_after("b", 7)
    draining = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.advance(6)
    assert (worked, draining.done()) == ([(5.0, "a")], False)
    await clock.advance(1)
    assert worked == [(5.0, "a"), (7.0, "b")]
    assert await draining is True
    await asyncio.gather(*workers)


async def test_a_drain_drops_the_waiting_items_if_asked(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    getting = asyncio.ensure_future(queue.get())
    queue.add_after("a", 5)
    await clock.settle()
    assert await queue.shut_down_with_drain(drop_waiting=True) is True
    with pytest.raises(QueueClosedError):
        await getting
    assert clock.next_timer is None


async def test_a_second_drain_that_drops_the_waiting_items_ends_the_first_too(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5)
    first = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    assert await queue.shut_down_with_drain(drop_waiting=True) is True
    assert await first is True


async def test_a_drain_out_of_time_says_what_is_left_and_shuts_down(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for item in "abc":
        queue.add(item)
    queue.add_after("d", 1000)
    await queue.get()
    draining = asyncio.ensure_future(queue.shut_down_with_drain(30))
    await clock.advance(29.9)
    assert not draining.done()
    await clock.advance(0.1)
    with pytest.raises(
        TimeoutError,
        match=r"'test' was not drained within 30 s: 2 ready, 1 waiting, 1 in process",
    ):
        await draining
    state = queue.statistics()
    assert (state.depth, state.waiting, state.processing) == (2, 0, 1)


async def test_a_drain_that_ends_as_its_time_is_over_has_ended(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    item = await queue.get()
    draining = asyncio.ensure_future(queue.shut_down_with_drain(30))
    await clock.settle()
    clock.call_later(30, queue.done, item)
    timer = clock._timers[0][2]
    assert timer.callback is not None
    queue.done(item)
    timer.callback()  # in the same turn of the loop
    assert await draining is True
    clock._timers.clear()


async def test_a_later_shut_down_ends_a_drain(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add("a")
    draining = [asyncio.ensure_future(queue.shut_down_with_drain()) for _ in range(2)]
    await clock.settle()
    queue.shut_down()
    assert await asyncio.gather(*draining) == [False, False]
    assert await take_all(queue) == ["a"]


async def test_a_cancelled_drain_can_be_taken_up_again(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    draining = asyncio.ensure_future(queue.shut_down_with_drain(30))
    await clock.settle()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert clock.next_timer is None
    again = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    assert await take_all(queue) == ["a"]
    assert await again is True


async def test_a_drain_after_a_shut_down_waits_for_what_is_left(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    item = await queue.get()
    queue.shut_down()
    draining = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    assert not draining.done()
    queue.done(item)
    assert await draining is True


async def test_a_failed_item_is_not_added_again_in_a_drain(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    draining = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    with pytest.raises(LookupError):
        async with queue.item(requeue=True):
            raise LookupError
    assert await draining is True


# Many tasks


async def test_many_workers_lose_nothing_and_never_share_an_item(clock: FakeClock) -> None:
    queue: WorkQueue[int] = WorkQueue(
        clock=clock, rate_limiter=ItemExponentialFailureRateLimiter(0.001, 0.01)
    )
    in_process: set[int] = set()
    worked: Counter[int] = Counter()

    async def work() -> None:
        while True:
            try:
                async with queue.item(requeue=True) as item:
                    assert item not in in_process
                    in_process.add(item)
                    try:
                        await clock.sleep(0.001 * (item % 3))
                        worked[item] += 1
                        if worked[item] % 4:
                            raise LookupError
                    finally:
                        in_process.remove(item)
            except LookupError:
                continue
            except QueueClosedError:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(work())
        for number in range(500):
            queue.add(number % 100)
            queue.add_after(number % 100, 0.0001 * (number % 7))
            if number % 50 == 0:
                await clock.advance(0.001)
        await clock.advance(60)
        assert await queue.shut_down_with_drain(10)
    assert in_process == set()
    # A fourth success and only that ends an item's retries.
    assert sorted(worked) == list(range(100))
    assert all(count >= 4 and count % 4 == 0 for count in worked.values())
