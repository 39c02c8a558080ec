"""An indexed cache and one handler, fed by a DeltaFIFO that knows the cache.

Does what `NewIndexerInformer` does.
"""

import asyncio

from listwatch import Object
from listwatch.cache import Informer, Item
from listwatch.testing import FakeControllerSource, pod


class Telling:
    """A handler that prints its calls."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: FBT001, ARG002 - the protocol's
        """Print an addition."""
        self.heard.put_nowait(f"added {obj.key}")

    def on_update(self, old: Object, new: Object) -> None:
        """Print an update."""
        nodes = [obj["spec"]["nodeName"] for obj in (old, new)]
        self.heard.put_nowait(f"updated {new.key}: {nodes[0]} -> {nodes[1]}")

    def on_delete(self, obj: Item) -> None:
        """Print a deletion."""
        self.heard.put_nowait(f"deleted {obj.key}")


async def main() -> None:
    """Follow a source, and miss a deletion that the next list reveals."""
    source = FakeControllerSource()
    source.add(pod("a", "shop", nodeName="n1"))
    handler = Telling()
    informer = Informer(
        source,
        handler,
        indexers={"node": lambda obj: [obj["spec"]["nodeName"]]},
        fifo="delta",
    )
    async with informer:
        print(await handler.heard.get())
        source.add(pod("b", "shop", nodeName="n1"))
        print(await handler.heard.get())
        source.modify(pod("a", "shop", nodeName="n2"))
        print(await handler.heard.get())
        print("on n1:", informer.indexer.index_keys("node", "n1"))
        source.delete_drop_watch("shop/b")
        source.reset_watch()
        print(await handler.heard.get())


if __name__ == "__main__":
    asyncio.run(main())
