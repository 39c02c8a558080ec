"""Listers read a cache by name, selector, namespace, index and owner."""

import threading

import pytest

from listwatch.cache.lister import (
    NAMESPACE_INDEX,
    OWNER_INDEX,
    Lister,
    namespace_of,
    owners_of,
)
from listwatch.cache.store import Indexer, UnknownIndexError
from listwatch.errors import NotFoundError
from listwatch.objects import Object
from listwatch.selector import SelectorError, parse_label_selector


def an_object(
    name: str, namespace: str = "", owner: str = "", version: str = "1", **labels: str
) -> Object:
    meta: dict[str, object] = {"name": name, "resourceVersion": version, "labels": labels}
    if namespace:
        meta["namespace"] = namespace
    if owner:
        meta["ownerReferences"] = [{"uid": owner, "name": "o", "kind": "K", "apiVersion": "v1"}]
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


@pytest.fixture
def indexer() -> Indexer:
    indexer = Indexer(
        indexers={
            NAMESPACE_INDEX: namespace_of,
            OWNER_INDEX: owners_of,
            "letter": lambda obj: [obj.name[0]],
        }
    )
    for obj in (
        an_object("apple", "n1", app="web", tier="front"),
        an_object("avocado", "n2", owner="u1", app="db"),
        an_object("banana", "n1", owner="u1"),
        an_object("cluster-wide", app="web"),
    ):
        indexer.add(obj)
    return indexer


@pytest.fixture
def lister(indexer: Indexer) -> Lister:
    return Lister(indexer, name="pods")


def names(objects: list[Object]) -> list[str]:
    return sorted(obj.name for obj in objects)


def test_an_object_is_got_by_name_and_namespace(lister: Lister) -> None:
    assert lister.get("apple", "n1").key == "n1/apple"
    assert lister.get("cluster-wide").key == "cluster-wide"
    assert lister.namespaced("n1").get("banana").key == "n1/banana"
    assert lister.find("apple", "n2") is None


def test_what_is_not_there_is_named(lister: Lister) -> None:
    with pytest.raises(NotFoundError, match="pods 'n2/apple' not found in the cache"):
        lister.namespaced("n2").get("apple")


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("", ["apple", "avocado", "banana", "cluster-wide"]),
        ("app=web", ["apple", "cluster-wide"]),
        ("app in (web,db),tier!=front", ["avocado", "cluster-wide"]),
        ("!app", ["banana"]),
        ("app,!tier", ["avocado", "cluster-wide"]),
    ],
)
def test_selectors_have_the_full_grammar(lister: Lister, selector: str, found: list[str]) -> None:
    assert names(lister.list(selector)) == found
    assert names(lister.list(parse_label_selector(selector))) == found


def test_a_selector_that_can_not_be_parsed_is_an_error(lister: Lister) -> None:
    with pytest.raises(SelectorError):
        lister.list("a in (")


def test_a_namespaced_lister_sees_its_namespace_only(lister: Lister) -> None:
    here = lister.namespaced("n1")
    assert names(here.list()) == ["apple", "banana"]
    assert names(here.list("app=web")) == ["apple"]
    assert names(here.by_index("letter", "a")) == ["apple"]
    assert names(here.by_owner("u1")) == ["banana"]
    assert len(here) == 2
    assert names(lister.namespaced("").list()) == ["cluster-wide"]


def test_indices_are_read(lister: Lister) -> None:
    assert names(lister.by_index("letter", "a")) == ["apple", "avocado"]
    assert names(lister.by_owner("u1")) == ["avocado", "banana"]
    assert len(lister) == 4
    with pytest.raises(UnknownIndexError, match="'color'"):
        lister.by_index("color", "red")


def test_a_list_is_the_callers_own(lister: Lister) -> None:
    lister.list().clear()
    lister.namespaced("n1").list().clear()
    assert len(lister.list()) == 4
    assert len(lister.namespaced("n1").list()) == 2


def test_readers_in_other_threads_see_whole_states(indexer: Indexer) -> None:
    """Every replace sets all objects to one version; no reader sees two versions."""
    lister = Lister(indexer)
    mixed: list[set[str]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen = {obj.resource_version for obj in lister.list()}
            if len(seen) > 1:
                mixed.append(seen)

    readers = [threading.Thread(target=read) for _ in range(3)]
    indexer.replace([an_object(f"p{i}", "n") for i in range(300)], "1")
    for reader in readers:
        reader.start()
    for version in range(2, 30):
        objects = [an_object(f"p{i}", "n", version=str(version)) for i in range(300)]
        indexer.replace(objects, str(version))
    stop.set()
    for reader in readers:
        reader.join()
    assert mixed == []
