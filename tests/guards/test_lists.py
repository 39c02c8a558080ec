"""The cost of an object that is listed again, and of one that a selector or an index looks at."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from guards.counting import calls, guard
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.list_watch import ListOptions, ObjectList, WatchEvent, WatchOptions
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.errors import ExpiredError
from listwatch.objects import Object


def _object(number: int, version: int) -> Object:
    return Object.from_dict(
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "namespace": f"team-{number % 5}",
                "name": f"p{number}",
                "uid": f"uid-{number}",
                "resourceVersion": str(version),
                "labels": {
                    "app": ("web", "db")[number % 2],
                    "tier": ("web", "db", "x")[number % 3],
                },
            },
        }
    )


class Expiring:
    """A resource whose watch expires on demand, so that it is listed again."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self.objects = objects
        self.lists = 0
        self.expired = asyncio.Event()

    async def list(self, _: ListOptions) -> ObjectList:
        self.lists += 1
        return ObjectList(items=list(self.objects), resource_version=str(1_000_000 + self.lists))

    @asynccontextmanager
    async def watch(self, _: WatchOptions) -> AsyncIterator[AsyncIterator[Sequence[WatchEvent]]]:
        async def batches() -> AsyncIterator[Sequence[WatchEvent]]:
            while not self.expired.is_set():
                await self.expired.wait()
                yield ()
            self.expired.clear()
            raise ExpiredError("too old")

        yield batches()


@pytest.mark.parametrize("what", ["unchanged", "changed", "deleted"])
async def test_an_object_listed_again_costs_what_it_did(what: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        source, clock = Expiring([_object(n, n + 1) for n in range(items)]), FakeClock()
        told: list[object] = []
        informer = SharedInformer(source, watch_list=False, clock=clock)
        informer.add_handler(
            HandlerFuncs(on_update=lambda _, new: told.append(new), on_delete=told.append)
        )
        async with informer:
            await informer.wait_for_sync()
            await clock.settle()
            if what == "changed":
                source.objects = [_object(n, 1000 + n) for n in range(items)]
            elif what == "deleted":
                source.objects = ()
            with calls() as counted:
                source.expired.set()
                await clock.settle()
            assert source.lists == 2
            assert len(told) == (0 if what == "unchanged" else items)
        return counted

    await guard(f"relisted-{what}", work, items=100)


@asynccontextmanager
async def _synced(items: int) -> AsyncIterator[SharedInformer[Object]]:
    clock = FakeClock()
    informer = SharedInformer(
        Expiring([_object(n, n + 1) for n in range(items)]),
        watch_list=False,
        clock=clock,
        indexers={"tier": lambda obj: (obj.labels["tier"],)},
    )
    async with informer:
        await informer.wait_for_sync()
        yield informer


SELECTIONS: Mapping[str, tuple[Callable[[SharedInformer[Object]], int], float]] = {
    "equal": (lambda informer: len(informer.lister.list("app=web,tier!=db")), 1 / 3),
    "set": (lambda informer: len(informer.lister.list("app in (web,db),!old")), 1),
    "everything": (lambda informer: len(informer.lister.list()), 1),
    "index": (lambda informer: len(informer.lister.by_index("tier", "db")), 1 / 3),
    "namespace": (lambda informer: len(informer.lister.namespaced("team-1").list()), 1 / 5),
}


@pytest.mark.parametrize("name", SELECTIONS)
async def test_a_selected_object_costs_what_it_did(name: str) -> None:
    select, part = SELECTIONS[name]

    async def work(items: int) -> Mapping[str, int]:
        async with _synced(items) as informer:
            with calls() as counted:
                found = select(informer)
        assert abs(found - items * part) <= 1
        return counted

    await guard(f"selected-{name}", work, items=90)


async def test_an_index_returns_the_cached_objects_themselves() -> None:
    async with _synced(30) as informer:
        cached = {id(obj) for obj in informer.indexer.list()}
        found = informer.lister.by_index("tier", "db")
        assert len(found) == 10
        assert {id(obj) for obj in found} < cached
