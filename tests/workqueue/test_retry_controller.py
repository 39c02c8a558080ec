import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Deltas
from listwatch.cache.event_queue import EventQueue
from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.objects import Object, meta_namespace_key
from listwatch.workqueue.rate_limiters import TokenBucket
from listwatch.workqueue.retry_controller import (
    QueueRetryManager,
    Retry,
    RetryController,
    RetryFunc,
    RetryKeyError,
    retry_always,
    retry_never,
    retry_until,
)


@dataclasses.dataclass(frozen=True)
class Thing:
    key: str
    version: int = 0


class ThingQueue:
    """The part of a DeltaFIFO that a RetryController needs.

    One slot per key. A popped key stays in process until its function returns; if the
    function fails or is cancelled, the key returns to the front.
    """

    def __init__(self) -> None:
        self.items: dict[str, Thing] = {}
        self.in_process: set[str] = set()
        self.closed = False
        self._changed = asyncio.Event()

    def add(self, thing: Thing) -> None:
        self.items[thing.key] = thing
        self._changed.set()

    def add_if_not_present(self, thing: Thing) -> None:
        if thing.key not in self.items:
            self.add(thing)

    def close(self) -> None:
        self.closed = True
        self._changed.set()

    async def pop(self, process: Callable[[Thing], Awaitable[None] | None]) -> Thing:
        while not (ready := [key for key in self.items if key not in self.in_process]):
            if self.closed:
                raise QueueClosedError("closed")
            self._changed.clear()
            await self._changed.wait()
        thing = self.items.pop(ready[0])
        self.in_process.add(thing.key)
        try:
            result = process(thing)
            if result is not None:
                await result
        except BaseException:
            self.items = {thing.key: self.items.get(thing.key, thing), **self.items}
            raise
        finally:
            self.in_process.remove(thing.key)
            self._changed.set()
        return thing


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=100.0)


@pytest.fixture
def queue() -> ThingQueue:
    return ThingQueue()


class Handler:
    """Fails a given number of times, and records its calls."""

    def __init__(self, **failures: int) -> None:
        self.failures = failures
        self.handled: list[Thing] = []

    async def __call__(self, thing: Thing) -> None:
        self.handled.append(thing)
        if self.failures.get(thing.key, 0) > 0:
            self.failures[thing.key] -= 1
            raise LookupError(f"no {thing.key}")


def manage(
    queue: ThingQueue,
    clock: FakeClock,
    retry_func: RetryFunc[Thing] = retry_always,
    limiter: TokenBucket | None = None,
) -> QueueRetryManager[Thing]:
    return QueueRetryManager(queue, lambda thing: thing.key, retry_func, limiter, clock=clock)


# The functions that decide


def test_never_and_always_do_what_they_say() -> None:
    tried = Retry(10**9, 0.0, 1e9)
    assert retry_never(None, LookupError(), Retry(0, 0.0, 0.0)) is False
    assert retry_always(None, LookupError(), tried) is True


@pytest.mark.parametrize(
    ("retry_func", "error", "retry", "again"),
    [
        (retry_until(), LookupError(), Retry(10**6, 0, 1e9), True),
        (retry_until(count=60), LookupError(), Retry(59, 0, 0), True),
        (retry_until(count=60), LookupError(), Retry(60, 0, 0), False),
        (retry_until(count=0), LookupError(), Retry(0, 0, 0), False),
        (retry_until(age=1800), LookupError(), Retry(0, 0, 1800), True),
        (retry_until(age=1800), LookupError(), Retry(0, 0, 1800.1), False),
        (retry_until(is_fatal=lambda e: e.args == ("x",)), LookupError("x"), Retry(0, 0, 0), False),
        (retry_until(is_fatal=lambda e: e.args == ("x",)), LookupError("y"), Retry(0, 0, 0), True),
    ],
)
def test_retry_until_gives_up_at_the_first_limit(
    retry_func: RetryFunc[object], error: Exception, retry: Retry, again: bool
) -> None:
    assert retry_func(None, error, retry) is again


# The manager


async def test_the_first_failure_counts_0_and_later_ones_their_retries_and_age(
    queue: ThingQueue, clock: FakeClock
) -> None:
    seen: list[Retry] = []

    def remember(thing: Thing, error: Exception, retry: Retry) -> bool:
        assert (thing.key, str(error)) == ("a", "no a")
        seen.append(retry)
        return True

    manager = manage(queue, clock, remember)
    start = clock.time()
    for _ in range(3):
        assert await manager.retry(Thing("a"), LookupError("no a")) is True
        await clock.advance(5)
        clock.set_time(0)  # the age does not depend on the wall clock
    assert seen == [Retry(0, start, 0.0), Retry(1, start, 5.0), Retry(2, start, 10.0)]
    assert len(manager) == 1


