"""What is waited for after deletions and lost responses."""

import contextlib
import json

import pytest

from listwatch.errors import DisconnectedError
from listwatch.shard_range import ShardRange, uid_hash
from runtime.lagging_world import Canned, LaggingWorld, recording_http
from runtime.reconciler_world import widget

# --- Deletions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["", "lost"])
@pytest.mark.parametrize("seed", range(5))
async def test_what_a_deletion_of_a_whole_collection_removed_is_never_listed_again(
    seed: int, fate: str
) -> None:
    world = LaggingWorld(seed, lag=5.0, own_writes_timeout=60.0)
    world.source("parents").add(widget("p"))
    for name in "abc":
        world.source("children").add(widget(name))
    world.source("children").add(widget("far", meta={"namespace": "other"}))
    reconciler = world.reconciler.for_("parents").reads("children")
    listed: list[list[str]] = []

    @reconciler
    async def reconcile(key: str) -> None:
        listed.append(sorted(obj.key for obj in reconciler.lister("children").list()))
        if len(listed) == 1:
            reconciler.enqueue(key)
            world.server.fates = iter([fate])
            await world.http.request("DELETE", "/apis/example.com/v1/namespaces/ns/children")

    async with world.running():
        await world.clock.advance(100)
        world.source("children").add(widget("d"))
        await world.clock.advance(100)
    assert listed[0] == ["ns/a", "ns/b", "ns/c", "other/far"]
    assert listed[1:] == [["other/far"]] * len(listed[1:])
    assert len(listed) > 1
    statistics = reconciler.statistics().own_writes
    assert statistics is not None
    assert (statistics.waits, statistics.timeouts) == (1, 0)


async def test_an_object_without_its_last_finalizer_is_gone_for_the_next_reconcile() -> None:
    world = LaggingWorld(lag=5.0)
    ending = {"deletionTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}
    world.source("parents").add(widget("p", meta=ending | {"finalizers": ["example.com/x"]}))
    reconciler = world.reconciler.for_("parents")
    shown: list[bool] = []

    @reconciler
    async def reconcile(key: str) -> None:
        shown.append(reconciler.get(key) is not None)
        if len(shown) == 1:
            world.lag = 1e6
            reconciler.enqueue(key)
            path = f"/apis/example.com/v1/namespaces/ns/parents/{key[3:]}"
            await world.http.request(
                "PUT", path, body=json.dumps(widget("p", meta=ending)).encode()
            )
            shown.append(reconciler.get(key) is not None)

    async with world.running():
        await world.clock.advance(9)
        assert shown == [True, False]
        statistics = reconciler.statistics().own_writes
        assert statistics is not None
        assert statistics.waiting == 1


async def test_a_name_that_another_object_got_at_once_is_not_waited_for() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    children = world.source("children")
    children.add(widget("c"))
    reconciler = world.reconciler.for_("parents").reads("children")
    http = recording_http(Canned({"kind": "Status"}))  # without a uid

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if len(world.calls) == 1:
            reconciler.enqueue(key)
            await http.request("DELETE", "/apis/example.com/v1/namespaces/ns/children/c")
            world.clock.call_later(1, replace)

    def replace() -> None:
        children.delete_drop_watch("ns/c")
        children.add_drop_watch(widget("c"))
        children.reset_watch()

    async with world.running():
        await world.clock.advance(9)
    assert len(world.calls) == 2
    statistics = reconciler.statistics().own_writes
    assert statistics is not None
    assert (statistics.waits, statistics.timeouts) == (1, 0)


# --- Lost responses -------------------------------------------------------------------------------


async def test_a_cache_with_a_selector_is_waited_for_although_newer_objects_exist() -> None:
    """The created object has a generated name: it may be any object that the cache lacks."""
    world = LaggingWorld(lag=5.0)
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children", label_selector="app=web")
    listed: list[int] = []

    @reconciler
    async def reconcile(key: str) -> None:
        listed.append(len(reconciler.lister("children").list()))
        if len(listed) > 1:
            return
        reconciler.enqueue(key)
        world.server.fates = iter(["lost"])
        meta = {"namespace": "ns", "generateName": "c-", "labels": {"app": "web"}}
        with contextlib.suppress(DisconnectedError):
            await world.post("children", {**widget(""), "metadata": meta})
        world.source("children").add(widget("db", meta={"labels": {"app": "db"}}))

    async with world.running():
        await world.clock.advance(50)
        statistics = reconciler.statistics().own_writes
    assert listed == [0, 1]
    assert statistics is not None
    assert (statistics.waits, statistics.timeouts) == (1, 0)


async def test_a_shard_does_not_wait_for_objects_of_others() -> None:
    only_a = ShardRange(uid_hash("u-a"), uid_hash("u-a") + 1)
    world = LaggingWorld()
    parents = world.source("parents")
    for name in "ab":
        parents.add(widget(name, meta={"uid": f"u-{name}"}))
    reconciler = world.reconciler.for_("parents", shard=only_a)

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if world.calls.count(key) > 1 or key == "ns/b":
            return
        reconciler.enqueue(key)
        world.lag = 1e6
        parents.modify(widget("b"))
        await world.post("parents", widget("c"))
        world.server.fates = iter(["lost"])
        meta = {"namespace": "ns", "generateName": "d-"}
        with contextlib.suppress(DisconnectedError):
            await world.post("parents", {**widget(""), "metadata": meta})

    async with world.running():
        await world.clock.advance(1)
        statistics = reconciler.statistics().own_writes
    assert world.calls.count("ns/a") == 2
    assert statistics is not None
    assert (statistics.waits, statistics.waiting, statistics.seconds) == (1, 0, 0)


async def test_a_resource_without_a_cache_is_not_read_after_a_lost_response() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children")
    world.unreadable = 1

    @reconciler
    async def reconcile(_key: str) -> None:
        world.server.fates = iter(["lost"])
        with contextlib.suppress(DisconnectedError):
            await world.post("others", widget("c"))
        world.lag = 1e6
        await world.post("children", widget("c"))

    async with world.running():
        await world.clock.advance(1)
        statistics = reconciler.statistics().own_writes
    assert statistics is not None
    assert statistics.waiting == 1
    assert world.unreadable == 1


@pytest.mark.parametrize("failures", [2, 1000])
async def test_a_server_that_does_not_tell_is_asked_again_until_the_time_limit(
    failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children")
    world.unreadable = failures

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if len(world.calls) == 1:
            reconciler.enqueue(key)
            world.server.fates = iter(["lost"])
            with contextlib.suppress(DisconnectedError):
                await world.post("children", widget("c"))

    caplog.set_level("INFO")
    async with world.running():
        await world.clock.advance(8)
        assert len(world.calls) == (2 if failures == 2 else 1)
        await world.clock.advance(3)
        assert len(world.calls) == 2
        statistics = reconciler.statistics().own_writes
    asked = [line for line in caplog.messages if "reading children after a lost response" in line]
    assert len(asked) == min(failures, 10)
    assert statistics is not None
    assert statistics.timeouts == (failures > 2)
    told = "what was written to children is still unknown after a lost response"
    assert any(told in line for line in caplog.messages) == (failures > 2)
