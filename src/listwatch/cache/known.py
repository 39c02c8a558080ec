"""What is known of a key where a reflector feeds a queue or a store."""

from collections.abc import Callable, Container, Mapping
from typing import Final, Protocol, runtime_checkable

from listwatch.cache.deltas import Delta, DeltaType, Item, KnownObjects, ReflectorStore
from listwatch.objects import Object

#: After so many questions, one look at everything costs less than the next ones.
_MANY: Final = 50


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


class KnownMeanwhile:
    """Gives the newest objects by their keys while nothing new is given; call it with a key.

    A queue looks at each of its entries to answer. So after some questions it is asked for
    everything at once, if it can tell, which stays right as long as nothing new is given.

    Args:
        known: gives the newest object of a key.
    """

    def __init__(self, known: Callable[[str], Object | None]) -> None:
        self._find = known
        asked: object = known
        self._everything = asked if isinstance(asked, KnowsMissing) else None
        self._questions = 0

    def __call__(self, key: str) -> Object | None:
        """Return the newest object of a key; None if it is not known or has ended."""
        self._questions += 1
        if self._everything is not None and self._questions > _MANY:
            self._find = self._everything.missing(()).get
            self._everything = None
        return self._find(key)
