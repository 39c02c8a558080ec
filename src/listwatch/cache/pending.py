"""The changes waiting for one handler, with or without a bound."""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType

from listwatch.cache.deltas import DeltaType
from listwatch.cache.handlers import Added, Change, Deleted, Updated
from listwatch.cache.merging import EACH_LIFE, merge


class Marker:
    """An entry behind changes that shows when they have been delivered."""


#: An entry that waits.
Entry = Change | Marker


class Pending:
    """Changes that wait for one handler, in order.

    With a bound, the changes of one key merge once more than that many wait, so the number waiting
    never exceeds the larger of the bound and twice the number of distinct keys. Merged changes stay
    consistent: an addition and its deletion cancel out; a deletion and the addition of another
    object under its key both stay. A merged key keeps the place of its first change.

    For one event loop.

    Args:
        bound: number of changes that may wait unmerged; None for no bound.
    """

    def __init__(self, bound: int | None = None) -> None:
        if bound is not None and bound < 1:
            raise ValueError(f"max_pending must be 1 or more, not {bound}")
        self._bound = bound
        self._queue: deque[Entry] = deque()
        # While this is in use, the queue is empty. In a dict that loses its first keys, finding the
        # first key takes time in proportion to those lost; in an OrderedDict it does not.
        self._by_key: OrderedDict[str | Marker, list[Change]] = OrderedDict()
        self._merged_length = 0
        self._resyncs = 0
        self._markers = 0
        #: Number of changes merged into others.
        self.merged = 0

    def __len__(self) -> int:
        return (len(self._queue) or self._merged_length) - self._markers

    @property
    def has_resyncs(self) -> bool:
        """Whether changes of an earlier resync still wait."""
        return self._resyncs > 0

    def put(self, entries: Sequence[Change]) -> None:
        """Append changes."""
        if self._bound is None:
            before = len(self._queue)
            self._queue.extend(entries)
            if before < len(self._queue):
                self._count_resyncs(before)
            return
        for entry in entries:
            if not self._by_key and len(self._queue) >= self._bound:
                self._merge_all()
            if self._by_key:
                self._merge(entry)
            else:
                self._queue.append(entry)
                self._resyncs += isinstance(entry, Updated) and entry.is_resync

    def put_marker(self, marker: Marker) -> None:
        """Append a marker."""
        self._markers += 1
        if self._by_key:
            self._by_key[marker] = []
            self._merged_length += 1
        else:
            self._queue.append(marker)

    def _count_resyncs(self, since: int) -> None:
        # A resync arrives as a whole, so its first change is enough.
        first = self._queue[since]
        if isinstance(first, Updated) and first.is_resync:
            self._resyncs += len(self._queue) - since

    def _merge_all(self) -> None:
        queue, self._queue = self._queue, deque()
        for entry in queue:
            if isinstance(entry, Marker):
                self._by_key[entry] = []
                self._merged_length += 1
            else:
                self._merge(entry)

    def _merge(self, entry: Change) -> None:
        waiting = self._by_key.setdefault(entry.key, [])
        before = len(waiting)
        if waiting:
            waiting += merged(waiting.pop(), entry)
        else:
            waiting.append(entry)
        self._merged_length += len(waiting) - before
        self.merged += before + 1 - len(waiting)
        if not waiting:
            del self._by_key[entry.key]

    def take(self, limit: int) -> Sequence[Change] | Marker:
        """Return the first changes, at most about `limit`, or a marker if that is next.

        All changes of a merged key are returned at once.
        """
        if self._by_key:
            return self._take_merged(limit)
        queue = self._queue
        if queue and isinstance(marker := queue[0], Marker):
            queue.popleft()
            self._markers -= 1
            return marker
        taken: list[Change] = []
        while queue and len(taken) < limit and not isinstance(change := queue[0], Marker):
            taken.append(change)
            queue.popleft()
        if self._resyncs:
            self._resyncs -= sum(isinstance(e, Updated) and e.is_resync for e in taken)
        return taken

    def _take_merged(self, limit: int) -> Sequence[Change] | Marker:
        self._resyncs = 0
        taken: list[Change] = []
        while self._by_key and len(taken) < limit:
            key = next(iter(self._by_key))
            if isinstance(key, Marker):
                if taken:
                    break
                del self._by_key[key]
                self._merged_length -= 1
                self._markers -= 1
                return key
            taken += self._by_key.pop(key)
        self._merged_length -= len(taken)
        return taken

    def clear(self) -> None:
        """Discard everything."""
        self._queue.clear()
        self._by_key.clear()
        self._merged_length = self._resyncs = self._markers = 0


def merged(first: Change, then: Change) -> Sequence[Change]:
    """Return two successive changes of one key merged, for a handler that received neither."""
    match _MERGED.get((type(first), type(then))), first, then:
        case (), _, _:
            return ()
        case (DeltaType.ADDED,), Added(), Updated():
            return (Added(then.new, first.is_in_initial_list),)
        case (DeltaType.UPDATED,), Updated(), Updated():
            return (Updated(first.old, then.new, first.is_resync and then.is_resync),)
        case (DeltaType.DELETED,), _, Deleted():
            return (then,)
    return (first, then)


_KINDS: Mapping[type[Change], DeltaType] = MappingProxyType(
    {Added: DeltaType.ADDED, Updated: DeltaType.UPDATED, Deleted: DeltaType.DELETED}
)
# By class, because an enum member is slow to hash.
_MERGED: Mapping[tuple[type[Change], type[Change]], tuple[DeltaType, ...]] = MappingProxyType(
    {
        (first, then): merge(EACH_LIFE, _KINDS[first], _KINDS[then])
        for first, then in product(_KINDS, repeat=2)
    }
)
