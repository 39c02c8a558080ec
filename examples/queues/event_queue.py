"""An event queue: one event per object, including deletions that the watch missed."""

import asyncio

from listwatch import Object
from listwatch.cache import Deltas, EventQueue


def route(name: str, version: int) -> Object:
    """Return an object as from a list or a watch."""
    metadata = {"namespace": "shop", "name": name, "resourceVersion": str(version)}
    return Object.from_dict({"metadata": metadata})


def show(deltas: Deltas) -> None:
    """Print an event."""
    (event,) = deltas
    if isinstance(event.object, Object):
        print(f"{event.type} {deltas.key} at {event.object.resource_version}")


async def main() -> None:
    """Consume two lists with some events between them."""
    queue = EventQueue()
    queue.replace([route("cart", 1), route("till", 2)], "2")
    while not queue.list_consumed:
        await queue.pop(show)
    print(f"consumed a list of {queue.list_count}")

    queue.update(route("cart", 3))
    queue.delete(route("cart", 4))
    queue.add(route("cart", 5))  # deleted and recreated before a pop: an update
    queue.add(route("door", 6))
    queue.delete(route("door", 7))  # created and deleted before a pop: no event
    queue.replace([route("cart", 5)], "9")  # the watch missed the deletion of till
    while len(queue):
        await queue.pop(show)


if __name__ == "__main__":
    asyncio.run(main())
