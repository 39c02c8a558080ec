"""The multi-version store: objects as bytes, one sequence of revisions, history, watches."""

import asyncio
import bisect
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from listwatch.clock import Clock


class Entry(msgspec.Struct, frozen=True):
    """One state of one object.

    `data` is its JSON without kind and apiVersion, metadata first; `fields` are the values for
    field selectors beyond name and namespace; `owners` are the uids of its owners.
    """

    namespace: str
    name: str
    uid: str
    revision: int
    labels: dict[str, str]
    data: bytes
    fields: dict[str, str] = {}
    owners: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def key(self) -> str:
        """The key in its bucket, by which lists are ordered."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def at_revision(self, revision: int) -> "Entry":
        """Return this state with another resource version.

        The first `"resourceVersion"` in the bytes is the object's own: only name, generateName,
        namespace and uid precede it, and these can't contain quotes.
        """
        data = self.data.replace(
            b'"resourceVersion":"%d"' % self.revision, b'"resourceVersion":"%d"' % revision, 1
        )
        return msgspec.structs.replace(self, revision=revision, data=data)


class StoredChangeType(Enum):
    """The type of a change."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class StoredChange(msgspec.Struct, frozen=True):
    """One revision: `entry` is the new state; for a deletion the last one, at the new revision."""

    type: StoredChangeType
    entry: Entry
    previous: Entry | None

    @property
    def revision(self) -> int:
        """The revision of the change."""
        return self.entry.revision


class CompactedError(Exception):
    """The history of a revision is gone; `revision` is the oldest one available."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"compacted up to revision {revision}")
        self.revision = revision


class NotStoredError(Exception):
    """The journal could not record a change, so nothing changed; the message says why."""


class Journal(Protocol):
    """Records a store's commits before they become visible."""

    def record(self, bucket: str, change: StoredChange, key: str) -> None:
        """Record a change.

        Raises:
            NotStoredError: it failed, so the change did not happen.
        """

    def record_compaction(self, revision: int) -> None:
        """Discard the history up to a revision.

        Raises:
            NotStoredError: it failed.
        """


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


Listener = Callable[[StoredChange], None]
#: Number of changes to discard before the journal discards them, too.
_JOURNAL_SLACK = 1000
#: Maximum earlier revisions for which a bucket remembers the differences.
_PASTS = 4


