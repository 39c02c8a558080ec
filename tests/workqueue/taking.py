"""Helper that empties a queue."""

from listwatch.workqueue.work_queue import WorkQueue


async def take_all(queue: WorkQueue[str]) -> list[str]:
    """Take and finish all ready items."""
    items = []
    while len(queue):
        async with queue.item() as item:
            items.append(item)
    return items
