"""The client's verbs for programs without asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from listwatch.cache.factory import ListWatchSource
from listwatch.cache.failures import OnError
from listwatch.cache.processor import StoppedError
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.sync.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")


def _waiting(
    verb: Callable[Concatenate[Client, P], Awaitable[R]],
) -> "Callable[Concatenate[Cluster, P], R]":
    """Make a method that waits for the result of a verb of the client."""

    @wraps(verb)
    def wait(cluster: "Cluster", /, *args: P.args, **options: P.kwargs) -> R:
        async def run() -> R:
            return await verb(cluster.client, *args, **options)

        return cluster.call(run)

    return wait


def _iterating(
    verb: Callable[Concatenate[Client, P], AsyncGenerator[R, None]],
) -> "Callable[Concatenate[Cluster, P], Generator[R, None, None]]":
    """Make a generator method that waits for each item of a verb of the client."""

    @wraps(verb)
    def iterate(
        cluster: "Cluster", /, *args: P.args, **options: P.kwargs
    ) -> Generator[R, None, None]:
        items = verb(cluster.client, *args, **options)
        reading: set[asyncio.Task[Any]] = set()

        async def take() -> tuple[R, ...]:
            if (task := asyncio.current_task()) is not None:
                reading.add(task)
                task.add_done_callback(reading.discard)
            async for item in items:
                return (item,)
            return ()

        async def close() -> None:
            if reading:  # interrupted, and still being cancelled
                await asyncio.wait(reading)
            await items.aclose()

        try:
            while item := cluster.call(take):
                yield item[0]
        finally:
            with suppress(StoppedError):  # it has already ended with the loop
                cluster.call(close)

    return iterate


class Cluster(Connection):
    """A connection with the verbs of `Client`; each waits for its response.

    Arguments, results and exceptions are those of the `Client` method of the same name. The methods
    also raise `StoppedError` (the connection is closed) and RuntimeError (called from the
    connection's own thread, where handlers run). Functions passed in run in that thread and must
    not block. Interrupting a call, for example by Ctrl-C, cancels its request. Close the iterators
    of `pages` and `logs` when leaving early.

    Args:
        config: server and credentials; by default kubectl's.
        on_error: as in `Connection`.
    """

    def __init__(self, config: Config | None = None, *, on_error: OnError | None = None) -> None:
        self._client: Client | None = None

        @asynccontextmanager
        async def open_client() -> AsyncGenerator[ListWatchSource, None]:
            async with Client.from_config(config) as client:
                self._client = client
                yield client

        super().__init__(open_client, on_error=on_error)

    @property
    def client(self) -> Client:
        """The client, for coroutines passed to `call`.

        Raises:
            StoppedError: the connection is not open.
        """
        if self._client is None:
            raise StoppedError("the connection is not open")
        return self._client

    get = _waiting(Client.get)
    list = _waiting(Client.list)
    pages = _iterating(Client.pages)
    create = _waiting(Client.create)
    update = _waiting(Client.update)
    update_existing = _waiting(Client.update_existing)
    patch = _waiting(Client.patch)
    apply = _waiting(Client.apply)
    delete = _waiting(Client.delete)
    delete_collection = _waiting(Client.delete_collection)
    add_finalizer = _waiting(Client.add_finalizer)
    remove_finalizer = _waiting(Client.remove_finalizer)
    wait_for = _waiting(Client.wait_for)
    wait_for_deletion = _waiting(Client.wait_for_deletion)
    logs = _iterating(Client.logs)


def connect(config: Config | None = None, *, on_error: OnError | None = None) -> Cluster:
    """Return a connection to the given cluster, or to the one that kubectl would use.

    Entering it raises `ConfigError` if the configuration is missing or invalid.
    """
    return Cluster(config, on_error=on_error)