class Bucket:
    """The objects of one resource, in all its versions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, Entry] = {}
        self.keys: list[str] = []
        self.history: deque[StoredChange] = deque()
        self.listeners: dict[Listener, str] = {}
        #: controllers that follow only this bucket; they are not watches
        self.observers: list[Listener] = []
        self._pasts: dict[int, Past] = {}
        #: incremented by each change, so that derived data can be cached until then
        self.version = 0
        #: the revision at which the resource was first served: watches reach back no further
        self.since_served = 0

    def current(self, namespace: str = "", *, start: str = "") -> list[Entry]:
        """Return the entries of a namespace, or all, ordered by key.

        Args:
            namespace: the namespace; empty for all.
            start: the first key to return; skipping earlier ones costs nothing.
        """
        return list(self.span(namespace, start=start))

    def at(self, revision: int, namespace: str = "", *, start: str = "") -> list[Entry]:
        """Return the entries as of a revision, otherwise like `current`."""
        return list(self.span(namespace, start=start, revision=revision))

    def span(self, namespace: str = "", *, start: str = "", revision: int | None = None) -> "Span":
        """Return the result of `current`, or of `at` with a revision, to be read in parts."""
        if revision is None or not self.history or self.history[-1].revision <= revision:
            return Span(self, namespace, start)
        past = self._pasts.pop(revision, None)
        if past is None or not past.follow():
            past = Past(self, revision)
        self._pasts[revision] = past  # the last key of the dict is the most recently used
        if len(self._pasts) > _PASTS:
            del self._pasts[next(iter(self._pasts))]
        return Span(self, namespace, start, past)

    def clear(self) -> None:
        """Discard everything, including the history."""
        self.entries, self.keys = {}, []
        self.history.clear()
        self._pasts.clear()
        self.version += 1

    def forget_oldest(self) -> int:
        """Discard the oldest recorded change; return its revision, which is still readable."""
        revision = self.history.popleft().revision
        for past in [past for past in self._pasts if past < revision]:
            del self._pasts[past]
        return revision

    def since(self, revision: int) -> Iterator[StoredChange]:
        """Yield the changes after a revision, oldest first."""
        newer = []
        for change in reversed(self.history):
            if change.revision <= revision:
                break
            newer.append(change)
        return reversed(newer)


class Past:
    """The differences between a bucket now and at an earlier revision.

    Kept between the pages of a list: a page costs only the changes since the previous page, not all
    changes since the revision.
    """

    def __init__(self, bucket: Bucket, revision: int) -> None:
        self._bucket = bucket
        self._seen = bucket.history[-1].revision
        #: the former entry of each key changed since
        self.entries: dict[str, Entry | None] = {}
        for change in bucket.since(revision):
            self.entries.setdefault(change.entry.key, change.previous)
        #: the sorted keys that existed then, and those that exist now
        self.then = sorted(key for key, entry in self.entries.items() if entry is not None)
        self.now = sorted(key for key in self.entries if key in bucket.entries)

    def follow(self) -> bool:
        """Apply recent changes; return False if starting over costs less."""
        news = list(self._bucket.since(self._seen))
        if len(news) > 1000 + len(self.entries) // 10:
            return False
        for change in news:
            self._seen = change.revision
            key = change.entry.key
            if key not in self.entries:
                self.entries[key] = change.previous
                if change.previous is not None:
                    bisect.insort(self.then, key)
                    bisect.insort(self.now, key)
            if change.type is StoredChangeType.ADDED:
                bisect.insort(self.now, key)
            elif change.type is StoredChangeType.DELETED:
                del self.now[bisect.bisect_left(self.now, key)]
        return True


class Span:
    """The entries of a bucket between two keys, now or at an earlier revision, in order.

    The length and the first entries are cheap even for long spans. Valid until the next change.
    """

    def __init__(
        self, bucket: Bucket, namespace: str, start: str, past: Past | None = None
    ) -> None:
        self._bucket = bucket
        self._past = past
        self._first = start
        self._end: str | None = None
        if namespace:
            self._first = max(start, f"{namespace}/")
            self._end = f"{namespace}0"  # "0" follows "/" in character order

    def __len__(self) -> int:
        """Return the number of entries."""
        count = len(self._places(self._bucket.keys))
        if self._past is not None:
            count += len(self._places(self._past.then)) - len(self._places(self._past.now))
        return count

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in the order of their keys."""
        keys, entries = self._keys(self._bucket.keys), self._bucket.entries
        past = self._past
        if past is None:
            return map(entries.__getitem__, keys)
        unchanged = (key for key in keys if key not in past.entries)
        merged = heapq.merge(unchanged, self._keys(past.then))
        return (past.entries.get(key) or entries[key] for key in merged)

    def _keys(self, keys: list[str]) -> Iterator[str]:
        return map(keys.__getitem__, self._places(keys))

    def _places(self, keys: list[str]) -> range:
        end = len(keys) if self._end is None else bisect.bisect_left(keys, self._end)
        return range(bisect.bisect_left(keys, self._first), end)


class Snapshot(NamedTuple):
    """The objects of a store at one time."""

    revision: int
    entries: Mapping[str, tuple[Entry, ...]]


class StorageStatistics(msgspec.Struct, frozen=True):
    """Statistics of a store; `watchers` are the watches of clients."""

    revision: int
    compacted: int
    objects: int
    history: int
    watchers: int


