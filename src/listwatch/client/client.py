"""An API server client for any resource, found by discovery, with objects as `Object`."""

import copy
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from listwatch.client.auth import Authenticator
from listwatch.client.calls import (
    MAX_RETRY_AFTER,
    Calls,
    FieldValidation,
    Kind,
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
from listwatch.client.reading import Reads
from listwatch.client.resource import Resource
from listwatch.client.typed_objects import (
    is_same,
    is_typed,
    manifest_of,
    schema_of_type,
    with_changes,
)
from listwatch.clock import Clock
from listwatch.errors import ListWatchError, NotFoundError
from listwatch.objects import Object, ObjectDecodeError

__all__ = [
    "MAX_RETRY_AFTER",
    "Client",
    "FieldValidation",
    "PartialObjectError",
    "PatchType",
    "Sendable",
]


T = TypeVar("T")


class PartialObjectError(ListWatchError):
    """The object was read without some of its fields; an update would delete them."""


class PatchType(StrEnum):
    """The type of a patch; the value is its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client(Reads):
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
        twin._calls = Calls(http, self.discovery, self.clock)  # noqa: SLF001 - of the same class
        return twin

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

    @overload
    async def create(
        self,
        obj: Sendable,
        *,
        resource: Kind | None = None,
        namespace: str | None = None,
        subresource: str = "",
        name: str = "",
        field_manager: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> Object: ...
    @overload
    async def create(
        self,
        obj: T,
        *,
        resource: Kind | None = None,
        namespace: str | None = None,
        subresource: str = "",
        name: str = "",
        field_manager: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> T: ...
    async def create(
        self,
        obj: Sendable | T,
        *,
        resource: Kind | None = None,
        namespace: str | None = None,
        subresource: str = "",
        name: str = "",
        field_manager: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> Object | T:
        """Create an object and return the server's version of it.

        A review, such as a SubjectAccessReview or a TokenReview, returns with its status and
        without a name. A subresource takes an object of its own kind:

            eviction = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": pod}}
            await client.create(eviction, subresource="eviction")
            request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
            token = await client.create(request, subresource="token", name="default")

        An eviction or a binding returns a `Status`.

        Args:
            obj: has kind and apiVersion, and a name or generateName if the server stores it; or an
                object of a resource type (see `listwatch.resources`), whose type is then returned.
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
        body = _body_of(obj)
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
        made = await self._calls.call("POST", path, query, found, body=encode(body))
        return _like(obj, made)

    async def update(
        self,
        obj: Sendable,
        *,
        resource: Kind | None = None,
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
        resource: Kind,
        name: str,
        patch: object,
        namespace: str | None = None,
        *,
        type: PatchType = PatchType.MERGE,  # noqa: A002 - the API's name
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
        resource: Kind,
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
        resource: Kind,
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

    @overload
    async def apply(
        self,
        obj: Sendable,
        *,
        field_manager: str,
        force: bool = False,
        resource: Kind | None = None,
        namespace: str | None = None,
        subresource: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> Object: ...
    @overload
    async def apply(
        self,
        obj: T,
        *,
        field_manager: str,
        force: bool = False,
        resource: Kind | None = None,
        namespace: str | None = None,
        subresource: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> T: ...
    async def apply(
        self,
        obj: Sendable | T,
        *,
        field_manager: str,
        force: bool = False,
        resource: Kind | None = None,
        namespace: str | None = None,
        subresource: str = "",
        field_validation: FieldValidation = "",
        dry_run: bool = False,
    ) -> Object | T:
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
        body = _body_of(obj, "an apply")
        meta = metadata_of(body)
        name = meta.get("name")
        if not isinstance(name, str) or not name:
            raise ObjectDecodeError("the object lacks metadata.name and cannot be applied; set it")
        found = await self._calls.resource_of(body, resource, subresource, namespace)
        if "managedFields" in meta:
            body = {**body, "metadata": {k: v for k, v in meta.items() if k != "managedFields"}}
        applied = await self.patch(
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
        return _like(obj, applied)

    @overload
    async def update_existing(
        self,
        resource: str | Resource,
        name: str,
        mutate: Callable[[dict[str, Any]], dict[str, Any] | None],
        namespace: str | None = None,
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object: ...
    @overload
    async def update_existing(
        self,
        resource: type[T],
        name: str,
        mutate: Callable[[T], T | None],
        namespace: str | None = None,
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> T: ...
    async def update_existing(
        self,
        resource: str | Resource | type[T],
        name: str,
        mutate: Callable[[Any], Any],
        namespace: str | None = None,
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object | T:
        """Read, mutate and update an object, and repeat on a conflict.

        Args:
            resource: of the object.
            name: of the object.
            mutate: gets a fresh dict of the newest state, and changes it or returns another. With a
                type, it gets an object of the type, and only the difference is written. It may be
                called several times. If it changes nothing, nothing is sent.
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
            value: Mapping[str, Any] = before.to_dict()
            if isinstance(resource, type):
                # Only the difference is written: fields that the type lacks stay.
                typed: Any = before.decode(resource)
                read_as = manifest_of(typed, resource)
                changed = mutate(typed)
                after = manifest_of(typed if changed is None else changed, resource)
                value = with_changes(value, read_as, after, schema_of_type(resource))
            else:
                changed = mutate(value)
                value = value if changed is None else changed
            value = _of_version(before, value)
            if is_same(value, before.to_dict()):
                return before
            return await self.update(
                value, resource=found, subresource=subresource, field_manager=field_manager
            )

        updated = await self._calls.despite_conflicts(change)
        return updated.decode(resource) if isinstance(resource, type) else updated

    async def add_finalizer(
        self, resource: Kind, name: str, finalizer: str, namespace: str | None = None
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
        self, resource: Kind, name: str, finalizer: str, namespace: str | None = None
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


def _of_version(before: Object, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a new state with the version of the old one, unless it has a version."""
    meta = metadata_of(value)
    if meta.get("resourceVersion") or not before.resource_version:
        return value
    return {**value, "metadata": {**meta, "resourceVersion": before.resource_version}}


def _check_whole(obj: Sendable, action: str) -> None:
    if isinstance(obj, Object) and obj.partial:
        raise PartialObjectError(
            f"{obj.kind} {obj.key} was read without some of its fields, and {action} would "
            "delete them; get the whole object first, or patch it"
        )


def _body_of(obj: object, action: str = "") -> Mapping[str, Any]:
    if is_typed(obj):
        return manifest_of(obj)
    sendable = cast("Sendable", obj)
    if action:
        _check_whole(sendable, action)
    return outgoing(sendable)


def _like(sent: Sendable | T, answer: Object) -> Object | T:
    """Return the server's state of an object, in the type of the object that was sent."""
    return cast("T", answer.decode(type(sent))) if is_typed(sent) else answer
