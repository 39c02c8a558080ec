import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from listwatch.cache.shared_cache import NotSyncedError
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError, ListWatchError
from listwatch.runtime.caches import Caches
from listwatch.runtime.reconciler import NotStartedError, Reconciler
from listwatch.runtime.results import Result, TerminalError, requeue_after
from listwatch.shard_range import ShardRange
from listwatch.testing.waiting import eventually
from runtime.reconciler_world import World, owned, widget


async def test_every_object_is_reconciled_at_the_start_and_when_it_changes() -> None:
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    source.add(widget("a"))
    source.add(widget("b"))
    async with world.running() as reconciler:
        assert sorted(world.calls) == ["ns/a", "ns/b"]
        source.modify(widget("a", spec={"x": 1}))
        source.delete("ns/b")
        await world.clock.advance(1)
        assert world.calls[2:] == ["ns/a", "ns/b"]
        assert reconciler.get("ns/b") is None
        a = reconciler.get("ns/a")
        assert a is not None
        assert a["spec"]["x"] == 1


async def test_reconciling_begins_when_the_caches_of_all_its_resources_have_synced() -> None:
    world = World()
    world.reconciler.for_("widget").reads("secret")
    world.source("widget").add(widget("a"))
    world.source("secret").fail_lists(DisconnectedError("away"), 3)
    world.source("secret").watch_list = "invalid"
    async with world.running():
        assert world.calls == []
        await world.clock.advance(60)
        assert world.calls == ["ns/a"]


async def test_caches_that_do_not_sync_end_it_with_the_reason() -> None:
    world = World(sync_timeout=30)
    world.reconciler.for_("widget")
    world.source("widget").watch_list = "invalid"
    world.source("widget").fail_lists(DisconnectedError("no route to host"), 1000)
    with pytest.raises(ExceptionGroup) as caught:
        async with world.running():
            await world.clock.advance(60)
    (error,) = caught.value.exceptions
    assert isinstance(error, NotSyncedError)
    assert "widget has not synced within 30 s" in str(error)
    assert "no route to host" in str(error)


async def test_a_change_of_what_is_owned_wakes_the_owner_by_group_and_kind() -> None:
    world = World()
    world.reconciler.for_("widget").owns("secret")
    async with world.running():
        secrets = world.source("secret")
        secrets.add(owned("s1", "a"))
        secrets.add(owned("s2", "b", controller=False))
        secrets.add(owned("s3", "c", apiVersion="other.com/v1"))
        secrets.add(owned("s4", "d", kind="Gadget"))
        await world.clock.advance(1)
        assert world.calls == ["ns/a"]
        secrets.modify(owned("s1", "e"))  # both the old and the new owner
        await world.clock.advance(1)
        assert sorted(world.calls[1:]) == ["ns/a", "ns/e"]
        secrets.delete("ns/s1")
        await world.clock.advance(1)
        assert world.calls[3:] == ["ns/e"]


async def test_a_mapped_resource_wakes_the_keys_that_its_function_gives() -> None:
    world = World()
    world.reconciler.for_("widget").watches(
        "config", lambda obj: [f"ns/{name}" for name in obj["spec"]["for"]]
    )
    async with world.running():
        world.source("config").add(widget("c", spec={"for": ["a", "b"]}))
        await world.clock.advance(1)
        assert sorted(world.calls) == ["ns/a", "ns/b"]


async def test_a_map_function_that_raises_costs_only_its_own_change() -> None:
    world = World()
    world.reconciler.for_("widget").watches("config", lambda obj: obj["nothing"])
    async with world.running():
        world.source("config").add(widget("c"))
        world.source("widget").add(widget("a"))
        await world.clock.advance(1)
        assert world.calls == ["ns/a"]


async def test_a_failed_key_comes_again_each_time_later_until_it_succeeds() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.outcomes["ns/a"] = [ListWatchError("no")] * 4
    async with world.running() as reconciler:
        world.source("widget").add(widget("a"))
        await world.clock.advance(1)
        assert world.calls == ["ns/a"] * 5
        statistics = reconciler.statistics()
        assert (statistics.errors, statistics.successes) == (4, 1)
        assert statistics.last_error == "ns/a: ListWatchError: no"
        assert reconciler.queue.num_requeues("ns/a") == 0


async def test_a_terminal_error_waits_for_the_next_change() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.outcomes["ns/a"] = [TerminalError("spec.size is negative")]
    async with world.running() as reconciler:
        world.source("widget").add(widget("a"))
        await world.clock.advance(3600)
        assert world.calls == ["ns/a"]
        assert reconciler.statistics().terminal_errors == 1
        world.source("widget").modify(widget("a", spec={}))
        await world.clock.advance(1)
        assert world.calls == ["ns/a"] * 2


