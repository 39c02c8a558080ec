"""Bounds how many keys of one cluster are reconciled at once."""

from listwatch.runtime.clusters.cluster_key import cluster_of
from listwatch.workqueue.priority_queue import PriorityQueue


class Slots:
    """Parks the keys of a cluster that is busy, so that workers stay free for the others.

    Args:
        queue: gets the parked keys back.
        limit: maximum keys of one cluster at once.
    """

    def __init__(self, queue: PriorityQueue[str], limit: int) -> None:
        self._queue = queue
        self._limit = limit
        self._busy: dict[str, int] = {}
        self._parked: dict[str, dict[str, int]] = {}
        #: How often each cluster was held without its `release`.
        self._held: dict[str, int] = {}

    def take(self, key: str) -> bool:
        """Take a slot for a key that a worker has taken; otherwise park it and return False."""
        cluster = cluster_of(key)
        busy = self._busy.get(cluster, 0)
        if busy >= self._limit or cluster in self._held:
            parked = self._parked.setdefault(cluster, {})
            priority = self._queue.priority_of(key)
            parked[key] = max(priority, parked.get(key, priority))
            return False
        self._busy[cluster] = busy + 1
        return True

    def leave(self, key: str) -> None:
        """Give the slot of a key back; a parked key of its cluster is queued again."""
        cluster = cluster_of(key)
        self._busy[cluster] -= 1
        if not self._busy[cluster]:
            del self._busy[cluster]
        if cluster not in self._held:
            self._unpark(cluster, 1)

    def pass_on(self, key: str) -> None:
        """Queue a parked key instead of one that came from the queue and needs no slot now."""
        cluster = cluster_of(key)
        if cluster not in self._held and self._busy.get(cluster, 0) < self._limit:
            self._unpark(cluster, 1)

    def hold(self, cluster: str) -> None:
        """Park all keys of a cluster until `release`."""
        self._held[cluster] = self._held.get(cluster, 0) + 1

    def release(self, cluster: str) -> None:
        """End one `hold`."""
        self._held[cluster] -= 1
        if not self._held[cluster]:
            del self._held[cluster]
            self._unpark(cluster, self._limit - self._busy.get(cluster, 0))

    def _unpark(self, cluster: str, number: int) -> None:
        parked = self._parked.get(cluster)
        while parked and number > 0:
            waiting = max(parked, key=parked.__getitem__)  # the first one of the highest priority
            self._queue.add(waiting, priority=parked.pop(waiting))
            number -= 1

    def forget(self, cluster: str) -> None:
        """Drop the parked keys of a cluster."""
        self._parked.pop(cluster, None)

    def statistics(self) -> dict[str, tuple[int, int]]:
        """Return for each cluster the number of keys in process and of parked ones."""
        names = {*self._busy, *self._parked}
        return {n: (self._busy.get(n, 0), len(self._parked.get(n, ()))) for n in sorted(names)}
