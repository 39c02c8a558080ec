import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.queue_story import (
    A,
    Broken,
    D,
    Everything,
    Popped,
    S,
    U,
    done,
    drain,
    known,
    make,
    pop_all,
    raising,
    start,
    story,
)
from listwatch.cache.deltas import Deltas, DeltaType, Item, Queue, RequeueError
from listwatch.cache.event_queue import EventQueue
from listwatch.cache.merging import LAST_STATE as COMPRESSION
from listwatch.cache.reflector import Reflector
from listwatch.clock import FakeClock
from listwatch.errors import ExpiredError, QueueClosedError
from listwatch.objects import DeletedFinalStateUnknown, KeyFunctionError, Object
from listwatch.testing.fake_controller_source import END, FakeControllerSource, pod
from listwatch.workqueue.rate_limiters import TokenBucket
from listwatch.workqueue.retry_controller import QueueRetryManager, RetryController, retry_always


def feed(queue: EventQueue, kind: DeltaType, version: int, name: str = "a") -> None:
    """Queue one event as a reflector would; SYNC as a list of only this object."""
    obj = make(name, version)
    match kind:
        case DeltaType.ADDED:
            queue.add(obj)
        case DeltaType.UPDATED:
            queue.update(obj)
        case DeltaType.DELETED:
            queue.delete(obj)
        case _:
            queue.replace([obj], str(version))


# --- The table -----------------------------------------------------------------------------------

TABLE: list[tuple[DeltaType, list[DeltaType | None]]] = [
    # queued: result after Sync, Added, Updated, Deleted
    (A, [A, A, A, None]),
    (S, [S, S, S, D]),
    (U, [U, U, U, D]),
    (D, [S, U, U, D]),
]
TRANSITIONS = [
    (old, new, result)
    for old, results in TABLE
    for new, result in zip((S, A, U, D), results, strict=True)
]


def test_the_table_in_code_is_complete_and_as_specified() -> None:
    specified = {(old, new): result for old, new, result in TRANSITIONS}
    assert specified == COMPRESSION
    assert len(COMPRESSION) == 4 * 4


@pytest.mark.parametrize(("old", "new", "result"), TRANSITIONS)
async def test_two_events_of_a_key_become_what_the_table_says_with_the_newer_object(
    old: DeltaType, new: DeltaType, result: DeltaType | None
) -> None:
    # A deletion needs a known object.
    queue = EventQueue(known_objects=known(make("a", 1)) if old is D else known())
    feed(queue, old, 2)
    feed(queue, new, 3)
    # The FIFO keeps the first of two deletions that carry the object.
    version = "2" if (old, new) == (D, D) else "3"
    expected = [] if result is None else [("a", [(result, version)])]
    assert await drain(queue) == expected


async def test_no_event_of_a_key_moves_it_from_its_place() -> None:
    queue = EventQueue()
    for name in ("a", "b"):
        feed(queue, A, 1, name)
    feed(queue, U, 2, "a")
    assert await drain(queue) == [("a", [(A, "2")]), ("b", [(A, "1")])]


async def test_added_and_deleted_unseen_is_no_event_and_leaves_nothing() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    feed(queue, D, 2)
    assert (len(queue), queue.list_keys(), list(queue.known_objects.list_keys())) == (0, [], [])
    feed(queue, A, 3)
    assert await drain(queue) == [("a", [(A, "3")])]


async def test_an_event_queue_is_a_queue() -> None:
    assert isinstance(EventQueue(), Queue)


# --- Its own store -------------------------------------------------------------------------------


async def test_the_own_store_holds_what_was_popped_while_it_is_processed() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    assert list(queue.known_objects.list_keys()) == []

    def process(deltas: Deltas) -> None:
        assert queue.known_objects.get_by_key("a") is deltas.newest().object

    await queue.pop(process)
    feed(queue, D, 2)
    assert list(queue.known_objects.list_keys()) == ["a"]
    await queue.pop(done)
    assert list(queue.known_objects.list_keys()) == []


