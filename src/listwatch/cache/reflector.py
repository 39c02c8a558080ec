"""Keeps a store equal to a resource on a server, by list and watch."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from listwatch.cache import reflector_machine as machine
from listwatch.cache.backoff import Backoff
from listwatch.cache.deltas import ReflectorStore
from listwatch.cache.failures import Failure, LogFailures, OnError
from listwatch.cache.known import newest_of
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    MODIFIED,
    Decode,
    ListerWatcher,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.cache.pages import pages
from listwatch.cache.reflector_machine import (
    HEALTHY_SECONDS,
    NO_POSITION,
    Ended,
    Fault,
    Input,
    Listed,
    Phase,
    Probed,
    State,
    Wait,
    Woke,
    fault_of,
    is_older,
)
from listwatch.cache.transform import TransformError
from listwatch.cache.watch_events import (
    ReflectorStatistics,
    SetBackError,
    WatchEndedError,
    event_error,
    raise_if_end,
    retry_after,
    set_back,
)
from listwatch.cache.watchdog import Watchdog
from listwatch.clock import Clock, stray
from listwatch.objects import (
    DeletedFinalStateUnknown,
    Object,
    ObjectDecodeError,
    decode_object,
)

__all__ = ["Reflector", "ReflectorStatistics"]

#: Bounds of a watch's timeoutSeconds; it is uniform between them, so that the watches of many
#: clients don't end together (client-go `tools/cache/reflector.go`).
_WATCH_SECONDS: Final = (300, 600)
#: How long past its own end a watch may be silent.
_WATCH_GRACE_SECONDS = 10.0
#: How long a watch may be silent that has sent bookmarks; a server sends one in a minute.
_SILENCE_SECONDS = 150.0
#: How long an answer to a watch may take to begin.
_OPEN_SECONDS = 75.0
#: How long a list may be silent.
_LIST_SECONDS = 150.0
#: How long a stream of initial events may bring nothing new before its end counts as missing.
_INITIAL_SECONDS = 10.0
#: Events that say that an object is there.
_PRESENT: Final = frozenset({ADDED, MODIFIED})


class _Watch:
    """What is remembered of one watch while it is read."""

    __slots__ = ("opened", "quiet", "seconds", "synthetic", "watchdog")

    def __init__(self, clock: Clock, version: str, seconds: int) -> None:
        self.watchdog = Watchdog(clock, _OPEN_SECONDS)
        #: What the server was asked for as the watch's length.
        self.seconds = seconds
        #: When the server's answer began; None before that.
        self.opened: float | None = None
        #: Nothing was received.
        self.quiet = True
        #: Additions tell what there was, in any order, and not what came to be.
        self.synthetic = version in NO_POSITION


class Reflector:
    """Keeps a store equal to a resource on a server: lists it, then watches it, for ever.

    What it does and when is decided by `reflector_machine.step`. Every fault is survived: it is
    reported, waited for, and followed by as little as makes the store right again: a watch that
    goes on where the last one ended, or a relist. For one event loop; a store that raises costs
    only what it raised for.

    Args:
        lister_watcher: the resource.
        store: what to feed.
        name: for logs and metrics.
        resync_period: seconds between calls of `store.resync`; None or 0 for none.
        should_resync: asked before each of them.
        decode: makes the objects of bytes.
        clock: time.
        page_size: of lists; 0 asks for everything at once.
        watch_list: get the present state by a stream of initial events where the server can.
        known: gives the newest object of a key that the store was given, so that an item of a
            list which has become undecodable stays as it was and is not taken for deleted. What
            the store or queue itself knows, if not given (`known.newest_of`).
        on_error: is told of every failure; logs them if not given.
        backoff: the waits.
        rng: chance.
    """

    def __init__(
        self,
        lister_watcher: ListerWatcher,
        store: ReflectorStore,
        *,
        name: str = "",
        resync_period: float | None = None,
        should_resync: Callable[[], bool] | None = None,
        decode: Decode = decode_object,
        clock: Clock | None = None,
        page_size: int = 500,
        watch_list: bool = True,
        known: Callable[[str], Object | None] | None = None,
        on_error: OnError | None = None,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self._source = lister_watcher
        self._store = store
        self._resync_period = resync_period or 0.0
        self._should_resync = should_resync
        self._decode = decode
        self._clock = clock if clock is not None else Clock()
        self._page_size = page_size
        self._known = known if known is not None else newest_of(store)
        self._on_error = on_error if on_error is not None else LogFailures(self._clock)
        self._backoff = backoff if backoff is not None else Backoff()
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads requests, hides nothing
        streaming = machine.Streaming.YES if watch_list else machine.Streaming.NEVER
        self._first_state = State(streaming=streaming)
        self._state = self._first_state
        self._take: dict[str, Callable[[Object], None]] = {
            ADDED: store.add,
            MODIFIED: store.update,
            DELETED: store.delete,
        }
        self._watch_now: _Watch | None = None
        self._version = ""
        self._last_frame: float | None = None
        self._last_error = ""
        self._last_error_at: float | None = None
        self._pending: tuple[str, BaseException] | None = None
        self._lists = self._watches = self._probes = self._relists = 0
        self._events = self._bookmarks = self._undecodable = self._errors = 0

    @property
    def state(self) -> Phase:
        """What the reflector is doing."""
        return self._state.phase

    @property
    def last_sync_resource_version(self) -> str:
        """Everything up to this version has been given to the store; unset before the first list.

        The store may not have processed it yet.
        """
        return self._version

    def statistics(self) -> ReflectorStatistics:
        """Return what has been done until now."""
        now = self._clock.now()
        return ReflectorStatistics(
            state=self._state.phase,
            resource_version=self._version,
            last_frame_age=None if self._last_frame is None else now - self._last_frame,
            last_error=self._last_error,
            last_error_age=None if self._last_error_at is None else now - self._last_error_at,
            failures=self._state.failures,
            lists=self._lists,
            watches=self._watches,
            probes=self._probes,
            relists=self._relists,
            events=self._events,
            bookmarks=self._bookmarks,
            undecodable=self._undecodable,
            errors=self._errors,
        )

    def relist(self) -> None:
        """Have everything listed anew, now if a watch is open; does nothing otherwise."""
        if self._watch_now is not None and self._state.phase is Phase.WATCHING:
            self._watch_now.watchdog.end_in(0.0)

    async def run(self) -> None:
        """Feed the store until cancelled; may be called again after that, and then begins anew.

        Ends otherwise only by what `on_error` or `should_resync` raise, or by a mistake of ours.
        """
        if self.state not in {Phase.IDLE, Phase.STOPPED}:
            raise RuntimeError(f"reflector {self.name!r} runs already")
        self._state = self._first_state
        self._version = ""
        self._pending = None
        try:
            if self._resync_period > 0:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._resync_forever())
                    tasks.create_task(self._reflect())
            else:
                await self._reflect()
        finally:
            self._state, _ = machine.step(self._state, machine.Stopped())

    async def _reflect(self) -> None:
        message: Input = machine.Started()
        while True:
            message = await self._perform(self._step(message))

    def _step(self, message: Input) -> machine.Effect:
        self._state, effect = machine.step(self._state, message)
        return effect

    async def _perform(self, effect: machine.Effect) -> Input:
        if isinstance(effect, Wait):
            delay = max(
                self._backoff.delay(effect.failures, self._rng) * effect.share, effect.at_least
            )
            self._report_pending(delay)
            await self._clock.sleep(delay)
            return Woke()
        self._report_pending(0.0)
        match effect:
            case machine.List():
                return await self._list()
            case machine.WatchList():
                return await self._watch("", initial=True)
            case machine.Watch(version):
                return await self._watch(version, initial=False)
            case machine.Probe():
                return await self._probe()
        raise machine.UnexpectedInputError(f"{effect} can't be performed")

    # --- Resync ---------------------------------------------------------------------------------

    async def _resync_forever(self) -> None:
        while True:
            await self._clock.sleep(self._resync_period)
            if self._should_resync is None or self._should_resync():
                try:
                    self._store.resync()
                except Exception as error:  # noqa: BLE001 - reported; the next period tries again
                    self._report(error, "resync", delay=self._resync_period)

    # --- Lists ----------------------------------------------------------------------------------

    async def _list(self) -> Input:
        try:
            items, version = await self._list_all()
            self._replace(items, version)
        except asyncio.CancelledError as cancellation:
            return self._ended(stray(cancellation), "list")
        except Exception as error:  # noqa: BLE001 - whatever a source or store raises is survived
            return self._ended(error, "list")
        return Listed(version)

    async def _list_all(self) -> tuple[list[Object], str]:
        items: list[Object] = []
        version = ""
        listing = pages(self._list_page, page_size=self._page_size, decode=self._decode)
        async for page, anew in listing:
            if anew:
                items, version = [], page.resource_version
            items += self._accept(page)
        return items, version

    async def _list_page(self, options: ListOptions) -> ObjectList:
        self._lists += 1
        watchdog = Watchdog(self._clock, _LIST_SECONDS)

        def progress() -> None:
            self._last_frame = now = self._clock.now()
            watchdog.heard(now)

        async with watchdog:
            page = await self._source.list(msgspec.structs.replace(options, progress=progress))
        self._last_frame = self._clock.now()
        return page

    def _accept(self, page: ObjectList) -> list[Object]:
        items = list(page.items)
        for error in page.undecodable:
            self._report_undecodable(error, delay=None)
            if error.key is not None and (kept := self._known(error.key)) is not None:
                items.append(kept)
        return items

    def _replace(self, items: Sequence[Object], version: str) -> None:
        self._store.replace(items, version)
        self._relists += 1
        self._version = version

    async def _probe(self) -> Input:
        self._probes += 1
        try:
            page = await self._list_page(ListOptions(limit=1, decode=self._decode))
        except asyncio.CancelledError as cancellation:
            return self._ended(stray(cancellation), "list of one item")
        except Exception as error:  # noqa: BLE001 - whatever a source raises is survived
            return self._ended(error, "list of one item")
        return Probed(page.resource_version)

    # --- Watches --------------------------------------------------------------------------------

    async def _watch(self, version: str, *, initial: bool) -> Ended:
        self._watches += 1
        watch = _Watch(self._clock, version, self._rng.randrange(*_WATCH_SECONDS))
        options = WatchOptions(
            resource_version=version,
            resource_version_match="NotOlderThan" if initial else "",
            send_initial_events=initial,
            timeout_seconds=watch.seconds,
            decode=self._decode,
        )
        error: Exception | None = None
        self._watch_now = watch
        try:
            async with watch.watchdog, self._source.watch(options) as stream:
                watch.opened = self._clock.now()
                watch.watchdog.heard(watch.opened)
                await self._read(watch, stream, initial=initial)
        except asyncio.CancelledError as cancellation:
            error = stray(cancellation)
        except Exception as raised:  # noqa: BLE001 - whatever a source raises is survived
            error = raised
        finally:
            self._watch_now = None
        return self._watch_ended(watch, error)

    def _watch_ended(self, watch: _Watch, error: Exception | None) -> Ended:
        initial = self._state.phase is Phase.WATCH_LISTING
        lasted = 0.0 if watch.opened is None else self._clock.now() - watch.opened
        fault = None if error is None else fault_of(error, opened=watch.opened is not None)
        if watch.watchdog.expired:
            fault = watch.watchdog.fault
            error = TimeoutError(f"the server was silent for {watch.watchdog.silence:g} s")
            if initial and watch.opened is not None:
                fault = Fault.NO_END
                error = TimeoutError("the server did not end the initial events")
            elif fault is Fault.STALE:
                error = None  # reported when the event was lost
        elif isinstance(error, SetBackError):
            fault = Fault.SET_BACK
        elif error is None and initial:
            error = WatchEndedError("the server ended the watch before its initial events")
        elif error is None and lasted < HEALTHY_SECONDS:
            error = WatchEndedError(f"the server ended the watch after {lasted:.1f} s")
        if error is not None:
            self._pending = ("watch with initial events" if initial else "watch", error)
        return Ended(
            fault=fault,
            resource_version="" if initial else self._version,
            lasted=lasted,
            quiet=watch.quiet,
            stale=watch.watchdog.is_stale,
            retry_after=retry_after(error),
        )

    async def _read(self, watch: _Watch, stream: WatchStream, *, initial: bool) -> None:
        if initial:
            watch.watchdog.allow(_INITIAL_SECONDS)
            if (rest := await self._read_initial(watch, stream)) is None:
                return
            watch.synthetic = False
            self._give(watch, rest)
        watch.watchdog.allow(watch.seconds + _WATCH_GRACE_SECONDS)
        heard, now = watch.watchdog.heard, self._clock.now
        async for batch in stream:
            self._last_frame = time = now()
            heard(time)
            if batch:
                watch.quiet = False
                self._give(watch, batch)

    async def _read_initial(
        self, watch: _Watch, stream: WatchStream
    ) -> Sequence[WatchEvent] | None:
        """Fill a temporary store up to the end of the initial events, then give it on.

        Returns what came with the end, or None if the stream ended without it. Versions of initial
        events say nothing about what was received: they come in any order.
        """
        found: dict[str, Object] = {}
        kept: dict[str, Object] = {}
        gone: set[str] = set()  # what was known of these has ended
        async for batch in stream:
            now = self._last_frame = self._clock.now()
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
                    self._bookmarks += 1
                    if event.initial_events_end:
                        # What has become undecodable stays as it was.
                        items = list({**kept, **found}.values())
                        self._replace(items, event.resource_version)
                        self._step(Listed(event.resource_version))
                        return batch[index + 1 :]
                else:
                    raise_if_end(event)
                    error = event_error(event)
                    self._report_undecodable(error, delay=None)
                    key = error.key if isinstance(error, ObjectDecodeError) else None
                    if kind == DELETED and key is not None:
                        found.pop(key, None)
                        kept.pop(key, None)
                        gone.add(key)
                    elif key is not None and key not in gone and (old := self._known(key)):
                        kept[key] = old
            if not batch or len(found) > before:
                watch.watchdog.heard(now)
        return None

    def _give(self, watch: _Watch, batch: Sequence[WatchEvent]) -> None:
        """Give events to the store, in order; raises at one that ends the watch."""
        take = self._take
        for event in batch:
            obj = event.object
            kind = event.type
            if obj is not None and (give := take.get(kind)) is not None:
                version = event.resource_version or obj.meta.resource_version
                last = self._version
                # Most versions are greater, as words of one length too.
                if not (len(version) == len(last) and version > last) and is_older(version, last):
                    # Deletions may carry the version of the last state.
                    if kind != DELETED and not watch.synthetic:
                        raise set_back(version, last)
                    version = ""
                if kind != ADDED:
                    watch.synthetic = False
                try:
                    give(obj)
                except Exception as error:  # noqa: BLE001 - one object never costs the others
                    self._lost(watch, error, obj.key)
                self._events += 1
                if version and not watch.synthetic:
                    self._version = version
            elif kind == BOOKMARK:
                self._bookmark(watch, event)
            else:
                raise_if_end(event)
                self._give_broken(watch, event)
                if event.resource_version and not is_older(event.resource_version, self._version):
                    self._version = event.resource_version

    def _give_broken(self, watch: _Watch, event: WatchEvent) -> None:
        error = event_error(event)
        key = error.key if isinstance(error, ObjectDecodeError) else None
        if event.type == DELETED and key is not None:
            # What it was can't be told, but that it is gone can.
            self._report_undecodable(error, delay=None)
            try:
                self._store.delete(DeletedFinalStateUnknown(key))
            except Exception as refused:  # noqa: BLE001 - as for events
                self._lost(watch, refused, key)
        elif isinstance(error, TransformError):
            # A list would bring the same again; the key stays as it was.
            self._report_undecodable(error, delay=None)
        else:
            self._lost(watch, error, key)

    def _bookmark(self, watch: _Watch, event: WatchEvent) -> None:
        self._bookmarks += 1
        version = event.resource_version
        if is_older(version, self._version):
            raise set_back(version, self._version)
        watch.synthetic = False
        watch.watchdog.allow(_SILENCE_SECONDS)
        if version:
            self._version = version
            try:
                self._store.bookmark(version)
            except Exception as error:  # noqa: BLE001 - as for events
                self._lost(watch, error, None)

    def _lost(self, watch: _Watch, error: Exception, key: str | None) -> None:
        """Report an event that was lost, and have everything listed anew a while later."""
        delay = self._backoff.delay(self._state.failures, self._rng)
        self._report_undecodable(error, delay=delay, key=key)
        watch.watchdog.end_in(delay)

    # --- Errors ---------------------------------------------------------------------------------

    def _ended(self, error: BaseException, doing: str) -> Ended:
        self._pending = (doing, error)
        return Ended(fault=fault_of(error), retry_after=retry_after(error))

    def _report_pending(self, delay: float) -> None:
        if self._pending is not None:
            (doing, error), self._pending = self._pending, None
            self._report(error, doing, delay=delay)

    def _report_undecodable(
        self, error: Exception, *, delay: float | None, key: str | None = None
    ) -> None:
        self._undecodable += 1
        if key is None and isinstance(error, ObjectDecodeError):
            key = error.key
        self._report(error, "decode", delay=delay, key=key)

    def _report(
        self, error: BaseException, doing: str, *, delay: float | None, key: str | None = None
    ) -> None:
        failure = Failure(error=error, doing=doing, name=self.name, key=key, delay=delay)
        self._errors += 1
        self._last_error = str(failure)
        self._last_error_at = self._clock.now()
        self._on_error(failure)
