import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.dispatch import Dispatcher


def _change(key: str, version: int, kind: ObservationType = ObservationType.UPDATED) -> Observation:
    def state(number: int) -> Object:
        meta = {"name": key, "resourceVersion": str(number)}
        return Object.from_dict({"metadata": meta})

    old = None if kind is ObservationType.ADDED else state(version - 1)
    return Observation(kind, key, state(version), old=old)


class Runner:
    """Run each change until it is released; record the order."""

    def __init__(self) -> None:
        self.started: list[Observation] = []
        self.running: dict[str, asyncio.Event] = {}

    async def __call__(self, changes: Sequence[Observation]) -> None:
        (change,) = changes
        assert change.key not in self.running, "one object twice at once"
        self.started.append(change)
        event = self.running[change.key] = asyncio.Event()
        try:
            await event.wait()
        finally:
            del self.running[change.key]

    @property
    def versions(self) -> list[tuple[str, str]]:
        return [(change.key, change.resource_version) for change in self.started]


async def _with_dispatcher(
    scenario: Callable[..., object], *, parallel: int = 1, debounce: float = 0.0
) -> None:
    clock = FakeClock()
    runner = Runner()
    dispatcher = Dispatcher(runner, parallel=parallel, debounce=debounce, clock=clock)
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(dispatcher.work())
        result = scenario(dispatcher, runner, clock)
        assert asyncio.iscoroutine(result)
        await result
        dispatcher.stop()
        for event in list(runner.running.values()):
            event.set()
        await work


async def test_one_at_a_time_runs_all_objects_in_the_order_of_arrival() -> None:
    async def scenario(dispatcher: Dispatcher, runner: Runner, clock: FakeClock) -> None:
        for key, version in (("a", 1), ("a", 2), ("b", 3), ("a", 4)):
            dispatcher.submit(_change(key, version))
        for _ in range(4):
            await clock.settle()
            (event,) = runner.running.values()
            event.set()
        await dispatcher.finished(4)
        assert runner.versions == [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")]

    await _with_dispatcher(scenario)


async def test_a_slow_object_does_not_hold_the_others_up() -> None:
    async def scenario(dispatcher: Dispatcher, runner: Runner, clock: FakeClock) -> None:
        for version in range(1, 4):
            dispatcher.submit(_change("slow", version))
        dispatcher.submit(_change("b", 4))
        dispatcher.submit(_change("c", 5))
        await clock.settle()
        assert set(runner.running) == {"slow", "b"}
        runner.running["b"].set()
        await clock.settle()
        assert set(runner.running) == {"slow", "c"}
        assert dispatcher.finished_up_to == 0
        assert dispatcher.statistics().waiting == 2
        runner.running["slow"].set()
        await clock.settle()
        assert dispatcher.finished_up_to == 1

    await _with_dispatcher(scenario, parallel=2)


async def test_a_burst_is_collapsed_to_its_latest_state() -> None:
    async def scenario(dispatcher: Dispatcher, runner: Runner, clock: FakeClock) -> None:
        dispatcher.submit(_change("a", 1, ObservationType.ADDED))
        await clock.advance(0.5)
        dispatcher.submit(_change("a", 2))
        dispatcher.submit(_change("a", 3))
        assert runner.started == []
        await clock.advance(0.5)
        assert runner.versions == [("a", "3")]
        assert runner.started[0].type is ObservationType.ADDED
        assert dispatcher.statistics().collapsed == 2
        runner.running["a"].set()
        await dispatcher.finished(3)
        dispatcher.submit(_change("b", 4, ObservationType.ADDED))
        dispatcher.submit(_change("b", 5, ObservationType.DELETED))
        await dispatcher.finished(5)
        await clock.advance(5)
        assert runner.versions == [("a", "3")]

    await _with_dispatcher(scenario, debounce=1.0)


async def test_a_deletion_is_never_merged_with_the_life_after_it() -> None:
    async def scenario(dispatcher: Dispatcher, runner: Runner, clock: FakeClock) -> None:
        dispatcher.submit(_change("a", 2))
        dispatcher.submit(_change("a", 3, ObservationType.DELETED))
        dispatcher.submit(_change("a", 4, ObservationType.ADDED))
        await clock.advance(1)
        runner.running["a"].set()
        await clock.advance(1)
        assert [change.type for change in runner.started] == [
            ObservationType.DELETED,
            ObservationType.ADDED,
        ]

    await _with_dispatcher(scenario, debounce=1.0)


async def test_what_a_run_raises_ends_the_work() -> None:
    async def run(_changes: Sequence[Observation]) -> None:
        raise ValueError("no more")

    dispatcher = Dispatcher(run, clock=FakeClock())
    dispatcher.submit(_change("a", 1))
    with pytest.raises(ExceptionGroup) as caught:
        await dispatcher.work()
    assert caught.group_contains(ValueError, match="no more")


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=30),
    parallel=st.integers(1, 3),
    debounce=st.sampled_from([0.0, 1.0]),
    batch=st.integers(1, 3),
)
def test_every_objects_changes_run_in_order_and_the_last_is_delivered(
    steps: list[tuple[str, int]], parallel: int, debounce: float, batch: int
) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        delivered: dict[str, list[int]] = defaultdict(list)
        busy: set[str] = set()

        async def run(changes: Sequence[Observation]) -> None:
            keys = {change.key for change in changes}
            assert not keys & busy
            assert len(keys) == len(changes) <= batch
            assert len({change.key == "c" for change in changes}) == 1
            busy.update(keys)
            await clock.sleep(0.7)
            busy.difference_update(keys)
            for change in changes:
                delivered[change.key].append(int(change.resource_version))

        dispatcher = Dispatcher(
            run,
            parallel=parallel,
            batch=batch,
            together=lambda one, other: (one.key == "c") == (other.key == "c"),
            debounce=debounce,
            clock=clock,
        )
        done: dict[str, list[int]] = defaultdict(list)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(dispatcher.work())
            for version, (key, wait) in enumerate(steps, 1):
                dispatcher.submit(_change(key, version))
                done[key].append(version)
                await clock.advance(wait * 0.4)
            await clock.advance(100)
            await dispatcher.finished(dispatcher.last)
            dispatcher.stop()
        assert dispatcher.finished_up_to == len(steps)
        for key, versions in done.items():
            assert delivered[key] == sorted(delivered[key])
            assert delivered[key][-1] == versions[-1]
            if not debounce:
                assert delivered[key] == versions
        statistics = dispatcher.statistics()
        assert statistics.finished + statistics.collapsed == len(steps)
        assert (statistics.waiting, statistics.running) == (0, 0)

    asyncio.run(scenario())
