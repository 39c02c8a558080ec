"""One event per object, including missed deletions: the queue keeps its own store.

Does what `NewEventQueue` does.
"""

import asyncio

from listwatch import Object
from listwatch.cache import Deltas, EventQueue


def pod(name: str, version: int) -> Object:
    """Return an object as from a list or a watch."""
    return Object.from_dict({"metadata": {"name": name, "resourceVersion": str(version)}})


def show(deltas: Deltas) -> None:
    """Print the one event that all changes of an object became."""
    (event,) = deltas
    version = event.object.resource_version if isinstance(event.object, Object) else "?"
    print(f"{event.type} {deltas.key} at {version}")


async def main() -> None:
    """Queue changes faster than they are popped."""
    queue = EventQueue()
    queue.add(pod("a", 1))
    queue.update(pod("a", 2))
    queue.add(pod("b", 3))
    queue.delete(pod("b", 4))  # created and deleted: no event
    await queue.pop(show)
    queue.replace([], "9")  # a list without a, whose deletion the watch missed
    await queue.pop(show)


if __name__ == "__main__":
    asyncio.run(main())
