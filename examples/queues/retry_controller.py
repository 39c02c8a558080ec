"""A retry controller on a DeltaFIFO: an object's deltas, handled until that succeeds."""

import asyncio

from listwatch import Object
from listwatch.cache import DeltaFIFO, Deltas
from listwatch.workqueue import QueueRetryManager, RetryController, TokenBucket, retry_until

attempts = 0


async def handle(deltas: Deltas) -> None:
    """Handle everything that happened to one object since the last time."""
    global attempts  # noqa: PLW0603 - an example's state
    attempts += 1
    print(f"{deltas.key}: {[str(delta.type) for delta in deltas]}")
    if deltas.key == "shop/cart" and attempts < 3:
        raise ConnectionError("no answer")


def pod(namespace: str, name: str) -> Object:
    """Return an object as from a watch."""
    return Object.from_dict({"metadata": {"namespace": namespace, "name": name}})


async def main() -> None:
    """Handle the queued deltas, and end when the queue is closed and empty."""
    queue = DeltaFIFO()
    controller = RetryController(
        queue,
        handle,
        QueueRetryManager(
            queue,
            queue.key_of,
            retry_until(count=60, age=1800, is_fatal=lambda error: isinstance(error, TypeError)),
            TokenBucket(qps=1, burst=10),
        ),
    )
    queue.add(pod("shop", "cart"))
    queue.update(pod("shop", "cart"))
    queue.add(pod("bank", "safe"))
    queue.close()
    await controller.run()
    print(controller.statistics())


if __name__ == "__main__":
    asyncio.run(main())
