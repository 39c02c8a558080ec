import asyncio
import math

import pytest

from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.workqueue.priority_queue import LOW_PRIORITY, PriorityQueue
from listwatch.workqueue.rate_limiters import ItemFastSlowRateLimiter
from workqueue.taking import take_all


@pytest.fixture
def queue(clock: FakeClock) -> PriorityQueue[str]:
    return PriorityQueue(name="test", clock=clock)


async def test_higher_comes_first_and_within_a_priority_first_in_first_out(
    queue: PriorityQueue[str],
) -> None:
    for item, priority in (("l1", -5), ("m1", 0), ("h1", 5), ("l2", -5), ("h2", 5), ("m2", 0)):
        queue.add(item, priority=priority)
    assert await take_all(queue) == ["h1", "h2", "m1", "m2", "l1", "l2"]


async def test_what_came_with_the_initial_list_comes_after_what_happens_now(
    queue: PriorityQueue[str],
) -> None:
    assert LOW_PRIORITY == -100
    for number in range(3):
        queue.add(f"listed{number}", priority=LOW_PRIORITY)
    queue.add("changed")
    assert await take_all(queue) == ["changed", "listed0", "listed1", "listed2"]


async def test_added_again_an_item_has_its_highest_priority_and_is_there_once(
    queue: PriorityQueue[str],
) -> None:
    queue.add("a", priority=1)
    queue.add("b", priority=2)
    queue.add("a", priority=3)
    queue.add("a", priority=-3)
    assert len(queue) == 2
    assert await queue.get() == "a"
    assert queue.priority_of("a") == 3
    assert await take_all(queue) == ["b"]


async def test_a_raised_priority_moves_an_item_to_the_end_of_that_level(
    queue: PriorityQueue[str],
) -> None:
    queue.add("a", priority=0)
    queue.add("b", priority=1)
    queue.add("a", priority=1)
    queue.add("c", priority=1)
    assert await take_all(queue) == ["b", "a", "c"]


async def test_the_same_priority_again_leaves_an_item_in_its_place(
    queue: PriorityQueue[str],
) -> None:
    for item in "aba":
        queue.add(item, priority=1)
    assert await take_all(queue) == ["a", "b"]


async def test_added_for_several_times_the_earliest_counts(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5)
    queue.add_after("a", 3)
    queue.add_after("a", 4)
    await clock.advance(3)
    assert await take_all(queue) == ["a"]
    await clock.advance(10)
    assert len(queue) == 0


async def test_added_now_a_waiting_item_comes_now_and_only_once(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5, priority=7)
    queue.add("a")
    assert await queue.get() == "a"
    assert queue.priority_of("a") == 7
    queue.done("a")
    assert queue.statistics().waiting == 0
    await clock.advance(10)
    assert len(queue) == 0


async def test_a_due_item_stays_due_when_added_for_later_and_takes_the_priority(
    queue: PriorityQueue[str],
) -> None:
    queue.add("a")
    queue.add("b", priority=1)
    queue.add_after("a", 5, priority=2)
    assert queue.statistics().waiting == 0
    assert await take_all(queue) == ["a", "b"]


