"""An API server client for any resource, found by discovery, with objects as `Object`."""

import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, Self

from listwatch.cache.list_watch import ListOptions, ObjectList
from listwatch.cache.pages import pages
from listwatch.client.auth import Authenticator
from listwatch.client.calls import (
    MAX_RETRY_AFTER,
    Calls,
    FieldValidation,
    Sendable,
    decode,
    delete_options,
    encode,
    metadata_of,
    outgoing,
    write_query,
)
from listwatch.client.config import Config
from listwatch.client.connections import Connections
from listwatch.client.discovery import Discovery
from listwatch.client.finalizers import change_finalizers, with_finalizer, without_finalizer
from listwatch.client.http import HTTP, RequestHook
from listwatch.client.kubeconfig import load_config
from listwatch.client.list_watch import ResourceListWatch
from listwatch.client.logs import log_lines
from listwatch.client.resource import Resource
from listwatch.client.waiting import Condition, accepts, conditions_of, remaining, wait_until
from listwatch.clock import Clock
from listwatch.errors import ListWatchError, NotFoundError
from listwatch.objects import Object, ObjectDecodeError, ObjectKey
from listwatch.shard_range import ShardRange

__all__ = [
    "MAX_RETRY_AFTER",
    "Client",
    "FieldValidation",
    "PartialObjectError",
    "PatchType",
    "Sendable",
]


class PartialObjectError(ListWatchError):
    """The object was read without some of its fields; an update would delete them."""


