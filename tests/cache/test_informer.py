"""An informer's handlers get consistent changes, whatever the server does."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import pytest

from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Item, Queue
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import FilteringEventHandler, HandlerFuncs
from listwatch.cache.informer import Informer
from listwatch.cache.list_watch import MODIFIED, WatchEvent
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.processor import StoppedError
from listwatch.cache.store import Indexer
from listwatch.clock import FakeClock
from listwatch.objects import DeletedFinalStateUnknown, Object, ObjectDecodeError
from listwatch.testing.fake_controller_source import FakeControllerSource, pod

FIFO = Literal["ordered", "delta"]
both_queues = pytest.mark.parametrize("fifo", ["ordered", "delta"])


class Recorder:
    """Records each change as text."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:
        self.told.append(f"add {obj.key} {obj.uid}" + (" initial" if is_in_initial_list else ""))

    def on_update(self, old: Object, new: Object) -> None:
        self.told.append(f"update {new.key} {old.resource_version}->{new.resource_version}")

    def on_delete(self, obj: Item) -> None:
        if isinstance(obj, DeletedFinalStateUnknown):
            assert obj.obj is not None
            self.told.append(f"tombstone {obj.key} {obj.obj.uid}")
        else:
            self.told.append(f"delete {obj.key} {obj.uid}")

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told


class Scene:
    """A source, an informer and its recorder, on a fake clock."""

    def __init__(self, *objects: Mapping[str, Any], fifo: FIFO = "ordered", **options: Any) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock)
        for obj in objects:
            self.source.add(obj)
        self.recorder = Recorder()
        self.failures: list[Failure] = []
        self.informer = Informer(
            self.source,
            self.recorder,
            fifo=fifo,
            clock=self.clock,
            on_error=self.failures.append,
            **options,
        )

    async def expire(self) -> None:
        """Force a relist."""
        self.source.modify_drop_watch(next(iter(self.source.objects.values())))
        self.source.reset_watch()
        await self.clock.advance(5)


@both_queues
async def test_every_kind_of_change_is_told_once(fifo: FIFO) -> None:
    scene = Scene(pod("a"), pod("b", "ns"), fifo=fifo)
    async with scene.informer:
        await scene.clock.settle()
        assert scene.informer.has_synced
        assert scene.recorder.take() == ["add a uid-1 initial", "add ns/b uid-2 initial"]
        scene.source.add(pod("c"))
        scene.source.modify(pod("a", x=1))
        scene.source.delete("ns/b")
        await scene.clock.settle()
        assert scene.recorder.take() == ["add c uid-3", "update a 1->4", "delete ns/b uid-2"]
        assert {obj.key: obj for obj in scene.informer.store.list()} == scene.source.objects
    assert not scene.failures


@both_queues
async def test_a_relist_tells_only_what_differs(fifo: FIFO) -> None:
    """Unchanged objects are not delivered (kubernetes#119646)."""
    scene = Scene(*(pod(f"p{i}") for i in range(5)), fifo=fifo)
    async with scene.informer:
        await scene.clock.settle()
        scene.recorder.take()
        before = scene.informer.indexer.get_by_key("p4")
        await scene.expire()
        assert scene.recorder.take() == ["update p0 1->6"]
        assert scene.informer.indexer.get_by_key("p4") is before


@both_queues
async def test_deletions_missed_while_disconnected_are_tombstones(fifo: FIFO) -> None:
    scene = Scene(pod("a"), pod("b"), fifo=fifo)
    async with scene.informer:
        await scene.clock.settle()
        scene.recorder.take()
        scene.source.delete_drop_watch("b")
        await scene.expire()
        assert sorted(scene.recorder.take()) == ["tombstone b uid-2", "update a 1->4"]


@both_queues
async def test_another_uid_is_a_deletion_and_an_addition(fifo: FIFO) -> None:
    """Recreated while disconnected: client-go delivers an update (kubernetes#133565)."""
    scene = Scene(pod("a"), pod("b"), fifo=fifo)
    async with scene.informer:
        await scene.clock.settle()
        scene.recorder.take()
        scene.source.delete_drop_watch("b")
        scene.source.add_drop_watch(pod("b"))
        await scene.expire()
        told = scene.recorder.take()
        assert [line for line in told if " b " in line] == ["tombstone b uid-2", "add b uid-3"]