async def test_what_was_deleted_while_disconnected_is_an_event_with_the_last_state() -> None:
    queue = EventQueue()
    queue.replace([make("a", 1), make("b", 2)], "2")
    await pop_all(queue)
    queue.replace([make("b", 2)], "5")
    assert await drain(queue) == [("b", [(S, "2")]), ("a", [(D, "1")])]


async def test_a_deletion_that_waits_survives_a_list() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    await queue.pop(done)
    feed(queue, D, 2)
    queue.replace([make("b", 3)], "3")
    assert await drain(queue) == [("a", [(D, "2")]), ("b", [(S, "3")])]


async def test_a_resync_tells_all_known_objects_and_no_order_of_events_stops_anything() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    await queue.pop(done)
    queue.resync()
    assert len(queue) == 1
    feed(queue, D, 2)
    assert await drain(queue) == [("a", [(D, "2")])]
    queue.resync()
    assert len(queue) == 0


async def test_a_resync_with_an_update_waiting_stays_the_update() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    await queue.pop(done)
    feed(queue, U, 2)
    queue.resync()
    queue.replace([make("a", 3)], "3")
    assert await drain(queue) == [("a", [(U, "3")])]


async def test_the_deletion_of_something_unknown_is_no_event() -> None:
    queue = EventQueue()
    feed(queue, D, 1)
    queue.delete(DeletedFinalStateUnknown("b", None))
    assert len(queue) == 0


async def test_a_tombstone_without_a_state_gets_the_last_one_known() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    await queue.pop(done)
    queue.delete(DeletedFinalStateUnknown("a", None))
    assert await drain(queue) == [("a", [(D, "1")])]


async def test_a_deletion_comes_also_when_the_addition_was_processed_half_way() -> None:
    """The cancelled addition is queued again, but the consumer may already have acted on it."""
    queue = EventQueue()
    feed(queue, A, 1)
    popped = await start(queue)
    await popped.cancel()
    assert queue.list_keys() == ["a"]
    feed(queue, D, 2)
    assert await drain(queue) == [("a", [(D, "2")])]
    assert list(queue.known_objects.list_keys()) == []


async def test_events_that_come_while_one_is_processed_wait_and_are_compressed() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    popped = await start(queue)
    for kind, version in ((U, 2), (D, 3), (A, 4)):
        feed(queue, kind, version)
    await popped.succeed()
    assert await drain(queue) == [("a", [(U, "4")])]


async def test_an_event_given_back_is_compressed_with_what_came_meanwhile() -> None:
    clock = FakeClock()
    queue = EventQueue(clock=clock)
    feed(queue, A, 1)
    await queue.pop(raising(RequeueError(after=1)))
    feed(queue, U, 2)
    await clock.advance(1)
    assert await drain(queue) == [("a", [(A, "2")])]


async def test_an_error_of_the_process_function_is_raised_and_the_object_stays_known() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    with pytest.raises(LookupError):
        await queue.pop(raising(LookupError()))
    assert (len(queue), queue.known_objects.get_by_key("a")) == (0, make("a", 1))


async def test_a_batch_keeps_the_store_as_pops_do() -> None:
    queue = EventQueue()
    queue.replace([make("a", 1), make("b", 1)], "1")
    seen: list[list[tuple[DeltaType, str]]] = []
    assert await queue.pop_batch(lambda batch: seen.extend(map(story, batch))) == 2
    assert seen == [[(S, "1")], [(S, "1")]]
    assert sorted(queue.known_objects.list_keys()) == ["a", "b"]


async def test_a_key_function_of_ones_own_keys_the_store_too() -> None:
    def key_func(item: object) -> str:
        assert isinstance(item, Object)  # never called with a tombstone
        return f"k/{item.name}"

    queue = EventQueue(key_func)
    queue.replace([make("a", 1)], "1")
    await pop_all(queue)
    assert list(queue.known_objects.list_keys()) == ["k/a"]
    queue.replace([], "2")
    assert await drain(queue) == [("k/a", [(D, "1")])]