class PatchType(StrEnum):
    """The type of a patch; the value is its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client:
    """A client of one API server: `async with Client.from_config() as client`.

    `resource` is a name such as "pods", "po", "Pod" or "deployments.v1.apps", or a `Resource`.
    Without a namespace, `list` and `list_watch` cover all namespaces; methods for one object use
    the object's namespace, or else the configuration's.

    If the server sends Retry-After, reads and rejected requests (429) are sent again after that
    time, six times at most; `list_watch` leaves that to the reflector.

    Bound to one event loop; any number of its tasks may use it at once. Every method may raise
    `StatusError` (the server refused; see its subclasses), `DisconnectedError` (no connection, or
    it broke: the server may have executed a write), `TimeoutError`, `FrameError` (an invalid
    answer), `UnknownResourceError` and `ConfigError` (no credentials). Cancelling a call closes
    its connection.

    Args:
        config: server and credentials.
        clock: measures every time-out.
        authenticator: replaces the configuration's credentials.
        hooks: context managers entered for every request, for tracing and metrics.
        connections: as in `HTTP`; `listwatch.client.adapters` has those of other clients.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        authenticator: Authenticator | None = None,
        hooks: Iterable[RequestHook] = (),
        connections: Connections | None = None,
    ) -> None:
        #: The client's clock.
        self.clock = Clock() if clock is None else clock
        self.http = HTTP(
            config,
            clock=self.clock,
            authenticator=authenticator,
            hooks=hooks,
            connections=connections,
        )
        self.discovery = Discovery(self.http)
        self._calls = Calls(self.http, self.discovery, self.clock)

    @classmethod
    def from_config(cls, config: Config | None = None, *, clock: Clock | None = None) -> "Client":
        """Return a client for the given configuration, or for the one that kubectl would use.

        Raises:
            ConfigError: the configuration is missing or invalid.
        """
        return cls(load_config() if config is None else config, clock=clock)

    def through(self, http: HTTP) -> "Client":
        """Return a client that sends through another `HTTP` and shares everything else.

        Args:
            http: sends the requests of the client's methods; discovery still uses this client's.
        """
        twin = copy.copy(self)
        twin.http = http
        twin._calls = Calls(http, self.discovery, self.clock)  # noqa: SLF001 - it is one of us
        return twin

    @property
    def config(self) -> Config:
        """The configuration of this client."""
        return self.http.config

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Running requests fail with `DisconnectedError`."""
        await self.http.close()

    def list_watch(
        self,
        resource: str | Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        shard: ShardRange | None = None,
    ) -> ResourceListWatch:
        """Return a list-watch for a reflector or an informer.

        Args:
            resource: resource to list and watch; looked up on first use.
            namespace: None for all.
            label_selector: as kubectl's `-l`.
            field_selector: as kubectl's `--field-selector`.
            metadata_only: get objects without spec and status, of the kind
                PartialObjectMetadata; they cannot be sent in an update.
            shard: select only this part, on the server if it can (KEP-5866), otherwise here.
        """
        return ResourceListWatch(
            self.http,
            self.discovery,
            self.clock,
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            metadata_only=metadata_only,
            shard=shard,
        )

    async def list(
        self,
        resource: str | Resource,
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
        resource: str | Resource,
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
            ExpiredError: the state expired between two pages, which takes some minutes; start
                over for a consistent one.
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
        resource: str | Resource,
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

    async def get(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> Object:
        """Return one object, or a subresource of it such as "scale".

        Raises:
            NotFoundError: the object does not exist.
        """
        query = [("resourceVersion", resource_version)] if resource_version else []
        return await self._calls.send("GET", resource, name, namespace, subresource, query)

    async def create(
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
        """Create an object and return the server's version of it.

        A review, such as a SubjectAccessReview or a TokenReview, returns with its status and
        without a name. A subresource takes an object of its own kind:

            eviction = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": pod}}
            await client.create(eviction, subresource="eviction")
            request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
            token = await client.create(request, subresource="token", name="default")

        An eviction or a binding returns a `Status`.

        Args:
            obj: has kind and apiVersion, and a name or generateName if the server stores it.
            resource: by default found by the object's kind.
            namespace: used if the object has none.
            subresource: "eviction", "binding" or "token", of the object `name`.
            name: name of the object with the subresource; by default the name in `obj`.
            field_manager: owner of the fields.
            field_validation: "Strict" refuses unknown and duplicate fields, "Warn" warns about
                them, "Ignore" drops them silently.
            dry_run: only let the server check the request.

        Raises:
            AlreadyExistsError: the name is taken.
            InvalidError: the object is invalid.
            BadRequestError: an unknown field, with "Strict".
            TooManyRequestsError: a disruption budget forbids the eviction now.
            ValueError: a name without a subresource, or the reverse.
        """
        body = outgoing(obj)
        meta = metadata_of(body)
        if name and not subresource:
            raise ValueError("name= is only for subresources; set metadata.name instead")
        if subresource and not (name := name or str(meta.get("name") or "")):
            raise ValueError(f"{subresource} needs the object's name; pass name=")
        found = await self._calls.resource_of(body, resource, subresource, namespace)
        if "metadata" not in body and not subresource and found.verbs != ("create",):
            raise ObjectDecodeError(
                "the object to send lacks metadata; set metadata.name"
            )  # a review does not
        query = write_query(
            field_manager=field_manager, field_validation=field_validation, dry_run=dry_run
        )
        own = self._calls.namespace(found, meta.get("namespace"), namespace)
        path = found.path(own, name, subresource)
        return await self._calls.call("POST", path, query, found, body=encode(body))

    async def update(
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
        """Replace a whole object and return the server's version of it.

        If the object has a resourceVersion, only that version is replaced.

        Args:
            obj: the whole object.
            resource: as in `create`. Several resources have a Scale: without this argument, its
                resource is found by uid, with one request per candidate.
            namespace: as in `create`.
            subresource: "status" to replace only the status; "scale" for a Scale.
            field_manager: as in `create`.
            field_validation: as in `create`.
            dry_run: as in `create`.

        Raises:
            ConflictError: the object has changed since.
            PartialObjectError: the object was read without some of its fields.
        """
        _check_whole(obj, "an update")
        body = outgoing(obj)
        meta = metadata_of(body)
        name = meta.get("name")
        if not isinstance(name, str) or not name:
            raise ObjectDecodeError("the object lacks metadata.name and cannot be updated; set it")
        found = await self._calls.resource_of(body, resource, subresource, namespace)
        own = self._calls.namespace(found, meta.get("namespace"), namespace)
        path = found.path(own, name, subresource)
        query = write_query(
            field_manager=field_manager, field_validation=field_validation, dry_run=dry_run
        )
        return await self._calls.call("PUT", path, query, found, body=encode(body))

    async def patch(
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
        """Change some fields of an object and return it.

        Args:
            resource: of the object.
            name: of the object.
            patch: a list of operations for a JSON patch, otherwise a mapping of the wanted
                fields; bytes are sent unchanged.
            namespace: of the object.
            type: type of the patch. Custom resources do not support strategic patches. An apply
                creates a missing object, and needs a `field_manager`.
            subresource: such as "status" or "scale".
            field_manager: owner of the fields.
            field_validation: as in `create`.
            force: with an apply, take over fields owned by others.
            dry_run: only let the server check the request.

        Raises:
            ConflictError: with an apply, others own the fields.
            ValueError: an apply without a `field_manager`, or `force` without an apply.
        """
        if type is PatchType.APPLY and not field_manager:
            raise ValueError("an apply needs field_manager=, the owner of the fields")
        if force and type is not PatchType.APPLY:
            raise ValueError("force= is only for apply patches")
        query = write_query(
            field_manager=field_manager, field_validation=field_validation, dry_run=dry_run
        )
        if force:
            query.append(("force", "true"))
        body = patch if isinstance(patch, bytes) else encode(patch)
        return await self._calls.send(
            "PATCH", resource, name, namespace, subresource, query, body=body, content_type=type
        )

    async def delete(
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
        """Delete an object.

        Args:
            resource: of the object.
            name: of the object.
            namespace: of the object.
            propagation_policy: "Background", "Foreground" or "Orphan"; "" for the resource's own.
            grace_period_seconds: None for the object's own; 0 to delete at once.
            uid: delete only the object with this uid.
            resource_version: delete only this version.
            dry_run: only let the server check the request.

        Returns:
            The object, if the server still has it (finalizers or grace period pending) or returns
            its last state; otherwise None.

        Raises:
            NotFoundError: the object does not exist.
            ConflictError: the uid or version differs.
        """
        options = delete_options(
            propagation_policy,
            grace_period_seconds,
            uid=uid,
            resource_version=resource_version,
            dry_run=dry_run,
        )
        found = await self._calls.resource(resource)
        path = found.path(self._calls.namespace(found, None, namespace), name)
        answer = await self._calls.request("DELETE", path, body=encode(options))
        try:
            obj = decode(answer.body, found.kind, found.api_version)
        except ObjectDecodeError:
            return None
        return None if obj.kind == "Status" else obj

    async def delete_collection(
        self,
        resource: str | Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        propagation_policy: str = "",
        grace_period_seconds: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete all objects of a namespace that the selectors match, or all of them.

        Not atomic: a failure leaves some objects deleted.

        Args:
            resource: of the objects.
            namespace: the configuration's if None; there is no deletion across namespaces.
            label_selector: as kubectl's `-l`.
            field_selector: as kubectl's `--field-selector`.
            propagation_policy: as in `delete`.
            grace_period_seconds: as in `delete`.
            dry_run: only let the server check the request.
        """
        found = await self._calls.resource(resource)
        query = []
        if label_selector:
            query.append(("labelSelector", label_selector))
        if field_selector:
            query.append(("fieldSelector", field_selector))
        options = delete_options(propagation_policy, grace_period_seconds, dry_run=dry_run)
        path = found.path(self._calls.namespace(found, None, namespace))
        await self._calls.request("DELETE", path, query, body=encode(options))

    async def apply(
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
        """Create an object, or set the fields that `obj` has, by server-side apply.

        Fields that the manager applied before and that `obj` lacks are removed.

        Args:
            obj: kind, apiVersion, name, and the fields that the manager decides on, no others.
            field_manager: owner of the fields.
            force: take over fields that others own.
            resource: as in `update`.
            namespace: as in `create`.
            subresource: as in `update`.
            field_validation: as in `create`.
            dry_run: as in `create`.

        Raises:
            ConflictError: others own some of the fields.
            PartialObjectError: the object was read without some of its fields.
        """
        _check_whole(obj, "an apply")
        body = outgoing(obj)
        meta = metadata_of(body)
        name = meta.get("name")
        if not isinstance(name, str) or not name:
            raise ObjectDecodeError("the object lacks metadata.name and cannot be applied; set it")
        found = await self._calls.resource_of(body, resource, subresource, namespace)
        if "managedFields" in meta:
            body = {**body, "metadata": {k: v for k, v in meta.items() if k != "managedFields"}}
        return await self.patch(
            found,
            name,
            body,
            self._calls.namespace(found, meta.get("namespace"), namespace) or None,
            type=PatchType.APPLY,
            subresource=subresource,
            field_manager=field_manager,
            field_validation=field_validation,
            force=force,
            dry_run=dry_run,
        )

    # --- Waiting --------------------------------------------------------------------------------

    async def wait_for(
        self,
        resource: str | Resource,
        name: str,
        condition: Condition,
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
        resource: str | Resource,
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
        resource: str | Resource,
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

    async def update_existing(
        self,
        resource: str | Resource,
        name: str,
        mutate: Callable[[dict[str, Any]], dict[str, Any] | None],
        namespace: str | None = None,
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object:
        """Read, mutate and update an object, and repeat on a conflict.

        Args:
            resource: of the object.
            name: of the object.
            mutate: gets a fresh dict of the newest state, and changes it or returns another. It
                may be called several times. If it changes nothing, nothing is sent.
            namespace: of the object.
            subresource: "status" to change only the status, "scale" to change the Scale.
            field_manager: as in `create`.

        Raises:
            ConflictError: all six attempts met a conflict.
        """
        found = await self._calls.resource(resource)

        async def change() -> Object:
            # A status is part of its object; any other subresource is its own object.
            read = "" if subresource == "status" else subresource
            before = await self.get(found, name, namespace, subresource=read)
            value = before.to_dict()
            changed = mutate(value)
            value = value if changed is None else changed
            if value == before.to_dict():
                return before
            return await self.update(
                value, resource=found, subresource=subresource, field_manager=field_manager
            )

        return await self._calls.despite_conflicts(change)

    async def add_finalizer(
        self, resource: str | Resource, name: str, finalizer: str, namespace: str | None = None
    ) -> Object:
        """Add a finalizer if it is missing, and return the object.

        Other finalizers, including concurrently added ones, are kept.

        Raises:
            InvalidError: the object is being deleted and accepts no new finalizers.
            ConflictError: all six attempts met a conflict.
        """
        return await change_finalizers(
            self._calls, resource, name, namespace, with_finalizer(finalizer)
        )

    async def remove_finalizer(
        self, resource: str | Resource, name: str, finalizer: str, namespace: str | None = None
    ) -> Object | None:
        """Remove a finalizer if present; return the object, or None if it no longer exists.

        Other finalizers, including concurrently added ones, are kept.

        Raises:
            ConflictError: all six attempts met a conflict.
        """
        change = without_finalizer(finalizer)
        try:
            return await change_finalizers(self._calls, resource, name, namespace, change)
        except NotFoundError:
            return None


def _check_whole(obj: Sendable, action: str) -> None:
    if isinstance(obj, Object) and obj.partial:
        raise PartialObjectError(
            f"{obj.kind} {obj.key} was read without some of its fields, and {action} would "
            "delete them; get the whole object first, or patch it"
        )
