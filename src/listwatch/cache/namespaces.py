"""One resource in several namespaces, for clients that may not read all namespaces."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Generic, TypeAlias

from listwatch.cache.deltas import Item
from listwatch.cache.handlers import DecodingEventHandler, ResourceEventHandler
from listwatch.cache.lister import Lister
from listwatch.cache.processor import Listener
from listwatch.cache.shared_informer import SharedInformer
from listwatch.cache.typed import T
from listwatch.errors import NotFoundError
from listwatch.objects import Object
from listwatch.selector import LabelSelector

# `list` is a method below, so annotations can't use it.
_List: TypeAlias = list[T]


class NamespacesLister(Lister[T]):
    """Reads the caches of several namespaces as one, from any thread, like `Lister`.

    Args:
        listers: by namespace; "" for cluster-scoped objects.
    """

    def __init__(self, listers: Mapping[str, Lister[T]]) -> None:
        # Without an indexer of its own: every method is overridden.
        self._listers = dict(listers)

    def namespaced(self, namespace: str) -> Lister[T]:
        """Return the lister of one namespace.

        Raises:
            NotFoundError: the namespace is not one of them.
        """
        try:
            return self._listers[namespace]
        except KeyError:
            names = ", ".join(sorted(filter(None, self._listers)))
            raise NotFoundError(
                f"namespace {namespace!r} is not watched; watched are {names}"
            ) from None

    def get(self, name: str, namespace: str | None = None) -> T:
        """Return an object.

        Args:
            name: its name.
            namespace: its namespace; none for cluster-scoped objects.

        Raises:
            NotFoundError: the caches have no object of this name.
        """
        return self.namespaced(namespace or "").get(name, namespace)

    def find(self, name: str, namespace: str | None = None) -> T | None:
        """Return an object, or None; otherwise like `get`."""
        lister = self._listers.get(namespace or "")
        return None if lister is None else lister.find(name, namespace)

    def list(self, selector: LabelSelector | str = "") -> _List[T]:
        """Return the objects whose labels match a selector."""
        return [obj for lister in self._listers.values() for obj in lister.list(selector)]

    def by_index(self, index: str, value: str) -> _List[T]:
        """Return the objects that have this value in an index."""
        return [obj for lister in self._listers.values() for obj in lister.by_index(index, value)]

    def by_owner(self, uid: str) -> _List[T]:
        """Return the objects that an object owns."""
        return [obj for lister in self._listers.values() for obj in lister.by_owner(uid)]

    def __len__(self) -> int:
        return sum(len(lister) for lister in self._listers.values())


class NamespacesListener:
    """One handler in several namespaces; see `Listener`."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = tuple(listeners)

    @property
    def has_synced(self) -> bool:
        """Whether the handler has received all initial objects."""
        return all(listener.has_synced for listener in self.listeners)

    async def wait_for_sync(self) -> None:
        """Wait until the handler has received all initial objects.

        Raises:
            StoppedError: it was removed, or an informer ended, before that.
        """
        for listener in self.listeners:
            await listener.wait_for_sync()

    def remove(self) -> None:
        """Deliver nothing more."""
        for listener in self.listeners:
            listener.remove()

    async def aclose(self) -> None:
        """Remove the handler, and return when its running calls are over; see `Listener.aclose`."""
        self.remove()
        for listener in self.listeners:
            await listener.aclose()


class _Namespaced:
    """Passes on only objects in a namespace: the first watch tells of the others."""

    def __init__(self, handler: ResourceEventHandler) -> None:
        self._handler = handler

    def on_add(self, obj: Object, is_in_initial_list: bool) -> Awaitable[None] | None:  # noqa: FBT001 - required by the protocol
        return self._handler.on_add(obj, is_in_initial_list) if obj.namespace else None

    def on_update(self, old: Object, new: Object) -> Awaitable[None] | None:
        return self._handler.on_update(old, new) if new.namespace else None

    def on_delete(self, obj: Item) -> Awaitable[None] | None:
        return self._handler.on_delete(obj) if "/" in obj.key else None


class NamespacesInformer(Generic[T]):
    """Shared informers of one resource, one per namespace, used as one.

    Each namespace has its own list and watch, because the API has no request for several. There is
    no order between namespaces. A cluster-scoped resource is watched as a whole, once for each
    namespace; its objects are those of the first watch. `InformerFactory.namespaces` creates and
    runs it; for one event loop.

    Args:
        informers: by namespace.
    """

    def __init__(self, informers: Mapping[str, SharedInformer[T]]) -> None:
        self.informers = dict(informers)
        listers = {
            namespace: informer.lister.namespaced(namespace)
            for namespace, informer in self.informers.items()
        }
        self._first = next(iter(self.informers.values()), None)
        if self._first is not None:
            listers[""] = self._first.lister.namespaced("")
        #: Reads all caches, from any thread.
        self.lister = NamespacesLister(listers)

    def add_handler(
        self,
        handler: ResourceEventHandler[T],
        *,
        name: str = "",
        resync_period: float | None = None,
        max_pending: int | None = None,
    ) -> NamespacesListener:
        """Add a handler; see `SharedInformer.add_handler`.

        Changes of one namespace may be delivered while a call for another is waiting.
        """
        name = name or type(handler).__name__
        listeners = []
        for informer in self.informers.values():
            told: Any = handler
            teller: SharedInformer[Any] = informer
            if informer is not self._first:
                if informer.decode is not None:
                    told = DecodingEventHandler(informer.decode, handler)
                told, teller = _Namespaced(told), informer.view(None)
            listeners.append(
                teller.add_handler(
                    told, name=name, resync_period=resync_period, max_pending=max_pending
                )
            )
        return NamespacesListener(listeners)

    @property
    def has_synced(self) -> bool:
        """Whether all caches have synced."""
        return all(informer.has_synced for informer in self.informers.values())

    async def wait_for_sync(self) -> None:
        """Wait until all caches have synced.

        Raises:
            ExceptionGroup: of what `SharedInformer.wait_for_sync` raises.
        """
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers.values():
                tasks.create_task(informer.wait_for_sync())
