"""Every kind of work queue against a simple model, step by step, on a fake clock."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.workqueue.priority_queue import PriorityQueue
from listwatch.workqueue.rate_limiters import ItemFastSlowRateLimiter
from listwatch.workqueue.work_queue import WorkQueue

KEYS = st.sampled_from(["a/1", "a/2", "a/3", "b/1", "b/2", "c/1"])
SECONDS = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3.0, 5.0])
PRIORITIES = st.sampled_from([-100, 0, 7])
STEP = st.one_of(
    st.tuples(st.just("add"), KEYS, PRIORITIES),
    st.tuples(st.just("add_after"), KEYS, SECONDS, PRIORITIES),
    st.tuples(st.just("fail"), st.integers(0, 5), PRIORITIES),
    st.tuples(st.just("get")),
    st.tuples(st.just("get")),
    st.tuples(st.just("done"), st.integers(0, 5)),
    st.tuples(st.just("put_back"), st.integers(0, 5)),
    st.tuples(st.just("advance"), st.sampled_from([0.5, 1.0, 4.0])),
)
STEPS = st.integers(0, 60).flatmap(lambda n: st.lists(STEP, min_size=n, max_size=n))
ENDS = st.sampled_from(["shut_down", "drain", "drain, drop"])


class Model:
    """A simple, slow work queue made of lists."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: list[str] = []
        self.again: set[str] = set()
        self.waiting: list[tuple[float, str]] = []
        self.processing: list[str] = []

    def add(self, key: str, priority: int) -> None:
        del priority
        self.due(key)

    def due(self, key: str) -> None:
        if key in self.processing:
            self.again.add(key)
        elif key not in self.ready:
            self.ready.append(key)

    def add_after(self, key: str, seconds: float, priority: int) -> None:
        if seconds <= 0:
            self.add(key, priority)
            return
        others = [entry for entry in self.waiting if entry[1] != key]
        own = [entry for entry in self.waiting if entry[1] == key]
        # A later time does not move the entry.
        if own and own[0][0] <= self.now + seconds:
            return
        self.waiting = [*others, (self.now + seconds, key)]

    def next(self) -> str:
        return self.ready[0]

    def get(self) -> str:
        key = self.next()
        self.ready.remove(key)
        self.processing.append(key)
        return key

    def done(self, key: str) -> None:
        self.processing.remove(key)
        if key in self.again:
            self.again.remove(key)
            self.due(key)

    def put_back(self, key: str) -> None:
        self.again.add(key)
        self.done(key)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for due in sorted({due for due, _ in self.waiting if due <= self.now}):
            for key in [key for at, key in self.waiting if at == due]:
                self.waiting.remove((due, key))
                self.due(key)

    def shut_down(self) -> None:
        self.waiting = []


class FairModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.turns: list[str] = []

    def due(self, key: str) -> None:
        super().due(key)
        if key in self.ready and key[0] not in self.turns:
            self.turns.append(key[0])

    def get(self) -> str:
        group = self.turns.pop(0)
        key = next(key for key in self.ready if key[0] == group)
        self.ready.remove(key)
        self.processing.append(key)
        if any(other[0] == group for other in self.ready):
            self.turns.append(group)
        return key


class PriorityModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.wanted: dict[str, int] = {}
        self.held: dict[str, int] = {}

    def want(self, key: str, priority: int) -> None:
        known = self.wanted.get(key)
        if known is None or priority > known:
            self.wanted[key] = priority
            if key in self.ready:  # to the end of the new level
                self.ready.remove(key)
                self.ready.append(key)

    def add(self, key: str, priority: int) -> None:
        self.want(key, priority)
        self.waiting = [entry for entry in self.waiting if entry[1] != key]
        self.due(key)

    def add_after(self, key: str, seconds: float, priority: int) -> None:
        if seconds <= 0 or key in self.ready or key in self.again:
            self.add(key, priority)
        else:
            self.want(key, priority)
            super().add_after(key, seconds, priority)

    def next(self) -> str:
        return max(self.ready, key=lambda key: self.wanted[key])

    def get(self) -> str:
        key = super().get()
        self.held[key] = self.wanted.pop(key)
        return key

    def put_back(self, key: str) -> None:
        self.waiting = [entry for entry in self.waiting if entry[1] != key]
        self.wanted[key] = max(self.held[key], self.wanted.get(key, self.held[key]))
        super().put_back(key)

    def shut_down(self) -> None:
        for _, key in self.waiting:
            del self.wanted[key]
        super().shut_down()


