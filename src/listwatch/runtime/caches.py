"""The caches of a manager: one informer per resource, shared by all reconcilers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from listwatch.cache.factory import InformerFactory, ListWatchSource, Selection
from listwatch.cache.failures import Failure, LogFailures, OnError
from listwatch.cache.handlers import ResourceEventHandler
from listwatch.cache.shared_cache import NotSyncedError, SharedInformerStatistics
from listwatch.cache.shared_informer import SharedInformer
from listwatch.cache.store import Indexer
from listwatch.clock import Clock
from listwatch.objects import Object, ObjectDecoder

if TYPE_CHECKING:
    from listwatch.cache.processor import Listener

#: A cache without any data from the server for this many seconds is stale. A healthy quiet watch
#: gets a bookmark about once a minute.
STALE_SECONDS = 200.0


class CacheHealth(msgspec.Struct, frozen=True):
    """The health of a cache.

    Attributes:
        name: the resource and its selection.
        ready: the cache is reliable.
        problem: the reason why not; empty if it is ready.
        since: seconds for which this state has lasted, as far as known.
    """

    name: str
    ready: bool
    problem: str
    since: float


class Cache:
    """One informer, and the handlers of its changes.

    Args:
        selection: the objects it holds, without `fields`.
        clock: the time.
    """

    def __init__(self, selection: Selection, clock: Clock) -> None:
        self.selection = selection
        #: Describes what it holds, for messages.
        self.name = str(selection)
        self._clock = clock
        self._handlers: list[tuple[str, ResourceEventHandler]] = []
        self._listeners: list[Listener] = []
        self._fields: type[msgspec.Struct] | None = None
        self._decoder: ObjectDecoder | None = None
        self._informer: SharedInformer | None = None
        self._started = clock.now()
        self._failing_since: float | None = None

    @property
    def informer(self) -> SharedInformer:
        """The informer.

        Raises:
            RuntimeError: the manager has not started yet.
        """
        if self._informer is None:
            raise RuntimeError(
                f"the cache of {self.selection} is available once the manager has started"
            )
        return self._informer

    @property
    def indexer(self) -> Indexer:
        """The objects; any thread may read them."""
        return self.informer.indexer

    @property
    def version(self) -> str:
        """The resource version up to which it is; empty before the first list."""
        informer = self._informer
        return "" if informer is None else informer.indexer.last_store_sync_resource_version

    def holds(self, key: str) -> bool:
        """Return whether an object of this key is cached; False before the start."""
        return self._informer is not None and self.indexer.get_by_key(key) is not None

    def as_cached(self, obj: Object) -> Object:
        """Return an object with the fields that this cache decodes with each of its objects."""
        if self._fields is None:
            return obj
        if self._decoder is None:
            self._decoder = ObjectDecoder(fields=self._fields)
        return self._decoder(obj.json(), obj.kind, obj.api_version)

    def add_handler(self, handler: ResourceEventHandler, name: str) -> None:
        """Add a handler; after the start it first gets the current objects."""
        if self._informer is None:
            self._handlers.append((name, handler))
        else:
            self._listeners.append(self._informer.add_handler(handler, name=name))

    def want_fields(self, fields: type[msgspec.Struct] | None) -> None:
        """Decode these fields with each object.

        Raises:
            ValueError: another user of the cache needs different fields, or the cache has started
                without these; one cache has one type.
        """
        if fields is None:
            return
        if self._informer is not None and self._fields is None:
            raise ValueError(
                f"the cache of {self.selection} has started without fields=: set fields= earlier"
            )
        if self._fields not in {None, fields}:
            raise ValueError(
                f"two reconcilers use different fields= for {self.selection}: use the same Struct"
            )
        self._fields = fields

    def open(self, factory: InformerFactory) -> None:
        """Create the informer if there is none yet."""
        if self._informer is not None:
            return
        self._informer = factory.informer(
            self.selection.resource,
            self.selection.namespace,
            label_selector=self.selection.label_selector,
            field_selector=self.selection.field_selector,
            shard=self.selection.shard,
            fields=self._fields,
        )
        self._listeners = [
            self._informer.add_handler(handler, name=name) for name, handler in self._handlers
        ]
        self._started = self._clock.now()

    async def wait_for_sync(self, seconds: float) -> None:
        """Wait until the cache has synced and all handlers have received it.

        Raises:
            NotSyncedError: the time limit expired.
        """
        try:
            async with self._clock.timeout(seconds):
                await self.informer.wait_until_synced()
                for listener in list(self._listeners):
                    await listener.wait_for_sync()
        except TimeoutError:
            raise NotSyncedError(
                f"the cache of {self.selection} has not synced within {seconds:g} s: "
                f"{self.health().problem}"
            ) from None

    def note_failure(self) -> None:
        """Record the start of a series of failures: the first failure after any data."""
        if self._informer is None:
            return
        now = self._clock.now()
        age = self._informer.last_frame_age
        if self._failing_since is None or (age is not None and now - age > self._failing_since):
            self._failing_since = now

    def health(self) -> CacheHealth:
        """Return the cache's current health."""
        name, now = self.name, self._clock.now()
        informer = self._informer
        if informer is None:
            return CacheHealth(name, False, "not started", now - self._started)
        if not informer.has_synced:
            words = f"not synced: {informer.why_not_synced()}"
            return CacheHealth(name, False, words, now - self._started)
        reflector = informer.statistics().controller.reflector
        age = reflector.last_frame_age or 0.0
        # Any data after the last error shows that it is over.
        error_age = reflector.last_error_age
        if reflector.failures > 0 and error_age is not None and error_age <= age:
            since = error_age if self._failing_since is None else now - self._failing_since
            return CacheHealth(name, False, f"failing: {reflector.last_error}", since)
        if age > STALE_SECONDS:
            return CacheHealth(name, False, "stale: no data from the server", age)
        return CacheHealth(name, True, "", 0.0)

    def statistics(self) -> SharedInformerStatistics | None:
        """Return the informer's statistics; None before the start."""
        return None if self._informer is None else self._informer.statistics()


