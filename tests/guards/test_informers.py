"""The informers' cost per update, per listed object and per informer, without a server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any

import pytest

from guards.counting import bytes_kept, calls, guard
from listwatch.cache.factory import InformerFactory
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.informer import FIFOChoice, Informer
from listwatch.cache.list_watch import ListOptions, ObjectList, WatchEvent, WatchOptions
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.objects import Object


def _object(number: int, version: int, namespace: str = "ns") -> Object:
    meta = {
        "namespace": namespace,
        "name": f"p{number}",
        "uid": f"uid-{number}",
        "resourceVersion": str(version),
        "ownerReferences": [{"uid": f"owner-{number % 7}", "kind": "Set", "name": "s"}],
    }
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


class Source:
    """A resource without cost of its own: one list, then the given batches of events."""

    def __init__(self, objects: Sequence[Object] = ()) -> None:
        self.objects = objects
        self._batches: asyncio.Queue[Sequence[WatchEvent]] = asyncio.Queue()

    async def list(self, _: ListOptions) -> ObjectList:
        return ObjectList(items=list(self.objects), resource_version="1000000")

    @asynccontextmanager
    async def watch(
        self, options: WatchOptions
    ) -> AsyncIterator[AsyncIterator[Sequence[WatchEvent]]]:
        async def batches() -> AsyncIterator[Sequence[WatchEvent]]:
            if options.send_initial_events:
                yield [WatchEvent("ADDED", obj) for obj in self.objects]
                yield [WatchEvent("BOOKMARK", None, "1000000", initial_events_end=True)]
            while True:
                yield await self._batches.get()

        yield batches()

    def send(self, events: Iterable[WatchEvent], size: int) -> None:
        events = iter(events)
        while batch := tuple(islice(events, size)):
            self._batches.put_nowait(batch)


class Sources:
    """The sources of a factory's informers."""

    def list_watch(self, *_: object, **__: object) -> Source:
        return Source([_object(1, 1)])


class Counting:
    """A handler that counts calls and can wait for a number of them."""

    def __init__(self, calls: int) -> None:
        self._left = calls
        self.done = asyncio.Event()

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if not self._left:
            self.done.set()


def _shared(source: Source, handler: HandlerFuncs, clock: FakeClock) -> Any:
    informer = SharedInformer(source, watch_list=False, clock=clock)  # with two indexes of its own
    informer.add_handler(handler)
    return informer


def _single(fifo: FIFOChoice, source: Source, handler: HandlerFuncs, clock: FakeClock) -> Any:
    indexers = {"namespace": lambda obj: (obj.namespace,), "kind": lambda obj: (obj.kind,)}
    return Informer(source, handler, fifo=fifo, indexers=indexers, watch_list=False, clock=clock)


MAKERS: dict[str, Callable[[Source, HandlerFuncs, FakeClock], Any]] = {
    "shared-informer": _shared,
    "informer-ordered": partial(_single, "ordered"),
    "informer-delta": partial(_single, "delta"),
}


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("kind", MAKERS)
async def test_an_update_costs_what_it_did(kind: str, size: int) -> None:
    """From the reflector through the queue and two indexes to the handler."""

    async def work(items: int) -> Mapping[str, int]:
        source, done, clock = (
            Source([_object(n, n) for n in range(50)]),
            Counting(items),
            FakeClock(),
        )
        events = [WatchEvent("MODIFIED", _object(n % 50, 1000001 + n)) for n in range(items)]
        informer = MAKERS[kind](source, HandlerFuncs(on_update=done), clock)
        async with informer:
            await informer.wait_for_sync()
            await clock.settle()
            with calls() as counted:
                source.send(events, size)
                await done.done.wait()
        return counted

    await guard(f"{kind}-update-{size}", work, items=100)


