"""Applies deltas to a store and finds out what to tell. The one place that compares uids."""

from collections.abc import Sequence

from listwatch.cache.callers import YIELD_SECONDS
from listwatch.cache.deltas import Delta, Deltas, DeltaType, Item
from listwatch.cache.failures import Failure, OnError
from listwatch.cache.handlers import Added, Change, Deleted, Updated, last_state
from listwatch.cache.store import IndexFunctionError, Replacement, Store
from listwatch.clock import Clock
from listwatch.objects import DeletedFinalStateUnknown, Object

#: Steps between two looks at the clock.
_STEPS = 256
_NOT_ONE_OBJECT = frozenset({DeltaType.REPLACED_ALL, DeltaType.SYNC_ALL, DeltaType.BOOKMARK})


class DeltaProcessor:
    """Applies deltas to a store and returns the changes that handlers are to be told.

    - A key's new object with another uid ends the old one: a deletion is told, then an addition.
      (client-go tells only an update, kubernetes#133565.)
    - An object with the uid and version that are stored already is told only for a resync.
    - A whole list is one swap of the store; the deletions are told first, then the rest in the
      list's order.
    - A deletion of what is not there is not told.

    For one task at a time, which is the only writer of the store.

    Args:
        store: where to.
        on_error: is told of objects that an index function refuses; their keys stay as they are.
        clock: says when to let other tasks run.
        name: of the informer, for `on_error`.
        ordered: deltas come in the order of the server, so that the version of one says that
            everything before it was applied.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_error: OnError,
        clock: Clock,
        name: str = "",
        ordered: bool = True,
    ) -> None:
        self._store = store
        self._on_error = on_error
        self._clock = clock
        self._name = name
        self._ordered = ordered

    async def apply(self, batch: Sequence[Deltas]) -> list[Change]:
        """Apply the deltas in their order and return what to tell, in the order of telling."""
        changes: list[Change] = []
        if len(batch) == 1 and (delta := batch[0][0]).type in _NOT_ONE_OBJECT:
            for delta in batch[0]:
                await self._apply_to_all(
                    delta, initial=batch[0].is_in_initial_list, changes=changes
                )
            return changes
        steps: list[tuple[str, Object | None]] = []
        found: list[tuple[Delta, bool]] = []
        version = ""
        get = self._store.get_by_key
        for deltas in batch:
            old = get(deltas.key)
            for delta in deltas:
                item = delta.object
                if item is None:
                    raise ValueError(f"a {delta.type} delta without an object, in a batch")
                new = None
                if isinstance(item, Object) and delta.type is not DeltaType.DELETED:
                    # The cached one stays, so that an update's old is what was told as new.
                    new = old if old is not None and _is_same(old, item) else item
                steps.append((deltas.key, new))
                old = new
                found.append((delta, deltas.is_in_initial_list))
                if isinstance(item, Object) and item.meta.resource_version:
                    version = item.meta.resource_version
        results = self._store.apply(steps, version if self._ordered else "")
        for (key, put), (delta, initial), was in zip(steps, found, results, strict=True):
            if isinstance(was, IndexFunctionError):
                self._report(was)
            elif put is not None:
                resync = delta.type is DeltaType.SYNC
                changes += self._changes(was, put, initial=initial, resync=resync)
            elif was is not None:
                changes.append(Deleted(_gone(key, was, delta.object)))
        return changes

    @staticmethod
    def _changes(
        old: Object | None, new: Object, *, initial: bool, resync: bool = False
    ) -> Sequence[Change]:
        if old is None:
            return (Added(new, initial),)
        if old.meta.uid != new.meta.uid:
            return (Deleted(DeletedFinalStateUnknown(old.key, old)), Added(new, initial))
        if resync or not _is_same(old, new):
            return (Updated(old, new, resync),)
        return ()

    async def _apply_to_all(self, delta: Delta, *, initial: bool, changes: list[Change]) -> None:
        match delta.type:
            case DeltaType.BOOKMARK:
                self._store.bookmark(delta.resource_version)
            case DeltaType.SYNC_ALL:
                changes += [Updated(obj, obj, is_resync=True) for obj in self._store.list()]
            case DeltaType.REPLACED_ALL:
                replacement = await self._store.replace_in_steps(
                    delta.objects or (), delta.resource_version, on_error=self._report
                )
                await self._compare(replacement, initial=initial, changes=changes)
            case _:
                raise ValueError(f"a {delta.type} delta among those for all objects")

    async def _compare(
        self, replacement: Replacement, *, initial: bool, changes: list[Change]
    ) -> None:
        old, new = replacement.old, replacement.new
        came: list[Change] = []
        yielded = self._clock.now()
        for key, gone in old.items():
            now = new.get(key)
            if now is None or now.meta.uid != gone.meta.uid:
                changes.append(Deleted(DeletedFinalStateUnknown(key, gone)))
        for step, (key, obj) in enumerate(new.items()):
            was = old.get(key)
            if was is not None and was.meta.uid != obj.meta.uid:
                was = None  # its deletion was told above
            if was is not obj:
                came += self._changes(was, obj, initial=initial)
            if not step % _STEPS and self._clock.now() - yielded >= YIELD_SECONDS:
                await self._clock.sleep(0)
                yielded = self._clock.now()
        changes += came

    def _report(self, error: IndexFunctionError) -> None:
        self._on_error(Failure(error=error, doing="index", name=self._name, key=error.key))


def _is_same(old: Object, new: Object) -> bool:
    version = new.meta.resource_version
    return version != "" and old.meta.resource_version == version and old.meta.uid == new.meta.uid


def _gone(key: str, old: Object, item: Item | None) -> Item:
    """Return what to tell of a deletion: a state of the very object that was stored."""
    last = last_state(item) if item is not None else None
    if item is not None and last is not None and last.meta.uid == old.meta.uid:
        return item
    return DeletedFinalStateUnknown(key, old)
