"""One watch, one indexed cache, two handlers, and a detector of changes to cached objects.

Does what `sharedIndexInformer.Run` does.
"""

import asyncio
from collections.abc import Iterable

from listwatch import Object, SharedInformer
from listwatch.cache import Item
from listwatch.testing import FakeControllerSource, pod


def by_node(obj: Object) -> Iterable[str]:
    """Index pods by the node that they run on."""
    return [obj["spec"]["nodeName"]]


class Telling:
    """A handler that prints its calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: FBT001 - the protocol's
        """Print an addition."""
        self._tell(f"{obj.name} {'was there' if is_in_initial_list else 'came'}")

    def on_update(self, old: Object, new: Object) -> None:
        """Print an update."""
        nodes = [obj["spec"]["nodeName"] for obj in (old, new)]
        self._tell(f"{new.name} moved from {nodes[0]} to {nodes[1]}")

    def on_delete(self, obj: Item) -> None:
        """Print a deletion."""
        self._tell(f"{obj.key} went")

    def _tell(self, words: str) -> None:
        self.heard.put_nowait(f"{self.name}: {words}")


async def main() -> None:
    """Call the first handler with everything, then a second one that joins late."""
    source = FakeControllerSource()
    source.add(pod("a", "shop", nodeName="n1"))
    source.add(pod("b", "shop", nodeName="n1"))
    informer = SharedInformer(source, indexers={"node": by_node}, mutation_detector=True)
    first = Telling("first")
    informer.add_handler(first)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run(stop))
        for _ in range(2):
            print(await first.heard.get())
        source.modify(pod("b", "shop", nodeName="n2"))
        source.delete("shop/a")
        for _ in range(2):
            print(await first.heard.get())
        print("on n2:", [obj.name for obj in informer.indexer.by_index("node", "n2")])
        second = Telling("second")
        informer.add_handler(second)
        print(await second.heard.get())
        stop.set()


if __name__ == "__main__":
    asyncio.run(main())
