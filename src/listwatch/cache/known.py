"""What is known of a key where a reflector feeds a queue or a store."""

from collections.abc import Container, Mapping
from typing import Protocol, runtime_checkable

from listwatch.cache.deltas import Delta, DeltaType, Item, KnownObjects, ReflectorStore
from listwatch.objects import Object


@runtime_checkable
class _TellsNewest(Protocol):
    def newest(self, key: str) -> Delta | None: ...

    def newest_of_all(self) -> tuple[Mapping[str, Item | None], bool]: ...

    @property
    def known_objects(self) -> KnownObjects | None: ...


@runtime_checkable
class KnowsMissing(Protocol):
    """What tells a reflector which objects it has given that a list lacks."""

    def missing(self, listed: Container[str]) -> dict[str, Object]:
        """Return the objects that are known and not among these keys, by their keys."""
        ...


class NewestKnown:
    """Gives the newest objects that a reflector has given, by their keys; call it with a key.

    Args:
        store: what the reflector feeds: a queue, or a store.
        behind: what the queue's consumer holds; what the queue knows itself, if not given.
    """

    def __init__(self, store: ReflectorStore, behind: KnownObjects | None = None) -> None:
        self._queue = store if isinstance(store, _TellsNewest) else None
        if behind is None:
            if self._queue is not None:
                behind = self._queue.known_objects
            elif isinstance(store, KnownObjects):
                behind = store
        self._behind = behind

    def __call__(self, key: str) -> Object | None:
        """Return the newest object of a key; None if it is not known or has ended."""
        item: Item | None = None
        if self._queue is not None and (delta := self._queue.newest(key)) is not None:
            item = None if delta.type is DeltaType.DELETED else delta.object
        elif self._behind is not None:
            item = self._behind.get_by_key(key)
        return item if isinstance(item, Object) else None

    def missing(self, listed: Container[str]) -> dict[str, Object]:
        """Return the objects that are known and not among these keys. Looks at every key."""
        found: dict[str, Item | None] = {}
        queued, everything = ({}, False) if self._queue is None else self._queue.newest_of_all()
        if self._behind is not None and not everything:
            for key in list(self._behind.list_keys()):
                if key not in listed and key not in queued:
                    found[key] = self._behind.get_by_key(key)
        found.update((key, item) for key, item in queued.items() if key not in listed)
        return {key: item for key, item in found.items() if isinstance(item, Object)}
