"""Rules to merge two successive events of one object while they wait: three variants."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from listwatch.cache.deltas import DeltaType

_SYNC: Final = DeltaType.SYNC
_ADDED: Final = DeltaType.ADDED
_UPDATED: Final = DeltaType.UPDATED
_DELETED: Final = DeltaType.DELETED

#: Maps the types of two successive events to the type of the one event that replaces them, with the
#: newer object. None means no event. A missing pair stays two events.
Merging: TypeAlias = Mapping[tuple[DeltaType, DeltaType], DeltaType | None]

#: The last state wins: a deleted and recreated object appears as an update. For consumers that act
#: on the current state (`EventQueue`). "No event" becomes a deletion if the consumer knows the
#: object.
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

#: Each life of an object keeps its own addition and deletion, as handlers (`Pending`) and the
#: commands of `listwatch observe` are promised.
EACH_LIFE: Final[Merging] = MappingProxyType(
    {
        (_ADDED, _UPDATED): _ADDED,
        (_ADDED, _DELETED): None,
        (_UPDATED, _UPDATED): _UPDATED,
        (_UPDATED, _DELETED): _DELETED,
    }
)

#: Every event counts, but a deletion appears once (`DeltaFIFO` without a compressor).
ONE_DELETION: Final[Merging] = MappingProxyType({(_DELETED, _DELETED): _DELETED})


def merge(merging: Merging, first: DeltaType, then: DeltaType) -> tuple[DeltaType, ...]:
    """Return the types that two successive events become: none, one, or both unchanged."""
    try:
        kind = merging[first, then]
    except KeyError:
        return (first, then)
    return () if kind is None else (kind,)
