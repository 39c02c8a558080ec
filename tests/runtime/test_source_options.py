"""The caches of a reconciler's sources: their options, defaults, names, and their end."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from listwatch.cache.handlers import Change
from listwatch.cache.processor import StoppedError
from listwatch.client.discovery import Resource
from listwatch.objects import Object, decode_object
from listwatch.runtime.cache_options import CacheDefaults
from runtime.reconciler_world import World, owned, widget


class Scoped(World):
    """Resources that are asked for by namespace; those in `cluster_scoped` have none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[str] = []
        self.cluster_scoped: set[str] = set()

    def list_watch(self, resource: str, namespace: str | None = None, **options: Any) -> Any:
        selected = [str(options[name]) for name in ("label_selector",) if options[name]]
        only = ["metadata"] if options["metadata_only"] else []
        self.asked.append(" ".join([resource, namespace or "*", *selected, *only]))
        where = "" if resource in self.cluster_scoped else namespace or ""
        return self.source(resource).list_watch(
            namespace=where, label_selector=options["label_selector"]
        )

    async def find(self, word: str) -> Resource:
        found = await super().find(word)
        return msgspec.structs.replace(found, namespaced=word not in self.cluster_scoped)


def slim(obj: Object) -> Object:
    kept = {name: value for name, value in obj.to_dict().items() if name != "data"}
    return decode_object(msgspec.json.encode(kept))


def colour(obj: Object) -> Iterable[str]:
    return [obj["spec"]["colour"]]


async def test_several_namespaces_are_read_as_one_and_no_other_is_asked_for() -> None:
    world = Scoped()
    world.reconciler.for_("widget", namespaces=["n1", "n2"]).reads("secret", namespace="n1")
    for namespace in ("n1", "n2", "n3"):
        world.source("widget").add(widget("a", meta={"namespace": namespace}))
    async with world.running() as reconciler:
        assert sorted(world.calls) == ["n1/a", "n2/a"]
        assert sorted(world.asked) == ["secret n1", "widget n1", "widget n2"]
        assert sorted(obj.key for obj in reconciler.lister().list()) == ["n1/a", "n2/a"]
        found = reconciler.get("n2/a")
        assert found is not None
        assert (found.key, reconciler.get("n3/a")) == ("n2/a", None)
        world.source("widget").delete("n1/a")
        await world.clock.advance(1)
        assert world.calls[2:] == ["n1/a"]
        assert reconciler.statistics().unseen == 0


async def test_a_cluster_scoped_resource_in_namespaces_is_watched_once_and_owned_by_name() -> None:
    world = Scoped()
    world.cluster_scoped = {"node", "widget"}
    world.reconciler.for_("widget", namespaces=["n1", "n2"]).owns("node", namespaces=["n1", "n2"])
    world.source("widget").add(widget("w", meta={"namespace": ""}))
    world.source("node").add(owned("n", "w", meta={"namespace": ""}) | {"spec": {}})
    async with world.running() as reconciler:
        assert sorted(world.asked) == ["node *", "widget *"]
        assert world.calls == ["w"]
        assert [obj.key for obj in reconciler.lister().list()] == ["w"]
        assert [status.caches for status in reconciler.sources] == [("widget",), ("node",)]


async def test_indices_transforms_and_decoded_types_are_those_of_the_source() -> None:
    world = World()
    world.reconciler.for_("widget", indexers={"colour": colour}).reads(
        "secret", transform=slim, decode=dict
    )
    world.source("widget").add(widget("a", spec={"colour": "red"}))
    world.source("secret").add(widget("s", data={"key": "large"}))
    async with world.running() as reconciler:
        red = reconciler.lister().by_index("colour", "red")
        assert [obj.name for obj in red] == ["a"]
        (secret,) = reconciler.lister("secret").list()
        assert isinstance(secret, dict)
        assert "data" not in secret
        (name,) = reconciler.lister("secret", decode=lambda obj: str(obj["kind"])).list()
        assert name == "Widget"


async def test_a_cache_of_metadata_only_asks_for_that() -> None:
    world = Scoped()
    world.reconciler.for_("widget", metadata_only=True)
    async with world.running() as reconciler:
        assert world.asked == ["widget * metadata"]
        assert [cache.name for cache in reconciler.caches] == ["widget (metadata)"]


