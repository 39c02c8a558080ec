"""Event handlers, and the changes they receive."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import msgspec

from listwatch.cache.deltas import Item
from listwatch.cache.typed import Into, T, T_contra
from listwatch.objects import DeletedFinalStateUnknown, Object, ObjectDecodeError

U = TypeVar("U")


class Added(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object was added, or was in the initial list.

    Attributes:
        obj: the object.
        is_in_initial_list: whether it was in the initial list.
        source: the `Object` that `obj` was decoded from; None if `obj` is an `Object`.
    """

    obj: T
    is_in_initial_list: bool = False
    source: Object | None = None

    @property
    def key(self) -> str:
        """The object's key."""
        it: Any = self.obj if self.source is None else self.source
        key: str = it.key
        return key


class Updated(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object was updated. In a resync, both states are the same.

    Attributes:
        old: the last delivered state.
        new: the current state.
        is_resync: whether this is a resync, without a change.
        source: the `Object` that `new` was decoded from; None if `new` is an `Object`.
    """

    old: T
    new: T
    is_resync: bool = False
    source: Object | None = None

    @property
    def key(self) -> str:
        """The object's key."""
        it: Any = self.new if self.source is None else self.source
        key: str = it.key
        return key


class Deleted(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object was deleted.

    Attributes:
        obj: its last state, or a tombstone with the last known state.
        source: the `Object` that `obj` was decoded from; None for an `Object` or a tombstone.
    """

    obj: T | DeletedFinalStateUnknown
    source: Object | None = None

    @property
    def key(self) -> str:
        """The object's key."""
        it: Any = self.obj if self.source is None else self.source
        key: str = it.key
        return key


#: What a handler receives. For each key the changes are consistent: an addition, any number of
#: updates, a deletion, and so on. An update's old state is the new state delivered last, and all
#: changes from an addition to its deletion have one uid.
Change: TypeAlias = Added[T] | Updated[T] | Deleted[T]


@runtime_checkable
class ResourceEventHandler(Protocol[T_contra]):
    """Receives changes in the informer's event loop and type.

    Methods may be plain functions, which must not block, or coroutine functions, which are
    awaited before the next call. Their exceptions are reported and counted, and stop nothing.
    """

    def on_add(self, obj: T_contra, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - client-go's signature, called by position
        """Handle an object that is new or was in the initial list."""
        ...

    def on_update(self, old: T_contra, new: T_contra) -> Awaitable[None] | None:
        """Handle an update. Both states are the same in a resync."""
        ...

    def on_delete(self, obj: T_contra | DeletedFinalStateUnknown) -> Awaitable[None] | None:
        """Handle a deletion.

        A tombstone stands for a deletion that the watch missed; it has the last known state, which
        may be outdated. It also stands for an object whose last state does not fit the informer's
        type. Its `obj` is always an `Object`.
        """
        ...


class HandlerFuncs(Generic[T]):
    """A handler built from functions, each of them optional."""

    def __init__(
        self,
        on_add: Callable[[T, bool], Awaitable[None] | None] | None = None,
        on_update: Callable[[T, T], Awaitable[None] | None] | None = None,
        on_delete: Callable[[T | DeletedFinalStateUnknown], Awaitable[None] | None] | None = None,
    ) -> None:
        self._on_add = on_add
        self._on_update = on_update
        self._on_delete = on_delete

    def on_add(self, obj: T, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - required by the protocol
        """Call the function for additions, if there is one."""
        return None if self._on_add is None else self._on_add(obj, is_in_initial_list)

    def on_update(self, old: T, new: T) -> Awaitable[None] | None:
        """Call the function for updates, if there is one."""
        return None if self._on_update is None else self._on_update(old, new)

    def on_delete(self, obj: T | DeletedFinalStateUnknown) -> Awaitable[None] | None:
        """Call the function for deletions, if there is one."""
        return None if self._on_delete is None else self._on_delete(obj)


class FilteringEventHandler:
    """Passes a handler only the objects that match a filter.

    An object that starts to match is an addition; one that stops matching is a deletion of its
    old state. Delivered objects are remembered, so each key's changes are consistent whatever the
    filter examines (client-go calls the filter again for the old state, and for a last state that
    was never delivered).

    Args:
        passes: the filter. If it raises, the error is reported and the change is not delivered.
        handler: the handler.
    """

    def __init__(self, passes: Callable[[Object], bool], handler: ResourceEventHandler) -> None:
        self._passes = passes
        self._handler = handler
        self._delivered: set[str] = set()

    def on_add(self, obj: Object, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - required by the protocol
        """Deliver an addition if the object passes."""
        if not self._passes(obj):
            return None
        self._delivered.add(obj.key)
        return self._handler.on_add(obj, is_in_initial_list)

    def on_update(self, old: Object, new: Object) -> Awaitable[None] | None:
        """Deliver an update, an addition or a deletion."""
        passes = self._passes(new)
        if new.key in self._delivered:
            if passes:
                return self._handler.on_update(old, new)
            self._delivered.discard(new.key)
            return self._handler.on_delete(old)
        if passes:
            self._delivered.add(new.key)
            return self._handler.on_add(new, False)
        return None

    def on_delete(self, obj: Item) -> Awaitable[None] | None:
        """Deliver the deletion of an object that was delivered."""
        if obj.key not in self._delivered:
            return None
        self._delivered.discard(obj.key)
        return self._handler.on_delete(obj)


class ChangeDecoder(Generic[T]):
    """Converts changes of `Object`s to changes of another type.

    A state that does not fit the type can't be delivered. The changes of each key are consistent
    all the same: the first state that fits is an addition, the old state of an update is the one
    delivered last, and a delivered object is reported as deleted whatever its last state is.

    For one thread at a time, and one handler: it must receive every change of that handler.

    Args:
        into: the type; None for `Object` itself.
    """

    def __init__(self, into: Into[T] | None) -> None:
        self._into: Any = into
        # Keys whose current state does not fit, with the last delivered state, if any.
        self._misfits: dict[str, Object | None] = {}

    def decode(self, change: Change) -> Change[T] | None:
        """Return the decoded change; None for the deletion of an object that was never delivered.

        Raises:
            ObjectDecodeError: the new state does not fit the type, so nothing can be delivered.
        """
        if self._into is None:
            same: Any = change
            return cast("Change[T]", same)
        if isinstance(change, Deleted):
            return self._deleted(change.obj)
        key = change.key
        state, delivered = (
            (change.obj, None) if isinstance(change, Added) else (change.new, change.old)
        )
        delivered = self._misfits.get(key, delivered)
        try:
            new = state.decode(self._into)
            old = new if delivered is None or delivered is state else delivered.decode(self._into)
        except BaseException:
            self._misfits[key] = delivered
            raise
        self._misfits.pop(key, None)
        if delivered is None:
            initial = isinstance(change, Added) and change.is_in_initial_list
            return Added(new, initial, state)
        return Updated(old, new, isinstance(change, Updated) and change.is_resync, state)

    def decode_all(
        self, changes: Iterable[Change], on_misfit: Callable[[str, ObjectDecodeError], None]
    ) -> Iterator[Change[T]]:
        """Iterate over the decoded changes; call `on_misfit` with key and error of the others."""
        for change in changes:
            try:
                decoded = self.decode(change)
            except ObjectDecodeError as error:
                on_misfit(change.key, error)
            else:
                if decoded is not None:
                    yield decoded

    def _deleted(self, item: Item) -> Deleted[T] | None:
        if self._misfits.pop(item.key, item) is None:
            return None
        if isinstance(item, DeletedFinalStateUnknown):
            return Deleted(item)
        try:
            return Deleted(item.decode(self._into), item)
        except ObjectDecodeError:
            return Deleted(DeletedFinalStateUnknown(item.key, item))


class DecodingEventHandler:
    """Calls a handler with objects of the type that it wants; see `ChangeDecoder`.

    Raises the `ObjectDecodeError` of a state that can't be delivered, so that it is reported and
    counted as the handler's failure.

    Args:
        into: the type.
        handler: the handler.
    """

    def __init__(self, into: Into[U], handler: ResourceEventHandler[U]) -> None:
        self._decoder: ChangeDecoder[Any] = ChangeDecoder(into)
        self._handler: ResourceEventHandler[Any] = handler

    def on_add(self, obj: Object, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - required by the protocol
        """Deliver an addition."""
        return self._deliver(Added(obj, is_in_initial_list))

    def on_update(self, old: Object, new: Object) -> Awaitable[None] | None:
        """Deliver an update, or an addition if no earlier state fitted."""
        return self._deliver(Updated(old, new))

    def on_delete(self, obj: Item) -> Awaitable[None] | None:
        """Deliver the deletion of an object that was delivered."""
        return self._deliver(Deleted(obj))

    def _deliver(self, change: Change) -> Awaitable[None] | None:
        decoded = self._decoder.decode(change)
        return None if decoded is None else notify(self._handler, decoded)


def notify(handler: ResourceEventHandler[T], change: Change[T]) -> Awaitable[None] | None:
    """Call the handler's method for a change."""
    if isinstance(change, Updated):
        return handler.on_update(change.old, change.new)
    if isinstance(change, Added):
        return handler.on_add(change.obj, change.is_in_initial_list)
    return handler.on_delete(change.obj)


def last_state(item: Item) -> Object | None:
    """Return the object, or the last state in a tombstone."""
    return item.obj if isinstance(item, DeletedFinalStateUnknown) else item
