"""Records the requests that a server received, for tests of programs."""

from collections import deque
from collections.abc import Mapping

import msgspec
from aiohttp.web_response import StreamResponse

from listwatch.apiserver.http.call import Call


class RecordedRequest(msgspec.Struct, kw_only=True):
    """A request and its response.

    Attributes:
        time: when it arrived, in seconds since 1970.
        method: the HTTP method.
        path: without the query.
        query: as sent.
        verb: get, list, watch, create, update, patch, delete or deletecollection; for other paths
            the method in lower case.
        resource: the plural name, with the group if there is one; "" for other paths.
        subresource: such as `status`.
        namespace: of the path.
        name: of the object.
        user: the authenticated or impersonated user.
        user_agent: the header.
        status: the HTTP status; 0 while the response continues, as for a watch.
        warnings: the warnings for the client.
        annotations: the audit annotations of the request's admission, such as those of policies.
    """

    time: float
    method: str
    path: str
    query: str = ""
    verb: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    user_agent: str = ""
    status: int = 0
    warnings: list[str] = []
    annotations: Mapping[str, str] = {}


class RequestLog:
    """The last requests, in order of arrival. For one event loop.

    Args:
        limit: number of requests to keep.
    """

    def __init__(self, limit: int) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=limit)
        self._open: dict[int, RecordedRequest] = {}

    def begin(self, call: Call, time: float) -> None:
        """Record a request that has arrived."""
        info = call.info
        resource = f"{info.resource}.{info.group}" if info.group else info.resource
        entry = RecordedRequest(
            time=time,
            method=call.request.method,
            path=info.path,
            query=call.request.query_string,
            verb=info.verb,
            resource=resource if info.is_resource else "",
            subresource=info.subresource,
            namespace=info.namespace,
            name=info.name,
            user_agent=call.header("User-Agent"),
        )
        self._requests.append(entry)
        self._open[id(call)] = entry

    def end(self, call: Call, response: StreamResponse | None) -> None:
        """Record the response to a request; None if the client disconnected first."""
        entry = self._open.pop(id(call), None)
        if entry is not None:
            entry.user = call.user.name
            entry.status = 499 if response is None else response.status
            entry.warnings = list(call.warnings)
            entry.annotations = dict(call.annotations)

    def requests(self) -> list[RecordedRequest]:
        """Return copies of the requests, oldest first."""
        return [msgspec.structs.replace(each) for each in self._requests]

    def clear(self) -> None:
        """Discard all requests; those in progress are not recorded."""
        self._requests.clear()
        self._open.clear()