async def test_a_key_can_ask_to_come_again_later() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.outcomes["ns/a"] = [requeue_after(100), requeue_after(50)]
    async with world.running() as reconciler:
        world.source("widget").add(widget("a"))
        await world.clock.advance(99)
        assert len(world.calls) == 1
        await world.clock.advance(2)
        assert len(world.calls) == 2
        await world.clock.advance(51)
        assert len(world.calls) == 3
        assert reconciler.statistics().requeues == 2


async def test_a_reconcile_over_its_time_is_cancelled_and_comes_again() -> None:
    world = World(timeout=10)
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def hang_once(key: str) -> None:
        world.calls.append(key)
        if len(world.calls) == 1:
            await world.clock.sleep(1000)

    async with world.running():
        world.source("widget").add(widget("a"))
        await world.clock.advance(9)
        assert world.calls == ["ns/a"]
        await world.clock.advance(2)
        assert world.calls == ["ns/a"] * 2
        assert reconciler.statistics().timeouts == 1


async def test_no_key_is_worked_on_twice_at_once_and_others_are_not_held_up() -> None:
    world = World(concurrency=3)
    reconciler = world.reconciler.for_("widget")
    most: dict[str, int] = {}
    running: dict[str, int] = {}

    @reconciler
    async def slow(key: str) -> None:
        running[key] = running.get(key, 0) + 1
        most[key] = max(most.get(key, 0), running[key])
        most["all"] = max(most.get("all", 0), sum(running.values()))
        await world.clock.sleep(5)
        running[key] -= 1

    async with world.running():
        for name in "abcd":
            world.source("widget").add(widget(name))
        await world.clock.advance(1)
        world.source("widget").modify(widget("a", spec={}))
        await world.clock.advance(30)
    assert most == {"ns/a": 1, "ns/b": 1, "ns/c": 1, "ns/d": 1, "all": 3}


async def test_what_happens_goes_before_the_first_list() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")
    for number in range(5):
        world.source("widget").add(widget(f"old{number}"))

    @reconciler
    async def slow(key: str) -> None:
        world.calls.append(key)
        await world.clock.sleep(10)

    async with world.running():
        world.source("widget").add(widget("new"))
        await world.clock.advance(15)
        assert world.calls[1] == "ns/new"


async def test_a_hot_key_is_put_off_and_others_are_not() -> None:
    world = World(hot_key_burst=5, hot_key_interval=1)
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def hot(key: str) -> None:
        world.calls.append(key)
        if key == "ns/hot":
            reconciler.enqueue(key)

    async with world.running():
        world.source("widget").add(widget("hot"))
        world.source("widget").add(widget("cold"))
        await world.clock.advance(10)
        assert 14 <= world.calls.count("ns/hot") <= 17
        assert world.calls.index("ns/cold") < 10
        assert reconciler.statistics().throttled > 0


async def test_a_timer_wakes_all_objects_with_low_priority() -> None:
    world = World()
    world.reconciler.for_("widget").every(60)
    world.source("widget").add(widget("a"))
    async with world.running():
        await world.clock.advance(130)
        assert world.calls == ["ns/a"] * 3


async def test_a_stream_of_keys_is_followed_and_opened_again_when_it_ends() -> None:
    world = World()
    opened = 0

    async def stream() -> AsyncIterator[str]:
        nonlocal opened
        opened += 1
        yield f"ns/{opened}"
        raise ListWatchError("the other side hung up")

    world.reconciler.for_("widget").events(stream)
    async with world.running():
        await world.clock.advance(8)
    assert world.calls[:3] == ["ns/1", "ns/2", "ns/3"]
    assert opened <= 10  # one second apart


async def test_keys_can_be_queued_from_another_thread() -> None:
    world = World()
    world.reconciler.for_("widget")
    async with world.running() as reconciler:
        thread = threading.Thread(target=reconciler.enqueue, args=("ns/x",))
        thread.start()
        await asyncio.to_thread(thread.join)
        await world.clock.advance(1)
        assert world.calls == ["ns/x"]


def test_a_thread_that_queues_before_the_start_is_told_so() -> None:
    reconciler = Reconciler("test", Caches(FakeClock()), clock=FakeClock())
    with pytest.raises(NotStartedError, match="reconciler test has not started"):
        reconciler.enqueue("ns/x")


