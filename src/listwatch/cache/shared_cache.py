"""The watch and the cache of one resource, shared by all views of a shared informer."""

import asyncio
import random
from collections.abc import Mapping
from types import TracebackType

import msgspec

from listwatch.backoff import Backoff
from listwatch.cache.audit import Auditor
from listwatch.cache.compression import CompressionStatistics, ZstdCodec
from listwatch.cache.controller import Controller, ControllerConfig, ControllerStatistics
from listwatch.cache.failures import Failure, LogFailures, OnError
from listwatch.cache.informer import make_queue
from listwatch.cache.known import NewestKnown
from listwatch.cache.list_watch import Decoder, ListerWatcher
from listwatch.cache.lister import NAMESPACE_INDEX, OWNER_INDEX, namespace_of, owners_of
from listwatch.cache.mutation_detector import MutationDetector
from listwatch.cache.processor import ListenerStatistics, Processor
from listwatch.cache.reflector_machine import Phase, is_comparable
from listwatch.cache.store import Indexer, IndexFunc, StoreStatistics
from listwatch.cache.watch_reading import WatchEndedError
from listwatch.cache.writer import CacheWriter
from listwatch.clock import Clock, Timeout
from listwatch.errors import (
    DisconnectedError,
    ForbiddenError,
    FrameError,
    ListWatchError,
    MethodNotSupportedError,
    NotFoundError,
    StatusError,
    UnauthorizedError,
)


class NotSyncedError(ListWatchError):
    """A cache could not sync, for a reason that waiting does not fix."""


def is_lasting(error: BaseException) -> bool:
    """Return whether waiting can't fix an error: a permission, name or configuration is wrong."""
    if isinstance(error, StatusError):
        return isinstance(
            error, UnauthorizedError | ForbiddenError | NotFoundError | MethodNotSupportedError
        )
    passing = DisconnectedError | FrameError | WatchEndedError
    return isinstance(error, ListWatchError) and not isinstance(error, passing)


class SharedInformerStatistics(msgspec.Struct, frozen=True):
    """What a shared informer has done, and its state.

    Attributes:
        controller: reflector and queue.
        store: the cache.
        listeners: the handlers.
        is_stopped: it has ended.
        compression: statistics of the codec of `compress`; None without it.
    """

    controller: ControllerStatistics
    store: StoreStatistics
    listeners: tuple[ListenerStatistics, ...]
    is_stopped: bool
    compression: CompressionStatistics | None = None


