import asyncio
import concurrent.futures
import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest

from listwatch.clock import Clock, FakeClock
from listwatch.errors import QueueClosedError
from listwatch.workqueue import threads
from listwatch.workqueue.priority_queue import PriorityQueue
from listwatch.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from listwatch.workqueue.threads import BlockingWorkQueue
from listwatch.workqueue.work_queue import WorkQueue

T = TypeVar("T")


@pytest.fixture
async def blocking(
    queue: WorkQueue[str], clock: FakeClock
) -> AsyncIterator[BlockingWorkQueue[str]]:
    yield BlockingWorkQueue(queue, clock=clock)
    queue.shut_down()


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run in another thread while the event loop keeps running."""
    return await asyncio.to_thread(function, *arguments)


async def waits(queue: WorkQueue[str], workers: int = 1) -> None:
    """Wait until this many workers wait for an item."""
    while queue.statistics().idle_workers < workers:  # noqa: ASYNC110 - a thread sets no event
        await asyncio.sleep(0)


async def test_a_thread_adds_takes_and_is_done(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str]
) -> None:
    def work() -> tuple[list[str], int]:
        for item in "aba":
            blocking.add(item)
        first = blocking.get()
        blocking.add(first)
        blocking.done(first)
        second = blocking.get()
        blocking.done(second)
        return [first, second], len(blocking)

    assert await in_thread(work) == (["a", "b"], 1)
    assert queue.statistics().processing == 0
    assert blocking


async def test_a_thread_waits_for_an_item_that_a_task_adds(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str]
) -> None:
    getting = asyncio.ensure_future(in_thread(blocking.get))
    await waits(queue)
    queue.add("a")
    assert await getting == "a"


async def test_with_item_is_done_after_the_body_and_requeues_what_failed_if_asked(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str], clock: FakeClock
) -> None:
    def work(*, fails: bool, requeue: bool) -> None:
        with blocking.item(requeue=requeue):
            assert queue.statistics().processing == 1
            if fails:
                raise LookupError

    queue.add("a")
    await asyncio.to_thread(work, fails=False, requeue=False)
    queue.add("a")
    with pytest.raises(LookupError):
        await asyncio.to_thread(work, fails=True, requeue=False)
    assert (len(queue), queue.statistics().processing, queue.num_requeues("a")) == (0, 0, 0)
    queue.add("a")
    with pytest.raises(LookupError):
        await asyncio.to_thread(work, fails=True, requeue=True)
    assert (queue.statistics().waiting, queue.num_requeues("a")) == (1, 1)
    await clock.advance(1)
    await asyncio.to_thread(work, fails=False, requeue=True)
    assert (len(queue), queue.statistics().processing, queue.num_requeues("a")) == (0, 0, 0)


async def test_times_and_rate_limits_work_from_a_thread(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str], clock: FakeClock
) -> None:
    def add() -> None:
        blocking.add_after("later", 5)
        blocking.add_rate_limited("limited")

    await in_thread(add)
    await clock.advance(1)
    assert await queue.get() == "limited"
    queue.done("limited")
    assert queue.num_requeues("limited") == blocking.num_requeues("limited") == 1
    await in_thread(blocking.forget, "limited")
    assert queue.num_requeues("limited") == 0
    await clock.advance(4)
    assert len(queue) == 1


async def test_mistakes_are_told_to_the_thread_that_made_them(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str]
) -> None:
    with pytest.raises(ValueError, match="no worker has taken it"):
        await in_thread(blocking.done, "never")
    with pytest.raises(TypeError, match="a list is not hashable"):
        await in_thread(blocking.add, [])
    with pytest.raises(TypeError, match="a list is not hashable"):
        await in_thread(blocking.add_after, [], 1)
    with pytest.raises(ValueError, match="use a finite number"):
        await in_thread(blocking.add_after, "a", float("nan"))
    assert queue.statistics().waiting == 0


async def test_a_get_with_a_limit_gives_up_and_takes_nothing(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str], clock: FakeClock
) -> None:
    getting = asyncio.ensure_future(in_thread(blocking.get, 5))
    await waits(queue)
    await clock.advance(5)
    with pytest.raises(TimeoutError):
        await getting
    queue.add("a")
    assert (len(queue), queue.statistics().idle_workers) == (1, 0)


async def test_shutting_down_from_a_thread_ends_the_others(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str]
) -> None:
    getting = [asyncio.ensure_future(in_thread(blocking.get)) for _ in range(3)]
    await waits(queue, 3)
    await in_thread(blocking.shut_down)
    for get in getting:
        with pytest.raises(QueueClosedError, match="'test' was shut down"):
            await get


async def test_a_thread_drains(queue: WorkQueue[str], blocking: BlockingWorkQueue[str]) -> None:
    queue.add("a")
    item = await queue.get()
    draining = asyncio.ensure_future(in_thread(blocking.shut_down_with_drain))
    while not queue._drainers:  # noqa: ASYNC110 - a thread sets no event
        await asyncio.sleep(0)
    queue.done(item)
    assert await draining is True


async def test_a_drain_by_a_thread_keeps_the_waiting_items_unless_told_to_drop_them(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str], clock: FakeClock
) -> None:
    queue.add_after("a", 5)
    draining = asyncio.ensure_future(in_thread(blocking.shut_down_with_drain, 3))
    while not queue._drainers:  # noqa: ASYNC110 - a thread sets no event
        await asyncio.sleep(0)
    assert queue.statistics().waiting == 1
    await clock.advance(3)
    with pytest.raises(TimeoutError, match="0 ready, 1 waiting, 0 in process"):
        await draining
    assert await asyncio.to_thread(blocking.shut_down_with_drain, drop_waiting=True) is True


async def test_in_the_loops_own_thread_it_refuses_to_wait_for_itself(
    queue: WorkQueue[str], blocking: BlockingWorkQueue[str]
) -> None:
    queue.add("a")
    for call in (blocking.get, blocking.shut_down, blocking.shut_down_with_drain):
        with pytest.raises(RuntimeError, match="use its WorkQueue in the event loop"):
            call()
    assert len(queue) == 1


def test_it_needs_a_loop_to_belong_to() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        BlockingWorkQueue(WorkQueue())


def test_when_the_loop_ends_a_waiting_thread_is_told() -> None:
    outcome: concurrent.futures.Future[object] = concurrent.futures.Future()

    async def main() -> BlockingWorkQueue[str]:
        queue: WorkQueue[str] = WorkQueue()
        blocking = BlockingWorkQueue(queue)

        def work() -> None:
            try:
                outcome.set_result(blocking.get())
            except QueueClosedError as error:
                outcome.set_exception(error)

        threading.Thread(target=work).start()
        await waits(queue)
        return blocking

    blocking = asyncio.run(main())
    with pytest.raises(QueueClosedError, match="work queue's event loop has stopped"):
        outcome.result(50)
    with pytest.raises(QueueClosedError, match="work queue's event loop is closed"):
        blocking.add("a")
    with pytest.raises(QueueClosedError, match="work queue's event loop is closed"):
        in_another_thread(blocking.get)


def in_another_thread(function: Callable[[], T]) -> T:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(50)


def test_a_call_that_reaches_a_loop_in_its_last_moments_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "_LOOK_AFTER_LOOP", 0.001)
    loop = asyncio.new_event_loop()
    queue: WorkQueue[str] = WorkQueue()

    async def make() -> BlockingWorkQueue[str]:
        return BlockingWorkQueue(queue)

    blocking = loop.run_until_complete(make())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        forgetting = pool.submit(blocking.forget, "a")
        while not loop._ready:  # type: ignore[attr-defined]  # the call has reached the loop
            pass
        loop._ready.clear()  # type: ignore[attr-defined]  # it never runs
        loop.close()
        with pytest.raises(QueueClosedError, match="work queue's event loop is closed"):
            forgetting.result(50)


@pytest.mark.parametrize("kind", [WorkQueue, PriorityQueue])
@pytest.mark.parametrize("moment", ["before it starts", "while it waits", "with the item"])
async def test_an_interrupt_in_a_waiting_thread_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock, moment: str, kind: type[WorkQueue[str]]
) -> None:
    queue: WorkQueue[str] = kind(clock=clock)
    blocking = BlockingWorkQueue(queue, clock=clock)
    if moment == "with the item":
        queue.add("a")
    reached, go_on = threading.Event(), threading.Event()

    def interrupted(future: concurrent.futures.Future[str]) -> str:
        if moment == "with the item":
            assert future.result(50) == "a"
        reached.set()
        go_on.wait(50)
        raise KeyboardInterrupt

    monkeypatch.setattr(blocking, "_result", interrupted)

    def work() -> str:
        try:
            return blocking.get()
        except KeyboardInterrupt:
            return "interrupted"

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        if moment == "before it starts":
            reached.wait(50)
            go_on.set()
            working.result(50)
        elif moment == "while it waits":
            await waits(queue)
        else:
            while not reached.is_set():  # noqa: ASYNC110 - a thread's event
                await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.wrap_future(working) == "interrupted"
    await clock.settle()
    assert queue.statistics().idle_workers == 0
    if moment != "with the item":
        queue.add("a")
    assert (len(queue), queue.statistics().processing) == (1, 0)


class Ledger:
    """Records who works on which item, and whether it was added again since."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.in_process: set[int] = set()
        self.worked: Counter[int] = Counter()
        self.added: Counter[int] = Counter()
        self.seen: Counter[int] = Counter()

    def add(self, item: int) -> None:
        with self.lock:
            self.added[item] += 1

    def take(self, item: int) -> None:
        with self.lock:
            assert item not in self.in_process
            self.in_process.add(item)
            self.seen[item] = self.added[item]

    def leave(self, item: int) -> None:
        """Release the item, and fail every fifth time."""
        with self.lock:
            self.in_process.remove(item)
            self.worked[item] += 1
            failed = self.worked[item] % 5 == 1
        if failed:
            raise LookupError

    def work_in_thread(self, queue: BlockingWorkQueue[int]) -> None:
        with contextlib.suppress(QueueClosedError):
            while True:
                with contextlib.suppress(LookupError), queue.item(requeue=True) as item:
                    self.take(item)
                    self.leave(item)

    async def work_in_task(self, queue: WorkQueue[int]) -> None:
        with contextlib.suppress(QueueClosedError):
            while True:
                with contextlib.suppress(LookupError):
                    async with queue.item(requeue=True) as item:
                        self.take(item)
                        await asyncio.sleep(0)
                        self.leave(item)

    def produce(self, queue: BlockingWorkQueue[int], seed: int) -> None:
        for number in range(300):
            item = (number * seed) % 50
            self.add(item)
            if number % 3:
                queue.add(item)
            else:
                queue.add_after(item, 0.0002 * (number % 4))


