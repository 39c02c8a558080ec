"""Changes waiting for a handler stay consistent, merged or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache.handlers import Added, Change, Deleted, Updated, last_state
from listwatch.cache.pending import Marker, Pending
from listwatch.objects import Object


def an_object(key: str, uid: int, version: int) -> Object:
    meta = {"name": key, "uid": str(uid), "resourceVersion": str(version)}
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


class Server:
    """Makes consistent changes to a few keys."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, Object] = {}

    def change(self, key: str, *, remove: bool) -> Change:
        self.version += 1
        old = self.objects.get(key)
        if old is None:
            self.objects[key] = new = an_object(key, self.version, self.version)
            return Added(new)
        if remove:
            return Deleted(self.objects.pop(key))
        self.objects[key] = new = an_object(key, int(old.uid), self.version)
        return Updated(old, new)


class Reader:
    """Checks that the changes it reads are consistent."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}

    def tell(self, change: Change) -> None:
        if isinstance(change, Added):
            assert change.key not in self.objects
            self.objects[change.key] = change.obj
        elif isinstance(change, Updated):
            assert self.objects[change.key] is change.old
            assert change.old.uid == change.new.uid
            self.objects[change.key] = change.new
        else:
            last = last_state(change.obj)
            assert last is not None
            assert self.objects.pop(change.key).uid == last.uid


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abcd"), st.booleans()),
        st.integers(1, 5),
    ),
    max_size=120,
)


@given(STEPS, st.sampled_from([None, 1, 2, 7]))
def test_the_story_is_consistent_and_what_waits_is_bounded(
    steps: list[tuple[str, bool] | int], bound: int | None
) -> None:
    server, reader, pending = Server(), Reader(), Pending(bound)
    for step in steps:
        if isinstance(step, int):
            taken = pending.take(step)
            assert not isinstance(taken, Marker)
            for change in taken:
                reader.tell(change)
        else:
            key, remove = step
            pending.put([server.change(key, remove=remove)])
            if bound is not None:
                assert len(pending) <= max(bound, 2 * 4)
    while len(pending):
        taken = pending.take(3)
        assert not isinstance(taken, Marker)
        assert taken
        for change in taken:
            reader.tell(change)
    assert reader.objects == server.objects


def test_a_recreation_keeps_its_deletion_and_its_addition() -> None:
    old, new, newest = an_object("a", 1, 1), an_object("a", 2, 2), an_object("a", 2, 3)
    pending = Pending(1)
    pending.put([Updated(old, old), Deleted(old), Added(new), Updated(new, newest)])
    assert pending.take(10) == [Deleted(old), Added(newest)]
    assert pending.merged == 2


def test_two_updates_come_to_one_from_the_state_that_was_told() -> None:
    first, between, last = (an_object("a", 1, version) for version in (1, 2, 3))
    pending = Pending(1)
    pending.put([Updated(first, between), Updated(between, last)])
    assert pending.take(10) == [Updated(first, last)]


def test_an_addition_and_its_deletion_vanish() -> None:
    obj, other = an_object("a", 1, 1), an_object("b", 2, 2)
    pending = Pending(1)
    pending.put([Added(other), Added(obj), Deleted(obj)])
    assert pending.take(10) == [Added(other)]
    assert len(pending) == 0


def test_an_initial_addition_stays_initial() -> None:
    old, new = an_object("a", 1, 1), an_object("a", 1, 2)
    pending = Pending(1)
    pending.put([Added(old, True), Updated(old, new)])
    assert pending.take(10) == [Added(new, True)]


@pytest.mark.parametrize("bound", [None, 1])
def test_a_marker_comes_alone_and_behind_what_was_there(bound: int | None) -> None:
    pending = Pending(bound)
    first, second = Added(an_object("a", 1, 1)), Added(an_object("b", 2, 2))
    marker = Marker()
    third = Added(an_object("c", 3, 3))
    pending.put([first, third])
    pending.put_marker(marker)
    assert len(pending) == 2
    pending.put([second])
    taken = [pending.take(10) for _ in range(4)]
    assert taken == [[first, third], marker, [second], []]


@pytest.mark.parametrize("bound", [None, 100])
def test_a_resync_that_waits_is_known(bound: int | None) -> None:
    pending = Pending(bound)
    objects = [an_object(key, 1, 1) for key in "abc"]
    seen = [pending.has_resyncs]
    pending.put([Added(objects[0])])
    seen.append(pending.has_resyncs)
    pending.put([Updated(obj, obj, is_resync=True) for obj in objects])
    for count in (3, 1):
        pending.take(count)
        seen.append(pending.has_resyncs)
    assert seen == [False, False, True, False]


def test_what_is_cleared_waits_no_longer() -> None:
    for bound in (None, 1):
        pending = Pending(bound)
        pending.put([Added(an_object(key, 1, 1)) for key in "abc"])
        pending.clear()
        assert len(pending) == 0
        assert pending.take(10) == []


def test_a_bound_under_one_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Pending(0)
