import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from listwatch.cache.deltas import KnownObjects, ReflectorStore
from listwatch.cache.store import (
    Indexer,
    IndexFunc,
    IndexFunctionError,
    Store,
    StoreStatistics,
    UnknownIndexError,
)
from listwatch.clock import FakeClock
from listwatch.objects import DeletedFinalStateUnknown, KeyFunctionError, Object


def make(
    name: str, version: str = "1", *, uid: str = "u", node: str = "", tags: Sequence[str] = ()
) -> Object:
    return Object.from_dict(
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": version},
            "spec": {"nodeName": node, "tags": list(tags)},
        }
    )


def by_node(obj: Object) -> list[str]:
    return [node] if (node := obj["spec"]["nodeName"]) else []


def by_tag(obj: Object) -> Iterator[str]:
    yield from obj["spec"]["tags"]


def picky(obj: Object) -> list[str]:
    if obj["spec"]["nodeName"] == "bad":
        raise RuntimeError("no such node")
    return by_node(obj)


A, B, C = make("a", node="n1", tags="xy"), make("b", node="n1", tags="y"), make("c", node="n2")


class TickingClock(FakeClock):
    """A clock that moves one second per reading, so every check yields."""

    def now(self) -> float:
        self._now += 1
        return self._now


def test_a_store_is_what_a_reflector_feeds_and_what_a_queue_asks() -> None:
    assert isinstance(Store(), ReflectorStore)
    assert isinstance(Indexer(), KnownObjects)


def test_objects_are_found_by_key_and_by_item_until_they_are_deleted() -> None:
    store = Store()
    store.add(A)
    store.update(B)
    assert (store.get_by_key("ns/a"), store.get(B), store.get_by_key("ns/c")) == (A, B, None)
    assert (store.list(), store.list_keys(), len(store)) == ([A, B], ["ns/a", "ns/b"], 2)
    assert "ns/a" in store
    store.delete(A)
    store.delete(DeletedFinalStateUnknown("ns/b"))
    store.delete(C)
    assert (store.list(), len(store)) == ([], 0)


def test_a_key_function_of_ones_own_decides_the_keys() -> None:
    def by_uid(item: object) -> str:
        if not isinstance(item, Object):
            raise KeyFunctionError("no object")
        return item.uid

    store = Store(by_uid)
    store.add(make("a", uid="1"))
    store.replace([make("b", uid="2"), make("c", uid="3")], "5")
    assert store.list_keys() == ["2", "3"]
    with pytest.raises(KeyFunctionError, match="no object"):
        store.delete(DeletedFinalStateUnknown("2"))


def test_the_last_version_follows_writes_replaces_and_bookmarks() -> None:
    store = Store()
    assert store.last_store_sync_resource_version == ""
    seen = []
    writes: list[Callable[[], None]] = [
        lambda: store.add(make("a", "5")),
        lambda: store.update(make("a", "6")),
        lambda: store.delete(make("a", "7")),
        lambda: store.delete(DeletedFinalStateUnknown("ns/x", make("x", "3"))),
        lambda: store.replace([make("b", "2")], "8"),
        lambda: store.bookmark("9"),
        lambda: store.bookmark(""),
        store.resync,
    ]
    for write in writes:
        write()
        seen.append(store.last_store_sync_resource_version)
    assert seen == ["5", "6", "7", "7", "8", "9", "9", "9"]


def test_the_consumers_primitives_return_what_was_there_and_leave_the_version_alone() -> None:
    store = Indexer(indexers={"node": by_node})
    newer = make("a", "2", node="n2")
    assert store.put("ns/a", A) is None
    assert store.put("ns/a", newer) is A
    assert store.by_index("node", "n2") == [newer]
    assert store.remove("ns/a") is newer
    assert store.remove("ns/a") is None
    assert store.last_store_sync_resource_version == ""


def test_a_relist_keeps_the_stored_object_of_the_same_uid_and_version() -> None:
    store = Indexer(indexers={"node": by_node})
    store.replace([A, B, C], "1")
    again, changed, reborn = make("a", "1"), make("b", "2"), make("c", "1", uid="other")
    store.replace([again, changed, reborn], "2")
    assert [x is y for x, y in zip(store.list(), [A, changed, reborn], strict=True)] == [True] * 3
    assert store.index_keys("node", "n1") == ["ns/a"]
    unversioned = make("a", "")
    store.replace([unversioned], "3")
    store.replace([other := make("a", "")], "3")
    assert store.get_by_key("ns/a") is other


def test_the_last_of_several_listed_objects_with_one_key_counts() -> None:
    store = Indexer(indexers={"node": by_node})
    store.replace([A, make("a", "2", node="n9")], "2")
    assert store.list_index_values("node") == ["n9"]
    assert [obj.resource_version for obj in store.list()] == ["2"]


