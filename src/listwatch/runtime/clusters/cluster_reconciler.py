"""A reconciler of the objects of several clusters."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from listwatch.cache.lister import Lister
from listwatch.cache.typed import Into, T
from listwatch.clock import Clock
from listwatch.objects.resource_types import name_of_resource
from listwatch.runtime.caches import Cache, Caches
from listwatch.runtime.clusters.cluster_key import ClusterKey, cluster_of
from listwatch.runtime.clusters.members import ClusterOwnWrites, Member
from listwatch.runtime.clusters.slots import Slots
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.reconcile_record import Trigger
from listwatch.runtime.reconciler import Reconciler
from listwatch.runtime.reconciler_options import as_type
from listwatch.runtime.source_set import Declaration, Source, SourceSet

if TYPE_CHECKING:
    from listwatch.client.client import Client


class ClusterReconciler(Reconciler[T]):
    """A `Reconciler` whose sources are in each of several clusters, and its keys `ClusterKey`s.

    Create it with `Clusters.reconciler`. There is one queue, in which clusters take turns, and each
    has at most `per_cluster` keys in process, so that one that does not respond leaves workers to
    the others. The keys of a cluster wait until its caches have synced; other clusters go on.

    Args:
        name: for logs and metrics; unique in the process.
        engage: called with each source that is named after the start.
        per_cluster: maximum keys of one cluster at once; 0 for half of `concurrency`, at least one.
        concurrency: maximum keys at once.
        own_writes_timeout: as for `Reconciler`.
        event_filter: as for `Reconciler`.
        clock: the time.
        options: the others of `Reconciler`.
    """

    def __init__(
        self,
        name: str,
        engage: Callable[["ClusterReconciler[Any]", Declaration], object],
        *,
        per_cluster: int = 0,
        concurrency: int = 4,
        own_writes_timeout: float | None,
        event_filter: Sequence[Predicate] = (),
        clock: Clock,
        **options: Any,
    ) -> None:
        if per_cluster < 0:
            raise ValueError(f"reconciler {name}: per_cluster must be 0 or more, not {per_cluster}")
        #: Its part in each cluster, by name.
        self.members: dict[str, Member] = {}
        super().__init__(
            name,
            Caches(clock),
            concurrency=concurrency,
            own_writes=ClusterOwnWrites(name, self.members, clock=clock),
            event_filter=event_filter,
            fair_by=cluster_of,
            clock=clock,
            **options,
        )
        self._engage = engage
        self._member_timeout = own_writes_timeout
        self._filter = event_filter
        self.slots = self._work.slots = Slots(
            self.queue, per_cluster or max(1, (concurrency + 1) // 2)
        )
        self._work.primary = self
        #: What each cluster's sources are like.
        self.declarations: list[Declaration] = []
        self._model = SourceSet(
            name, Caches(clock), put=_never, put_other=_never, gone=_never, time_objects=_never
        )
        self._shared: Callable[[str], bool] | None = None
        self._work.accepts = self._accepts

    # --- Clusters come and go ---

    def join(self, cluster: str, client: "Client", caches: Caches) -> Member:
        """Return its new part in a cluster."""
        member = self.members[cluster] = Member(
            self.name,
            cluster,
            client,
            caches,
            put=self._put,
            report=self._report,
            gone=self._gone,
            event_filter=self._filter,
            own_writes_timeout=self._member_timeout,
            clock=self._clock,
        )
        return member

    async def leave(self, cluster: str) -> None:
        """Start no more keys of a cluster; return when the running ones have ended."""
        self.members.pop(cluster, None)
        self.slots.forget(cluster)
        await self._work.drained(lambda key: cluster_of(key) != cluster)

    # --- Sources ---

    @property
    def _declarable(self) -> SourceSet:
        return self._model

    def _declare_source(self, declared: Declaration) -> Source:
        source = super()._declare_source(declared)
        self.declarations.append(declared)
        return source

    def _begin(self, source: Source) -> None:
        self._engage(self, source.declared)

    async def remove(self, name: str) -> None:
        """End the sources of a name in all clusters; see `Reconciler.remove`."""
        if await self._feeds.remove(name):
            return
        taken = self._model.take(name)
        for source in taken:
            self.declarations.remove(source.declared)
        for member in list(self.members.values()):
            await member.remove(name)

    def share(self, accepts: Callable[[str], bool]) -> None:
        """Reconcile only the keys that this accepts; called right before each reconcile."""
        self._shared = accepts

    def _accepts(self, key: str) -> bool:
        return cluster_of(key) in self.members and (self._shared is None or self._shared(key))

    def _put(self, key: object, priority: int, trigger: Trigger) -> None:
        if isinstance(key, str) and not (cluster_of(key) and ClusterKey(key).key):
            raise ValueError(f"reconciler {self.name}: a key is 'cluster:key', not {key}")
        super()._put(ClusterKey(key) if isinstance(key, str) else key, priority, trigger)

    def _all_keys(self) -> Iterator[str]:
        for name, member in list(self.members.items()):
            if member.has_synced and member.sources.primary is not None:
                for key in member.sources.primary.cached_keys():
                    yield ClusterKey.of(name, key)

    # --- Reading ---

    def holds(self, key: str) -> bool:
        """Return whether an object of this key is cached."""
        member = self.members.get(cluster_of(key))
        primary = None if member is None else member.sources.primary
        return primary is not None and primary.holds(ClusterKey(key).key)

    def get(self, key: str) -> T | None:
        """Return the cached object of a `ClusterKey`; otherwise like `Reconciler.get`."""
        member = self.members.get(cluster_of(key))
        if member is None:
            return None
        primary = member.sources.primary
        if primary is None:
            raise ValueError(f"reconciler {self.name} has no resource: call for_")
        within = ClusterKey(key).key
        cache = primary.cache_of(within)
        if cache is None or not cache.is_open:
            return None
        if member.own_writes is None:
            obj: Any = cache.indexer.get_by_key(within)
        else:
            obj = member.own_writes.latest(cache, within)
        decode: Into[T] | None = primary.declared.decode
        value: T | None = obj if obj is None or decode is None else as_type(obj, decode)
        return value

    def lister(  # type: ignore[override]  # it needs the cluster
        self, name: str | type[Any] = "", *, cluster: str, decode: Any = None
    ) -> Lister[Any]:
        """Return a lister of a source in one cluster; otherwise like `Reconciler.lister`.

        Args:
            name: as there.
            cluster: the cluster's name, such as `key.cluster`.
            decode: as there.

        Raises:
            ValueError: there is no such cluster now, or as there.
        """
        member = self.members.get(cluster)
        if member is None:
            known = ", ".join(sorted(self.members)) or "none"
            raise ValueError(f"reconciler {self.name} has no cluster {cluster!r}; it has {known}")
        into = name if isinstance(name, type) else decode
        return member.sources.named(name_of_resource(name)).lister(into)

    @property
    def caches(self) -> Sequence[Cache]:
        """The caches of all clusters."""
        return [cache for member in list(self.members.values()) for cache in member.sources]


def _never(*_: object) -> NoReturn:
    raise AssertionError("the sources of the model never begin")
