"""The objects of a custom resource, converted to one version by a webhook.

Corresponds to a real server's watch cache of a version. Objects are converted when they are
written, so a webhook that breaks later affects neither lists nor watches.
"""

import asyncio
import bisect
import logging
from collections import deque
from collections.abc import Awaitable, Callable

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


class Mirror:
    """Follows a bucket, one change after the other. For one event loop.

    Args:
        store: the bucket's store.
        source: the bucket.
        version: a name for the objects' version.
        convert: returns an entry in that version; raises the reason if it can't.
        clock: times the retries.
        begin: starts this mirror and those of the other versions, unless they run.
    """

    def __init__(
        self,
        store: Storage,
        source: Bucket,
        version: str,
        convert: Callable[[Entry], Awaitable[Entry]],
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
        if change.type is not StoredChangeType.ADDED:
            self._skip(change.entry.key)
        self._waiting.append(change)
        self._settled.clear()
        self._wake.set()

    def _skip(self, key: str) -> None:
        """Drop a change that can't be converted, now that the object has another state."""
        if self.failing:
            self._waiting = deque(each for each in self._waiting if each.entry.key != key)

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
            change = self._waiting[0]
            try:
                converted = await self._converted(change)
            except Exception as error:  # noqa: BLE001 - logged; the next try may succeed
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
            if not self._waiting or self._waiting[0] is not change:
                continue  # dropped during its conversion
            self._waiting.popleft()
            self._apply(change, converted)
            if not self._waiting:
                self._settled.set()

    async def _converted(self, change: StoredChange) -> Entry | None:
        if change.type is StoredChangeType.DELETED:
            previous = self.bucket.entries.get(change.entry.key)
            return None if previous is None else previous.at_revision(change.revision)
        return await self._convert(change.entry)

    def _apply(self, change: StoredChange, entry: Entry | None) -> None:
        if entry is None:
            return  # created and deleted while conversions failed
        bucket, key = self.bucket, entry.key
        previous = bucket.entries.get(key)
        kind = change.type
        if kind is StoredChangeType.DELETED:
            del bucket.entries[key]
            del bucket.keys[bisect.bisect_left(bucket.keys, key)]
        else:
            kind = StoredChangeType.ADDED if previous is None else StoredChangeType.MODIFIED
            bucket.entries[key] = entry
            if previous is None:
                bisect.insort(bucket.keys, key)
        bucket.version += 1
        made = StoredChange(kind, entry, previous)
        bucket.history.append(made)
        while bucket.history and bucket.history[0].revision <= self._store.compacted:
            bucket.forget_oldest()
        for listener, only in list(bucket.listeners.items()):
            if not only or only == entry.namespace:
                listener(made)
