"""A queue that merges everything that happened to an object into one event."""

from collections.abc import Sequence

from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import (
    Delta,
    Deltas,
    DeltaType,
    KeyFunc,
    KnownObjects,
)
from listwatch.cache.failures import OnError, log_with_trace
from listwatch.cache.merging import LAST_STATE, merge
from listwatch.cache.store import Store
from listwatch.clock import Clock
from listwatch.objects import DeletedFinalStateUnknown, Object, meta_namespace_key

_DELETED = DeltaType.DELETED


class EventQueue(DeltaFIFO):
    """A `DeltaFIFO` whose pops return exactly one delta, merged from all deltas of its key.

    The last value wins. If an object was deleted and recreated before a pop, the consumer sees an
    update (see `merging.LAST_STATE`). A DELETED carries the object's last state instead of a
    tombstone if that state is known.

    Without `known_objects`, the queue records in its own store what it passes to process functions,
    before it calls them. So after the next list it reports what was deleted while the watch was
    down. With `known_objects`, the consumer keeps that record.

    The contract is that of OpenShift origin's `pkg/sdn/plugin/eventqueue.go` (NewEventQueue and
    NewEventQueueForStore) and, for the progress of lists, of its `pkg/client/cache/eventqueue.go`.
    Unlike both, it accepts events in any order instead of stopping the process. For one event loop.

    Args:
        key_func: returns the key of an object; not called for tombstones.
        known_objects: what the consumer holds.
        clock: for requeue delays and the ages in `statistics`.
        on_error: called with errors of known objects that the queue survives.
    """

    def __init__(
        self,
        key_func: KeyFunc = meta_namespace_key,
        *,
        known_objects: KnownObjects | None = None,
        clock: Clock | None = None,
        on_error: OnError = log_with_trace,
    ) -> None:
        self._own: Store | None = None
        if known_objects is None:
            known_objects = self._own = Store(key_func)
        self._consumer: KnownObjects = known_objects
        super().__init__(
            key_func,
            compressor=self._to_one_event,
            known_objects=known_objects,
            clock=clock,
            on_error=on_error,
        )
        self._list_successful = False
        self._list_count = 0
        # The keys of the last list that are not processed yet.
        self._unconsumed: set[str] = set()

    @property
    def known_objects(self) -> KnownObjects:
        """What the consumer knows: the queue's own store, or the given known objects."""
        return self._consumer

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        """Queue a complete list: SYNC for each object in it, DELETED for each known key it lacks.

        Of several objects with one key the last counts.

        Raises:
            KeyFunctionError: an object has no key; nothing was queued.
            Exception: listing the known keys failed; nothing was queued.
        """
        super().replace(objs, resource_version)
        self._list_successful = True
        self._list_count = len(objs)
        self._unconsumed = {self.key_of(obj) for obj in objs}

    @property
    def list_successful_at_least_once(self) -> bool:
        """Whether a list has arrived."""
        return self._list_successful

    @property
    def list_count(self) -> int:
        """Number of objects in the last list; 0 before the first."""
        return self._list_count

    @property
    def list_consumed(self) -> bool:
        """Whether everything in the last list was processed; True before the first."""
        return not self._unconsumed

    def _to_one_event(self, deltas: Deltas) -> Sequence[Delta]:
        event: Delta | None = None
        for delta in deltas:
            if event is None:
                event = delta
                continue
            kinds = merge(LAST_STATE, event.type, delta.type)
            if not kinds and self._consumer_knows(deltas.key):
                kinds = (_DELETED,)
            event = Delta(kinds[0], delta.object) if kinds else None
        return () if event is None else (event,)

    def _consumer_knows(self, key: str) -> bool:
        try:
            return self._consumer.get_by_key(key) is not None
        except Exception as error:  # noqa: BLE001 - a user's function: reported
            self._report(error)
            return True  # better a deletion twice than never

    def _take(self, limit: int) -> Sequence[Deltas]:
        batch = super()._take(limit)
        for deltas in batch:
            for index, delta in enumerate(deltas):
                deltas[index] = self._as_event(deltas.key, delta)
        return batch

    def _as_event(self, key: str, delta: Delta) -> Delta:
        """Give a deletion its object's last state, and update the queue's own store.

        Runs before the process function: even if the function fails or is cancelled half-way, it
        may have acted on the object, and must see its deletion.
        """
        item = delta.object
        if delta.type is _DELETED:
            last = self._own.remove(key) if self._own is not None else None
            if isinstance(item, DeletedFinalStateUnknown):
                known = item.obj if isinstance(item.obj, Object) else last
                return delta if known is None else Delta(_DELETED, known)
        elif self._own is not None and isinstance(item, Object):
            self._own.put(key, item)
        return delta

    def _finish(self, batch: Sequence[Deltas]) -> None:
        super()._finish(batch)
        for deltas in batch:
            if self._queued(deltas.key) is None:
                self._unconsumed.discard(deltas.key)

    def _leave(self, key: str) -> None:
        super()._leave(key)
        self._unconsumed.discard(key)
