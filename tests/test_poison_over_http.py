"""Odd objects on the embedded server affect only themselves in informers and their users."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.shared_informer import SharedInformer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.objects import Object

if TYPE_CHECKING:
    from listwatch.cache.deltas import Item
    from listwatch.cache.failures import Failure

# Deeper than any Python decodes: 3.12 and newer read 5,000 levels.
DEEP = b"[" * 50_000 + b"]" * 50_000


class World:
    """A server whose objects can be corrupted, and an informer of its ConfigMaps."""

    def __init__(self, server: EmbeddedAPIServer, client: Client) -> None:
        self.server, self.client = server, client
        self.failures: list[Failure] = []
        self.deleted: list[str] = []
        self.informer = SharedInformer(
            client.list_watch("configmaps", "default"), on_error=self.failures.append
        )
        self.told = asyncio.Event()
        handler = HandlerFuncs[Object](
            on_add=lambda _obj, _initial: self.told.set(), on_delete=self._on_delete
        )
        self.informer.add_handler(handler)

    def _on_delete(self, obj: "Item") -> None:
        self.deleted.append(obj.key)
        self.told.set()

    async def create(self, *names: str) -> None:
        for name in names:
            meta = {"name": name, "namespace": "default"}
            await self.client.create({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta})

    def store(self, name: str, old: bytes, new: bytes) -> None:
        """Store an object's next state with some bytes replaced, which no request could do."""
        store, registry = self.server.store, self.server.registry
        resource = self.server.table.get("", "v1", "configmaps")
        assert resource is not None
        bucket = registry.bucket(resource)
        entry = bucket.entries[f"default/{name}"].at_revision(store.revision + 1)
        data = entry.data.replace(old, new, 1)
        assert data != entry.data
        store.put(bucket, msgspec.structs.replace(entry, data=data))

    def names(self) -> list[str]:
        return sorted(obj.name for obj in self.informer.lister.list() if "kube" not in obj.name)

    async def until_seen(self, name: str) -> None:
        """Create an object and wait for it; everything before it has arrived then."""
        await self.create(name)
        async with asyncio.timeout(45):
            while name not in self.names():
                self.told.clear()
                await self.told.wait()


@asynccontextmanager
async def world(*names: str) -> AsyncIterator[World]:
    async with (
        EmbeddedAPIServer() as server,
        Client(Config(server=server.url, namespace="default")) as client,
    ):
        one = World(server, client)
        await one.create(*names)
        async with one.informer:
            await one.informer.wait_for_sync()
            yield one


def stale(one: World) -> int:
    return one.informer.statistics().controller.reflector.stale


ODD = {
    "deep": (b'"metadata":{', b'"x":' + DEEP + b',"metadata":{'),
    "NUL": (b'"metadata":{', b'"x":"\x00","metadata":{'),
    "labels of numbers": (b'"metadata":{', b'"metadata":{"labels":{"a":5},'),
    "an owner that is a word": (b'"metadata":{', b'"metadata":{"ownerReferences":"me",'),
}
READABLE = {
    "half a character": (b'"metadata":{', rb'"x":"\ud83d","metadata":{'),
    "no UTF-8": (b'"metadata":{', b'"x":"\xff","metadata":{'),
    "a large number": (b'"metadata":{', b'"x":1e999,"metadata":{'),
}


@pytest.mark.parametrize("odd", ODD)
async def test_what_becomes_unreadable_stays_as_it_was_and_is_told_as_stale(odd: str) -> None:
    async with world("a", "b", "c") as one:
        old = one.informer.lister.get("default/b")
        one.store("b", *ODD[odd])
        await one.until_seen("d")
        assert one.informer.lister.get("default/b") is old
        assert stale(one) == 1
        assert {failure.key for failure in one.failures} == {"default/b"}
        sound, unsound = ODD[odd]
        one.store("b", unsound, sound)
        await one.until_seen("e")
        assert one.names() == ["a", "b", "c", "d", "e"]
        assert one.informer.lister.get("default/b") is not old
        assert (stale(one), one.deleted) == (0, [])


@pytest.mark.parametrize("odd", ODD)
async def test_an_informer_that_begins_with_it_has_all_the_others(odd: str) -> None:
    async with world("a", "b", "c") as one:
        one.store("b", *ODD[odd])
        for watch_list in (True, False):
            late = SharedInformer(
                one.client.list_watch("configmaps", "default"),
                on_error=one.failures.append,
                watch_list=watch_list,
            )
            async with late:
                await late.wait_for_sync()
                assert {"a", "c"} <= {obj.name for obj in late.lister.list()}
                assert "b" not in {obj.name for obj in late.lister.list()}


@pytest.mark.parametrize("odd", READABLE)
async def test_what_is_only_written_oddly_is_read(odd: str) -> None:
    async with world("a", "b") as one:
        one.store("b", *READABLE[odd])
        await one.until_seen("c")
        new: Any = one.informer.lister.get("default/b")
        assert "x" in new
        assert stale(one) == 0
        assert one.failures == []
        if odd != "a large number":
            assert new["x"] == "\ufffd" == new.to_dict()["x"]


@pytest.mark.parametrize("name", [b"a/b", b"", b"..", b"x/", b"\\u0000/"])
async def test_a_name_that_no_object_has_costs_no_other(name: bytes) -> None:
    async with world("a", "b", "c") as one:
        one.store("b", b'"name":"b"', b'"name":"%b"' % name)
        await one.until_seen("d")
        assert one.names() == ["a", "b", "c", "d"]
        assert one.deleted == []
        assert one.failures
