"""A reflector that feeds a queue, and the loop that processes it."""

import asyncio
import random
from collections.abc import Callable

import msgspec

from listwatch.backoff import Backoff
from listwatch.cache.callers import YIELD_SECONDS
from listwatch.cache.deltas import (
    BatchProcess,
    Deltas,
    Process,
    Queue,
    QueueStatistics,
    RequeueError,
)
from listwatch.cache.failures import Failure, LogFailures, OnError
from listwatch.cache.list_watch import Decoder, ListerWatcher
from listwatch.cache.processor import StoppedError
from listwatch.cache.reflector import Reflector
from listwatch.cache.reflector_statistics import ReflectorStatistics
from listwatch.clock import Clock, stray
from listwatch.errors import QueueClosedError
from listwatch.objects import Object, decode_object


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `Controller`.

    Attributes:
        queue: between reflector and process function; the controller closes it when it ends.
        lister_watcher: the resource.
        process: processes the deltas of one key. An exception is reported and counted; the deltas
            are dropped unless it is a `RequeueError`.
        process_batch: processes the deltas of many keys, instead of `process`.
        full_resync_period: seconds between resyncs; None for never.
        on_synced: called once, when all initial objects have been processed.
        name: for logs and metrics.
        decoder: creates objects from bytes.
        clock: the time.
        page_size: as for `Reflector`.
        watch_list: as for `Reflector`.
        known: as for `Reflector`.
        on_error: called with every failure; by default they are logged.
        backoff: as for `Reflector`.
        rng: as for `Reflector`.
    """

    queue: Queue
    lister_watcher: ListerWatcher
    process: Process | None = None
    process_batch: BatchProcess | None = None
    full_resync_period: float | None = None
    on_synced: Callable[[], None] | None = None
    name: str = ""
    decoder: Decoder = decode_object
    clock: Clock = msgspec.field(default_factory=Clock)
    page_size: int = 500
    watch_list: bool = True
    known: Callable[[str], Object | None] | None = None
    on_error: OnError | None = None
    backoff: Backoff | None = None
    rng: random.Random | None = None


class ControllerStatistics(msgspec.Struct, frozen=True):
    """What a controller has done.

    Attributes:
        reflector: the reflector.
        queue: the queue.
        failures: times that the process function raised.
        has_synced: all initial objects have been processed.
    """

    reflector: ReflectorStatistics
    queue: QueueStatistics
    failures: int
    has_synced: bool


class Controller:
    """Runs a reflector into a queue, and a process function on what is popped.

    This is the pop loop of client-go's `cache.Controller`; to react to changes of a key, use a
    reconciler. For one event loop, and for one run.

    Args:
        config: its parts.

    Raises:
        ValueError: not exactly one of `process` and `process_batch` is given.
    """

    def __init__(self, config: ControllerConfig) -> None:
        if (config.process is None) is (config.process_batch is None):
            raise ValueError("give a ControllerConfig either process or process_batch")
        self._config = config
        self._clock = config.clock
        self._on_error = (
            config.on_error if config.on_error is not None else LogFailures(config.clock)
        )
        #: Set once the queue has synced, or never will.
        self._settled = asyncio.Event()
        self._stopped = False
        self._failures = 0
        self.reflector = Reflector(
            config.lister_watcher,
            config.queue,
            name=config.name,
            resync_period=config.full_resync_period,
            decoder=config.decoder,
            clock=config.clock,
            page_size=config.page_size,
            watch_list=config.watch_list,
            known=config.known,
            on_error=self._on_error,
            backoff=config.backoff,
            rng=config.rng,
        )

    @property
    def has_synced(self) -> bool:
        """Whether all initial objects have been processed."""
        return self._config.queue.has_synced

    @property
    def last_sync_resource_version(self) -> str:
        """Everything up to this version has been queued."""
        return self.reflector.last_sync_resource_version

    def statistics(self) -> ControllerStatistics:
        """Return statistics so far."""
        return ControllerStatistics(
            reflector=self.reflector.statistics(),
            queue=self._config.queue.statistics(),
            failures=self._failures,
            has_synced=self.has_synced,
        )

    async def wait_for_sync(self) -> None:
        """Wait until all initial objects have been processed.

        Raises:
            StoppedError: the controller ended before that.
        """
        await self._settled.wait()
        if not self.has_synced:
            raise StoppedError(f"{self._config.name or 'the informer'} stopped before it synced")

    async def run(self) -> None:
        """Reflect and process until cancelled, or until the queue is closed.

        Cancelling leaves the remaining entries in the queue.
        """
        if self._stopped:
            raise RuntimeError("a controller runs once: create a new one")
        try:
            async with asyncio.TaskGroup() as tasks:
                reflecting = tasks.create_task(self.reflector.run())
                await self._process_forever()
                reflecting.cancel()
        finally:
            self._stopped = True
            self._config.queue.close()
            self._settled.set()

    async def _process_forever(self) -> None:
        queue, clock = self._config.queue, self._clock
        batch_process = self._config.process_batch
        yielded = clock.now()
        while True:
            try:
                if batch_process is not None:
                    await queue.pop_batch(batch_process)
                else:
                    await queue.pop(self._process)
            except QueueClosedError:
                return
            except _ProcessError as error:
                self._failed(error.cause, error.key)
            except asyncio.CancelledError as cancellation:
                self._failed(stray(cancellation), None)
            except Exception as error:  # noqa: BLE001 - survive any exception of a process function
                self._failed(error, None)
            if not self._settled.is_set() and queue.has_synced:
                self._settled.set()
                if self._config.on_synced is not None:
                    self._config.on_synced()
            # A pop that finds an entry never yields to the event loop.
            if clock.now() - yielded >= YIELD_SECONDS:
                await clock.sleep(0)
                yielded = clock.now()

    async def _process(self, deltas: Deltas) -> None:
        assert self._config.process is not None  # noqa: S101 - for the type checker
        try:
            if (waiting := self._config.process(deltas)) is not None:
                await waiting
        except RequeueError:
            raise
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - as above; it is raised again
            error = stray(raised) if isinstance(raised, asyncio.CancelledError) else raised
            raise _ProcessError(error, deltas.key) from error

    def _failed(self, error: Exception, key: str | None) -> None:
        self._failures += 1
        self._on_error(Failure(error=error, doing="process", name=self._config.name, key=key))


class _ProcessError(Exception):
    """Carries the key to the place that reports the error of a process function."""

    def __init__(self, cause: Exception, key: str) -> None:
        self.cause = cause
        self.key = key
        super().__init__(str(cause))