def make(kind: str, clock: FakeClock) -> tuple[WorkQueue[str], Model]:
    limiter: ItemFastSlowRateLimiter[str] = ItemFastSlowRateLimiter(1.0, 3.0, 2)
    if kind == "fifo":
        return WorkQueue(clock=clock, rate_limiter=limiter), Model()
    if kind == "fair":
        fair = WorkQueue(clock=clock, rate_limiter=limiter, group=lambda key: key[0])
        return fair, FairModel()
    return PriorityQueue(clock=clock, rate_limiter=limiter, ageing=None), PriorityModel()


class Run:
    """A queue and its model, taking the same steps."""

    def __init__(self, kind: str) -> None:
        self.clock = FakeClock(now=0.0)
        self.kind = kind
        self.queue, self.model = make(kind, self.clock)
        self.failures: dict[str, int] = {}

    def with_priority(self, priority: int) -> dict[str, Any]:
        return {"priority": priority} if self.kind == "priority" else {}

    async def step(self, name: str, *arguments: Any) -> None:
        queue, model = self.queue, self.model
        match name, *arguments:
            case "add", key, priority:
                queue.add(key, **self.with_priority(priority))
                model.add(key, priority)
            case "add_after", key, seconds, priority:
                queue.add_after(key, seconds, **self.with_priority(priority))
                model.add_after(key, seconds, priority)
            case "fail", number, priority:
                if model.processing:
                    key = model.processing[number % len(model.processing)]
                    queue.add_rate_limited(key, **self.with_priority(priority))
                    count = self.failures[key] = self.failures.get(key, 0) + 1
                    assert queue.num_requeues(key) == count
                    model.add_after(key, 1.0 if count <= 2 else 3.0, priority)
            case ("get",):
                if model.ready:
                    assert await queue.get() == model.get()
            case (("done" | "put_back"), number):
                if model.processing:
                    key = model.processing[number % len(model.processing)]
                    getattr(queue, name)(key)
                    getattr(model, name)(key)
            case "advance", seconds:
                await self.clock.advance(seconds)
                model.advance(seconds)
        self.compare()

    def compare(self) -> None:
        state = self.queue.statistics()
        model = self.model
        assert len(self.queue) == len(model.ready)
        assert state.depth == len(model.ready) + len(model.again)
        assert state.waiting == len(model.waiting)
        assert state.processing == len(model.processing)
        if isinstance(model, PriorityModel):
            levels = [model.wanted[key] for key in (*model.ready, *model.again)]
            assert state.depth_by_priority == {level: levels.count(level) for level in levels}
            assert isinstance(self.queue, PriorityQueue)
            # a leaked priority shows only in a later add
            assert self.queue._priority == model.wanted
            # a leaked priority shows only in a later add
            assert self.queue._priority_in_process == {
                key: model.held[key] for key in model.processing
            }

    async def work_until_closed(self) -> list[str]:
        """Take and finish the rest, as a worker would."""
        worked = []
        while True:
            try:
                async with self.queue.item() as key:
                    worked.append(key)
            except QueueClosedError:
                return worked

    def model_works(self) -> list[str]:
        model = self.model
        worked = []
        while model.ready or model.waiting:
            if not model.ready:
                model.advance(max(0.0, min(model.waiting)[0] - model.now))
                continue
            worked.append(model.get())
            model.done(worked[-1])
        return worked


