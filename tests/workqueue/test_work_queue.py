import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.workqueue.priority_queue import PriorityQueue
from listwatch.workqueue.rate_limiters import (
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
)
from listwatch.workqueue.work_queue import WorkQueue
from workqueue.taking import take_all

# Add, get, done


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
    """A clock on a slow machine: 10 ms pass between two readings."""

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
    key: str = ["a"]  # type: ignore[assignment]  # as a caller without a type checker may do
    for add in (queue.add, queue.add_rate_limited, lambda item: queue.add_after(item, 1)):
        with pytest.raises(TypeError, match="a list is not hashable and can't be queued"):
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
                clock.stall(0.001)

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
    # Only every fourth try of an item succeeds.
    assert sorted(worked) == list(range(100))
    assert all(count >= 4 and count % 4 == 0 for count in worked.values())
