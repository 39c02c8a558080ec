"""The multi-version store: objects as bytes, one sequence of revisions, history, watches."""

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from listwatch.clock import Clock


class Entry(msgspec.Struct, frozen=True):
    """One state of one object.

    `data` is its JSON without kind and apiVersion, metadata first; `fields` are the values that
    field selectors ask for beyond name and namespace; `owners` are the uids of its owners.
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
        """The key in its bucket, which also gives the order of lists."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def at_revision(self, revision: int) -> "Entry":
        """Return this state with another resource version.

        The first `"resourceVersion"` in the bytes is the object's own: before it stand only
        name, generateName, namespace and uid, whose rules allow no quotes.
        """
        data = self.data.replace(
            b'"resourceVersion":"%d"' % self.revision, b'"resourceVersion":"%d"' % revision, 1
        )
        return msgspec.structs.replace(self, revision=revision, data=data)


class ChangeType(Enum):
    """What a change did."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Change(msgspec.Struct, frozen=True):
    """One revision: `entry` is the new state, of a deletion the last one at the new revision."""

    type: ChangeType
    entry: Entry
    previous: Entry | None

    @property
    def revision(self) -> int:
        """The change's place in the one sequence."""
        return self.entry.revision


class CompactedError(Exception):
    """A revision whose history is gone; `revision` is the oldest that can still be asked for."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"compacted up to revision {revision}")
        self.revision = revision


class Journal(Protocol):
    """Where a store writes what it commits, before anybody sees it."""

    def record(self, bucket: str, change: Change, key: str) -> None:
        """Keep a change; raises where it can't, and then the change did not happen."""

    def record_compaction(self, revision: int) -> None:
        """Forget the history up to a revision."""


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


Listener = Callable[[Change], None]


