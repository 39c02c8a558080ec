"""One watch: the changes of a bucket, filtered, as a stream of frames."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Protocol

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from listwatch.apiserver import refusal
from listwatch.apiserver.http.faults import Fault, TamperedTransport
from listwatch.apiserver.http.negotiation import chunk
from listwatch.apiserver.storage.store import (
    Bucket,
    CompactedError,
    Entry,
    Storage,
    StoredChange,
    StoredChangeType,
)
from listwatch.clock import Clock, Timer
from listwatch.errors import StatusError
from listwatch.selector import FieldSelector, LabelSelector
from listwatch.shard_range import ShardRange

#: Above this many unread bytes, changes wait here instead.
_HIGH_WATER = 256 * 1024
#: Bytes or events written at once, before other tasks run.
_PIECE_BYTES = 64 * 1024
_PIECE_EVENTS = 1000
#: Seconds that a client has to read the rest of an expired watch.
_END_SECONDS = 5.0


def entry_matches(entry: Entry, labels: LabelSelector, fields: FieldSelector) -> bool:
    """Return whether both selectors match an entry."""
    if labels.requirements and not labels.matches(entry.labels):
        return False
    if not fields.requirements:
        return True

    def value_of(name: str) -> str | None:
        if name == "metadata.name":
            return entry.name
        if name == "metadata.namespace":
            return entry.namespace
        return entry.fields.get(name)

    return fields.matches(value_of)


class Filter:
    """Converts changes to the events of a watch with selectors."""

    def __init__(
        self, labels: LabelSelector, fields: FieldSelector, shard: ShardRange | None = None
    ) -> None:
        self._labels = labels
        self._fields = fields
        self._shard = shard
        self.is_everything = labels.is_everything and fields.is_everything and shard is None

    def matches(self, entry: Entry) -> bool:
        """Return whether the selectors match an entry."""
        if self.is_everything:
            return True
        if self._shard is not None and not self._shard.contains(entry.uid):
            return False
        return entry_matches(entry, self._labels, self._fields)

    def apply(self, change: StoredChange) -> tuple[StoredChangeType, Entry] | None:
        """Return the event for a change, or None if the watch does not see it.

        An object that leaves the selection is DELETED, in its last matching state, at the revision
        of the change; one that enters is ADDED.
        """
        if self.is_everything:
            return change.type, change.entry
        previous = change.previous
        before = previous is not None and self.matches(previous)
        after = change.type is not StoredChangeType.DELETED and self.matches(change.entry)
        if after:
            return (StoredChangeType.MODIFIED if before else StoredChangeType.ADDED), change.entry
        if before and previous is not None:
            if change.type is StoredChangeType.DELETED:
                return StoredChangeType.DELETED, change.entry
            return StoredChangeType.DELETED, previous.at_revision(change.revision)
        return None


class _Transport(Protocol):
    """The parts of a connection that a watch uses."""

    def write(self, data: bytes) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def is_closing(self) -> bool: ...
    def abort(self) -> None: ...


FrameMaker = Callable[[str, Entry], bytes]


class FrameCache:
    """The newest frames: a change is encoded once for all watches of one form."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._frames: OrderedDict[tuple[object, str, int, int], bytes] = OrderedDict()

    def get(self, form: object, kind: str, entry: Entry, make: FrameMaker) -> bytes:
        """Return the chunk for an event in a form, encoded once."""
        key = (form, kind, entry.revision, id(entry.data))
        frame = self._frames.get(key)
        if frame is None:
            frame = chunk(make(kind, entry))
            self._frames[key] = frame
            if len(self._frames) > self._size:
                self._frames.popitem(last=False)
        return frame


class WatchQuery:
    """The parameters of one watch, in the store's terms."""

    __slots__ = (
        "bookmarks",
        "filter",
        "initial",
        "initial_bookmark",
        "namespace",
        "since",
        "timeout",
    )

    def __init__(
        self,
        *,
        namespace: str,
        selection: Filter,
        since: int | None,
        initial: bool,
        initial_bookmark: bool,
        bookmarks: bool,
        timeout: float,
    ) -> None:
        self.namespace = namespace
        self.filter = selection
        self.since = since
        self.initial = initial
        self.initial_bookmark = initial_bookmark
        self.bookmarks = bookmarks
        self.timeout = timeout


def _no_lag() -> int | None:
    return None


