"""The verbs of a client that only read."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar, overload

from listwatch.cache.list_watch import ListOptions, ObjectList
from listwatch.cache.pages import pages
from listwatch.client.calls import Calls, Kind, decode, known_or_name
from listwatch.client.config import Config
from listwatch.client.discovery import Discovery
from listwatch.client.http import HTTP
from listwatch.client.list_watch import ResourceListWatch
from listwatch.client.logs import log_lines
from listwatch.client.resource import Resource
from listwatch.client.waiting import WaitCondition, accepts, conditions_of, remaining, wait_until
from listwatch.clock import Clock
from listwatch.objects import Object, ObjectKey
from listwatch.shard_range import ShardRange

T = TypeVar("T")


class Reads:
    """The reading half of `Client`."""

    http: HTTP
    discovery: Discovery
    clock: Clock
    _calls: Calls

    @property
    def config(self) -> Config:
        """The configuration of this client."""
        return self.http.config

    def list_watch(
        self,
        resource: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        shard: ShardRange | None = None,
    ) -> ResourceListWatch:
        """Return a list-watch for a reflector or an informer.

        Args:
            resource: the resource to list and watch; looked up on first use.
            namespace: None for all.
            label_selector: as kubectl's `-l`.
            field_selector: as kubectl's `--field-selector`.
            metadata_only: get objects without spec and status, of the kind
                PartialObjectMetadata; they cannot be sent in an update.
            shard: select only this part; on the server if it supports that (KEP-5866), otherwise
                here.
        """
        return ResourceListWatch(
            self.http,
            self.discovery,
            self.clock,
            known_or_name(resource),
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            metadata_only=metadata_only,
            shard=shard,
        )

    async def list(
        self,
        resource: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        page_size: int = 500,
    ) -> ObjectList:
        """Return all objects, read in pages of one consistent state.

        If that state expires between two pages, list once more, in one piece.

        Args:
            resource: resource to list.
            namespace: None for all.
            label_selector: as kubectl's `-l`.
            field_selector: as kubectl's `--field-selector`.
            resource_version: "" for the newest; "0" for any, from the server's cache.
            page_size: objects per request; 0 for all in one.
        """
        whole = ObjectList(items=[], undecodable=[])
        listed = self._pages(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            page_size=page_size,
        )
        async with aclosing(listed):
            async for page, anew in listed:
                if anew:
                    whole = ObjectList(items=[], undecodable=[])
                whole.items += page.items
                whole.undecodable += page.undecodable
                whole.resource_version = page.resource_version
        return whole

    async def pages(
        self,
        resource: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        page_size: int = 500,
    ) -> AsyncGenerator[ObjectList, None]:
        """Yield the pages of one consistent state, each read on demand.

        Args:
            resource: as in `list`.
            namespace: as in `list`.
            label_selector: as in `list`.
            field_selector: as in `list`.
            resource_version: as in `list`.
            page_size: as in `list`.

        Raises:
            ExpiredError: the state expired between two pages, after some minutes; start over for a
                consistent one.
        """
        listed = self._pages(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            page_size=page_size,
            begin_anew=False,
        )
        async with aclosing(listed):
            async for page, _ in listed:
                yield page

    def _pages(
        self,
        resource: Kind,
        namespace: str | None,
        *,
        label_selector: str,
        field_selector: str,
        resource_version: str,
        page_size: int,
        begin_anew: bool = True,
    ) -> AsyncGenerator[tuple[ObjectList, bool], None]:
        source = self.list_watch(
            resource, namespace, label_selector=label_selector, field_selector=field_selector
        )

        def list_page(options: ListOptions) -> Awaitable[ObjectList]:
            return self._calls.patiently(partial(source.list, options), is_safe=True)

        return pages(
            list_page,
            page_size=page_size,
            decoder=decode,
            resource_version=resource_version,
            begin_anew=begin_anew,
        )

    @overload
    async def get(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> Object: ...
    @overload
    async def get(
        self,
        resource: type[T],
        name: str,
        namespace: str | None = None,
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> T: ...
    async def get(
        self,
        resource: str | Resource | type[T],
        name: str,
        namespace: str | None = None,
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> Object | T:
        """Return one object, or a subresource of it such as "scale".

        Args:
            resource: of the object. With a resource type (see `listwatch.resources`), the object
                has that type.
            name: of the object.
            namespace: of the object.
            subresource: such as "scale".
            resource_version: a minimum version of the response.

        Raises:
            NotFoundError: the object does not exist.
            ObjectDecodeError: the object does not fit the type.
        """
        query = [("resourceVersion", resource_version)] if resource_version else []
        obj = await self._calls.send("GET", resource, name, namespace, subresource, query)
        return obj.decode(resource) if isinstance(resource, type) else obj

    async def wait_for(
        self,
        resource: Kind,
        name: str,
        condition: WaitCondition,
        namespace: str | None = None,
        *,
        seconds: float | None = None,
    ) -> Object:
        """Wait until an object is in a state, and return that state.

        Every state that the watch delivers is checked, starting with the current one. The object
        need not exist yet, and a deleted one may come back. The wait survives interruptions of the
        watch.

            await client.wait_for("deployments", "web", "Available", seconds=60)
            await client.wait_for("pods", "web-0", lambda pod: pod["status"]["phase"] == "Running")

        Args:
            resource: of the object.
            name: of the object.
            condition: type of a condition that must be true, such as "Ready", or "Ready=False" for
                another status; a condition observed for an older generation does not count. Or a
                function of the object, which must not block; its exception ends the wait.
            namespace: of the object.
            seconds: time limit; None for no limit.

        Raises:
            TimeoutError: the time limit expired; the message has the last state.
            StatusError: the server refuses for a lasting reason: 401, 403, no such resource.
        """
        is_met = accepts(condition)
        words = condition if isinstance(condition, str) else ""
        obj = await self._wait(
            resource, name, namespace, is_met, words or "the condition", conditions_of, seconds
        )
        if obj is None:  # `accepts` never accepts None
            raise AssertionError("waiting for an object ended without one")
        return obj

    async def wait_for_deletion(
        self,
        resource: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        seconds: float | None = None,
    ) -> None:
        """Wait until an object does not exist.

        Args:
            resource: of the object.
            name: of the object.
            namespace: of the object.
            uid: wait for the deletion of this object only, not of its successor.
            seconds: time limit; None for no limit.

        Raises:
            TimeoutError: the time limit expired.
            StatusError: as in `wait_for`.
        """
        await self._wait(
            resource,
            name,
            namespace,
            lambda obj: obj is None or bool(uid and obj.uid != uid),
            "deletion",
            remaining,
            seconds,
        )

    async def _wait(
        self,
        resource: Kind,
        name: str,
        namespace: str | None,
        accept: Callable[[Object | None], bool],
        wanted: str,
        describe: Callable[[Object | None], str],
        seconds: float | None,
    ) -> Object | None:
        if not name:
            raise ValueError("an object's name must not be empty")
        found = await self._calls.resource(resource)
        own = self._calls.namespace(found, None, namespace)
        return await wait_until(
            self.list_watch(found, own or None, field_selector=f"metadata.name={name}"),
            accept,
            what=f"{found.plural} {ObjectKey(own, name)}: {wanted}",
            describe=describe,
            clock=self.clock,
            seconds=seconds,
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
    ) -> AsyncGenerator[str, None]:
        """Iterate over the lines of a container's log, without their line breaks.

        Bytes that are not UTF-8 become U+FFFD. A line over 1 MiB arrives in pieces. Close the
        iterator (`contextlib.aclosing`) when leaving early. The output is not escaped for a
        terminal.

        Args:
            pod: name of the pod.
            namespace: of the pod.
            container: name of the container; optional if the pod has only one.
            follow: continue until the container ends.
            previous: read the log of the container's last instance, before its restart.
            since_seconds: only lines no older than this.
            tail_lines: only this many of the last lines.
            timestamps: start each line with its time.

        Raises:
            NotFoundError: the pod does not exist.
            BadRequestError: the container is not running yet, or its name is missing.
        """
        return log_lines(
            self.http,
            pod,
            namespace or self.config.namespace,
            container=container,
            follow=follow,
            previous=previous,
            since_seconds=since_seconds,
            tail_lines=tail_lines,
            timestamps=timestamps,
        )
