"""Routes requests to handlers: paths, verbs, access, and refusals as responses."""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse

from listwatch.apiserver import refusal
from listwatch.apiserver.access.auth import Access, WithoutUserError
from listwatch.apiserver.api import discovery, health
from listwatch.apiserver.api.continue_tokens import ExpiredTokenError
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.api.reviews import Reviews
from listwatch.apiserver.api.subresources import Subresources
from listwatch.apiserver.api.writing import Writer
from listwatch.apiserver.http.call import Call, text_answer
from listwatch.apiserver.http.faults import Fault, Faults, too_many_requests
from listwatch.apiserver.http.negotiation import Representation, choose, negotiate
from listwatch.apiserver.http.request_info import (
    RequestInfo,
    check_timeout,
    parse_request,
    timeout_seconds,
)
from listwatch.apiserver.kinds.catalog import has_expressions, kind_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.registry import Registry
from listwatch.apiserver.storage.store import NotStoredError
from listwatch.apiserver.webhooks.consultation import (
    REQUEST_SECONDS,
    AllottedTimeError,
    Consultation,
)
from listwatch.clock import Clock
from listwatch.errors import StatusError
from listwatch.schema.causes import go_quoted

if TYPE_CHECKING:
    from listwatch.apiserver.http.request_log import RequestLog

_log = logging.getLogger(__name__)

Handler = Callable[[Call, APIResource], Awaitable[StreamResponse]]


