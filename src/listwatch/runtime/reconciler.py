"""Reconcilers: which changes call a user's function, and what it reads."""

import asyncio
import inspect
from collections.abc import (
    Callable,
    Hashable,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, overload

from listwatch.cache.lister import Lister
from listwatch.cache.processor import StoppedError
from listwatch.cache.typed import Into, T
from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects.resource_types import name_of_resource
from listwatch.runtime.cache_options import PrimaryOptions
from listwatch.runtime.caches import Cache, Caches
from listwatch.runtime.calling import ReconcileCaller, ReconcileFunction
from listwatch.runtime.declaring_sources import DeclaresSources, FindsResources, running_loop
from listwatch.runtime.feeds import Feeds
from listwatch.runtime.history import HISTORY_BYTES, History
from listwatch.runtime.key_limits import KeyLimits
from listwatch.runtime.own_writes import OWN_WRITES_SECONDS, OwnWrites
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.reconcile_loop import ReconcileLoop
from listwatch.runtime.reconcile_record import Trigger
from listwatch.runtime.reconciler_options import as_type
from listwatch.runtime.reconciler_statistics import ReconcilerStatistics
from listwatch.runtime.source_set import (
    Source,
    SourceSet,
    unsynced,
)
from listwatch.runtime.tracing import ReconcileTracer, Tracing
from listwatch.workqueue.priority_queue import LOW_PRIORITY, PriorityQueue
from listwatch.workqueue.rate_limiters import RateLimiter

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.request_target import RequestTarget
    from listwatch.runtime.leading import LeadershipGuard


_SHARED: Final = Trigger("Shared")
_ENQUEUED: Final = Trigger("Enqueued")


class NotStartedError(ListWatchError):
    """The reconciler's manager has not started it yet."""


F = TypeVar("F", bound=ReconcileFunction)
U = TypeVar("U")


class Reconciler(DeclaresSources[T]):
    """Calls a function with the key of every object that may need work.

    The function gets only a key, "namespace/name" or "name". It reads the current state from `get`
    and `lister`, and writes what is missing with the manager's client. It is called again if it
    raised (after growing delays), if it asked for that, and when any of its sources changes; never
    twice at the same time for one key. So it must do whatever is left to do.

    Create it with `Manager.reconciler`, name its sources, and use it as a decorator:

        widgets = app.reconciler("widgets").for_("widgets.example.com").owns("deployments")

        @widgets
        async def reconcile(key: str) -> None:
            ...

    The function may be `async def`; `def`, which must not block; or `def` with `threaded=True`,
    which runs in a thread; a time-out reports it but can't end it.

    Wherever a resource is named, a type decorated by `listwatch.resources.resource` will do: then
    `get` and `lister` return objects of that type.

    Sources may be added while it runs, in the manager's event loop. They start at once, and no
    reconcile starts until their caches have synced. `remove` ends one.

    Args:
        name: for logs and metrics; unique in the process.
        caches: the manager's caches.
        concurrency: maximum keys reconciled at the same time.
        timeout: seconds after which a reconcile is cancelled and counts as failed; None for no
            limit.
        threaded: run a plain function in a thread.
        leader_only: run only while this process leads, if there is an election.
        rate_limiter: delays of failed keys; by default 5 ms · 2ⁿ, at most 1000 s.
        hot_key_burst: how often a key may be reconciled without a pause.
        hot_key_interval: seconds between further reconciles of such a key; 0 for no limit.
        sync_timeout: seconds within which its caches must sync.
        own_writes_timeout: maximum seconds that a key waits until the caches have the writes of its
            last reconcile; None to reconcile it at once.
        history_bytes: memory for the records of its last reconciles; 0 for none.
        event_filter: predicates of each of its sources, in addition to the source's own.
        fair_by: groups of keys that take turns; see `PriorityQueue`.
        own_writes: used instead of one with `own_writes_timeout`.
        clock: the time.
    """

    def __init__(
        self,
        name: str,
        caches: Caches,
        *,
        concurrency: int = 1,
        timeout: float | None = None,
        threaded: bool = False,
        leader_only: bool = True,
        rate_limiter: RateLimiter[str] | None = None,
        hot_key_burst: int = 30,
        hot_key_interval: float = 1.0,
        sync_timeout: float = 120.0,
        own_writes_timeout: float | None = OWN_WRITES_SECONDS,
        history_bytes: int = HISTORY_BYTES,
        event_filter: Sequence[Predicate] = (),
        fair_by: Callable[[str], Hashable] | None = None,
        own_writes: OwnWrites | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not name:
            raise ValueError("a reconciler needs a name, for its logs and metrics")
        if concurrency < 1:
            raise ValueError(f"reconciler {name}: concurrency must be 1 or more, not {concurrency}")
        self.name = name
        self.concurrency = concurrency
        self.leader_only = leader_only
        self._threaded = threaded
        self._sync_timeout = sync_timeout
        self._clock = clock or Clock()
        self._function: ReconcileFunction | None = None
        self.queue: PriorityQueue[str] = PriorityQueue(
            name=name, clock=self._clock, rate_limiter=rate_limiter, fair_by=fair_by
        )
        #: The verbs of each resource declared with `writes`.
        self.written: dict[str, set[str]] = {}
        self._feeds = Feeds(self._put_own, self._report, self._clock)
        self._sources = SourceSet(
            name,
            caches,
            put=self._put,
            put_other=self._put_own,
            gone=self._gone,
            time_objects=self._feeds.time_objects,
            event_filter=event_filter,
        )
        if own_writes is None and own_writes_timeout is not None:
            own_writes = OwnWrites(
                name, self._sources, seconds=own_writes_timeout, clock=self._clock
            )
        self._own_writes = own_writes
        #: What happened to its keys; None if switched off.
        self.history = (
            History(
                self._sources,
                _unknown if self._own_writes is None else self._own_writes.cached,
                max_bytes=history_bytes,
                clock=self._clock,
            )
            if history_bytes > 0
            else None
        )
        self._work = ReconcileLoop(
            name,
            self.queue,
            KeyLimits(hot_key_burst, hot_key_interval),
            self._own_writes,
            self.history,
            concurrency=concurrency,
            timeout=timeout,
            clock=self._clock,
        )
        #: The waits for the sync of late sources.
        self._syncing: dict[Source, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._discovery: FindsResources | None = None
        self._client: Client | None = None
        # Around the wait for the caches; `stop` makes it expire.
        self._waiting = self._clock.timeout(None)

    # --- Configuration ---

    def __call__(self, function: F) -> F:
        """Set the function, as a decorator; return it unchanged."""
        if self._function is not None:
            raise ValueError(f"reconciler {self.name} already has a function")
        if self._threaded and inspect.iscoroutinefunction(function):
            raise ValueError(f"reconciler {self.name}: threaded=True needs a plain function")
        self._function = function
        return function

    def decorate(self, decorator: Callable[[ReconcileFunction], ReconcileFunction]) -> None:
        """Replace the function by what a decorator makes of it, to observe it from outside.

        Raises:
            ValueError: it has no function.
        """
        if self._function is None:
            raise ValueError(f"reconciler {self.name} has no function: decorate one with it")
        self._function = decorator(self._function)

    @overload
    def for_(self, resource: str, **options: Unpack[PrimaryOptions]) -> Self: ...
    @overload
    def for_(
        self, resource: str, *, decode: Into[U], **options: Unpack[PrimaryOptions]
    ) -> "Reconciler[U]": ...
    @overload
    def for_(self, resource: type[U], **options: Unpack[PrimaryOptions]) -> "Reconciler[U]": ...
    def for_(
        self, resource: str | type[Any], *, decode: Any = None, **options: Unpack[PrimaryOptions]
    ) -> Any:
        """Reconcile the objects of this resource: the function gets their keys.

        Args:
            resource: such as "widgets.example.com".
            decode: the type that `get` and `lister` return, for a resource given by name: anything
                that `Object.decode` takes, such as a model of another client.
            options: see `PrimaryOptions` and the classes that it extends.

        Raises:
            ValueError: it already has such a source, or an option conflicts with those of another
                user of the same cache.
        """
        source = self._declare("for_", resource, options, decode, shard=options.get("shard"))
        self._work.primary = self._work.primary or source
        self._begin(source)
        return self

    def share(self, accepts: Callable[[str], bool]) -> None:
        """Reconcile only the keys that this accepts; called right before each reconcile."""
        self._work.accepts = accepts

    def wake(self, wanted: Callable[[str], bool]) -> None:
        """Queue the wanted ones of all keys, and of those recently refused."""
        known = self._all_keys() if self._sources.primary is not None else ()
        for key in {*known, *self._work.refused}:
            if wanted(key):
                self._work.refused.pop(key, None)
                self._put(key, LOW_PRIORITY, _SHARED)

    # --- While it runs ---

    def enqueue(self, key: str, priority: int = 0) -> None:
        """Reconcile the key soon; any thread may call this.

        Raises:
            NotStartedError: called from another thread, before the start.
        """
        here = running_loop()
        if here is not None and self._loop in {None, here}:
            self._put_own(key, priority, _ENQUEUED)
        elif self._loop is None:
            raise NotStartedError(f"reconciler {self.name} has not started")
        else:
            self._loop.call_soon_threadsafe(self._put_own, key, priority, _ENQUEUED)

    def reset_backoff(self, key: str) -> None:
        """Forget the failures of a key, so that its next retry has the shortest delay.

        A retry that waits keeps its time; `enqueue` makes the key due now. Any thread may call
        this, before the start only the manager's.
        """
        here = running_loop()
        if self._loop in {None, here}:
            self._work.forget(key)
        else:
            self._loop.call_soon_threadsafe(self._work.forget, key)

    def get(self, key: str) -> T | None:
        """Return the cached object of this key, or None if there is none (any more).

        Within a reconcile, this is the object as the reconcile last wrote it.

        Raises:
            TerminalError: the object does not fit the reconciler's type.
        """
        primary = self._sources.primary
        if primary is None:
            raise ValueError(f"reconciler {self.name} has no resource: call for_")
        cache = primary.cache_of(key)
        if cache is None:
            return None
        if self._own_writes is None:
            obj: Any = cache.indexer.get_by_key(key)
        else:
            obj = self._own_writes.latest(cache, key)
        decode: Into[T] | None = primary.declared.decode
        value: T | None = obj if obj is None or decode is None else as_type(obj, decode)
        return value

    @overload
    def lister(self) -> Lister[T]: ...
    @overload
    def lister(self, name: str) -> Lister[Any]: ...
    @overload
    def lister(self, name: str, *, decode: Into[U]) -> Lister[U]: ...
    @overload
    def lister(self, name: type[U]) -> Lister[U]: ...
    def lister(self, name: str | type[Any] = "", *, decode: Any = None) -> Lister[Any]:
        """Return a lister of the cached objects of a source, over all of its namespaces.

        Args:
            name: the `name` of a source, or a resource given to `for_`, `owns`, `watches` or
                `reads`; empty for that of `for_`.
            decode: the type of the objects; by default that of the source.

        Raises:
            ValueError: it has no such source, or several selections of the resource.
        """
        into = name if isinstance(name, type) else decode
        return self._sources.named(name_of_resource(name)).lister(into)

    async def catch_up(
        self, resource_version: str, name: str | type[Any] = "", *, seconds: float = 10.0
    ) -> None:
        """Wait until the cache contains everything up to a version, to read your own writes.

        Args:
            resource_version: the version that a write returned.
            name: as for `lister`.
            seconds: time limit.

        Raises:
            TimeoutError: the time limit expired; the cache is far behind.
            ValueError: as for `lister`.
        """
        async with self._clock.timeout(seconds):
            for cache in self._sources.named(name_of_resource(name)).caches:
                await cache.informer.wait_for_resource_version(resource_version)

    @property
    def caches(self) -> Sequence[Cache]:
        """The caches that must have synced before it starts."""
        return list(self._sources)

    async def drained(self, keeps: Callable[[str], bool]) -> None:
        """Return when no key is in process that `keeps` rejects.

        The function given to `share` must reject such keys already, so that no more of them start.
        """
        await self._work.drained(keeps)

    @property
    def primary(self) -> Source | None:
        """The source of the objects whose keys are reconciled; None without `for_`."""
        return self._sources.primary

    @property
    def own_writes(self) -> OwnWrites | None:
        """Waits for the caches after writes; None if switched off."""
        return self._own_writes

    def trace(self, tracing: Tracing) -> None:
        """Make each reconcile a span.

        Raises:
            ConfigError: opentelemetry-api is not installed.
        """

        def annotation_of(key: str) -> str:
            cache = None if self.primary is None else self.primary.cache_of(key)
            if not tracing.annotation or cache is None or not cache.holds(key):
                return ""
            obj = cache.indexer.get_by_key(key)
            annotations = {} if obj is None else obj["metadata"].get("annotations") or {}
            return str(annotations.get(tracing.annotation, ""))

        self._work.tracer = ReconcileTracer(tracing, annotation_of)

    def failures_of(self, key: str) -> int:
        """Return the failures of a key since its last success."""
        return self._work.failures.get(key, 0)

    @property
    def in_process(self) -> frozenset[str]:
        """The keys being reconciled."""
        return frozenset(self._work.running)

    async def prepare(self, discovery: FindsResources, client: "Client | None" = None) -> None:
        """Look up the resources on the server, before the caches start.

        Args:
            discovery: knows the server's resources.
            client: reads the results of writes whose responses were lost.

        Raises:
            ValueError: it has no function, or uses `owns` without `for_`.
            UnknownResourceError: the server has no such resource.
        """
        if self._function is None:
            raise ValueError(f"reconciler {self.name} has no function: decorate one with it")
        self._loop = asyncio.get_running_loop()
        self._discovery = discovery
        self._client = client
        await self._sources.begin(discovery.find)

    async def run(self, guard: "LeadershipGuard | None" = None) -> None:
        """Wait for the caches, then reconcile until `stop` or a cancellation.

        Args:
            guard: once another process may lead, this refuses every further step of the function.

        Raises:
            NotSyncedError: a cache has not synced within `sync_timeout`.
        """
        if self._work.is_stopping:
            return
        try:
            async with self._waiting:
                synced: set[Cache] = set()
                while self._sources.waiting or unsynced(self._sources.sources, synced):
                    await self._look_up()
                    for cache in unsynced(self._sources.sources, synced):
                        try:
                            await cache.wait_for_sync(self._sync_timeout)
                        except StoppedError:
                            if cache in self._sources:
                                raise
                        synced.add(cache)
                await self._learn_resources()
        except TimeoutError:
            if not self._waiting.expired:
                raise
        assert self._function is not None  # noqa: S101 - checked by prepare
        threads = self.concurrency if self._threaded else 0
        caller = ReconcileCaller(self.name, self._function, threads, self._clock)
        await self._work.run(caller, self._feeds, guard)

    def stop(self) -> None:
        """Start no new reconcile; `run` returns when the running ones have ended."""
        self._work.stop()
        self._waiting.postpone(0)

    def statistics(self) -> ReconcilerStatistics:
        """Return the current state; any thread may call this."""
        return self._work.statistics()

    # --- Sources ---

    def _put(self, key: object, priority: int, trigger: Trigger) -> None:
        if not isinstance(key, str) or not key:
            raise TypeError(f"a key is a string like 'namespace/name', not {key!r}")
        if self.history is not None and not self._work.is_stopping:
            self.history.woken(key, trigger)
        self.queue.add(key, priority=priority)

    def _put_own(self, key: str, priority: int, trigger: Trigger) -> None:
        # With a fixed share, an object that is not cached belongs to another replica; it is not
        # gone. Nothing is lost: the key is queued when the object enters and leaves the cache.
        primary = self._sources.primary
        if primary is None or primary.declared.shard is None or primary.holds(key):
            self._put(key, priority, trigger)

    def _report(self, words: str, error: Exception) -> None:
        self._work.report(words, error)

    def _gone(self, key: str) -> None:
        self._work.remember_deleted(key)


def _unknown(target: "RequestTarget") -> None:
    """Find no cached object."""
