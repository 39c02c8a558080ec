"""The objects of a custom resource, converted to one version by a webhook.

Corresponds to a real server's watch cache of a version. Objects are converted when they are
written, so a webhook that breaks later affects neither lists nor watches.
"""

import asyncio
import bisect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from listwatch.apiserver.storage.store import (
    Bucket,
    Entry,
    Storage,
    StoredChange,
    StoredChangeType,
)
from listwatch.clock import Clock
from listwatch.errors import ListWatchError

_log = logging.getLogger(__name__)

#: Seconds until a failed conversion is retried.
_RETRY_SECONDS = 1.0
#: Maximum changes converted together: some milliseconds of work for the event loop.
_BATCH = 100


class Mirror:
    """Follows a bucket, one change after the other. For one event loop.

    Args:
        store: the bucket's store.
        source: the bucket.
        version: a name for the objects' version.
        convert: returns entries in that version; raises an exception if it can't.
        clock: times the retries.
        begin: starts this mirror and those of the other versions, unless they run.
    """

    def __init__(
        self,
        store: Storage,
        source: Bucket,
        version: str,
        convert: Callable[[Sequence[Entry]], Awaitable[Sequence[Entry]]],
        clock: Clock,
        begin: Callable[[], None],
    ) -> None:
        #: the converted objects, with the source's revisions
        self.bucket = Bucket(f"{source.name}@{version}")
        self.source = source
        self._store = store
        self._convert = convert
        self._clock = clock
        self.begin = begin
        self._waiting: deque[StoredChange] = deque(
            StoredChange(StoredChangeType.ADDED, entry, None)
            for entry in sorted(source.current(), key=lambda entry: entry.revision)
        )
        self.bucket.since_served = store.revision if self._waiting else source.since_served
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ended: list[asyncio.Task[None]] = []
        #: whether the last conversion failed
        self.failing = False
        #: number of next changes to convert one by one, after a failure to convert them together
        self._alone = 0

    @property
    def revision(self) -> int:
        """The revision up to which the store's changes have been followed."""
        return self._waiting[0].revision - 1 if self._waiting else self._store.revision

    def start(self) -> None:
        """Start, or continue, to follow."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Stop following until the next start. `ended` waits for the end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._ended.append(task)

    async def ended(self) -> None:
        """Wait until it has stopped."""
        tasks, self._ended = self._ended, []
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                _log.error("%s was not followed to its end", self.bucket.name, exc_info=result)

    def on_change(self, change: StoredChange) -> None:
        """Note a change of the source."""
        self._waiting.append(change)
        self._settled.clear()
        self._wake.set()

    async def settled(self, seconds: float) -> bool:
        """Wait until all changes have been followed; return False on a time-out or a failure."""
        self.begin()
        if not self._waiting:
            return True
        if self.failing:
            return False
        try:
            async with self._clock.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            return False
        return not self._waiting

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            changes = self._next()
            entries = [each.entry for each in changes if each.type is not StoredChangeType.DELETED]
            try:
                converted = iter(await self._convert(entries) if entries else ())
            except Exception as error:  # noqa: BLE001 - logged; the next try may succeed
                if len(changes) > 1:
                    self._alone = len(changes)
                    continue
                if not self.failing:
                    expected = isinstance(error, ListWatchError)
                    _log.warning(
                        "%s: %s", self.bucket.name, error, exc_info=None if expected else error
                    )
                self.failing = True
                self._settled.set()  # wake waiting tasks at once: they see `failing`
                await self._clock.sleep(_RETRY_SECONDS)
                self._settled.clear()
                continue
            self.failing = False
            self._alone = max(0, self._alone - 1)
            for change in changes:
                self._waiting.popleft()
                if change.type is not StoredChangeType.DELETED:
                    self._put(next(converted))
                else:
                    self._delete(change)
            if not self._waiting:
                self._settled.set()

    def _next(self) -> list[StoredChange]:
        """Return the next changes: after a failure only one, of an object still in that state."""
        while self.failing:
            key = self._waiting[0].entry.key
            if all(each.entry.key != key for each in islice(self._waiting, 1, None)):
                break
            self._waiting.popleft()
        return list(islice(self._waiting, 1 if self.failing or self._alone else _BATCH))

    def _put(self, entry: Entry) -> None:
        bucket, key = self.bucket, entry.key
        previous = bucket.entries.get(key)
        bucket.entries[key] = entry
        if previous is None:
            bisect.insort(bucket.keys, key)
        kind = StoredChangeType.ADDED if previous is None else StoredChangeType.MODIFIED
        self._tell(StoredChange(kind, entry, previous))

    def _delete(self, change: StoredChange) -> None:
        bucket, key = self.bucket, change.entry.key
        previous = bucket.entries.pop(key, None)
        if previous is None:
            return  # created and deleted while conversions failed
        del bucket.keys[bisect.bisect_left(bucket.keys, key)]
        entry = previous.at_revision(change.revision)
        self._tell(StoredChange(StoredChangeType.DELETED, entry, previous))

    def _tell(self, made: StoredChange) -> None:
        bucket = self.bucket
        bucket.version += 1
        bucket.history.append(made)
        while bucket.history and bucket.history[0].revision <= self._store.compacted:
            bucket.forget_oldest()
        for listener, only in list(bucket.listeners.items()):
            if not only or only == made.entry.namespace:
                listener(made)
