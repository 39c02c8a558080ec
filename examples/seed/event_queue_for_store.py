"""An event queue on the caller's store, which decides what is known.

Does what `NewEventQueueForStore` does.
"""

import asyncio

from listwatch import Object
from listwatch.cache import Deltas, DeltaType, EventQueue, Store


def route(name: str, version: int) -> Object:
    """Return an object as from a list or a watch."""
    return Object.from_dict({"metadata": {"name": name, "resourceVersion": str(version)}})


async def main() -> None:
    """Update a store from the queue's events, with a list that lacks an object."""
    store = Store()
    queue = EventQueue(known_objects=store)

    def apply(deltas: Deltas) -> None:
        event = deltas.newest()
        if event.type is DeltaType.DELETED and event.object is not None:
            store.delete(event.object)
        elif isinstance(event.object, Object):
            store.update(event.object)
        print(f"{event.type} {deltas.key}; known: {sorted(store.list_keys())}")

    queue.replace([route("a", 1), route("b", 2)], "2")
    while len(queue):
        await queue.pop(apply)
    queue.update(route("a", 3))
    queue.replace([route("a", 3)], "5")
    while len(queue):
        await queue.pop(apply)


if __name__ == "__main__":
    asyncio.run(main())
