"""Unreadable objects never look deleted, in lists, initial events or watches."""

import asyncio
import random
from typing import TYPE_CHECKING, Any, Self

import pytest

from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.known import NewestKnown
from listwatch.cache.list_watch import DELETED, MODIFIED, Decoder, WatchEvent
from listwatch.cache.missing import MOST_QUESTIONS
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.reflector import Reflector
from listwatch.cache.store import Store
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.testing.fake_controller_source import FakeControllerSource, pod

if TYPE_CHECKING:
    from listwatch.cache.deltas import ReflectorStore


class Source(FakeControllerSource):
    """A source that can hide the names of objects, and finds single objects."""

    def __init__(self, clock: FakeClock, watch_list: bool) -> None:
        super().__init__(clock=clock, watch_list="yes" if watch_list else "invalid")
        self.nameless: set[str] = set()
        self.asked: list[str] = []
        self.failure: Exception | None = None

    def decode(self, raw: bytes, kind: str, api_version: str) -> Object:
        obj = decode_object(raw, kind, api_version)
        if obj.name in self.nameless:
            raise ObjectDecodeError("no name can be read")
        return obj

    async def find(self, key: str, decode: Decoder) -> Object | None:
        self.asked.append(key)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        obj = self.objects.get(key)
        return None if obj is None else decode(obj.raw, "Pod", "v1")


class Silent:
    """The same source without `find`."""

    def __init__(self, source: Source) -> None:
        self.list, self.watch = source.list, source.watch


