"""A controller that deletes everything that arrives, with a source in memory.

Prints the keys of what was deleted, in order: a-hello, b-controller, c-framework.
"""

import asyncio

from listwatch import Object
from listwatch.cache import Controller, ControllerConfig, DeltaFIFO, Deltas, DeltaType, Store
from listwatch.testing import FakeControllerSource


async def main() -> None:
    """Run the controller until it has deleted every added object."""
    # The source simulates a resource of an API server.
    source = FakeControllerSource()

    # The downstream state, as we know it.
    downstream = Store()

    # The incoming changes. The queue knows the downstream state, so that relists and resyncs
    # produce the right updates and deletions.
    fifo = DeltaFIFO(known_objects=downstream)

    deletions: asyncio.Queue[str] = asyncio.Queue()

    def process(deltas: Deltas) -> None:
        newest = deltas.newest()
        item = newest.object
        if newest.type is not DeltaType.DELETED and isinstance(item, Object):
            # Update the downstream state, and delete the object.
            downstream.add(item)
            source.delete(item)
        elif item is not None:
            # Update the downstream state, and report the deletion. The queue's key function
            # knows tombstones.
            downstream.delete(item)
            deletions.put_nowait(fifo.key_of(item))

    controller = Controller(
        ControllerConfig(queue=fifo, lister_watcher=source, process=process, full_resync_period=0.1)
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())

        names = ["a-hello", "b-controller", "c-framework"]
        for name in names:
            # These pods are not valid, but the source validates nothing.
            source.add({"metadata": {"name": name}})

        # Wait until the controller has processed the added objects.
        deleted = {await deletions.get() for _ in names}
        for key in sorted(deleted):
            print(key)
        running.cancel()


if __name__ == "__main__":
    asyncio.run(main())
