"""What is known of a key where a reflector feeds a queue or a store."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from listwatch.cache.deltas import Delta, DeltaType, Item, KnownObjects, ReflectorStore
from listwatch.objects import Object


@runtime_checkable
class _TellsNewest(Protocol):
    def newest(self, key: str) -> Delta | None: ...

    @property
    def known_objects(self) -> KnownObjects | None: ...


def newest_of(
    store: ReflectorStore, behind: KnownObjects | None = None
) -> Callable[[str], Object | None]:
    """Return a function that gives the newest object of a key that a reflector has given.

    Args:
        store: what the reflector feeds: a queue, or a store.
        behind: what the queue's consumer holds; what the queue knows itself, if not given.
    """
    queue = store if isinstance(store, _TellsNewest) else None
    if behind is None:
        if queue is not None:
            behind = queue.known_objects
        elif isinstance(store, KnownObjects):
            behind = store

    def newest(key: str) -> Object | None:
        item: Item | None = None
        if queue is not None and (delta := queue.newest(key)) is not None:
            item = None if delta.type is DeltaType.DELETED else delta.object
        elif behind is not None:
            item = behind.get_by_key(key)
        return item if isinstance(item, Object) else None

    return newest