class Scene:
    """A reflector with such a source, and a store."""

    def __init__(self, *names: str, watch_list: bool = True, silent: bool = False) -> None:
        self.clock = FakeClock()
        self.source = Source(self.clock, watch_list)
        for name in names:
            self.source.add(pod(name))
        self.store = Store()
        self.failures: list[Any] = []
        self.reflector = Reflector(
            Silent(self.source) if silent else self.source,
            self.store,
            clock=self.clock,
            decoder=self.source.decode,
            on_error=self.failures.append,
            rng=random.Random(1),
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self.reflector.run())
        await self.clock.advance(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def keys(self) -> list[str]:
        return sorted(self.store.list_keys())

    async def relist(self) -> None:
        before = self.reflector.statistics().relists
        self.source.reset_watch()
        for _ in range(600):
            await self.clock.advance(0.1)
            if self.reflector.statistics().relists > before:
                return
        raise AssertionError("nothing was listed for a minute")

    @property
    def stale(self) -> int:
        return self.reflector.statistics().stale


both = pytest.mark.parametrize("watch_list", [True, False])


@both
async def test_of_what_a_list_with_nameless_items_lacks_only_the_servers_word_ends_something(
    watch_list: bool,
) -> None:
    async with Scene("a", "b", "c", watch_list=watch_list) as scene:
        old = scene.store.get_by_key("b")
        scene.source.nameless.add("b")
        scene.source.modify_drop_watch(pod("b"))
        scene.source.delete_drop_watch(pod("c"))
        await scene.relist()
        assert sorted(scene.source.asked) == ["b", "c"]
        assert scene.keys() == ["a", "b"]
        assert scene.store.get_by_key("b") is old
        assert scene.stale == 1


@both
async def test_a_source_that_cannot_be_asked_ends_nothing(watch_list: bool) -> None:
    async with Scene("a", "b", "c", watch_list=watch_list, silent=True) as scene:
        scene.source.nameless.add("b")
        scene.source.delete_drop_watch(pod("c"))
        await scene.relist()
        assert scene.keys() == ["a", "b", "c"]
        assert scene.stale == 2
        relists = scene.reflector.statistics().relists
        await scene.clock.advance(100)
        assert scene.reflector.statistics().relists == relists


async def test_nobody_is_asked_when_every_item_tells_what_it_is() -> None:
    async with Scene("a", "b", "c") as scene:
        scene.source.poison.add("b")
        scene.source.delete_drop_watch(pod("c"))
        await scene.relist()
        assert scene.source.asked == []
        assert scene.keys() == ["a", "b"]
        assert scene.stale == 1
        scene.source.poison.clear()
        scene.source.modify_drop_watch(pod("b"))
        await scene.relist()
        assert scene.stale == 0


@both
async def test_what_could_not_be_asked_stays_and_is_asked_for_later(watch_list: bool) -> None:
    async with Scene("a", "b", "c", watch_list=watch_list) as scene:
        scene.source.failure = DisconnectedError("gone")
        scene.source.nameless.add("b")
        scene.source.delete_drop_watch(pod("c"))
        await scene.relist()
        assert scene.keys() == ["a", "b", "c"]
        scene.source.failure = None
        await scene.clock.advance(60)
        assert scene.keys() == ["a", "b"]


async def test_questions_are_bounded_and_go_on_after_another_list() -> None:
    names = [f"p{i}" for i in range(MOST_QUESTIONS + 50)]
    async with Scene("a", *names) as scene:
        scene.source.nameless.add("a")
        for name in names:
            scene.source.delete_drop_watch(pod(name))
        await scene.relist()
        assert len(scene.source.asked) == MOST_QUESTIONS
        assert len(scene.keys()) in {51, 52}  # "a" may be among the objects asked for
        await scene.clock.advance(60)
        assert scene.keys() == ["a"]


async def test_an_object_that_is_found_though_the_list_did_not_name_it_is_taken() -> None:
    """A server may know an object by name that its list could not name."""
    async with Scene("a", "b") as scene:
        scene.source.nameless.add("b")
        scene.source.modify_drop_watch(pod("b"))
        find = scene.source.find

        async def found(key: str, _: Decoder) -> Object | None:
            return await find(key, decode_object)

        scene.source.find = found  # type: ignore[method-assign,assignment]  # another server
        await scene.relist()
        assert scene.store.get_by_key("b") == scene.source.objects["b"]
        assert scene.stale == 0


def poison(kind: str, key: str) -> WatchEvent:
    return WatchEvent(kind, error=ObjectDecodeError("nested too deeply", key=key))


async def test_an_event_that_cannot_be_decoded_leaves_the_last_known_state_marked_stale() -> None:
    async with Scene("a", "b") as scene:
        old = scene.store.get_by_key("b")
        scene.source.poison.add("b")
        scene.source.modify_drop_watch(pod("b"))
        scene.source.send(poison(MODIFIED, "b"))
        await scene.clock.settle()
        assert (scene.store.get_by_key("b"), scene.stale) == (old, 1)
        await scene.clock.advance(60)
        relists = scene.reflector.statistics().relists
        assert relists == 2  # a list might show more
        assert (scene.store.get_by_key("b"), scene.stale) == (old, 1)
        for _ in range(40):  # from now on each one is only reported
            scene.source.send(poison(MODIFIED, "b"))
        await scene.clock.advance(60)
        assert scene.reflector.statistics().relists == relists
        scene.source.poison.clear()
        scene.source.modify(pod("b"))
        await scene.clock.settle()
        assert scene.store.get_by_key("b") == scene.source.objects["b"]
        assert scene.stale == 0


async def test_a_deletion_that_cannot_be_decoded_ends_its_object() -> None:
    async with Scene("a", "b") as scene:
        scene.source.send(poison(MODIFIED, "b"), poison(DELETED, "b"))
        await scene.clock.settle()
        assert (scene.keys(), scene.stale) == (["a"], 0)


def obj(name: str) -> Object:
    return Object.from_dict(pod(name))


@pytest.mark.parametrize("kind", ["store", "delta", "ordered"])
async def test_what_is_missing_is_what_was_given_and_not_listed(kind: str) -> None:
    behind = Store()
    behind.replace([obj("stored"), obj("both"), obj("ends")], "1")
    fed: ReflectorStore = behind
    if kind == "delta":
        fed = DeltaFIFO(known_objects=behind)
    elif kind == "ordered":
        fed = OrderedFIFO()
    known = NewestKnown(fed, behind)
    for name in ("queued", "both", "listed"):
        fed.add(obj(name))
    fed.delete(obj("ends"))
    assert set(known.missing({"listed"})) == {"stored", "both", "queued"}
    assert {known(key) for key in known.missing(())} == set(known.missing(()).values())
    if kind == "ordered":
        fed.replace([obj("new"), obj("both")], "2")
        fed.add(obj("later"))
        assert set(known.missing(())) == {"new", "both", "later"}