async def test_a_plain_function_works_and_is_named_when_it_holds_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    @reconciler
    def plain(key: str) -> None:
        world.calls.append(key)
        world.clock.stall(0.2)  # as if it had computed for so long

    async with world.running():
        world.source("widget").add(widget("a"))
        await world.clock.advance(1)
    assert world.calls == ["ns/a"]
    assert "reconciler test held the event loop for 200 ms with ns/a" in caplog.text


async def test_a_threaded_function_runs_beside_the_loop() -> None:
    world = World(threaded=True, concurrency=2)
    reconciler = world.reconciler.for_("widget")
    names: list[str] = []
    done = threading.Event()

    @reconciler
    def blocking(key: str) -> Result | None:
        names.append(threading.current_thread().name)
        done.set()
        return requeue_after(10) if key == "x" else None

    async with world.running():
        reconciler.enqueue("x")
        await world.clock.advance(0.1)
        await asyncio.to_thread(done.wait, 5)
        await eventually(lambda: reconciler.statistics().requeues)
    assert names[0].startswith("test")


async def test_what_is_neither_none_nor_a_result_is_a_clear_error() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def wrong(key: str) -> Any:
        return key

    async with world.running():
        world.source("widget").add(widget("a"))
        await world.clock.settle()
        await world.clock.advance(0.001)
        assert "returned a str: return None or requeue_after" in reconciler.statistics().last_error


async def test_stopping_lets_the_running_reconciles_end_and_begins_no_other() -> None:
    world = World(concurrency=1)
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def slow(key: str) -> None:
        await world.clock.sleep(5)
        world.calls.append(key)

    async with world.running():
        for name in "abc":
            world.source("widget").add(widget(name))
        await world.clock.advance(1)
        reconciler.stop()
        await world.clock.advance(20)
        assert len(world.calls) == 1


async def test_a_cancelled_reconcile_is_not_lost() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def hang(key: str) -> None:
        del key
        await world.clock.sleep(1000)

    async with world.running():
        world.source("widget").add(widget("a"))
        await world.clock.advance(1)
        assert reconciler.in_process == {"ns/a"}
    assert reconciler.queue.statistics().depth == 1


async def test_keys_of_other_shares_are_left_alone() -> None:
    world = World()
    world.reconciler.for_("widget").share(lambda key: key.endswith("a"))
    async with world.running():
        for name in "abc":
            world.source("widget").add(widget(name))
        await world.clock.advance(1)
    assert world.calls == ["ns/a"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda r: r.for_("a").for_("b"), "is already for a"),
        (lambda r: r.every(0), "too short an interval"),
        (lambda r: r.get("x"), "has no resource"),
        (lambda r: (r(print), r(print)), "already has a function"),
        (lambda r: r.for_("a").lister("b"), "has no cache of 'b', only of a"),
        (lambda r: r.for_("a").lister(), "available once the manager has started"),
    ],
)
def test_mistakes_in_putting_it_together_are_told(
    build: Callable[[Reconciler], object], words: str
) -> None:
    reconciler = Reconciler("test", Caches(FakeClock()), clock=FakeClock())
    with pytest.raises((ValueError, RuntimeError), match=words):
        build(reconciler)


@pytest.mark.parametrize("options", [{"name": ""}, {"concurrency": 0}, {"hot_key_burst": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"need|must"):
        Reconciler(**({"name": "x"} | options), caches=Caches(FakeClock()), clock=FakeClock())


async def test_a_reconcile_can_wait_until_its_cache_has_what_was_written() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget").reads("secret")
    seen: list[int] = []

    @reconciler
    async def reconcile(key: str) -> None:
        written = world.source("secret").add(widget(key[3:]))
        await reconciler.catch_up(written.resource_version, "secret")
        seen.append(len(reconciler.lister("secret").list()))

    async with world.running():
        for name in "abc":
            world.source("widget").add(widget(name))
        await world.clock.advance(1)
    assert seen == [1, 2, 3]


async def test_two_reconcilers_share_one_cache_and_its_requests() -> None:
    world = World()
    second_calls: list[str] = []
    second = Reconciler("second", world.caches, clock=world.clock).for_("widget")

    @second
    async def reconcile(key: str) -> None:
        second_calls.append(key)

    world.reconciler.for_("widget")
    await second.prepare(world)
    world.source("widget").add(widget("a"))
    async with world.running(), asyncio.TaskGroup() as group:
        task = group.create_task(second.run())
        await world.clock.advance(1)
        task.cancel()
    assert world.calls == second_calls == ["ns/a"]
    assert len(world.source("widget").requests) == 1


async def test_a_fixed_share_takes_no_absent_object_for_a_deleted_one() -> None:
    world = World()
    mine = ShardRange.of(0, 2)
    reconciler = world.reconciler.for_("widget", shard=mine).owns("pod")
    reconciler.watches("secret", lambda obj: [obj.key]).every(60, lambda: ["ns/theirs"])
    world.source("widget").add(widget("mine"))
    async with world.running():
        assert world.shards == {"widget": mine, "pod": None, "secret": None}
        assert world.calls == ["ns/mine"]
        for name in ("theirs", "mine"):
            world.source("pod").add(owned(f"p-{name}", name))
            world.source("secret").add(widget(name))
            reconciler.enqueue(f"ns/{name}")
        await world.clock.advance(61)
        assert set(world.calls) == {"ns/mine"}
        world.calls.clear()
        world.source("widget").delete("ns/mine")
        await world.clock.advance(1)
        assert world.calls == ["ns/mine"]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), "3"])
