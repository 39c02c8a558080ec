"""Listers and handlers that speak in types of one's own instead of `Object`."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, overload

from listwatch.cache.deltas import Item
from listwatch.cache.handlers import last_state
from listwatch.cache.lister import Lister
from listwatch.cache.processor import Listener
from listwatch.cache.shared_informer import SharedInformer
from listwatch.objects import Object
from listwatch.selector import LabelSelector

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

#: What `Object.decode` takes: a msgspec Struct, dataclass, attrs class, TypedDict or pydantic
#: model, or a callable that takes a fresh dict, such as a model's `from_dict`.
Into: TypeAlias = type[T] | Callable[[dict[str, Any]], T]


class TypedLister(Generic[T]):
    """Reads a cache, from any thread, and decodes what it returns afresh each time.

    So whoever gets an object may change it. Every method that returns objects may raise
    `ObjectDecodeError` for one that does not fit the type.

    Args:
        lister: what reads the cache.
        into: the type.
    """

    @overload
    def __init__(self, lister: Lister, into: type[T]) -> None: ...
    @overload
    def __init__(self, lister: Lister, into: Callable[[dict[str, Any]], T]) -> None: ...
    def __init__(self, lister: Lister, into: Any) -> None:
        self._lister = lister
        self._into = into

    def _decode(self, obj: Object) -> T:
        value: T = obj.decode(self._into)
        return value

    def namespaced(self, namespace: str) -> "TypedLister[T]":
        """Return a lister of one namespace."""
        return TypedLister[T](self._lister.namespaced(namespace), self._into)

    def get(self, name: str, namespace: str | None = None) -> T:
        """Return an object; see `Lister.get`.

        Raises:
            NotFoundError: the cache has none of this name.
        """
        return self._decode(self._lister.get(name, namespace))

    def find(self, name: str, namespace: str | None = None) -> T | None:
        """Return an object, or None; see `Lister.find`."""
        obj = self._lister.find(name, namespace)
        return None if obj is None else self._decode(obj)

    def list(self, selector: LabelSelector | str = "") -> "_List[T]":
        """Return the objects whose labels match a selector; see `Lister.list`."""
        return [self._decode(obj) for obj in self._lister.list(selector)]

    def by_index(self, index: str, value: str) -> "_List[T]":
        """Return the objects that have this value in an index; see `Lister.by_index`."""
        return [self._decode(obj) for obj in self._lister.by_index(index, value)]

    def by_owner(self, uid: str) -> "_List[T]":
        """Return the objects that an object owns."""
        return [self._decode(obj) for obj in self._lister.by_owner(uid)]


# `list` is a method above, so that annotations can't say it.
_List: TypeAlias = list[T]


class TypedEventHandler(Protocol[T_contra]):
    """A handler as `ResourceEventHandler`, of a type of one's own."""

    def on_add(self, obj: T_contra, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - the field's signature, called by position
        """Take an object that is new, or was there when the informer started."""
        ...

    def on_update(self, old: T_contra, new: T_contra) -> Awaitable[None] | None:
        """Take an object's change."""
        ...

    def on_delete(self, obj: T_contra) -> Awaitable[None] | None:
        """Take the end of an object: its last state, or the last that is known."""
        ...


class TypedHandler(Generic[T]):
    """Decodes what it is told and tells a typed handler: a `ResourceEventHandler`.

    What does not fit the type is reported and counted as a failure of the handler, which is not
    told of it.

    Args:
        into: the type.
        handler: whom to tell.
    """

    @overload
    def __init__(self, into: type[T], handler: TypedEventHandler[T]) -> None: ...
    @overload
    def __init__(
        self, into: Callable[[dict[str, Any]], T], handler: TypedEventHandler[T]
    ) -> None: ...
    def __init__(self, into: Any, handler: TypedEventHandler[T]) -> None:
        self._into = into
        self._handler = handler

    def on_add(self, obj: Object, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - as in the protocol
        """Tell of an addition."""
        return self._handler.on_add(obj.decode(self._into), is_in_initial_list)

    def on_update(self, old: Object, new: Object) -> Awaitable[None] | None:
        """Tell of an update."""
        return self._handler.on_update(old.decode(self._into), new.decode(self._into))

    def on_delete(self, obj: Item) -> Awaitable[None] | None:
        """Tell of a deletion; of a tombstone without a state there is nothing to tell."""
        last = last_state(obj)
        return None if last is None else self._handler.on_delete(last.decode(self._into))


class TypedInformer(Generic[T]):
    """A shared informer whose lister and handlers speak in a type of one's own.

    The cache holds bytes as ever, and decodes for whoever asks: several of these, of different
    types, may share one informer. For its event loop; the lister may be used from any thread.

    Args:
        informer: what keeps the cache; it is started and asked for its state as always.
        decode: the type.
    """

    @overload
    def __init__(self, informer: SharedInformer, decode: type[T]) -> None: ...
    @overload
    def __init__(self, informer: SharedInformer, decode: Callable[[dict[str, Any]], T]) -> None: ...
    def __init__(self, informer: SharedInformer, decode: Any) -> None:
        self.informer = informer
        self._into = decode
        #: Reads the cache, from any thread.
        self.lister: TypedLister[T] = TypedLister(informer.lister, decode)

    def add_handler(
        self,
        handler: TypedEventHandler[T],
        *,
        name: str = "",
        resync_period: float | None = None,
        threaded: bool = False,
        max_pending: int | None = None,
    ) -> Listener:
        """Add a handler; see `SharedInformer.add_handler` and `TypedHandler`.

        Raises:
            StoppedError: the informer has ended.
            ValueError: a resync period under a second, or a bound under one.
        """
        return self.informer.add_handler(
            TypedHandler[T](self._into, handler),
            name=name or type(handler).__name__,
            resync_period=resync_period,
            threaded=threaded,
            max_pending=max_pending,
        )
