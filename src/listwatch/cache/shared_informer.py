"""A shared watch and cache of a resource for any number of handlers, listers and threads."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import msgspec

from listwatch.backoff import Backoff
from listwatch.cache.compression import ZstdCodec
from listwatch.cache.failures import Failure, OnError
from listwatch.cache.handlers import (
    Change,
    ChangeDecoder,
    DecodingEventHandler,
    ResourceEventHandler,
)
from listwatch.cache.list_watch import Decoder, ListerWatcher
from listwatch.cache.lister import Lister
from listwatch.cache.mutation_detector import is_switched_on
from listwatch.cache.processor import Listener, StoppedError
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.shared_cache import SharedCache, SharedInformerStatistics
from listwatch.cache.store import IndexFunc
from listwatch.cache.transform import Transform, TransformingDecoder
from listwatch.cache.typed import Into, T, checked
from listwatch.clock import Clock
from listwatch.objects import Codec, ObjectDecodeError, ObjectDecoder

U = TypeVar("U")


class SharedInformer(Generic[T]):
    """Keeps an indexer in sync with a resource on a server, and calls any number of handlers.

    Guarantees:

    - The cache contains a change before any handler sees it. A relist is one swap of the store.
    - Each handler has its own queue. A handler that is slow, fails or hangs delays neither other
      handlers nor the cache.
    - For each key, a handler's changes are consistent (see `handlers.Change`), also across
      relists. A handler added late first gets the whole cache as additions marked initial.
    - Unchanged objects are not reported after a relist.
    - There is no order between handlers; within one, changes come in the server's order.

    Start it with `async with informer:`, or with `run` in your own task. It runs once; its cache
    remains readable after it stops. Bound to one event loop, except that any thread may call the
    reading methods of `indexer` and `lister`.

    Args:
        list_watch: the resource.
        indexers: index functions by name; indices by namespace and by owner uid are built in.
        resync_period: default for handlers: seconds between re-deliveries of every object; None
            for never.
        fields: a Struct of the fields to keep decoded with each object (see `ObjectDecoder`).
        decode: type of the objects in lister, handlers and `changes`: anything that
            `Object.decode` takes; by default `Object`. The cache and index functions always use
            `Object`s; each reader's object is decoded on access.
        decoder: creates objects from bytes, replacing `fields`, `keep_managed_fields`, `codec`
            and `compress`.
        transform: changes objects before they are stored, for example to save memory. If it
            fails, the object is reported and stays as it was, or out.
        keep_managed_fields: keep `metadata.managedFields`.
        codec: packs the stored bytes.
        compress: "zstd" for a built-in codec (see `compression.ZstdCodec`).
        mutation_detector: detect changes of a cached object's `fields`; `run` then raises
            `CacheMutationError`. By default set by the environment (see `mutation_detector`).
        name: for logs and metrics.
        clock: the time.
        page_size: objects per page of a list.
        watch_list: stream the initial state if the server supports it.
        audit_relist: seconds between lists that verify the cache; differences are reported and
            corrected (see `audit`). None for never.
        startup_deadline: seconds after which `wait_for_sync` gives up on a lasting refusal: 401,
            403, or a resource that the server does not have.
        on_error: called with every failure of list, watch, decoding and handlers; by default they
            are logged.
        backoff: delays after failures.
        rng: source of randomness.

    Raises:
        ValueError: `decoder` together with an option it replaces; an index name that is taken; an
            audit period under a second.
        TypeError: `decode` is neither a type nor a callable, or `fields` is not a Struct.
    """

    def __init__(
        self,
        list_watch: ListerWatcher,
        *,
        indexers: Mapping[str, IndexFunc] | None = None,
        resync_period: float | None = None,
        fields: type[msgspec.Struct] | None = None,
        decode: Into[T] | None = None,
        decoder: Decoder | None = None,
        transform: Transform | None = None,
        keep_managed_fields: bool = False,
        codec: Codec | None = None,
        compress: Literal["zstd"] | None = None,
        mutation_detector: bool | None = None,
        name: str = "",
        clock: Clock | None = None,
        page_size: int = 500,
        watch_list: bool = True,
        audit_relist: float | None = None,
        startup_deadline: float = 30.0,
        on_error: OnError | None = None,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
    ) -> None:
        has_own_decoder = decoder is not None
        packer: ZstdCodec | None = None
        if compress is not None:
            if compress != "zstd":
                raise ValueError(f"compress={compress!r} is not supported: use 'zstd'")
            if codec is not None:
                raise ValueError("give either compress= or codec=, not both")
            codec = packer = ZstdCodec()
        if decoder is None:
            decoder = ObjectDecoder(
                fields=fields, keep_managed_fields=keep_managed_fields, codec=codec
            )
        elif fields is not None or keep_managed_fields or codec is not None:
            raise ValueError("decoder= takes the place of fields=, keep_managed_fields= and codecs")
        if transform is not None:
            decoder = TransformingDecoder(decoder, transform)
        if mutation_detector is None:
            mutation_detector = is_switched_on()
        self._speak(
            decode,
            SharedCache(
                list_watch,
                decoder=decoder,
                packer=packer,
                indexers=indexers or {},
                # Without fields, nothing can be mutated.
                detects_mutations=mutation_detector and (fields is not None or has_own_decoder),
                name=name,
                clock=clock,
                page_size=page_size,
                watch_list=watch_list,
                audit_relist=audit_relist,
                startup_deadline=startup_deadline,
                on_error=on_error,
                backoff=backoff,
                rng=rng,
            ),
            resync_period,
        )

    def _speak(
        self, decode: Into[T] | None, cache: SharedCache, resync_period: float | None
    ) -> None:
        #: The type of its objects; None for `Object`.
        self.decode = checked(decode)
        self.name = cache.name
        #: Holds the objects; any thread may read it.
        self.indexer = cache.indexer
        #: Reads the cache, from any thread.
        self.lister = Lister(cache.indexer, name=cache.name, decode=decode)
        self._cache = cache
        self._resync_period = resync_period

    def view(self, decode: Into[U] | None) -> "SharedInformer[U]":
        """Return a view of this informer whose lister, handlers and `changes` use another type.

        Views share watch, cache and lifecycle: starting or stopping one starts or stops all.

        Args:
            decode: the type; None for `Object`.

        Raises:
            TypeError: neither a type nor a callable.
        """
        view: SharedInformer[U] = SharedInformer.__new__(SharedInformer)
        view._speak(decode, self._cache, self._resync_period)
        return view

    # --- Handlers -------------------------------------------------------------------------------

    def add_handler(
        self,
        handler: ResourceEventHandler[T],
        *,
        name: str = "",
        resync_period: float | None = None,
        threaded: bool = False,
        max_pending: int | None = None,
    ) -> Listener:
        """Add a handler, before or after the start.

        A state that does not fit the informer's type is not delivered, but reported and counted as
        the handler's failure; see `ChangeDecoder`.

        Args:
            handler: its methods may be plain functions, which must not block, or coroutine
                functions.
            name: for logs and statistics; by default the name of the handler's class.
            resync_period: seconds; 0 for never; by default the informer's.
            threaded: call the handler on its own thread, where it may block; plain functions only.
            max_pending: number of waiting changes above which changes of one key are merged.

        Raises:
            StoppedError: the informer has stopped.
            TypeError: not a handler.
            ValueError: a resync period under a second, or a `max_pending` under one.
        """
        wrapped: Any = handler
        if isinstance(wrapped, type) or not isinstance(wrapped, ResourceEventHandler):
            raise TypeError(
                f"{handler!r} is not a handler, since it lacks on_add, on_update or on_delete: "
                "HandlerFuncs(on_add, on_update, on_delete) turns functions into one"
            )
        if self.decode is not None:
            wrapped = DecodingEventHandler(self.decode, handler)
        return self._cache.processor.add(
            wrapped,
            name=name or type(handler).__name__,
            resync_period=self._resync_period if resync_period is None else resync_period,
            threaded=threaded,
            max_pending=max_pending,
        )

    def remove_handler(self, listener: Listener) -> None:
        """Stop calling a handler, as `Listener.remove` does.

        Raises:
            ValueError: the handler belongs to another informer.
        """
        if not listener.is_of(self._cache.processor):
            raise ValueError(
                f"{listener.name} is not a handler of {self.name or 'this informer'}: "
                "call its remove(), or remove it from the informer it was added to"
            )
        listener.remove()

    def listen(self, *, name: str = "", max_pending: int | None = None) -> Listener:
        """Add a listener without a handler. Its `take` returns changes of `Object`s in batches.

        Args:
            name: for statistics.
            max_pending: as for `add_handler`.

        Raises:
            StoppedError: the informer has ended.
        """
        return self._cache.processor.add(None, name=name, max_pending=max_pending)

    async def changes(self, *, max_pending: int | None = None) -> AsyncGenerator[Change[T], None]:
        """Iterate over the whole cache as additions, then over every change, until the end.

        A state that does not fit the informer's type is reported and skipped; see `ChangeDecoder`.

        Close the iterator (`contextlib.aclosing`) when leaving early. Otherwise changes accumulate
        until it is garbage-collected.

        Args:
            max_pending: as for `add_handler`.
        """
        listener = self.listen(name="changes", max_pending=max_pending)
        decoder = ChangeDecoder(self.decode)
        try:
            while batch := await listener.take():
                for change in decoder.decode_all(batch, self.report_misfit):
                    yield change
        finally:
            listener.remove()

    def report_misfit(self, key: str, error: ObjectDecodeError) -> None:
        """Report an object that does not fit the type."""
        self._cache.on_error(Failure(error=error, doing="changes", name=self.name, key=key))

    # --- State ----------------------------------------------------------------------------------

    @property
    def state(self) -> Phase:
        """State of the reflector."""
        return self._cache.state

    @property
    def is_stopped(self) -> bool:
        """Whether it has stopped. Its cache remains readable."""
        return self._cache.is_stopped

    @property
    def last_failure(self) -> Failure | None:
        """The last failure."""
        return self._cache.last_failure

    @property
    def last_frame_age(self) -> float | None:
        """Seconds since the last data from the server; None before the first."""
        return self._cache.last_frame_age

    @property
    def has_synced(self) -> bool:
        """Whether the cache has synced. Handlers may still be processing initial additions."""
        return self._cache.has_synced

    @property
    def resource_version(self) -> str:
        """The cache contains everything up to this version; unset before the sync."""
        return self.indexer.last_store_sync_resource_version

    def statistics(self) -> SharedInformerStatistics:
        """Return statistics so far."""
        return self._cache.statistics()

    async def wait_for_sync(self) -> None:
        """Wait until the cache has synced. To wait for a handler, use its `Listener`.

        Raises:
            NotSyncedError: the startup deadline has passed, and a lasting refusal prevents the
                sync: 401, 403, no such resource. The informer keeps retrying.
            StoppedError: the informer stopped before it synced.
        """
        await self._cache.wait_for_sync()

    async def wait_until_synced(self) -> None:
        """Wait like `wait_for_sync`, but without a deadline.

        Raises:
            StoppedError: the informer stopped before it synced.
        """
        await self._cache.wait_until_synced()

    def why_not_synced(self) -> str:
        """Return the known reason why it has not synced; empty if it has."""
        return self._cache.why_not_synced()

    async def wait_for_resource_version(
        self, resource_version: str, *, seconds: float | None = None
    ) -> None:
        """Wait until the cache contains everything up to a version, to read your own writes.

        Args:
            resource_version: the version that a write returned.
            seconds: time limit; None for no limit.

        Raises:
            TimeoutError: the time limit expired.
            StoppedError: the informer stopped first.
            ValueError: the version is not comparable.
        """
        await self._cache.wait_for_resource_version(resource_version, seconds=seconds)

    async def wait_for(
        self, predicate: Callable[[Lister[T]], object], *, seconds: float | None = None
    ) -> None:
        """Wait until the cache is in a state.

            await pods.wait_for(lambda pods: len(pods.list("app=web")) == 3, seconds=60)

        Args:
            predicate: gets the lister after the sync and after each batch of changes; must not
                block. What it raises ends the wait.
            seconds: time limit; None for no limit.

        Raises:
            TimeoutError: the time limit expired.
            NotSyncedError: as `wait_for_sync`.
            StoppedError: the informer stopped first.
        """
        listener = self.listen(name="wait_for")
        try:
            async with self._cache.timeout(seconds):
                await self.wait_for_sync()
                while not predicate(self.lister):
                    if not await listener.take():
                        raise StoppedError(f"{self.name or 'the informer'} stopped while waiting")
        finally:
            listener.remove()

    # --- Running --------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Update the cache and call the handlers until cancelled.

        Args:
            stop: also ends the informer in order when set.

        Raises:
            RuntimeError: it is running or has already run.
        """
        await self._cache.run(stop)

    async def __aenter__(self) -> Self:
        await self._cache.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._cache.__aexit__(kind, error, traceback)
