"""The client's verbs for programs without asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any

from listwatch.cache.factory import ListWatchSource
from listwatch.cache.failures import OnError
from listwatch.cache.list_watch import ObjectList
from listwatch.cache.processor import StoppedError
from listwatch.client.calls import FieldValidation, Sendable
from listwatch.client.client import Client, PatchType
from listwatch.client.config import Config
from listwatch.client.resource import Resource
from listwatch.client.waiting import Condition
from listwatch.objects import Object
from listwatch.sync.connection import Connection


class Cluster(Connection):
    """A connection with the verbs of `Client`; each waits for its response.

    Arguments, results and exceptions are those of the `Client` method of the same name. The methods
    also raise `StoppedError` (the connection is closed) and RuntimeError (called from the
    connection's own thread, where handlers run). Functions passed in run in that thread and must
    not block. Interrupting a call, for example by Ctrl-C, cancels its request.

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

    def get(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        """Return one object, or a subresource of it."""
        return self.call(
            lambda: self.client.get(resource, name, namespace, subresource=subresource)
        )

    def list(
        self,
        resource: str | Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList:
        """Return all objects, in one consistent state."""
        return self.call(
            lambda: self.client.list(
                resource, namespace, label_selector=label_selector, field_selector=field_selector
            )
        )

    def create(
        self,
        obj: Sendable,
        *,
        resource: str | Resource | None = None,
        namespace: str | None = None,
        subresource: str = "",
        name: str = "",
        field_manager: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> Object:
        """Create an object."""
        return self.call(
            lambda: self.client.create(
                obj,
                resource=resource,
                namespace=namespace,
                subresource=subresource,
                name=name,
                field_manager=field_manager,
                field_validation=field_validation,
                dry_run=dry_run,
            )
        )

    def update(
        self,
        obj: Sendable,
        *,
        resource: str | Resource | None = None,
        namespace: str | None = None,
        subresource: str = "",
        field_manager: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> Object:
        """Replace a whole object."""
        return self.call(
            lambda: self.client.update(
                obj,
                resource=resource,
                namespace=namespace,
                subresource=subresource,
                field_manager=field_manager,
                field_validation=field_validation,
                dry_run=dry_run,
            )
        )

    def update_existing(
        self,
        resource: str | Resource,
        name: str,
        mutate: Callable[[dict[str, Any]], dict[str, Any] | None],
        namespace: str | None = None,
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object:
        """Read, mutate and update an object, and repeat on a conflict."""
        return self.call(
            lambda: self.client.update_existing(
                resource,
                name,
                mutate,
                namespace,
                subresource=subresource,
                field_manager=field_manager,
            )
        )

    def patch(
        self,
        resource: str | Resource,
        name: str,
        patch: object,
        namespace: str | None = None,
        *,
        type: PatchType = PatchType.MERGE,  # noqa: A002 - the API's own word
        subresource: str = "",
        field_manager: str = "",
        field_validation: FieldValidation = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Change some fields of an object."""
        return self.call(
            lambda: self.client.patch(
                resource,
                name,
                patch,
                namespace,
                type=type,
                subresource=subresource,
                field_manager=field_manager,
                field_validation=field_validation,
                force=force,
                dry_run=dry_run,
            )
        )

    def apply(
        self,
        obj: Sendable,
        *,
        field_manager: str,
        force: bool = False,
        resource: str | Resource | None = None,
        namespace: str | None = None,
        subresource: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> Object:
        """Create an object, or set the fields that `obj` has, by server-side apply."""
        return self.call(
            lambda: self.client.apply(
                obj,
                field_manager=field_manager,
                force=force,
                resource=resource,
                namespace=namespace,
                subresource=subresource,
                field_validation=field_validation,
                dry_run=dry_run,
            )
        )

    def delete(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None = None,
        *,
        propagation_policy: str = "",
        grace_period_seconds: int | None = None,
        uid: str = "",
        resource_version: str = "",
        dry_run: bool = False,
    ) -> Object | None:
        """Delete an object."""
        return self.call(
            lambda: self.client.delete(
                resource,
                name,
                namespace,
                propagation_policy=propagation_policy,
                grace_period_seconds=grace_period_seconds,
                uid=uid,
                resource_version=resource_version,
                dry_run=dry_run,
            )
        )

    def wait_for(
        self,
        resource: str | Resource,
        name: str,
        condition: Condition,
        namespace: str | None = None,
        *,
        seconds: float | None = None,
    ) -> Object:
        """Wait until an object is in a state, and return that state."""
        return self.call(
            lambda: self.client.wait_for(resource, name, condition, namespace, seconds=seconds)
        )

    def wait_for_deletion(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        seconds: float | None = None,
    ) -> None:
        """Wait until an object does not exist."""
        self.call(
            lambda: self.client.wait_for_deletion(
                resource, name, namespace, uid=uid, seconds=seconds
            )
        )

    def logs(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        since_seconds: int | None = None,
        tail_lines: int | None = None,
        timestamps: bool = False,
    ) -> Generator[str, None, None]:
        """Iterate over the lines of a container's log. Close the iterator when leaving early."""
        lines = self.client.logs(
            pod,
            namespace,
            container=container,
            follow=follow,
            previous=previous,
            since_seconds=since_seconds,
            tail_lines=tail_lines,
            timestamps=timestamps,
        )

        reading: set[asyncio.Task[Any]] = set()

        async def take() -> str | None:
            if (task := asyncio.current_task()) is not None:
                reading.add(task)
                task.add_done_callback(reading.discard)
            return await anext(lines, None)

        async def close() -> None:
            if reading:  # an interrupted call, still being cancelled
                await asyncio.wait(reading)
            await lines.aclose()

        try:
            while (line := self.call(take)) is not None:
                yield line
        finally:
            with suppress(StoppedError):  # it has ended with its loop
                self.call(close)


def connect(config: Config | None = None, *, on_error: OnError | None = None) -> Cluster:
    """Return a connection to the given cluster, or to the one that kubectl would use.

    Entering it raises `ConfigError` if the configuration is missing or invalid.
    """
    return Cluster(config, on_error=on_error)
