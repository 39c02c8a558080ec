"""Informers in a background thread, for programs without asyncio."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from listwatch.cache.factory import InformerFactory, InformerOptions, ListWatchSource
from listwatch.cache.failures import OnError
from listwatch.cache.handlers import Change, ChangeDecoder, ResourceEventHandler
from listwatch.cache.lister import Lister
from listwatch.cache.processor import Listener, ListenerStatistics, StoppedError
from listwatch.cache.shared_cache import SharedInformerStatistics
from listwatch.cache.shared_informer import SharedInformer
from listwatch.cache.store import Indexer
from listwatch.cache.typed import Into, T
from listwatch.objects import ObjectDecodeError
from listwatch.objects.resource_types import name_of_resource

U = TypeVar("U")

# Seconds between checks whether the background thread still runs.
_LOOK_AFTER_THREAD = 1.0

#: Opens the source of the informers, in the background thread.
OpenSource = Callable[[], AbstractAsyncContextManager[ListWatchSource]]


class Connection:
    """A client with its informers, in a background thread: `with connect() as connection`.

    Any other thread may call the methods. Handlers run in the background thread and must not wait
    for these methods. A forked process needs its own connection: in it, methods raise RuntimeError,
    but closing and leaving do nothing and hide no exception.

    Args:
        open_source: opens the source of the informers.
        on_error: called with every failure, in the background thread; by default they are logged.
    """

    def __init__(self, open_source: OpenSource, *, on_error: OnError | None = None) -> None:
        self._open_source = open_source
        self._on_error = on_error
        self._process = os.getpid()
        self._ready: Future[InformerFactory] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._informers: dict[SharedInformer, BlockingInformer] = {}

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._check_process()
            raise RuntimeError("a connection opens once: create a new one")
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="listwatch", daemon=True)
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all informers and wait for their end. Their caches stay unchanged.

        Does nothing in a forked process: the thread belongs to the parent.

        Raises:
            RuntimeError: called from the connection's own thread.
        """
        if not self._is_ours:
            return
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or not thread.is_alive():
            return
        if thread is threading.current_thread():
            raise RuntimeError(
                "a connection can't be closed from a handler, which runs on the connection's thread"
            )
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                raise

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with (
            self._open_source() as source,
            InformerFactory(source, on_error=self._on_error) as factory,
        ):
            self._ready.set_result(factory)
            await self._stop.wait()

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._process

    def _check_process(self) -> None:
        if not self._is_ours:
            raise RuntimeError(
                "this connection belongs to another process, which was forked: threads don't "
                "survive a fork, so open a connection in this process"
            )

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float | None = None) -> T:
        """Run a coroutine function in the background thread and return its result.

        Args:
            work: the coroutine function.
            seconds: time limit, after which it is cancelled; None for no limit.

        Raises:
            TimeoutError: the time limit expired.
            StoppedError: the connection is closed.
            RuntimeError: called from the background thread, or in a forked process.
        """
        self._check_process()
        loop, thread = self._loop, self._thread
        if thread is threading.current_thread():
            raise RuntimeError("a handler cannot wait for its own thread; use asyncio there")
        if loop is None or thread is None or loop.is_closed():
            raise StoppedError("the connection is not open")
        coroutine = work()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            coroutine.close()
            raise StoppedError("the connection is closed") from None
        try:
            return _result(future, thread, seconds)
        except CancelledError:
            raise StoppedError("the connection was closed while waiting") from None
        except BaseException:
            future.cancel()
            raise

    def forget(self, listener: Listener) -> None:
        """Remove a listener; do nothing in a forked process."""
        if self._is_ours:
            listener.remove()

    @overload
    def informer(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        decode: Into[T] | None = None,
        **options: Unpack[InformerOptions],
    ) -> "BlockingInformer[T]": ...
    @overload
    def informer(
        self, resource: type[U], namespace: str | None = None, **options: Unpack[InformerOptions]
    ) -> "BlockingInformer[U]": ...
    def informer(
        self,
        resource: str | type[Any],
        namespace: str | None = None,
        *,
        decode: Any = None,
        **options: Unpack[InformerOptions],
    ) -> "BlockingInformer[Any]":
        """Return the running informer of a selection; see `InformerFactory.informer`.

        Raises:
            StoppedError: the connection is closed.
        """
        word = name_of_resource(resource)
        into = resource if isinstance(resource, type) else decode

        async def make() -> SharedInformer:
            return self._ready.result().informer(word, namespace, **options)

        shared = self.call(make)
        if into is not None:
            return BlockingInformer(self, shared.view(into))
        return self._informers.setdefault(shared, BlockingInformer(self, shared))

    def wait_for_cache_sync(self, seconds: float | None = None) -> Mapping[str, str]:
        """Wait until all informers have synced; see `InformerFactory.wait_for_cache_sync`."""
        return self.call(lambda: self._ready.result().wait_for_cache_sync(seconds))


