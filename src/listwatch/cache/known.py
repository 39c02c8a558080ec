"""The newest objects that a reflector gave to a queue or store."""

from collections.abc import Callable, Container, Mapping
from typing import Final, Protocol, runtime_checkable

from listwatch.cache.deltas import Delta, DeltaType, Item, KnownObjects, ReflectorStore
from listwatch.objects import Object

#: After this many lookups, one scan of everything is cheaper than more lookups.
_MANY: Final = 50


@runtime_checkable
class _TellsNewest(Protocol):
    def newest(self, key: str) -> Delta | None: ...

    def newest_of_all(self) -> tuple[Mapping[str, Item | None], bool]: ...

    @property
    def known_objects(self) -> KnownObjects | None: ...


@runtime_checkable
class KnowsMissing(Protocol):
    """Tells a reflector which of the objects it gave a list lacks."""

    def missing(self, listed: Container[str]) -> dict[str, Object]:
        """Return the known objects whose keys are not listed, by key."""
        ...


class NewestKnown:
    """Returns the newest object that a reflector gave for a key; call it with a key.

    Args:
        store: what the reflector feeds: a queue, or a store.
        behind: what the queue's consumer holds; by default what the queue itself knows.
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
        """Return the newest object of a key; None if it is unknown or deleted."""
        item: Item | None = None
        if self._queue is not None and (delta := self._queue.newest(key)) is not None:
            item = None if delta.type is DeltaType.DELETED else delta.object
        elif self._behind is not None:
            item = self._behind.get_by_key(key)
        return item if isinstance(item, Object) else None

    def missing(self, listed: Container[str]) -> dict[str, Object]:
        """Return the known objects whose keys are not listed, by key. Scans every key."""
        found: dict[str, Item | None] = {}
        queued, everything = ({}, False) if self._queue is None else self._queue.newest_of_all()
        if self._behind is not None and not everything:
            for key in list(self._behind.list_keys()):
                if key not in listed and key not in queued:
                    found[key] = self._behind.get_by_key(key)
        found.update((key, item) for key, item in queued.items() if key not in listed)
        return {key: item for key, item in found.items() if isinstance(item, Object)}


class KnownMeanwhile:
    """Returns the newest object of a key while nothing new arrives; call it with a key.

    A queue scans its entries for each lookup. After some lookups this asks it for everything at
    once, if it can answer that; the result stays right as long as nothing new arrives.

    Args:
        known: returns the newest object of a key.
    """

    def __init__(self, known: Callable[[str], Object | None]) -> None:
        self._find = known
        asked: object = known
        self._everything = asked if isinstance(asked, KnowsMissing) else None
        self._questions = 0

    def __call__(self, key: str) -> Object | None:
        """Return the newest object of a key; None if it is unknown or deleted."""
        self._questions += 1
        if self._everything is not None and self._questions > _MANY:
            self._find = self._everything.missing(()).get
            self._everything = None
        return self._find(key)
