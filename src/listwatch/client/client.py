"""A client of an API server: any resource, typed by discovery, objects as `Object`."""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec

from listwatch.cache.list_watch import ListOptions, ObjectList
from listwatch.client.auth import Authenticator
from listwatch.client.config import Config
from listwatch.client.connections import Connections
from listwatch.client.discovery import Discovery, Resource
from listwatch.client.http import HTTP, JSON, Answer, Query, RequestHook
from listwatch.client.kubeconfig import load_config
from listwatch.client.list_watch import ResourceListWatch
from listwatch.clock import Clock
from listwatch.errors import (
    ConflictError,
    ExpiredError,
    FrameError,
    ListWatchError,
    NotFoundError,
    StatusError,
)
from listwatch.objects import Object, ObjectDecodeError, ObjectDecoder
from listwatch.shard_range import ShardRange

T = TypeVar("T")

#: How often a request is sent that the server puts off, or a change that meets conflicts.
MAX_TRIES: Final = 6
#: Seconds that a server may ask to wait; what it puts off for longer is its refusal.
MAX_RETRY_AFTER: Final = 60.0

#: An object to send: one that was read, or its decoded form.
Sendable: TypeAlias = Object | Mapping[str, Any]

#: Reads what a write returns; managedFields are kept, as a write may be about them.
_decode = ObjectDecoder(keep_managed_fields=True)
_encode = msgspec.json.Encoder().encode


class PartialObjectError(ListWatchError):
    """An object that lacks fields which the server has: sending it would delete them there."""


