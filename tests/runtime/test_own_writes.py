"""A reconcile of a key reads what its last reconcile wrote."""

import asyncio
import contextlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from listwatch.cache.factory import Selection
from listwatch.client.request_target import RequestTarget
from listwatch.errors import DisconnectedError
from listwatch.objects import Object
from listwatch.runtime.own_writes import OwnWrites
from listwatch.runtime.recorded_writes import Write
from runtime.lagging_world import Canned, LaggingWorld, recording_http
from runtime.reconciler_world import widget

if TYPE_CHECKING:
    from listwatch.runtime.caches import Cache


def children_of(world: LaggingWorld, parent: str) -> int:
    return sum(
        obj.meta.labels.get("parent") == parent for obj in world.source("children").objects.values()
    )


class OneChild:
    """Creates a child with a generated name for each parent that has none in the lister."""

    def __init__(self, world: LaggingWorld) -> None:
        self.world = world
        self.reconciles = 0
        self.most: Counter[str] = Counter()
        world.reconciler.for_("parents").reads("children")
        world.reconciler(self.reconcile)

    async def reconcile(self, key: str) -> None:
        self.reconciles += 1
        name = key.partition("/")[2]
        if self.world.reconciler.get(key) is None:
            return
        if not self.world.reconciler.lister("children").list(f"parent={name}"):
            meta = {"namespace": "ns", "generateName": "c-", "labels": {"parent": name}}
            try:
                await self.world.post("children", {**widget(""), "metadata": meta})
            finally:
                self.most[name] = max(self.most[name], children_of(self.world, name))


async def tried(seed: int, rounds: int, *, faults: bool = True, **options: Any) -> OneChild:
    world = LaggingWorld(seed, lag=30.0, concurrency=3, **options)
    rng = world.rng
    for number in range(3):
        world.source("parents").add(widget(f"p{number}"))
    if faults:
        world.server.fates = iter(lambda: rng.choice(["", "", "", "lost", "not sent"]), None)
    controller = OneChild(world)
    async with world.running() as reconciler:
        await world.clock.advance(100)
        for _ in range(rounds):
            reconciler.enqueue(f"ns/p{rng.randrange(3)}")
            if rng.random() < 0.05:
                children = list(world.source("children").objects.values())
                if children:
                    world.source("children").delete(rng.choice(children))
            await world.clock.advance(rng.choice([0.01, 0.1, 1.0, 5.0]))
    return controller


@pytest.mark.parametrize("seed", range(3))
async def test_there_is_never_a_second_child_however_far_the_watch_lags(seed: int) -> None:
    controller = await tried(seed, 300, own_writes_timeout=60.0)
    assert set(controller.most.values()) == {1}
    assert controller.reconciles > 150
    statistics = controller.world.reconciler.statistics().own_writes
    assert statistics is not None
    assert statistics.timeouts == 0
    assert statistics.waits > 3
    assert statistics.seconds > 10


async def test_without_it_the_same_controller_makes_second_children() -> None:
    found = [await tried(seed, 100, own_writes_timeout=None) for seed in range(3)]
    assert max(max(one.most.values()) for one in found) > 1
    assert found[0].world.reconciler.statistics().own_writes is None


async def test_a_second_child_follows_a_counted_time_out_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = [await tried(seed, 300, own_writes_timeout=2.0) for seed in range(3)]
    for one in found:
        statistics = one.world.reconciler.statistics().own_writes
        assert statistics is not None
        assert statistics.timeouts > 0
    assert max(max(one.most.values()) for one in found) > 1
    assert any(
        "lacks version" in line and "the cache of children" in line and "after 2 s" in line
        for line in caplog.messages
    )


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(32))
async def test_there_is_never_a_second_child_in_a_long_run(seed: int) -> None:
    controller = await tried(seed, 50_000, own_writes_timeout=60.0)
    assert set(controller.most.values()) == {1}
    statistics = controller.world.reconciler.statistics().own_writes
    assert statistics is not None
    assert statistics.timeouts == 0


# --- Waiting for own writes -----------------------------------------------------------------------


async def test_get_shows_what_the_reconcile_wrote() -> None:
    world = LaggingWorld(lag=30)
    world.source("parents").add(widget("p"))
    shown: list[Any] = []
    reconciler = world.reconciler.for_("parents")

    @reconciler
    async def reconcile(key: str) -> None:
        if shown:
            return
        shown.append(reconciler.get(key))
        path = f"/apis/example.com/v1/namespaces/ns/parents/{key[3:]}"
        changed = widget("p", spec={"a": 1})
        await world.http.request("PUT", path, body=json.dumps(changed).encode())
        await world.post("parents", widget("other"))
        await world.post("children", widget(key[3:]))
        shown.append(reconciler.get(key))
        await world.http.request("DELETE", path)
        shown.append(reconciler.get(key))

    async with world.running():
        await world.clock.advance(100)
    before, changed, gone = shown
    assert "spec" not in before
    assert changed["spec"] == {"a": 1}
    assert gone is None


