"""Threads that share a work queue with an event loop, for work that blocks."""

import asyncio
import time

from listwatch.cache import QueueClosedError
from listwatch.workqueue import BlockingWorkQueue, WorkQueue


def work(queue: BlockingWorkQueue[str]) -> int:
    """Work until the queue is shut down, and return the number of items."""
    count = 0
    while True:
        try:
            with queue.item():
                time.sleep(0.001)  # stands for a blocking library call
                count += 1
        except QueueClosedError:
            return count


async def main() -> None:
    """Let two threads process the items that this task adds."""
    queue: WorkQueue[str] = WorkQueue()
    blocking = BlockingWorkQueue(queue)
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(asyncio.to_thread(work, blocking)) for _ in range(2)]
        for number in range(20):
            queue.add(f"item-{number}")
        await queue.shut_down_with_drain()
    print(f"{sum(worker.result() for worker in workers)} items")


if __name__ == "__main__":
    asyncio.run(main())
