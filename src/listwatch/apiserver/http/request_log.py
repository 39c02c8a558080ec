"""The requests that a server got, for tests that ask what a program did."""

from collections import deque
from collections.abc import Mapping

import msgspec
from aiohttp import web

from listwatch.apiserver.http.call import Call


class RecordedRequest(msgspec.Struct, kw_only=True):
    """A request, and how it was answered.

    Attributes:
        time: when it arrived, in seconds since 1970.
        method: of HTTP.
        path: without the query.
        query: as it was sent.
        verb: get, list, watch, create, update, patch, delete or deletecollection; a path that has
            no resource has its method in lower case.
        resource: the plural name, with the group if there is one; "" for other paths.
        subresource: such as `status`.
        namespace: of the path.
        name: of the object.
        user: the authenticated or impersonated user.
        user_agent: the header.
        status: of HTTP; 0 while the request is being answered, as a watch is.
        warnings: what the client was warned of.
        annotations: what an audit says of the request's admission, such as the audit annotations of
            policies.
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
    """The last requests, in the order in which they arrived. For one event loop.

    Args:
        limit: how many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=limit)
        self._open: dict[int, RecordedRequest] = {}

    def begin(self, call: Call, time: float) -> None:
        """Note a request that has arrived."""
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

    def end(self, call: Call, response: web.StreamResponse | None) -> None:
        """Note how a request was answered; None if its client left before."""
        entry = self._open.pop(id(call), None)
        if entry is not None:
            entry.user = call.user.name
            entry.status = 499 if response is None else response.status
            entry.warnings = list(call.warnings)
            entry.annotations = dict(call.annotations)

    def requests(self) -> list[RecordedRequest]:
        """Return copies of the requests, the oldest first."""
        return [msgspec.structs.replace(each) for each in self._requests]

    def clear(self) -> None:
        """Forget all requests; those being answered are noted no more."""
        self._requests.clear()
        self._open.clear()