class SharedCache:
    """Watch, cache, listeners and lifecycle, shared by all views of a shared informer.

    Uses `Object`s only. Arguments not listed are those of `SharedInformer`.

    Args:
        list_watch: the resource.
        decoder: creates objects from bytes.
        packer: the informer's own codec, for its statistics.
        indexers: index functions by name, in addition to those by namespace and by owner uid.
        detects_mutations: detect changes of cached fields.
        name: for logs and metrics.
        clock: the time.
        page_size: objects per page of a list.
        watch_list: stream the initial state if the server supports it.
        audit_relist: seconds between two audits; None for never.
        startup_deadline: seconds after which a lasting refusal ends `wait_for_sync`.
        on_error: called with every failure; by default they are logged.
        backoff: delays after failures.
        rng: source of randomness.
    """

    def __init__(
        self,
        list_watch: ListerWatcher,
        *,
        decoder: Decoder,
        packer: ZstdCodec | None,
        indexers: Mapping[str, IndexFunc],
        detects_mutations: bool,
        name: str,
        clock: Clock | None,
        page_size: int,
        watch_list: bool,
        audit_relist: float | None,
        startup_deadline: float,
        on_error: OnError | None,
        backoff: Backoff | None,
        rng: random.Random | None,
    ) -> None:
        self.name = name
        self._clock = clock = clock if clock is not None else Clock()
        self._tell_error = on_error if on_error is not None else LogFailures(clock)
        self._packer = packer
        self._startup_deadline = startup_deadline
        self.started_at: float | None = None
        self.is_stopped = False
        self.last_failure: Failure | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None
        built_in = {NAMESPACE_INDEX: namespace_of, OWNER_INDEX: owners_of}
        self.indexer = Indexer(indexers=built_in, clock=clock)
        self.indexer.add_indexers(indexers)
        #: Delivers changes to the listeners.
        self.processor = Processor(
            self.indexer,
            has_synced=lambda: self.has_synced,
            on_error=self.on_error,
            clock=clock,
            name=name,
        )
        self._detector = MutationDetector(clock, name=name) if detects_mutations else None
        self._writer = CacheWriter(
            self.indexer,
            self.processor,
            on_error=self.on_error,
            clock=clock,
            name=name,
            detector=self._detector,
        )
        queue = make_queue(
            "ordered",
            self.indexer,
            rewrite=None,
            clock=clock,
            on_error=self.on_error,
            name=name,
        )
        self._controller = Controller(
            ControllerConfig(
                queue=queue,
                lister_watcher=list_watch,
                process_batch=self._writer.write,
                on_synced=self.processor.mark_synced,
                name=name,
                decoder=decoder,
                clock=clock,
                page_size=page_size,
                watch_list=watch_list,
                known=NewestKnown(queue, self.indexer),
                on_error=self.on_error,
                backoff=backoff,
                rng=rng,
            )
        )
        self._auditor: Auditor | None = None
        if audit_relist is not None:
            self._auditor = Auditor(
                list_watch,
                self.indexer,
                period=audit_relist,
                decoder=decoder,
                on_error=self.on_error,
                relist=self._controller.reflector.relist,
                clock=clock,
                name=name,
                page_size=page_size,
            )

    @property
    def state(self) -> Phase:
        """The reflector's current activity."""
        return self._controller.reflector.state

    @property
    def last_frame_age(self) -> float | None:
        """Seconds since the last data from the server; None before the first."""
        return self._controller.reflector.statistics().last_frame_age

    @property
    def has_synced(self) -> bool:
        """Whether the cache has synced."""
        return self._controller.has_synced

    def statistics(self) -> SharedInformerStatistics:
        """Return statistics so far."""
        return SharedInformerStatistics(
            controller=self._controller.statistics(),
            store=self.indexer.statistics(),
            listeners=tuple(one.statistics() for one in self.processor.listeners),
            is_stopped=self.is_stopped,
            compression=None if self._packer is None else self._packer.statistics(),
        )

    def timeout(self, seconds: float | None) -> Timeout:
        """Return a time limit on the informer's clock."""
        return self._clock.timeout(seconds)

    async def wait_for_sync(self) -> None:
        """Wait until the cache has synced; see `SharedInformer.wait_for_sync`."""
        while not self.has_synced:
            began = self._clock.now() if self.started_at is None else self.started_at
            left = began + self._startup_deadline - self._clock.now()
            failure = self.last_failure
            if left <= 0 and failure is not None and is_lasting(failure.error):
                raise NotSyncedError(f"not synced: {failure}") from failure.error
            # After the deadline, check now and then whether the reason has become lasting.
            try:
                async with self._clock.timeout(left if left > 0 else 1.0):
                    await self._controller.wait_for_sync()
            except TimeoutError:
                continue

    async def wait_until_synced(self) -> None:
        """Wait like `wait_for_sync`, without a deadline."""
        await self._controller.wait_for_sync()

    def why_not_synced(self) -> str:
        """Return the reason why it has not synced; empty if it has."""
        if self.has_synced:
            return ""
        if self.started_at is None:
            return "not started"
        if self.last_failure is not None:
            return str(self.last_failure)
        return f"{self.state} for {self._clock.now() - self.started_at:.0f} s"

    async def wait_for_resource_version(
        self, resource_version: str, *, seconds: float | None = None
    ) -> None:
        """Wait until the cache contains everything up to a version; see `SharedInformer`."""
        if not is_comparable(resource_version):
            raise ValueError(f"{resource_version!r} is not a comparable resource version")
        await self._writer.wait_for(resource_version, seconds)

    # --- Running --------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Update the cache and call the listeners until cancelled, or until `stop` is set."""
        if self.started_at is not None:
            raise RuntimeError("an informer runs once: create a new one")
        self.started_at = self._clock.now()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(part.run())
                    for part in (self.processor, self._auditor, self._detector)
                    if part is not None
                ]
                running.append(tasks.create_task(self._controller.run()))
                if stop is not None:
                    await stop.wait()
                    for task in running:
                        task.cancel()
        finally:
            self.is_stopped = True
            self.processor.end()
            self._writer.end()

    async def __aenter__(self) -> None:
        if self._tasks is not None or self.started_at is not None:
            raise RuntimeError("an informer runs once: create a new one")
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = self._tasks.create_task(self.run())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None and self._running is not None  # noqa: S101, PT018 - for the type checker
        self._running.cancel()
        await self._tasks.__aexit__(kind, error, traceback)

    def on_error(self, failure: Failure) -> None:
        """Report a failure, and remember it."""
        self.last_failure = failure
        self._tell_error(failure)