@both_queues
async def test_a_watch_that_hides_a_recreation_is_seen_through(fifo: FIFO) -> None:
    """A MODIFIED event with another uid is a deletion and an addition."""
    scene = Scene(pod("a"), fifo=fifo)
    async with scene.informer:
        await scene.clock.settle()
        scene.recorder.take()
        scene.source.delete_drop_watch("a")
        last = scene.source.add_drop_watch(pod("a"))
        scene.source.send(WatchEvent(MODIFIED, last, last.resource_version))
        await scene.clock.settle()
        assert scene.recorder.take() == ["tombstone a uid-1", "add a uid-2"]


@both_queues
async def test_a_listed_item_that_became_undecodable_stays_as_it_was(fifo: FIFO) -> None:
    """No deletion is delivered for an object that the server still has."""
    scene = Scene(pod("a"), pod("b"), fifo=fifo)
    async with scene.informer:
        await scene.clock.settle()
        scene.recorder.take()
        scene.source.poison.add("b")
        scene.source.modify_drop_watch(pod("b", broken=True))
        await scene.expire()
        assert scene.recorder.take() == ["update a 1->4"]
        kept = scene.informer.indexer.get_by_key("b")
        assert kept is not None
        assert kept.resource_version == "2"
        assert scene.informer.statistics().controller.reflector.undecodable == 1
        assert any(failure.key == "b" for failure in scene.failures)
        scene.source.poison.clear()
        scene.source.modify(pod("b"))
        await scene.clock.settle()
        assert scene.recorder.take() == ["update b 2->5"]


async def test_a_poison_item_does_not_block_the_sync_of_the_others() -> None:
    scene = Scene(pod("a"), pod("b"), pod("c"))
    scene.source.poison.add("b")
    async with scene.informer:
        await scene.clock.settle()
        assert scene.informer.has_synced
        assert scene.recorder.take() == ["add a uid-1 initial", "add c uid-3 initial"]


@both_queues
async def test_a_resync_tells_every_object_again_with_both_states_the_same(fifo: FIFO) -> None:
    scene = Scene(pod("a"), fifo=fifo, resync_period=60)
    async with scene.informer:
        await scene.clock.advance(59)
        assert scene.recorder.take() == ["add a uid-1 initial"]
        await scene.clock.advance(1)
        assert scene.recorder.take() == ["update a 1->1"]


@both_queues
async def test_the_store_version_says_up_to_where_everything_was_applied(fifo: FIFO) -> None:
    scene = Scene(pod("a"), fifo=fifo)
    async with scene.informer:
        await scene.clock.settle()
        assert scene.informer.store.last_store_sync_resource_version == "1"
        scene.source.modify(pod("a"))
        await scene.clock.settle()
        assert scene.informer.store.last_store_sync_resource_version == "2"


async def test_a_bookmark_moves_the_store_version() -> None:
    scene = Scene(pod("a"))
    async with scene.informer:
        await scene.clock.settle()
        scene.source.modify_drop_watch(pod("a"))
        scene.source.send_bookmark()
        await scene.clock.settle()
        assert scene.informer.store.last_store_sync_resource_version == "2"


async def test_what_a_handler_raises_is_reported_and_ends_nothing() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    for name in "abc":
        source.add(pod(name))
    failures: list[Failure] = []
    added: list[str] = []

    def on_add(obj: Object, _: bool) -> None:
        if obj.name == "b":
            raise ValueError("no b")
        added.append(obj.name)

    informer = Informer(source, HandlerFuncs(on_add), clock=clock, on_error=failures.append)
    async with informer:
        await clock.settle()
        assert added == ["a", "c"]
        assert informer.has_synced
        assert isinstance(failures[0], Failure)
        assert str(failures[0]) == "handler of added b: no b"
        assert informer.statistics().handler.failed == 1
        assert informer.statistics().handler.delivered == 3


async def test_a_handler_that_waits_delays_only_what_follows() -> None:
    """The store is updated before the handler is called, and the queue accepts new events."""
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))
    seen: list[str] = []

    async def on_update(_: Object, new: Object) -> None:
        await clock.sleep(10)
        seen.append(new.resource_version)

    async with Informer(source, HandlerFuncs(on_update=on_update), clock=clock) as informer:
        await clock.settle()
        source.modify(pod("a"))
        await clock.settle()
        source.modify(pod("a"))
        await clock.advance(9)
        stored = informer.store.get_by_key("a")
        assert stored is not None
        assert (stored.resource_version, seen) == ("2", [])
        assert informer.statistics().controller.queue.depth == 1
        await clock.advance(11)
        assert seen == ["2", "3"]