async def test_get_shows_what_others_have_made_of_it_since() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents")
    path = "/apis/example.com/v1/namespaces/ns/parents/p"
    shown: list[Any] = []

    @reconciler
    async def reconcile(key: str) -> None:
        if shown:
            return
        await world.http.request("PUT", path, body=json.dumps(widget("p", spec={"a": 1})).encode())
        world.source("parents").modify(widget("p", spec={"a": 2}))
        await world.clock.sleep(1)
        shown.append(reconciler.get(key))
        await world.http.request("DELETE", path)
        world.source("parents").add(widget("p", spec={"a": 3}))
        await world.clock.sleep(1)
        shown.append(reconciler.get(key))

    async with world.running():
        await world.clock.advance(5)
    assert [obj["spec"] for obj in shown] == [{"a": 2}, {"a": 3}]


async def test_get_shows_a_deleted_object_that_a_finalizer_keeps() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p", meta={"finalizers": ["example.com/x"], "uid": "u"}))
    reconciler = world.reconciler.for_("parents")
    http = recording_http(Canned({"kind": "Widget", "metadata": {"name": "p", "uid": "u"}}))

    @reconciler
    async def reconcile(key: str) -> None:
        await http.request("DELETE", "/apis/example.com/v1/namespaces/ns/parents/p")
        world.calls.append(str(reconciler.get(key) is not None))

    async with world.running():
        pass
    assert world.calls == ["True"]


@pytest.mark.parametrize(
    ("selection", "holds"),
    [
        ({}, True),
        ({"namespace": "ns"}, True),
        ({"namespace": "other"}, False),
        ({"label_selector": "app=web"}, True),
        ({"label_selector": "app=db"}, False),
        ({"field_selector": "metadata.name=c"}, True),
        ({"field_selector": "metadata.name=d"}, False),
        # Only the server knows whether the object matches.
        ({"field_selector": "status.phase=Running"}, False),
        ({"field_selector": "metadata.name=c,status.phase!=Running"}, False),
    ],
    ids=str,
)
async def test_only_caches_that_are_to_have_the_object_are_waited_for(
    selection: dict[str, Any], *, holds: bool
) -> None:
    world = LaggingWorld(lag=0)
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").watches("children", lambda _: (), **selection)
    done: list[str] = []

    @reconciler
    async def reconcile(key: str) -> None:
        if not done:
            done.append(key)
            world.lag = 1e6
            meta = {"namespace": "ns", "name": "c", "labels": {"app": "web"}}
            await world.post("children", {**widget("c"), "metadata": meta})

    async with world.running():
        await world.clock.advance(1)
        statistics = reconciler.statistics().own_writes
        assert statistics is not None
        assert statistics.waiting == holds
    assert reconciler.statistics().queue.depth == 0


async def test_what_wakes_a_key_meanwhile_is_one_reconcile_and_other_keys_go_on() -> None:
    world = LaggingWorld(lag=0, own_writes_timeout=5.0)
    for name in "ab":
        world.source("parents").add(widget(name))
    reconciler = world.reconciler.for_("parents").reads("children")

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if world.calls == ["ns/a"]:
            world.lag = 1e6
            await world.post("children", widget("c"))

    async with world.running():
        assert world.calls == ["ns/a", "ns/b"]
        for _ in range(3):
            reconciler.enqueue("ns/a")
            reconciler.enqueue("ns/b")
            await world.clock.advance(0.1)
        assert world.calls == ["ns/a", "ns/b", "ns/b", "ns/b", "ns/b"]
        await world.clock.advance(5)
        assert world.calls[5:] == ["ns/a"]


# --- The end of a reconcile, and of the reconciler ------------------------------------------------


