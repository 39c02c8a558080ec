"""The caches of a manager: one informer per selection, shared by all reconcilers."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from listwatch.cache.factory import InformerFactory, ListWatchSource, Selection
from listwatch.cache.failures import Failure, LogFailures, OnError
from listwatch.cache.handlers import ResourceEventHandler
from listwatch.cache.processor import StoppedError
from listwatch.cache.shared_cache import NotSyncedError, SharedInformerStatistics
from listwatch.cache.shared_informer import SharedInformer
from listwatch.cache.store import Indexer, IndexFunc
from listwatch.cache.transform import TransformingDecoder
from listwatch.clock import Clock
from listwatch.objects import Object, ObjectDecoder
from listwatch.runtime.cache_options import CacheDefaults
from listwatch.runtime.reconcile_record import CacheVersion

if TYPE_CHECKING:
    from listwatch.cache.list_watch import Decoder
    from listwatch.cache.processor import Listener

#: A cache without any data from the server for this many seconds is stale. A healthy quiet watch
#: gets a bookmark about once a minute.
STALE_SECONDS = 200.0


class _OnlyMetadata(msgspec.Struct, rename="camel", omit_defaults=True):
    metadata: msgspec.Raw
    api_version: str = ""
    kind: str = ""


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


class Attachment:
    """One handler of a cache, before and after the cache's start."""

    def __init__(self, handler: ResourceEventHandler, name: str) -> None:
        self.handler = handler
        self.name = name
        #: None before the start.
        self.listener: Listener | None = None

    async def wait_for_sync(self) -> None:
        """Return when the handler has received all initial objects, or has been removed.

        Raises:
            StoppedError: the informer has ended before that.
        """
        listener = self.listener
        if listener is None:
            return
        try:
            await listener.wait_for_sync()
        except StoppedError:
            if not listener.is_removed:
                raise


