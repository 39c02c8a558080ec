"""What an observer reports: one change of one object, and its type."""

from enum import StrEnum

import msgspec

from listwatch.cache.deltas import DeltaType
from listwatch.cache.merging import EACH_LIFE, merge
from listwatch.objects import Object


class ObservationType(StrEnum):
    """Why a change is reported.

    The original command calls `LISTED`, `RELISTED` and `RESYNC` all `Sync`.
    """

    #: In the first list.
    LISTED = "Listed"
    ADDED = "Added"
    UPDATED = "Updated"
    #: In a later list that replaced a broken watch; new, changed or unchanged.
    RELISTED = "Relisted"
    #: Re-delivered unchanged by a resync.
    RESYNC = "Resync"
    DELETED = "Deleted"

    @property
    def plain(self) -> str:
        """The original command's word: Sync, Added, Updated or Deleted."""
        return self.value if self in _PLAIN else "Sync"


_PLAIN = frozenset({ObservationType.ADDED, ObservationType.UPDATED, ObservationType.DELETED})


class Observation(msgspec.Struct, frozen=True):
    """One change of one object.

    Attributes:
        type: why it is reported.
        key: the object's "namespace/name", or "name".
        object: its new state; if deleted, the last known state, or None if nothing is known.
        old: the last reported state; None for a new object.
        resource: the observed resource, as the user named it.
        final_state_unknown: the deletion itself was missed, so `object` may be stale.
        position: the version up to which this change completes the object's history; 0 if the
            server does not know the change.
    """

    type: ObservationType
    key: str
    object: Object | None
    old: Object | None = None
    resource: str = ""
    final_state_unknown: bool = False
    position: int = 0

    @property
    def namespace(self) -> str:
        """The object's namespace; empty if it has none."""
        return self.object.namespace if self.object is not None else self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The object's name."""
        return self.object.name if self.object is not None else self.key.rpartition("/")[2]

    @property
    def resource_version(self) -> str:
        """The version of `object`; empty if nothing is known."""
        return self.object.resource_version if self.object is not None else ""


def merged(earlier: Observation, later: Observation) -> tuple[Observation, ...]:
    """Return two successive changes of one object merged while they wait: none, one or both.

    The rule is that of an informer's handlers: each life of an object keeps its own addition and
    deletion (`merging.EACH_LIFE`).
    """
    kinds = merge(EACH_LIFE, _kind(earlier), _kind(later, is_first=False))
    if not kinds:
        return ()  # it was never reported
    if len(kinds) > 1:
        return (earlier, later)
    if later.type is ObservationType.DELETED:
        return (msgspec.structs.replace(later, old=earlier.old),)
    keeps = earlier.old is None or later.type is ObservationType.RESYNC
    kind = earlier.type if keeps else later.type
    return (msgspec.structs.replace(later, type=kind, old=earlier.old),)


def _kind(change: Observation, *, is_first: bool = True) -> DeltaType:
    if change.type is ObservationType.DELETED:
        return DeltaType.DELETED
    return DeltaType.ADDED if is_first and change.old is None else DeltaType.UPDATED
