"""A reflector that feeds a queue, and the loop that empties it."""

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
    """What a `Controller` is made of.

    Attributes:
        queue: between reflector and process function; the controller closes it when it ends.
        lister_watcher: the resource.
        process: takes the deltas of one key. What it raises is reported and counted; the deltas
            are dropped unless a `RequeueError` asks for them again.
        process_batch: takes the deltas of many keys, in place of `process`.
        full_resync_period: seconds between resyncs; None for none.
        on_synced: is called once, when everything that was there at the beginning was processed.
        name: for logs and metrics.
        decoder: makes the objects of bytes.
        clock: time.
        page_size: as for `Reflector`.
        watch_list: as for `Reflector`.
        known: as for `Reflector`.
        on_error: is told of every failure; logs them if not given.
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
        reflector: what feeds the queue.
        queue: the queue.
        failures: times that the process function raised.
        has_synced: everything that was there at the beginning was processed.
    """

    reflector: ReflectorStatistics
    queue: QueueStatistics
    failures: int
    has_synced: bool


class Controller:
    """Runs a reflector into a queue, and a process function on what comes out of it.

    This is the pop loop of the field's `cache.Controller`; what reacts to changes of a key is a
    reconciler. For one event loop, and for one run.

    Args:
        config: what it is made of.

    Raises:
        ValueError: not exactly one of `process` and `process_batch` is there.
    """

    def __init__(self, config: ControllerConfig) -> None:
        if (config.process is None) is (config.process_batch is None):
            raise ValueError("give a ControllerConfig either process or process_batch")
        self._config = config
        self._clock = config.clock
        self._on_error = (
            config.on_error if config.on_error is not None else LogFailures(config.clock)
        )
        #: The queue, which knows, has synced, or never will.
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
        """Whether everything that was there at the beginning was processed."""
        return self._config.queue.has_synced

    @property
    def last_sync_resource_version(self) -> str:
        """Everything up to this version is in the queue, or was."""
        return self.reflector.last_sync_resource_version

    def statistics(self) -> ControllerStatistics:
        """Return what has been done until now."""
        return ControllerStatistics(
            reflector=self.reflector.statistics(),
            queue=self._config.queue.statistics(),
            failures=self._failures,
            has_synced=self.has_synced,
        )

    async def wait_for_sync(self) -> None:
        """Wait until everything that was there at the beginning was processed.

        Raises:
            StoppedError: the controller has ended before that.
        """
        await self._settled.wait()
        if not self.has_synced:
            raise StoppedError(f"{self._config.name or 'the informer'} stopped before it synced")

    async def run(self) -> None:
        """Reflect and process until cancelled, or until somebody closes the queue.

        What waits in the queue at a cancellation is left there.
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
            except Exception as error:  # noqa: BLE001 - whatever a process function raises is survived
                self._failed(error, None)
            if not self._settled.is_set() and queue.has_synced:
                self._settled.set()
                if self._config.on_synced is not None:
                    self._config.on_synced()
            # A pop that finds something waits for nothing.
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
    """Carries the key to where the error of a process function is reported."""

    def __init__(self, cause: Exception, key: str) -> None:
        self.cause = cause
        self.key = key
        super().__init__(str(cause))
