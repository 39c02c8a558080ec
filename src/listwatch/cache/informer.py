"""A cache of one resource with one handler: the smallest informer."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, TypeAlias

import msgspec

from listwatch.backoff import Backoff
from listwatch.cache.callers import Caller, HandlerStatistics
from listwatch.cache.controller import Controller, ControllerConfig, ControllerStatistics
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Deltas, Queue, Rewrite
from listwatch.cache.failures import Failure, LogFailures, OnError
from listwatch.cache.handlers import ResourceEventHandler
from listwatch.cache.known import NewestKnown
from listwatch.cache.list_watch import Decoder, ListerWatcher
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.reflector import Reflector
from listwatch.cache.store import Indexer, IndexFunc, StoreStatistics
from listwatch.cache.writer import DeltaProcessor
from listwatch.clock import Clock
from listwatch.objects import ObjectDecoder

#: The queue between reflector and store. "ordered" keeps the server's order and does not report
#: objects that a relist left unchanged; "delta" keeps unprocessed changes by key. Otherwise a queue
#: of the caller's, or a callable that creates one for the given indexer.
FIFOChoice: TypeAlias = Literal["ordered", "delta"] | Queue | Callable[[Indexer], Queue]


class InformerStatistics(msgspec.Struct, frozen=True):
    """What an informer has done.

    Attributes:
        controller: reflector and queue.
        store: the cache.
        handler: what the handler received.
    """

    controller: ControllerStatistics
    store: StoreStatistics
    handler: HandlerStatistics


class Informer:
    """Keeps an indexer in sync with a resource on a server, and calls one handler.

    The store has a change before the handler sees it. The handler gets one change at a time; while
    it waits, the store waits too, and changes stay in the queue. For a slow handler use a
    `SharedInformer`.

    Start it with `async with informer:`, or with `run` in your own task. It runs once. For one
    event loop; any thread may read the indexer.

    Args:
        list_watch: the resource.
        handler: called with every change; for another type use a `DecodingEventHandler`.
        indexers: index functions by name.
        resync_period: seconds between re-deliveries of every object; None for never.
        fifo: the queue; a queue of the caller's has its own rewrite.
        fields: a Struct of the fields to keep decoded with each object (see `ObjectDecoder`).
        decoder: creates objects from bytes, instead of `fields`.
        rewrite: changes objects before they are stored.
        name: for logs and metrics.
        clock: the time.
        page_size: objects per page of a list.
        watch_list: stream the initial state if the server supports it.
        on_error: called with every failure; by default they are logged.
        backoff: delays after failures.
        rng: source of randomness.

    Raises:
        ValueError: both `fields` and `decoder`.
    """

    def __init__(
        self,
        list_watch: ListerWatcher,
        handler: ResourceEventHandler,
        *,
        indexers: Mapping[str, IndexFunc] | None = None,
        resync_period: float | None = None,
        fifo: FIFOChoice = "ordered",
        fields: type[msgspec.Struct] | None = None,
        decoder: Decoder | None = None,
        rewrite: Rewrite | None = None,
        name: str = "",
        clock: Clock | None = None,
        page_size: int = 500,
        watch_list: bool = True,
        on_error: OnError | None = None,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if fields is not None and decoder is not None:
            raise ValueError("give an informer either fields= or decoder=, not both")
        self.name = name
        clock = clock if clock is not None else Clock()
        on_error = on_error if on_error is not None else LogFailures(clock)
        self.indexer = Indexer(indexers=indexers, clock=clock)
        self._caller = Caller(handler, on_error=on_error, clock=clock, name=name)
        self._ordered = fifo == "ordered"
        self._processor = DeltaProcessor(
            self.indexer, on_error=on_error, clock=clock, name=name, ordered=self._ordered
        )
        self._queue = make_queue(
            fifo, self.indexer, rewrite=rewrite, clock=clock, on_error=on_error, name=name
        )
        self._controller = Controller(
            ControllerConfig(
                queue=self._queue,
                lister_watcher=list_watch,
                process_batch=self._process,
                full_resync_period=resync_period,
                name=name,
                decoder=decoder if decoder is not None else ObjectDecoder(fields=fields),
                clock=clock,
                page_size=page_size,
                watch_list=watch_list,
                known=NewestKnown(self._queue, self.indexer),
                on_error=on_error,
                backoff=backoff,
                rng=rng,
            )
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def store(self) -> Indexer:
        """Alias of `indexer`."""
        return self.indexer

    @property
    def reflector(self) -> Reflector:
        """The reflector."""
        return self._controller.reflector

    @property
    def has_synced(self) -> bool:
        """Whether the handler has received all initial objects."""
        return self._controller.has_synced

    async def wait_for_sync(self) -> None:
        """Wait until the handler has received all initial objects.

        Raises:
            StoppedError: the informer ended before that.
        """
        await self._controller.wait_for_sync()

    def statistics(self) -> InformerStatistics:
        """Return statistics so far."""
        return InformerStatistics(
            controller=self._controller.statistics(),
            store=self.indexer.statistics(),
            handler=self._caller.statistics(),
        )

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        await self._controller.run()

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("an informer runs once: create a new one")
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = self._tasks.create_task(self.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None and self._running is not None  # noqa: S101, PT018 - for the type checker
        self._running.cancel()
        await self._tasks.__aexit__(kind, error, traceback)

    async def _process(self, batch: Sequence[Deltas]) -> None:
        changes = await self._processor.apply(batch)
        if not self._ordered and not self._queue.statistics().depth:
            # Without an order, only an empty queue shows the version applied.
            self.indexer.bookmark(self.reflector.last_sync_resource_version)
        await self._caller.deliver(changes)


def make_queue(
    choice: FIFOChoice,
    indexer: Indexer,
    *,
    rewrite: Rewrite | None,
    clock: Clock,
    on_error: OnError,
    name: str,
) -> Queue:
    """Create the queue in front of an indexer."""

    def report(failure: Failure) -> None:
        on_error(msgspec.structs.replace(failure, name=name))

    if choice == "ordered":
        return OrderedFIFO(rewrite=rewrite, clock=clock, on_error=report)
    if choice == "delta":
        return DeltaFIFO(
            known_objects=indexer,
            rewrite=rewrite,
            emit_replaced=True,
            clock=clock,
            on_error=report,
        )
    return choice if isinstance(choice, Queue) else choice(indexer)