@pytest.mark.parametrize("kind", ["fifo", "fair", "priority"])
@given(steps=STEPS, end=ENDS)
def test_a_queue_does_what_its_model_does(
    kind: str, steps: list[tuple[Any, ...]], end: str
) -> None:
    async def scenario() -> None:
        run = Run(kind)
        for step in steps:
            await run.step(*step)
        queue, model = run.queue, run.model
        if end == "shut_down":
            queue.shut_down()
            model.shut_down()
            drain = None
        else:
            drop = end == "drain, drop"
            drain = asyncio.ensure_future(queue.shut_down_with_drain(drop_waiting=drop))
            await run.clock.settle()
            if drop:
                model.shut_down()
        run.compare()
        queue.add("late")
        queue.add_after("late", 1)
        # The holders of items finish them, then one worker takes the rest.
        for key in list(model.processing):
            queue.done(key)
            model.done(key)
        run.compare()
        worker = asyncio.ensure_future(run.work_until_closed())
        await run.clock.advance(10)
        assert await worker == run.model_works()
        if drain is not None:
            assert await drain is True
        run.compare()
        assert run.clock.next_timer is None

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["fifo", "fair", "priority"])
@given(seed=st.integers(0, 2**32))
def test_workers_cancelled_at_any_moment_lose_nothing_and_never_share_an_item(
    kind: str, seed: int
) -> None:
    """Every item is processed to the end after its last add; then a drain ends."""
    random = Random(seed)

    async def scenario() -> None:
        clock = FakeClock()
        queue, _ = make(kind, clock)
        in_process: set[str] = set()
        added: dict[str, int] = {}
        seen: dict[str, int] = {}

        async def work() -> None:
            while True:
                async with queue.item(requeue=True) as key:
                    assert key not in in_process
                    in_process.add(key)
                    version = added[key]
                    try:
                        for _ in range(random.randrange(3)):
                            await asyncio.sleep(0)
                        seen[key] = version
                    finally:
                        in_process.remove(key)

        workers = [asyncio.ensure_future(work()) for _ in range(3)]
        for version in range(60):
            key = random.choice(["a/1", "a/2", "b/1"])
            added[key] = version
            if random.random() < 0.5:
                queue.add(key)
            else:
                queue.add_after(key, 0.001)
            clock.stall(random.choice([0.0, 0.006]))  # after 5 ms, `get` yields
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            if random.random() < 0.5:
                index = random.randrange(len(workers))
                workers[index].cancel()
                workers.append(asyncio.ensure_future(work()))
        draining = asyncio.ensure_future(queue.shut_down_with_drain())
        await clock.advance(1)
        assert await draining is True
        assert (seen, in_process) == (added, set())
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert {type(result) for result in results} <= {QueueClosedError, asyncio.CancelledError}
        assert queue.statistics().idle_workers == 0

    asyncio.run(scenario())


@given(
    steps=st.lists(
        st.tuples(st.integers(-100, 100), st.booleans(), st.sampled_from([0.0, 0.5, 3.0])),
        max_size=80,
    )
)
def test_an_item_over_age_waits_for_4_takes_at_most_for_each_that_is_older(
    steps: list[tuple[int, bool, float]],
) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        queue: PriorityQueue[int] = PriorityQueue(clock=clock, ageing=5)
        ready_since: dict[int, float] = {}
        takes_left: dict[int, int] = {}
        for number, (priority, take, seconds) in enumerate(steps):
            queue.add(number, priority=priority)
            ready_since[number] = clock.now()
            await clock.advance(seconds)
            if take:
                item = await queue.get()
                del ready_since[item]
                takes_left.pop(item, None)
                takes_left = {other: left - 1 for other, left in takes_left.items()}
                assert 0 not in takes_left.values()
            for place, other in enumerate(ready_since):  # the oldest first
                if clock.now() - ready_since[other] > 5:
                    takes_left.setdefault(other, 4 * (place + 1))

    asyncio.run(scenario())