async def test_closed_and_empty_a_pop_ends() -> None:
    queue = EventQueue()
    waiting = asyncio.ensure_future(queue.pop(done))
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(QueueClosedError):
        await waiting


# --- The consumer's known objects ----------------------------------------------------------------


async def test_given_known_objects_it_reads_them_and_writes_nothing() -> None:
    store = known(make("gone", 1), make("kept", 1))
    queue = EventQueue(known_objects=store)
    queue.replace([make("kept", 2), make("new", 3)], "3")
    assert sorted(await drain(queue)) == [
        ("gone", [(D, "1")]),
        ("kept", [(S, "2")]),
        ("new", [(S, "3")]),
    ]
    assert sorted(store.list_keys()) == ["gone", "kept"]
    assert store.get_by_key("kept") == make("kept", 1)
    assert queue.known_objects is store


async def test_an_empty_store_given_is_not_taken_for_none() -> None:
    store = known()
    assert EventQueue(known_objects=store).known_objects is store


async def test_added_and_deleted_is_a_deletion_where_the_consumer_knows_the_object() -> None:
    for known_objects in (known(make("a", 1)), Everything()):
        queue = EventQueue(known_objects=known_objects)
        feed(queue, A, 2)
        feed(queue, D, 3)
        assert await drain(queue) == [("a", [(D, "3")])]


async def test_known_objects_that_fail_are_reported_and_the_deletion_is_told() -> None:
    errors: list[BaseException] = []
    queue = EventQueue(
        known_objects=Broken(), on_error=lambda failure: errors.append(failure.error)
    )
    feed(queue, A, 1)
    feed(queue, D, 2)
    assert await drain(queue) == [("a", [(D, "2")])]
    assert [str(error) for error in errors] == ["no a today"]


async def test_where_no_state_is_known_a_deletion_carries_its_tombstone() -> None:
    queue = EventQueue(known_objects=Everything())
    queue.delete(DeletedFinalStateUnknown("a", None))
    assert await drain(queue) == [("a", [(D, "†?")])]


# --- The progress of lists -----------------------------------------------------------------------


async def test_it_tells_whether_a_list_came_its_size_and_whether_all_of_it_was_consumed() -> None:
    queue = EventQueue()
    feed(queue, A, 1, "watched")

    def progress() -> tuple[bool, int, bool]:
        return queue.list_successful_at_least_once, queue.list_count, queue.list_consumed

    assert progress() == (False, 0, True)
    queue.replace([make("a", 2), make("b", 3)], "3")
    assert progress() == (True, 2, False)
    await queue.pop(done)  # a watched object missing from the list left the queue unseen
    assert progress() == (True, 2, False)
    popped = await start(queue)
    assert progress() == (True, 2, False)
    await popped.succeed()
    assert progress() == (True, 2, True)
    queue.replace([], "4")
    assert progress() == (True, 0, True)


async def test_a_list_is_not_consumed_by_an_older_event_of_its_key() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    popped = await start(queue)
    queue.replace([make("a", 2)], "2")
    await popped.succeed()
    assert not queue.list_consumed
    await queue.pop(done)
    assert queue.list_consumed


async def test_a_listed_object_that_leaves_the_queue_unseen_does_not_hold_up_the_list() -> None:
    queue = EventQueue()
    feed(queue, A, 1)
    queue.replace([make("a", 2)], "2")
    assert not queue.list_consumed
    feed(queue, D, 3)
    assert (len(queue), queue.list_consumed) == (0, True)


async def test_a_list_with_an_object_that_has_no_key_changes_nothing() -> None:
    def key_func(item: object) -> str:
        raise KeyFunctionError(f"no key for {item}")

    queue = EventQueue(key_func)
    with pytest.raises(KeyFunctionError):
        queue.replace([make("a", 1)], "1")
    assert not queue.list_successful_at_least_once


# --- With the retry controller -------------------------------------------------------------------


