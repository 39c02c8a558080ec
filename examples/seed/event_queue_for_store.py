"""An event queue on the caller's own store, which alone says what is known.

Does what `NewEventQueueForStore` does.
"""

import asyncio

from listwatch import Object
from listwatch.cache import Deltas, DeltaType, EventQueue, Store


def route(name: str, version: int) -> Object:
    """Return an object as a list or a watch would give it."""
    return Object.from_dict({"metadata": {"name": name, "resourceVersion": str(version)}})


async def main() -> None:
    """Keep a store by the queue's events, through a list and what it lacks."""
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
