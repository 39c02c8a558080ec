"""Reads one watch: its timeouts, passing its events to the store, and its failures."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from listwatch.cache.deltas import ReflectorStore
from listwatch.cache.known import KnownMeanwhile
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    MODIFIED,
    WatchEvent,
    WatchStream,
)
from listwatch.cache.missing import ListResult
from listwatch.cache.reflector_machine import NO_POSITION, RequestFault, is_older
from listwatch.cache.transform import TransformError
from listwatch.clock import Clock, Timeout
from listwatch.errors import ListWatchError, StatusError
from listwatch.objects import DeletedFinalStateUnknown, Object, ObjectDecodeError

#: How long the response to a watch may take to begin.
OPEN_SECONDS: Final = 75.0
#: How long a watch may be silent: a server sends a bookmark about every minute.
SILENCE_SECONDS: Final = 75.0
#: A server with rarer bookmarks may be silent for this many times its interval.
_PATIENCE: Final = 1.25
#: How long a watch without bookmarks may be silent after its own timeout.
GRACE_SECONDS: Final = 10.0
#: How long a stream of initial events may bring nothing new before its end counts as missing.
_INITIAL_SECONDS: Final = 10.0
#: Maximum useless events of a watch in a row, plus a number per second.
_MOST_USELESS: Final = 1000
_USELESS_A_SECOND: Final = 10.0
#: How long one turn of passing events to the store lasts. The queue's consumer and the connection
#: take turns of their own; all three together hold the event loop.
_TURN_SECONDS: Final = 0.002
#: Batches after which the event loop gets a turn even if the clock has not moved.
_MOST_BATCHES: Final = 256
#: Maximum pieces of one event: 64 MiB in packets of the smallest usual size.
_MOST_EMPTY_BATCHES: Final = 100_000
#: Types of events about existing objects.
_PRESENT: Final = frozenset({ADDED, MODIFIED})


class WatchEndedError(ListWatchError):
    """A watch ended normally, but too soon."""


class SetBackError(WatchEndedError):
    """The server is older than its earlier responses: it was restored from a backup."""


class UselessWatchError(WatchEndedError):
    """A watch kept sending without anything of use."""


class Watchdog(Timeout):
    """Ends its body when a peer is silent for too long, or a while after an event was lost.

    Like any `Timeout`, it raises `TimeoutError` from the `async with` statement; `fault` says which
    of the two happened. The timer is reset only when it fires, so a batch of events costs one
    assignment.

    Args:
        clock: the time.
        silence: allowed silence, in seconds.
    """

    __slots__ = ("_heard", "_silence", "_stale_at", "fault")

    def __init__(self, clock: Clock, silence: float) -> None:
        super().__init__(clock, silence)
        self._silence = silence
        self._heard = clock.now()
        self._stale_at = math.inf
        self.fault = RequestFault.SILENT

    @property
    def is_stale(self) -> bool:
        """Whether an event was lost."""
        return self._stale_at < math.inf

    @property
    def silence(self) -> float:
        """The silence allowed at present, in seconds."""
        return self._silence

    def heard(self, now: float) -> None:
        """Note a sign of life at this time of the clock."""
        self._heard = now

    def allow(self, silence: float) -> None:
        """Set the silence allowed from now on, in seconds."""
        if silence != self._silence:
            self._silence = silence
            self._rearm()

    def end_in(self, seconds: float) -> None:
        """Note that an event was lost, and end in this many seconds unless an end is set."""
        if not self.is_stale:
            self._stale_at = self._clock.now() + seconds
            self._rearm()

    def _rearm(self) -> None:
        due = min(self._heard + self._silence, self._stale_at)
        self.postpone(max(0.0, due - self._clock.now()))

    def _expire(self) -> None:
        now = self._clock.now()
        if now >= self._stale_at:
            self.fault = RequestFault.STALE
        elif now < self._heard + self._silence:
            self._rearm()
            return
        super()._expire()


class Watch:
    """The state of one watch while it is read.

    Args:
        clock: the time.
        version: where the watch starts.
        seconds: the requested timeout of the watch.
        expects_bookmarks: silence means that the peer is gone.
    """

    __slots__ = (
        "bookmarked_at",
        "empty",
        "expects_bookmarks",
        "opened",
        "quiet",
        "seconds",
        "synthetic",
        "useless",
        "version",
        "watchdog",
    )

    def __init__(
        self, clock: Clock, version: str, seconds: int, *, expects_bookmarks: bool
    ) -> None:
        self.watchdog = Watchdog(clock, OPEN_SECONDS)
        #: Everything up to this version has been given to the store; unset before initial events.
        self.version = version
        self.seconds = seconds
        self.expects_bookmarks = expects_bookmarks
        #: When the server's response began; None before that.
        self.opened: float | None = None
        #: When the last bookmark came, except one just before the end; None before that.
        self.bookmarked_at: float | None = None
        #: Nothing was received.
        self.quiet = True
        #: Additions report existing objects, in any order, not new ones.
        self.synthetic = version in NO_POSITION
        #: Useless events, and batches without events, since the last useful event.
        self.useless = 0
        self.empty = 0

    def count_useless(self, number: int, now: float) -> None:
        """Count events that were of no use.

        Raises:
            UselessWatchError: there were too many in a row.
        """
        self.useless += number
        lasted = 0.0 if self.opened is None else now - self.opened
        if self.useless > _MOST_USELESS + _USELESS_A_SECOND * lasted:
            raise UselessWatchError(
                f"the watch sent {self.useless} events without effect in {lasted:.1f} s"
            )


class WatchReader:
    """Passes the events of watches to a store.

    Args:
        store: the store to feed.
        clock: the time.
        known: returns the newest object of a key that the store was given.
        on_undecodable: called with the error of an item or event that can't be decoded or that the
            store refused, the seconds until a list corrects it (None if none will), and the key.
        relist_delay: returns the seconds until a list corrects a lost event.
    """

    def __init__(
        self,
        store: ReflectorStore,
        *,
        clock: Clock,
        known: Callable[[str], Object | None],
        on_undecodable: Callable[[Exception, float | None, str | None], None],
        relist_delay: Callable[[], float],
    ) -> None:
        self._store = store
        self._clock = clock
        self._known = known
        self._report = on_undecodable
        self._relist_delay = relist_delay
        self._take: dict[str, Callable[[Object], None]] = {
            ADDED: store.add,
            MODIFIED: store.update,
            DELETED: store.delete,
        }
        #: Time of the last bytes or events, by the clock.
        self.last_frame: float | None = None
        self.events = self.bookmarks = 0
        #: Keys of objects whose current state can't be decoded.
        self.stale: set[str] = set()
        #: How long silence is normal where bookmarks come.
        self._silence = SILENCE_SECONDS

    def replace(self, result: ListResult, version: str) -> None:
        """Give the whole current state to the store."""
        self._store.replace(result.items, version)
        self.stale = result.stale

    async def follow(
        self, watch: Watch, stream: WatchStream, first: Sequence[WatchEvent] = ()
    ) -> None:
        """Give the events to the store until the stream ends.

        Args:
            watch: the watch.
            stream: its events.
            first: events that were read already.

        Raises:
            StatusError: an ERROR event.
            SetBackError: the server is older than it was.
            UselessWatchError: nothing of use came, again and again.
        """
        self._give(watch, first)
        longest = watch.seconds + GRACE_SECONDS
        watch.watchdog.allow(min(self._silence, longest) if watch.expects_bookmarks else longest)
        heard, now, clock = watch.watchdog.heard, self._clock.now, self._clock
        yielded, batches = now(), 0
        async for batch in stream:
            self.last_frame = time = now()
            heard(time)
            if batch:
                watch.quiet = False
                watch.empty = 0
                self._give(watch, batch)
            else:
                _count_empty(watch)
            # A stream with data ready never yields to the event loop.
            batches += 1
            if time - yielded >= _TURN_SECONDS or batches >= _MOST_BATCHES:
                await clock.sleep(0)
                yielded, batches = now(), 0

    async def read_initial(
        self, watch: Watch, stream: WatchStream
    ) -> tuple[ListResult, str, Sequence[WatchEvent]] | None:
        """Read up to the end of the initial events.

        Returns the events read, their version and the events after the end; None if the stream
        ended before that. Versions of initial events do not show progress: they come in any order.

        Raises:
            As `follow`.
        """
        watch.watchdog.allow(_INITIAL_SECONDS)
        found: dict[str, Object] = {}
        kept: dict[str, Object] = {}
        gone: set[str] = set()  # known objects among these have ended
        nameless = False
        known = KnownMeanwhile(self._known)
        yielded, batches = self._clock.now(), 0
        async for batch in stream:
            now = self.last_frame = self._clock.now()
            watch.quiet = watch.quiet and not batch
            before = len(found)
            for index, event in enumerate(batch):
                obj, kind = event.object, event.type
                if obj is not None and kind in _PRESENT:
                    found[obj.key] = obj
                elif obj is not None and kind == DELETED:
                    watch.watchdog.heard(now)
                    found.pop(obj.key, None)
                    kept.pop(obj.key, None)
                    gone.add(obj.key)
                elif kind == BOOKMARK:
                    self.bookmarks += 1
                    if event.initial_events_end:
                        watch.useless = watch.empty = 0
                        # Objects that have become undecodable stay as they were.
                        stale = kept.keys() - found.keys()
                        result = ListResult(list({**kept, **found}.values()), stale, nameless)
                        return result, event.resource_version, batch[index + 1 :]
                else:
                    _raise_if_end(event)
                    error = _event_error(event)
                    self._report(error, None, None)
                    key = error.key if isinstance(error, ObjectDecodeError) else None
                    nameless = nameless or key is None
                    if kind == DELETED and key is not None:
                        found.pop(key, None)
                        kept.pop(key, None)
                        gone.add(key)
                    elif key is not None and key not in gone and (old := known(key)):
                        kept[key] = old
            if not batch:
                _count_empty(watch)
            elif len(found) > before:
                watch.useless = watch.empty = 0
            else:
                watch.count_useless(len(batch), now)
            if not batch or len(found) > before:
                watch.watchdog.heard(now)
            batches += 1
            if now - yielded >= _TURN_SECONDS or batches >= _MOST_BATCHES:
                await self._clock.sleep(0)
                yielded, batches = self._clock.now(), 0
        return None

    def _give(self, watch: Watch, batch: Sequence[WatchEvent]) -> None:
        """Give events to the store, in order; raise at one that ends the watch."""
        take = self._take
        useless = 0
        for event in batch:
            obj = event.object
            kind = event.type
            if obj is not None and (give := take.get(kind)) is not None:
                version = event.resource_version or obj.meta.resource_version
                last = watch.version
                # Most versions are greater; for equal lengths string order is enough.
                if not (len(version) == len(last) and version > last):
                    if version == last and not watch.synthetic:
                        useless += 1
                    elif is_older(version, last):
                        # Deletions may carry the version of the last state.
                        if kind != DELETED and not watch.synthetic:
                            raise _set_back(version, last)
                        version = ""
                if kind != ADDED:
                    watch.synthetic = False
                try:
                    give(obj)
                except Exception as error:  # noqa: BLE001 - one object must not affect the others
                    self._lost(watch, error, obj.key)
                self.stale.discard(obj.key)
                self.events += 1
                if version and not watch.synthetic:
                    watch.version = version
            elif kind == BOOKMARK:
                useless += 1
                self._bookmark(watch, event)
            else:
                useless += 1
                _raise_if_end(event)
                self._give_broken(watch, event)
                if event.resource_version and not is_older(event.resource_version, watch.version):
                    watch.version = event.resource_version
        if useless < len(batch):
            watch.useless = 0
        elif useless:
            watch.count_useless(useless, self._clock.now())

    def _give_broken(self, watch: Watch, event: WatchEvent) -> None:
        error = _event_error(event)
        key = error.key if isinstance(error, ObjectDecodeError) else None
        if event.type == DELETED and key is not None:
            # The last state is lost, but the deletion is certain.
            self._report(error, None, None)
            self.stale.discard(key)
            try:
                self._store.delete(DeletedFinalStateUnknown(key))
            except Exception as refused:  # noqa: BLE001 - as for events
                self._lost(watch, refused, key)
        elif key is not None and key in self.stale:
            # A list would bring the same again; the key stays as it was.
            self._report(error, None, None)
        else:
            if key is not None and self._known(key) is not None:
                self.stale.add(key)
            if isinstance(error, TransformError):  # as above
                self._report(error, None, None)
            else:
                self._lost(watch, error, key)

    def _bookmark(self, watch: Watch, event: WatchEvent) -> None:
        self.bookmarks += 1
        version = event.resource_version
        if is_older(version, watch.version):
            raise _set_back(version, watch.version)
        watch.synthetic = False
        self._learn_interval(watch)
        if version:
            watch.version = version
            try:
                self._store.bookmark(version)
            except Exception as error:  # noqa: BLE001 - as for events
                self._lost(watch, error, None)

    def _learn_interval(self, watch: Watch) -> None:
        """Learn the interval of bookmarks, and expect the next one by then."""
        now = self._clock.now()
        opened = watch.opened if watch.opened is not None else now
        if now - opened > watch.seconds - GRACE_SECONDS:
            return  # a server sends one before it ends a watch, whatever its interval
        interval = now - (opened if watch.bookmarked_at is None else watch.bookmarked_at)
        patience = _PATIENCE * interval
        is_rare = patience > SILENCE_SECONDS + GRACE_SECONDS
        self._silence = patience if is_rare else SILENCE_SECONDS
        watch.bookmarked_at = now
        watch.expects_bookmarks = True
        watch.watchdog.allow(min(self._silence, watch.seconds + GRACE_SECONDS))

    def _lost(self, watch: Watch, error: Exception, key: str | None) -> None:
        """Report a lost event, and relist after a while."""
        delay = self._relist_delay()
        self._report(error, delay, key)
        watch.watchdog.end_in(delay)


def _count_empty(watch: Watch) -> None:
    watch.empty += 1
    if watch.empty > _MOST_EMPTY_BATCHES:
        raise UselessWatchError("the watch sends bytes without end but no event")


def _raise_if_end(event: WatchEvent) -> None:
    """Raise the error of an ERROR event, which ends a watch."""
    if event.type == ERROR or isinstance(event.error, StatusError):
        if isinstance(event.error, StatusError):
            raise event.error
        raise StatusError("the watch sent an ERROR event without a status") from event.error


def _event_error(event: WatchEvent) -> Exception:
    """Return the error to report for an event that can't be given to a store."""
    if event.error is not None:
        return event.error
    if event.type in {ADDED, MODIFIED, DELETED}:
        return ObjectDecodeError(f"a {event.type} event without an object")
    return ObjectDecodeError(
        f"an event of the unknown type {event.type!r}",
        key=None if event.object is None else event.object.key,
    )


def _set_back(version: str, last: str) -> SetBackError:
    return SetBackError(f"the server went back from resource version {last} to {version}")