def test_an_index_finds_objects_by_each_of_their_values() -> None:
    store = Indexer(indexers={"node": by_node, "tag": by_tag})
    for obj in (A, B, C):
        store.add(obj)
    assert store.by_index("tag", "y") == [A, B]
    assert store.index_keys("tag", "x") == ["ns/a"]
    assert store.by_index("tag", "none") == []
    assert store.index_keys("tag", "none") == []
    assert sorted(store.list_index_values("tag")) == ["x", "y"]
    assert store.index("tag", make("q", tags="xyy")) == [A, B]
    assert store.index("node", make("q")) == []
    store.update(make("a", "2", node="n2", tags="z"))
    assert store.index_keys("tag", "y") == ["ns/b"]
    assert sorted(store.list_index_values("tag")) == ["y", "z"]
    assert store.index_keys("node", "n2") == ["ns/c", "ns/a"]
    store.update(make("a", "3"))
    assert store.index_keys("node", "n2") == ["ns/c"]
    store.delete(B)
    assert store.list_index_values("tag") == []
    assert store.statistics() == StoreStatistics(2, {"node": 1, "tag": 0}, 0, "1")
    assert store.indexers == {"node": by_node, "tag": by_tag}


def test_duplicate_values_of_one_object_count_once() -> None:
    store = Indexer(indexers={"tag": by_tag})
    store.add(make("a", tags="xx"))
    assert store.index_keys("tag", "x") == ["ns/a"]
    store.delete(make("a"))
    assert store.list_index_values("tag") == []


def test_an_unknown_index_is_an_error_that_names_those_there_are() -> None:
    store = Indexer(indexers={"node": by_node})
    reads: list[Callable[[], object]] = [
        lambda: store.by_index("nod", "x"),
        lambda: store.index_keys("nod", "x"),
        lambda: store.list_index_values("nod"),
        lambda: store.index("nod", A),
    ]
    for read in reads:
        with pytest.raises(UnknownIndexError, match=r"no index 'nod'; known indices: 'node'"):
            read()
    with pytest.raises(UnknownIndexError, match="known indices: none"):
        Indexer().by_index("x", "y")


def test_a_raising_index_function_is_named_with_the_key_and_changes_nothing() -> None:
    store = Indexer(indexers={"tag": by_tag, "picky": picky})
    store.replace([A, B], "5")
    bad = make("a", "2", node="bad", tags="new")
    writes: list[Callable[[], object]] = [
        lambda: store.update(bad),
        lambda: store.put("ns/a", bad),
        lambda: store.replace([C, bad], "6"),
    ]
    for write in writes:
        with pytest.raises(
            IndexFunctionError, match=r"'picky' failed for ns/a: RuntimeError: no"
        ) as e:
            write()
        assert (e.value.index, e.value.key) == ("picky", "ns/a")
        assert (store.list(), store.by_index("tag", "x")) == ([A, B], [A])
        assert store.list_index_values("picky") == ["n1"]
        assert store.last_store_sync_resource_version == "5"


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (lambda _: "n1", "a string, not a list"),
        (lambda _: ["n1", 5], "an? int among"),
        (lambda _: None, "TypeError"),
    ],
)
def test_an_index_function_must_return_strings(func: IndexFunc, reason: str) -> None:
    with pytest.raises(IndexFunctionError, match=reason):
        Indexer(indexers={"wrong": func}).add(A)


def test_indexers_added_later_index_what_is_there() -> None:
    store = Indexer(indexers={"node": by_node})
    store.replace([A, B, C], "1")
    store.add_indexers({"tag": by_tag})
    assert store.by_index("tag", "y") == [A, B]
    store.delete(A)
    assert (store.index_keys("tag", "y"), store.index_keys("node", "n1")) == (["ns/b"], ["ns/b"])


def test_adding_an_index_twice_or_one_that_fails_changes_nothing() -> None:
    store = Indexer(indexers={"node": by_node})
    store.add(make("a", node="bad"))
    with pytest.raises(ValueError, match="'node' already"):
        store.add_indexers({"tag": by_tag, "node": by_tag})
    with pytest.raises(IndexFunctionError, match="'picky' failed for ns/a"):
        store.add_indexers({"tag": by_tag, "picky": picky})
    assert set(store.indexers) == {"node"}


def test_readers_own_the_lists_that_they_get() -> None:
    store = Indexer(indexers={"node": by_node})
    store.replace([A, B], "1")
    lists = [store.list(), store.by_index("node", "n1"), store.index("node", A)]
    names = [store.list_keys(), store.index_keys("node", "n1")]
    store.delete(A)
    store.add(C)
    assert lists == [[A, B]] * 3
    assert names == [["ns/a", "ns/b"]] * 2