class Storage:
    """Objects of all resources under one sequence of revisions.

    For one event loop. Every method runs without yielding, so each sees and leaves a consistent
    state. A caller may read, decide and commit without a lock if it does not await in between.

    Args:
        clock: dates the history.
        history_limit: maximum changes kept for watches and exact lists.
        history_seconds: maximum age of these changes; kube-apiserver compacts every five minutes.
        journal: keeps the commits for the next process.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        history_limit: int = 100_000,
        history_seconds: float = 600.0,
        journal: Journal | None = None,
    ) -> None:
        self.revision = 1
        #: the oldest readable revision
        self.compacted = 0
        self._recorded = 0
        self.journal = journal
        #: called with every change, before the listeners of its bucket
        self.observers: list[Callable[[Bucket, StoredChange], None]] = []
        self._clock = clock
        self._history_limit = history_limit
        self._history_seconds = history_seconds
        self._buckets: dict[str, Bucket] = {}
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        #: bucket and time of each recorded change, oldest first
        self._log: deque[tuple[float, Bucket]] = deque()

    def bucket(self, name: str) -> Bucket:
        """Return the bucket of this name; the first call creates it."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(name)
        return bucket

    def buckets(self) -> list[Bucket]:
        """Return all buckets."""
        return list(self._buckets.values())

    def put(self, bucket: Bucket, entry: Entry) -> None:
        """Commit a new state, whose revision must be `revision + 1`.

        Raises:
            NotStoredError: the journal can't record it; nothing has changed.
        """
        key = entry.key
        previous = bucket.entries.get(key)
        kind = StoredChangeType.ADDED if previous is None else StoredChangeType.MODIFIED
        change = StoredChange(kind, entry, previous)
        self._check(change, bucket, key)
        bucket.entries[key] = entry
        if previous is None:
            bisect.insort(bucket.keys, key)
        self._commit(bucket, change)

    def delete(self, bucket: Bucket, entry: Entry) -> Entry:
        """Commit a deletion; return the object's last state at the deletion's revision.

        Raises:
            NotStoredError: the journal can't record it; nothing has changed.
        """
        key = entry.key
        previous = bucket.entries[key]
        last = previous.at_revision(self.revision + 1)
        change = StoredChange(StoredChangeType.DELETED, last, previous)
        self._check(change, bucket, key)
        del bucket.entries[key]
        del bucket.keys[bisect.bisect_left(bucket.keys, key)]
        self._commit(bucket, change)
        return last

    def _check(self, change: StoredChange, bucket: Bucket, key: str) -> None:
        if change.revision != self.revision + 1:
            raise ValueError(f"revision {change.revision} does not follow {self.revision}")
        if self.journal is not None:
            if self.compacted - self._recorded >= _JOURNAL_SLACK:
                self._record_compaction(self.compacted)
            self.journal.record(bucket.name, change, key)

    def _record_compaction(self, revision: int) -> None:
        if self.journal is not None:
            self.journal.record_compaction(revision)
        self._recorded = revision

    def _commit(self, bucket: Bucket, change: StoredChange) -> None:
        self.revision = change.revision
        bucket.version += 1
        bucket.history.append(change)
        now = self._clock.now()
        log = self._log
        log.append((now, bucket))
        while len(log) > self._history_limit or log[0][0] < now - self._history_seconds:
            _, oldest = log.popleft()
            self.compacted = oldest.forget_oldest()
        for observer in self.observers:
            observer(bucket, change)
        for follower in bucket.observers:
            follower(change)
        namespace = change.entry.namespace
        for listener, only in list(bucket.listeners.items()):
            if not only or only == namespace:
                listener(change)

        if self._waiters:
            for wanted, waiter in self._waiters:
                if wanted <= self.revision and not waiter.done():
                    waiter.set_result(None)

    async def reached(self, revision: int, seconds: float) -> None:
        """Return when a revision is committed, or after this many seconds."""
        if revision <= self.revision:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (revision, waiter)
        self._waiters.append(item)
        timer = self._clock.call_later(seconds, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.remove(item)

    def compact(self, revision: int) -> None:
        """Discard the history up to a revision, which itself stays readable.

        A revision beyond the newest means the newest.
        """
        revision = min(revision, self.revision)
        if revision <= self.compacted:
            return
        self._record_compaction(revision)
        self.compacted = revision
        while self._log:
            bucket = self._log[0][1]
            if bucket.history[0].revision > revision:
                break
            bucket.forget_oldest()
            self._log.popleft()

    def check_readable(self, revision: int) -> None:
        """Raise CompactedError if the state at a revision is no longer known."""
        if revision < self.compacted:
            raise CompactedError(self.compacted)

    def restore(
        self,
        revision: int,
        compacted: int,
        entries: Mapping[str, Iterable[Entry]],
        history: Iterable[tuple[str, StoredChange]] = (),
    ) -> None:
        """Replace the current state with one from a journal or a snapshot.

        Sends no notifications: the caller must cut off all followers of the store.
        """
        self.revision = revision
        self.compacted = self._recorded = compacted
        self._log.clear()
        for bucket in self._buckets.values():
            bucket.clear()
        for name, found in entries.items():
            bucket = self.bucket(name)
            bucket.entries = {entry.key: entry for entry in found}
            bucket.keys = sorted(bucket.entries)
        now = self._clock.now()
        for name, change in history:
            bucket = self.bucket(name)
            bucket.history.append(change)
            self._log.append((now, bucket))

    def snapshot(self) -> Snapshot:
        """Return the current objects, for `restore`."""
        entries = {name: tuple(bucket.current()) for name, bucket in self._buckets.items()}
        return Snapshot(self.revision, entries)

    def snapshot_at(self, revision: int) -> Snapshot:
        """Return the objects at an earlier revision.

        Raises:
            ValueError: the history does not reach it.
        """
        if not self.compacted <= revision <= self.revision:
            raise ValueError(
                f"no state at revision {revision} is kept; there are those from {self.compacted} "
                f"to {self.revision}"
            )
        entries = {name: tuple(each.at(revision)) for name, each in self._buckets.items()}
        return Snapshot(revision, entries)

    def statistics(self) -> StorageStatistics:
        """Return current statistics."""
        buckets = self._buckets.values()
        return StorageStatistics(
            revision=self.revision,
            compacted=self.compacted,
            objects=sum(len(bucket.entries) for bucket in buckets),
            history=len(self._log),
            watchers=sum(len(bucket.listeners) for bucket in buckets),
        )
