"""What two events of one object in a row become while they wait: one rule in three variants."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from listwatch.cache.deltas import DeltaType

_SYNC: Final = DeltaType.SYNC
_ADDED: Final = DeltaType.ADDED
_UPDATED: Final = DeltaType.UPDATED
_DELETED: Final = DeltaType.DELETED

#: The kinds of two events in a row, and the kind of the one event that they become, with the newer
#: object. None is no event at all. Pairs that are left out stay two events.
Merging: TypeAlias = Mapping[tuple[DeltaType, DeltaType], DeltaType | None]

#: The last state wins: of an object that was deleted and made again, an update is seen. For
#: consumers that act on what an object is now (`EventQueue`). No event becomes a deletion where
#: the consumer knows of the object.
LAST_STATE: Final[Merging] = MappingProxyType(
    {
        (_SYNC, _SYNC): _SYNC,
        (_SYNC, _ADDED): _SYNC,
        (_SYNC, _UPDATED): _SYNC,
        (_SYNC, _DELETED): _DELETED,
        (_ADDED, _SYNC): _ADDED,
        (_ADDED, _ADDED): _ADDED,
        (_ADDED, _UPDATED): _ADDED,
        (_ADDED, _DELETED): None,
        (_UPDATED, _SYNC): _UPDATED,
        (_UPDATED, _ADDED): _UPDATED,
        (_UPDATED, _UPDATED): _UPDATED,
        (_UPDATED, _DELETED): _DELETED,
        (_DELETED, _SYNC): _SYNC,
        (_DELETED, _ADDED): _UPDATED,
        (_DELETED, _UPDATED): _UPDATED,
        (_DELETED, _DELETED): _DELETED,
    }
)

#: Each life of an object keeps its own addition and deletion, as a handler is promised
#: (`Pending`) and a command of `listwatch observe`.
EACH_LIFE: Final[Merging] = MappingProxyType(
    {
        (_ADDED, _UPDATED): _ADDED,
        (_ADDED, _DELETED): None,
        (_UPDATED, _UPDATED): _UPDATED,
        (_UPDATED, _DELETED): _DELETED,
    }
)

#: Every event counts, but a deletion is told once (`DeltaFIFO` without a compressor).
ONE_DELETION: Final[Merging] = MappingProxyType({(_DELETED, _DELETED): _DELETED})


def merge(merging: Merging, first: DeltaType, then: DeltaType) -> tuple[DeltaType, ...]:
    """Return the kinds that two events in a row become: none, one, or both as they are."""
    try:
        kind = merging[first, then]
    except KeyError:
        return (first, then)
    return () if kind is None else (kind,)
