"""Tells any number of handlers, each at its own pace."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec

from listwatch.cache.callers import Caller, HandlerStatistics, ThreadedCaller
from listwatch.cache.failures import OnError
from listwatch.cache.handlers import Added, Change, ResourceEventHandler, Updated
from listwatch.cache.pending import Marker, Pending
from listwatch.cache.store import Store
from listwatch.clock import Clock
from listwatch.errors import ListWatchError

#: How many changes a handler is given at a time.
_BATCH = 256
#: Resyncs of a handler that follow each other more closely would tell of nothing but themselves.
_SHORTEST_RESYNC = 1.0
_RESTING = HandlerStatistics(0, 0, 0.0, 0.0)

_Work: TypeAlias = Callable[[], Coroutine[object, object, None]]


class StoppedError(ListWatchError):
    """What was asked or waited for can't come any more: what would bring it has ended."""


class ListenerStatistics(msgspec.Struct, frozen=True, gc=False):
    """One handler and what it was told.

    Attributes:
        name: the handler's.
        pending: changes that wait for it.
        merged: changes that were merged into others, since too many waited.
        has_synced: it was told everything that was there at the beginning.
        handler: what it was told.
    """

    name: str
    pending: int
    merged: int
    has_synced: bool
    handler: HandlerStatistics


class Listener:
    """One of those who are told; what `SharedInformer.add_handler` returns.

    For the informer's event loop, but for `remove`, which any thread may call.
    """

    def __init__(self, processor: "Processor", name: str, bound: int | None) -> None:
        self.name = name
        self._processor = processor
        self._pending = Pending(bound)
        self._news = asyncio.Event()
        #: It has synced, or never will.
        self._settled = asyncio.Event()
        self._removed = False
        self._caller: Caller | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._serving: asyncio.Task[None] | None = None

    def is_of(self, processor: "Processor") -> bool:
        """Whether this processor tells it, or has told it until it was removed."""
        return self._processor is processor

    @property
    def has_synced(self) -> bool:
        """Whether it was told everything that was there at the beginning.

        True when the calls for it have returned, whether or not they raised.
        """
        return self._settled.is_set() and not self._removed

    @property
    def is_removed(self) -> bool:
        """Whether it is told nothing more."""
        return self._removed

    async def wait_for_sync(self) -> None:
        """Wait until it was told everything that was there at the beginning.

        Raises:
            StoppedError: it was removed, or the informer has ended, before that.
        """
        await self._settled.wait()
        if self._removed:
            raise StoppedError(f"{self.name} was removed or stopped before it synced")

    def statistics(self) -> ListenerStatistics:
        """Return what was told until now."""
        return ListenerStatistics(
            name=self.name,
            pending=len(self._pending),
            merged=self._pending.merged,
            has_synced=self.has_synced,
            handler=_RESTING if self._caller is None else self._caller.statistics(),
        )

    def remove(self) -> None:
        """Tell it nothing more; what waits is forgotten. Does nothing the second time.

        May be called before the informer has started and after it has ended, and by the handler
        itself. Once it has returned, no call of the handler begins. A call that is waiting is
        cancelled, unless the handler itself removes; one on a thread of the handler's goes on.
        """
        if self._removed:
            return
        self._removed = True  # here and not in the loop: the handler's thread looks before a call
        by_handler = self._caller is not None and self._caller.is_current_thread
        self._processor.in_loop(partial(self._leave, self._serving if by_handler else None))

    def _leave(self, spared: asyncio.Task[None] | None) -> None:
        self._processor.discard(self)
        self.close()
        if not self._tasks:
            return
        own = asyncio.current_task()
        for task in self._tasks:
            if task is not own and task is not spared:
                task.cancel()

    # --- For the processor ---

    def own(self, task: asyncio.Task[None]) -> None:
        """Have a task cancelled when the listener is removed."""
        self._tasks.append(task)

    def put(self, changes: Sequence[Change]) -> None:
        """Let changes wait."""
        if not self._removed:
            self._pending.put(changes)
            self._news.set()

    def put_marker(self) -> None:
        """Queue the sync marker behind the initial objects."""
        if not self._removed:
            self._pending.put_marker(Marker())
            self._news.set()

    def put_resync(self, store: Store) -> None:
        """Let all objects wait to be told again, unless those of an earlier resync wait."""
        if not self._pending.has_resyncs:
            self.put([Updated(obj, obj, is_resync=True) for obj in store.list()])

    def close(self) -> None:
        """Let nothing wait any more and wake whoever does."""
        self._removed = True
        self._pending.clear()
        self._news.set()
        self._settled.set()

    async def take(self) -> Sequence[Change]:
        """Wait for changes and return some, or none once it was removed."""
        while not self._removed:
            taken = self._pending.take(_BATCH)
            if isinstance(taken, Marker):
                # Whoever takes again has told what was taken before.
                self._settled.set()
            elif taken:
                return taken
            else:
                self._news.clear()
                await self._news.wait()
        return ()

    async def serve(self, caller: Caller) -> None:
        """Tell a handler until removed."""
        self._caller = caller
        self._serving = asyncio.current_task()
        try:
            while changes := await self.take():
                await caller.tell(changes, self._is_wanted)
        finally:
            if isinstance(caller, ThreadedCaller):
                caller.close()

    def _is_wanted(self) -> bool:
        return not self._removed


