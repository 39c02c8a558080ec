"""Delivers changes to any number of handlers, each at its own pace."""

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
from listwatch.inline import runs_inline

#: Changes given to a handler at a time.
_BATCH = 256
#: With a shorter period, a handler would be kept busy by resyncs alone.
_SHORTEST_RESYNC = 1.0
_RESTING = HandlerStatistics(0, 0, 0.0, 0.0)

_Work: TypeAlias = Callable[[], Coroutine[object, object, None]]


class StoppedError(ListWatchError):
    """The awaited result can't arrive any more: its source has stopped."""


class ListenerStatistics(msgspec.Struct, frozen=True, gc=False):
    """Statistics of one listener.

    Attributes:
        name: the handler's name.
        pending: changes that wait for it.
        merged: changes merged into others because too many waited.
        has_synced: it has received all initial objects.
        handler: what the handler received.
    """

    name: str
    pending: int
    merged: int
    has_synced: bool
    handler: HandlerStatistics


class Listener:
    """One receiver of changes, returned by `SharedInformer.add_handler`.

    For the informer's event loop, except `remove`, which any thread may call.
    """

    def __init__(self, processor: "Processor", name: str, bound: int | None) -> None:
        self.name = name
        self._processor = processor
        self._pending = Pending(bound)
        self._news = asyncio.Event()
        #: Set once it has synced, or never will.
        self._settled = asyncio.Event()
        self._removed = False
        self._caller: Caller | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._serving: asyncio.Task[None] | None = None

    def is_of(self, processor: "Processor") -> bool:
        """Whether this processor serves it, or served it until it was removed."""
        return self._processor is processor

    @property
    def has_synced(self) -> bool:
        """Whether the handler has received all initial objects.

        True once these calls have returned, whether or not they raised.
        """
        return self._settled.is_set() and not self._removed

    @property
    def is_removed(self) -> bool:
        """Whether it was removed."""
        return self._removed

    async def wait_for_sync(self) -> None:
        """Wait until the handler has received all initial objects.

        Raises:
            StoppedError: it was removed, or the informer ended, before that.
        """
        await self._settled.wait()
        if self._removed:
            raise StoppedError(f"{self.name} was removed or stopped before it synced")

    def statistics(self) -> ListenerStatistics:
        """Return statistics so far."""
        return ListenerStatistics(
            name=self.name,
            pending=len(self._pending),
            merged=self._pending.merged,
            has_synced=self.has_synced,
            handler=_RESTING if self._caller is None else self._caller.statistics(),
        )

    def remove(self) -> None:
        """Deliver nothing more and discard what waits. Does nothing the second time.

        May be called before the informer has started, after it has ended, and by the handler
        itself. Once this returns, no call of the handler starts. A call that is waiting is
        cancelled, unless the handler itself removes; one on the handler's own thread continues.
        """
        if self._removed:
            return
        self._removed = True  # here, not in the loop: the handler's thread checks before each call
        by_handler = self._caller is not None and self._caller.is_current_thread
        self._processor.in_loop(partial(self._leave, self._serving if by_handler else None))

    async def aclose(self) -> None:
        """Remove the handler, and return when its running call is over.

        A call that is waiting is cancelled; one on the handler's own thread runs to its end. When
        this returns, nothing of the handler runs any more. Cancelling this ends only the wait. Call
        it in the informer's event loop.

        Raises:
            RuntimeError: called by the handler itself, which can't await its own end: use `remove`.
        """
        if asyncio.current_task() in self._tasks:
            raise RuntimeError(
                f"the handler {self.name} can't await its own end: call remove() there"
            )
        self.remove()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._caller is not None:
            await self._caller.ended()

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
        """Cancel this task when the listener is removed."""
        self._tasks.append(task)

    def put(self, changes: Sequence[Change]) -> None:
        """Append changes."""
        if not self._removed:
            self._pending.put(changes)
            self._news.set()

    def put_marker(self) -> None:
        """Queue the sync marker behind the initial objects."""
        if not self._removed:
            self._pending.put_marker(Marker())
            self._news.set()

    def put_resync(self, store: Store) -> None:
        """Append all objects for a resync, unless those of an earlier resync still wait."""
        if not self._pending.has_resyncs:
            self.put([Updated(obj, obj, is_resync=True) for obj in store.list()])

    def close(self) -> None:
        """Append nothing more, and wake all waiting tasks."""
        self._removed = True
        self._pending.clear()
        self._news.set()
        self._settled.set()

    async def take(self) -> Sequence[Change]:
        """Wait for changes and return some, or none once it was removed."""
        while not self._removed:
            taken = self._pending.take(_BATCH)
            if isinstance(taken, Marker):
                # Taking again means that the previous changes have been delivered.
                self._settled.set()
            elif taken:
                return taken
            else:
                self._news.clear()
                await self._news.wait()
        return ()

    async def serve(self, caller: Caller) -> None:
        """Call a handler with the changes until removed."""
        self._caller = caller
        self._serving = asyncio.current_task()
        try:
            while changes := await self.take():
                await caller.deliver(changes, self._is_wanted)
        finally:
            if isinstance(caller, ThreadedCaller):
                caller.close()

    def _is_wanted(self) -> bool:
        return not self._removed


class Processor:
    """Delivers changes to listeners: each has its own queue and task.

    A listener that joins later first gets the whole store, then every change, without gap or
    repetition. For one event loop.

    Args:
        store: what late listeners get first.
        has_synced: whether all initial objects have been passed to `finish`.
        on_error: called with what handlers raise.
        clock: the time.
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
        # No listener can join between a write to the store and the delivery of its changes.
        self._writing = False
        self._ended = False

    @property
    def listeners(self) -> Sequence[Listener]:
        """The listeners, in a new list."""
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
            StoppedError: the processor has ended.
            ValueError: a resync period under a second, or a bound under one.
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
            kind = ThreadedCaller if threaded and not runs_inline.get() else Caller
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
        """Remove a listener; do nothing if it is unknown."""
        self._listeners.pop(listener, None)
        self._joining.pop(listener, None)

    def in_loop(self, work: Callable[[], None]) -> None:
        """Run `work` in the event loop: at once if already in it, or if it does not run."""
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

    # --- Delivering ---

    def begin(self) -> None:
        """Start a write: until `finish`, the store is ahead of what was delivered."""
        self._writing = True

    def finish(self, changes: Sequence[Change]) -> None:
        """End the write, and deliver its changes."""
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
        """Mark the end of the initial objects for the listeners that have joined.

        Call once, as soon as `has_synced` is true and before another listener joins.
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
        """Deliver changes until cancelled. Changes still waiting are then discarded."""
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
        """Deliver nothing more; tasks that wait for changes get none."""
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
