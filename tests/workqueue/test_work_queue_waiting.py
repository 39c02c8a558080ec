"""Delayed items."""

import asyncio
import math

import pytest

from listwatch.clock import FakeClock
from listwatch.workqueue.rate_limiters import (
    ItemFastSlowRateLimiter,
)
from listwatch.workqueue.work_queue import WorkQueue
from workqueue.taking import take_all


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
    with pytest.raises(
        ValueError, match=r"'a' can't be delayed by .* seconds: use a finite number"
    ):
        queue.add_after("a", seconds)

    class Nonsense(ItemFastSlowRateLimiter[str]):
        def when(self, item: str, /) -> float:
            del item
            return seconds

    limited: WorkQueue[str] = WorkQueue(clock=clock, rate_limiter=Nonsense(1, 1, 1))
    with pytest.raises(
        ValueError, match=r"'a' can't be delayed by .* seconds: use a finite number"
    ):
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
    # the clock shows only the next timer
    assert sum(timer.callback is not None for _, _, timer in clock._timers) == 1


async def test_a_timer_that_fires_early_makes_nothing_due_and_is_set_again(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5)
    clock.stall(4.999)
    queue._on_timer()  # like a timer that fires early or late
    assert (len(queue), queue.statistics().waiting) == (0, 1)
    await clock.advance(0.001)
    assert await take_all(queue) == ["a"]


async def test_earlier_times_and_ended_waits_leave_no_entries_behind(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for number in range(10_000):
        queue.add_after("a", 100_000 - number)
    assert len(queue._heap) <= 2 + 64  # a leak shows nowhere else
    await clock.advance(100_000)
    # a leak shows nowhere else
    assert (len(queue._heap), len(queue._waiting), clock.next_timer) == (0, 0, None)


async def test_a_crowd_that_falls_due_at_once_comes_in_batches_in_order(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    for number in range(2500):
        queue.add_after(f"{number}", 1)
    clock.stall(1)
    queue._on_timer()  # like a timer that fires early or late
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
        queue.add_rate_limited("a")  # each call spends a token, though the item is queued once
    queue.add_rate_limited("b")
    await clock.advance(0.08)
    assert "b" in queue._waiting  # no statistic shows which item waits
