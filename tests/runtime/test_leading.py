"""A leader takes no step of its work once another process may lead."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from listwatch.clock import FakeClock
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError, WhileLeading
from listwatch.runtime.results import Result
from listwatch.testing.waiting import eventually
from runtime.reconciler_world import World, widget


def guard_for(seconds: float, clock: FakeClock) -> LeadershipGuard:
    guard = LeadershipGuard("a", 0, [clock.now])
    guard.extend([clock.now()], seconds)
    return guard


class Gap:
    """A process that is paused beyond its lease: only the clock advances."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.guard = guard_for(10, self.clock)
        self.ready = asyncio.Event()

    def stop_and_continue(self) -> None:
        self.clock.stall(60)  # no timer has run yet
        self.ready.set()  # but a response has arrived


async def waiter(gap: Gap, steps: list[str]) -> str:
    try:
        steps.append("begun")
        await gap.ready.wait()
        steps.append("acted")
    except asyncio.CancelledError:
        steps.append("cancelled")
        await asyncio.sleep(0)
        steps.append("cleaned up")
        raise
    return "done"


async def test_work_gets_its_cancellation_in_place_of_another_step() -> None:
    gap, steps = Gap(), list[str]()
    task = asyncio.ensure_future(WhileLeading(waiter(gap, steps), gap.guard))
    await asyncio.sleep(0)
    gap.stop_and_continue()
    for _ in range(5):
        await asyncio.sleep(0)
    assert steps == ["begun"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["begun", "cancelled", "cleaned up"]


async def test_work_that_leads_ends_and_fails_as_it_would() -> None:
    gap, steps = Gap(), list[str]()
    gap.ready.set()
    assert await WhileLeading(waiter(gap, steps), gap.guard) == "done"

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await WhileLeading(fail(), gap.guard)

    async def raises_and_catches() -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, KeyError("x"))
        try:
            await future
        except KeyError:
            await asyncio.sleep(0)
        return "went on"

    assert await WhileLeading(raises_and_catches(), gap.guard) == "went on"


async def test_work_that_never_leads_runs_nothing() -> None:
    gap, steps = Gap(), list[str]()
    gap.guard.end("for the test")
    task = asyncio.ensure_future(WhileLeading(waiter(gap, steps), gap.guard))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), steps) == (True, [])


async def test_work_may_end_well_after_its_cancellation() -> None:
    gap = Gap()

    async def swallow() -> str:
        try:
            await gap.ready.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "ended"

    task = asyncio.ensure_future(WhileLeading(swallow(), gap.guard))
    await asyncio.sleep(0)
    gap.stop_and_continue()
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "ended"


Function = Callable[[str], Awaitable[Result | None]] | Callable[[str], Result | None]


@pytest.mark.parametrize("kind", ["async", "plain", "threaded"])
async def test_no_reconcile_begins_or_goes_on_after_the_gap(kind: str) -> None:
    world = World(threaded=kind == "threaded")
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    guard = guard_for(10, world.clock)
    ready, calls = asyncio.Event(), list[str]()

    async def wait(key: str) -> None:
        calls.append(f"begun {key}")
        await ready.wait()
        calls.append(f"acted {key}")

    def note(key: str) -> None:
        calls.append(f"begun {key}")

    function: Function = wait if kind == "async" else note
    world.reconciler(function)
    await world.reconciler.prepare(world)
    world.caches.open(world)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(world.caches.run()),
            group.create_task(world.reconciler.run(guard)),
        ]
        await world.clock.advance(1)
        await eventually(lambda: calls, "the thread has called")
        world.source("widget").add(widget("b"))
        world.clock.stall(60)
        ready.set()
        await world.clock.settle()
        assert calls == ["begun ns/a"]
        assert world.reconciler.statistics().errors == 0
        for task in tasks:
            task.cancel()


def test_the_guard_of_a_process_without_an_election_agrees_until_its_end() -> None:
    guard = LeadershipGuard.unlimited("a")
    guard.check()
    assert guard.is_leader
    guard.end("it stopped")
    with pytest.raises(LeadershipLostError, match="it stopped"):
        guard.check()
