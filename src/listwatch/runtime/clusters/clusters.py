"""The clusters of a manager: they come and go while it runs."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from listwatch.backoff import START, STREAM
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.errors import ListWatchError, unwrap
from listwatch.printable import printable
from listwatch.runtime.caches import Cache, Caches
from listwatch.runtime.clusters.cluster_key import check_cluster_name
from listwatch.runtime.clusters.cluster_reconciler import ClusterReconciler
from listwatch.runtime.clusters.finding import FindClusters
from listwatch.runtime.fencing import fenced
from listwatch.runtime.manager import Manager
from listwatch.runtime.reconciler_options import ReconcilerOptions
from listwatch.runtime.recorded_writes import recorded
from listwatch.runtime.source_set import Declaration

if TYPE_CHECKING:
    from prometheus_client import Metric

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class UnknownClusterError(ListWatchError):
    """There is no such cluster, or it is not connected yet."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The state of one cluster.

    Attributes:
        name: the cluster.
        has_synced: the caches of all reconcilers have synced.
        problem: what is wrong with its caches or its connection; empty if nothing is.
    """

    name: str
    has_synced: bool
    problem: str


class _Cluster:
    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self.config = config
        self.client: Client | None = None
        self.caches: Caches | None = None
        self.group: asyncio.TaskGroup | None = None
        self.task: asyncio.Task[None] | None = None
        self.problem = "not connected"


class Clusters:
    """Several clusters of one manager, which is the hub: it has the leases, events and metrics.

    Create it before the manager starts, and its reconcilers with `reconciler`. Each cluster has its
    own client and caches. Clusters are added and removed at any time, by `add` and `remove`, or by
    the source `find`. A cluster that can't be reached is retried, and delays no other. For the
    manager's event loop.

    Args:
        app: the manager.
        find: where clusters come from, besides `add`: `in_kubeconfig`, `in_secrets`, `polled`, or
            your own.
        grace: seconds for running reconciles of a cluster that is removed.
    """

    def __init__(
        self, app: Manager, find: FindClusters | None = None, *, grace: float = 30.0
    ) -> None:
        self._app = app
        self._find = find
        self._grace = grace
        self._clock = app.clock
        self._reconcilers: list[ClusterReconciler[Any]] = []
        self._clusters: dict[str, _Cluster] = {}
        # What `find` wants, and the locks under which a cluster changes.
        self._wanted: dict[str, Config] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._group: asyncio.TaskGroup | None = None
        app.task(self._run, name="clusters", leader_only=False)
        app.metrics(self._metrics)
        app.add_caches(self._caches)

    def reconciler(
        self, name: str, *, per_cluster: int = 0, **options: Unpack[ReconcilerOptions]
    ) -> "ClusterReconciler":
        """Return a new reconciler of objects in all clusters.

        Args:
            name: for logs and metrics.
            per_cluster: maximum keys of one cluster at once; 0 for half of `concurrency`, at least
                one.
            options: those of `Reconciler`; `concurrency` is 4 by default.
        """
        made: ClusterReconciler[Any] = ClusterReconciler(
            name,
            self._engage,
            per_cluster=per_cluster,
            clock=self._clock,
            **self._app.common_options(),
            **options,
        )
        self._app.add_reconciler(made)
        self._reconcilers.append(made)
        return made

    # --- Clusters ---

    def add(self, name: str, config: Config) -> None:
        """Add a cluster; it is connected at once, or when the manager starts.

        Raises:
            ValueError: there is one of this name, or it can't be a name: a DNS subdomain.
        """
        check_cluster_name(name)
        if name in self._clusters:
            raise ValueError(f"cluster {name} exists: remove it first")
        cluster = self._clusters[name] = _Cluster(name, config)
        if self._group is not None:
            cluster.task = self._group.create_task(self._serve(cluster), name=f"cluster {name}")

    async def remove(self, name: str) -> None:
        """Remove a cluster: no reconcile of its keys starts any more, running ones have `grace`.

        Raises:
            UnknownClusterError: there is none of this name.
        """
        cluster = self._clusters.get(name)
        if cluster is None:
            raise UnknownClusterError(f"there is no cluster {name!r}")
        leaving = asyncio.gather(*(each.leave(name) for each in self._reconcilers))
        try:
            async with self._clock.timeout(self._grace):
                await leaving
        except TimeoutError:
            _logger.warning("cluster %s: reconciles go on %g s after its end", name, self._grace)
        if cluster.task is not None:
            cluster.task.cancel()
            await asyncio.wait({cluster.task})
        if self._clusters.get(name) is cluster:
            del self._clusters[name]

    def client(self, name: str) -> Client:
        """Return the client of a cluster; with an election it writes only for the leader.

        Raises:
            UnknownClusterError: there is no such cluster, or it is not connected yet.
        """
        cluster = self._clusters.get(name)
        if cluster is None or cluster.client is None:
            raise UnknownClusterError(f"cluster {name!r} is not connected")
        return cluster.client

    def status(self) -> Sequence[ClusterStatus]:
        """Return the state of each cluster, by name."""
        return [self._status(cluster) for _, cluster in sorted(self._clusters.items())]

    def _status(self, cluster: _Cluster) -> ClusterStatus:
        members = [each.members.get(cluster.name) for each in self._reconcilers]
        problem = cluster.problem
        for cache in cluster.caches or ():
            health = cache.health()
            problem = problem or (f"{health.name}: {health.problem}" if health.problem else "")
        synced = all(member is not None and member.has_synced for member in members)
        return ClusterStatus(cluster.name, synced, problem)

    # --- Running ---

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._group:
                for cluster in self._clusters.values():
                    cluster.task = self._group.create_task(
                        self._serve(cluster), name=f"cluster {cluster.name}"
                    )
                if self._find is not None:
                    await self._follow(self._find, self._group)
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None

    async def _follow(self, find: FindClusters, group: asyncio.TaskGroup) -> None:
        failures = 0
        while True:
            try:
                async for wanted in find(self._app.unfenced_client):
                    failures = 0
                    before, self._wanted = self._wanted, dict(wanted)
                    for name in {*before, *wanted}:
                        if before.get(name) != wanted.get(name):
                            _ = group.create_task(self._change(name))
            except Exception as error:  # noqa: BLE001 - logged, and retried below
                _logger.warning("the clusters can't be found: %s", printable(str(unwrap(error))))
            await self._clock.sleep(STREAM.delay(failures))
            failures += 1

    async def _change(self, name: str) -> None:
        """Make one cluster what `find` wants; the newest wish counts."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            wanted = self._wanted.get(name)
            cluster = self._clusters.get(name)
            if cluster is not None and cluster.config != wanted:
                await self.remove(name)
                cluster = None
            if cluster is None and wanted is not None:
                try:
                    self.add(name, wanted)
                except ValueError as error:
                    _logger.warning("a cluster was not added: %s", printable(str(error)))

    async def _serve(self, cluster: _Cluster) -> None:
        """Keep a cluster connected until cancelled."""
        failures = 0
        while True:
            try:
                await self._connect(cluster)
            except Exception as error:  # noqa: BLE001 - logged, and retried below
                cluster.problem = printable(f"{type(unwrap(error)).__name__}: {unwrap(error)}")
            finally:
                cluster.client = cluster.caches = cluster.group = None
            delay = START.delay(failures)
            failures += 1
            _logger.warning(
                "cluster %s: %s; next try in %g s", cluster.name, cluster.problem, delay
            )
            await self._clock.sleep(delay)

    async def _connect(self, cluster: _Cluster) -> None:
        async with Client.from_config(cluster.config, clock=self._clock) as plain:
            writer = plain
            if self._app.lease:
                writer = fenced(plain, lambda: self._app.guard, self._clock)
            cluster.client = recorded(writer, origin=cluster.name)
            caches = cluster.caches = Caches(self._clock, self._app.on_error, name=cluster.name)
            caches.open(plain)
            cluster.problem = ""
            try:
                async with asyncio.TaskGroup() as group:
                    cluster.group = group
                    _ = group.create_task(caches.run())
                    for reconciler in self._reconcilers:
                        member = reconciler.join(cluster.name, cluster.client, caches)
                        member.feeds.begin(group)
                        _ = group.create_task(member.sync(reconciler.declarations))
                    await asyncio.get_running_loop().create_future()
            finally:
                for reconciler in self._reconcilers:
                    reconciler.members.pop(cluster.name, None)

    def _engage(self, reconciler: ClusterReconciler[Any], declared: Declaration) -> None:
        """Start a source that was named late in the clusters that are connected."""
        for cluster in self._clusters.values():
            member = reconciler.members.get(cluster.name)
            if member is not None and cluster.group is not None:
                sync = member.sync([declared])
                try:
                    task = cluster.group.create_task(sync)
                except RuntimeError:
                    sync.close()  # the connection is ending; the next one has all sources
                    continue
                reconciler.slots.hold(cluster.name)
                # A callback also runs if the task is cancelled before its first step.
                task.add_done_callback(partial(_release, reconciler, cluster.name))

    # --- Metrics ---

    def _caches(self) -> Iterator[Cache]:
        for cluster in list(self._clusters.values()):
            yield from cluster.caches or ()

    def _metrics(self) -> "Iterator[Metric]":
        from prometheus_client import core  # noqa: PLC0415 - loaded only where metrics are served

        ready = core.GaugeMetricFamily(
            "listwatch_cluster_ready",
            "1 if all caches of a cluster are reliable",
            labels=["cluster"],
        )
        for status in self.status():
            ready.add_metric([status.name], int(status.has_synced and not status.problem))
        yield ready
        labels = ["controller", "cluster"]
        active = core.GaugeMetricFamily(
            "listwatch_cluster_active_workers", "Reconciliations of a cluster's keys", labels=labels
        )
        parked = core.GaugeMetricFamily(
            "listwatch_cluster_parked_keys",
            "Keys that wait for a slot of their cluster",
            labels=labels,
        )
        for reconciler in self._reconcilers:
            for name, (busy, waiting) in reconciler.slots.statistics().items():
                active.add_metric([reconciler.name, name], busy)
                parked.add_metric([reconciler.name, name], waiting)
        yield active
        yield parked


def _release(reconciler: ClusterReconciler[Any], cluster: str, _: object) -> None:
    reconciler.slots.release(cluster)