@pytest.mark.parametrize("kind", MAKERS)
async def test_updates_keep_no_memory(kind: str) -> None:
    """Each object replaces the one before it."""

    async def kept_by(items: int) -> Mapping[str, int]:
        source, done, clock = (
            Source([_object(n, n) for n in range(50)]),
            Counting(items),
            FakeClock(),
        )
        events = (WatchEvent("MODIFIED", _object(n % 50, 1000001 + n)) for n in range(items))
        informer = MAKERS[kind](source, HandlerFuncs(on_update=done), clock)
        async with informer:
            await informer.wait_for_sync()
            await clock.settle()
            with bytes_kept() as kept:
                while batch := list(islice(events, 500)):
                    source.send(batch, 10)
                    await clock.settle()
                batch.clear()
        assert done.done.is_set()
        return kept

    few, many = await kept_by(500), await kept_by(5000)
    grown = {stage: size - few.get(stage, 0) for stage, size in many.items()}
    assert sum(grown.values()) < 4500, f"updates keep memory; what grew: {grown}"


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_listed_object_costs_what_it_did(kind: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        source, done, clock = (
            Source([_object(n, n) for n in range(items)]),
            Counting(items),
            FakeClock(),
        )
        informer = MAKERS[kind](source, HandlerFuncs(on_add=done), clock)
        with calls() as counted:
            async with informer:
                await done.done.wait()
        return counted

    await guard(f"{kind}-listed", work, items=100)


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_listed_object_keeps_the_memory_it_did(kind: str) -> None:
    """Memory that store, indexes and informer add to the object itself."""

    async def work(items: int) -> Mapping[str, int]:
        source, done, clock = (
            Source([_object(n, n) for n in range(items)]),
            Counting(items),
            FakeClock(),
        )
        informer = MAKERS[kind](source, HandlerFuncs(on_add=done), clock)
        async with informer:
            with bytes_kept() as counted:
                await done.done.wait()
                await clock.settle()
        return counted

    await guard(f"{kind}-listed-kept", work, items=100)


@pytest.mark.parametrize("what", ["start", "statistics", "wait", "handle", "remove", "stop"])
async def test_an_informer_among_many_costs_what_one_does(what: str) -> None:
    """The lifetime cost of a factory's informers of namespaces."""

    async def work(items: int) -> Mapping[str, int]:
        clock = FakeClock()
        steps: dict[str, Mapping[str, int]] = {}
        factory = InformerFactory(Sources(), clock=clock)
        await factory.__aenter__()
        with calls() as steps["start"]:
            informer = factory.namespaces("pods", map(str, range(items)))
            await clock.settle()
        with calls() as steps["wait"]:
            await informer.wait_for_sync()
            assert await factory.wait_for_cache_sync(0) == {}
            assert informer.has_synced
        with calls() as steps["statistics"]:
            for one in factory:
                assert one.statistics().store.objects == 1
        with calls() as steps["handle"]:
            listener = informer.add_handler(HandlerFuncs())
            await listener.wait_for_sync()
        with calls() as steps["remove"]:
            listener.remove()
            await clock.settle()
        informer.add_handler(HandlerFuncs())
        await clock.settle()
        with calls() as steps["stop"]:
            await factory.__aexit__(None, None, None)
        return steps[what]

    await guard(f"factory-{what}", work, items=20)


@pytest.mark.parametrize("what", ["handle", "statistics", "tell", "remove", "stop"])
async def test_a_handler_among_many_costs_what_one_does(what: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        clock, source = FakeClock(), Source([_object(1, 1)])
        steps: dict[str, Mapping[str, int]] = {}
        informer = SharedInformer(source, watch_list=False, clock=clock)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(informer.run())
            await informer.wait_for_sync()
            with calls() as steps["handle"]:
                listeners = [informer.add_handler(HandlerFuncs()) for _ in range(items)]
                await clock.settle()
            with calls() as steps["statistics"]:
                assert len(informer.statistics().listeners) == items
            with calls() as steps["tell"]:
                source.send([WatchEvent("MODIFIED", _object(1, 1000001))], 1)
                await clock.settle()
            with calls() as steps["remove"]:
                for listener in listeners[: items // 2]:
                    informer.remove_handler(listener)
                await clock.settle()
            with calls() as steps["stop"]:
                running.cancel()
                await clock.settle()
        return steps[what]

    await guard(f"handlers-{what}", work, items=20)


async def test_who_waits_for_a_version_among_many_costs_what_one_does() -> None:
    async def work(items: int) -> Mapping[str, int]:
        clock, source = FakeClock(), Source([_object(1, 1)])
        informer = SharedInformer(source, watch_list=False, clock=clock)
        async with informer, asyncio.TaskGroup() as tasks:
            await informer.wait_for_sync()
            with calls() as counted:
                for number in range(items):
                    version = str(1000001 + number)
                    tasks.create_task(informer.wait_for_resource_version(version))
                await clock.settle()
                for number in range(items):
                    source.send([WatchEvent("MODIFIED", _object(1, 1000001 + number))], 1)
                    await clock.settle()
        return counted

    await guard("version-waiter", work, items=20)