class WatchStream:
    """Streams the changes of a bucket into one response, until it expires or is stopped.

    While the client keeps up, each commit writes directly into the connection's buffer. Otherwise
    changes wait as references to the store's bytes. A client that falls too far behind is cut off.

    Args:
        form: identifies the output of `make`, for the frame cache.
        make: encodes an event.
        bookmark: encodes a bookmark; gets the revision, and whether it ends the initial events.
        error: encodes an error of the watch.
        backlog_limit: changes that may wait for a slow client.
    """

    def __init__(
        self,
        store: Storage,
        bucket: Bucket,
        options: WatchQuery,
        *,
        clock: Clock,
        cache: FrameCache,
        form: object,
        make: FrameMaker,
        bookmark: Callable[[int, bool], bytes],
        error: Callable[[StatusError], bytes],
        backlog_limit: int = 20_000,
    ) -> None:
        self._store = store
        self.bucket = bucket
        self._options = options
        self._clock = clock
        self._cache = cache
        self._form = form
        self._make = make
        self._bookmark = bookmark
        self._error = error
        self._backlog_limit = backlog_limit
        self._backlog: deque[StoredChange] = deque()
        self._direct = False
        self._seen = 0
        self._stopped = False
        self._wake = asyncio.Event()
        self._transport: _Transport | None = None
        #: returns the revision at which the server stopped following its store; None while it
        #: follows. For tests.
        self.lag: Callable[[], int | None] = _no_lag
        #: returns the revision up to which the changes of the bucket are known
        self.progress: Callable[[], int] = lambda: store.revision
        #: the fault to inject into the stream, for tests
        self.fault: Fault | None = None
        self.withhold_bookmarks = False
        #: the error to report in the stream
        self.refused: StatusError | None = None

    def make_nothing(self) -> None:
        """End the stream normally instead of sending its first event."""
        self._make = lambda _, __: self._ended()
        self._bookmark = lambda _, __: self._ended()
        self._form = object()

    def _ended(self) -> bytes:
        self.stop()
        return b""

    def stop(self) -> None:
        """End the stream cleanly, soon."""
        self._stopped = True
        self._wake.set()

    def _end_in_time(self, timers: list[Timer]) -> None:
        self.stop()
        # a client that reads nothing would delay the end for ever
        timers.insert(0, self._clock.call_later(_END_SECONDS, self.cut))

    def cut(self) -> None:
        """End the stream within an event, like a broken connection."""
        if self._transport is not None:
            self._transport.abort()

    def look_again(self) -> None:
        """Continue after the end of a lag."""
        self._wake.set()

    def send_bookmark(self) -> None:
        """Send a bookmark now, unless changes wait before it."""
        transport = self._transport
        if transport is None or transport.is_closing() or not self._options.bookmarks:
            return
        if not self._backlog and self._direct and self.lag() is None:
            revision = max(self._seen, self.progress())
            transport.write(chunk(self._bookmark(revision, False)))

    def _on_change(self, change: StoredChange) -> None:
        transport = self._transport
        if transport is not None and transport.is_closing():
            self.stop()  # more changes may come before the connection reports its end
            return
        if (
            self._direct
            and not self._backlog
            and len(change.entry.data) <= _PIECE_BYTES
            and transport is not None
            and transport.get_write_buffer_size() < _HIGH_WATER
            and self.lag() is None
        ):
            frame = self._frame(change)
            if frame:
                transport.write(frame)
            return
        self._backlog.append(change)
        if len(self._backlog) > self._backlog_limit:
            self._backlog.clear()
            self._stopped = True
            if transport is not None:
                transport.abort()
        self._wake.set()

    def _frame(self, change: StoredChange) -> bytes:
        """Return the bytes of a change; b"" if the watch does not see it."""
        if change.revision <= self._seen:
            return b""
        self._seen = change.revision
        event = self._options.filter.apply(change)
        if event is None:
            return b""
        kind, entry = event
        return self._cache.get(self._form, kind.value, entry, self._make)

    async def run(self, request: BaseRequest, response: StreamResponse) -> None:
        """Serve the watch; the response is not prepared yet.

        Cancelled when the client leaves.
        """
        options, bucket, store = self._options, self.bucket, self._store
        lag = self.lag()
        present = store.revision if lag is None else lag
        self._seen = options.since if options.since is not None else present
        initial: list[Entry] = []
        replay: list[StoredChange] = []
        if options.initial:
            self._seen = present
            initial = [
                entry
                for entry in bucket.at(present, options.namespace)
                if options.filter.matches(entry)
            ]
            self._backlog.extend(self._changes_since(present))
        elif options.since is not None:
            try:
                store.check_readable(options.since)
                if options.since < bucket.since_served:
                    raise CompactedError(bucket.since_served)  # noqa: TRY301 - handled like the store's
            except CompactedError as error:
                self.refused = _too_old(bucket, options.since, error.revision)
            else:
                changes = self._changes_since(options.since)
                replay = [change for change in changes if change.revision <= present]
                self._backlog.extend(changes[len(replay) :])
        listener = self._on_change
        timers: list[Timer] = []
        bucket.listeners[listener] = options.namespace
        try:
            await response.prepare(request)
            transport = request.transport
            if transport is None:
                return  # the client is already gone
            self._transport = way = self._way(transport)
            if self.refused is not None:
                await response.write(self._error(self.refused))
                await response.write_eof()
                return
            timers.append(self._clock.call_later(options.timeout, self._end_in_time, timers))
            await self._send(response, way, self._first_frames(initial, replay))
            del initial, replay
            if options.bookmarks:
                self._plan_bookmarks(timers)
            self._direct = True
            await self._follow(response, way)
            if not transport.is_closing():
                await response.write_eof()
        finally:
            del bucket.listeners[listener]
            self._transport = None
            for timer in timers:
                timer.cancel()

    def _changes_since(self, revision: int) -> list[StoredChange]:
        namespace = self._options.namespace
        changes = self.bucket.since(revision)
        return [each for each in changes if not namespace or each.entry.namespace == namespace]

    def _way(self, transport: asyncio.Transport) -> _Transport:
        if self.fault is None:
            return transport

        def end(error: StatusError) -> None:
            if not transport.is_closing():
                transport.write(chunk(self._error(error)))
            self.stop()

        return TamperedTransport(transport, self.fault, end)

    async def _follow(self, response: StreamResponse, transport: _Transport) -> None:
        """Write waiting changes whenever the client has read enough, until the end."""
        while not self._stopped and not transport.is_closing():
            self._wake.clear()
            if self._backlog and self.lag() is None:
                await self._send(response, transport, self._waiting_frames())
            else:
                await self._wake.wait()

    async def _send(
        self, response: StreamResponse, transport: _Transport, frames: Iterator[bytes]
    ) -> None:
        """Write frames as fast as the client reads; nothing more once it is gone."""
        while True:
            if transport.get_write_buffer_size() > _HIGH_WATER:
                await _drained(response)
            else:
                await asyncio.sleep(0)
            if transport.is_closing():
                return
            piece, size = [], 0
            for frame in frames:
                piece.append(frame)
                size += len(frame)
                if size >= _PIECE_BYTES or len(piece) >= _PIECE_EVENTS:
                    break
            if not piece:
                return
            if self.fault is not None:
                for frame in filter(None, piece):  # the fault counts frames
                    transport.write(frame)
            elif size <= 2 * _PIECE_BYTES:
                transport.write(b"".join(piece))
            else:
                await self._send_large(response, transport, b"".join(piece))

    async def _send_large(
        self, response: StreamResponse, transport: _Transport, data: bytes
    ) -> None:
        """Write bytes with little buffering, because many watches may get the same ones."""
        direct, self._direct = self._direct, False  # commits must not write in between
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                await _drained(response)
                if transport.is_closing():
                    return
                transport.write(data[start : start + _PIECE_BYTES])
        finally:
            self._direct = direct

    def _first_frames(self, initial: list[Entry], replay: list[StoredChange]) -> Iterator[bytes]:
        revision = self._seen
        for entry in initial:
            yield chunk(self._make(StoredChangeType.ADDED.value, entry))
        if self._options.initial_bookmark:
            yield chunk(self._bookmark(revision, True))
        for change in replay:
            yield self._frame(change)

    def _waiting_frames(self) -> Iterator[bytes]:
        while self._backlog and not self._stopped and self.lag() is None:
            yield self._frame(self._backlog.popleft())

    def _plan_bookmarks(self, timers: list[Timer]) -> None:
        left = self._options.timeout
        # like kube-apiserver, once a minute and two seconds before the end
        step = 60.0 if left > 62.0 else left - 2.0

        def send(remaining: float) -> None:
            if not self.withhold_bookmarks:
                self.send_bookmark()
            again = 60.0 if remaining > 62.0 else remaining - 2.0
            if again > 0:
                timers[-1] = self._clock.call_later(again, send, remaining - again)

        if step > 0:
            timers.append(self._clock.call_later(step, send, left - step))


async def _drained(response: StreamResponse) -> None:
    writer = response._payload_writer  # noqa: SLF001 - aiohttp offers no other way to wait
    if writer is not None:
        await writer.drain()


def _too_old(bucket: Bucket, asked: int, oldest: int) -> StatusError:
    # a real server has no watch cache for events: the message is that of its store
    if bucket.name == "events":
        return refusal.expired("The resourceVersion for the provided watch is too old.")
    return refusal.expired(f"too old resource version: {asked} ({oldest})")
