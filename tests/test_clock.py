import asyncio

import pytest

from listwatch.clock import Clock, FakeClock


async def test_fake_timers_run_in_the_order_of_their_times_and_then_of_their_setting() -> None:
    clock = FakeClock(now=0)
    seen: list[tuple[str, float]] = []

    def note(name: str) -> None:
        seen.append((name, clock.now()))

    clock.call_later(2, note, "c")
    clock.call_later(1, note, "a")
    clock.call_later(1, note, "b")
    cancelled = clock.call_later(1, note, "never")
    cancelled.cancel()
    assert clock.next_timer == 1
    await clock.advance(1.5)
    assert seen == [("a", 1), ("b", 1)]
    assert (clock.now(), clock.next_timer) == (1.5, 0.5)
    await clock.advance(0.5)
    assert seen[2:] == [("c", 2)]
    assert clock.next_timer is None


async def test_tasks_run_between_two_timers_of_one_advance() -> None:
    clock = FakeClock(now=0)
    seen: list[float] = []

    async def tick() -> None:
        for _ in range(3):
            await clock.sleep(1)
            seen.append(clock.now())

    task = asyncio.create_task(tick())
    await clock.advance(10)
    assert (seen, task.done(), clock.now()) == ([1, 2, 3], True, 10)


async def test_wall_time_moves_with_the_clock_and_can_jump_alone() -> None:
    clock = FakeClock(now=5, time=100)
    await clock.advance(2)
    assert (clock.now(), clock.time()) == (7, 102)
    clock.set_time(50)
    assert (clock.now(), clock.time()) == (7, 50)


async def test_a_timeout_cancels_its_body_and_raises_timeout_error() -> None:
    clock = FakeClock(now=0)

    async def body() -> str:
        try:
            async with clock.timeout(3):
                await asyncio.Event().wait()
        except TimeoutError:
            return f"timed out at {clock.now():g}"
        return "no"

    task = asyncio.create_task(body())
    await clock.advance(5)
    assert task.result() == "timed out at 3"
    assert task.cancelling() == 0


async def test_a_postponed_timeout_counts_from_the_postponement() -> None:
    clock = FakeClock(now=0)
    ended: list[float] = []

    async def body() -> None:
        try:
            async with clock.timeout(3) as limit:
                await clock.sleep(2)
                limit.postpone(3)
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(clock.now())

    async with asyncio.TaskGroup() as group:
        group.create_task(body())
        await clock.advance(10)
    assert ended == [5]


async def test_a_cancellation_from_outside_passes_through_a_timeout() -> None:
    clock = FakeClock()

    async def body() -> None:
        async with clock.timeout(3):
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await clock.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.next_timer is None


async def test_a_cancellation_from_outside_wins_over_the_time_out_of_the_same_instant() -> None:
    clock = FakeClock()

    limit = clock.timeout(3)

    async def body() -> None:
        async with limit:
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await clock.settle()
    limit._expire()  # like a timer that fires too early
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_real_clock_times_out_too() -> None:
    clock = Clock()
    with pytest.raises(TimeoutError):
        async with clock.timeout(0.001):
            await asyncio.Event().wait()
    async with clock.timeout(None) as limit:
        await clock.sleep(0)
    assert limit.expired is False


async def test_a_cancelled_sleep_leaves_no_timer() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(10))
    await clock.settle()
    assert clock.next_timer == 10
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.next_timer is None