async def test_becoming_due_puts_an_item_last_in_its_level(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add_after("waited", 1)
    queue.add("early")
    await clock.advance(1)
    queue.add("late")
    assert await take_all(queue) == ["early", "waited", "late"]


async def test_a_waiting_item_does_not_hold_up_lower_ones(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add_after("high", 1, priority=10)
    queue.add("low", priority=-10)
    assert await take_all(queue) == ["low"]
    await clock.advance(1)
    assert await take_all(queue) == ["high"]


async def test_an_item_added_while_processed_comes_again_after_done_with_its_new_priority(
    queue: PriorityQueue[str],
) -> None:
    queue.add("a", priority=5)
    async with queue.item():
        queue.add("a", priority=-1)
        queue.add("a", priority=-2)
        queue.add("b")
        assert (len(queue), queue.priority_of("a")) == (1, 5)
    assert await queue.get() == "b"
    assert await queue.get() == "a"
    assert queue.priority_of("a") == -1


async def test_rate_limited_and_after_is_the_earlier_of_both(clock: FakeClock) -> None:
    for after, expected in ((10.0, 3.0), (1.0, 1.0), (0.0, 3.0), (None, 3.0), (-1.0, 0.0)):
        queue: PriorityQueue[str] = PriorityQueue(
            clock=clock, rate_limiter=ItemFastSlowRateLimiter(3, 3, 1)
        )
        queue.add_with("a", after=after, rate_limited=True)
        waits = 0.0
        while not len(queue):
            await clock.advance(0.5)
            waits += 0.5
        assert waits == expected


async def test_by_default_items_are_limited_one_by_one_without_a_common_bucket(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    for number in range(1000):
        queue.add_rate_limited(f"{number}")
    await clock.advance(0.005)
    assert len(queue) == 1000
    assert await take_all(queue) == [f"{number}" for number in range(1000)]
    queue.add_rate_limited("0")
    await clock.advance(0.009)
    assert len(queue) == 0
    await clock.advance(0.001)
    assert len(queue) == 1


async def test_a_failed_item_comes_again_with_the_priority_it_had(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add("a", priority=-7)
    with pytest.raises(LookupError):
        async with queue.item(requeue=True):
            raise LookupError
    assert queue.num_requeues("a") == 1
    await clock.advance(0.005)
    async with queue.item(requeue=True) as item:
        assert (item, queue.priority_of(item)) == ("a", -7)
    assert queue.num_requeues("a") == 0


async def test_a_cancelled_item_comes_again_at_once_with_its_priority(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add("a", priority=4)

    async def work() -> None:
        async with queue.item(requeue=True):
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await clock.settle()
    working.cancel()
    await asyncio.wait([working])
    assert queue.statistics().depth_by_priority == {4: 1}


async def test_an_item_put_back_has_the_higher_of_its_priorities_and_does_not_wait(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add("a", priority=3)
    item = await queue.get()
    queue.add_after(item, 5, priority=1)
    queue.put_back(item)
    state = queue.statistics()
    assert (state.depth_by_priority, state.waiting) == ({3: 1}, 0)
    assert clock.next_timer is not None  # it finds nothing
    await clock.advance(5)
    assert await take_all(queue) == ["a"]


async def test_priority_of_an_item_that_no_worker_has_is_an_error(
    queue: PriorityQueue[str],
) -> None:
    queue.add("a")
    with pytest.raises(ValueError, match=r"priority_of\('a'\): no worker has taken it"):
        queue.priority_of("a")
    with pytest.raises(ValueError, match="no worker has taken it"):
        queue.done("a")
    with pytest.raises(ValueError, match="no worker has taken it"):
        queue.put_back("a")


@pytest.mark.parametrize("seconds", [math.inf, math.nan])
async def test_a_time_that_never_comes_is_refused_and_changes_nothing(
    queue: PriorityQueue[str], seconds: float
) -> None:
    with pytest.raises(ValueError, match="use a finite number"):
        queue.add_after("a", seconds)
    with pytest.raises(TypeError, match="a list is not hashable"):
        queue.add(["a"])  # type: ignore[arg-type]  # as a caller without a type checker may do
    state = queue.statistics()
    # a leaked priority shows only in a later add
    assert (state.depth, state.waiting, state.retries, queue._priority) == (0, 0, 0, {})


@pytest.mark.parametrize("priority", [None, "high", 1.5, math.nan])
async def test_a_priority_that_is_no_integer_is_refused_and_changes_nothing(
    queue: PriorityQueue[str], priority: int
) -> None:
    for add in (queue.add, lambda item, priority: queue.add_after(item, 1, priority=priority)):
        with pytest.raises(TypeError, match=r"the priority of 'a' must be an int, not "):
            add("a", priority=priority)
    assert queue._priority == {}  # a leaked priority shows only in a later add
    queue.add("b")
    assert await take_all(queue) == ["b"]


async def test_waits_ended_by_an_add_leave_little_behind(queue: PriorityQueue[str]) -> None:
    for number in range(1000):
        queue.add_after(f"{number}", 60)
        queue.add(f"{number}")
    assert (queue.statistics().waiting, len(queue)) == (0, 1000)
    assert len(queue._heap) <= 64  # a leak shows nowhere else


# Ageing


async def test_one_take_in_four_is_for_the_oldest_once_it_is_over_age(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    for number in range(3):
        queue.add(f"low{number}", priority=LOW_PRIORITY)
    await clock.advance(30.1)
    for number in range(12):
        queue.add(f"high{number}")
    taken = [await queue.get() for _ in range(12)]
    assert [item for item in taken if item.startswith("low")] == ["low0", "low1", "low2"]
    assert [index for index, item in enumerate(taken) if item.startswith("low")] == [3, 7, 11]
    assert await take_all(queue) == ["high9", "high10", "high11"]


async def test_below_its_age_the_low_item_waits(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    await clock.advance(100)
    queue.add("low", priority=LOW_PRIORITY)
    await clock.advance(30)
    for number in range(20):
        queue.add(f"{number}")
    assert (await take_all(queue))[-1] == "low"


async def test_under_a_steady_stream_of_urgent_items_a_low_one_is_served(
    clock: FakeClock,
) -> None:
    queue: PriorityQueue[str] = PriorityQueue(clock=clock, ageing=5)
    queue.add("low", priority=LOW_PRIORITY)
    served_at = None
    for number in range(1000):
        queue.add(f"{number}")
        queue.add(f"again{number}")
        await clock.advance(0.01)
        async with queue.item() as item:
            if item == "low":
                served_at = clock.now()
    assert served_at == pytest.approx(5.01, abs=0.04)


async def test_with_an_age_of_0_any_moment_is_long_enough(clock: FakeClock) -> None:
    queue: PriorityQueue[str] = PriorityQueue(clock=clock, ageing=0)
    queue.add("low", priority=LOW_PRIORITY)
    await clock.advance(0.001)
    for number in range(5):
        queue.add(f"{number}")
    assert await take_all(queue) == ["0", "1", "2", "low", "3", "4"]


async def test_without_ageing_priority_alone_counts(clock: FakeClock) -> None:
    queue: PriorityQueue[str] = PriorityQueue(clock=clock, ageing=None)
    queue.add("low", priority=LOW_PRIORITY)
    await clock.advance(1e6)
    for number in range(20):
        queue.add(f"{number}")
    assert (await take_all(queue))[-1] == "low"
    assert len(queue._by_priority._by_age) == 0  # a leak shows nowhere else


@pytest.mark.parametrize("ageing", [-1.0, math.nan])
def test_an_age_below_0_is_refused(ageing: float) -> None:
    with pytest.raises(ValueError, match="ageing must be 0 seconds or more"):
        PriorityQueue(ageing=ageing)


async def test_taken_and_moved_items_leave_little_behind_an_old_low_one(
    queue: PriorityQueue[str],
) -> None:
    queue.add("low", priority=LOW_PRIORITY)
    for number in range(5000):
        queue.add("moved", priority=number)
        queue.add(f"{number}", priority=5000)
        async with queue.item():
            pass
    order = queue._by_priority  # to look for leaks
    assert len(queue) == 2
    assert len(order._heap) <= 2 * 2 + 64 + 1  # a leak shows nowhere else
    assert len(order._by_age) <= 2 * 2 + 64 + 1  # a leak shows nowhere else
    assert sorted(await take_all(queue)) == ["low", "moved"]
    assert order.depths == {}


# Shutting down


async def test_a_drain_works_as_in_a_work_queue(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add("low", priority=-1)
    queue.add("high")
    queue.add_after("later", 5)
    draining = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    queue.add("refused")
    assert await take_all(queue) == ["high", "low"]
    await clock.advance(5)
    assert await take_all(queue) == ["later"]
    assert await draining is True
    with pytest.raises(QueueClosedError):
        await queue.get()


async def test_an_item_put_back_in_a_drain_in_place_of_its_wait_ends_the_other_workers_wait(
    queue: PriorityQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    item = await queue.get()
    queue.add_after(item, 1000)
    getting = [asyncio.ensure_future(queue.get()) for _ in range(2)]
    draining = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    queue.put_back(item)
    assert await getting[0] == "a"
    await clock.settle()
    assert getting[1].done()
    with pytest.raises(QueueClosedError):
        await getting[1]
    queue.done("a")
    assert await draining is True


async def test_shut_down_twice_is_harmless_and_forgets_the_waiting(
    queue: PriorityQueue[str],
) -> None:
    queue.add("a", priority=2)
    queue.add_after("b", 5, priority=1)
    queue.shut_down()
    queue.shut_down()
    assert queue._priority == {"a": 2}  # a leaked priority shows only in a later add
    assert await take_all(queue) == ["a"]


async def test_statistics_tell_the_depth_of_every_priority(queue: PriorityQueue[str]) -> None:
    for item, priority in (("a", 0), ("b", 0), ("c", -100), ("d", 3)):
        queue.add(item, priority=priority)
    queue.add_after("waiting", 5, priority=9)
    state = queue.statistics()
    assert (state.depth, state.waiting) == (4, 1)
    assert state.depth_by_priority == {0: 2, -100: 1, 3: 1}