async def test_indices_and_fields_are_kept() -> None:
    class Spec(msgspec.Struct, gc=False, frozen=True, rename="camel"):
        node_name: str = ""

    class Pod(msgspec.Struct, gc=False, frozen=True):
        spec: Spec = Spec()

    scene = Scene(
        pod("a", nodeName="n1"),
        pod("b", nodeName="n2"),
        fields=Pod,
        indexers={"node": lambda obj: [obj.fields.spec.node_name]},
    )
    async with scene.informer:
        await scene.clock.settle()
        assert scene.informer.indexer.index_keys("node", "n2") == ["b"]
        scene.source.modify(pod("b", nodeName="n1"))
        await scene.clock.settle()
        assert sorted(scene.informer.indexer.index_keys("node", "n1")) == ["a", "b"]
        assert scene.informer.indexer.list_index_values("node") == ["n1"]


async def test_an_object_that_an_index_function_refuses_costs_no_other() -> None:
    def picky(obj: Object) -> Sequence[str]:
        if obj.name == "b":
            raise ValueError("no b")
        return [obj.name]

    scene = Scene(pod("a"), pod("b"), pod("c"), indexers={"name": picky})
    async with scene.informer:
        await scene.clock.settle()
        assert scene.recorder.take() == ["add a uid-1 initial", "add c uid-3 initial"]
        assert [failure.key for failure in scene.failures] == ["b"]
        scene.source.modify(pod("b"))
        scene.source.modify(pod("a"))
        await scene.clock.settle()
        assert scene.recorder.take() == ["update a 1->5"]


async def test_leaving_the_context_stops_within_no_time_and_without_a_trace() -> None:
    scene = Scene(pod("a"))
    async with scene.informer:
        await scene.clock.settle()
    assert scene.source.open_watches == 0
    assert scene.clock.next_timer is None
    with pytest.raises(RuntimeError, match="runs once"):
        await scene.informer.__aenter__()


async def test_waiting_for_a_sync_that_can_not_come_any_more_is_an_error() -> None:
    scene = Scene(name="pods")
    scene.source.fail_watches(ObjectDecodeError("broken"), 100)
    scene.source.fail_lists(ObjectDecodeError("broken"), 100)
    async with scene.informer:
        waiting = asyncio.ensure_future(scene.informer.wait_for_sync())
        await scene.clock.settle()
        assert not waiting.done()
    with pytest.raises(StoppedError, match="pods stopped before it synced"):
        await waiting


@pytest.mark.parametrize("how", ["made", "given"])
async def test_a_queue_of_ones_own(how: str) -> None:
    made: list[Queue] = []

    def make(indexer: Indexer) -> Queue:
        made.append(DeltaFIFO(known_objects=indexer))
        return made[0]

    if how == "given":
        made.append(OrderedFIFO())

    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))
    recorder = Recorder()
    fifo = made[0] if made else make
    async with Informer(source, recorder, fifo=fifo, clock=clock) as informer:
        await clock.settle()
        source.delete("a")
        await clock.settle()
        assert recorder.take() == ["add a uid-1 initial", "delete a uid-1"]
        assert informer.store.last_store_sync_resource_version == "2"
    assert made[0].closed


def test_fields_and_decoder_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="fields= or decoder="):
        Informer(
            FakeControllerSource(),
            HandlerFuncs(),
            fields=msgspec.Struct,
            decoder=lambda raw, _kind, _version: Object.from_dict(msgspec.json.decode(raw)),
        )


async def test_a_filter_turns_updates_into_additions_and_deletions() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    recorder = Recorder()
    handler = FilteringEventHandler(lambda obj: obj.labels.get("on") == "y", recorder)
    source.add(pod("a", labels={"on": "y"}))
    source.add(pod("b"))
    async with Informer(source, handler, clock=clock):
        await clock.settle()
        assert recorder.take() == ["add a uid-1 initial"]
        source.modify(pod("a"))
        source.modify(pod("b", labels={"on": "y"}))
        source.modify(pod("b", labels={"on": "y", "more": "z"}))
        await clock.settle()
        assert recorder.take() == ["delete a uid-1", "add b uid-2", "update b 4->5"]
        source.delete("a")
        source.delete("b")
        await clock.settle()
        assert recorder.take() == ["delete b uid-2"]
