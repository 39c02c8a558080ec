"""Informers, listers and handlers with user-defined types; mypy checks the types."""

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, assert_type

import msgspec
import pytest

from listwatch.cache.factory import InformerFactory
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import (
    Added,
    Change,
    DecodingEventHandler,
    Deleted,
    FilteringEventHandler,
    HandlerFuncs,
    Updated,
)
from listwatch.cache.informer import Informer
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.lister import Lister
from listwatch.cache.namespaces import NamespacesInformer
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.objects import DeletedFinalStateUnknown, Object, ObjectDecodeError
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


class Meta(msgspec.Struct):
    name: str


class Pod(msgspec.Struct):
    metadata: Meta
    spec: dict[str, int] = {}


@dataclass
class Plain:
    metadata: dict[str, Any]
    spec: dict[str, Any] = field(default_factory=dict)


class Model:
    """A model like those of `lightkube`: a class method makes it from a dict."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Model":
        return cls(value["metadata"]["name"])


class Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def on_add(self, obj: Pod, is_in_initial_list: bool) -> None:
        self.told.append(("add", obj.spec, is_in_initial_list))

    def on_update(self, old: Pod, new: Pod) -> None:
        self.told.append(("update", old.spec, new.spec))

    def on_delete(self, obj: Pod | DeletedFinalStateUnknown) -> None:
        if isinstance(obj, DeletedFinalStateUnknown):
            assert obj.obj is not None
            self.told.append(("tombstone", obj.key, obj.obj["spec"].get("x")))
        else:
            self.told.append(("delete", obj.spec))


class OfObjects:
    def on_add(self, obj: Object, is_in_initial_list: bool) -> None: ...
    def on_update(self, old: Object, new: Object) -> None: ...
    def on_delete(self, obj: Object | DeletedFinalStateUnknown) -> None: ...


class Cluster:
    def __init__(self, source: FakeControllerSource) -> None:
        self.source = source

    def list_watch(self, resource: str, namespace: str | None = None, **_: Any) -> ListerWatcher:
        assert resource == "pods"
        return self.source.list_watch(namespace=namespace or "")


class Scene:
    def __init__(self, *pods: dict[str, Any]) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock)
        for one in pods:
            self.source.add(one)
        self.failures: list[Failure] = []
        self.informer = SharedInformer(
            self.source, decode=Pod, clock=self.clock, on_error=self.on_error
        )

    def on_error(self, failure: Failure) -> None:
        assert isinstance(failure, Failure)
        self.failures.append(failure)


async def test_an_informer_is_of_its_type() -> None:
    """These assertions are proved by mypy; an unused ignore is an error."""
    source = FakeControllerSource()
    bare = SharedInformer(source)
    assert_type(bare, SharedInformer[Object])
    assert_type(bare, SharedInformer)
    assert_type(bare.lister, Lister[Object])
    assert_type(bare.lister.list(), list[Object])
    bare.add_handler(OfObjects())
    bare.add_handler(Recorder())  # type: ignore[arg-type]  # a handler of Pod

    typed = SharedInformer(source, decode=Pod)
    assert_type(typed, SharedInformer[Pod])
    assert_type(typed.lister, Lister[Pod])
    assert_type(typed.lister.find("a"), Pod | None)
    assert_type(typed.lister.namespaced("ns").by_owner("uid"), list[Pod])
    typed.add_handler(Recorder())
    typed.add_handler(HandlerFuncs(lambda obj, _: print(assert_type(obj, Pod))))  # noqa: T201 - never called
    typed.add_handler(OfObjects())  # type: ignore[arg-type]  # a handler of Object

    async def changes() -> None:
        async for change in typed.changes():
            assert_type(change, Added[Pod] | Updated[Pod] | Deleted[Pod])
            if isinstance(change, Deleted):
                assert_type(change.obj, Pod | DeletedFinalStateUnknown)

    assert callable(changes)
    assert_type(SharedInformer(source, decode=Plain), SharedInformer[Plain])
    assert_type(SharedInformer(source, decode=dict[str, Any]), SharedInformer[dict[str, Any]])
    assert_type(SharedInformer(source, decode=lambda obj: len(obj) + 1), SharedInformer[int])
    models = SharedInformer(source, decode=Model.from_dict)
    assert_type(models, SharedInformer[Model])
    assert_type(models.view(Pod), SharedInformer[Pod])
    assert_type(models.view(Object).lister.list(), list[Object])

    factory = InformerFactory(Cluster(source))
    assert_type(factory.informer("pods"), SharedInformer[Object])
    assert_type(factory.informer("pods", decode=Pod), SharedInformer[Pod])
    assert_type(factory.informer("pods", decode=Model.from_dict), SharedInformer[Model])
    assert_type(factory.namespaces("pods", ["ns"]), NamespacesInformer[Object])
    several = factory.namespaces("pods", ["ns"], decode=Pod)
    assert_type(several, NamespacesInformer[Pod])
    assert_type(several.lister.get("a", "ns") if several.has_synced else None, Pod | None)

    def of_objects(_: Change, __: SharedInformer) -> None: ...

    of_objects(Deleted(Object.from_dict(pod("a"))), bare)
    of_objects(Deleted(Pod(Meta("a"))), bare)  # type: ignore[arg-type]  # a change of a Pod
    of_objects(Deleted(DeletedFinalStateUnknown("a")), typed)  # type: ignore[arg-type]  # of a Pod
    Informer(source, DecodingEventHandler(Pod, Recorder()))
    Informer(source, Recorder())  # type: ignore[arg-type]  # a handler of Pod
    async with bare, typed:
        await typed.wait_for_sync()


async def test_a_handler_is_told_in_its_type_and_misfits_are_reported_and_counted() -> None:
    scene = Scene(pod("a", x=1), pod("misfit", x="no number"))
    recorder = Recorder()
    listener = scene.informer.add_handler(recorder)
    async with scene.informer:
        await listener.wait_for_sync()
        scene.source.modify(pod("a", x=2))
        scene.source.delete("a")
        await scene.clock.settle()
    assert recorder.told == [
        ("add", {"x": 1}, True),
        ("update", {"x": 1}, {"x": 2}),
        ("delete", {"x": 2}),
    ]
    assert [(one.key, one.doing) for one in scene.failures] == [("misfit", "handler of added")]
    assert isinstance(scene.failures[0].error, ObjectDecodeError)
    assert listener.name == "Recorder"
    figures = listener.statistics().handler
    assert (figures.delivered, figures.failed) == (4, 1)


async def test_the_story_stays_consistent_where_states_do_not_fit() -> None:
    scene = Scene(pod("late", x="?"), pod("never", x="?"), pod("gap", x=1), pod("end", x=1))
    recorder = Recorder()
    scene.informer.add_handler(recorder)
    async with scene.informer:
        await scene.clock.settle()
        recorder.told.clear()
        scene.source.modify(pod("late", x=1))
        scene.source.modify(pod("late", x=2))
        await scene.clock.settle()
        # The first state that fits is an addition.
        assert recorder.told == [("add", {"x": 1}, False), ("update", {"x": 1}, {"x": 2})]
        recorder.told.clear()
        scene.source.modify(pod("gap", x="?"))
        scene.source.modify(pod("gap", x="!"))
        scene.source.modify(pod("gap", x=2))
        await scene.clock.settle()
        # The old state is the last delivered one.
        assert recorder.told == [("update", {"x": 1}, {"x": 2})]
        recorder.told.clear()
        scene.source.modify(pod("end", x="?"))
        scene.source.delete("end")
        scene.source.delete("never")
        await scene.clock.settle()
        # A deletion is delivered for any last state, but only of a delivered object.
        assert recorder.told == [("tombstone", "end", "?")]
    assert [one.key for one in scene.failures] == ["late", "never", "gap", "gap", "end"]


async def test_the_story_stays_consistent_where_a_state_fits_only_now_and_then() -> None:
    """As when a function calls a service: a delivered state may not fit the next time."""
    scene, failing = Scene(pod("a", x=1)), set[int]()
    told: list[tuple[int, ...]] = []

    def x_of(value: dict[str, Any]) -> int:
        x: int = value["spec"]["x"]
        if x in failing:
            raise OSError("no answer")
        return x

    view = scene.informer.view(x_of)
    view.add_handler(
        HandlerFuncs(
            on_add=lambda new, _: told.append((new,)),
            on_update=lambda old, new: told.append((old, new)),
        )
    )
    async with view:
        await scene.clock.settle()
        failing.add(1)
        scene.source.modify(pod("a", x=2))
        await scene.clock.settle()
        failing.clear()
        scene.source.modify(pod("a", x=3))
        await scene.clock.settle()
    assert told == [(1,), (1, 3)]
    assert [one.key for one in scene.failures] == ["a"]


async def test_a_deletion_that_was_missed_is_told_as_a_tombstone() -> None:
    scene = Scene(pod("a", x=1))
    recorder = Recorder()
    scene.informer.add_handler(recorder)
    async with scene.informer:
        await scene.clock.settle()
        scene.source.delete_drop_watch("a")
        scene.source.reset_watch()
        await scene.clock.advance(100)
    assert recorder.told[1:] == [("tombstone", "a", 1)]


async def test_a_resync_tells_one_value_as_both_states() -> None:
    scene = Scene(pod("a", x=1))
    same: list[bool] = []
    scene.informer.add_handler(
        HandlerFuncs(on_update=lambda old, new: same.append(old is new)), resync_period=5
    )
    async with scene.informer:
        await scene.clock.advance(6)
    assert same == [True]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_typed_handler_may_be_of_any_kind(threaded: bool) -> None:
    scene = Scene(pod("a", x=1), pod("misfit", x="?"))
    told: list[str] = []

    async def add(obj: Pod, _: bool) -> None:
        await asyncio.sleep(0)
        told.append(obj.metadata.name)

    def add_on_thread(obj: Pod, _: bool) -> Awaitable[None] | None:
        told.append(obj.metadata.name)
        return None

    listener = scene.informer.add_handler(
        HandlerFuncs(add_on_thread if threaded else add), threaded=threaded
    )
    async with scene.informer:
        await listener.wait_for_sync()
        assert told == ["a"]
        assert listener.statistics().handler.failed == 1
    assert [one.key for one in scene.failures] == ["misfit"]


async def test_changes_are_of_the_type_and_what_does_not_fit_is_reported_and_left_out() -> None:
    scene = Scene(pod("misfit", "ns", x="?"), pod("a", "ns", x=1))
    seen: list[Change[Pod]] = []
    async with scene.informer, aclosing(scene.informer.changes()) as changes:
        seen.append(await anext(changes))
        scene.source.modify(pod("a", "ns", x="?"))
        scene.source.modify(pod("misfit", "ns", x=3))
        scene.source.modify(pod("a", "ns", x=2))
        scene.source.modify(pod("misfit", "ns", x="?"))
        scene.source.delete("ns/misfit")
        scene.source.delete("ns/a")
        seen += [await anext(changes) for _ in range(4)]
    assert [(type(one), one.key) for one in seen] == [
        (Added, "ns/a"),
        (Added, "ns/misfit"),
        (Updated, "ns/a"),
        (Deleted, "ns/misfit"),
        (Deleted, "ns/a"),
    ]
    assert [(one.doing, one.key) for one in scene.failures] == [
        ("changes", "ns/misfit"),
        ("changes", "ns/a"),
        ("changes", "ns/misfit"),
    ]
    assert scene.informer.last_failure is scene.failures[-1]


async def test_a_lister_gives_what_its_caller_may_change() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a", "ns", x=1, labels={"in": "x"}))
    source.add(pod("b", "other", x=2))
    source.add(pod("misfit", "third", x="?"))
    async with SharedInformer(source, decode=Pod, clock=clock) as informer:
        await informer.wait_for_sync()
        lister = informer.lister
        got = lister.get("a", "ns")
        got.spec["x"] = 99
        assert lister.get("a", "ns").spec == {"x": 1}
        assert [one.metadata.name for one in lister.list("in=x")] == ["a"]
        assert [one.metadata.name for one in lister.namespaced("other").list()] == ["b"]
        assert [one.spec for one in lister.by_index("namespace", "other")] == [{"x": 2}]
        assert lister.by_owner("nobody") == []
        assert lister.find("missing", "ns") is None
        assert len(lister) == 3
        with pytest.raises(ObjectDecodeError, match="third/misfit does not fit Pod"):
            lister.list()
        assert informer.view(Plain).lister.get("a", "ns").spec == {"x": 1}
        nothing = informer.view(lambda value: value.get("nothing"))
        assert nothing.lister.get("b", "other") is None


async def test_views_are_one_informer() -> None:
    scene = Scene(pod("a", x=1))
    pods = scene.informer
    models, objects = pods.view(Model.from_dict), pods.view(Object)
    told: list[str] = []
    objects.add_handler(
        FilteringEventHandler(
            lambda obj: obj["spec"]["x"] > 1,
            DecodingEventHandler(Pod, HandlerFuncs[Pod](lambda obj, _: told.append(str(obj.spec)))),
        )
    )
    async with models:
        await pods.wait_for_sync()
        assert models.lister.get("a").name == "a"
        assert pods.lister.get("a").spec == {"x": 1}
        assert objects.lister.get("a") is objects.indexer.get_by_key("a")
        scene.source.modify(pod("a", x=2))
        await scene.clock.settle()
        assert len(scene.source.requests) == 1
        with pytest.raises(RuntimeError, match="runs once"):
            await objects.run()
        scene.source.fail_watches(ObjectDecodeError("no"))
        scene.source.reset_watch()
        await scene.clock.advance(5)
        assert pods.last_failure is objects.last_failure is scene.failures[-1]
        assert objects.why_not_synced() == ""
    assert told == ["{'x': 2}"]
    assert pods.is_stopped
    assert objects.is_stopped
    differing = [name for name, value in vars(pods).items() if vars(models)[name] is not value]
    assert sorted(differing) == ["decode", "lister"]


async def test_a_factory_keeps_one_cache_for_all_types() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a", "ns", x=1))
    factory = InformerFactory(Cluster(source), clock=clock)
    pods = factory.informer("pods", decode=Pod)
    models = factory.informer("pods", decode=Model.from_dict)
    several = factory.namespaces("pods", ["ns"], decode=Pod)
    recorder = Recorder()
    several.add_handler(recorder)
    async with factory:
        assert await factory.wait_for_cache_sync() == {}
        assert len(factory) == 2
        assert len(source.requests) == 2  # all namespaces, and one
        assert pods.indexer is models.indexer is factory.informer("pods").indexer
        assert pods.lister.get("a", "ns").spec == {"x": 1}
        assert models.lister.get("a", "ns").name == "a"
        assert [one.spec for one in several.lister.list()] == [{"x": 1}]
        await clock.settle()
        assert recorder.told == [("add", {"x": 1}, True)]
