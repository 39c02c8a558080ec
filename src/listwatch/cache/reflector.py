"""Keeps a store in sync with a resource on a server, by list and watch."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec

from listwatch.backoff import REFLECTOR, Backoff, RequestBudget
from listwatch.cache import reflector_machine as machine
from listwatch.cache.deltas import ReflectorStore
from listwatch.cache.failures import BoundedRate, Failure, LogFailures, OnError
from listwatch.cache.known import KnownMeanwhile, KnowsMissing, NewestKnown
from listwatch.cache.list_watch import (
    Decoder,
    KnowsDefinition,
    KnowsObjects,
    KnowsServer,
    ListerWatcher,
    ListOptions,
    ObjectList,
    WatchOptions,
    WatchStream,
)
from listwatch.cache.missing import ListResult, ask_for_missing
from listwatch.cache.pages import pages
from listwatch.cache.reflector_machine import (
    HEALTHY_SECONDS,
    Bookmarks,
    Ended,
    Input,
    Inquired,
    Listed,
    Phase,
    Probed,
    RequestFault,
    State,
    Wait,
    Woke,
    fault_of,
)
from listwatch.cache.reflector_statistics import ReflectorStatistics
from listwatch.cache.watch_reading import (
    SetBackError,
    UselessWatchError,
    Watch,
    Watchdog,
    WatchEndedError,
    WatchReader,
)
from listwatch.clock import Clock, stray
from listwatch.errors import DisconnectedError, StatusError
from listwatch.objects import Object, ObjectDecodeError, decode_object

#: Bounds of a watch's timeoutSeconds. The value is uniform between them, so that the watches of
#: many clients don't end together (client-go `tools/cache/reflector.go`).
_WATCH_SECONDS: Final = (300, 600)
#: How long a list may take to begin, including its connection and a second try.
_ANSWER_SECONDS: Final = 150.0
#: How long a list that has begun may be silent.
_LIST_SILENCE_SECONDS: Final = 75.0
#: This many undecodable items cause another strategy.
_MANY: Final = 50
#: Time limit of the queries after initial events.
_QUESTIONS_SECONDS: Final = 600.0
#: An unreachable server is tried anyway after this many times the longest wait, in case the
#: `KnowsServer` is wrong. The request budget's minute has the same length.
_LONGEST_WAITS: Final = 2.0


class Reflector:
    """Keeps a store in sync with a resource on a server: lists it, then watches it, for ever.

    `reflector_machine.step` decides what it does and when. It survives every fault: it reports the
    fault, waits, and does the least that corrects the store: continue the watch, or relist. For one
    event loop. If the store raises for an object, only that object is affected.

    Args:
        lister_watcher: the resource.
        store: the store to feed.
        name: for logs and metrics.
        resync_period: seconds between calls of `store.resync`; None or 0 for never.
        decoder: creates objects from bytes.
        clock: the time.
        page_size: objects per page of a list; 0 requests everything at once.
        watch_list: stream the initial state if the server supports it.
        known: returns the newest object of a key that the store was given, so that an item that has
            become undecodable stays as it was instead of counting as deleted. By default what the
            store or queue itself knows (`known.NewestKnown`).
        on_error: called with every failure; by default they are logged.
        backoff: delays after failures; by default `backoff.REFLECTOR`.
        rng: source of randomness.
    """

    def __init__(
        self,
        lister_watcher: ListerWatcher,
        store: ReflectorStore,
        *,
        name: str = "",
        resync_period: float | None = None,
        decoder: Decoder = decode_object,
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
        self._server = lister_watcher if isinstance(lister_watcher, KnowsServer) else None
        self._definition = lister_watcher if isinstance(lister_watcher, KnowsDefinition) else None
        self._store = store
        self._resync_period = resync_period or 0.0
        self._decoder = decoder
        self._clock = clock if clock is not None else Clock()
        self._page_size = page_size
        newest: object = known if known is not None else NewestKnown(store)
        self._knows_missing = newest if isinstance(newest, KnowsMissing) else None
        self._known = known if known is not None else NewestKnown(store)
        on_error = on_error if on_error is not None else LogFailures(self._clock)
        self._on_error = BoundedRate(on_error, self._clock)
        self._backoff = backoff if backoff is not None else REFLECTOR
        self._budget = RequestBudget(min(60.0, _LONGEST_WAITS * self._backoff.cap))
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads requests, not cryptography
        streaming = machine.Streaming.YES if watch_list else machine.Streaming.NEVER
        self._first_state = State(streaming=streaming)
        self._state = self._first_state
        self._reader = WatchReader(
            store,
            clock=self._clock,
            known=self._known,
            on_undecodable=self._report_undecodable,
            relist_delay=lambda: self._backoff.delay(self._state.failures, self._rng),
        )
        self._watch_now: Watch | None = None
        self._last_failure: Failure | None = None
        self._last_failed_at = 0.0
        self._pending: tuple[str, BaseException] | None = None
        self._has_unproven = False
        self._lists = self._watches = self._probes = self._relists = 0
        self._undecodable = self._errors = 0

    @property
    def state(self) -> Phase:
        """The current activity."""
        return self._state.phase

    @property
    def last_sync_resource_version(self) -> str:
        """Everything up to this version has been given to the store; unset before the first list.

        Unset again once the resource is no longer defined. The store may not have processed
        everything yet.
        """
        watch = self._watch_now
        return (watch is not None and watch.version) or self._state.resource_version

    def statistics(self) -> ReflectorStatistics:
        """Return statistics so far."""
        now = self._clock.now()
        reader, failure = self._reader, self._last_failure
        return ReflectorStatistics(
            state=self._state.phase,
            resource_version=self.last_sync_resource_version,
            last_frame_age=None if reader.last_frame is None else now - reader.last_frame,
            last_error="" if failure is None else str(failure),
            last_error_age=None if failure is None else now - self._last_failed_at,
            failures=self._state.failures,
            lists=self._lists,
            watches=self._watches,
            probes=self._probes,
            relists=self._relists,
            events=reader.events,
            bookmarks=reader.bookmarks,
            undecodable=self._undecodable,
            stale=len(reader.stale),
            errors=self._errors,
        )

    def relist(self) -> None:
        """Relist now if a watch is open; otherwise do nothing."""
        if self._watch_now is not None and self._state.phase is Phase.WATCHING:
            self._watch_now.watchdog.end_in(0.0)

    async def run(self) -> None:
        """Feed the store until cancelled. May be called again after that, and then starts over.

        Otherwise it ends only if `on_error` raises, or by a bug of ours.
        """
        if self.state not in {Phase.IDLE, Phase.STOPPED}:
            raise RuntimeError(f"reflector {self.name!r} is already running")
        self._state = self._first_state
        self._pending = None
        self._budget.recovered()
        try:
            if self._resync_period > 0:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._resync_forever())
                    tasks.create_task(self._reflect())
            else:
                await self._reflect()
        finally:
            self._step(machine.Stopped(self.last_sync_resource_version))

    async def _reflect(self) -> None:
        message: Input = machine.Started()
        while True:
            message = await self._perform(self._step(message))

    def _step(self, message: Input) -> machine.Effect:
        if isinstance(message, Ended | machine.Stopped):
            self._watch_now = None  # it has reported how far it came
        if isinstance(message, Ended):
            if message.lasted >= HEALTHY_SECONDS:
                self._budget.recovered()
            if message.fault is not None or message.lasted < HEALTHY_SECONDS:
                self._budget.failed(self._clock.now())
        self._state, effect = machine.step(self._state, message)
        return effect

    async def _perform(self, effect: machine.Effect) -> Input:
        if isinstance(effect, Wait):
            return await self._wait(effect)
        delay = self._budget.delay(self._clock.now())
        self._report_pending(delay)
        if delay > 0:
            await self._clock.sleep(delay)
        self._budget.spend(self._clock.now())
        match effect:
            case machine.List():
                return await self._list()
            case machine.WatchList():
                return await self._watch("", initial=True)
            case machine.OpenWatch(version):
                return await self._watch(version, initial=False)
            case machine.Probe():
                return await self._probe()
            case machine.Inquire():
                return await self._inquire()
        raise machine.UnexpectedInputError(f"{effect} cannot be performed")

    # --- Waits ----------------------------------------------------------------------------------

    async def _wait(self, wait: Wait) -> Woke:
        delay = max(self._backoff.delay(wait.failures, self._rng) * wait.share, wait.at_least)
        self._report_pending(delay)
        if wait.for_server and self._server is not None:
            return Woke(restored=await self._is_restored(self._server, delay))
        await self._clock.sleep(delay)
        return Woke()

    async def _is_restored(self, server: KnowsServer, delay: float) -> bool:
        """Wait until the server is back, or at least the delay; return whether it was away."""
        clock = self._clock
        ends = clock.now() + delay
        longest = max(delay, _LONGEST_WAITS * self._backoff.cap)
        try:
            async with clock.timeout(longest):
                restored = await server.wait_until_reachable()
        except TimeoutError:
            return False
        except asyncio.CancelledError as cancellation:
            self._report(stray(cancellation), "connect", delay=delay)
            restored = False
        except Exception as error:  # noqa: BLE001 - survive any exception of a source
            self._report(error, "connect", delay=delay)
            restored = False
        # The informers of all clients notice this at once, and should not all send requests at
        # once.
        spread = self._rng.random() * 2.0 * self._backoff.base
        await clock.sleep(spread if restored else ends - clock.now())
        return restored

    # --- Resync ---------------------------------------------------------------------------------

    async def _resync_forever(self) -> None:
        while True:
            await self._clock.sleep(self._resync_period)
            try:
                self._store.resync()
            except Exception as error:  # noqa: BLE001 - reported; the next period tries again
                self._report(error, "resync", delay=self._resync_period)

    # --- Lists ----------------------------------------------------------------------------------

    async def _list(self) -> Input:
        try:
            result, version = await self._list_all()
            await self._replace(result, version)
        except asyncio.CancelledError as cancellation:
            return self._ended(stray(cancellation), "list")
        except Exception as error:  # noqa: BLE001 - survive any exception of a source or store
            return self._ended(error, "list")
        return Listed(version)

    async def _list_all(self) -> tuple[ListResult, str]:
        result, version = ListResult(), ""
        known = KnownMeanwhile(self._known)
        listing = pages(self._list_page, page_size=self._page_size, decoder=self._decoder)
        async for page, anew in listing:
            if anew:
                result, version = ListResult(), page.resource_version
            await self._accept(result, page, known)
        return result, version

    async def _list_page(self, options: ListOptions) -> ObjectList:
        self._lists += 1
        watchdog = Watchdog(self._clock, _ANSWER_SECONDS)

        def progress() -> None:
            self._reader.last_frame = now = self._clock.now()
            watchdog.heard(now)
            watchdog.allow(_LIST_SILENCE_SECONDS)

        async with watchdog:
            page = await self._source.list(msgspec.structs.replace(options, progress=progress))
        self._reader.last_frame = self._clock.now()
        return page

    async def _accept(self, result: ListResult, page: ObjectList, known: KnownMeanwhile) -> None:
        result.items += page.items
        for number, error in enumerate(page.undecodable):
            self._report_undecodable(error)
            if error.key is None:
                result.nameless = True
            elif error.key not in result.stale and (kept := known(error.key)) is not None:
                result.items.append(kept)
                result.stale.add(error.key)
            if number % _MANY == _MANY - 1:
                await self._clock.sleep(0)

    async def _replace(self, result: ListResult, version: str) -> None:
        if result.nameless and self._knows_missing is not None:
            missing = self._knows_missing.missing({obj.key for obj in result.items})
            self._has_unproven = await ask_for_missing(
                result,
                missing,
                self._source if isinstance(self._source, KnowsObjects) else None,
                decoder=self._decoder,
                rng=self._rng,
                report=lambda error, key: self._report_undecodable(error, key=key),
            )
        self._reader.replace(result, version)
        self._relists += 1

    async def _probe(self) -> Input:
        self._probes += 1
        try:
            page = await self._list_page(ListOptions(limit=1, decoder=self._decoder))
        except asyncio.CancelledError as cancellation:
            return self._ended(stray(cancellation), "list of one item")
        except Exception as error:  # noqa: BLE001 - survive any exception of a source
            return self._ended(error, "list of one item")
        return Probed(page.resource_version)

    async def _inquire(self) -> Input:
        if self._definition is None:
            return Inquired(gone=False)
        try:
            gone = await self._definition.is_gone()
            if gone:
                await self._replace(ListResult(), self._state.resource_version)
        except asyncio.CancelledError as cancellation:
            return self._ended(stray(cancellation), "look for the definition")
        except Exception as error:  # noqa: BLE001 - survive any exception of a source or store
            return self._ended(error, "look for the definition")
        return Inquired(gone)

    # --- Watches --------------------------------------------------------------------------------

    async def _watch(self, version: str, *, initial: bool) -> Ended:
        self._watches += 1
        watch = Watch(
            self._clock,
            version,
            self._rng.randrange(*_WATCH_SECONDS),
            expects_bookmarks=self._state.bookmarks is not Bookmarks.NONE,
        )
        options = WatchOptions(
            resource_version=version,
            resource_version_match="NotOlderThan" if initial else "",
            send_initial_events=initial,
            timeout_seconds=watch.seconds,
            decoder=self._decoder,
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
        except Exception as raised:  # noqa: BLE001 - survive any exception of a source
            error = raised
        return self._watch_ended(watch, error)

    async def _read(self, watch: Watch, stream: WatchStream, *, initial: bool) -> None:
        if not initial:
            self._ask_again(watch)
            await self._reader.follow(watch, stream)
        elif (read := await self._reader.read_initial(watch, stream)) is not None:
            result, version, rest = read
            watch.watchdog.allow(_QUESTIONS_SECONDS)
            await self._replace(result, version)
            self._step(Listed(version))
            watch.version = version
            watch.synthetic = False
            self._ask_again(watch)
            await self._reader.follow(watch, stream, rest)

    def _ask_again(self, watch: Watch) -> None:
        """Relist after a while if the last list left something unproven."""
        if self._has_unproven:
            self._has_unproven = False
            watch.watchdog.end_in(self._backoff.delay(self._state.failures, self._rng))

    def _watch_ended(self, watch: Watch, error: Exception | None) -> Ended:
        initial = self._state.phase is Phase.WATCH_LISTING
        lasted = 0.0 if watch.opened is None else self._clock.now() - watch.opened
        fault = None if error is None else fault_of(error, opened=watch.opened is not None)
        if watch.watchdog.expired:
            fault = watch.watchdog.fault
            error = TimeoutError(f"the server was silent for {watch.watchdog.silence:g} s")
            if initial and watch.opened is not None:
                fault = RequestFault.NO_END
                error = TimeoutError("the server did not end the initial events")
            elif fault is RequestFault.STALE:
                error = None  # reported when the event was lost
        elif isinstance(error, SetBackError):
            fault = RequestFault.SET_BACK
        elif isinstance(error, UselessWatchError):
            fault = RequestFault.USELESS
        elif error is None and initial:
            error = WatchEndedError("the server ended the watch before its initial events")
        elif error is None and lasted < HEALTHY_SECONDS:
            error = WatchEndedError(f"the server ended the watch after {lasted:.1f} s")
        if error is not None:
            self._pending = ("watch with initial events" if initial else "watch", error)
        return Ended(
            fault=fault,
            resource_version=watch.version,
            lasted=lasted,
            quiet=watch.quiet,
            bookmarked=watch.bookmarked_at is not None,
            stale=watch.watchdog.is_stale,
            retry_after=_retry_after(error),
        )

    # --- Errors ---------------------------------------------------------------------------------

    def _ended(self, error: BaseException, doing: str) -> Ended:
        self._pending = (doing, error)
        return Ended(fault=fault_of(error), retry_after=_retry_after(error))

    def _report_pending(self, delay: float) -> None:
        if self._pending is not None:
            (doing, error), self._pending = self._pending, None
            if isinstance(error, DisconnectedError) and error.refused:
                self._budget.refund()
            self._report(error, doing, delay=delay)

    def _report_undecodable(
        self, error: Exception, delay: float | None = None, key: str | None = None
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
        self._last_failure = failure
        self._last_failed_at = self._clock.now()
        self._on_error(failure)


def _retry_after(error: BaseException | None) -> float:
    """Return how many seconds the server asks to wait; 0 if it doesn't."""
    return (error.retry_after or 0.0) if isinstance(error, StatusError) else 0.0
