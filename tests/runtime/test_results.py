"""What a reconcile may return, and when its key is due again."""

import threading

import pytest

from listwatch.runtime.metrics import Measured, collect
from listwatch.runtime.results import Result, TerminalError, requeue, requeue_after
from metric_samples import samples_of
from runtime.reconciler_world import World, widget


async def test_a_requeue_has_the_growing_delays_of_a_failure_without_an_error() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    world.outcomes["ns/a"] = [requeue()] * 10
    async with world.running() as reconciler:
        # 5, 10, 20 ms … apart: the eighth call comes after 0.635 s, the last one after 5.115 s.
        assert len(world.calls) == 8
        await world.clock.advance(1)
        assert len(world.calls) == 9
        await world.clock.advance(5)
        assert len(world.calls) == 11
        state = reconciler.statistics()
        assert (state.limited_requeues, state.errors, state.successes) == (10, 0, 1)
        assert reconciler.queue.num_requeues("ns/a") == 0


async def test_a_result_sets_the_priority_of_the_next_reconcile() -> None:
    world = World()
    priorities: list[int] = []
    results = [requeue_after(1, priority=7), requeue(priority=-3), requeue_after(1), None]

    @world.reconciler
    async def note(key: str) -> Result | None:
        priorities.append(world.reconciler.queue.priority_of(key))
        return results[len(priorities) - 1]

    async with world.running() as reconciler:
        reconciler.enqueue("ns/a", priority=5)
        await world.clock.advance(5)
        assert priorities == [5, 7, -3, -3]


async def test_a_reset_gives_a_failing_key_its_shortest_delay_again() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    world.outcomes["ns/a"] = [TimeoutError("cloud")] * 100
    async with world.running() as reconciler:
        await world.clock.advance(600)
        before = len(world.calls)
        thread = threading.Thread(target=reconciler.reset_backoff, args=("ns/a",))
        thread.start()
        thread.join()
        await world.clock.settle()
        reconciler.enqueue("ns/a")
        await world.clock.advance(0.1)
        assert len(world.calls) - before == 5  # at once, then after 5, 10, 20 and 40 ms


async def test_only_unexpected_exceptions_count_as_panics() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.outcomes["x"] = [KeyError("spec"), TimeoutError("slow"), TerminalError("no"), None]
    async with world.running() as reconciler:
        for _ in range(4):
            reconciler.enqueue("x")
            await world.clock.advance(1)
        state = reconciler.statistics()
        assert (state.errors, state.panics, state.terminal_errors) == (3, 1, 1)
        measured = Measured(lambda: [state], list, lambda: None, lambda: None)
        samples = samples_of(collect(measured))
        assert samples["controller_runtime_reconcile_panics_total", "test"] == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"requeue": True, "requeue_after": 1.0}, ValueError),
        ({"priority": "high"}, TypeError),
        ({"requeue_after": float("nan")}, ValueError),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(
    wrong: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Result(**wrong)  # type: ignore[arg-type]  # wrong on purpose
