"""The caches of a manager: one informer for each resource, however many reconcilers want it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from listwatch.cache.deltas import Item
from listwatch.cache.failures import OnError
from listwatch.cache.handlers import ResourceEventHandler
from listwatch.cache.informer import Informer, InformerStatistics
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.store import Indexer
from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects import Object

#: The indices that every cache has: by namespace, and by the uid of an owner.
NAMESPACE_INDEX = "namespace"
OWNER_INDEX = "owner"

#: A cache of which nothing was heard for so many seconds is stale. A healthy quiet watch gets
#: bookmarks about once a minute.
STALE_SECONDS = 200.0


class NotSyncedError(ListWatchError):
    """A cache did not get its first list in time."""


class Selection(NamedTuple):
    """What a cache holds."""

    resource: str
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""

    def __str__(self) -> str:
        parts = [self.resource]
        if self.namespace:
            parts.append(f"in {self.namespace}")
        parts += [selector for selector in (self.label_selector, self.field_selector) if selector]
        return " ".join(parts)


class MakesListWatch(Protocol):
    """What a cache is fed from; a `Client` is one."""

    def list_watch(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ListerWatcher:
        """Return the list and watch of a resource."""
        ...


class CacheHealth(msgspec.Struct, frozen=True):
    """How a cache is.

    Attributes:
        name: the resource and its selection.
        ready: it can be relied on.
        problem: why not, in words; empty if it is ready.
        since: for how many seconds it has been so, by what is known.
    """

    name: str
    ready: bool
    problem: str
    since: float


class Cache:
    """One informer and those who are told of its changes."""

    def __init__(self, selection: Selection, clock: Clock, on_error: OnError | None) -> None:
        self.selection = selection
        self._clock = clock
        self._on_error = on_error
        self._handlers: list[ResourceEventHandler] = []
        self._fields: type[msgspec.Struct] | None = None
        self._informer: Informer | None = None
        self._started = clock.now()

    @property
    def informer(self) -> Informer:
        """The informer.

        Raises:
            RuntimeError: the manager has not started yet.
        """
        if self._informer is None:
            raise RuntimeError(
                f"the cache of {self.selection} is there once the manager has started"
            )
        return self._informer

    @property
    def indexer(self) -> Indexer:
        """The objects; any thread may read them."""
        return self.informer.indexer

    def add_handler(self, handler: ResourceEventHandler) -> None:
        """Tell this handler too; before the start only."""
        if self._informer is not None:
            raise RuntimeError(f"the cache of {self.selection} has started: add handlers before")
        self._handlers.append(handler)

    def want_fields(self, fields: type[msgspec.Struct] | None) -> None:
        """Decode these fields with each object.

        Raises:
            ValueError: somebody else wants others; one cache has one kind.
        """
        if fields is None:
            return
        if self._fields not in {None, fields}:
            raise ValueError(
                f"two reconcilers want different fields= of {self.selection}: use one Struct"
            )
        self._fields = fields

    def open(self, source: MakesListWatch) -> None:
        """Make the informer."""
        self._informer = Informer(
            source.list_watch(
                self.selection.resource,
                self.selection.namespace,
                label_selector=self.selection.label_selector,
                field_selector=self.selection.field_selector,
            ),
            _Everyone(self._handlers),
            indexers={
                NAMESPACE_INDEX: lambda obj: [obj.namespace],
                OWNER_INDEX: lambda obj: [owner.uid for owner in obj.meta.owner_references],
            },
            fields=self._fields,
            name=str(self.selection),
            clock=self._clock,
            on_error=self._on_error,
        )
        self._started = self._clock.now()

    async def run(self) -> None:
        """Keep the cache until cancelled."""
        await self.informer.run()

    async def wait_for_sync(self, seconds: float) -> None:
        """Return when the cache has its first list and all handlers know it.

        Raises:
            NotSyncedError: that took longer.
        """
        try:
            async with self._clock.timeout(seconds):
                await self.informer.wait_for_sync()
        except TimeoutError:
            raise NotSyncedError(
                f"the cache of {self.selection} has not synced within {seconds:g} s: "
                f"{self.health().problem}"
            ) from None

    def health(self) -> CacheHealth:
        """Return how the cache is now."""
        name, now = str(self.selection), self._clock.now()
        if self._informer is None:
            return CacheHealth(name, False, "not started", now - self._started)
        reflector = self._informer.reflector.statistics()
        age = reflector.last_frame_age
        failing = reflector.failures > 0 and reflector.last_error
        if not self._informer.has_synced:
            words = f"not synced ({reflector.state})"
            words += f": {reflector.last_error}" if reflector.last_error else ""
            return CacheHealth(name, False, words, now - self._started)
        if failing:
            words = f"failing: {reflector.last_error}"
            return CacheHealth(name, False, words, age or 0.0)
        if age is not None and age > STALE_SECONDS:
            return CacheHealth(name, False, "stale: nothing was heard", age)
        return CacheHealth(name, True, "", 0.0)

    def statistics(self) -> InformerStatistics | None:
        """Return the informer's figures; None before the start."""
        return None if self._informer is None else self._informer.statistics()


class Caches:
    """All caches of a manager.

    Args:
        clock: time.
        on_error: is told of every failure of an informer.
    """

    def __init__(self, clock: Clock, on_error: OnError | None = None) -> None:
        self._clock = clock
        self._on_error = on_error
        self._caches: dict[Selection, Cache] = {}

    def of(self, selection: Selection) -> Cache:
        """Return the cache of a selection; it is made at the first question."""
        cache = self._caches.get(selection)
        if cache is None:
            cache = self._caches[selection] = Cache(selection, self._clock, self._on_error)
        return cache

    def __iter__(self) -> Iterator[Cache]:
        return iter(self._caches.values())

    def open(self, source: MakesListWatch) -> None:
        """Make all informers; none can be added from now on."""
        for cache in self._caches.values():
            cache.open(source)

    async def run(self) -> None:
        """Keep all caches until cancelled."""
        async with asyncio.TaskGroup() as group:
            for cache in self._caches.values():
                group.create_task(cache.run(), name=f"cache of {cache.selection}")


class _Everyone:
    """Tells all handlers of each change; what one raises does not keep it from the others."""

    def __init__(self, handlers: list[ResourceEventHandler]) -> None:
        self._handlers = handlers

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: FBT001 - the protocol's signature
        """Tell of an addition."""
        self._tell(lambda handler: handler.on_add(obj, is_in_initial_list))

    def on_update(self, old: Object, new: Object) -> None:
        """Tell of an update."""
        self._tell(lambda handler: handler.on_update(old, new))

    def on_delete(self, obj: Item) -> None:
        """Tell of a deletion."""
        self._tell(lambda handler: handler.on_delete(obj))

    def _tell(self, call: Callable[[ResourceEventHandler], object]) -> None:
        errors: list[Exception] = []
        for handler in self._handlers:
            try:
                call(handler)
            except Exception as error:  # noqa: BLE001 - raised below, once the others know
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("several reconcilers failed on one change", errors)
