"""Helpers for the tests of both queues: delta histories, controlled pops, known objects."""

import asyncio
from collections.abc import Callable, Iterable

from listwatch.cache.deltas import Delta, Deltas, DeltaType, Item, Queue
from listwatch.cache.store import Store
from listwatch.objects import DeletedFinalStateUnknown, Object

A, U, D, R, S = (
    DeltaType.ADDED,
    DeltaType.UPDATED,
    DeltaType.DELETED,
    DeltaType.REPLACED,
    DeltaType.SYNC,
)


def make(name: str, version: int = 1) -> Object:
    return Object.from_dict({"metadata": {"name": name, "resourceVersion": str(version)}})


def known(*objs: Object) -> Store:
    store = Store()
    store.replace(objs, "1")
    return store


def story(deltas: Iterable[Delta]) -> list[tuple[DeltaType, str]]:
    """Return each delta's type and version; '†' marks a tombstone, '†?' one without an object."""
    told = []
    for delta in deltas:
        match delta.object:
            case Object() as obj:
                told.append((delta.type, obj.resource_version))
            case DeletedFinalStateUnknown(obj=None):
                told.append((delta.type, "†?"))
            case DeletedFinalStateUnknown(obj=Object() as obj):
                told.append((delta.type, f"†{obj.resource_version}"))
            case _:
                told.append((delta.type, delta.resource_version))
    return told


def done(_: object) -> None:
    pass


async def pop_all(queue: Queue) -> list[Deltas]:
    """Pop everything in the queue."""
    return [await queue.pop(done) for _ in range(queue.statistics().depth)]


async def drain(queue: Queue) -> list[tuple[str, list[tuple[DeltaType, str]]]]:
    """Pop everything in the queue and return each key with its deltas."""
    return [(deltas.key, story(deltas)) for deltas in await pop_all(queue)]


class Broken:
    """Known objects whose list or lookup fails."""

    def __init__(self, keys: list[str] | None = None) -> None:
        self.keys = keys

    def list_keys(self) -> list[str]:
        if self.keys is None:
            raise OSError("no keys today")
        return self.keys

    def get_by_key(self, key: str) -> Item | None:
        raise OSError(f"no {key} today")


class Everything:
    """Known objects where every key is found but none is listed, as the seed's keyListerGetter."""

    def list_keys(self) -> list[str]:
        return []

    def get_by_key(self, key: str) -> Item | None:
        return DeletedFinalStateUnknown(key)


class Popped:
    """A pop whose process function waits until the test decides its outcome."""

    def __init__(self, queue: Queue) -> None:
        self.started = asyncio.Event()
        self.deltas = Deltas()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(queue.pop(self._process))

    async def _process(self, deltas: Deltas) -> None:
        self.deltas = deltas
        self.started.set()
        await self._end

    async def succeed(self) -> None:
        self._end.set_result(None)
        await self.task

    async def fail(self, error: Exception) -> None:
        self._end.set_exception(error)
        await asyncio.wait([self.task])

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def start(queue: Queue) -> Popped:
    popped = Popped(queue)
    await popped.started.wait()
    return popped


def raising(error: BaseException) -> Callable[[object], None]:
    def process(_: object) -> None:
        raise error

    return process