def _result(future: Future[T], thread: threading.Thread, seconds: float | None) -> T:
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = _LOOK_AFTER_THREAD if deadline is None else deadline - time.monotonic()
        try:
            error = future.exception(max(0.0, min(left, _LOOK_AFTER_THREAD)))
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            # A call that reaches the loop while it closes is never answered.
            if not thread.is_alive() and not future.done():
                raise StoppedError("the connection was closed while waiting") from None
        else:
            break
    if error is not None:
        raise error
    return future.result()


class Registration:
    """An added handler; see `Listener`."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        self._connection = connection
        self._listener = listener

    def wait_for_sync(self, seconds: float | None = None) -> None:
        """Wait until the handler has received all initial objects.

        Raises:
            TimeoutError: the time limit expired.
            StoppedError: it was removed, or the connection closed, before that.
        """
        self._connection.call(self._listener.wait_for_sync, seconds)

    def remove(self) -> None:
        """Deliver nothing more, like `Listener.remove`; from any thread."""
        self._connection.forget(self._listener)

    def statistics(self) -> ListenerStatistics:
        """Return statistics so far."""

        async def statistics() -> ListenerStatistics:
            return self._listener.statistics()

        return self._connection.call(statistics)


class BlockingInformer(Generic[T]):
    """A `SharedInformer` for programs without asyncio, from `Connection.informer`."""

    def __init__(self, connection: Connection, shared: SharedInformer[T]) -> None:
        self._connection = connection
        self._shared = shared

    @property
    def lister(self) -> Lister[T]:
        """The lister of the cache; any thread may use it."""
        return self._shared.lister

    @property
    def indexer(self) -> Indexer:
        """The cache; any thread may read it."""
        return self._shared.indexer

    @property
    def has_synced(self) -> bool:
        """Whether the cache has synced."""
        return self._shared.has_synced

    @property
    def is_stopped(self) -> bool:
        """Whether it has stopped; its cache stays unchanged."""
        return self._shared.is_stopped

    @property
    def resource_version(self) -> str:
        """The cache contains everything up to this version."""
        return self._shared.resource_version

    def statistics(self) -> SharedInformerStatistics:
        """Return statistics so far."""

        async def statistics() -> SharedInformerStatistics:
            return self._shared.statistics()

        return self._connection.call(statistics)

    def wait_for_sync(self, seconds: float | None = None) -> None:
        """Wait until the cache has synced; see `SharedInformer.wait_for_sync`.

        Raises:
            TimeoutError: the time limit expired.
            NotSyncedError: the server refuses for a lasting reason.
            StoppedError: the connection closed before that.
        """
        self._connection.call(self._shared.wait_for_sync, seconds)

    def wait_for_resource_version(
        self, resource_version: str, *, seconds: float | None = None
    ) -> None:
        """Wait until the cache contains everything up to a version, to read your own writes.

        Raises:
            TimeoutError: the time limit expired.
            StoppedError: the connection closed before that.
            ValueError: the version is not comparable.
        """
        self._connection.call(
            lambda: self._shared.wait_for_resource_version(resource_version), seconds
        )

    def wait_for(
        self, predicate: Callable[[Lister[T]], object], seconds: float | None = None
    ) -> None:
        """Wait until the cache is in a state; see `SharedInformer.wait_for`."""
        self._connection.call(lambda: self._shared.wait_for(predicate), seconds)

    def add_handler(
        self,
        handler: ResourceEventHandler[T],
        *,
        name: str = "",
        resync_period: float | None = None,
        max_pending: int | None = None,
    ) -> Registration:
        """Add a handler, called on its own thread, where it may block.

        See `SharedInformer.add_handler`; its methods must be plain functions.
        """

        async def add() -> Listener:
            return self._shared.add_handler(
                handler,
                name=name,
                resync_period=resync_period,
                threaded=True,
                max_pending=max_pending,
            )

        return Registration(self._connection, self._connection.call(add))

    def changes(
        self, *, max_pending: int | None = None, seconds: float | None = None
    ) -> Generator[Change[T], None, None]:
        """Iterate over the whole cache as additions, then over every change, until the end.

        The iteration ends when another thread closes the connection. Close the iterator
        (`contextlib.closing`) when leaving early; until then changes accumulate.

        A state that does not fit the informer's type is reported and skipped.

        Args:
            max_pending: as for `add_handler`.
            seconds: end the iteration after this time; None for never.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        decoder = ChangeDecoder(self._shared.decode)

        def on_misfit(key: str, error: ObjectDecodeError) -> None:
            async def report() -> None:
                self._shared.report_misfit(key, error)

            with suppress(StoppedError):  # then the listener is already gone
                self._connection.call(report)

        async def add() -> Listener:
            return self._shared.listen(name="changes", max_pending=max_pending)

        listener = self._connection.call(add)
        try:
            while batch := self._take(listener, deadline):
                yield from decoder.decode_all(batch, on_misfit)
        finally:
            self._connection.forget(listener)

    def _take(self, listener: Listener, deadline: float | None) -> list[Change]:
        async def take() -> list[Change]:
            return list(await listener.take())

        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self._connection.call(take, left)
        except StoppedError:
            return []
        except TimeoutError:
            if left is None:
                raise
            return []