async def test_a_forgotten_resource_starts_anew(queue: ThingQueue, clock: FakeClock) -> None:
    counts: list[int] = []

    def remember(thing: Thing, error: Exception, retry: Retry) -> bool:  # noqa: ARG001 - a RetryFunc
        counts.append(retry.count)
        return True

    manager = manage(queue, clock, remember)
    await manager.retry(Thing("a"), LookupError())
    await manager.retry(Thing("a", version=2), LookupError())
    manager.forget(Thing("a"))
    manager.forget(Thing("never seen"))
    assert len(manager) == 0
    await manager.retry(Thing("a"), LookupError())
    assert counts == [0, 1, 0]


async def test_a_given_up_resource_is_forgotten_and_logged(
    queue: ThingQueue, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manage(queue, clock, retry_until(count=1))
    assert await manager.retry(Thing("a"), LookupError("no a")) is True
    assert await manager.retry(Thing("a"), LookupError("no a")) is False
    assert len(manager) == 0
    assert caplog.messages == ["giving up on a after 1 retries: no a"]


async def test_something_newer_in_the_queue_wins_over_the_failed_resource(
    queue: ThingQueue, clock: FakeClock
) -> None:
    queue.add(Thing("a", version=2))
    await manage(queue, clock).retry(Thing("a", version=1), LookupError())
    assert queue.items == {"a": Thing("a", version=2)}


async def test_by_default_the_limiter_lets_10_through_and_then_1_a_second(
    queue: ThingQueue, clock: FakeClock
) -> None:
    manager = manage(queue, clock)
    for number in range(10):
        await manager.retry(Thing(f"{number}"), LookupError())
    eleventh = asyncio.ensure_future(manager.retry(Thing("late"), LookupError()))
    await clock.advance(0.999)
    assert "late" not in queue.items
    await clock.advance(0.001)
    assert await eleventh is True
    assert "late" in queue.items


async def test_a_cancelled_retry_leaves_the_resource_to_the_queue(
    queue: ThingQueue, clock: FakeClock
) -> None:
    bucket = TokenBucket(1, 1, clock=clock)
    await bucket.accept()
    controller = RetryController(queue, Handler(a=1), manage(queue, clock, limiter=bucket))
    queue.add(Thing("a"))
    running = asyncio.ensure_future(controller.run())
    await clock.settle()
    assert (queue.items, queue.in_process) == ({}, {"a"})
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert (queue.items, queue.in_process) == ({"a": Thing("a")}, set())


async def test_a_key_function_that_fails_is_an_error_and_not_an_empty_key(
    queue: ThingQueue, clock: FakeClock
) -> None:
    def key_func(thing: Thing) -> str:
        raise AttributeError(f"{thing.key} has no metadata")

    manager: QueueRetryManager[Thing] = QueueRetryManager(queue, key_func, retry_never, clock=clock)
    expected = r"no key for a Thing \(a has no metadata\): pass the retry manager .*queue\.key_of"
    with pytest.raises(RetryKeyError, match=expected) as caught:
        await manager.retry(Thing("a"), LookupError())
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(RetryKeyError, match=expected):
        manager.forget(Thing("a"))
    assert len(manager) == 0


async def test_the_seeds_key_function_for_objects_is_an_error_on_deltas_and_names_the_remedy(
    clock: FakeClock,
) -> None:
    queue = DeltaFIFO()
    manager = QueueRetryManager(queue, meta_namespace_key, retry_never, clock=clock)
    controller = RetryController(queue, lambda _: None, manager)
    queue.add(Object.from_dict({"metadata": {"name": "a"}}))
    with pytest.raises(RetryKeyError, match=r"no key for a Deltas .*such as queue\.key_of"):
        await controller.run()


async def test_a_retry_function_that_raises_does_not_lose_the_resource(
    queue: ThingQueue, clock: FakeClock
) -> None:
    def faulty(thing: Thing, error: Exception, retry: Retry) -> bool:  # noqa: ARG001 - a RetryFunc
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await manage(queue, clock, faulty).retry(Thing("a"), LookupError())
    assert queue.items == {"a": Thing("a")}


# The controller


async def test_what_was_handled_well_is_forgotten_and_what_failed_is_tried_again(
    queue: ThingQueue, clock: FakeClock
) -> None:
    handler = Handler(b=2)
    manager = manage(queue, clock)
    controller = RetryController(queue, handler, manager)
    for key in "abc":
        queue.add(Thing(key))
    running = asyncio.ensure_future(controller.run())
    await clock.settle()
    assert [thing.key for thing in handler.handled] == ["a", "b", "c", "b", "b"]
    state = controller.statistics()
    assert (state.handled, state.failed, state.retried, state.given_up) == (3, 2, 2, 0)
    assert len(manager) == 0
    queue.close()
    await running


async def test_a_handler_that_waits_for_what_was_cancelled_has_failed(
    queue: ThingQueue, clock: FakeClock
) -> None:
    """The cancellation neither ends the controller nor looks like a stop."""
    handled: list[str] = []

    async def handle(thing: Thing) -> None:
        handled.append(thing.key)
        if len(handled) == 1:
            raise asyncio.CancelledError

    queue.add(Thing("a"))
    queue.add(Thing("b"))
    controller = RetryController(queue, handle, manage(queue, clock))
    stop = asyncio.Event()
    running = asyncio.ensure_future(controller.run_until(stop))
    await clock.settle()
    assert not running.done()
    assert sorted(handled) == ["a", "a", "b"]
    assert controller.statistics().failed == 1
    stop.set()
    await clock.settle()
    assert running.done()


async def test_retry_never_handles_everything_once(queue: ThingQueue, clock: FakeClock) -> None:
    handler = Handler(a=5)
    controller = RetryController(queue, handler, manage(queue, clock, retry_never))
    queue.add(Thing("a"))
    queue.close()
    await controller.run()
    assert handler.handled == [Thing("a")]
    assert controller.statistics().given_up == 1


async def test_a_plain_function_may_handle(queue: ThingQueue, clock: FakeClock) -> None:
    handled: list[Thing] = []
    queue.add(Thing("a"))
    queue.close()
    await RetryController(queue, handled.append, manage(queue, clock)).run()
    assert handled == [Thing("a")]


async def test_other_tasks_run_between_two_resources(queue: ThingQueue, clock: FakeClock) -> None:
    turns = 0

    def handle(thing: Thing) -> None:
        del thing

    async def other() -> None:
        nonlocal turns
        while queue.items:
            turns += 1
            await asyncio.sleep(0)

    for number in range(10):
        queue.add(Thing(f"{number}"))
    queue.close()
    async with asyncio.TaskGroup() as group:
        group.create_task(RetryController(queue, handle, manage(queue, clock)).run())
        group.create_task(other())
    assert turns >= 9


async def test_the_handler_runs_while_its_key_is_in_process_and_may_use_the_queue(
    queue: ThingQueue, clock: FakeClock
) -> None:
    versions: list[int] = []

    in_process: list[set[str]] = []

    async def handle(thing: Thing) -> None:
        in_process.append(set(queue.in_process))
        versions.append(thing.version)
        if thing.version < 3:
            queue.add(Thing("a", thing.version + 1))
            await asyncio.sleep(0)

    queue.add(Thing("a"))
    queue.close()
    await RetryController(queue, handle, manage(queue, clock)).run()
    assert versions == [0, 1, 2, 3]
    assert in_process == [{"a"}] * 4


async def test_several_runs_work_at_once_on_different_keys(
    queue: ThingQueue, clock: FakeClock
) -> None:
    most = 0

    async def handle(thing: Thing) -> None:
        nonlocal most
        del thing
        most = max(most, len(queue.in_process))
        await clock.sleep(1)

    controller = RetryController(queue, handle, manage(queue, clock))
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(controller.run())
        for number in range(6):
            queue.add(Thing(f"{number}"))
        await clock.advance(2)
        queue.close()
    assert (most, controller.statistics().handled) == (3, 6)


async def test_a_failing_key_function_ends_run_with_its_error(
    queue: ThingQueue, clock: FakeClock
) -> None:
    def key_func(thing: Thing) -> str:
        raise AttributeError(f"{thing.key} has no metadata")

    manager: QueueRetryManager[Thing] = QueueRetryManager(queue, key_func, retry_never, clock=clock)
    controller = RetryController(queue, Handler(), manager)
    for start in (controller.run, lambda: controller.run_until(asyncio.Event())):
        queue.add(Thing("a"))
        with pytest.raises(RetryKeyError, match="a has no metadata"):
            await start()


async def test_run_until_ends_a_blocked_pop(queue: ThingQueue, clock: FakeClock) -> None:
    stop = asyncio.Event()
    controller = RetryController(queue, Handler(), manage(queue, clock))
    running = asyncio.ensure_future(controller.run_until(stop))
    await clock.settle()
    stop.set()
    await clock.settle()
    assert running.done()
    await running


async def test_run_until_a_stop_that_is_set_handles_nothing(
    queue: ThingQueue, clock: FakeClock
) -> None:
    stop = asyncio.Event()
    stop.set()
    handler = Handler()
    queue.add(Thing("a"))
    await RetryController(queue, handler, manage(queue, clock)).run_until(stop)
    assert handler.handled == []


async def test_run_until_lets_a_running_handler_finish_and_takes_no_more(
    queue: ThingQueue, clock: FakeClock
) -> None:
    stop = asyncio.Event()
    finished: list[str] = []

    async def handle(thing: Thing) -> None:
        await clock.sleep(5)
        finished.append(thing.key)

    queue.add(Thing("a"))
    queue.add(Thing("b"))
    controller = RetryController(queue, handle, manage(queue, clock))
    running = asyncio.ensure_future(controller.run_until(stop))
    await clock.advance(1)
    stop.set()
    await clock.advance(3)
    assert not running.done()
    await clock.advance(1)
    await running
    assert finished == ["a"]
    assert list(queue.items) == ["b"]


async def test_a_stop_while_a_retry_waits_queues_the_resource_and_ends(
    queue: ThingQueue, clock: FakeClock
) -> None:
    stop = asyncio.Event()
    bucket = TokenBucket(0.001, 1, clock=clock)
    await bucket.accept()
    controller = RetryController(queue, Handler(a=1), manage(queue, clock, limiter=bucket))
    queue.add(Thing("a"))
    running = asyncio.ensure_future(controller.run_until(stop))
    await clock.settle()
    assert queue.items == {}
    stop.set()
    await running
    assert queue.items == {"a": Thing("a")}


async def test_run_until_ends_when_the_queue_is_closed_and_empty(
    queue: ThingQueue, clock: FakeClock
) -> None:
    handler = Handler()
    queue.add(Thing("a"))
    queue.close()
    await RetryController(queue, handler, manage(queue, clock)).run_until(asyncio.Event())
    assert handler.handled == [Thing("a")]


@pytest.mark.parametrize("method", ["run", "run_until"])
async def test_cancelled_in_a_handler_the_queue_keeps_the_resource(
    queue: ThingQueue, clock: FakeClock, method: str
) -> None:
    async def handle(thing: Thing) -> None:
        del thing
        await asyncio.Event().wait()

    controller = RetryController(queue, handle, manage(queue, clock))
    queue.add(Thing("a"))
    work = controller.run() if method == "run" else controller.run_until(asyncio.Event())
    running = asyncio.ensure_future(work)
    await clock.settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (queue.items, queue.in_process) == ({"a": Thing("a")}, set())


async def test_cancelled_after_a_failed_handler_the_resource_is_queued_again(
    clock: FakeClock,
) -> None:
    class SlowQueue(ThingQueue):
        async def pop(self, process: Callable[[Thing], Awaitable[None] | None]) -> Thing:
            thing = await super().pop(process)
            await asyncio.Event().wait()  # some cleanup of its own
            return thing

    queue = SlowQueue()
    controller = RetryController(queue, Handler(a=1, b=0), manage(queue, clock))
    queue.add(Thing("a"))
    running = asyncio.ensure_future(controller.run())
    await clock.settle()
    running.cancel()
    await asyncio.wait([running])
    assert queue.items == {"a": Thing("a")}


# On the real queues


def pod(version: int) -> Object:
    return Object.from_dict({"metadata": {"name": "a", "resourceVersion": str(version)}})


class SlowRetries:
    """A controller on a queue of deltas; its first handler fails and is retried after 10 s."""

    def __init__(self, clock: FakeClock, queue: DeltaFIFO) -> None:
        self.queue = queue
        self.told: list[list[str]] = []
        bucket = TokenBucket(0.1, 1, clock=clock)
        assert bucket.try_accept()
        manager = QueueRetryManager(queue, queue.key_of, retry_always, bucket, clock=clock)
        self.controller = RetryController(queue, self.handle, manager)

    def handle(self, deltas: Deltas) -> None:
        self.told.append([f"{delta.type} {self.version(delta.object)}" for delta in deltas])
        if len(self.told) == 1:
            raise LookupError

    def version(self, item: object) -> str:
        assert isinstance(item, Object)
        return item.resource_version


async def test_nothing_newer_of_a_key_is_handled_before_its_retry_by_any_worker(
    clock: FakeClock,
) -> None:
    work = SlowRetries(clock, DeltaFIFO(clock=clock))
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(work.controller.run())
        work.queue.add(pod(1))
        await clock.settle()
        work.queue.update(pod(2))
        await clock.advance(9)
        assert work.told == [["Added 1"]]
        await clock.advance(1)
        work.queue.close()
    assert work.told == [["Added 1"], ["Updated 2"]]


async def test_a_deletion_that_comes_while_a_retry_waits_is_told_and_is_the_last_word(
    clock: FakeClock,
) -> None:
    work = SlowRetries(clock, DeltaFIFO(clock=clock))
    work.queue.add(pod(1))
    running = asyncio.ensure_future(work.controller.run())
    await clock.settle()
    work.queue.delete(pod(2))
    work.queue.close()
    await clock.advance(10)
    await running
    assert work.told == [["Added 1"], ["Deleted 2"]]


async def test_a_retry_cancelled_on_a_delta_fifo_leaves_its_deltas_there_once(
    clock: FakeClock,
) -> None:
    work = SlowRetries(clock, DeltaFIFO(clock=clock))
    work.queue.add(pod(1))
    running = asyncio.ensure_future(work.controller.run())
    await clock.settle()
    work.queue.update(pod(2))
    running.cancel()
    await asyncio.wait([running])
    work.queue.close()
    await work.controller.run()
    assert work.told == [["Added 1"], ["Added 1", "Updated 2"]]


async def test_a_list_is_not_consumed_while_one_of_its_objects_waits_for_a_retry(
    clock: FakeClock,
) -> None:
    queue = EventQueue(clock=clock)
    work = SlowRetries(clock, queue)
    queue.replace([pod(1)], "1")
    running = asyncio.ensure_future(work.controller.run())
    await clock.settle()
    assert (len(work.told), queue.list_consumed) == (1, False)
    await clock.advance(10)
    assert (len(work.told), queue.list_consumed) == (2, True)
    queue.close()
    await running


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
def test_run_until_works_where_tasks_start_eagerly() -> None:
    async def main() -> None:
        factory = getattr(asyncio, "eager_task_factory")  # noqa: B009 - unknown to 3.11's types
        asyncio.get_running_loop().set_task_factory(factory)
        queue = ThingQueue()
        controller = RetryController(queue, Handler(), manage(queue, FakeClock()))
        stop = asyncio.Event()
        stop.set()
        await controller.run_until(stop)
        queue.close()
        await controller.run_until(asyncio.Event())

    asyncio.run(main())


@given(
    adds=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.3, 0.7])), max_size=30),
    failures=st.fixed_dictionaries({key: st.integers(0, 4) for key in "abc"}),
    limit=st.integers(0, 4),
    workers=st.integers(1, 3),
    burst=st.sampled_from([1, 2, 10]),
)
def test_every_key_ends_with_its_newest_version_handled_well_or_given_up(
    adds: list[tuple[str, float]], failures: dict[str, int], limit: int, workers: int, burst: int
) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        queue = ThingQueue()
        limiter = TokenBucket(1, burst, clock=clock)
        good: dict[str, int] = {}
        active: set[str] = set()
        given_up: dict[str, int] = {}
        wrong: list[Thing] = []

        async def handle(thing: Thing) -> None:
            # A failed assertion here would only cause a retry.
            if thing.key in active or thing.version < good.get(thing.key, -1):
                wrong.append(thing)
            active.add(thing.key)
            try:
                await clock.sleep(0.5)
                if failures[thing.key]:
                    failures[thing.key] -= 1
                    raise LookupError
                good[thing.key] = thing.version
            finally:
                active.remove(thing.key)

        def retry_func(thing: Thing, error: Exception, retry: Retry) -> bool:
            again = retry_until(count=limit)(thing, error, retry)
            if not again:
                given_up[thing.key] = thing.version
            return again

        manager = manage(queue, clock, retry_func, limiter)
        controller = RetryController(queue, handle, manager)
        newest: dict[str, int] = {}
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(controller.run())
            for version, (key, pause) in enumerate(adds):
                newest[key] = version
                queue.add(Thing(key, version))
                await clock.advance(pause)
            await clock.advance(1000)
            queue.close()
        assert wrong == []
        for key, version in newest.items():
            assert version in {good.get(key), given_up.get(key)}
        state: Any = controller.statistics()
        assert state.failed == state.retried + state.given_up

    asyncio.run(scenario())
