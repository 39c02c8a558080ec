"""What all verbs of a client share: looking up resources, options, retries, responses."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from listwatch.backoff import CONFLICT, PUT_OFF, on, retry
from listwatch.client.discovery import Discovery, UnknownResourceError
from listwatch.client.http import HTTP, JSON, Answer, Query
from listwatch.client.resource import Resource
from listwatch.client.typed_objects import resource_of_type
from listwatch.clock import Clock
from listwatch.errors import ConflictError, FrameError, NotFoundError, StatusError
from listwatch.objects import Object, ObjectDecodeError, ObjectDecoder, ObjectMeta
from listwatch.objects.resource_types import is_resource_type, name_of_resource

T = TypeVar("T")

#: Longest Retry-After to obey, in seconds; with a longer one the refusal is raised.
MAX_RETRY_AFTER: Final = 60.0

#: A resource by name, a `Resource`, a type decorated by `listwatch.resources`, or another client's
#: model of a kind of Kubernetes.
Kind: TypeAlias = str | Resource | type[Any]

#: An object to send: one that was read, or a decoded form.
Sendable: TypeAlias = Object | Mapping[str, Any]
#: What the server does with unknown and duplicate fields; "" for its default, to warn.
FieldValidation: TypeAlias = Literal["", "Ignore", "Warn", "Strict"]

#: Decodes the result of a write; keeps managedFields, because a write may be about them.
decode = ObjectDecoder(keep_managed_fields=True)
encode = msgspec.json.Encoder().encode


class Calls:
    """Sends requests about objects and returns the server's responses. For one event loop.

    Args:
        http: sends the requests.
        discovery: finds resources.
        clock: for delays between tries.
    """

    def __init__(self, http: HTTP, discovery: Discovery, clock: Clock) -> None:
        self._http = http
        self._discovery = discovery
        self._clock = clock

    async def resource(self, resource: Kind) -> Resource:
        """Return the resource that a name means."""
        known = known_or_name(resource)
        return known if isinstance(known, Resource) else await self._discovery.find(known)

    async def resource_of(
        self,
        obj: Mapping[str, Any],
        resource: Kind | None,
        subresource: str,
        namespace: str | None,
    ) -> Resource:
        """Return the resource that an object to send belongs to.

        A subresource may have its own kind that several resources share, as Scale does. Then the
        object's uid decides which resource it was read from.

        Raises:
            UnknownResourceError: there is none, or there are several without an object of this uid.
        """
        if resource is not None:
            return await self.resource(resource)
        kind, api_version = obj.get("kind"), obj.get("apiVersion")
        if not isinstance(kind, str) or not isinstance(api_version, str):
            raise ObjectDecodeError("the object to send lacks kind or apiVersion; set both")
        if not subresource:
            return await self._discovery.for_kind(api_version, kind)
        candidates = await self._discovery.with_subresource(subresource, api_version, kind)
        if len(candidates) == 1:
            return candidates[0]
        meta = metadata_of(obj)
        for candidate in candidates:
            if meta.get("uid") and await self._has(candidate, meta, namespace):
                return candidate
        names = [str(candidate) for candidate in candidates]
        raise UnknownResourceError(
            f"a {kind} is ambiguous: {', '.join(names)}; choose one with resource=",
            candidates=names,
        )

    async def _has(
        self, resource: Resource, meta: Mapping[str, Any], namespace: str | None
    ) -> bool:
        own = self.namespace(resource, meta.get("namespace"), namespace)
        try:
            path = resource.path(own, str(meta.get("name") or ""))
            return bool((await self.call("GET", path, (), resource)).uid == meta["uid"])
        except (NotFoundError, ValueError):
            return False

    def namespace(self, resource: Resource, own: str | None, given: str | None) -> str:
        """Return the namespace of one object.

        Raises:
            ValueError: the object's namespace differs from the caller's.
        """
        if not resource.namespaced:
            if given:
                raise ValueError(f"{resource.plural} have no namespace, but {given!r} was given")
            return ""
        if own and given and own != given:
            raise ValueError(f"the object is in namespace {own!r}, but {given!r} was given")
        return own or given or self._http.config.namespace

    async def send(
        self,
        method: str,
        resource: Kind,
        name: str,
        namespace: str | None,
        subresource: str,
        query: Query,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> Object:
        """Send a request about one object by name, and return the object."""
        if not name:
            raise ValueError("an object's name must not be empty")
        found = await self.resource(resource)
        path = found.path(self.namespace(found, None, namespace), name, subresource)
        return await self.call(method, path, query, found, body=body, content_type=content_type)

    async def call(
        self,
        method: str,
        path: str,
        query: Query,
        resource: Resource,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> Object:
        """Send a request and return the object in the response.

        Raises:
            FrameError: the response is not an object.
        """
        answer = await self.request(method, path, query, body=body, content_type=content_type)
        try:
            return decode(answer.body, resource.kind, resource.api_version)
        except ObjectDecodeError as error:
            if method == "POST" and (nameless := _nameless(answer.body)) is not None:
                return nameless
            raise FrameError(f"the response to {method} {path} is not an object: {error}") from None

    async def request(
        self,
        method: str,
        path: str,
        query: Query = (),
        *,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> Answer:
        """Send a request, and send it again when the server asks to retry later."""
        request = partial(
            self._http.request, method, path, query, body=body, content_type=content_type
        )
        return await self.patiently(request, is_safe=method == "GET")

    async def patiently(self, call: Callable[[], Awaitable[T]], *, is_safe: bool) -> T:
        """Repeat a call that the server asks to retry, if it was refused or only reads."""

        def after(error: Exception, least: float) -> float | None:
            if not isinstance(error, StatusError) or error.retry_after is None:
                return None
            may_repeat = error.code == 429 or (is_safe and error.code >= 500)
            if error.retry_after > MAX_RETRY_AFTER or not may_repeat:
                return None
            return max(error.retry_after, least)

        return await retry(call, PUT_OFF, after, clock=self._clock)

    async def despite_conflicts(self, change: Callable[[], Awaitable[Object]]) -> Object:
        """Read and change again after each conflict, as `backoff.CONFLICT` allows."""
        return await retry(change, CONFLICT, on(ConflictError), clock=self._clock)


class _Type(msgspec.Struct):
    kind: str
    apiVersion: str  # noqa: N815 - the name in JSON


def _nameless(body: bytes) -> Object | None:
    """Return the response to a create that stores nothing, such as a review or a `Status`."""
    try:
        type_ = msgspec.json.decode(body, type=_Type)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Object("", ObjectMeta(), type_.kind, type_.apiVersion, body)


def known_or_name(resource: Kind) -> Resource | str:
    """Return the resource of a kind, or its name if only the server knows the rest.

    Raises:
        TypeError: the kind is a type that has none.
    """
    if isinstance(resource, Resource):
        return resource
    if isinstance(resource, type) and is_resource_type(resource):
        return resource_of_type(resource)
    return name_of_resource(resource)


def outgoing(obj: Sendable) -> Mapping[str, Any]:
    """Return the decoded form of an object to send.

    Raises:
        ObjectDecodeError: its metadata is not a mapping.
        TypeError: it is neither an `Object` nor a mapping.
    """
    body = obj.to_dict() if isinstance(obj, Object) else obj
    if not isinstance(body, Mapping):
        raise TypeError(
            f"{type(obj).__name__} is not a resource: decorate its class with "
            "listwatch.resources.resource(…), or send a mapping"
        )
    metadata_of(body)
    return body


def metadata_of(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of a decoded object; a review needs none."""
    meta = obj.get("metadata")
    if meta is None:
        return {}
    if not isinstance(meta, Mapping):
        raise ObjectDecodeError("the metadata of an object to send must be a mapping")
    return meta


# --- Options -------------------------------------------------------------------------------------


def write_query(
    *, field_manager: str = "", field_validation: FieldValidation = "", dry_run: bool = False
) -> list[tuple[str, str]]:
    """Return the options of a create, an update or a patch, which go into the query."""
    query = []
    if field_manager:
        query.append(("fieldManager", field_manager))
    if field_validation:
        query.append(("fieldValidation", field_validation))
    if dry_run:
        query.append(("dryRun", "All"))
    return query


def delete_options(
    propagation_policy: str,
    grace_period_seconds: int | None,
    *,
    uid: str = "",
    resource_version: str = "",
    dry_run: bool = False,
) -> dict[str, Any]:
    """Return the body of a DELETE with all of its options.

    If there is a body, a server ignores options in the query (apiserver's
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
