"""Listers and handlers in types of one's own."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from listwatch.cache.failures import Failure
from listwatch.cache.shared_informer import SharedInformer
from listwatch.cache.typed import TypedHandler, TypedInformer, TypedLister
from listwatch.clock import FakeClock
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


class Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def on_add(self, obj: Pod, is_in_initial_list: bool) -> None:
        self.told.append((obj.metadata.name, is_in_initial_list))

    def on_update(self, old: Pod, new: Pod) -> None:
        self.told.append((old.spec, new.spec))

    def on_delete(self, obj: Pod) -> None:
        self.told.append((obj.metadata.name,))


async def test_a_handler_is_told_in_its_type_and_misfits_are_reported() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a", x=1))
    source.add(pod("misfit", x="no number"))
    failures: list[Failure] = []
    recorder = Recorder()
    informer = SharedInformer(source, clock=clock, on_error=failures.append)
    informer.add_handler(TypedHandler(Pod, recorder))
    async with informer:
        await clock.settle()
        source.modify(pod("a", x=2))
        source.delete("a")
        await clock.settle()
    assert recorder.told == [("a", True), ({"x": 1}, {"x": 2}), ("a",)]
    assert [failure.key for failure in failures] == ["misfit"]
    assert isinstance(failures[0], Failure)


async def test_a_lister_gives_what_its_caller_may_change() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a", "ns", x=1, labels={"in": "x"}))
    source.add(pod("b", "other", x=2))
    async with SharedInformer(source, clock=clock) as informer:
        await informer.wait_for_sync()
        lister = TypedLister(informer.lister, Pod)
        got = lister.get("a", "ns")
        got.spec["x"] = 99
        assert lister.get("a", "ns").spec == {"x": 1}
        assert [one.metadata.name for one in lister.list("in=x")] == ["a"]
        assert [one.metadata.name for one in lister.namespaced("other").list()] == ["b"]
        assert [one.spec for one in lister.by_index("namespace", "other")] == [{"x": 2}]
        assert lister.by_owner("nobody") == []
        assert lister.find("missing", "ns") is None
        plain = TypedLister(informer.lister, Plain).get("a", "ns")
        assert plain.spec == {"x": 1}
        as_dict = TypedLister(informer.lister, lambda value: value["metadata"]["name"])
        assert as_dict.get("b", "other") == "b"


class Model:
    """A model as those of `lightkube` are: made by a class method, of a dict."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Model":
        return cls(value["metadata"]["name"])


async def test_an_informer_speaks_in_several_types_at_once() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a", x=1))
    shared = SharedInformer(source, clock=clock)
    pods, models = TypedInformer(shared, Pod), TypedInformer(shared, Model.from_dict)
    recorder = Recorder()
    listener = pods.add_handler(recorder)
    async with shared:
        await listener.wait_for_sync()
        assert pods.lister.get("a").spec == {"x": 1}
        assert models.lister.get("a").name == "a"
    assert recorder.told == [("a", True)]
    assert listener.name == "Recorder"