class Caches:
    """All caches of a manager.

    Args:
        clock: the time.
        on_error: called with every failure of an informer.
    """

    def __init__(self, clock: Clock, on_error: OnError | None = None) -> None:
        self._clock = clock
        self._on_error = on_error if on_error is not None else LogFailures(clock)
        self._caches: dict[Selection, Cache] = {}
        self._factory: InformerFactory | None = None

    def of(self, selection: Selection) -> Cache:
        """Return the cache of a selection; the first call creates it."""
        cache = self._caches.get(selection)
        if cache is None:
            cache = self._caches[selection] = Cache(selection, self._clock)
        return cache

    def __iter__(self) -> Iterator[Cache]:
        return iter(list(self._caches.values()))  # a caller may add more

    @property
    def factory(self) -> InformerFactory:
        """Creates and runs the informers, further ones on demand.

        Raises:
            RuntimeError: the manager has not started yet.
        """
        if self._factory is None:
            raise RuntimeError("informers are available once the manager has started")
        return self._factory

    def open(self, source: ListWatchSource) -> None:
        """Create all informers. A cache that is added later needs `ensure_open`."""
        self._factory = InformerFactory(source, clock=self._clock, on_error=self._note)
        for cache in self._caches.values():
            cache.open(self._factory)

    def ensure_open(self, cache: Cache) -> None:
        """Create the informer of a cache that was added after `open`; do nothing before that."""
        if self._factory is not None:
            cache.open(self._factory)

    def _note(self, failure: Failure) -> None:
        for cache in self._caches.values():
            if failure.name == cache.name:
                cache.note_failure()
        self._on_error(failure)

    async def run(self) -> None:
        """Run all caches until cancelled."""
        await self.factory.run()
