"""Both queues between a server and a store, for any order of changes, pops and outcomes."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.queue_story import make, raising
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Delta, Deltas, DeltaType, RequeueError
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.store import Store
from listwatch.clock import FakeClock
from listwatch.errors import QueueClosedError
from listwatch.objects import Object

AnyQueue = DeltaFIFO | OrderedFIFO
KEYS = "abc"

operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(KEYS)),
        st.tuples(st.just("write"), st.sampled_from(KEYS)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.just("miss"), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["relist", "resync", "bookmark", "tick"])),
        st.tuples(st.just("pop")),
        st.tuples(st.just("pop_batch"), st.integers(1, 5)),
        st.tuples(
            st.just("end"),
            st.integers(0, 3),
            st.sampled_from(["succeed", "succeed", "fail", "requeue", "requeue some", "cancel"]),
        ),
    ),
    min_size=20,
    max_size=80,
)


class Consumer:
    """A task in `pop` or `pop_batch`; the test decides how and when its process function ends."""

    def __init__(self, story: "Story", limit: int | None) -> None:
        self.story = story
        self.batch: Sequence[Deltas] = ()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = story.queue
        self.task: asyncio.Task[object] = asyncio.create_task(
            queue.pop(self.one) if limit is None else queue.pop_batch(self.several, limit)
        )

    async def one(self, deltas: Deltas) -> None:
        await self.several([deltas])

    async def several(self, batch: Sequence[Deltas]) -> None:
        self.story.check_start(batch)
        self.batch = batch
        try:
            await self.end
        except RequeueError as error:
            again = error.keys if error.keys is not None else {d.key for d in batch}
            self.story.apply([d for d in batch if d.key not in again])
            raise
        except ValueError:
            self.story.settled(batch)
            self.story.failed = True
            raise
        else:
            self.story.apply(batch)
        finally:
            self.batch = ()


class Story:
    """A server's objects, the queue of their changes, and the store that consumers keep."""

    def __init__(
        self,
        make_queue: Callable[[Store, FakeClock], AnyQueue],
        *,
        may_fail: bool,
        has_past: bool,
    ) -> None:
        self.may_fail = may_fail
        self.clock = FakeClock()
        self.store = Store()
        self.queue = make_queue(self.store, self.clock)
        # private: whether the factory chose a compressor
        self.compressed = isinstance(self.queue, DeltaFIFO) and bool(self.queue._compressor)
        self.server: dict[str, Object] = {}
        self.version = 0
        self.missed = has_past
        if has_past:
            self.store.replace([make("a", 0), make("b", 0)], "0")
        self.failed = False
        self.touched = False
        self.initial: set[str] = set()
        self.positions: dict[str, dict[str, Object]] = {}
        self.consumers: list[Consumer] = []

    # --- The server's side ---

    def write(self, key: str) -> None:
        self.catch_up()
        self.version += 1
        obj, old = make(key, self.version), self.server.get(key)
        self.server[key] = obj
        self.touched = True
        (self.queue.add if old is None else self.queue.update)(obj)

    def delete(self, key: str) -> None:
        self.catch_up()
        self.version += 1
        if self.server.pop(key, None) is not None:
            self.touched = True
            self.queue.delete(make(key, self.version))

    def miss(self, key: str) -> None:
        """Change an object while nobody watches; only a relist shows it."""
        self.version += 1
        self.missed = True
        if self.version % 2 and key in self.server:
            del self.server[key]
        else:
            self.server[key] = make(key, self.version)

    def catch_up(self) -> None:
        if self.missed:
            self.relist()

    def relist(self) -> None:
        self.missed = False
        self.version += 1
        self.positions[str(self.version)] = dict(self.server)
        if not self.touched:
            if isinstance(self.queue, OrderedFIFO):
                self.initial = {""}
            else:
                self.initial = {*self.server, *self.store.list_keys()}
        self.touched = True
        self.queue.replace(list(self.server.values()), str(self.version))

    def bookmark(self) -> None:
        self.catch_up()
        self.version += 1
        self.positions[str(self.version)] = dict(self.server)
        self.queue.bookmark(str(self.version))

    # --- The consumers' side ---

    def check_start(self, batch: Sequence[Deltas]) -> None:
        keys = [deltas.key for deltas in batch]
        assert len(set(keys)) == len(keys)
        busy = {deltas.key for consumer in self.consumers for deltas in consumer.batch}
        assert not busy.intersection(keys)
        if isinstance(self.queue, OrderedFIFO):
            assert not busy
            assert "" not in keys or len(keys) == 1
        for deltas in batch:
            assert deltas
            assert deltas.is_in_initial_list == batch[0].is_in_initial_list
            if deltas.is_in_initial_list or isinstance(self.queue, DeltaFIFO):
                assert deltas.is_in_initial_list == (deltas.key in self.initial)

    def apply(self, batch: Sequence[Deltas]) -> None:
        for deltas in batch:
            for delta in deltas:
                self.apply_one(deltas.key, delta)
        self.settled(batch)

    def apply_one(self, key: str, delta: Delta) -> None:
        old = self.store.get_by_key(key)
        match delta.type:
            case DeltaType.REPLACED_ALL:
                self.store.replace(delta.objects or (), delta.resource_version)
                self.check_position(delta.resource_version)
            case DeltaType.BOOKMARK:
                self.check_position(delta.resource_version)
            case DeltaType.SYNC_ALL:
                pass
            case DeltaType.DELETED:
                # A deletion needs an object that the consumer has seen and not yet deleted,
                # unless a compressor dropped its addition.
                assert old is not None or self.failed or self.compressed
                self.store.remove(key)
            case _:
                assert isinstance(delta.object, Object)
                if old is not None:
                    assert int(delta.object.resource_version) >= int(old.resource_version)
                self.store.put(key, delta.object)

    def check_position(self, version: str) -> None:
        if not self.failed:
            assert {obj.key: obj for obj in self.store.list()} == self.positions[version]

    def settled(self, batch: Sequence[Deltas]) -> None:
        self.initial.difference_update(d.key for d in batch if d.is_in_initial_list)

    async def step(self, operation: tuple[object, ...]) -> None:
        match operation:
            case ("write", str() as key):
                self.write(key)
            case ("delete", str() as key):
                self.delete(key)
            case ("miss", str() as key):
                self.miss(key)
            case ("relist",):
                self.relist()
            case ("resync",):
                self.queue.resync()
            case ("bookmark",):
                self.bookmark()
            case ("pop",) if len(self.consumers) < 4:
                self.consumers.append(Consumer(self, None))
            case ("pop_batch", int() as limit) if len(self.consumers) < 4:
                self.consumers.append(Consumer(self, limit))
            case ("tick",):
                await self.clock.advance(0.02)
            case ("end", int() as which, str() as how) if which < len(self.consumers):
                self.end(self.consumers[which], how)
        await self.clock.settle()
        self.gather()
        self.check()

    def gather(self) -> None:
        for consumer in list(self.consumers):
            if consumer.task.done():
                self.consumers.remove(consumer)
                error = None if consumer.task.cancelled() else consumer.task.exception()
                if not isinstance(error, ValueError | None):
                    raise error

    def end(self, consumer: Consumer, how: str) -> None:
        if how == "cancel":
            consumer.task.cancel()
        elif not consumer.batch or consumer.end.done():
            return
        elif how == "fail" and self.may_fail:
            consumer.end.set_exception(ValueError("failed"))
        elif how.startswith("requeue"):
            keys = None if how == "requeue" else [d.key for d in consumer.batch[1:]]
            consumer.end.set_exception(RequeueError(keys=keys))
        else:
            consumer.end.set_result(None)

    def check(self) -> None:
        statistics = self.queue.statistics()
        assert statistics.depth == len(self.queue)
        assert statistics.in_process == sum(len(consumer.batch) for consumer in self.consumers)
        assert self.queue.has_synced == (self.touched and not self.initial)
        if any(not consumer.batch for consumer in self.consumers):
            # A pop waits only if no key is free.
            if isinstance(self.queue, DeltaFIFO):
                # keys that no pop may take
                assert set(self.queue.list_keys()) <= self.queue._in_process.keys()
            else:
                # keys that no pop may take
                assert not self.queue._items or self.queue._in_process
        if not (self.failed or self.missed or statistics.depth or statistics.retrying):
            # Store and server differ only by the changes in process.
            busy = {deltas.key for consumer in self.consumers for deltas in consumer.batch}
            stored = {obj.key: obj for obj in self.store.list()}
            if "" not in busy:
                assert {k: o for k, o in stored.items() if k not in busy} == {
                    k: o for k, o in self.server.items() if k not in busy
                }

    async def finish(self) -> None:
        for consumer in self.consumers:
            self.end(consumer, "succeed" if consumer.batch else "cancel")
        await self.clock.advance(60)
        self.gather()
        assert not self.consumers
        self.relist()
        while self.queue.statistics().depth:
            await self.queue.pop(lambda deltas: self.apply([deltas]))
        assert {obj.key: obj for obj in self.store.list()} == self.server
        assert self.queue.has_synced
        self.queue.close()
        with pytest.raises(QueueClosedError):
            await self.queue.pop(raising(AssertionError("popped from an empty queue")))
        statistics = self.queue.statistics()
        assert (statistics.depth, statistics.in_process, statistics.retrying) == (0, 0, 0)
        assert not self.queue._waiters  # a leak shows nowhere else
        assert not self.queue._tries  # a leak shows nowhere else
        if isinstance(self.queue, DeltaFIFO):
            assert not self.queue._held  # a leak shows nowhere else
            assert not self.queue._behind  # a leak shows nowhere else


