"""The part of a reconciler in one cluster: its sources there, and its own writes."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from listwatch.backoff import START, retry
from listwatch.cache.processor import StoppedError
from listwatch.cache.shared_cache import NotSyncedError
from listwatch.client.request_target import RequestTarget
from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects import Object
from listwatch.printable import printable
from listwatch.runtime.caches import Caches
from listwatch.runtime.clusters.cluster_key import ClusterKey
from listwatch.runtime.feeds import Feeds
from listwatch.runtime.own_writes import OwnWrites, OwnWritesStatistics
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.reconcile_record import Trigger
from listwatch.runtime.recorded_writes import Write
from listwatch.runtime.source_set import Declaration, SourceSet
from listwatch.runtime.sources import Enqueue

if TYPE_CHECKING:
    from listwatch.client.client import Client

_logger = logging.getLogger(__name__)

#: Seconds after which an unsynced cluster is logged, again and again.
_TELL_SECONDS = 60.0


class Member:
    """A reconciler's sources in one cluster. Its keys wait until all of its caches have synced.

    Args:
        reconciler: the reconciler's name.
        cluster: the cluster's name.
        client: of the cluster.
        caches: of the cluster.
        put: receives the keys.
        report: called with the exceptions of timers, and a description.
        gone: called with the key of each deleted object of the primary resource.
        event_filter: predicates of every source.
        own_writes_timeout: see `Reconciler`.
        clock: the time.
    """

    def __init__(
        self,
        reconciler: str,
        cluster: str,
        client: "Client",
        caches: Caches,
        *,
        put: Enqueue,
        report: Callable[[str, Exception], None],
        gone: Callable[[str], object],
        event_filter: Sequence[Predicate],
        own_writes_timeout: float | None,
        clock: Clock,
    ) -> None:
        self.cluster = cluster
        self._reconciler = reconciler
        self._client = client
        self._clock = clock
        self._put = put
        #: The timers of the cluster's objects.
        self.feeds = Feeds(self._receive, report, clock)
        self.sources = SourceSet(
            reconciler,
            caches,
            put=self._receive,
            put_other=self._receive,
            gone=lambda key: gone(ClusterKey.of(cluster, key)),
            time_objects=self.feeds.time_objects,
            event_filter=event_filter,
        )
        self.own_writes = (
            None
            if own_writes_timeout is None
            else OwnWrites(
                reconciler, self.sources, seconds=own_writes_timeout, clock=clock, origin=cluster
            )
        )
        self.has_synced = False
        self._pending: dict[str, tuple[int, Trigger]] = {}

    def _receive(self, key: str, priority: int, trigger: Trigger) -> None:
        if self.has_synced:
            self._put(ClusterKey.of(self.cluster, key), priority, trigger)
            return
        before = self._pending.get(key)
        if before is None or priority > before[0]:
            self._pending[key] = (priority, trigger)

    async def remove(self, name: str) -> None:
        """End the sources of a name; return when nothing of them runs any more."""
        await self.feeds.remove(name)
        if self.sources.has(name):
            await self.sources.end(self.sources.take(name))

    async def sync(self, declared: Iterable[Declaration]) -> None:
        """Begin these sources; return when all caches have synced, however long that takes."""
        for declaration in declared:
            self.sources.declare(declaration)
        find = self._client.discovery.find

        def after(error: Exception, delay: float) -> float | None:
            if not isinstance(error, ListWatchError | TimeoutError):
                return None
            _logger.warning(
                "reconciler %s: cluster %s: %s; next try in %g s",
                self._reconciler,
                self.cluster,
                printable(str(error)),
                delay,
            )
            return delay

        # Sources are begun one by one, so that a missing resource delays only this reconciler.
        await retry(partial(self.sources.begin, find), START, after, clock=self._clock)
        for cache in self.sources:
            while True:
                try:
                    await cache.wait_for_sync(_TELL_SECONDS)
                    break
                except StoppedError:
                    if cache in self.sources:
                        raise
                    break  # its source was removed
                except NotSyncedError as error:
                    _logger.warning(
                        "reconciler %s: cluster %s: %s", self._reconciler, self.cluster, error
                    )
        if self.own_writes is not None:
            begin = partial(self.own_writes.begin, self._client, find)
            await retry(begin, START, after, clock=self._clock)
        self.has_synced = True
        pending, self._pending = self._pending, {}
        for key, (priority, trigger) in pending.items():
            self._receive(key, priority, trigger)


class ClusterOwnWrites(OwnWrites):
    """Waits for own writes in the cluster in which each was made.

    Args:
        name: of the reconciler, for logs.
        members: by cluster; may change.
        clock: the time.
    """

    def __init__(self, name: str, members: dict[str, Member], *, clock: Clock) -> None:
        super().__init__(name, (), seconds=0.0, clock=clock)
        self._members = members

    def _of(self, cluster: str) -> OwnWrites | None:
        member = self._members.get(cluster)
        return None if member is None else member.own_writes

    def cached(self, target: RequestTarget) -> Object | None:
        """Return None: a target does not name its cluster."""
        del target
        return None

    def are_seen(self, writes: Iterable[Write]) -> bool:
        """Return whether the caches of each write's cluster have it."""
        for write in writes:
            own = self._of(write.origin)
            if own is not None and not own.are_seen([write]):
                return False
        return True

    async def wait(self, key: str, writes: Sequence[Write]) -> None:
        """Return when the caches have the writes, or at the time limit."""
        async with asyncio.TaskGroup() as group:
            for cluster in dict.fromkeys(write.origin for write in writes):
                own = self._of(cluster)
                if own is not None:
                    mine = [write for write in writes if write.origin == cluster]
                    _ = group.create_task(own.wait(key, mine))

    def statistics(self) -> OwnWritesStatistics:
        """Return the sum over all clusters that are there now."""
        found = [
            member.own_writes.statistics()
            for member in list(self._members.values())
            if member.own_writes is not None
        ]
        return OwnWritesStatistics(
            sum(each.waits for each in found),
            sum(each.seconds for each in found),
            sum(each.timeouts for each in found),
            sum(each.waiting for each in found),
        )
