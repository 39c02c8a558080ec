"""Deltas update the store and become changes to deliver."""

from collections.abc import Sequence

import pytest

from listwatch.cache.deltas import Delta, Deltas, DeltaType
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import Added, Deleted, Updated
from listwatch.cache.store import Indexer
from listwatch.cache.writer import DeltaProcessor
from listwatch.clock import FakeClock
from listwatch.objects import DeletedFinalStateUnknown, Object


def an_object(name: str, uid: str = "u", version: str = "1") -> Object:
    meta = {"name": name, "uid": uid, "resourceVersion": version}
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


def deltas(*changes: Delta) -> Deltas:
    item = changes[0].object
    return Deltas(changes, "" if item is None else item.key)


class Scene:
    def __init__(self, *objects: Object, ordered: bool = True) -> None:
        self.store = Indexer(indexers={"uid": self.uid_of})
        for obj in objects:
            self.store.put(obj.key, obj)
        self.failures: list[Failure] = []
        self.processor = DeltaProcessor(
            self.store, on_error=self.on_error, clock=FakeClock(), ordered=ordered
        )

    @staticmethod
    def uid_of(obj: Object) -> Sequence[str]:
        if obj.uid == "refused":
            raise ValueError("no such uid")
        return [obj.uid]

    def on_error(self, failure: Failure) -> None:
        assert isinstance(failure, Failure)
        self.failures.append(failure)


async def test_an_object_comes_changes_and_goes() -> None:
    scene = Scene()
    first, second = an_object("a"), an_object("a", version="2")
    batch = [
        deltas(
            Delta(DeltaType.ADDED, first),
            Delta(DeltaType.UPDATED, second),
            Delta(DeltaType.DELETED, second),
        )
    ]
    assert await scene.processor.apply(batch) == [
        Added(first),
        Updated(first, second),
        Deleted(second),
    ]
    assert len(scene.store) == 0
    assert scene.store.last_store_sync_resource_version == "2"


async def test_an_update_of_what_is_not_there_is_an_addition() -> None:
    scene = Scene()
    obj = an_object("a")
    assert await scene.processor.apply([deltas(Delta(DeltaType.UPDATED, obj))]) == [Added(obj)]


async def test_the_deletion_of_what_is_not_there_is_not_told() -> None:
    scene = Scene()
    assert await scene.processor.apply([deltas(Delta(DeltaType.DELETED, an_object("a")))]) == []


async def test_another_uid_ends_the_stored_object_first() -> None:
    old, new = an_object("a", "old"), an_object("a", "new", "2")
    scene = Scene(old)
    assert await scene.processor.apply([deltas(Delta(DeltaType.UPDATED, new))]) == [
        Deleted(DeletedFinalStateUnknown("a", old)),
        Added(new),
    ]


@pytest.mark.parametrize(
    "item",
    [
        an_object("a", "unseen", "9"),
        DeletedFinalStateUnknown("a"),
        DeletedFinalStateUnknown("a", an_object("a", "unseen", "9")),
    ],
)
async def test_a_deletion_tells_of_the_object_that_was_stored(
    item: Object | DeletedFinalStateUnknown,
) -> None:
    old = an_object("a", "old")
    scene = Scene(old)
    assert await scene.processor.apply([deltas(Delta(DeltaType.DELETED, item))]) == [
        Deleted(DeletedFinalStateUnknown("a", old))
    ]


async def test_the_same_version_is_told_for_a_resync_only_and_the_stored_object_stays() -> None:
    stored, again = an_object("a"), an_object("a")
    scene = Scene(stored)
    for kind in (DeltaType.UPDATED, DeltaType.REPLACED):
        assert await scene.processor.apply([deltas(Delta(kind, again))]) == []
        assert scene.store.get_by_key("a") is stored
    (change,) = await scene.processor.apply([deltas(Delta(DeltaType.SYNC, again))])
    assert isinstance(change, Updated)
    assert change.old is change.new is stored
    assert change.is_resync


async def test_objects_without_versions_are_always_told() -> None:
    scene = Scene(an_object("a", version=""))
    (change,) = await scene.processor.apply(
        [deltas(Delta(DeltaType.UPDATED, an_object("a", version="")))]
    )
    assert isinstance(change, Updated)


async def test_what_an_index_function_refuses_costs_no_other_and_leaves_its_key() -> None:
    old = an_object("a", "fine")
    scene = Scene(old)
    other = an_object("b")
    batch = [
        deltas(Delta(DeltaType.UPDATED, an_object("a", "refused", "2"))),
        deltas(Delta(DeltaType.ADDED, other)),
    ]
    assert await scene.processor.apply(batch) == [Added(other)]
    assert scene.store.get_by_key("a") is old
    assert [failure.key for failure in scene.failures] == ["a"]


async def test_a_list_tells_the_deletions_first_and_then_in_its_order() -> None:
    gone, same, changed, replaced = (
        an_object(name, f"uid-{name}") for name in ("gone", "same", "changed", "replaced")
    )
    scene = Scene(gone, same, changed, replaced)
    new = an_object("new", "uid-new")
    changed_now = an_object("changed", "uid-changed", "2")
    replaced_now = an_object("replaced", "other", "2")
    listed = [new, replaced_now, an_object("same", "uid-same"), changed_now]
    whole = deltas(Delta(DeltaType.REPLACED_ALL, objects=listed, resource_version="7"))
    assert await scene.processor.apply([whole]) == [
        Deleted(DeletedFinalStateUnknown("gone", gone)),
        Deleted(DeletedFinalStateUnknown("replaced", replaced)),
        Added(new),
        Added(replaced_now),
        Updated(changed, changed_now),
    ]
    assert scene.store.get_by_key("same") is same
    assert scene.store.last_store_sync_resource_version == "7"


async def test_a_resync_of_everything_and_a_bookmark() -> None:
    obj = an_object("a")
    scene = Scene(obj)
    assert await scene.processor.apply([deltas(Delta(DeltaType.SYNC_ALL))]) == [
        Updated(obj, obj, True)
    ]
    bookmark = deltas(Delta(DeltaType.BOOKMARK, resource_version="9"))
    assert await scene.processor.apply([bookmark]) == []
    assert scene.store.last_store_sync_resource_version == "9"


async def test_without_an_order_no_delta_says_up_to_where_everything_was_applied() -> None:
    scene = Scene(ordered=False)
    await scene.processor.apply([deltas(Delta(DeltaType.ADDED, an_object("a", version="5")))])
    assert scene.store.last_store_sync_resource_version == ""


async def test_a_delta_without_an_object_among_others_is_a_mistake() -> None:
    scene = Scene()
    batch = [deltas(Delta(DeltaType.ADDED, an_object("a"))), deltas(Delta(DeltaType.ADDED))]
    with pytest.raises(ValueError, match="without an object"):
        await scene.processor.apply(batch)
