"""A priority queue: new changes come before the initial objects."""

import asyncio

from listwatch.workqueue import LOW_PRIORITY, PriorityQueue


async def main() -> None:
    """Queue an initial list and a change, and process everything."""
    queue: PriorityQueue[str] = PriorityQueue(name="example")
    for number in range(3):
        queue.add(f"listed-{number}", priority=LOW_PRIORITY)
    queue.add("changed")
    queue.add("listed-2", priority=10)

    while len(queue):
        async with queue.item() as key:
            print(f"{key} at {queue.priority_of(key)}")


if __name__ == "__main__":
    asyncio.run(main())
