"""The metrics of work queues, under client-go's names, for a Prometheus registry."""

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from listwatch.workqueue import WorkQueue, prometheus_collector


async def main() -> None:
    """Print what a scrape would return."""
    queue: WorkQueue[str] = WorkQueue(name="pods")
    registry = CollectorRegistry()
    registry.register(prometheus_collector([queue]))
    queue.add("shop/cart")
    queue.add("shop/till")
    async with queue.item():
        queue.add("bank/safe")
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith(("workqueue_depth", "workqueue_adds")):
            print(line)


if __name__ == "__main__":
    asyncio.run(main())