async def test_two_selections_of_a_resource_are_found_by_their_names() -> None:
    world = Scoped()
    world.reconciler.for_("widget").reads("widget", name="red", label_selector="colour=red")
    world.reconciler.reads("secret", name="one", namespace="n1")
    world.reconciler.reads("secret", name="two", namespace="n2")
    world.source("widget").add(widget("a", meta={"labels": {"colour": "red"}}))
    world.source("widget").add(widget("b"))
    async with world.running() as reconciler:
        assert len(reconciler.lister("widget").list()) == 2
        assert [obj.name for obj in reconciler.lister("red").list()] == ["a"]
        known = "it has widget, red (widget colour=red), one (secret in n1), two (secret in n2)"
        with pytest.raises(ValueError, match="several caches of 'secret': give their") as caught:
            reconciler.lister("secret")
        assert str(caught.value).endswith(known)
        with pytest.raises(ValueError, match=r"no cache of 'blue', only of widget, red \("):
            reconciler.lister("blue")


async def test_the_same_selection_named_twice_is_one_cache() -> None:
    world = Scoped()
    world.reconciler.for_("widget").reads("widget")
    async with world.running() as reconciler:
        assert world.asked == ["widget *"]
        assert reconciler.lister("widget").list() == []


async def test_caches_that_differ_only_in_their_transform_have_different_names() -> None:
    world = World()
    world.reconciler.for_("widget").reads("widget", name="slim", transform=slim)
    async with world.running() as reconciler:
        assert [cache.name for cache in reconciler.caches] == ["widget", "widget #2"]


async def test_an_event_filter_counts_for_every_source() -> None:
    def not_ignored(change: Change) -> bool:
        return "ignored" not in change.key

    world = World(event_filter=[not_ignored])
    world.reconciler.for_("widget").watches("secret", lambda obj: [f"of-{obj.name}"])
    world.source("widget").add(widget("ignored"))
    world.source("widget").add(widget("a"))
    world.source("secret").add(widget("ignored-too"))
    async with world.running():
        assert world.calls == ["ns/a"]


# --- Defaults ---


async def test_the_defaults_of_a_manager_a_namespace_and_a_type_add_up() -> None:
    world = Scoped()
    defaults = world.caches.defaults
    defaults.set("", "", {"namespaces": ["n1", "n2"], "label_selector": "app"})
    defaults.set("", "n2", {"label_selector": "app=two"})
    defaults.set("secret", "", {"metadata_only": True, "label_selector": "tls"})
    defaults.set("secret", "n2", {"label_selector": "tls=two"})
    world.reconciler.for_("widget").reads("secret").reads("pods", label_selector="", namespace="x")
    async with world.running():
        assert sorted(world.asked) == [
            "pods x",
            "secret n1 tls metadata",
            "secret n2 tls=two metadata",
            "widget n1 app",
            "widget n2 app=two",
        ]


def test_a_source_may_ask_for_all_namespaces_whatever_the_default() -> None:
    defaults = CacheDefaults()
    defaults.set("", "", {"namespaces": ["n1"], "indexers": {"a": colour}})
    for options in ({"namespace": None}, {"namespaces": None}):
        (plan,) = defaults.plan("pods", options, None)  # type: ignore[arg-type]  # a plain dict
        assert plan.selection.namespace is None
    (plan,) = defaults.plan("pods", {"indexers": {"b": colour}}, None)
    assert (plan.selection.namespace, plan.indexers) == ("n1", {"a": colour, "b": colour})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"namespace": "a", "namespaces": ["b"]}, "either namespace= or namespaces="),
        ({"namespaces": []}, r"takes a list of names, not \[\]"),
        ({"namespaces": "default"}, "takes a list of names, not 'default'"),
    ],
)
def test_namespaces_that_make_no_sense_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CacheDefaults().plan("pods", options, None)


def test_defaults_that_come_too_late_or_contradict_themselves_are_refused() -> None:
    defaults = CacheDefaults()
    with pytest.raises(ValueError, match="within n1 can't choose other namespaces"):
        defaults.set("pods", "n1", {"namespaces": ["n2"]})
    defaults.plan("pods", {}, None)
    defaults.set("secrets", "", {"metadata_only": True})
    for resource in ("pods", ""):
        with pytest.raises(RuntimeError, match="a source of pods exists"):
            defaults.set(resource, "", {"metadata_only": True})


def test_one_index_name_means_one_function() -> None:
    world = World()
    world.reconciler.for_("widget", indexers={"colour": colour})
    with pytest.raises(ValueError, match="another index 'colour'"):
        world.reconciler.reads("widget", indexers={"colour": lambda _: []})


