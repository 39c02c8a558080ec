"""One watch and one cache of a resource, for any number of handlers, listers and threads."""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import msgspec

from listwatch.backoff import Backoff
from listwatch.cache.compression import ZstdCodec
from listwatch.cache.failures import Failure, OnError
from listwatch.cache.handlers import (
    Change,
    DecodingEventHandler,
    ResourceEventHandler,
    Retelling,
)
from listwatch.cache.list_watch import Decoder, ListerWatcher
from listwatch.cache.lister import Lister
from listwatch.cache.mutation_detector import is_switched_on
from listwatch.cache.processor import Listener
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.shared_cache import SharedCache, SharedInformerStatistics
from listwatch.cache.store import IndexFunc
from listwatch.cache.transform import Transform, TransformingDecoder
from listwatch.cache.typed import Into, T, checked
from listwatch.clock import Clock
from listwatch.objects import Codec, ObjectDecodeError, ObjectDecoder

U = TypeVar("U")


class SharedInformer(Generic[T]):
    """Keeps an indexer equal to a resource on a server, and tells any number of handlers.

    What it promises:

    - The cache has a change before any handler hears of it. A relist is one swap of the store.
    - Each handler has its own queue: one that is slow, fails or hangs delays no other, and not
      the cache.
    - For each key, a handler is told a consistent story (see `handlers.Change`), also across
      relists, and also if it was added late: then it is told the whole cache first, as additions
      that are marked initial.
    - After a relist an unchanged object is told to nobody.
    - There is no order between handlers; within one, changes come in the server's order.

    Start it by `async with informer:`, or by `run` in a task of one's own; it runs once, and when
    it has ended its cache stays as it was. Methods belong to one event loop, but for those of
    `indexer` and `lister` that read: these may be called from any thread.

    Args:
        list_watch: the resource.
        indexers: index functions by name; an index by namespace and one by owner's uid are there.
        resync_period: for handlers that name none: seconds between two times that a handler is
            told of every object again; None for never.
        fields: a Struct of the fields to keep decoded with each object (see `ObjectDecoder`).
        decode: the type that lister, handlers and `changes` speak in: whatever `Object.decode`
            takes. `Object` if not given. The cache and its index functions hold `Object`s
            whatever it is, and decode for whoever asks.
        decoder: makes the objects of bytes, in place of `fields`, `keep_managed_fields`,
            `codec` and `compress`.
        transform: changes objects before they are stored, for example to save memory. One that
            it fails on stays as it was, or out, and is reported.
        keep_managed_fields: keep `metadata.managedFields`.
        codec: packs the stored bytes.
        compress: "zstd" for a codec of its own (see `compression.ZstdCodec`).
        mutation_detector: find whoever changes the `fields` of a cached object; the informer's
            run raises `CacheMutationError` then. As the environment says (see
            `mutation_detector`) if not given.
        name: for logs and metrics.
        clock: time.
        page_size: of lists.
        watch_list: get the present state by a stream where the server can.
        audit_relist: seconds between two lists that the cache is compared with; differences are
            reported and mended (see `audit`). None for never.
        startup_deadline: seconds after which `wait_for_sync` gives up on a lasting refusal: 401,
            403, or a resource that the server does not have.
        on_error: is told of every failure of list, watch, decoding and handlers; logs them if
            not given.
        backoff: the waits after failures.
        rng: chance.

    Raises:
        ValueError: `decoder` together with what it replaces; an index whose name is taken; a time
            between audits under a second.
        TypeError: `decode` is no type and no callable, or `fields` no Struct.
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
                # Without fields there is nothing that could be changed.
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
        #: The type that it speaks in; None for `Object`.
        self.decode = checked(decode)
        self.name = cache.name
        #: Holds the objects; any thread may read it.
        self.indexer = cache.indexer
        #: Reads the cache, from any thread.
        self.lister = Lister(cache.indexer, name=cache.name, decode=decode)
        self._cache = cache
        self._resync_period = resync_period

    def view(self, decode: Into[U]) -> "SharedInformer[U]":
        """Return this informer as one whose lister, handlers and `changes` speak in another type.

        It is the same watch, cache and life: whichever of them is started and ended, all are.

        Args:
            decode: the type.

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

        A state that does not fit the informer's type is not told, but reported and counted as
        the handler's failure; see `Retelling`.

        Args:
            handler: its methods may be plain functions, which must not block, or coroutine
                functions.
            name: for logs and statistics; its class's if not given.
            resync_period: seconds; 0 for never; the informer's if not given.
            threaded: call it on a thread of its own, where it may block; plain functions only.
            max_pending: how many changes may wait before those of one key are merged.

        Raises:
            StoppedError: the informer has ended.
            TypeError: no handler.
            ValueError: a resync period under a second, or a bound under one.
        """
        told: Any = handler
        if isinstance(told, type) or not isinstance(told, ResourceEventHandler):
            raise TypeError(
                f"{handler!r} is not a handler, since it lacks on_add, on_update or on_delete: "
                "HandlerFuncs(on_add, on_update, on_delete) turns functions into one"
            )
        if self.decode is not None:
            told = DecodingEventHandler(self.decode, handler)
        return self._cache.processor.add(
            told,
            name=name or type(handler).__name__,
            resync_period=self._resync_period if resync_period is None else resync_period,
            threaded=threaded,
            max_pending=max_pending,
        )

    def remove_handler(self, listener: Listener) -> None:
        """Tell a handler nothing more, as `Listener.remove` does.

        Raises:
            ValueError: it is a handler of another informer.
        """
        if not listener.is_of(self._cache.processor):
            raise ValueError(
                f"{listener.name} is not a handler of {self.name or 'this informer'}: "
                "call its remove(), or remove it from the informer it was added to"
            )
        listener.remove()

    def listen(self, *, name: str = "", max_pending: int | None = None) -> Listener:
        """Add a listener without a handler, whose `take` gives changes of `Object`s in batches.

        Args:
            name: for statistics.
            max_pending: as for `add_handler`.

        Raises:
            StoppedError: the informer has ended.
        """
        return self._cache.processor.add(None, name=name, max_pending=max_pending)

    async def changes(self, *, max_pending: int | None = None) -> AsyncGenerator[Change[T], None]:
        """Iterate over the whole cache as additions, and then over every change, until the end.

        A state that does not fit the informer's type is reported and left out; see `Retelling`.

        Close it (`contextlib.aclosing`) when leaving early, or what comes later is kept until
        the garbage collector finds it.

        Args:
            max_pending: as for `add_handler`.
        """
        listener = self.listen(name="changes", max_pending=max_pending)
        retelling = Retelling(self.decode)
        try:
            while batch := await listener.take():
                for change in retelling.retell_all(batch, self.report_misfit):
                    yield change
        finally:
            listener.remove()

    def report_misfit(self, key: str, error: ObjectDecodeError) -> None:
        """Report that an object can't be told in the type that is wanted."""
        self._cache.on_error(Failure(error=error, doing="changes", name=self.name, key=key))

    # --- State ----------------------------------------------------------------------------------

    @property
    def state(self) -> Phase:
        """What the reflector is doing."""
        return self._cache.state

    @property
    def is_stopped(self) -> bool:
        """Whether it has ended; its cache stays as it was."""
        return self._cache.is_stopped

    @property
    def last_failure(self) -> Failure | None:
        """What went wrong last."""
        return self._cache.last_failure

    @property
    def last_frame_age(self) -> float | None:
        """Seconds since the server was heard of; None before that."""
        return self._cache.last_frame_age

    @property
    def has_synced(self) -> bool:
        """Whether the cache has had the present state; handlers may not have heard of it yet."""
        return self._cache.has_synced

    @property
    def resource_version(self) -> str:
        """Everything up to this version is in the cache; unset before the sync."""
        return self.indexer.last_store_sync_resource_version

    def statistics(self) -> SharedInformerStatistics:
        """Return what has been done until now."""
        return self._cache.statistics()

    async def wait_for_sync(self) -> None:
        """Wait until the cache has the present state. For a handler's, wait for the `Listener`'s.

        Raises:
            NotSyncedError: the startup deadline is over, and what keeps the cache from syncing
                is a refusal that lasts: 401, 403, no such resource. The informer goes on trying.
            StoppedError: the informer has ended before its sync.
        """
        await self._cache.wait_for_sync()

    async def wait_until_synced(self) -> None:
        """Do as `wait_for_sync` without a deadline.

        Raises:
            StoppedError: the informer has ended before its sync.
        """
        await self._cache.wait_until_synced()

    def why_not_synced(self) -> str:
        """Return in words why it has not synced, as far as is known; empty if it has."""
        return self._cache.why_not_synced()

    async def wait_for_resource_version(
        self, resource_version: str, *, seconds: float | None = None
    ) -> None:
        """Wait until everything up to a version is in the cache: read your own writes.

        Args:
            resource_version: what a write has returned.
            seconds: how long to wait at most; None for ever.

        Raises:
            TimeoutError: that took longer.
            StoppedError: the informer has ended before that.
            ValueError: not a version that can be compared.
        """
        await self._cache.wait_for_resource_version(resource_version, seconds=seconds)

    # --- Running --------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Keep the cache and tell the handlers until cancelled.

        Args:
            stop: ends it in order as well, when it is set.

        Raises:
            RuntimeError: it runs, or has run, already.
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