async def test_a_replace_in_steps_lets_others_run_and_shows_itself_only_when_it_is_whole() -> None:
    store = Indexer(indexers={"node": by_node}, clock=TickingClock())
    store.replace([A, B], "1")
    objs = [make(f"o{n}", node="n3") for n in range(500)]
    seen: list[tuple[int, int, str]] = []
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            version = store.last_store_sync_resource_version
            seen.append((len(store), len(store.by_index("node", "n3")), version))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        await asyncio.sleep(0)
        replacement = await store.replace_in_steps(objs, "2")
        done.set()
    assert set(seen) == {(2, 0, "1")}
    assert len(seen) > 10
    assert (len(store.by_index("node", "n3")), store.last_store_sync_resource_version) == (500, "2")
    assert list(replacement.old.values()) == [A, B]
    store.delete(objs[0])
    assert list(replacement.new.values()) == objs


async def test_a_replace_in_steps_that_is_cancelled_changes_nothing() -> None:
    store = Indexer(indexers={"node": by_node}, clock=TickingClock())
    store.replace([A, B], "1")
    task = asyncio.create_task(store.replace_in_steps([make(f"o{n}") for n in range(500)], "2"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (store.list(), store.last_store_sync_resource_version) == ([A, B], "1")


async def test_a_refused_object_costs_no_other_when_a_replace_in_steps_reports_it() -> None:
    store = Indexer(indexers={"tag": by_tag, "picky": picky})
    store.replace([A], "1")
    errors: list[IndexFunctionError] = []
    bad_a, bad_b = make("a", "2", node="bad"), make("b", "2", node="bad")
    with pytest.raises(IndexFunctionError):
        await store.replace_in_steps([bad_a, C], "2")
    assert store.list() == [A]
    replacement = await store.replace_in_steps([bad_a, bad_b, C], "2", on_error=errors.append)
    assert [error.key for error in errors] == ["ns/a", "ns/b"]
    assert store.list() == [A, C] == list(replacement.new.values())
    assert (store.index_keys("picky", "n1"), store.index_keys("tag", "x")) == (["ns/a"], ["ns/a"])


async def test_indexers_added_during_a_replace_in_steps_index_its_result() -> None:
    store = Indexer(clock=TickingClock())
    task = asyncio.create_task(
        store.replace_in_steps([make(f"o{n}", node="n1") for n in range(300)], "2")
    )
    await asyncio.sleep(0)
    store.add_indexers({"node": by_node})
    await task
    assert len(store.by_index("node", "n1")) == 300


async def test_writes_between_the_steps_of_a_reindexing_are_indexed() -> None:
    store = Indexer(clock=TickingClock())
    store.replace([make(f"o{n}", node="n1") for n in range(600)], "1")
    task = asyncio.create_task(store.add_indexers_in_steps({"node": by_node}))
    await asyncio.sleep(0)
    assert store.indexers == {}
    store.delete(make("o0"))
    store.add(make("o1", "2", node="n2"))
    store.add(make("new", "3", node="n2"))
    await task
    assert len(store.by_index("node", "n1")) == 598
    assert sorted(store.index_keys("node", "n2")) == ["ns/new", "ns/o1"]


async def test_two_reindexings_at_once_with_one_name_end_with_an_error_for_one() -> None:
    store = Indexer(clock=TickingClock())
    store.replace([make(f"o{n}", node="n1") for n in range(600)], "1")
    first = asyncio.create_task(store.add_indexers_in_steps({"node": by_node}))
    second = asyncio.create_task(store.add_indexers_in_steps({"node": by_node}))
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), ValueError]
    assert len(store.by_index("node", "n1")) == 600


