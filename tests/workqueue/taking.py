"""How tests empty a queue."""

from listwatch.workqueue.work_queue import WorkQueue


async def take_all(queue: WorkQueue[str]) -> list[str]:
    """Take and finish every ready item."""
    items = []
    while len(queue):
        async with queue.item() as item:
            items.append(item)
    return items
