"""A shared informer with the real client and server, and a fault proxy between them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.backoff import Backoff
from listwatch.cache.deltas import Item
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import last_state
from listwatch.cache.shared_informer import SharedInformer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.discovery import UnknownResourceError
from listwatch.errors import (
    DisconnectedError,
    ExpiredError,
    InternalServerError,
    NotFoundError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from listwatch.objects import Object
from listwatch.testing import eventually
from listwatch.testing.fault_proxy import FaultProxy, Place

NAMES = ["a", "b", "c", "d", "e"]


class StoryTeller:
    """A handler that checks that its changes are consistent."""

    def __init__(self) -> None:
        self.last: dict[str, Object] = {}
        self.wrong: list[str] = []
        self._told = asyncio.Event()

    async def changed(self, until: Callable[[], bool]) -> None:
        """Wait until delivered changes make a condition true."""
        while not until():
            self._told.clear()
            await self._told.wait()

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:
        if obj.key in self.last:
            self.wrong.append(f"added twice: {obj}, initial: {is_in_initial_list}")
        self.last[obj.key] = obj
        self._told.set()

    def on_update(self, old: Object, new: Object) -> None:
        if self.last.get(new.key) is not old or old.uid != new.uid:
            self.wrong.append(f"updated {old} to {new}, told was {self.last.get(new.key)}")
        self.last[new.key] = new

    def on_delete(self, obj: Item) -> None:
        last, state = self.last.pop(obj.key, None), last_state(obj)
        if last is None or state is None or last.uid != state.uid:
            self.wrong.append(f"deleted {obj}, told was {last}")
        self._told.set()


class Scene(NamedTuple):
    server: EmbeddedAPIServer
    proxy: FaultProxy
    direct: Client
    informer: SharedInformer
    handler: StoryTeller
    refused: asyncio.Event


@asynccontextmanager
async def a_scene(seed: int, **options: Any) -> AsyncIterator[Scene]:
    handler = StoryTeller()
    refused = asyncio.Event()

    def on_error(failure: Failure) -> None:
        if isinstance(failure.error, DisconnectedError) and failure.error.refused:
            refused.set()

    async with (
        EmbeddedAPIServer(seed=seed, controllers=False) as server,
        FaultProxy("127.0.0.1", server.port, seed=seed) as proxy,
        Client.from_config(Config(server=server.url)) as direct,
        Client.from_config(Config(server=proxy.url)) as through,
    ):
        informer = SharedInformer(
            through.list_watch("configmaps", "default", label_selector="mine"),
            backoff=Backoff(base=0.01, cap=0.05),
            page_size=3,
            rng=random.Random(seed),
            on_error=on_error,
            **options,
        )
        informer.add_handler(handler)
        async with informer:
            yield Scene(server, proxy, direct, informer, handler, refused)


def config_map(name: str, number: int = 0) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "labels": {"mine": ""}}
    data = {"number": str(number), "text": "x" * 2000}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": data}


async def write(client: Client, rng: random.Random, there: set[str]) -> None:
    name = rng.choice(NAMES)
    if name not in there:
        await client.create(config_map(name))
        there.add(name)
    elif rng.random() < 0.4:
        await client.delete("configmaps", name, "default")
        there.discard(name)
    else:
        await client.update(config_map(name, rng.randrange(10**6)))


def strike(scene: Scene, rng: random.Random) -> None:
    match rng.randrange(7):
        case 0:
            scene.proxy.drop(reset=rng.random() < 0.5)
        case 1:
            scene.proxy.cut(place=rng.choice(list(Place)), reset=rng.random() < 0.5)
        case 2:
            scene.proxy.answer(
                rng.choice(
                    (
                        TooManyRequestsError("later"),
                        InternalServerError("broken"),
                        ServiceUnavailableError("starting"),
                        ExpiredError("too old"),
                    )
                )
            )
        case 3:
            scene.server.compact()
            scene.server.cut_watches()
        case 4:
            scene.proxy.refuse(reset=rng.random() < 0.5)
        case 5:
            scene.server.cut_watches()
        case _:
            scene.proxy.accept()


async def same(scene: Scene) -> None:
    """Wait for the informer, then check that its cache equals the server's objects."""
    listed = await scene.direct.list("configmaps", "default", label_selector="mine")
    await scene.informer.wait_for_resource_version(listed.resource_version, seconds=45)
    present = {obj.key: (obj.uid, obj.resource_version) for obj in listed.items}
    cached = {obj.key: (obj.uid, obj.resource_version) for obj in scene.informer.lister.list()}
    assert cached == present


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("watch_list", [True, False], ids=["watch-list", "list"])
async def test_under_random_faults_the_cache_is_right_and_the_story_consistent(
    seed: int, watch_list: bool
) -> None:
    rng = random.Random(seed)
    async with a_scene(seed, watch_list=watch_list) as scene:
        there: set[str] = set()
        for _ in range(60):
            for _ in range(rng.randrange(4)):
                await write(scene.direct, rng, there)
            strike(scene, rng)
            with suppress(TimeoutError):  # gives the informer some time
                newest = str(scene.server.store.revision)
                await scene.informer.wait_for_resource_version(newest, seconds=0.02)
        scene.proxy.heal()
        scene.proxy.accept()
        await scene.direct.create(config_map("last"))
        await same(scene)
        present = {obj.key: obj.uid for obj in scene.informer.lister.list()}
        last = scene.handler.last
        await eventually(lambda: {key: obj.uid for key, obj in last.items()} == present)
        assert not scene.handler.wrong, scene.handler.wrong[0]


