"""One cache for several handlers that join at different times.

Does what `NewSharedInformer` does.
"""

import asyncio

from listwatch import SharedInformer, Updated
from listwatch.testing import FakeControllerSource, pod


async def main() -> None:
    """Listen to one source twice."""
    source = FakeControllerSource()
    source.add(pod("a", "shop"))
    informer = SharedInformer(source)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run(stop))
        await informer.wait_for_sync()
        print("store:", informer.indexer.list_keys())

        changes = informer.changes()
        first = await anext(changes)
        print("a listener who comes later hears of what is there:", first.key)
        source.modify(pod("a", "shop", nodeName="n1"))
        second = await anext(changes)
        if isinstance(second, Updated):
            print("and of what happens:", second.key, "is now on", second.new["spec"]["nodeName"])
        await changes.aclose()
        stop.set()


if __name__ == "__main__":
    asyncio.run(main())