# --- Removing ---


async def test_a_removed_source_wakes_nothing_and_its_cache_stops() -> None:
    world = Scoped()
    world.reconciler.for_("widget").watches("secret", lambda obj: [f"of-{obj.name}"])
    async with world.running() as reconciler:
        cache = reconciler._sources.named("secret").caches[0]
        await reconciler.remove("secret")
        assert cache.informer.is_stopped
        world.source("secret").add(widget("s"))
        await world.clock.advance(1)
        assert world.calls == []
        assert [status.name for status in reconciler.sources] == ["widget"]
        with pytest.raises(ValueError, match="no cache of 'secret', only of widget"):
            reconciler.lister("secret")
        reconciler.watches("secret", lambda obj: [f"again-{obj.name}"])
        await world.clock.advance(1)
        assert world.calls == ["again-s"]
        assert world.asked.count("secret *") == 2


async def test_a_cache_with_another_user_goes_on() -> None:
    world = Scoped()
    world.reconciler.for_("widget").reads("secret")
    world.reconciler.watches("secret", lambda obj: [f"of-{obj.name}"], name="wakes")
    async with world.running() as reconciler:
        await reconciler.remove("wakes")
        world.source("secret").add(widget("s"))
        await world.clock.advance(1)
        assert world.calls == []
        assert [obj.name for obj in reconciler.lister("secret").list()] == ["s"]
        assert world.asked.count("secret *") == 1


async def test_a_source_that_cannot_sync_can_be_removed_and_reconciling_goes_on() -> None:
    world = Scoped()
    world.reconciler.for_("widget")
    world.source("secret").fail_lists(TimeoutError("away"), 1000)
    world.source("secret").watch_list = "invalid"
    async with world.running() as reconciler:
        reconciler.reads("secret")
        world.source("widget").add(widget("a"))
        waiting = asyncio.ensure_future(reconciler.wait_for_sync("secret", seconds=500))
        await world.clock.advance(5)
        assert (world.calls, waiting.done()) == ([], False)
        assert [status.has_synced for status in reconciler.sources] == [True, False]
        await reconciler.remove("secret")
        await world.clock.advance(1)
        assert world.calls == ["ns/a"]
        with pytest.raises(StoppedError):
            await waiting


async def test_a_source_removed_before_the_first_sync_does_not_hold_up_the_start() -> None:
    world = Scoped()
    world.reconciler.for_("widget").reads("secret")
    world.source("widget").add(widget("a"))
    world.source("secret").fail_lists(TimeoutError("away"), 1000)
    world.source("secret").watch_list = "invalid"
    async with world.running() as reconciler:
        assert world.calls == []
        await reconciler.remove("secret")
        await world.clock.advance(1)
        assert world.calls == ["ns/a"]


async def test_a_late_source_tells_when_it_has_synced() -> None:
    world = Scoped()
    world.reconciler.for_("widget")
    world.source("secret").add(widget("s"))
    async with world.running() as reconciler:
        reconciler.watches("secret", lambda obj: [obj.name], namespaces=["ns", "other"])
        waiting = asyncio.ensure_future(reconciler.wait_for_sync("secret"))
        await world.clock.advance(1)
        assert waiting.done()
        assert world.calls == ["s"]


async def test_timers_and_streams_can_be_removed_by_name() -> None:
    world = World()
    world.reconciler.every(10, lambda: ["tick"], name="ticker").every(10, lambda: ["tock"])
    async with world.running() as reconciler:
        await world.clock.advance(10)
        assert sorted(world.calls) == ["tick", "tock"]
        await reconciler.remove("ticker")
        await world.clock.advance(20)
        assert world.calls[2:] == ["tock", "tock"]
        await reconciler.remove("every")
        await world.clock.advance(60)
        assert len(world.calls) == 4


async def test_the_own_resource_stays_and_unknown_names_are_refused() -> None:
    world = World()
    world.reconciler.for_("widget").reads("secret", name="keys")
    async with world.running() as reconciler:
        with pytest.raises(ValueError, match="can't lose its own resource"):
            await reconciler.remove("widget")
        with pytest.raises(ValueError, match="no cache of 'pods'"):
            await reconciler.remove("pods")
        with pytest.raises(ValueError, match="remove 'secret' by its name"):
            await reconciler.remove("secret")
