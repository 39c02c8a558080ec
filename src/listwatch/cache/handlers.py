"""Who is told of changes, and how it is told."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from listwatch.cache.deltas import Item
from listwatch.cache.failures import Failure, OnError
from listwatch.clock import Clock
from listwatch.objects import DeletedFinalStateUnknown, Object

#: How long a loop over many objects may hold the event loop, in seconds.
YIELD_SECONDS = 0.005


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


class HandlerStatistics(msgspec.Struct, frozen=True, gc=False):
    """What a handler was told.

    Attributes:
        delivered: changes told, those on which it failed included.
        failed: changes on which it raised.
        longest_seconds: how long its longest run took.
    """

    delivered: int
    failed: int
    longest_seconds: float


class HandlerCaller:
    """Tells one handler of changes, one after the other, and survives what it raises.

    For one task at a time.

    Args:
        handler: the handler.
        on_error: is told what the handler raised.
        clock: time.
        name: of the informer, for `on_error`.
    """

    def __init__(
        self, handler: ResourceEventHandler, *, on_error: OnError, clock: Clock, name: str = ""
    ) -> None:
        self._handler = handler
        self._on_error = on_error
        self._clock = clock
        self._name = name
        self._delivered = self._failed = 0
        self._longest = 0.0

    def statistics(self) -> HandlerStatistics:
        """Return what was told until now."""
        return HandlerStatistics(self._delivered, self._failed, self._longest)

    async def tell(self, changes: Iterable[Change]) -> None:
        """Tell of all the changes, in order, letting other tasks run every 5 ms."""
        now = self._clock.now
        yielded = began = now()
        for change in changes:
            try:
                if (waiting := self._call(change)) is not None and inspect.isawaitable(waiting):
                    await waiting
            except Exception as error:  # noqa: BLE001 - reported; the others must hear the rest
                self._failed += 1
                doing = f"handler of {type(change).__name__.lower()}"
                self._on_error(Failure(error=error, doing=doing, name=self._name, key=change.key))
            self._delivered += 1
            ended = now()
            self._longest = max(self._longest, ended - began)
            if ended - yielded >= YIELD_SECONDS:
                await self._clock.sleep(0)
                yielded = ended = now()
            began = ended

    def _call(self, change: Change) -> Awaitable[None] | None:
        if isinstance(change, Updated):
            return self._handler.on_update(change.old, change.new)
        if isinstance(change, Added):
            return self._handler.on_add(change.obj, change.is_in_initial_list)
        return self._handler.on_delete(change.obj)


def last_state(item: Item) -> Object | None:
    """Return the object, or the last state that a tombstone knows."""
    return item.obj if isinstance(item, DeletedFinalStateUnknown) else item