def newest(deltas: Deltas) -> Sequence[Delta]:
    return deltas[-1:]


def run(
    make_queue: Callable[[Store, FakeClock], AnyQueue],
    steps: list[tuple[object, ...]],
    *,
    may_fail: bool,
    has_past: bool,
) -> None:
    async def tell() -> None:
        story = Story(make_queue, may_fail=may_fail, has_past=has_past)
        for step in steps:
            await story.step(step)
        await story.finish()

    asyncio.run(tell())


@given(operations, st.booleans(), st.booleans())
def test_delta_fifo_with_known_objects(
    steps: list[tuple[object, ...]], may_fail: bool, has_past: bool
) -> None:
    run(
        lambda store, clock: DeltaFIFO(known_objects=store, clock=clock),
        steps,
        may_fail=may_fail,
        has_past=has_past,
    )


@given(operations, st.booleans(), st.booleans())
def test_ordered_fifo(steps: list[tuple[object, ...]], may_fail: bool, has_past: bool) -> None:
    run(lambda _, clock: OrderedFIFO(clock=clock), steps, may_fail=may_fail, has_past=has_past)


@given(operations, st.booleans(), st.booleans())
def test_delta_fifo_with_a_compressor(
    steps: list[tuple[object, ...]], may_fail: bool, has_past: bool
) -> None:
    run(
        lambda store, clock: DeltaFIFO(known_objects=store, compressor=newest, clock=clock),
        steps,
        may_fail=may_fail,
        has_past=has_past,
    )