async def test_a_retry_controller_works_on_it_by_its_key_of() -> None:
    clock = FakeClock()
    queue = EventQueue(clock=clock)
    told: list[tuple[DeltaType, str]] = []

    def handle(deltas: Deltas) -> None:
        told.extend(story(deltas))
        if len(told) == 1:
            raise LookupError("the first time")

    manager: QueueRetryManager[Deltas] = QueueRetryManager(
        queue, queue.key_of, retry_always, TokenBucket(1, 1, clock=clock), clock=clock
    )
    queue.replace([make("a", 1)], "1")
    queue.close()
    await RetryController(queue, handle, manager).run()
    assert told == [(S, "1"), (S, "1")]
    assert queue.known_objects.get_by_key("a") == make("a", 1)


# --- Behind a reflector --------------------------------------------------------------------------


class Consumer:
    """A server, a reflector, an event queue, and a consumer of its events."""

    def __init__(self, clock: FakeClock) -> None:
        self.source = FakeControllerSource(clock=clock)
        self.queue = EventQueue(clock=clock)
        self.reflector = Reflector(
            self.source, self.queue, clock=clock, rng=Random(1), on_error=lambda _: None
        )
        self.told: list[tuple[DeltaType, str, str]] = []
        self.has: dict[str, Object] = {}

    def process(self, deltas: Deltas) -> None:
        (event,) = deltas
        assert isinstance(event.object, Object)
        self.told.append((event.type, deltas.key, event.object.uid))
        if event.type is D:
            self.has.pop(deltas.key, None)  # an object deleted before it was seen is also reported
        else:
            self.has[deltas.key] = event.object

    async def consume(self) -> None:
        while True:
            await self.queue.pop(self.process)


def versions(objects: Mapping[str, Object]) -> dict[str, tuple[str, str]]:
    return {key: (obj.uid, obj.resource_version) for key, obj in objects.items()}


@contextlib.asynccontextmanager
async def consuming(clock: FakeClock) -> AsyncIterator[Consumer]:
    consumer = Consumer(clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for work in (consumer.reflector.run, consumer.consume)]
        yield consumer
        for task in tasks:
            task.cancel()


async def test_behind_a_reflector_what_was_deleted_while_disconnected_is_an_event() -> None:
    clock = FakeClock()
    async with consuming(clock) as consumer:
        source = consumer.source
        for name in "abc":
            source.add(pod(name))
        await clock.advance(5)
        assert consumer.told == [(S, "a", "uid-1"), (S, "b", "uid-2"), (S, "c", "uid-3")]
        consumer.told.clear()
        source.fail_watches(ConnectionError("down"), 3)
        source.fail_lists(ConnectionError("down"), 2)
        source.end_watches(ExpiredError("too old"))
        source.delete("a")
        source.delete("b")
        source.add(pod("b"))
        await clock.advance(300)
        assert sorted(consumer.told) == [(D, "a", "uid-1"), (S, "b", "uid-4"), (S, "c", "uid-3")]
        assert (consumer.queue.list_count, consumer.queue.list_consumed) == (2, True)


async def test_behind_a_reflector_an_object_made_anew_before_anybody_looked_is_updated() -> None:
    clock = FakeClock()
    async with consuming(clock) as consumer:
        consumer.source.add(pod("a"))
        await clock.advance(5)
        consumer.source.delete("a")
        consumer.source.add(pod("a"))
        await clock.advance(1)
        assert consumer.told == [(S, "a", "uid-1"), (U, "a", "uid-2")]


FAULT = st.sampled_from(
    [None, None, END, ExpiredError("too old"), ConnectionError("reset"), "list", "watch"]
)
CHANGE = st.tuples(
    st.sampled_from("abc"), st.booleans(), st.booleans(), FAULT, st.sampled_from([0.0, 0.1, 9.0])
)


