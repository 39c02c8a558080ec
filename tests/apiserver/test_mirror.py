"""A mirror of converted objects follows its bucket even while conversions fail."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.storage.mirror import Mirror
from listwatch.apiserver.storage.store import Entry, Storage, StoredChangeType
from listwatch.clock import FakeClock
from listwatch.errors import ListWatchError


def _entry(store: Storage, name: str) -> Entry:
    revision = store.revision + 1
    data = b'{"metadata":{"name":"%b","resourceVersion":"%d"}}' % (name.encode(), revision)
    return Entry("", name, f"uid-{name}", revision, {}, data)


class _World:
    """A store, a webhook that may fail, and a mirror with one watch."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Storage(self.clock)
        self.bucket = self.store.bucket("widgets")
        self.broken = False
        #: Names of objects that can't be converted.
        self.refused: set[str] = set()
        self.asked: list[list[str]] = []
        self.told: list[tuple[StoredChangeType, str, int]] = []
        self.mirror = self.made()

    def made(self) -> Mirror:
        mirror = Mirror(self.store, self.bucket, "v2", self._convert, self.clock, lambda: None)
        self.store.observers.append(lambda _, change: mirror.on_change(change))
        mirror.bucket.listeners[
            lambda change: self.told.append((change.type, change.entry.name, change.revision))
        ] = ""
        return mirror

    async def _convert(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        self.asked.append([entry.name for entry in entries])
        await asyncio.sleep(0)
        if self.broken or not self.refused.isdisjoint(self.asked[-1]):
            raise ListWatchError("the webhook is broken")
        return entries

    def put(self, name: str) -> None:
        self.store.put(self.bucket, _entry(self.store, name))

    def delete(self, name: str) -> None:
        if name in self.bucket.entries:
            self.store.delete(self.bucket, self.bucket.entries[name])

    def mirrored(self) -> dict[str, int]:
        return {name: entry.revision for name, entry in self.mirror.bucket.entries.items()}

    def present(self) -> dict[str, int]:
        return {name: entry.revision for name, entry in self.bucket.entries.items()}


async def test_a_change_that_can_not_be_converted_is_tried_again_after_a_second() -> None:
    world = _World()
    world.broken = True
    world.mirror.start()
    world.put("a")
    assert not await world.mirror.settled(60.0)
    assert world.told == []
    world.broken = False
    await world.clock.advance(1.0)
    assert await world.mirror.settled(60.0)
    assert world.told == [(StoredChangeType.ADDED, "a", 2)]
    world.mirror.stop()
    await world.mirror.ended()


async def test_what_came_and_went_while_conversions_failed_is_never_told() -> None:
    world = _World()
    world.broken = True
    world.mirror.start()
    world.put("a")
    assert not await world.mirror.settled(60.0)
    world.delete("a")
    await world.clock.advance(1.0)
    assert await world.mirror.settled(60.0)
    assert world.told == []
    world.mirror.stop()
    await world.mirror.ended()


async def test_what_changes_while_it_stands_still_is_followed_after_the_next_start() -> None:
    world = _World()
    world.put("a")
    world.mirror.start()
    assert await world.mirror.settled(60.0)
    world.mirror.stop()
    await world.mirror.ended()
    world.put("b")
    assert world.mirrored().keys() == {"a"}
    assert world.mirror.revision == 2
    world.mirror.start()
    assert await world.mirror.settled(60.0)
    assert world.mirrored() == world.present()
    world.mirror.stop()
    await world.mirror.ended()


async def test_objects_that_are_there_are_converted_many_at_once() -> None:
    world = _World()
    for number in range(250):
        world.put(f"{number:03}")
    mirror = world.made()
    mirror.start()
    assert await mirror.settled(60.0)
    assert [len(names) for names in world.asked] == [100, 100, 50]
    assert mirror.bucket.keys == sorted(world.bucket.entries)
    mirror.stop()
    await mirror.ended()


async def test_one_object_that_can_not_be_converted_does_not_hold_up_those_before_it() -> None:
    world = _World()
    for name in "abc":
        world.put(name)
    world.refused.add("b")
    world.mirror.start()
    assert not await world.mirror.settled(60.0)
    assert world.asked == [["a", "b", "c"], ["a"], ["b"]]
    assert list(world.mirrored()) == ["a"]
    world.refused.clear()
    await world.clock.advance(1.0)
    assert await world.mirror.settled(60.0)
    assert world.mirrored() == world.present()
    world.mirror.stop()
    await world.mirror.ended()


async def test_a_state_that_can_not_be_converted_is_dropped_for_one_that_waits_behind_it() -> None:
    world = _World()
    world.put("a")
    world.delete("a")
    world.refused.add("a")
    world.mirror.start()
    assert not await world.mirror.settled(60.0)
    await world.clock.advance(1.0)
    assert await world.mirror.settled(60.0)
    assert world.told == []
    world.mirror.stop()
    await world.mirror.ended()


_STEPS = st.lists(
    st.sampled_from(
        [
            *("put a", "put b", "delete a", "delete b"),
            *("break", "refuse a", "refuse b", "heal", "run", "wait"),
        ]
    ),
    max_size=25,
)


@given(_STEPS)
def test_a_mirror_ends_up_as_its_bucket_and_tells_a_consistent_history(
    steps: Sequence[str],
) -> None:
    async def run() -> None:
        world = _World()
        world.mirror.start()
        for step in steps:
            match step.split():
                case ["put", name]:
                    world.put(name)
                case ["delete", name]:
                    world.delete(name)
                case ["run"]:
                    await world.clock.settle()
                case ["wait"]:
                    await world.clock.advance(1.0)
                case ["refuse", name]:
                    world.refused.add(name)
                case [word]:
                    world.broken = word == "break"
                    world.refused.clear()
        world.broken = False
        world.refused.clear()
        await world.clock.advance(2.0)
        assert await world.mirror.settled(60.0)
        assert world.mirrored() == world.present()
        assert world.mirror.revision == world.store.revision
        world.mirror.stop()
        await world.mirror.ended()
        _check(world.told)

    asyncio.run(run())


def _check(told: Sequence[tuple[StoredChangeType, str, int]]) -> None:
    """Check that revisions grow and that each object is added before it is changed or deleted."""
    alive: set[str] = set()
    last = 0
    for kind, name, revision in told:
        assert revision > last
        last = revision
        assert (kind is StoredChangeType.ADDED) == (name not in alive)
        if kind is StoredChangeType.DELETED:
            alive.discard(name)
        else:
            alive.add(name)


@pytest.mark.parametrize("names", [("b", "a"), ("a", "b")])
async def test_a_mirror_of_objects_that_are_there_begins_with_them(names: Sequence[str]) -> None:
    world = _World()
    for name in names:
        world.put(name)
    mirror = world.made()
    mirror.start()
    assert await mirror.settled(60.0)
    assert mirror.bucket.keys == ["a", "b"]
    assert mirror.bucket.since_served == world.store.revision
    mirror.stop()
    await mirror.ended()