@contextmanager
def readers(read: Callable[[], None], count: int = 3) -> Iterator[list[BaseException]]:
    """Run `read` in a tight loop in threads; their exceptions are appended to the list."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.is_set():
                read()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            errors.append(error)

    threads = [threading.Thread(target=loop) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_reading_threads_see_each_replace_wholly_or_not_at_all() -> None:
    sets = [
        [make(f"{side}{n}", str(side), node=f"n{side}") for n in range(200)] for side in range(2)
    ]
    store = Indexer(indexers={"node": by_node})
    store.replace(sets[0], "0")
    reads = [0]

    def read() -> None:
        versions = {obj.resource_version for obj in store.list()}
        assert len(versions) == 1
        assert len(store.list_keys()) == 200
        assert len(store.list_index_values("node")) == 1
        assert len(store.by_index("node", "n0")) in {0, 200}
        reads[0] += 1

    with readers(read) as errors:
        turn = 0
        while not errors and (turn < 60 or not reads[0]):
            store.replace(sets[turn % 2], str(turn))
            turn += 1
    assert not errors


def test_reading_threads_survive_single_writes_and_never_see_an_empty_bucket() -> None:
    store = Indexer(indexers={"node": by_node})
    objs = [
        make(f"o{n}", str(version), node=f"n{(n + version) % 7}")
        for version in range(7)
        for n in range(20)
    ]
    store.replace(objs[:20], "0")

    def read() -> None:
        for value in store.list_index_values("node"):
            for obj in store.by_index("node", value):
                assert obj.namespace == "ns"
        # a leak shows nowhere else
        assert all(index.buckets.values() for index in store._state.indices.values())
        assert 18 <= len(store.list()) <= 20

    with readers(read) as errors:
        for obj in objs * 20:
            store.delete(obj)
            store.add(obj)
    assert not errors


class IndexerMachine(RuleBasedStateMachine):
    """An Indexer against a dict: writes in any order, some refused by an index function."""

    specs = st.tuples(
        st.sampled_from("abcde"),
        st.sampled_from(["", "n1", "n2", "n3", "bad"]),
        st.lists(st.sampled_from("xyz"), max_size=3),
    )

    @initialize(late=st.booleans())
    def start(self, late: bool) -> None:
        self.indexer = Indexer(indexers={"picky": picky}, clock=TickingClock())
        self.model: dict[str, Object] = {}
        self.version = 0
        if not late:
            self.indexer.add_indexers({"tag": by_tag})

    def new(self, spec: tuple[str, str, list[str]]) -> Object:
        self.version += 1
        return make(spec[0], str(self.version), node=spec[1], tags=spec[2])

    @rule(spec=specs)
    def put(self, spec: tuple[str, str, list[str]]) -> None:
        obj = self.new(spec)
        if spec[1] == "bad":
            with pytest.raises(IndexFunctionError):
                self.indexer.update(obj)
        else:
            assert self.indexer.put(obj.key, obj) is self.model.get(obj.key)
            self.model[obj.key] = obj

    @rule(name=st.sampled_from("abcde"))
    def remove(self, name: str) -> None:
        assert self.indexer.remove(f"ns/{name}") is self.model.pop(f"ns/{name}", None)

    @rule(specs=st.lists(specs, max_size=6))
    def replace(self, specs: list[tuple[str, str, list[str]]]) -> None:
        objs = [self.new(spec) for spec in specs]
        last = {obj.key: obj for obj in objs}
        if any(obj["spec"]["nodeName"] == "bad" for obj in last.values()):
            with pytest.raises(IndexFunctionError):
                self.indexer.replace(objs, "r")
        else:
            self.indexer.replace(objs, "r")
            self.model = last

    @rule(specs=st.lists(specs, max_size=6), keep=st.booleans())
    def replace_in_steps(self, specs: list[tuple[str, str, list[str]]], *, keep: bool) -> None:
        objs = [self.new(spec) for spec in specs]
        if keep:
            objs += list(self.model.values())
        errors: list[IndexFunctionError] = []
        old = self.model
        self.model = {}
        for obj in {obj.key: obj for obj in objs}.values():
            if obj["spec"]["nodeName"] != "bad":
                self.model[obj.key] = obj
            elif obj.key in old:
                self.model[obj.key] = old[obj.key]

        async def run() -> None:
            replacement = await self.indexer.replace_in_steps(objs, "r", on_error=errors.append)
            assert replacement.old == old
            assert replacement.new == self.model

        asyncio.run(run())

    @rule()
    def add_index(self) -> None:
        if "tag" not in self.indexer.indexers:
            self.indexer.add_indexers({"tag": by_tag})

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "indexer"):
            return
        assert {obj.key: obj for obj in self.indexer.list()} == self.model
        assert sorted(self.indexer.list_keys()) == sorted(self.model)
        functions: dict[str, IndexFunc] = {"picky": by_node, "tag": by_tag}
        for name in self.indexer.indexers:
            expected: dict[str, set[str]] = {}
            for obj in self.model.values():
                for value in functions[name](obj):
                    expected.setdefault(value, set()).add(obj.key)
            assert set(self.indexer.list_index_values(name)) == set(expected)
            for value, keys in expected.items():
                assert set(self.indexer.index_keys(name, value)) == keys
                assert {o.key for o in self.indexer.by_index(name, value)} == keys
                for obj in self.indexer.by_index(name, value):
                    assert obj is self.model[obj.key]


TestIndexerAgainstADict = IndexerMachine.TestCase
TestIndexerAgainstADict.settings = settings(stateful_step_count=20)