async def test_a_reconcile_that_hides_its_cancellation_and_writes_ends_the_reconciler_quietly() -> (
    None
):
    world = LaggingWorld(lag=1e6)
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children")

    @reconciler
    async def reconcile(_key: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await world.post("children", widget("c"))

    world.lag = 0
    async with world.running():
        assert reconciler.in_process == {"ns/p"}
        world.lag = 1e6
    assert "ns/c" in world.source("children").objects
    assert reconciler.statistics().queue.processing == 0


async def test_a_key_is_let_go_although_its_wait_is_cancelled_before_it_begins() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children")

    @reconciler
    async def reconcile(_key: str) -> None:
        world.lag = 1e6
        await world.post("children", widget("c"))
        running.cancel()  # as lost leadership does, right after the last step

    await reconciler.prepare(world)
    world.caches.open(world)
    caches = asyncio.create_task(world.caches.run())
    running = asyncio.create_task(reconciler.run())
    await world.clock.advance(1)
    await asyncio.wait({running})
    caches.cancel()
    await asyncio.wait({caches})
    assert running.cancelled()
    assert reconciler.statistics().queue.processing == 0


async def test_a_cache_that_stops_is_waited_for_no_longer() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children")

    @reconciler
    async def reconcile(_key: str) -> None:
        world.lag = 1e6
        await world.post("children", widget("c"))

    await reconciler.prepare(world)
    world.caches.open(world)
    caches = asyncio.create_task(world.caches.run())
    running = asyncio.create_task(reconciler.run())
    await world.clock.advance(1)
    caches.cancel()
    await asyncio.wait({caches})
    await world.clock.advance(1)
    statistics = reconciler.statistics()
    assert statistics.queue.processing == 0
    assert statistics.own_writes is not None
    assert (statistics.own_writes.waits, statistics.own_writes.timeouts) == (1, 0)
    reconciler.stop()
    await running


async def test_what_the_reconcile_wrote_has_the_fields_of_its_cache() -> None:
    class Fields(msgspec.Struct):
        spec: dict[str, int] = {}

    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents", fields=Fields)
    shown: list[Any] = []

    @reconciler
    async def reconcile(key: str) -> None:
        if shown:
            return
        path = f"/apis/example.com/v1/namespaces/ns/parents/{key[3:]}"
        changed = json.dumps(widget("p", spec={"a": 1})).encode()
        await world.http.request("PUT", path, body=changed)
        found = reconciler.get(key)
        assert found is not None
        shown.append(found.fields)

    async with world.running():
        await world.clock.advance(100)
    assert [one.spec for one in shown] == [{"a": 1}]


async def test_a_write_whose_answer_was_lost_does_not_hide_the_one_before() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents")
    shown: list[Any] = []

    @reconciler
    async def reconcile(key: str) -> None:
        if shown:
            return
        path = f"/apis/example.com/v1/namespaces/ns/parents/{key[3:]}"
        changed = json.dumps(widget("p", spec={"a": 1})).encode()
        await world.http.request("PUT", path, body=changed)
        for method in ("PUT", "DELETE"):
            world.server.fates = iter(["lost"])
            with contextlib.suppress(DisconnectedError):
                await world.http.request(method, path, body=changed)
            found = reconciler.get(key)
            assert found is not None
            shown.append(found["spec"])

    async with world.running():
        await world.clock.advance(100)
    assert shown == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize("version", ["9" * 5000, "٣", "²", "x", ""], ids=lambda v: v[:3] or "none")
async def test_a_version_that_is_no_number_of_sane_length_holds_nothing_back(version: str) -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents")
    answer = widget("p", meta={"uid": "u", "resourceVersion": version})
    http = recording_http(Canned(answer))

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if len(world.calls) < 3:
            reconciler.enqueue(key)
        await http.request("PUT", "/apis/example.com/v1/namespaces/ns/parents/p")
        reconciler.get(key)

    async with world.running():
        await world.clock.advance(100)
    assert world.calls == ["ns/p"] * 3


class Opaque:
    """A cache whose resource versions are not numbers."""

    selection = Selection("children")
    resource_version = "x"

    def __init__(self) -> None:
        self.informer = self.indexer = self

    def holds(self, _key: str) -> bool:
        return True

    def get_by_key(self, key: str) -> Object:
        return Object.from_dict(widget(key[3:], meta={"uid": "u"}))


@pytest.mark.parametrize("is_deletion", [False, True])
async def test_a_cache_whose_version_is_no_number_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, *, is_deletion: bool
) -> None:
    world = LaggingWorld()
    cache = cast("Cache", Opaque())
    own = OwnWrites("test", [cache], seconds=10, clock=world.clock)
    await own.begin(None, world.find)
    target = RequestTarget("example.com", "v1", "children", "ns", "c", "")
    version = "" if is_deletion else "y"
    writes = [Write(target=target, uid="u", resource_version=version, is_deletion=is_deletion)]
    assert not own.are_seen(writes)
    await own.wait("ns/p", writes)
    assert not own.are_seen([Write(target=target, resource_version="7")])
    assert own.statistics().timeouts == 0
    told = "'x'" if is_deletion else "'y'"
    assert [line for line in caplog.messages if f"{told} can't be compared" in line]