@given(changes=st.lists(CHANGE, max_size=20))
def test_behind_a_reflector_with_faults_the_consumer_ends_with_what_the_server_has(
    changes: list[tuple[str, bool, bool, object, float]],
) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with consuming(clock) as consumer:
            source = consumer.source
            for name, write, missed, fault, pause in changes:
                if not write and name in source.objects:
                    (source.delete_drop_watch if missed else source.delete)(name)
                elif name in source.objects:
                    (source.modify_drop_watch if missed else source.modify)(pod(name))
                elif write:
                    (source.add_drop_watch if missed else source.add)(pod(name))
                if fault == "list":
                    source.fail_lists(ConnectionError("down"), 2)
                elif fault == "watch":
                    source.fail_watches(ConnectionError("down"), 2)
                elif isinstance(fault, ConnectionError | ExpiredError) or fault is END:
                    source.end_watches(fault)
                await clock.advance(pause)
            for _ in range(300):
                await clock.advance(1)
                if source.open_watches:
                    break
            source.end_watches(ExpiredError("too old"))  # a list finds the missed events
            await clock.advance(300)
            assert versions(consumer.has) == versions(source.objects)
            assert set(consumer.queue.known_objects.list_keys()) == set(source.objects)
            assert consumer.queue.list_consumed

    asyncio.run(scenario())


# --- Against a model -----------------------------------------------------------------------------


class World:
    """A server, a queue that misses some of its events, and a consumer."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.queue = EventQueue(clock=self.clock)
        self.server: dict[str, Item] = {}
        self.consumer: dict[str, Item] = {}
        self.working: list[Popped] = []
        self.version = 0

    def process(self, deltas: Deltas) -> None:
        (event,) = deltas
        assert isinstance(event.object, Object)
        if event.type is D:
            self.consumer.pop(deltas.key, None)
        else:
            self.consumer[deltas.key] = event.object

    def change(self, step: str, name: str, *, missed: bool) -> None:
        """Change the server, and queue the event unless the watch misses it."""
        self.version += 1
        queue, server = self.queue, self.server
        obj, is_new = make(name, self.version), name not in server
        if step == "write":
            server[name] = obj
            if not missed:
                (queue.add if is_new else queue.update)(obj)
        elif step == "delete" and not is_new:
            del server[name]
            if not missed:
                queue.delete(obj)
        elif step == "relist":
            objs = [item for item in server.values() if isinstance(item, Object)]
            queue.replace(objs, str(self.version))
        elif step == "resync":
            queue.resync()

    async def begin(self) -> None:
        """Start processing an event whose key is not in process, if there is one."""
        busy = {popped.deltas.key for popped in self.working}
        if not busy.issuperset(self.queue.list_keys()):
            self.working.append(await start(self.queue))

    async def end(self, step: str, number: int) -> None:
        """Let one process function succeed, be cancelled, or requeue its item."""
        if not self.working:
            return
        popped = self.working.pop(number % len(self.working))
        if step == "succeed":
            self.process(popped.deltas)
            await popped.succeed()
        elif step == "cancel":
            await popped.cancel()
        else:
            await popped.fail(RequeueError(after=0.5))
            await self.clock.advance(1)


CHANGES = ("write", "delete", "relist", "resync")
STEP = st.tuples(
    st.sampled_from([*CHANGES, "write", "begin", "begin", "succeed", "cancel", "requeue"]),
    st.integers(0, 2),
    st.booleans(),
)


@given(steps=st.integers(0, 40).flatmap(lambda n: st.lists(STEP, min_size=n, max_size=n)))
def test_a_consumer_of_single_events_ends_with_what_the_server_has(
    steps: list[tuple[str, int, bool]],
) -> None:
    """The next list finds the events that the watch missed; no event is refused."""

    async def scenario() -> None:
        world = World()
        queue = world.queue
        for step, number, missed in steps:
            if step in CHANGES:
                world.change(step, "abc"[number], missed=missed)
            elif step == "begin":
                await world.begin()
            else:
                await world.end(step, number)
        while world.working:
            await world.end("succeed", 0)
        world.change("relist", "a", missed=False)
        while len(queue):
            await queue.pop(world.process)
        assert world.consumer == world.server
        assert {key: queue.known_objects.get_by_key(key) for key in "abc"} == {
            key: world.server.get(key) for key in "abc"
        }
        assert (queue.list_consumed, queue.list_count) == (True, len(world.server))

    asyncio.run(scenario())
