"""Shutting down a queue, with and without draining."""

import asyncio
import contextlib

import pytest

from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.workqueue.work_queue import WorkQueue
from workqueue.taking import take_all


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
    assert (clock.next_timer, queue._heap) == (None, [])  # a leak shows nowhere else
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
    timer = clock._timers[0][2]  # the clock shows only the next timer
    assert timer.callback is not None
    queue.done(item)
    timer.callback()  # in the same turn of the loop
    assert await draining is True
    clock._timers.clear()  # the clock shows only the next timer


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
