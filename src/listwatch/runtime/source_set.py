"""The resources that a reconciler uses: what each wakes, its caches and its name."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from listwatch.cache.handlers import ResourceEventHandler
from listwatch.cache.lister import Lister
from listwatch.cache.namespaces import NamespacesLister
from listwatch.objects import split_key
from listwatch.runtime.cache_options import CacheOptions, CachePlan
from listwatch.runtime.caches import Attachment, Cache, Caches
from listwatch.runtime.object_timers import Interval, LastDone
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.sources import Enqueue, KeySource, MapFunc, owner_keys
from listwatch.shard_range import ShardRange

if TYPE_CHECKING:
    from listwatch.client.resource import Resource

Find: TypeAlias = Callable[[str], Awaitable["Resource"]]

#: Gets the arguments of `Feeds.time_objects`.
TimeObjects: TypeAlias = Callable[[str, Interval, LastDone | None], ResourceEventHandler]
SourceKind: TypeAlias = Literal["for_", "owns", "watches", "reads", "every"]


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A source as the program names it, before there are caches.

    Attributes:
        kind: the method that named it.
        resource: its resource.
        options: those of its caches.
        predicates: only changes that all of these accept.
        decode: the type that its lister returns; None for `Object`.
        map_func: returns the keys, for `watches`.
        controllers_only: for `owns`.
        shard: for `for_`.
        interval: for `every`.
        last_done: for `every`.
    """

    kind: SourceKind
    resource: str
    options: CacheOptions
    predicates: Sequence[Predicate] = ()
    decode: Any = None
    map_func: MapFunc | None = None
    controllers_only: bool = True
    shard: ShardRange | None = None
    interval: Interval | None = None
    last_done: LastDone | None = None

    @property
    def name(self) -> str:
        """Its name for listers."""
        return self.options.get("name") or self.resource


class SourceStatus(msgspec.Struct, frozen=True):
    """One source of a reconciler.

    Attributes:
        name: its name for `lister` and `remove`.
        kind: the method that named it.
        resource: its resource.
        caches: the names of its caches, one for each of its namespaces.
        has_synced: its caches have synced.
    """

    name: str
    kind: SourceKind
    resource: str
    caches: tuple[str, ...]
    has_synced: bool


class Source:
    """One source: its caches, one for each of its namespaces, and their handlers."""

    def __init__(self, declared: Declaration, plans: list[CachePlan], caches: list[Cache]) -> None:
        self.declared = declared
        self.plans = plans
        self.caches = caches
        self._attached: list[tuple[Cache, Attachment]] = []
        #: Set once its caches are started and its handlers added.
        self.begun = asyncio.Event()
        self.is_removed = False

    @property
    def name(self) -> str:
        """Its name for listers."""
        return self.declared.name

    @property
    def needs_look_up(self) -> bool:
        """Whether its resource must be known before it can begin."""
        return self.declared.kind == "owns" or len(self.caches) > 1

    @property
    def has_synced(self) -> bool:
        """Whether its caches have synced."""
        return all(cache.is_open and cache.informer.has_synced for cache in self.caches)

    def status(self) -> SourceStatus:
        """Return its name and state."""
        return SourceStatus(
            self.name,
            self.declared.kind,
            self.declared.resource,
            tuple(cache.name for cache in self.caches),
            self.has_synced,
        )

    def attach(self, handler: ResourceEventHandler | None, name: str) -> None:
        """Give its caches their handler, and mark it as begun."""
        if handler is not None:
            self._attached = [(cache, cache.add_handler(handler, name)) for cache in self.caches]
        self.begun.set()

    async def detach(self) -> None:
        """Remove its handlers; return when their running calls are over."""
        for cache, attached in self._attached:
            await cache.remove_handler(attached)

    def cache_of(self, key: str) -> Cache | None:
        """Return the cache that may hold an object; None if its namespace is not cached."""
        if len(self.caches) == 1:
            return self.caches[0]
        namespace, _ = split_key(key)
        return next((c for c in self.caches if c.selection.namespace == namespace), None)

    def holds(self, key: str) -> bool:
        """Return whether an object of this key is cached."""
        cache = self.cache_of(key)
        return cache is not None and cache.holds(key)

    def cached_keys(self) -> Iterator[str]:
        """Yield the keys of all cached objects."""
        for cache in self.caches:
            yield from cache.indexer.list_keys()

    def lister(self, decode: Any) -> Lister[Any]:
        """Return a lister over all of its namespaces.

        Args:
            decode: the type of the objects; None for that of the declaration.
        """
        into = self.declared.decode if decode is None else decode
        listers: dict[str | None, Lister[Any]] = {
            cache.selection.namespace: cache.informer.lister
            if into is None
            else cache.informer.view(into).lister
            for cache in self.caches
        }
        if len(listers) == 1:
            return next(iter(listers.values()))
        return NamespacesLister(
            {name: lister.namespaced(name) for name, lister in listers.items() if name}
        )

    def __str__(self) -> str:
        where = " and ".join(str(cache.selection) for cache in self.caches)
        return where if self.name == self.declared.resource else f"{self.name} ({where})"