class Processor:
    """Tells listeners of changes: gives each its own queue and task.

    A listener that joins later is told the whole store first, then what comes, without a gap or
    a repetition. For one event loop.

    Args:
        store: what late listeners are told of.
        has_synced: whether all that was there at the beginning has been given to `finish`.
        on_error: is told what handlers raise.
        clock: time.
        name: of the informer.
    """

    def __init__(
        self,
        store: Store,
        *,
        has_synced: Callable[[], bool],
        on_error: OnError,
        clock: Clock,
        name: str,
    ) -> None:
        self._store = store
        self._has_synced = has_synced
        self._on_error = on_error
        self._clock = clock
        self._name = name
        # Dicts for their order, and because many may leave at once.
        self._listeners: dict[Listener, None] = {}
        self._joining: dict[Listener, None] = {}
        self._resyncing: list[Listener] = []
        self._starting: list[tuple[Listener, _Work]] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Between a write to the store and its changes' distribution nobody can join.
        self._writing = False
        self._ended = False

    @property
    def listeners(self) -> Sequence[Listener]:
        """Those who are told, in a list of the caller's own."""
        return [*self._listeners, *self._joining]

    # --- Joining and leaving ---

    def add(
        self,
        handler: ResourceEventHandler | None,
        *,
        name: str = "",
        resync_period: float | None = None,
        threaded: bool = False,
        max_pending: int | None = None,
    ) -> Listener:
        """Add a listener; without a handler its owner takes the changes.

        Raises:
            StoppedError: nobody is told any more.
            ValueError: a resync period of less than a second, or a bound of less than one.
        """
        if self._ended:
            raise StoppedError(
                f"{self._name or 'the informer'} has stopped and takes no more handlers"
            )
        if resync_period is not None and 0 < resync_period < _SHORTEST_RESYNC:
            raise ValueError(f"resync_period must be 1 s or more, not {resync_period:g} s")
        name = name or type(handler).__name__
        listener = Listener(self, name, max_pending)
        if handler is not None:
            kind = ThreadedCaller if threaded else Caller
            full_name = f"{self._name}: {name}" if self._name else name
            caller = kind(handler, on_error=self._on_error, clock=self._clock, name=full_name)
            self._start(listener, partial(listener.serve, caller))
        if resync_period:
            self._start(listener, partial(self._resync_forever, listener, resync_period))
        if self._writing:
            self._joining[listener] = None
        else:
            self._join(listener)
        return listener

    def _join(self, listener: Listener) -> None:
        self._listeners[listener] = None
        listener.put([Added(obj, True) for obj in self._store.list()])
        if self._has_synced():
            listener.put_marker()

    def discard(self, listener: Listener) -> None:
        """Forget a listener; does nothing if it is not known."""
        self._listeners.pop(listener, None)
        self._joining.pop(listener, None)

    def in_loop(self, work: Callable[[], None]) -> None:
        """Do some work in the event loop: at once in it, and while the processor does not run."""
        loop = self._loop
        if loop is None or loop is _running_loop():
            work()
        else:
            with suppress(RuntimeError):  # it is closed, after `end`
                loop.call_soon_threadsafe(work)

    def _start(self, listener: Listener, work: _Work) -> None:
        if self._tasks is None:
            self._starting.append((listener, work))
        elif not listener.is_removed:
            listener.own(self._tasks.create_task(work()))

    # --- Telling ---

    def begin(self) -> None:
        """Say that a write to the store begins: what is stored and what was told differ now."""
        self._writing = True

    def finish(self, changes: Sequence[Change]) -> None:
        """Say that the write is over, and tell of what it changed."""
        if changes:
            for listener in self._listeners:
                listener.put(changes)
        self._writing = False
        if self._joining:
            joining, self._joining = self._joining, {}
            for listener in joining:
                self._join(listener)
        if self._resyncing:
            resyncing, self._resyncing = self._resyncing, []
            for listener in resyncing:
                listener.put_resync(self._store)

    def mark_synced(self) -> None:
        """Tell those who have joined that all that was there at the beginning has been told.

        To be called once, as soon as `has_synced` is true and before anybody else joins.
        """
        for listener in self._listeners:
            listener.put_marker()

    async def _resync_forever(self, listener: Listener, period: float) -> None:
        while not listener.is_removed:
            await self._clock.sleep(period)
            if self._writing:
                self._resyncing.append(listener)
            else:
                listener.put_resync(self._store)

    # --- Running ---

    async def run(self) -> None:
        """Tell until cancelled. What waits to be told then is forgotten."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                starting, self._starting = self._starting, []
                for listener, work in starting:
                    self._start(listener, work)
                await self._loop.create_future()
        finally:
            self.end()

    def end(self) -> None:
        """Tell nobody any more; whoever waits for changes gets none."""
        self._ended = True
        self._tasks = None
        self._loop = None
        self._starting.clear()
        for listener in self.listeners:
            listener.close()
        self._listeners.clear()
        self._joining.clear()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
