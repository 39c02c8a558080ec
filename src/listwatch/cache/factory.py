"""Shares one informer between all users of the same resource and selection."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from listwatch.cache.failures import LogFailures, OnError
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.lister import Lister
from listwatch.cache.namespaces import NamespacesInformer
from listwatch.cache.processor import StoppedError
from listwatch.cache.shared_informer import SharedInformer
from listwatch.cache.store import IndexFunc
from listwatch.cache.transform import Transform
from listwatch.cache.typed import Into, T
from listwatch.clock import Clock
from listwatch.objects.resource_types import name_of_resource
from listwatch.shard_range import ShardRange

U = TypeVar("U")


class InformerOptions(TypedDict, total=False):
    """The options of `InformerFactory.informer`; see there."""

    label_selector: str
    field_selector: str
    metadata_only: bool
    fields: type[msgspec.Struct] | None
    transform: Transform | None
    shard: ShardRange | None
    indexers: Mapping[str, IndexFunc] | None


class ListWatchSource(Protocol):
    """Creates list-watches for informers, as `Client` does.

    Creating one must be cheap and must not fail: the resource is looked up at the first list, and
    again after a failure. So an informer may start for a resource that is defined later.
    """

    def list_watch(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        shard: ShardRange | None = None,
    ) -> ListerWatcher:
        """Return the list-watch of a resource, or of a part of it."""
        ...


class Selection(NamedTuple):
    """Identifies the objects of an informer.

    Attributes:
        resource: as the source understands it: "pods", "deployments.apps" …
        namespace: None for all.
        label_selector: as kubectl's `-l`.
        field_selector: as kubectl's `--field-selector`.
        metadata_only: without spec and status.
        fields: Struct to decode with each object.
        transform: changes objects before they are stored.
        shard: the part by uid; None for all.
    """

    resource: str
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False
    fields: type[msgspec.Struct] | None = None
    transform: Transform | None = None
    shard: ShardRange | None = None

    def __str__(self) -> str:
        parts = [self.resource]
        if self.namespace:
            parts.append(f"in {self.namespace}")
        parts += [selector for selector in (self.label_selector, self.field_selector) if selector]
        parts += [] if self.shard is None else [f"with {self.shard}"]
        parts += ["(metadata)"] if self.metadata_only else []
        return " ".join(parts)


class InformerFactory:
    """Creates and runs shared informers: one for each selection.

    Start it with `async with factory:`, or with `run` in your own task. Informers requested later
    start at once. An informer whose resource the server lacks retries with the usual delays, and
    syncs when the resource appears. A factory runs once and is bound to one event loop; any thread
    may use its listers.

    Args:
        source: creates the list-watches, such as a `Client`.
        resync_period: default for handlers; see `SharedInformer`.
        startup_deadline: see `SharedInformer`.
        clock: the time.
        on_error: called with every failure of any informer; by default they are logged.
        prefix: of the informers' names, for logs and metrics.
    """

    def __init__(
        self,
        source: ListWatchSource,
        *,
        resync_period: float | None = None,
        startup_deadline: float = 30.0,
        clock: Clock | None = None,
        on_error: OnError | None = None,
        prefix: str = "",
    ) -> None:
        self._source = source
        self._prefix = prefix
        self._resync_period = resync_period
        self._startup_deadline = startup_deadline
        self._clock = clock if clock is not None else Clock()
        self._on_error = on_error if on_error is not None else LogFailures(self._clock)
        self._informers: dict[Selection, SharedInformer] = {}
        self._names: set[str] = set()
        self._running: asyncio.TaskGroup | None = None
        self._tasks: dict[SharedInformer, asyncio.Task[None]] = {}
        self._used = False
        self._ended = False
        self._own: asyncio.TaskGroup | None = None
        self._own_task: asyncio.Task[None] | None = None

    @overload
    def informer(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        decode: Into[T] | None = None,
        **options: Unpack[InformerOptions],
    ) -> SharedInformer[T]: ...
    @overload
    def informer(
        self,
        resource: type[U],
        namespace: str | None = None,
        **options: Unpack[InformerOptions],
    ) -> SharedInformer[U]: ...
    def informer(
        self,
        resource: str | type[Any],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        fields: type[msgspec.Struct] | None = None,
        transform: Transform | None = None,
        shard: ShardRange | None = None,
        indexers: Mapping[str, IndexFunc] | None = None,
        decode: Any = None,
    ) -> SharedInformer[Any]:
        """Return the informer of a selection; the first call creates it.

        A request for another type returns a view of the same informer (see `SharedInformer.view`).

        Args:
            resource: see `Selection`, as for the next seven; or a type decorated by
                `listwatch.resources.resource`, which is then the type of the objects.
            namespace: see there.
            label_selector: see there.
            field_selector: see there.
            metadata_only: see there.
            fields: see there.
            transform: see there.
            shard: see there.
            indexers: index functions by name; names that already exist are skipped.
            decode: type of the objects; by default `Object`.

        Raises:
            StoppedError: the factory has ended.
        """
        if isinstance(resource, type):
            decode = resource
        selection = Selection(
            name_of_resource(resource),
            namespace,
            label_selector,
            field_selector,
            metadata_only,
            fields,
            transform,
            shard,
        )
        informer = self._informers.get(selection)
        if informer is None:
            if self._ended:
                raise StoppedError("the factory has stopped and creates no more informers")
            informer = self._informers[selection] = self._make(selection)
            if self._running is not None:
                self._run(informer, self._running)
        there = informer.indexer.indexers
        informer.indexer.add_indexers(
            {name: func for name, func in (indexers or {}).items() if name not in there}
        )
        return informer if decode is None else informer.view(decode)

    @overload
    def namespaces(
        self,
        resource: str,
        namespaces: Iterable[str],
        *,
        decode: Into[T] | None = None,
        **options: Unpack[InformerOptions],
    ) -> NamespacesInformer[T]: ...
    @overload
    def namespaces(
        self, resource: type[U], namespaces: Iterable[str], **options: Unpack[InformerOptions]
    ) -> NamespacesInformer[U]: ...
    def namespaces(
        self,
        resource: Any,
        namespaces: Iterable[str],
        *,
        decode: Any = None,
        **options: Unpack[InformerOptions],
    ) -> NamespacesInformer[Any]:
        """Return one informer over several namespaces; otherwise like `informer`.

        Raises:
            StoppedError: the factory has ended.
        """
        return NamespacesInformer(
            {
                namespace: self.informer(resource, namespace, decode=decode, **options)
                for namespace in namespaces
            }
        )

    @overload
    def lister(self, resource: str, namespace: str | None = None) -> Lister: ...
    @overload
    def lister(self, resource: type[U], namespace: str | None = None) -> Lister[U]: ...
    def lister(self, resource: Any, namespace: str | None = None) -> Lister[Any]:
        """Return the lister of a whole resource, or of one namespace of it, from one informer."""
        lister: Lister[Any] = self.informer(resource).lister
        return lister if namespace is None else lister.namespaced(namespace)

    def _unique(self, name: str) -> str:
        # Selections may differ only in a transform or in fields; metrics need different names.
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name} #{number}"
        self._names.add(unique)
        return unique

    def _make(self, selection: Selection) -> SharedInformer:
        return SharedInformer(
            self._source.list_watch(
                selection.resource,
                selection.namespace,
                label_selector=selection.label_selector,
                field_selector=selection.field_selector,
                metadata_only=selection.metadata_only,
                shard=selection.shard,
            ),
            name=self._unique(f"{self._prefix}{selection}"),
            fields=selection.fields,
            transform=selection.transform,
            resync_period=self._resync_period,
            startup_deadline=self._startup_deadline,
            clock=self._clock,
            on_error=self._on_error,
        )

    def _run(self, informer: SharedInformer, group: asyncio.TaskGroup) -> None:
        self._tasks[informer] = group.create_task(informer.run())

    async def drop(self, informer: SharedInformer[T]) -> None:
        """Stop one informer and forget it; the next request for its selection starts a new one.

        For an informer whose last user has left. Its handlers get nothing more, its cache remains
        readable. Returns when it has ended; a handler on a thread may still end its current call
        (see `Listener.aclose`). For the factory's event loop.

        Args:
            informer: one that this factory returned, or a view of it.

        Raises:
            ValueError: the factory has no such informer, or has already dropped it.
        """
        ours = [(s, one) for s, one in self._informers.items() if one.indexer is informer.indexer]
        if not ours:
            raise ValueError(f"{informer.name or 'the informer'} is not one of this factory")
        selection, known = ours[0]
        del self._informers[selection]
        self._names.discard(known.name)
        task = self._tasks.pop(known, None)
        if task is None:
            if not self._ended:  # it never ran, and must not: whoever waits for it is told
                stop = asyncio.Event()
                stop.set()
                await known.run(stop)
            return
        task.cancel()
        await asyncio.wait({task})

    def __iter__(self) -> Iterator[SharedInformer]:
        return iter(list(self._informers.values()))

    def __len__(self) -> int:
        return len(self._informers)

    async def wait_for_cache_sync(self, seconds: float | None = None) -> Mapping[str, str]:
        """Wait until all informers created so far have synced.

        Args:
            seconds: time limit; None for no limit, 0 to return at once.

        Returns:
            The names of informers that have not synced, each with the known reason; empty if all
            have.
        """
        waiting = [informer for informer in self if not informer.has_synced]
        if seconds is None or seconds > 0:
            with suppress(TimeoutError):  # the result names the informers that are missing
                async with self._clock.timeout(seconds):
                    for informer in waiting:
                        await informer.wait_until_synced()
        missing = [informer for informer in waiting if not informer.has_synced]
        return {informer.name: informer.why_not_synced() for informer in missing}

    async def run(self) -> None:
        """Run all informers until cancelled.

        Raises:
            RuntimeError: it is running or has already run.
        """
        if self._used:
            raise RuntimeError("a factory runs once: create a new one")
        self._used = True
        try:
            async with asyncio.TaskGroup() as self._running:
                for informer in self:
                    self._run(informer, self._running)
                await asyncio.get_running_loop().create_future()
        finally:
            self._running = None
            self._ended = True

    async def __aenter__(self) -> Self:
        if self._used:
            raise RuntimeError("a factory runs once: create a new one")
        self._own = asyncio.TaskGroup()
        await self._own.__aenter__()
        self._own_task = self._own.create_task(self.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._own is not None and self._own_task is not None  # noqa: S101, PT018 - for the type checker
        self._own_task.cancel()
        await self._own.__aexit__(kind, error, traceback)
