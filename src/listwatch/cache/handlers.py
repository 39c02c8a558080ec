"""Who is told of changes, and how it is told."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from listwatch.cache.deltas import Item
from listwatch.objects import DeletedFinalStateUnknown, Object


class Added(msgspec.Struct, frozen=True, gc=False):
    """An object has come to be, or is there at the beginning."""

    obj: Object
    is_in_initial_list: bool = False

    @property
    def key(self) -> str:
        """The object's key."""
        return self.obj.key


class Updated(msgspec.Struct, frozen=True, gc=False):
    """An object has changed; or, for a resync, has not, and both states are the same."""

    old: Object
    new: Object
    is_resync: bool = False

    @property
    def key(self) -> str:
        """The object's key."""
        return self.new.key


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """An object is gone: its last state, or a tombstone with the last state known."""

    obj: Item

    @property
    def key(self) -> str:
        """The object's key."""
        return self.obj.key


#: What a handler is told. For each key, a handler is told a consistent story: an addition, any
#: number of updates, a deletion, and so on; an update's old state is the new one that was told
#: last; and all that is told between an addition and a deletion has one uid.
Change: TypeAlias = Added | Updated | Deleted


@runtime_checkable
class ResourceEventHandler(Protocol):
    """Is told of changes, in the event loop of the informer.

    Methods may be plain functions, which must not block, or coroutine functions, which are
    awaited before the next call. What they raise is reported and counted, and ends nothing.
    """

    def on_add(self, obj: Object, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - the field's signature, called by position
        """Take an object that is new, or was there when the informer started."""
        ...

    def on_update(self, old: Object, new: Object) -> Awaitable[None] | None:
        """Take an object's change. Both states are the same in a resync."""
        ...

    def on_delete(self, obj: Item) -> Awaitable[None] | None:
        """Take the end of an object.

        A tombstone comes for a deletion that was not seen itself: what it has is the last state
        known, which may not be the last that there was.
        """
        ...


class HandlerFuncs:
    """A handler made of functions, each of which may be left out."""

    def __init__(
        self,
        on_add: Callable[[Object, bool], Awaitable[None] | None] | None = None,
        on_update: Callable[[Object, Object], Awaitable[None] | None] | None = None,
        on_delete: Callable[[Item], Awaitable[None] | None] | None = None,
    ) -> None:
        self._on_add = on_add
        self._on_update = on_update
        self._on_delete = on_delete

    def on_add(self, obj: Object, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - as in the protocol
        """Call the function for additions, if there is one."""
        return None if self._on_add is None else self._on_add(obj, is_in_initial_list)

    def on_update(self, old: Object, new: Object) -> Awaitable[None] | None:
        """Call the function for updates, if there is one."""
        return None if self._on_update is None else self._on_update(old, new)

    def on_delete(self, obj: Item) -> Awaitable[None] | None:
        """Call the function for deletions, if there is one."""
        return None if self._on_delete is None else self._on_delete(obj)


class FilteringEventHandler:
    """Tells a handler of those objects only that pass a filter.

    An object that comes to pass it is told as an addition, and one that ceases to as a deletion
    of its old state. Which ones were told is remembered, so that the handler's story of a key is
    consistent whatever the filter looks at (client-go asks the filter for the old state again,
    and of a last state that nobody was told of).

    Args:
        passes: the filter. What it raises is reported; the change is not told then.
        handler: the handler.
    """

    def __init__(self, passes: Callable[[Object], bool], handler: ResourceEventHandler) -> None:
        self._passes = passes
        self._handler = handler
        self._told: set[str] = set()

    def on_add(self, obj: Object, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - as in the protocol
        """Tell of the object if it passes."""
        if not self._passes(obj):
            return None
        self._told.add(obj.key)
        return self._handler.on_add(obj, is_in_initial_list)

    def on_update(self, old: Object, new: Object) -> Awaitable[None] | None:
        """Tell of an update, an addition or a deletion."""
        passes = self._passes(new)
        if new.key in self._told:
            if passes:
                return self._handler.on_update(old, new)
            self._told.discard(new.key)
            return self._handler.on_delete(old)
        if passes:
            self._told.add(new.key)
            return self._handler.on_add(new, False)
        return None

    def on_delete(self, obj: Item) -> Awaitable[None] | None:
        """Tell of the end of an object that was told of."""
        if obj.key not in self._told:
            return None
        self._told.discard(obj.key)
        return self._handler.on_delete(obj)


def last_state(item: Item) -> Object | None:
    """Return the object, or the last state that a tombstone knows."""
    return item.obj if isinstance(item, DeletedFinalStateUnknown) else item