class Api:
    """All paths of the server. For one event loop."""

    def __init__(
        self,
        table: ResourceTable,
        registry: Registry,
        reader: Reader,
        writer: Writer,
        access: Access,
        subresources: Subresources,
        reviews: Reviews,
        faults: Faults,
        clock: Clock,
        asks_webhooks: Callable[[], bool],
    ) -> None:
        self.table = table
        self._registry = registry
        self._reader = reader
        self._writer = writer
        self._access = access
        self._subresources = subresources
        self._reviews = reviews
        self._faults = faults
        self._clock = clock
        self._asks_webhooks = asks_webhooks
        self.address = ""
        #: records the requests, for tests
        self.request_log: RequestLog | None = None
        #: the replica that may fall behind, for tests
        self.lagging: Api | None = None
        #: paths outside the API, such as the control for tests
        self.extra_paths: dict[str, Callable[[BaseRequest], Awaitable[StreamResponse]]] = {}

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Answer any request; nothing escapes except cancellation."""
        for prefix, handler in self.extra_paths.items():
            if request.path.startswith(prefix):
                return await handler(request)
        query = _query(request)
        raw_path = request.rel_url.raw_path
        call = Call(request, parse_request(request.method, raw_path, query), query)
        log, faults = self.request_log, self._faults
        if log is not None:
            log.begin(call, self._clock.time())
        counted = call.info.verb != "watch"
        limit = faults.in_flight_limit
        if limit is not None and counted and faults.in_flight >= limit:
            refused = too_many_requests()
            if log is not None:
                log.end(call, refused)
            return refused
        answer: StreamResponse | None = None
        faults.in_flight += counted
        try:
            fault = faults.take(call)
            answer = await (self.dispatch(call) if fault is None else self._faulty(call, fault))
        except ConnectionError:
            # the client is gone: nobody reads the answer
            answer = text_answer("", 499)
        except Exception as error:  # noqa: BLE001 - logged; one bad request must not end the server
            answer = _refused(call, error)
            if request.writer.output_size and request.transport is not None:
                request.transport.abort()  # too late to report the error within the response
        finally:
            faults.in_flight -= counted
            if log is not None:
                log.end(call, answer)
        return answer

    async def _faulty(self, call: Call, fault: Fault) -> StreamResponse:
        if fault.committed and call.info.verb != "watch":
            call.fault = fault
            with contextlib.suppress(StatusError):  # the fault also hides a refusal
                await self.dispatch(call)
        instead = await self._faults.before(call, fault)
        if instead is not None:
            return instead
        call.fault = fault
        api = self if self.lagging is None or not fault.stale else self.lagging
        response = await api.dispatch(call)
        return await self._faults.tamper(call, fault, response) if fault.tampers else response

    async def dispatch(self, call: Call) -> StreamResponse:
        """Answer a request without a fault; raises exceptions that `handle` converts."""
        info = call.info
        call.user = self._access.authenticate(call.request)
        call.user = self._access.impersonate(call.user, call.request)
        asked = self._access.asked
        if asked is not None:
            refused = not self._access.allows(call.user, info)
            asked.note(call.user, info, call.header("User-Agent"), refused=refused)
        self._access.authorize(call.user, info)
        if not info.is_resource:
            return await self._other_path(call)
        resource = self._find(info)
        if isinstance(resource, StreamResponse):
            return resource
        call.resource = resource
        handler = self._handler(call, resource)
        check_timeout(call.query)
        deprecation = _deprecation(resource)
        if deprecation:
            call.warnings.append(deprecation)
        watching = info.verb == "watch"
        call.representation = self._negotiate(call, resource, collection=not info.name or watching)
        # admission may be delayed, or have long expressions
        slow = call.fault is not None and call.fault.admission_delay > 0
        slow = slow or has_expressions(resource)
        if not (slow or self._asks_webhooks()):
            return await handler(call, resource)
        return await self._consulted(call, partial(handler, call, resource))

    async def _consulted(
        self, call: Call, answer: Callable[[], Awaitable[StreamResponse]]
    ) -> StreamResponse:
        """Answer a request that may need webhooks."""
        seconds = timeout_seconds(call.query)
        consultation = Consultation(self._clock, min(seconds or math.inf, REQUEST_SECONDS))
        call.consultation = consultation
        warned = list(call.warnings)

        async def attempt() -> StreamResponse:
            call.warnings[:] = warned
            call.annotations.clear()
            return await answer()

        return await consultation.settle(attempt)

    @staticmethod
    def _negotiate(call: Call, resource: APIResource, *, collection: bool) -> Representation:
        # streaming forms are offered for any GET of a collection
        watchable = collection and call.request.method == "GET" and "watch" in resource.verbs
        return negotiate(
            call.header("Accept"),
            resource,
            watchable=watchable,
            streamed=call.info.verb == "watch",
        )

    def _find(self, info: RequestInfo) -> APIResource | Response:
        groups = self.table.groups()
        if info.group not in groups:
            return text_answer("404 page not found\n", 404)
        resource = self.table.get(info.group, info.version, info.resource)
        custom = "." in info.group and not self.table.is_built_in(info.group)
        if custom and (resource is None or info.rest or not _has_scope(resource, info)):
            # the handler of custom resources refuses paths only like this
            return text_answer("404 page not found\n", 404)
        if resource is None or info.rest:
            raise refusal.no_such_resource()
        if info.name in {".", ".."}:
            why = f"Name parameter invalid: {go_quoted(info.name)}: may not be '{info.name}'"
            raise refusal.bad_request(why)
        if info.namespace and not resource.namespaced and not info.of_namespace:
            raise refusal.no_such_resource()
        if not info.namespace and resource.namespaced and info.name:
            raise refusal.no_such_resource()
        if info.subresource and info.subresource not in resource.subresources:
            if custom:
                raise refusal.not_found(resource, info.name)
            raise refusal.no_such_resource()
        return resource

    def _handler(self, call: Call, resource: APIResource) -> Handler:
        info = call.info
        verb = info.verb
        if info.legacy_watch and call.request.method != "GET":
            raise refusal.method_not_allowed()
        if info.subresource:
            return self._subresources.handler(resource, info.subresource, verb)
        handlers: Mapping[str, Handler] = {
            "get": self._reader.get,
            "list": self._reader.list_objects,
            "watch": self._reader.watch,
            "create": self._writer.create,
            "update": self._writer.update,
            "patch": self._writer.patch,
            "delete": self._writer.delete,
            "deletecollection": self._writer.delete_collection,
        }
        handler = handlers.get(verb)
        if resource.custom is not None:
            _check_custom(resource, info, known=handler is not None)
        elif (info.name and verb == "create") or (
            not info.name and (verb in {"update", "patch"} or call.request.method == "HEAD")
        ):
            raise refusal.method_not_allowed()
        if handler is None:
            raise refusal.method_not_allowed()
        if verb in {"create", "deletecollection"} and resource.namespaced and not info.namespace:
            raise refusal.method_not_allowed()  # the path of a write must name the namespace
        if verb not in resource.verbs:
            if verb in {"create", "delete"} and resource.custom is not None:
                raise refusal.verb_not_supported(resource, verb)
            raise refusal.method_not_allowed()
        if resource.storage == "bindings":
            return self._subresources.bind
        return self._reviews.handler(resource) or handler

    async def _other_path(self, call: Call) -> StreamResponse:
        path = call.request.path
        bare = path.rstrip("/") or "/"
        if bare.startswith(health.PATHS):
            return health.answer_health(call, bare)
        if bare == "/version":
            if call.request.method != "GET":
                raise refusal.method_not_allowed()
            return call.answer_value(discovery.VERSION)
        if bare == "/":
            return call.answer_value({"paths": self._paths()})
        if bare.startswith("/openapi/"):
            from listwatch.apiserver.api.openapi import answer_openapi  # noqa: PLC0415 - large, rarely needed

            return answer_openapi(call, self.table, bare)
        if bare == "/metrics":
            return text_answer(self._metrics())
        return self._discovery(call, bare)

    def _discovery(self, call: Call, path: str) -> StreamResponse:
        parts = path.strip("/").split("/")
        if parts[0] not in {"api", "apis"}:
            return text_answer("404 page not found\n", 404)
        core = parts[0] == "api"
        groups = self.table.groups()
        if len(parts) == 1:
            found = choose(call.header("Accept"), discovery.is_aggregated)
            if found is not None:
                return discovery.answer_aggregated(call, self.table, found[0], core=core)
            call.representation = negotiate(call.header("Accept"), None)
            if core:
                return call.answer_value(discovery.api_versions(self.address))
            return call.answer_value(discovery.group_list(self.table))
        group = "" if core else parts[1]
        if group not in groups:
            return text_answer("404 page not found\n", 404)
        call.representation = negotiate(call.header("Accept"), None)
        if len(parts) == 2 and not core:
            answer = {"kind": "APIGroup", "apiVersion": "v1", **discovery.group(self.table, group)}
            return call.answer_value(answer)
        version = parts[1] if core else parts[2]
        if len(parts) > (2 if core else 3) or version not in groups[group]:
            raise refusal.no_such_resource()
        if call.request.method != "GET":
            raise refusal.method_not_allowed()
        return call.answer_value(discovery.resource_list(self.table, group, version))

    def _paths(self) -> list[str]:
        paths = ["/api", "/api/v1", "/apis", "/apis/"]
        for group, versions in self.table.groups().items():
            if group:
                paths += [f"/apis/{group}", *(f"/apis/{group}/{each}" for each in versions)]
        return [*paths, *health.PATHS, "/metrics", "/openapi/v2", "/openapi/v3", "/version"]

    def _metrics(self) -> str:
        figures = self._registry.store.statistics()
        rows = (
            ("listwatch_apiserver_resource_version", "gauge", figures.revision),
            ("listwatch_apiserver_objects", "gauge", figures.objects),
            ("listwatch_apiserver_history_changes", "gauge", figures.history),
            ("listwatch_apiserver_watches", "gauge", figures.watchers),
        )
        return "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in rows)


def _refused(call: Call, error: Exception) -> Response:
    if isinstance(error, StatusError):
        return call.refuse(error)
    if isinstance(error, RecursionError):
        return call.refuse(refusal.bad_request("exceeded max depth"))
    if isinstance(error, AllottedTimeError):
        body = msgspec.json.encode(_OUT_OF_TIME) + b"\n"
        return call.answer(body, status=504, content_type="text/plain; charset=utf-8")
    request = call.request
    if isinstance(error, WithoutUserError):
        return call.refuse(refusal.bad_request(str(error)))
    if isinstance(error, NotStoredError):
        return call.refuse(refusal.internal_error(f"the change was not stored: {error}"))
    if isinstance(error, ExpiredTokenError):
        status = error.status.to_status()
        status["metadata"] = {"continue": error.token}
        return call.answer_value(status, status=410)
    _log.error("%s %s failed", request.method, request.rel_url.raw_path, exc_info=error)
    return call.refuse(refusal.internal_error("the server failed; its log says why"))


#: A real server's response to a request that takes too long: plain text without a kind.
_OUT_OF_TIME = {
    "metadata": {},
    "status": "Failure",
    "message": "Timeout: request did not complete within the allotted timeout",
    "reason": "Timeout",
    "details": {},
    "code": 504,
}


def _check_custom(resource: APIResource, info: RequestInfo, *, known: bool) -> None:
    """Refuse a request like the handler of custom resources, which routes only by verb."""
    if not known:
        raise refusal.verb_not_supported(resource, info.verb)
    if info.verb in {"update", "patch"} and not info.name:
        raise refusal.bad_request("name must be provided")


def _has_scope(resource: APIResource, info: RequestInfo) -> bool:
    """Return whether a path fits the resource's scope; lists and watches may omit a namespace."""
    if resource.namespaced:
        return bool(info.namespace) or info.verb in {"list", "watch"}
    return not info.namespace


def _deprecation(resource: APIResource) -> str:
    """Return a real server's deprecation warning for a resource; "" for most."""
    if resource.custom is not None:
        return str(resource.custom.get("deprecation", ""))
    return kind_of(resource).deprecation


def _query(request: BaseRequest) -> dict[str, list[str]]:
    text = request.rel_url.raw_query_string
    return parse_qs(text, keep_blank_values=True) if text else {}