async def test_a_wait_that_is_no_number_of_seconds_is_an_error_of_its_reconcile(
    seconds: Any,
) -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def reconcile(key: str) -> Result | None:
        world.calls.append(key)
        return requeue_after(seconds) if key == "ns/a" else None

    async with world.running():
        world.source("widget").add(widget("a"))
        world.source("widget").add(widget("b"))
        await world.clock.advance(1)
        assert world.calls.count("ns/b") == 1
        statistics = reconciler.statistics()
        assert statistics.errors == world.calls.count("ns/a") > 1
        assert f"a finite number of seconds, not {seconds!r}" in statistics.last_error


async def test_a_cancellation_within_a_reconcile_is_an_error_and_ends_no_worker() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if len(world.calls) < 3:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    async with world.running():
        world.source("widget").add(widget("a"))
        await world.clock.advance(1)
        assert world.calls == ["ns/a"] * 3
        assert reconciler.statistics().errors == 2


async def test_a_task_group_that_fails_within_a_reconcile_is_an_error_and_ends_no_worker() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    async def fail() -> None:
        raise LookupError

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if len(world.calls) < 3:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())

    async with world.running():
        world.source("widget").add(widget("a"))
        await world.clock.advance(1)
        assert world.calls == ["ns/a"] * 3
        assert reconciler.statistics().errors == 2


async def test_a_function_that_cancels_its_own_task_has_failed_and_ends_no_worker() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        task = asyncio.current_task()
        assert task is not None
        if len(world.calls) < 3:
            task.cancel()
            await asyncio.sleep(0)

    async with world.running():
        world.source("widget").add(widget("a"))
        await world.clock.advance(1)
        assert world.calls == ["ns/a"] * 3
        assert reconciler.statistics().errors == 2


async def test_a_function_that_cancels_a_worker_ends_the_reconciler_with_a_reason() -> None:
    world = World(concurrency=2)
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def reconcile(key: str) -> None:
        del key
        for task in asyncio.all_tasks():
            if task.get_name() == f"{reconciler.name} 0":
                task.cancel()
        await asyncio.sleep(0)

    world.source("widget").add(widget("a"))
    with pytest.raises(ExceptionGroup) as caught:
        async with world.running():
            await world.clock.advance(1)
    assert caught.group_contains(RuntimeError, match="one of its workers was cancelled")


async def test_a_function_that_keeps_a_cancellation_to_itself_gets_no_other_key() -> None:
    world = World()
    reconciler = world.reconciler.for_("widget")

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        try:
            await world.clock.sleep(1000 if len(world.calls) == 1 else 0)
        except asyncio.CancelledError:
            # Makes the test fail instead of hang if another key comes.
            asyncio.get_running_loop().call_later(0.1, reconciler.stop)

    world.source("widget").add(widget("a"))
    world.source("widget").add(widget("b"))
    async with world.running():
        pass
    assert len(world.calls) == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("ns/a", "a list of keys, not one string: 'ns/a'"),
        ([""], "a key is a string like 'namespace/name', not ''"),
        ([None], "a key is a string like 'namespace/name', not None"),
        ([b"ns/a"], "a key is a string like 'namespace/name', not b'ns/a'"),
        (7, "'int' object is not iterable"),
    ],
)
async def test_what_is_no_list_of_keys_costs_its_own_change_and_is_told(
    keys: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.reconciler.for_("widget").watches("config", lambda _: keys)
    async with world.running():
        world.source("config").add(widget("c"))
        await world.clock.advance(1)
        world.source("widget").add(widget("b"))
        await world.clock.advance(1)
        assert world.calls == ["ns/b"]
    assert "handler of added ns/c" in caplog.text
    assert words in caplog.text


async def test_a_reconciler_that_is_stopped_before_it_runs_waits_for_no_cache() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.reconciler(world.reconcile)
    world.reconciler.stop()
    await world.reconciler.run()
    assert world.calls == []