class SourceSet:
    """All sources of one reconciler on one server.

    Args:
        owner: the reconciler's name.
        caches: where it gets its caches.
        put: receives the keys of the primary resource, and their priority.
        put_other: receives the other keys.
        gone: called with the key of each deleted object of the primary resource.
        time_objects: starts the timers of a source of `every`; returns what must get its changes.
        event_filter: predicates of every source.
    """

    def __init__(
        self,
        owner: str,
        caches: Caches,
        *,
        put: Enqueue,
        put_other: Enqueue,
        gone: Callable[[str], object],
        time_objects: TimeObjects,
        event_filter: Sequence[Predicate] = (),
    ) -> None:
        self._owner = owner
        self._caches = caches
        self._put = put
        self._put_other = put_other
        self._gone = gone
        self._time_objects = time_objects
        self._event_filter = event_filter
        self.sources: list[Source] = []
        # Asked for at each reconcile.
        self._distinct: tuple[Cache, ...] = ()
        #: The source of `for_`.
        self.primary: Source | None = None
        self._primary_resource: Resource | None = None

    def __iter__(self) -> Iterator[Cache]:
        """Yield each cache once."""
        return iter(self._distinct)

    def _count_caches(self) -> None:
        self._distinct = tuple(dict.fromkeys(c for s in self.sources for c in s.caches))

    def declare(self, declared: Declaration) -> Source:
        """Add a source.

        Raises:
            ValueError: there already is a primary source; or an option conflicts with another.
        """
        if declared.kind == "for_" and self.primary is not None:
            raise ValueError(f"reconciler {self._owner} is already for {self.primary}")
        plans = self._caches.defaults.plan(declared.resource, declared.options, declared.shard)
        source = Source(declared, plans, self._caches_of(plans))
        self.sources.append(source)
        self._count_caches()
        if declared.kind == "for_":
            self.primary = source
        return source

    def _caches_of(self, plans: Iterable[CachePlan]) -> list[Cache]:
        caches = []
        for plan in plans:
            cache = self._caches.of(plan.selection)
            cache.want_fields(plan.fields)
            cache.want_indexers(plan.indexers)
            caches.append(cache)
        return caches

    def named(self, word: str) -> Source:
        """Return the source of a name, or the only selection of a resource.

        Args:
            word: a name or a resource; empty for the primary source.

        Raises:
            ValueError: there is none, or there are several selections.
        """
        if not word and self.primary is not None:
            return self.primary
        found = [s for s in self.sources if s.name == word and s.declared.kind != "every"]
        found = found or [s for s in self.sources if s.declared.resource == word]
        if len({tuple(map(id, source.caches)) for source in found}) == 1:
            return found[0]
        known = ", ".join(dict.fromkeys(map(str, self.sources)))
        raise ValueError(
            f"reconciler {self._owner} has several caches of {word!r}: give their sources name=; "
            f"it has {known}"
            if found
            else f"reconciler {self._owner} has no cache of {word!r}, only of {known}"
        )

    @property
    def owns_some(self) -> bool:
        """Whether it has a source of `owns`."""
        return any(source.declared.kind == "owns" for source in self.sources)

    @property
    def waiting(self) -> Sequence[Source]:
        """The sources that have not begun."""
        return [source for source in self.sources if not source.begun.is_set()]

    def begin_at_once(self, source: Source) -> bool:
        """Begin a source if its resource needn't be looked up; return whether it has begun."""
        if source.needs_look_up:
            return False
        self._start(source, None)
        return True

    async def begin(self, find: Find) -> None:
        """Begin all sources that have not begun.

        Args:
            find: returns the resource of a word, like `Discovery.find`.

        Raises:
            ValueError: it has `owns` and no `for_`.
            UnknownResourceError: the server has no such resource.
        """
        for source in self.waiting:
            await self._resolve(source, find)
            map_func = await self._owners(source, find) if source.declared.kind == "owns" else None
            if not (source.begun.is_set() or source.is_removed):  # meanwhile
                self._start(source, map_func)

    async def _resolve(self, source: Source, find: Find) -> None:
        """Replace the caches of namespaces by one if the resource is cluster-scoped."""
        if len(source.caches) == 1 or (await find(source.declared.resource)).namespaced:
            return
        plan = source.plans[0]
        before = source.caches
        whole = msgspec.structs.replace(plan, selection=plan.selection._replace(namespace=None))
        source.plans, source.caches = [whole], self._caches_of([whole])
        self._count_caches()
        for cache in before:
            await self._caches.release(cache)

    async def _owners(self, source: Source, find: Find) -> MapFunc:
        if self.primary is None:
            raise ValueError(
                f"reconciler {self._owner} has owns but no resource of its own: call for_"
            )
        if self._primary_resource is None:
            self._primary_resource = await find(self.primary.declared.resource)
        owner = self._primary_resource
        return owner_keys(
            owner.group,
            owner.kind,
            namespaced=owner.namespaced,
            controllers_only=source.declared.controllers_only,
        )

    def _start(self, source: Source, map_func: MapFunc | None) -> None:
        declared = source.declared
        predicates = [*self._event_filter, *declared.predicates]
        for cache in source.caches:
            self._caches.ensure_open(cache)
        handler: ResourceEventHandler | None = None
        if declared.interval is not None:
            handler = self._time_objects(declared.name, declared.interval, declared.last_done)
        elif declared.kind == "for_":
            handler = KeySource(declared.resource, self._put, None, predicates, self._gone)
        elif declared.kind in {"owns", "watches"}:
            map_func = map_func or declared.map_func
            handler = KeySource(declared.resource, self._put_other, map_func, predicates)
        source.attach(handler, self._owner)

    def has(self, name: str) -> bool:
        """Return whether a source has this name."""
        return any(source.name == name for source in self.sources)

    def take(self, name: str) -> Sequence[Source]:
        """Remove all sources of a name from the set, for `end`.

        Raises:
            ValueError: there is none, or it is the primary source.
        """
        found = [source for source in self.sources if source.name == name]
        if not found:
            self.named(name)  # tells which there are
            raise ValueError(f"reconciler {self._owner}: remove {name!r} by its name")
        if self.primary in found:
            raise ValueError(f"reconciler {self._owner} can't lose its own resource, {name}")
        return self._taken(found)

    def take_all(self) -> Sequence[Source]:
        """Remove all sources from the set, for `end`."""
        self.primary = None
        return self._taken(list(self.sources))

    def _taken(self, found: Sequence[Source]) -> Sequence[Source]:
        for source in found:
            source.is_removed = True
            self.sources.remove(source)
        self._count_caches()
        return found

    async def end(self, taken: Iterable[Source]) -> None:
        """End removed sources; return when nothing of them runs any more."""
        for source in taken:
            await source.detach()
            for cache in source.caches:
                await self._caches.release(cache)


def unsynced(sources: Iterable[Source], synced: set[Cache]) -> list[Cache]:
    """Return the caches of the sources that are not yet in `synced`."""
    return [c for source in sources for c in source.caches if c not in synced]