async def test_a_restored_server_behind_an_outage_is_noticed() -> None:
    """Its versions are lower than the informer's, where a watch would get no events."""
    async with a_scene(1) as scene:
        await scene.direct.create(config_map("a"))
        snapshot = scene.server.take_snapshot()
        lost = await scene.direct.create(config_map("lost"))
        for number in range(5):
            await scene.direct.update(config_map("a", number))
        await same(scene)
        await eventually(lambda: {*scene.handler.last} == {"default/a", lost.key})
        gone = asyncio.Event()
        original = scene.handler.on_delete

        def on_delete(obj: Item) -> None:
            original(obj)
            gone.set()

        scene.handler.on_delete = on_delete  # type: ignore[method-assign]  # to notice it
        scene.proxy.refuse()
        scene.proxy.drop()
        async with asyncio.timeout(45):
            await scene.refused.wait()
            scene.server.rewind(snapshot)
            scene.proxy.accept()
            await gone.wait()
        assert [obj.name for obj in scene.informer.lister.list()] == ["a"]
        assert scene.informer.lister.get("a", "default")["data"]["number"] == "0"
        assert not scene.handler.wrong


async def define(client: Client, definition: dict[str, Any], obj: dict[str, Any]) -> None:
    """Create the definition, and an object as soon as it is served."""
    await client.create(definition)
    await eventually(lambda: client.create(obj), ignoring=(NotFoundError, UnknownResourceError))


async def test_objects_of_a_definition_that_was_deleted_unseen_are_gone_and_come_back() -> None:
    """The informer is between two watches, so it gets no event."""
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    definition = {
        "kind": "CustomResourceDefinition",
        "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "widgets.e.com"},
        "spec": {
            "group": "e.com",
            "names": names,
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    meta = {"name": "a", "namespace": "default"}
    widget = {"kind": "Widget", "apiVersion": "e.com/v1", "metadata": meta}
    handler = StoryTeller()
    async with (
        EmbeddedAPIServer(seed=1) as server,
        FaultProxy("127.0.0.1", server.port, seed=1) as proxy,
        Client.from_config(Config(server=server.url)) as direct,
        Client.from_config(Config(server=proxy.url)) as through,
    ):
        await define(direct, definition, widget)
        informer = SharedInformer(
            through.list_watch("widgets.e.com"), backoff=Backoff(base=0.01, cap=0.05)
        )
        registration = informer.add_handler(handler)
        async with informer:
            await registration.wait_for_sync()
            assert list(handler.last) == ["default/a"]
            proxy.refuse()
            proxy.drop()
            await direct.delete("customresourcedefinitions", "widgets.e.com")
            await direct.wait_for_deletion("customresourcedefinitions", "widgets.e.com", seconds=45)
            proxy.accept()
            async with asyncio.timeout(45):
                await handler.changed(lambda: not handler.last)
            assert informer.lister.list() == []
            await define(direct, definition, widget)
            async with asyncio.timeout(45):
                await handler.changed(lambda: bool(handler.last))
        assert not handler.wrong


@pytest.mark.parametrize("namespace", ["default", None])
async def test_the_pages_of_a_list_are_all_of_it_whatever_the_names(namespace: str | None) -> None:
    """A continue token names a key within the namespace; "e" comes after "default"."""
    async with (
        EmbeddedAPIServer(seed=1, controllers=False) as server,
        Client.from_config(Config(server=server.url)) as client,
    ):
        names = ["a", "d", "default", "e", "last", "z"]
        for name in names:
            await client.create(config_map(name))
        for size in (1, 2, 3, 4):
            listed = await client.list(
                "configmaps", namespace, label_selector="mine", page_size=size
            )
            assert [obj.name for obj in listed.items] == names