@pytest.mark.parametrize("kind", [WorkQueue, PriorityQueue])
async def test_threads_and_tasks_together_lose_nothing_and_never_share_an_item(
    kind: type[WorkQueue[int]],
) -> None:
    queue = kind(clock=Clock(), rate_limiter=ItemExponentialFailureRateLimiter(0.0001, 0.001))
    blocking = BlockingWorkQueue(queue)
    ledger = Ledger()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(in_thread(ledger.work_in_thread, blocking))
            group.create_task(ledger.work_in_task(queue))
        await asyncio.gather(*(in_thread(ledger.produce, blocking, seed) for seed in (1, 3, 7)))
        while queue.statistics().waiting or queue.statistics().processing or len(queue):  # noqa: ASYNC110 - no event says that no item is left
            await asyncio.sleep(0)
        assert await queue.shut_down_with_drain(50) is True
    assert ledger.in_process == set()
    assert ledger.seen == ledger.added  # every item was worked on after it was last added


FORKING = """
import asyncio, os, sys, threading
from listwatch.workqueue.threads import BlockingWorkQueue
from listwatch.workqueue.work_queue import WorkQueue

def work(blocking):
    with blocking.item() as key:
        child = os.fork()
        if not child:
            try:
                blocking.add("b")
            except RuntimeError as error:
                print("another process" in str(error), flush=True)
    if not child:
        print("left", flush=True)
        os._exit(0)
    os.waitpid(child, 0)

async def main():
    queue = WorkQueue()
    queue.add("a")
    await asyncio.to_thread(work, BlockingWorkQueue(queue))
    print(queue.statistics().processing, len(queue))

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_leaves_an_item_to_the_parent() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert ended.stdout.split() == ["True", "left", "0", "0"]
