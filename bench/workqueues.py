"""Measures work queues: per item, and with a million delayed items: `python bench/workqueues.py`.

The rivals are asyncio's queue, which neither deduplicates nor counts, in the same run; and
client-go's work queue (v0.36, one goroutine, 0.26 µs for add + get + done), whose figure is quoted
because it needs a Go tool chain.
"""

import argparse
import asyncio
import gc
import platform
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from listwatch.clock import Clock
from listwatch.workqueue.priority_queue import PriorityQueue
from listwatch.workqueue.rate_limiters import (
    ItemExponentialFailureRateLimiter,
    TokenBucket,
    default_rate_limiter,
)
from listwatch.workqueue.work_queue import WorkQueue

CLIENT_GO = 0.26
ROUNDS = 5
KEYS = [f"namespace-{number % 50}/name-{number}" for number in range(1000)]


class StillClock(Clock):
    """A clock that is moved by hand; its only timer runs on demand."""

    def __init__(self) -> None:
        self.moment = 0.0
        self.timer: tuple[Callable[..., object], tuple[object, ...]] | None = None

    def now(self) -> float:
        """Return the time."""
        return self.moment

    def call_later(
        self, seconds: float, callback: Callable[..., object], *args: object
    ) -> "StillClock":
        """Remember the callback."""
        del seconds
        self.timer = (callback, args)
        return self

    def cancel(self) -> None:
        """Forget the callback."""
        self.timer = None

    def run(self, moment: float) -> None:
        """Move to a time, and run the timer until nothing more is due."""
        self.moment = moment
        while self.timer is not None:
            callback, args = self.timer
            self.timer = None
            callback(*args)


def resident() -> float:
    """Return this process's megabytes in memory."""
    gc.collect()
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


async def work_queue(queue: WorkQueue[str]) -> int:
    """Add, get, done."""
    for key in KEYS:
        queue.add(key)
        queue.done(await queue.get())
    return queue.statistics().work_duration.count


async def work_queue_full(queue: WorkQueue[str]) -> int:
    """Add, get, done, on a queue that holds a thousand items."""
    for key in KEYS:
        queue.add(key)
    for _ in KEYS:
        queue.done(await queue.get())
    return queue.statistics().work_duration.count


async def with_item(queue: WorkQueue[str]) -> int:
    """Add, async with queue.item()."""
    for key in KEYS:
        queue.add(key)
        async with queue.item():
            pass
    return queue.statistics().work_duration.count


async def with_item_requeue(queue: WorkQueue[str]) -> int:
    """Add, async with queue.item(requeue=True)."""
    for key in KEYS:
        queue.add(key)
        async with queue.item(requeue=True):
            pass
    return queue.statistics().work_duration.count


async def asyncio_queue() -> int:
    """Put, get and task_done of asyncio.Queue."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    count = 0
    for key in KEYS:
        queue.put_nowait(key)
        await queue.get()
        queue.task_done()
        count += 1
    return count


async def waiting_workers(queue: WorkQueue[str]) -> int:
    """Four waiting workers, items added one by one, with a turn of the event loop for each."""

    async def work() -> None:
        while True:
            async with queue.item():
                pass

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(4)]
        await asyncio.sleep(0)
        for key in KEYS:
            queue.add(key)
            await asyncio.sleep(0)
        for worker in workers:
            worker.cancel()
    return queue.statistics().work_duration.count


async def deduplicated(queue: WorkQueue[str]) -> int:
    """Add an item that is queued already."""
    queue.add(KEYS[0])
    for _ in KEYS:
        queue.add(KEYS[0])
    assert len(queue) == 1
    return len(KEYS)


async def rate_limiters() -> int:
    """Call the default rate limiter, and forget."""
    limiter = default_rate_limiter()
    for key in KEYS:
        limiter.when(key)
        limiter.forget(key)
    return len(KEYS)


async def token_bucket() -> int:
    """Try to take a token."""
    bucket = TokenBucket(1e9, 10**9)
    return sum(bucket.try_accept() for _ in KEYS)


async def measure(run: Callable[[], Awaitable[int]]) -> float:
    """Return the CPU microseconds per item in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        repeats = 0
        start = time.process_time()
        while time.process_time() - start < 0.05:
            assert await run() == len(KEYS)
            repeats += 1
        best = min(best, (time.process_time() - start) / repeats / len(KEYS))
    return best * 1e6


