import asyncio
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.storage.store import (
    CompactedError,
    Entry,
    Storage,
    StoredChange,
    StoredChangeType,
)
from listwatch.clock import FakeClock


def entry(name: str, revision: int, namespace: str = "ns", text: str = "") -> Entry:
    data = f'{{"metadata":{{"name":"{name}","resourceVersion":"{revision}"}},"t":"{text}"}}'
    return Entry(namespace, name, f"uid-{name}", revision, {}, data.encode())


@pytest.fixture
def store() -> Storage:
    return Storage(FakeClock())


def test_entries_come_in_the_order_of_their_keys(store: Storage) -> None:
    bucket = store.bucket("pods")
    for namespace, name in (("b", "x"), ("a-b", "x"), ("a", "z"), ("a", "y")):
        store.put(bucket, entry(name, store.revision + 1, namespace))
    assert [found.key for found in bucket.current()] == ["a-b/x", "a/y", "a/z", "b/x"]
    assert [found.key for found in bucket.current("a")] == ["a/y", "a/z"]


def test_a_deletion_is_told_with_the_last_state_at_its_own_revision(store: Storage) -> None:
    bucket = store.bucket("pods")
    store.put(bucket, entry("a", 2))
    seen: list[StoredChange] = []
    bucket.listeners[seen.append] = ""
    last = store.delete(bucket, bucket.entries["ns/a"])
    assert last.data == b'{"metadata":{"name":"a","resourceVersion":"3"},"t":""}'
    assert [(change.type, change.revision) for change in seen] == [(StoredChangeType.DELETED, 3)]
    assert bucket.current() == []


def test_history_goes_with_its_age_and_its_number() -> None:
    clock = FakeClock()
    store = Storage(clock, history_limit=3, history_seconds=10.0)
    bucket = store.bucket("pods")
    for number in range(5):
        store.put(bucket, entry(f"p{number}", store.revision + 1))
    assert store.compacted == 3
    asyncio.run(clock.advance(11.0))
    store.put(bucket, entry("new", store.revision + 1))
    assert store.statistics().history == 1
    with pytest.raises(CompactedError):
        store.check_readable(5)


def test_a_revision_that_does_not_follow_is_refused(store: Storage) -> None:
    with pytest.raises(ValueError, match="revision 9 does not follow 1"):
        store.put(store.bucket("pods"), entry("a", 9))


async def test_waiting_for_a_revision_ends_when_it_is_there_or_the_time_is_over() -> None:
    clock = FakeClock()
    store = Storage(clock)
    early = asyncio.create_task(store.reached(2, 3.0))
    late = asyncio.create_task(store.reached(9, 3.0))
    await clock.settle()
    store.put(store.bucket("pods"), entry("a", 2))
    await clock.settle()
    assert early.done()
    assert not late.done()
    await clock.advance(3.0)
    assert late.done()


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "compact"]), st.integers(0, 4)), max_size=40
)


@given(OPERATIONS)
def test_every_readable_revision_is_as_a_plain_model_has_it(
    operations: list[tuple[str, int]],
) -> None:
    """Each revision that is not compacted reads as the copy taken at that time."""
    store = Storage(FakeClock())
    bucket = store.bucket("pods")
    copies: dict[int, list[bytes]] = {1: []}
    changes: list[StoredChange] = []
    bucket.listeners[changes.append] = ""
    for action, number in operations:
        name = f"p{number}"
        if action == "put":
            store.put(bucket, entry(name, store.revision + 1, text=str(store.revision)))
        elif action == "delete" and f"ns/{name}" in bucket.entries:
            store.delete(bucket, bucket.entries[f"ns/{name}"])
        elif action == "compact":
            store.compact(store.revision - number)
        copies[store.revision] = [found.data for found in bucket.current()]
    for revision, expected in copies.items():
        if revision < store.compacted:
            with pytest.raises(CompactedError):
                store.check_readable(revision)
            continue
        assert [found.data for found in bucket.at(revision)] == expected
        told = [change.revision for change in bucket.since(revision)]
        assert told == [change.revision for change in changes if change.revision > revision]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "a-b"]), st.sampled_from("pqr")), max_size=25),
    st.sampled_from(["", "a", "b", "a-b", "zz"]),
    st.sampled_from(["", "a", "a/", "a/q", "a-b/p", "b/r", "b/z", "zz/"]),
    st.lists(st.integers(1, 26), max_size=25),
)
def test_entries_from_a_key_on_are_those_of_all_that_follow_it(
    writes: list[tuple[str, str]], namespace: str, start: str, reads: list[int]
) -> None:
    """At each revision, with reads of any revisions in between; the count is right too."""
    store = Storage(FakeClock())
    bucket = store.bucket("pods")
    states = {store.revision: dict(bucket.entries)}
    for where, name in writes:
        there = bucket.entries.get(f"{where}/{name}")
        if there is not None and name == "q":
            store.delete(bucket, there)
        else:
            store.put(bucket, entry(name, store.revision + 1, where))
        states[store.revision] = dict(bucket.entries)
        for revision in reads:
            bucket.span(revision=revision)
    for revision, entries in states.items():
        expected = [
            entries[key]
            for key in sorted(entries)
            if key >= start and (not namespace or key.startswith(f"{namespace}/"))
        ]
        span = bucket.span(namespace, start=start, revision=revision)
        assert list(span) == bucket.at(revision, namespace, start=start) == expected
        assert len(span) == len(expected)
        assert list(islice(span, 2)) == expected[:2]


class Counted(dict[str, Entry]):
    """Count lookups."""

    looked_at = 0

    def __getitem__(self, key: str) -> Entry:
        self.looked_at += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("past", [False, True])
def test_a_page_costs_nothing_of_what_follows_it(store: Storage, past: bool) -> None:
    bucket = store.bucket("pods")
    for number in range(1000):
        store.put(bucket, entry(f"p{number:04d}", store.revision + 1))
    revision = store.revision
    store.put(bucket, entry("p0501", store.revision + 1))
    store.delete(bucket, bucket.entries["ns/p0999"])
    bucket.entries = counted = Counted(bucket.entries)
    span = bucket.span("ns", start="ns/p0500", revision=revision if past else None)
    assert [each.name for each in islice(span, 3)] == ["p0500", "p0501", "p0502"]
    assert len(span) == (500 if past else 499)
    assert counted.looked_at <= 3


def test_many_changes_between_two_pages_are_all_taken_in(store: Storage) -> None:
    """So many that they are not applied one by one."""
    bucket = store.bucket("pods")
    for number in range(1500):
        store.put(bucket, entry(f"p{number:04d}", store.revision + 1))
    revision, then = store.revision, bucket.current()
    for name in ("p0003", "a"):
        store.put(bucket, entry(name, store.revision + 1))
    assert list(bucket.span(revision=revision)) == then
    for each in then[200:]:
        store.delete(bucket, bucket.entries[each.key])
    span = bucket.span(revision=revision)
    assert list(span) == then
    assert len(span) == 1500


def test_what_differed_at_a_revision_is_forgotten_with_it(store: Storage) -> None:
    bucket = store.bucket("pods")
    for name in "abc":
        store.put(bucket, entry(name, store.revision + 1))
    for revision in (2, 3):
        bucket.span(revision=revision)
    store.compact(3)
    assert list(bucket._pasts) == [3]  # No public attribute shows leftovers.
    assert [each.name for each in bucket.span(revision=3)] == ["a", "b"]
    store.compact(4)
    assert not bucket._pasts  # No public attribute shows leftovers.
