"""The event loop with virtual time."""

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Awaitable, Callable

import pytest

from listwatch.simulation.determinism import EPOCH, Machine
from listwatch.simulation.loop import (
    EndlessWorkError,
    SimulationError,
    VirtualLoop,
    current_process,
)

Main = Callable[[], Awaitable[object]]


class AliveProcess:
    runs = True
    skew = 0.0

    def keep(self, handle: asyncio.Handle) -> None:
        raise AssertionError(handle)


@pytest.fixture
def run(machine: Machine) -> Callable[..., object]:
    def run(main: Main, *, seed: int = 0, order: random.Random | None = None) -> object:
        loop = VirtualLoop(order=order, max_steps=5000)
        with machine.running(loop, seed):
            try:
                return loop.run_until_complete(main())
            finally:
                loop.abandon()
                loop.close()

    return run


def test_a_sleep_takes_virtual_time_alone(run: Callable[..., object], machine: Machine) -> None:
    began = machine.stopwatch()

    async def main() -> float:
        before = time.monotonic()
        await asyncio.sleep(3600.0)
        return time.monotonic() - before

    assert run(main) == pytest.approx(3600.0)
    assert machine.stopwatch() - began < 60.0


def test_timers_of_one_instant_run_in_the_order_they_were_set(run: Callable[..., object]) -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(20):
            loop.call_at(5.0, seen.append, number)
        await asyncio.sleep(6.0)
        return seen

    assert run(main) == list(range(20))


def test_sets_of_tasks_have_one_order(run: Callable[..., object]) -> None:
    async def main() -> list[str]:
        async def nothing() -> None: ...

        tasks = {asyncio.create_task(nothing(), name=str(number)) for number in range(50)}
        await asyncio.wait(tasks)
        return [task.get_name() for task in tasks]

    assert run(main) == run(main)


def test_clocks_and_chance_are_those_of_the_world(run: Callable[..., object]) -> None:
    async def main() -> tuple[object, ...]:
        chance = random.random(), random.Random().random()
        return time.time(), time.time_ns(), uuid.uuid4(), *chance

    first = run(main, seed=1)
    assert run(main, seed=1) == first
    assert run(main, seed=2) != first
    assert isinstance(first, tuple)
    assert first[0] == EPOCH


def test_datetime_now_is_virtual(run: Callable[..., object]) -> None:
    async def main() -> float:
        import datetime as dt

        await asyncio.sleep(10.0)
        return dt.datetime.now(dt.UTC).timestamp()

    assert run(main) == pytest.approx(EPOCH + 10.0)


def test_a_seed_changes_the_order_of_ready_tasks_and_the_same_seed_repeats_it(
    run: Callable[..., object],
) -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def note(number: int) -> None:
            seen.append(number)

        await asyncio.gather(*(note(number) for number in range(10)))
        return seen

    assert run(main) == list(range(10))
    orders = [run(main, order=random.Random(seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("thread", "use a coroutine"),
        ("executor", "threaded=True"),
        ("connection", "Client.from_config"),
        ("server", "parameter of make_app"),
        ("process", "a fake in place of the command"),
    ],
)
def test_what_can_not_be_repeated_is_refused_with_a_remedy(
    run: Callable[..., object], name: str, remedy: str
) -> None:
    async def main() -> None:
        _ = current_process.set(AliveProcess())
        loop = asyncio.get_running_loop()
        if name == "thread":
            threading.Thread(target=print).start()
        elif name == "executor":
            await asyncio.to_thread(print)
        elif name == "connection":
            await asyncio.open_connection("127.0.0.1", 1)
        elif name == "server":
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        else:
            await asyncio.create_subprocess_exec("true")

    with pytest.raises(SimulationError, match=remedy):
        run(main)


def test_work_without_an_end_is_an_error(run: Callable[..., object]) -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - what is tested
            await asyncio.sleep(0)

    with pytest.raises(EndlessWorkError, match="after 5000 steps"):
        run(main)


def test_waiting_for_nothing_is_an_error(run: Callable[..., object]) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="nothing will ever wake one"):
        run(main)


def test_outside_of_worlds_the_clocks_are_real(machine: Machine) -> None:
    del machine
    before = time.monotonic()
    assert time.time() < EPOCH
    assert time.monotonic() >= before
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
