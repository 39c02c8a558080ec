"""Naming the sources of a reconciler, before and after its start."""

import asyncio
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
)

import msgspec

from listwatch.backoff import START, retry
from listwatch.cache.shared_cache import NotSyncedError
from listwatch.cache.typed import Into, T, checked
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError, UnknownResourceError
from listwatch.objects.resource_types import name_of_resource
from listwatch.runtime.cache_options import CacheOptions, SourceOptions
from listwatch.runtime.feeds import Feeds
from listwatch.runtime.object_timers import Interval, LastDone
from listwatch.runtime.own_writes import OwnWrites
from listwatch.runtime.reconcile_loop import ReconcileLoop
from listwatch.runtime.source_set import Declaration, Source, SourceKind, SourceSet, SourceStatus
from listwatch.runtime.sources import MapFunc

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.discovery import Resource

U = TypeVar("U")


class FindsResources(Protocol):
    """Knows the resources of a server; a `Client`'s discovery is one."""

    async def find(self, word: str) -> "Resource":
        """Return the resource of this name."""
        ...


class DeclaresSources(Generic[T]):
    """The part of a `Reconciler` that names its sources; see there."""

    name: str
    #: The verbs of each resource declared with `writes`.
    written: dict[str, set[str]]
    _sources: SourceSet
    _feeds: Feeds
    _work: ReconcileLoop
    _own_writes: OwnWrites | None
    _clock: Clock
    _sync_timeout: float
    #: The waits for the sync of late sources.
    _syncing: dict[Source, asyncio.Task[None]]
    _loop: asyncio.AbstractEventLoop | None
    _discovery: FindsResources | None
    _client: "Client | None"

    def owns(
        self,
        resource: str | type[Any],
        *,
        controllers_only: bool = True,
        decode: Into[Any] | None = None,
        **options: Unpack[SourceOptions],
    ) -> Self:
        """Reconcile an object when something it owns changes, by the owner references.

        Args:
            resource: the owned resource, such as "deployments".
            controllers_only: only if the owner reference is marked as the controller.
            decode: the type that `lister` returns, as for `for_`.
            options: see `SourceOptions` and the classes that it extends.
        """
        source = self._declare("owns", resource, options, decode, controllers_only=controllers_only)
        self._begin(source)
        return self

    def watches(
        self,
        resource: str | type[Any],
        map_func: MapFunc,
        *,
        decode: Into[Any] | None = None,
        **options: Unpack[SourceOptions],
    ) -> Self:
        """Reconcile the keys that a function returns for each object that changes.

        Args:
            resource: what to watch.
            map_func: gets an `Object` and returns the keys; called with the old and the new state
                of an update.
            decode: the type that `lister` returns, as for `for_`.
            options: see `SourceOptions` and the classes that it extends.
        """
        self._begin(self._declare("watches", resource, options, decode, map_func=map_func))
        return self

    def reads(
        self,
        resource: str | type[Any],
        *,
        decode: Into[Any] | None = None,
        **options: Unpack[CacheOptions],
    ) -> Self:
        """Keep a cache of a resource for the function to read; its changes wake nothing.

        Args:
            resource: what to cache.
            decode: the type that `lister` returns, as for `for_`.
            options: see `CacheOptions` and the class that it extends.
        """
        self._begin(self._declare("reads", resource, options, decode))
        return self

    def writes(self, resource: str | type[Any], *verbs: str) -> Self:
        """Declare what the function writes, for the minimal permissions (`listwatch rbac`).

        Args:
            resource: with its group, such as "deployments.apps" or "widgets.example.com/status".
            verbs: such as "create" and "patch".
        """
        if not verbs:
            raise ValueError(f"reconciler {self.name}: name the verbs it uses on {resource}")
        self.written.setdefault(name_of_resource(resource), set()).update(verbs)
        return self

    @property
    def declared(self) -> Mapping[str, Collection[str]]:
        """The verbs that it uses on each resource, apart from reading."""
        found = {resource: frozenset(verbs) for resource, verbs in self.written.items()}
        primary = self._sources.primary
        if self._sources.owns_some and primary is not None:
            # The admission plugin OwnerReferencesPermissionEnforcement asks for this right where an
            # owner reference blocks the deletion of the owner.
            found[f"{primary.declared.resource}/finalizers"] = frozenset({"update"})
        return found

    def every(
        self,
        seconds: float | Interval,
        keys: Callable[[], Iterable[str]] | None = None,
        *,
        last_done: LastDone | None = None,
        name: str = "every",
    ) -> Self:
        """Reconcile these keys at this interval, with low priority.

        Args:
            seconds: the interval; or a function that returns that of an object of the primary
                resource, or None for none: then each object has its own timer.
            keys: returns the keys; by default those of all objects of the primary resource.
            last_done: with a function as interval: returns the time that the reconciler has
                recorded in the object, in its status or an annotation, so that the timers go on
                after a restart. An object without one is due at once.
            name: for `remove`.

        Raises:
            ValueError: not more than 0 seconds; `keys` with a function; `last_done` without one; or
                there is no primary resource.
        """
        self._check_may_add()
        if callable(seconds):
            if keys is not None:
                raise ValueError(f"reconciler {self.name}: every(function) takes no keys")
            self._every_object(seconds, last_done, name)
            return self
        if last_done is not None:
            raise ValueError(f"reconciler {self.name}: last_done= needs a function as interval")
        if not seconds > 0:
            raise ValueError(f"reconciler {self.name}: every({seconds}) is too short an interval")
        self._feeds.every(name, seconds, self._all_keys if keys is None else keys)
        return self

    def _every_object(self, interval: Interval, last_done: LastDone | None, name: str) -> None:
        primary = self._declarable.primary
        if primary is None:
            raise ValueError(f"reconciler {self.name} has no objects with timers: call for_ before")
        options: CacheOptions = {**primary.declared.options, "name": name}
        declared = msgspec.structs.replace(
            primary.declared,
            kind="every",
            options=options,
            interval=interval,
            last_done=last_done,
        )
        self._begin(self._declare_source(declared))

    def events(self, stream: Callable[[], AsyncIterable[str]], *, name: str = "events") -> Self:
        """Reconcile the keys that a stream yields, such as a message queue.

        Args:
            stream: creates the stream; called again, after a delay, when it ends or fails.
            name: for `remove`.
        """
        self._check_may_add()
        self._feeds.follow(name, stream)
        return self

    async def remove(self, name: str) -> None:
        """End the sources of a name, and return when nothing of them runs any more.

        A cache without another user stops; the next source of the same selection starts a new one.
        Keys that are queued stay so. Call it in the manager's event loop.

        Args:
            name: the `name` of a source, or its resource if it has none; of timers and streams
                their `name`.

        Raises:
            ValueError: there is no such source, or it is that of `for_`.
        """
        if await self._feeds.remove(name) and not self._sources.has(name):
            return
        taken = self._sources.take(name)
        syncing = {self._syncing[source] for source in taken if source in self._syncing}
        for task in syncing:
            task.cancel()
        if syncing:
            await asyncio.wait(syncing)
        await self._sources.end(taken)
        await self._learn_resources()

    async def wait_for_sync(self, name: str = "", *, seconds: float | None = None) -> None:
        """Return when the caches of one source have synced and its handlers have heard of it.

        Args:
            name: as for `lister`.
            seconds: time limit; by default that of the start.

        Raises:
            NotSyncedError: the time limit expired.
            StoppedError: the source was removed first.
            ValueError: as for `lister`.
        """
        source = self._sources.named(name)
        limit = self._sync_timeout if seconds is None else seconds
        try:
            async with self._clock.timeout(limit):
                await source.begun.wait()
        except TimeoutError:
            raise NotSyncedError(f"{source} has not begun within {limit:g} s") from None
        for cache in source.caches:
            await cache.wait_for_sync(limit)

    @property
    def sources(self) -> Sequence[SourceStatus]:
        """The sources with a resource, in the order in which they were added."""
        return [source.status() for source in self._sources.sources]

    def _declare(
        self,
        kind: SourceKind,
        resource: str | type[Any],
        options: Mapping[str, Any],
        decode: Into[Any] | None,
        **more: Any,
    ) -> Source:
        self._check_may_add()
        cached = {k: v for k, v in options.items() if k not in {"predicates", "shard"}}
        declared = Declaration(
            kind=kind,
            resource=name_of_resource(resource),
            options=cast("CacheOptions", cached),
            predicates=options.get("predicates", ()),
            decode=checked(resource if isinstance(resource, type) else decode),
            **more,
        )
        return self._declare_source(declared)

    @property
    def _declarable(self) -> SourceSet:
        """The sources as the program names them."""
        return self._sources

    def _declare_source(self, declared: Declaration) -> Source:
        return self._declarable.declare(declared)

    def _check_may_add(self) -> None:
        if self._work.is_stopping:
            raise RuntimeError(
                f"reconciler {self.name} has stopped: sources can no longer be added"
            )
        if self._loop is not None and running_loop() is not self._loop:
            raise RuntimeError(
                f"reconciler {self.name} has started: add sources in its manager's event loop"
            )

    def _begin(self, source: Source) -> None:
        """Start a source, possibly after the reconciler itself."""
        begun = self._sources.begin_at_once(source)
        if self._feeds.are_running:
            self._work.hold()
            task = self._syncing[source] = self._feeds.spawn(self._sync(source, begun=begun))
            task.add_done_callback(lambda _: self._syncing.pop(source, None))

    async def _sync(self, source: Source, *, begun: bool) -> None:
        try:
            if not begun:
                await self._look_up()
            for cache in source.caches:
                await cache.wait_for_sync(self._sync_timeout)
            await self._learn_resources()
        finally:
            self._work.release()

    async def _look_up(self) -> None:
        """Begin what must be looked up; its resource may be defined a little later."""
        if not self._sources.waiting:
            return
        assert self._discovery is not None  # noqa: S101 - set by prepare
        give_up_at = self._clock.now() + self._sync_timeout

        def after(error: Exception, delay: float) -> float | None:
            may_pass = isinstance(error, UnknownResourceError | DisconnectedError | TimeoutError)
            return delay if may_pass and self._clock.now() + delay <= give_up_at else None

        begin = partial(self._sources.begin, self._discovery.find)
        await retry(begin, START, after, clock=self._clock)

    def _all_keys(self) -> Iterable[str]:
        return self._sources.named("").cached_keys()

    async def _learn_resources(self) -> None:
        if self._own_writes is not None and self._discovery is not None:
            await self._own_writes.begin(self._client, self._discovery.find)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
