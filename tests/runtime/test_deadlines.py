"""The outcome of a reconcile that fails or takes too long, however it reacts."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable

import pytest

from listwatch.runtime.reconciler import Reconciler
from listwatch.runtime.results import Result, TerminalError, is_terminal, requeue_after
from runtime.reconciler_world import World, widget


async def late_result(reconciler: Reconciler) -> Result | None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return requeue_after(1000) if reconciler.queue else None
    return None


async def late_nothing(_: Reconciler) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0)


async def late_error(_: Reconciler) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("from the time-out") from None


async def late_group(_: Reconciler) -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError("inner") from None

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


async def plainly_late(_: Reconciler) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "function", [late_result, late_nothing, late_error, late_group, plainly_late]
)
async def test_what_counts_is_the_deadline(
    function: Callable[[Reconciler], Awaitable[Result | None]],
) -> None:
    world = World(timeout=5)
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    calls: list[str] = []

    @world.reconciler
    async def reconcile(key: str) -> Result | None:
        calls.append(key)
        return await function(world.reconciler) if len(calls) == 1 else None

    async with world.running() as reconciler:
        await world.clock.advance(5)
        state = reconciler.statistics()
        assert (state.timeouts, state.errors, state.terminal_errors) == (1, 1, 0)
        assert (state.requeues, calls) == (0, ["ns/a"] * 2)
        assert (state.successes, state.active) == (1, 0)


async def test_a_terminal_error_after_the_deadline_stays_terminal() -> None:
    world = World(timeout=5)
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    calls: list[str] = []

    @world.reconciler
    async def reconcile(key: str) -> None:
        calls.append(key)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TerminalError("no use") from None

    async with world.running() as reconciler:
        await world.clock.advance(100)
        state = reconciler.statistics()
        assert (state.timeouts, state.terminal_errors, calls) == (1, 1, ["ns/a"])


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


TERMINAL = TerminalError("never")


@pytest.mark.parametrize(
    ("error", "terminal"),
    [
        (TERMINAL, True),
        (ExceptionGroup("g", [TERMINAL]), True),
        (ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [KeyError(), TERMINAL])]), True),
        (caused(ValueError("x"), TERMINAL), True),
        (caused(ValueError("x"), ExceptionGroup("g", [caused(KeyError(), TERMINAL)])), True),
        (ValueError("x"), False),
        (ExceptionGroup("g", [ValueError()]), False),
        (caused(ValueError("x"), KeyError("y")), False),
    ],
)
async def test_a_terminal_error_is_found_wherever_it_is(
    error: Exception, *, terminal: bool
) -> None:
    assert is_terminal(error) is terminal
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    world.outcomes["ns/a"] = [error]
    async with world.running() as reconciler:
        await world.clock.advance(10)
        assert len(world.calls) == (1 if terminal else 2)
        assert reconciler.statistics().terminal_errors == int(terminal)


def test_causes_that_go_in_a_circle_come_to_an_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_terminal(first)


def test_a_terminal_error_while_another_is_handled_is_not_its_cause() -> None:
    """Only `raise … from` makes one error the cause of another."""
    error = ValueError("in the handler")
    error.__context__ = TERMINAL
    assert not is_terminal(error)


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancellation_at_any_moment_leaves_no_coroutine_that_was_never_awaited(
    turns: int,
) -> None:
    world = World()
    world.reconciler.for_("widget")

    @world.reconciler
    async def reconcile(_: str) -> None:
        await asyncio.sleep(0)

    await world.reconciler.prepare(world)
    world.caches.open(world)
    caches = asyncio.ensure_future(world.caches.run())
    running = asyncio.ensure_future(world.reconciler.run())
    await world.clock.advance(1)
    gc.collect()  # what others have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world.reconciler.enqueue("ns/a")
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        caches.cancel()
        await asyncio.wait({running, caches})
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


# --- Keys that were never seen ---


async def test_keys_that_were_never_seen_are_counted_once() -> None:
    """Such as keys of objects that were deleted unseen, and left something behind."""
    world = World()
    world.reconciler.for_("widget", predicates=[lambda _: False])
    world.source("widget").add(widget("there"))
    async with world.running() as reconciler:
        for key in ("ns/gone", "ns/there", "ns/gone"):
            reconciler.enqueue(key)
            await world.clock.advance(1)
        assert reconciler.statistics().unseen == 1
        world.source("widget").delete("ns/there")
        await world.clock.advance(1)
        reconciler.enqueue("ns/there")
        await world.clock.advance(1)
        assert world.calls[-1] == "ns/there"
        assert reconciler.statistics().unseen == 1


async def test_a_reconciler_that_is_for_nothing_counts_no_unseen_keys() -> None:
    world = World()
    async with world.running() as reconciler:
        reconciler.enqueue("any")
        await world.clock.advance(1)
        assert (world.calls, reconciler.statistics().unseen) == (["any"], 0)
