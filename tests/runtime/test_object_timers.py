"""A timer for each object."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.objects import Object, decode_object
from listwatch.runtime.object_timers import ObjectTimers
from runtime.reconciler_world import World, widget


def seconds_of(obj: Object) -> float | None:
    seconds: float | None = obj["spec"].get("seconds")
    return seconds


def done_of(obj: Object) -> str | None:
    done: str | None = obj["spec"].get("done")
    return done


async def test_each_object_is_reconciled_at_its_own_interval() -> None:
    world = World()
    world.reconciler.for_("widget").every(seconds_of)
    source = world.source("widget")
    for name, seconds in (("often", 10), ("seldom", 25), ("never", None)):
        source.add(widget(name, spec={"seconds": seconds}))
    async with world.running():
        world.calls.clear()
        await world.clock.advance(60)
        assert [world.calls.count(f"ns/{n}") for n in ("often", "seldom", "never")] == [6, 2, 0]
        source.modify(widget("seldom", spec={"seconds": 5}))
        source.delete("ns/often")
        await world.clock.settle()
        world.calls.clear()
        await world.clock.advance(20)
        assert world.calls == ["ns/seldom"] * 4


async def test_a_timer_goes_on_where_the_object_says_it_was_last_done() -> None:
    world = World()
    world.reconciler.for_("widget").every(seconds_of, last_done=done_of)
    now = datetime.fromtimestamp(world.clock.time(), UTC)
    before = datetime.fromtimestamp(world.clock.time() - 70, UTC)
    for name, done in (("new", None), ("just", now.isoformat()), ("a-while", before.isoformat())):
        world.source("widget").add(widget(name, spec={"seconds": 100, "done": done}))
    async with world.running():
        assert world.calls.count("ns/new") <= 2  # listed, and due at once
        world.calls.clear()
        await world.clock.advance(40)
        assert world.calls == ["ns/a-while"]
        await world.clock.advance(58)
        assert world.calls == ["ns/a-while"]
        await world.clock.advance(4)
        assert sorted(world.calls[1:]) == ["ns/just", "ns/new"]


async def test_a_function_that_fails_is_reported_and_costs_only_its_object() -> None:
    world = World()
    world.reconciler.for_("widget").every(seconds_of)
    world.source("widget").add(widget("broken", spec=None))
    world.source("widget").add(widget("zero", spec={"seconds": 0}))
    world.source("widget").add(widget("good", spec={"seconds": 10}))
    async with world.running() as reconciler:
        world.calls.clear()
        await world.clock.advance(20)
        assert world.calls == ["ns/good", "ns/good"]
        assert "the timer of ns/" in reconciler.statistics().last_error


async def test_timers_can_be_removed_and_their_source_is_no_cache_to_read() -> None:
    world = World()
    world.reconciler.for_("widget").every(seconds_of, name="backups")
    world.source("widget").add(widget("a", spec={"seconds": 10}))
    async with world.running() as reconciler:
        assert [status.kind for status in reconciler.sources] == ["for_", "every"]
        with pytest.raises(ValueError, match="no cache of 'backups'"):
            reconciler.lister("backups")
        await reconciler.remove("backups")
        world.calls.clear()
        await world.clock.advance(50)
        assert world.calls == []


def test_what_makes_no_sense_is_refused() -> None:
    reconciler = World().reconciler
    with pytest.raises(ValueError, match="call for_ before"):
        reconciler.every(seconds_of)
    reconciler.for_("widget")
    with pytest.raises(ValueError, match="takes no keys"):
        reconciler.every(seconds_of, list)
    with pytest.raises(ValueError, match="needs a function"):
        reconciler.every(10, last_done=done_of)


def make(key: str, seconds: int | None, done: datetime | None) -> Object:
    spec = {"seconds": seconds, "done": None if done is None else done.isoformat()}
    return decode_object(
        msgspec.json.encode(
            {"apiVersion": "v1", "kind": "W", "metadata": {"name": key}, "spec": spec}
        )
    )


class Model:
    """The interval of each key, since when it is counted, and what has gone off."""

    def __init__(self, *, records: bool) -> None:
        self.records = records
        self.now = 0.0
        self.timers: dict[str, tuple[int, float]] = {}
        self.fired: list[tuple[float, str]] = []

    def set(self, key: str, seconds: int | None, age: int | None) -> None:
        if seconds is None:
            self.timers.pop(key, None)
            return
        since = self.now
        if self.records:
            since = float("-inf") if age is None else self.now - age
        if key in self.timers:
            before = self.timers[key][1]
            since = max(before, since) if self.records else before
        self.timers[key] = (seconds, since)
        self.wait(0)

    def wait(self, seconds: int) -> None:
        end = self.now + seconds
        while due := sorted((since + i, key) for key, (i, since) in self.timers.items()):
            at, key = max(due[0][0], self.now), due[0][1]
            if at > end:
                break
            self.fired.append((at, key))
            self.timers[key] = (self.timers[key][0], at)
        self.now = end


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "delete", "wait"]),
        st.sampled_from("ab"),
        st.one_of(st.none(), st.integers(1, 7)),
        st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=25,
)


@given(STEPS, st.booleans())
def test_timers_go_off_as_in_a_simple_model(
    steps: list[tuple[str, str, int | None, int | None]], records: bool
) -> None:
    async def run() -> None:
        clock = FakeClock()
        start = clock.now()
        fired: list[tuple[float, str]] = []

        def put(key: str, *_: Any) -> None:
            fired.append((clock.now() - start, key))

        timers = ObjectTimers(
            seconds_of,
            done_of if records else None,
            put=put,
            report=lambda *_: None,
            clock=clock,
        )
        running = asyncio.ensure_future(timers.run())
        model = Model(records=records)
        for step, key, seconds, number in steps:
            if step == "wait":
                await clock.advance(number or 0)
                model.wait(number or 0)
            elif step == "delete":
                timers.on_delete(make(key, None, None))
                model.timers.pop(key, None)
            else:
                done = None
                if number is not None:
                    done = datetime.fromtimestamp(clock.time() - number, UTC)
                obj = make(key, seconds, done)
                timers.on_update(obj, obj)
                await clock.settle()
                model.set(key, seconds, number)
        assert sorted((round(at), key) for at, key in fired) == sorted(model.fired)
        assert len(timers) == len(model.timers)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(run())
