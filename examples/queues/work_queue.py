"""Workers on a work queue: failed items are retried later, and namespaces take turns."""

import asyncio

from listwatch.cache import QueueClosedError
from listwatch.workqueue import ItemExponentialFailureRateLimiter, WorkQueue

failures = {"shop/cart": 2}
done: set[str] = set()
all_done = asyncio.Event()


async def reconcile(key: str) -> None:
    """Bring the world to the state that the object of this key asks for."""
    if failures.get(key, 0) > 0:
        failures[key] -= 1
        raise ConnectionError("no answer")
    print(f"{key} is done")
    done.add(key)
    if len(done) == 4:
        all_done.set()


async def work(queue: WorkQueue[str]) -> None:
    """Reconcile one key after the other until the queue is shut down."""
    while True:
        try:
            async with queue.item(requeue=True) as key:
                await reconcile(key)
        except ConnectionError as error:
            print(f"{key} failed: {error}")
        except QueueClosedError:
            return


async def main() -> None:
    """Run two workers."""
    queue: WorkQueue[str] = WorkQueue(
        name="example",
        rate_limiter=ItemExponentialFailureRateLimiter(base=0.01, limit=1),
        group=lambda key: key.split("/")[0],
    )
    for key in ("shop/cart", "shop/till", "shop/cart", "bank/safe"):
        queue.add(key)
    queue.add_after("bank/door", 0.005)

    async with asyncio.TaskGroup() as group:
        group.create_task(work(queue))
        group.create_task(work(queue))
        await all_done.wait()
        await queue.shut_down_with_drain(timeout=10)
    print(f"{queue.statistics().retries} retries")


if __name__ == "__main__":
    asyncio.run(main())