class Bucket:
    """The objects of one resource, of all its versions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, Entry] = {}
        self.keys: list[str] = []
        self.history: deque[Change] = deque()
        self.listeners: dict[Listener, str] = {}
        #: raised by each change, so that what is derived from the bucket can be kept until then
        self.version = 0
        #: the revision at which the resource began to be served: watches reach back no further
        self.since_served = 0

    def current(self, namespace: str = "", *, start: str = "") -> list[Entry]:
        """Return the entries of a namespace, or all, in the order of their keys.

        Args:
            namespace: whose; all for an empty one.
            start: the first key to return; whatever stands before it costs nothing.
        """
        entries = self.entries
        return [entries[key] for key in self._range(namespace, start)]

    def at(self, revision: int, namespace: str = "", *, start: str = "") -> list[Entry]:
        """Return the entries as they were at a revision, otherwise as `current`."""
        if not self.history or self.history[-1].revision <= revision:
            return self.current(namespace, start=start)
        then: dict[str, Entry | None] = {}
        for change in reversed(self.history):
            if change.revision <= revision:
                break
            then[change.entry.key] = change.previous
        prefix = f"{namespace}/" if namespace else ""
        keys = [key for key in self._range(namespace, start) if key not in then]
        keys += [key for key in then if then[key] and key >= start and key.startswith(prefix)]
        entries = self.entries
        return [then.get(key) or entries[key] for key in sorted(keys)]

    def _range(self, namespace: str, start: str) -> list[str]:
        keys = self.keys
        if not namespace:
            return keys[bisect.bisect_left(keys, start) :]
        # "0" is what follows "/" in the order of characters
        first = bisect.bisect_left(keys, max(start, namespace + "/"))
        return keys[first : bisect.bisect_left(keys, namespace + "0")]

    def since(self, revision: int) -> Iterator[Change]:
        """Yield the changes after a revision, oldest first."""
        newer = []
        for change in reversed(self.history):
            if change.revision <= revision:
                break
            newer.append(change)
        return reversed(newer)


class Snapshot(NamedTuple):
    """The objects of a store at one moment."""

    revision: int
    entries: Mapping[str, tuple[Entry, ...]]


class StoreStatistics(msgspec.Struct, frozen=True):
    """Figures of a store at one moment; `watchers` are the watches of clients."""

    revision: int
    compacted: int
    objects: int
    history: int
    watchers: int


class Store:
    """Objects of all resources under one sequence of revisions.

    For one event loop: every method runs to its end without giving way, so each sees and leaves a
    whole state, and a caller may read, decide and commit without a lock as long as it does not
    await in between.

    Args:
        clock: dates the history.
        history_limit: how many changes at most are kept for watches and exact lists.
        history_seconds: how long, at most, after a kube-apiserver's five minutes between
            compactions.
        journal: keeps what is committed beyond the process's life.
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
        #: the oldest revision that can be read
        self.compacted = 0
        self.journal = journal
        #: told of every change, after it was made and before the listeners of its bucket
        self.observers: list[Callable[[Bucket, Change], None]] = []
        self._clock = clock
        self._history_limit = history_limit
        self._history_seconds = history_seconds
        self._buckets: dict[str, Bucket] = {}
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        #: bucket and time of each change that is kept, oldest first
        self._log: deque[tuple[float, Bucket]] = deque()

    def bucket(self, name: str) -> Bucket:
        """Return the bucket of this name, made at the first call."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(name)
        return bucket

    def buckets(self) -> list[Bucket]:
        """Return all buckets."""
        return list(self._buckets.values())

    def put(self, bucket: Bucket, entry: Entry) -> None:
        """Commit a new state, whose revision must be `revision + 1`."""
        key = entry.key
        previous = bucket.entries.get(key)
        kind = ChangeType.ADDED if previous is None else ChangeType.MODIFIED
        change = Change(kind, entry, previous)
        self._check(change, bucket, key)
        bucket.entries[key] = entry
        if previous is None:
            bisect.insort(bucket.keys, key)
        self._commit(bucket, change)

    def delete(self, bucket: Bucket, entry: Entry) -> Entry:
        """Commit that an object is gone; returns its last state at the deletion's revision."""
        key = entry.key
        previous = bucket.entries[key]
        last = previous.at_revision(self.revision + 1)
        change = Change(ChangeType.DELETED, last, previous)
        self._check(change, bucket, key)
        del bucket.entries[key]
        del bucket.keys[bisect.bisect_left(bucket.keys, key)]
        self._commit(bucket, change)
        return last

    def _check(self, change: Change, bucket: Bucket, key: str) -> None:
        if change.revision != self.revision + 1:
            raise ValueError(f"revision {change.revision} does not follow {self.revision}")
        if self.journal is not None:
            self.journal.record(bucket.name, change, key)

    def _commit(self, bucket: Bucket, change: Change) -> None:
        self.revision = change.revision
        bucket.version += 1
        bucket.history.append(change)
        now = self._clock.now()
        log = self._log
        log.append((now, bucket))
        while len(log) > self._history_limit or log[0][0] < now - self._history_seconds:
            _, oldest = log.popleft()
            self.compacted = oldest.history.popleft().revision
        for observer in self.observers:
            observer(bucket, change)
        namespace = change.entry.namespace
        for listener, only in list(bucket.listeners.items()):
            if not only or only == namespace:
                listener(change)

        if self._waiters:
            for wanted, waiter in self._waiters:
                if wanted <= self.revision and not waiter.done():
                    waiter.set_result(None)

    async def reached(self, revision: int, seconds: float) -> None:
        """Return when a revision was committed, or after so many seconds."""
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
        """Forget the history up to a revision, which can itself still be read; later is later.

        A revision beyond the newest means the newest.
        """
        revision = min(revision, self.revision)
        if revision <= self.compacted:
            return
        if self.journal is not None:
            self.journal.record_compaction(revision)
        self.compacted = revision
        while self._log:
            history = self._log[0][1].history
            if history[0].revision > revision:
                break
            history.popleft()
            self._log.popleft()

    def check_readable(self, revision: int) -> None:
        """Raise CompactedError where the state at a revision can't be told any more."""
        if revision < self.compacted:
            raise CompactedError(self.compacted)

    def restore(
        self,
        revision: int,
        compacted: int,
        entries: Mapping[str, Iterable[Entry]],
        history: Iterable[tuple[str, Change]] = (),
    ) -> None:
        """Take over a state from a journal or a snapshot, in place of the present one.

        Nobody is told: who follows the store has to be cut off by the caller.
        """
        self.revision = revision
        self.compacted = compacted
        self._log.clear()
        for bucket in self._buckets.values():
            bucket.entries, bucket.keys = {}, []
            bucket.history.clear()
            bucket.version += 1
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
        """Return the present objects, for `restore`."""
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

    def statistics(self) -> StoreStatistics:
        """Return the figures of this moment."""
        buckets = self._buckets.values()
        return StoreStatistics(
            revision=self.revision,
            compacted=self.compacted,
            objects=sum(len(bucket.entries) for bucket in buckets),
            history=len(self._log),
            watchers=sum(len(bucket.listeners) for bucket in buckets),
        )
