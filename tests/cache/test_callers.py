"""A handler gets one change at a time, and may wait, raise, or be cancelled."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from listwatch.cache.callers import Caller, ThreadedCaller
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import Added, HandlerFuncs
from listwatch.clock import FakeClock
from listwatch.objects import Object


def added(*names: str) -> list[Added]:
    return [Added(Object.from_dict({"metadata": {"name": name}})) for name in names]


def caller(on_add: Any, clock: FakeClock, failures: list[Failure]) -> Caller:
    def on_error(failure: Failure) -> None:
        assert isinstance(failure, Failure)
        failures.append(failure)

    return Caller(HandlerFuncs(on_add), on_error=on_error, clock=clock, name="one")


async def test_a_coroutine_is_awaited_before_the_next_call() -> None:
    clock, told = FakeClock(), list[str]()

    async def on_add(obj: Object, _: bool) -> None:
        told.append(f"begin {obj.name}")
        await clock.sleep(1)
        told.append(f"end {obj.name}")

    telling = asyncio.ensure_future(caller(on_add, clock, []).deliver(added("a", "b")))
    await clock.advance(2)
    await telling
    assert told == ["begin a", "end a", "begin b", "end b"]


async def test_what_is_thrown_into_a_waiting_coroutine_is_its_own_to_handle() -> None:
    clock, told = FakeClock(), list[str]()
    broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def on_add(_: Object, __: bool) -> None:
        try:
            await broken
        except ValueError:
            told.append("caught")
        await clock.sleep(1)
        told.append("went on")

    telling = asyncio.ensure_future(caller(on_add, clock, []).deliver(added("a")))
    await clock.settle()
    broken.set_exception(ValueError("no"))
    await clock.advance(1)
    await telling
    assert told == ["caught", "went on"]


async def test_a_cancellation_reaches_the_coroutine_and_ends_the_telling() -> None:
    clock, told = FakeClock(), list[str]()

    async def on_add(obj: Object, _: bool) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(f"cleaned up {obj.name}")

    one = caller(on_add, clock, [])
    telling = asyncio.ensure_future(one.deliver(added("a", "b")))
    await clock.settle()
    assert one.statistics().running_seconds == 0.0
    await clock.advance(3)
    assert one.statistics().running_seconds == 3.0
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    assert told == ["cleaned up a"]
    assert one.statistics().running_seconds == 0.0


async def test_any_awaitable_is_awaited() -> None:
    clock, told = FakeClock(), list[str]()

    class Waiting:
        def __await__(self) -> Generator[Any, Any, None]:
            yield from asyncio.sleep(0).__await__()
            told.append("awaited")

    await caller(lambda _, __: Waiting(), clock, []).deliver(added("a"))
    assert told == ["awaited"]


async def test_nothing_more_is_told_once_it_is_not_wanted() -> None:
    told: list[str] = []

    def on_add(obj: Object, _: bool) -> None:
        told.append(obj.name)

    one = caller(on_add, FakeClock(), [])
    await one.deliver(added("a", "b", "c"), lambda: len(told) < 2)
    assert told == ["a", "b"]


async def test_many_changes_let_other_tasks_run() -> None:
    class Passing(FakeClock):
        def now(self) -> float:
            self._now += 0.002
            return self._now

    clock, turns = Passing(), list[int]()
    told: list[str] = []

    async def other() -> None:
        while len(told) < 100:
            assert len(turns) < 10_000
            turns.append(len(told))
            await asyncio.sleep(0)

    one = caller(lambda obj, _: told.append(obj.name), clock, [])
    await asyncio.gather(one.deliver(added(*(f"p{i}" for i in range(100)))), other())
    assert len(turns) > 10


async def test_a_failure_names_the_handler_and_the_key() -> None:
    failures: list[Failure] = []

    def on_add(_: Object, __: bool) -> None:
        raise KeyError("x")

    await caller(on_add, FakeClock(), failures).deliver(added("a"))
    assert str(failures[0]) == "one: handler of added a: 'x'"


async def test_a_handler_that_waits_for_what_was_cancelled_has_failed_and_is_told_the_rest() -> (
    None
):
    failures, told = list[Failure](), list[str]()
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()

    async def on_add(obj: Object, _: bool) -> None:
        told.append(obj.name)
        if obj.name == "a":
            await cancelled

    await caller(on_add, FakeClock(), failures).deliver(added("a", "b"))
    assert told == ["a", "b"]
    assert [str(failure) for failure in failures] == [
        "one: handler of added a: an awaited task or future was cancelled"
    ]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_whatever_a_handler_raises_on_its_thread_is_reported_and_it_is_told_the_rest(
    error: BaseException,
) -> None:
    failures, told = list[Failure](), list[str]()

    def on_add(obj: Object, _: bool) -> None:
        told.append(obj.name)
        if obj.name == "a":
            raise error

    threaded = ThreadedCaller(HandlerFuncs(on_add), on_error=failures.append, clock=FakeClock())
    await asyncio.wait_for(threaded.deliver(added("a", "b")), 10)
    threaded.close()
    assert told == ["a", "b"]
    assert [(failure.key, failure.error) for failure in failures] == [("a", error)]