class PatchType(StrEnum):
    """What a patch's body is; the value is its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client:
    """A client of one API server: `async with Client.from_config() as client`.

    `resource` is a word such as "pods", "po", "Pod" or "deployments.v1.apps", or a `Resource`.
    Where no namespace is given, `list` and `list_watch` mean all of them, and whatever is about
    one object means the object's own, else the configuration's.

    Where the server asks to come back later (Retry-After), reads and whatever was not carried out
    (429) are sent again after that time, at most `MAX_TRIES` times; `list_watch` leaves that to
    the reflector.

    Belongs to one event loop; any number of its tasks may use it at once. Every method may raise
    `StatusError` (the server's refusal, as its kind), `DisconnectedError` (no connection, or it
    broke: a write may have been carried out), `TimeoutError`, `FrameError` (an answer that is
    none), `UnknownResourceError` and `ConfigError` (no credentials). Cancelling one closes its
    connection.

    Args:
        config: the server, and who asks.
        clock: for every time-out.
        authenticator: in place of what the configuration asks for.
        hooks: entered for every request that is sent, for tracing and metrics.
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
        self._clock = Clock() if clock is None else clock
        self.http = HTTP(
            config,
            clock=self._clock,
            authenticator=authenticator,
            hooks=hooks,
            connections=connections,
        )
        self.discovery = Discovery(self.http)

    @classmethod
    def from_config(cls, config: Config | None = None, *, clock: Clock | None = None) -> "Client":
        """Return a client of the given configuration, or of the one that kubectl would use.

        Raises:
            ConfigError: there is none, or it can't be used.
        """
        return cls(load_config() if config is None else config, clock=clock)

    @property
    def config(self) -> Config:
        """The configuration that this client was made of."""
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
        """Close every connection; what runs fails with `DisconnectedError`."""
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
        """Return what a reflector or an informer feeds on.

        Args:
            resource: what to list and watch; looked up when it is first needed.
            namespace: None for all.
            label_selector: as kubectl's `-l`.
            field_selector: as kubectl's `--field-selector`.
            metadata_only: objects come without spec and status, of the kind
                PartialObjectMetadata, and refuse to be sent in an update.
            shard: only this part of them; chosen by the server where it can (KEP-5866), else here.
        """
        return ResourceListWatch(
            self.http,
            self.discovery,
            self._clock,
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

        When the state that the pages are of expires between two of them, it is listed once more,
        in one piece.

        Args:
            resource: what to list.
            namespace: None for all.
            label_selector: as kubectl's `-l`.
            field_selector: as kubectl's `--field-selector`.
            resource_version: "" for the newest; "0" for any, from the server's cache.
            page_size: objects in a request; 0 for all in one.
        """
        pages = self.pages(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            page_size=page_size,
        )
        whole = ObjectList(items=[], undecodable=[])
        try:
            async for page in pages:
                whole.items += page.items
                whole.undecodable += page.undecodable
                whole.resource_version = page.resource_version
        except ExpiredError:
            if not whole.items:
                raise
            source = self.list_watch(
                resource, namespace, label_selector=label_selector, field_selector=field_selector
            )
            options = ListOptions(decode=_decode)
            return await self._patiently(partial(source.list, options), is_safe=True)
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
        """Yield the pages of one consistent state, each read when it is asked for.

        Args:
            resource: as in `list`.
            namespace: as in `list`.
            label_selector: as in `list`.
            field_selector: as in `list`.
            resource_version: as in `list`.
            page_size: as in `list`.

        Raises:
            ExpiredError: the state has expired between two pages, which takes some minutes; only
                beginning anew gives a consistent one.
        """
        source = self.list_watch(
            resource, namespace, label_selector=label_selector, field_selector=field_selector
        )
        options = ListOptions(limit=page_size, resource_version=resource_version, decode=_decode)
        while True:
            page = await self._patiently(partial(source.list, options), is_safe=True)
            yield page
            if not page.continue_token:
                return
            options = ListOptions(
                limit=page_size, continue_token=page.continue_token, decode=_decode
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
            NotFoundError: there is none.
        """
        query = [("resourceVersion", resource_version)] if resource_version else []
        return await self._send("GET", resource, name, namespace, subresource, query)

    async def create(
        self,
        obj: Sendable,
        *,
        resource: str | Resource | None = None,
        namespace: str | None = None,
        field_manager: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Create an object and return it as the server has it.

        Args:
            obj: with its kind and apiVersion; with a name or a generateName.
            resource: found by the object's kind if not given.
            namespace: if the object names none.
            field_manager: who is named as the owner of the fields.
            dry_run: let the server check it only.

        Raises:
            AlreadyExistsError: the name is taken.
            InvalidError: the object breaks a rule.
        """
        body, meta = _outgoing(obj)
        found = await self._resource_of(body, resource)
        query = _write_query(field_manager=field_manager, dry_run=dry_run)
        path = found.path(self._namespace(found, meta.get("namespace"), namespace))
        return await self._call("POST", path, query, found, body=_encode(body))

    async def update(
        self,
        obj: Sendable,
        *,
        resource: str | Resource | None = None,
        namespace: str | None = None,
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Replace an object, all of it, and return it as the server has it.

        With a resourceVersion in the object, only that version is replaced.

        Args:
            obj: the whole object.
            resource: as in `create`.
            namespace: as in `create`.
            subresource: "status" to replace the status alone.
            field_manager: as in `create`.
            dry_run: as in `create`.

        Raises:
            ConflictError: the object has changed since.
            PartialObjectError: the object lacks fields that the server has.
        """
        if isinstance(obj, Object) and obj.partial:
            raise PartialObjectError(
                f"{obj.kind} {obj.key} lacks fields that the server has, and an update would "
                "delete them; get the whole object, or patch it"
            )
        body, meta = _outgoing(obj)
        found = await self._resource_of(body, resource)
        name = meta.get("name")
        if not isinstance(name, str) or not name:
            raise ObjectDecodeError("an object without metadata.name can't be updated")
        path = found.path(
            self._namespace(found, meta.get("namespace"), namespace), name, subresource
        )
        query = _write_query(field_manager=field_manager, dry_run=dry_run)
        return await self._call("PUT", path, query, found, body=_encode(body))

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
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Change some fields of an object and return it.

        Args:
            resource: of the object.
            name: of the object.
            patch: a list of operations for a JSON patch, else a mapping of the wanted fields;
                bytes are sent as they are.
            namespace: of the object.
            type: what the patch is. Custom resources know no strategic patch. An apply creates
                the object when it is not there, and needs a `field_manager`.
            subresource: such as "status" or "scale".
            field_manager: who is named as the owner of the fields.
            force: with an apply, take over fields that others own.
            dry_run: let the server check it only.

        Raises:
            ConflictError: with an apply, others own the fields.
            ValueError: an apply without a `field_manager`, or `force` without an apply.
        """
        if type is PatchType.APPLY and not field_manager:
            raise ValueError("an apply needs a field_manager, who will own the fields")
        if force and type is not PatchType.APPLY:
            raise ValueError("only an apply can be forced")
        query = _write_query(field_manager=field_manager, dry_run=dry_run)
        if force:
            query.append(("force", "true"))
        body = patch if isinstance(patch, bytes) else _encode(patch)
        return await self._send(
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
            propagation_policy: "Background", "Foreground" or "Orphan"; the resource's own if "".
            grace_period_seconds: the object's own if None; 0 at once.
            uid: delete only the object of this uid.
            resource_version: delete only this version.
            dry_run: let the server check it only.

        Returns:
            The object, if the server still has it (its finalizers, or its grace period, run) or
            tells its last state; None if it only says that the object is gone.

        Raises:
            NotFoundError: there is none.
            ConflictError: it is another object or version by now.
        """
        options = _delete_options(
            propagation_policy,
            grace_period_seconds,
            uid=uid,
            resource_version=resource_version,
            dry_run=dry_run,
        )
        found = await self._resource(resource)
        path = found.path(self._namespace(found, None, namespace), name)
        answer = await self._request("DELETE", path, body=_encode(options))
        try:
            obj = _decode(answer.body, found.kind, found.api_version)
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

        Not in one step: a failure leaves some deleted.

        Args:
            resource: of the objects.
            namespace: the configuration's if None; there is no deletion across namespaces.
            label_selector: as kubectl's `-l`.
            field_selector: as kubectl's `--field-selector`.
            propagation_policy: as in `delete`.
            grace_period_seconds: as in `delete`.
            dry_run: let the server check it only.
        """
        found = await self._resource(resource)
        query = []
        if label_selector:
            query.append(("labelSelector", label_selector))
        if field_selector:
            query.append(("fieldSelector", field_selector))
        options = _delete_options(propagation_policy, grace_period_seconds, dry_run=dry_run)
        path = found.path(self._namespace(found, None, namespace))
        await self._request("DELETE", path, query, body=_encode(options))

    async def update_with_retry(
        self,
        resource: str | Resource,
        name: str,
        mutate: Callable[[dict[str, Any]], dict[str, Any] | None],
        namespace: str | None = None,
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object:
        """Change an object whoever else changes it: read, mutate, update, again on a conflict.

        Args:
            resource: of the object.
            name: of the object.
            mutate: gets a fresh dict of the newest state, changes it or returns another one. It
                may be called several times. Nothing is sent when it leaves things as they are.
            namespace: of the object.
            subresource: "status" to change the status alone, "scale" to change the Scale.
            field_manager: as in `create`.

        Raises:
            ConflictError: others were faster `MAX_TRIES` times.
        """
        found = await self._resource(resource)

        async def change() -> Object:
            # A status comes with its object; any other subresource is an object of its own.
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

        return await self._despite_conflicts(change)

    async def add_finalizer(
        self, resource: str | Resource, name: str, finalizer: str, namespace: str | None = None
    ) -> Object:
        """Add a finalizer, unless it is there, and return the object.

        Other finalizers, also those that are added meanwhile, stay as they are.

        Raises:
            InvalidError: the object is being deleted, when no finalizer can come any more.
            ConflictError: others were faster `MAX_TRIES` times.
        """

        def add(value: tuple[str, ...]) -> tuple[str, ...]:
            return value if finalizer in value else (*value, finalizer)

        return await self._change_finalizers(resource, name, namespace, add)

    async def remove_finalizer(
        self, resource: str | Resource, name: str, finalizer: str, namespace: str | None = None
    ) -> Object | None:
        """Remove a finalizer if it is there; return the object, None if there is none any more.

        Other finalizers, also those that are added meanwhile, stay as they are.

        Raises:
            ConflictError: others were faster `MAX_TRIES` times.
        """

        def remove(value: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(other for other in value if other != finalizer)

        try:
            return await self._change_finalizers(resource, name, namespace, remove)
        except NotFoundError:
            return None

    async def _change_finalizers(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None,
        mutate: Callable[[tuple[str, ...]], tuple[str, ...]],
    ) -> Object:
        found = await self._resource(resource)

        async def change() -> Object:
            obj = await self.get(found, name, namespace)
            after = mutate(obj.meta.finalizers)
            if after == obj.meta.finalizers:
                return obj
            # The version makes a conflict of whatever came between; the uid, of another life.
            meta = {
                "uid": obj.uid,
                "resourceVersion": obj.resource_version,
                "finalizers": after or None,
            }
            return await self.patch(found, name, {"metadata": meta}, obj.namespace or None)

        return await self._despite_conflicts(change)

    async def _despite_conflicts(self, change: Callable[[], Awaitable[Object]]) -> Object:
        for tries in range(MAX_TRIES - 1):
            try:
                return await change()
            except ConflictError:
                # As client-go's retry.DefaultBackoff, but never longer than a second.
                pause = min(0.01 * 5**tries, 1.0)
            await self._clock.sleep(pause * random.uniform(1, 1.1))  # noqa: S311 - no cryptography
        return await change()

    async def _patiently(self, call: Callable[[], Awaitable[T]], *, is_safe: bool) -> T:
        """Call again what the server asks to send later, if it was not carried out or only read."""
        for _ in range(MAX_TRIES - 1):
            try:
                return await call()
            except StatusError as error:
                wait = error.retry_after
                may_repeat = error.code == 429 or (is_safe and error.code >= 500)
                if wait is None or wait > MAX_RETRY_AFTER or not may_repeat:
                    raise
            await self._clock.sleep(max(wait, 0.1))
        return await call()

    async def _request(
        self,
        method: str,
        path: str,
        query: Query = (),
        *,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> Answer:
        request = partial(
            self.http.request, method, path, query, body=body, content_type=content_type
        )
        return await self._patiently(request, is_safe=method == "GET")

    async def _resource(self, resource: str | Resource) -> Resource:
        if isinstance(resource, Resource):
            return resource
        return await self.discovery.find(resource)

    async def _resource_of(
        self, body: Mapping[str, Any], resource: str | Resource | None
    ) -> Resource:
        if resource is not None:
            return await self._resource(resource)
        kind, api_version = body.get("kind"), body.get("apiVersion")
        if not isinstance(kind, str) or not isinstance(api_version, str):
            raise ObjectDecodeError("an object to send needs its kind and apiVersion")
        return await self.discovery.for_kind(api_version, kind)

    def _namespace(self, resource: Resource, own: str | None, given: str | None) -> str:
        """Return the namespace of one object.

        Raises:
            ValueError: the object says another one than the caller.
        """
        if not resource.namespaced:
            if given:
                raise ValueError(f"{resource.plural} have no namespace, but {given!r} was given")
            return ""
        if own and given and own != given:
            raise ValueError(f"the object is in namespace {own!r}, but {given!r} was given")
        return own or given or self.config.namespace

    async def _send(
        self,
        method: str,
        resource: str | Resource,
        name: str,
        namespace: str | None,
        subresource: str,
        query: Query,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> Object:
        if not name:
            raise ValueError("an empty name is no object's")
        found = await self._resource(resource)
        path = found.path(self._namespace(found, None, namespace), name, subresource)
        return await self._call(method, path, query, found, body=body, content_type=content_type)

    async def _call(
        self,
        method: str,
        path: str,
        query: Query,
        resource: Resource,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> Object:
        answer = await self._request(method, path, query, body=body, content_type=content_type)
        try:
            return _decode(answer.body, resource.kind, resource.api_version)
        except ObjectDecodeError as error:
            raise FrameError(f"the answer to {method} {path} is no object: {error}") from None


def _outgoing(obj: Sendable) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    body = obj.to_dict() if isinstance(obj, Object) else obj
    meta = body.get("metadata")
    if not isinstance(meta, Mapping):
        raise ObjectDecodeError("an object to send needs its metadata")
    return body, meta


def _write_query(*, field_manager: str = "", dry_run: bool = False) -> list[tuple[str, str]]:
    query = []
    if field_manager:
        query.append(("fieldManager", field_manager))
    if dry_run:
        query.append(("dryRun", "All"))
    return query


def _delete_options(
    propagation_policy: str,
    grace_period_seconds: int | None,
    *,
    uid: str = "",
    resource_version: str = "",
    dry_run: bool = False,
) -> dict[str, Any]:
    """Return the body of a DELETE with all of its options.

    A server that gets a body ignores the same options in the query (apiserver's
    `endpoints/handlers/delete.go`): a `dryRun` there would really delete.
    """
    options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if dry_run:
        options["dryRun"] = ["All"]
    if propagation_policy:
        options["propagationPolicy"] = propagation_policy
    if grace_period_seconds is not None:
        options["gracePeriodSeconds"] = grace_period_seconds
    preconditions = {
        name: value
        for name, value in (("uid", uid), ("resourceVersion", resource_version))
        if value
    }
    if preconditions:
        options["preconditions"] = preconditions
    return options