class Cache:
    """One informer, and the handlers of its changes.

    Args:
        selection: the objects it holds, without `fields`.
        clock: the time.
        prefix: of its name.
    """

    def __init__(self, selection: Selection, clock: Clock, prefix: str = "") -> None:
        self.selection = selection
        self._prefix = prefix
        self._clock = clock
        #: How often it was asked for and not released.
        self.users = 0
        self._attached: list[Attachment] = []
        self._fields: type[msgspec.Struct] | None = None
        self._indexers: dict[str, IndexFunc] = {}
        self._decoder: Decoder | None = None
        self._informer: SharedInformer | None = None
        self._read_at: CacheVersion | None = None
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
    def name(self) -> str:
        """What it holds, for logs and metrics; unique in its manager once it has started."""
        return self._prefix + str(self.selection) if self._informer is None else self._informer.name

    @property
    def indexer(self) -> Indexer:
        """The objects; any thread may read them."""
        return self.informer.indexer

    @property
    def version(self) -> str:
        """The resource version up to which it is; empty before the first list."""
        informer = self._informer
        return "" if informer is None else informer.indexer.last_store_sync_resource_version

    @property
    def read_at(self) -> CacheVersion:
        """Its name and version, for a record; the same one until the version changes."""
        informer, known = self._informer, self._read_at
        version = "" if informer is None else informer.indexer.last_store_sync_resource_version
        if known is None or known.version != version:
            known = self._read_at = CacheVersion(self.name, version)
        return known

    @property
    def is_open(self) -> bool:
        """Whether it has an informer."""
        return self._informer is not None

    def holds(self, key: str) -> bool:
        """Return whether an object of this key is cached; False before the start."""
        return self._informer is not None and self.indexer.get_by_key(key) is not None

    def as_cached(self, obj: Object) -> Object:
        """Return an object as this cache would hold it: transformed, with its decoded fields."""
        selection = self.selection
        if self._fields is None and selection.transform is None and not selection.metadata_only:
            return obj
        if self._decoder is None:
            self._decoder = ObjectDecoder(fields=self._fields)
            if selection.transform is not None:
                self._decoder = TransformingDecoder(self._decoder, selection.transform)
        raw = obj.json()
        if selection.metadata_only:
            raw = msgspec.json.encode(msgspec.json.decode(raw, type=_OnlyMetadata))
        return self._decoder(raw, obj.kind, obj.api_version)

    def add_handler(self, handler: ResourceEventHandler, name: str) -> Attachment:
        """Add a handler; after the start it first gets the current objects."""
        attached = Attachment(handler, name)
        self._attached.append(attached)
        if self._informer is not None:
            attached.listener = self._informer.add_handler(handler, name=name)
        return attached

    async def remove_handler(self, attached: Attachment) -> None:
        """Remove a handler, and return when its running call is over."""
        with suppress(ValueError):  # removed before
            self._attached.remove(attached)
        if attached.listener is not None:
            await attached.listener.aclose()

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

    def want_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Add indices, before or after the start.

        Raises:
            ValueError: an index of this name has another function.
        """
        fresh = {name: func for name, func in indexers.items() if name not in self._indexers}
        for name in indexers.keys() - fresh.keys():
            if self._indexers[name] is not indexers[name]:
                raise ValueError(
                    f"the cache of {self.selection} has another index {name!r}: use the same "
                    "function, or another name"
                )
        if self._informer is not None:
            self.indexer.add_indexers(fresh)
        self._indexers |= fresh

    def open(self, factory: InformerFactory) -> None:
        """Create the informer if there is none yet."""
        if self._informer is not None:
            return
        self._read_at = None  # it gets another name
        self._informer = factory.informer(
            self.selection.resource,
            self.selection.namespace,
            label_selector=self.selection.label_selector,
            field_selector=self.selection.field_selector,
            metadata_only=self.selection.metadata_only,
            transform=self.selection.transform,
            shard=self.selection.shard,
            fields=self._fields,
            indexers=self._indexers,
        )
        for attached in self._attached:
            attached.listener = self._informer.add_handler(attached.handler, name=attached.name)
        self._started = self._clock.now()

    async def wait_for_sync(self, seconds: float) -> None:
        """Wait until the cache has synced and all handlers have received it.

        Raises:
            NotSyncedError: the time limit expired.
        """
        try:
            async with self._clock.timeout(seconds):
                await self.informer.wait_until_synced()
                for attached in list(self._attached):
                    await attached.wait_for_sync()
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

    Attributes:
        lent_factory: the program has got the factory; its informers are then never dropped, because
            the program may use them too.

    Args:
        clock: the time.
        on_error: called with every failure of an informer.
        name: of the cluster, if there are several.
    """

    def __init__(self, clock: Clock, on_error: OnError | None = None, name: str = "") -> None:
        self._prefix = f"{name}: " if name else ""
        self._clock = clock
        self._on_error = on_error if on_error is not None else LogFailures(clock)
        #: The defaults of their options.
        self.defaults = CacheDefaults()
        self._caches: dict[Selection, Cache] = {}
        self._factory: InformerFactory | None = None
        self.lent_factory = False

    def of(self, selection: Selection) -> Cache:
        """Return the cache of a selection; the first call creates it. Each call adds a user."""
        cache = self._caches.get(selection)
        if cache is None:
            cache = self._caches[selection] = Cache(selection, self._clock, self._prefix)
        cache.users += 1
        return cache

    async def release(self, cache: Cache) -> None:
        """Drop one user of a cache; with its last one its informer stops, and it is forgotten."""
        cache.users -= 1
        if cache.users or self._caches.get(cache.selection) is not cache:
            return
        del self._caches[cache.selection]
        if self._factory is not None and cache.is_open and not self.lent_factory:
            await self._factory.drop(cache.informer)

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
        self._factory = InformerFactory(
            source, clock=self._clock, on_error=self._note, prefix=self._prefix
        )
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