def fair() -> WorkQueue[str]:
    """Return a queue that is fair among namespaces."""
    return WorkQueue(group=lambda key: key.split("/", 1)[0])


async def micro() -> None:
    """Print microseconds per item."""
    rows: list[tuple[str, Callable[[], Awaitable[int]], float | None]] = [
        ("add + get + done", lambda: work_queue(WorkQueue()), 2.0),
        ("add + get + done, 1,000 items held", lambda: work_queue_full(WorkQueue()), 2.0),
        ("add + item()", lambda: with_item(WorkQueue()), 3.0),
        (
            "add + item(requeue=True)",
            lambda: with_item_requeue(WorkQueue(rate_limiter=ItemExponentialFailureRateLimiter())),
            3.0,
        ),
        ("add + item(), 4 waiting workers", lambda: waiting_workers(WorkQueue()), None),
        ("add of a queued item", lambda: deduplicated(WorkQueue()), None),
        ("fair among 50 groups, 1,000 items held", lambda: work_queue_full(fair()), None),
        ("priority queue", lambda: work_queue(PriorityQueue()), None),
        ("priority queue, 1,000 items held", lambda: work_queue_full(PriorityQueue()), None),
        ("default rate limiter, when + forget", rate_limiters, None),
        ("token bucket, try_accept", token_bucket, None),
        ("rival: asyncio.Queue put + get + task_done", asyncio_queue, None),
    ]
    print(f"{'CPU microseconds an item, best of ' + str(ROUNDS):46} {'µs':>6} {'goal':>6}")
    figures = []
    for name, run, goal in rows:
        figures.append(took := await measure(run))
        verdict = "" if goal is None else f"{goal:6.1f} {'met' if took <= goal else 'MISSED'}"
        print(f"{name:46} {took:6.2f} {verdict}")
    print(f"{'rival: client-go v0.36, quoted':46} {CLIENT_GO:6.2f}")
    print(f"add + get + done takes {figures[0] / figures[-1]:.1f} times what asyncio.Queue does")


async def waiting(count: int) -> None:
    """Print the memory of this many delayed items, without the keys themselves."""
    print(f"\n{'items that wait':>15} {'add_after µs':>13} {'to ready µs':>12} {'bytes each':>11}")
    size = 1000
    while size <= count:
        keys = [f"namespace/name-{number}" for number in range(size)]
        clock = StillClock()
        queue: WorkQueue[str] = WorkQueue(clock=clock)
        before = resident()
        start = time.process_time()
        for number, key in enumerate(keys):
            # Without an order, like back-off delays.
            queue.add_after(key, 1 + number * 7919 % size)
        added = (time.process_time() - start) / size
        bytes_each = (resident() - before) * 2**20 / size
        assert queue.statistics().waiting == size
        start = time.process_time()
        clock.run(size + 1.0)
        ready = (time.process_time() - start) / size
        assert len(queue) == size
        print(f"{size:15,} {added * 1e6:13.2f} {ready * 1e6:12.2f} {bytes_each:11.0f}")
        size *= 10
    await asyncio.sleep(0)


async def repeated(count: int) -> None:
    """Print the memory left by one item whose delay is shortened again and again."""
    queue: WorkQueue[str] = WorkQueue(clock=StillClock())
    before = resident()
    start = time.process_time()
    for number in range(count):
        queue.add_after("key", float(count - number))
    took = (time.process_time() - start) / count
    kept = resident() - before
    print(f"one wait shortened {count:,} times: {took * 1e6:.2f} µs each, {kept:.1f} MB kept")
    await asyncio.sleep(0)


async def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="the most items that wait")
    options = parser.parse_args()
    print(f"{platform.python_implementation()} {platform.python_version()}\n")
    await micro()
    await waiting(options.waiting)
    await repeated(min(options.waiting, 200_000))


if __name__ == "__main__":
    asyncio.run(main())
