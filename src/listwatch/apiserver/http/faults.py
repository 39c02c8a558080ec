"""Faults on demand, to test clients."""

import asyncio
import fnmatch
import random
from collections.abc import Callable, Iterable

import msgspec
from aiohttp.web_response import Response, StreamResponse

from listwatch.apiserver.http.call import Call, text_answer
from listwatch.clock import Clock
from listwatch.errors import StatusError

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_MESSAGES = {
    410: "too old resource version",
    429: "the server has received too many requests and has asked us to try again later",
    500: "an error on the server has prevented the request from succeeding",
    503: "the server is currently unable to handle the request",
}


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault, and the requests that it hits.

    A request must match all given conditions; "" and "*" match anything. Several effects can be
    combined, such as a delay and a status.

    Attributes:
        verb: get, list, watch, create, update, patch, delete or deletecollection.
        resource: the plural name, with the group if there is one: `pods`, `deployments.apps`.
        namespace: of the request's path.
        name: of one object.
        path: a pattern of the whole path, such as `*/pods*`.
        user_agent: a pattern of the User-Agent header.
        skip: the first matching requests to let pass.
        times: the number of requests to hit after that; 0 for all.
        probability: the chance that a matching request is hit; drawn from the server's `seed`.
        delay: seconds to wait before anything else.
        status: answer with this HTTP status instead.
        reason: the reason in the Status; "" for the usual one of its code.
        message: the message in the Status.
        retry_after: seconds for the Retry-After header. Like a real server's, a 429 without
            `message` is plain text and always has one.
        after: events (including bookmarks) that a watch delivers before any of the next five
            effects.
        error_event: a watch gets an ERROR event with this code, such as 410, and ends.
        silent: a watch sends nothing more; another request gets no answer.
        drop: close the connection, without an answer or between two events.
        cut_event: close it within an event, or within the body of another response.
        cut_character: close it within the first multi-byte character.
        cut: close the connection after this many bytes of the body.
        withhold_bookmarks: a watch gets no bookmarks except the one that ends its initial events.
        stale: the replica that has fallen behind answers (`EmbeddedAPIServer.replica`).
        committed: the request is carried out before `status`, `drop` or `silent` replaces its
            response, as when etcd changes its leader after a commit.
        admission_delay: seconds that the admission of a write takes, between reading the object and
            storing it.
    """

    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = "*"
    user_agent: str = "*"
    skip: int = 0
    times: int = 1
    probability: float = 1.0
    delay: float = 0.0
    status: int = 0
    reason: str = ""
    message: str = ""
    retry_after: float | None = None
    after: int = 0
    error_event: int = 0
    silent: bool = False
    drop: bool = False
    cut_event: bool = False
    cut_character: bool = False
    cut: int | None = None
    withhold_bookmarks: bool = False
    stale: bool = False
    committed: bool = False
    admission_delay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("status", "error_event"):
            code = getattr(self, name)
            if code and not 400 <= code <= 599:
                raise ValueError(f"{name} of a fault must be between 400 and 599, not {code}")
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"probability of a fault must be from 0 to 1, not {self.probability}")
        if self.committed and not (self.status or self.drop or self.silent):
            raise ValueError("a committed fault needs a status, drop or silent")
        for name in (
            "skip",
            "times",
            "delay",
            "after",
            "cut",
            "retry_after",
            "admission_delay",
        ):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} of a fault must not be negative, but is {value}")

    def matches(self, call: Call) -> bool:
        """Return whether a request matches this fault."""
        info = call.info
        if self.verb and self.verb != info.verb:
            return False
        if self.resource:
            full = f"{info.resource}.{info.group}" if info.group else info.resource
            if self.resource != full:
                return False
        return (
            self.namespace in {"", info.namespace}
            and self.name in {"", info.name}
            and (self.path == "*" or fnmatch.fnmatchcase(info.path, self.path))
            and (
                self.user_agent == "*"
                or fnmatch.fnmatchcase(call.header("User-Agent"), self.user_agent)
            )
        )

    @property
    def tampers(self) -> bool:
        """Whether the body is changed."""
        return (
            self.cut is not None
            or self.cut_character
            or self.cut_event
            or self.silent
            or self.drop
            or bool(self.error_event)
        )

    def error(self, code: int) -> StatusError:
        """Return the error to send, with a code."""
        status: dict[str, object] = {
            "message": self.message or _MESSAGES.get(code, "a fault was asked for"),
            "reason": self.reason or _REASONS.get(code, ""),
            "code": code,
        }
        if self.retry_after:
            status["details"] = {"retryAfterSeconds": max(1, round(self.retry_after))}
        return StatusError.from_status(status, retry_after=self.retry_after)


class _Rule:
    """A fault waiting for its requests."""

    __slots__ = ("fault", "spare", "times")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.spare = fault.skip
        self.times = fault.times


class Faults:
    """The active faults, in the order in which they were added.

    The first one that matches a request hits it, and no other. For the server's event loop.

    Args:
        clock: times the delays.
        randomness: decides about probabilities, so one seed and one order of requests give the same
            faults.
    """

    def __init__(self, clock: Clock, randomness: random.Random) -> None:
        self._clock = clock
        self._random = randomness
        self._rules: list[_Rule] = []
        #: number of requests hit
        self.hits = 0
        #: maximum concurrent requests except watches; None for no limit
        self.in_flight_limit: int | None = None
        self.in_flight = 0

    def __len__(self) -> int:
        """Return the number of faults that still wait for requests."""
        return len(self._rules)

    def add(self, *faults: Fault) -> None:
        """Append faults."""
        self._rules += map(_Rule, faults)

    def replace(self, faults: Iterable[Fault]) -> None:
        """Replace all faults with these."""
        self._rules = [_Rule(fault) for fault in faults]

    def clear(self) -> None:
        """Remove all faults; running effects, such as a silent watch, continue."""
        self._rules = []

    def take(self, call: Call) -> Fault | None:
        """Return the fault that hits a request, or None."""
        for rule in self._rules:
            fault = rule.fault
            if not fault.matches(call):
                continue
            if rule.spare > 0:
                rule.spare -= 1
                continue
            if fault.probability < 1.0 and self._random.random() >= fault.probability:
                continue
            if rule.times:
                rule.times -= 1
                if not rule.times:
                    self._rules.remove(rule)
            self.hits += 1
            return fault
        return None

    async def before(self, call: Call, fault: Fault) -> StreamResponse | None:
        """Apply the effects before a response; return a replacement for it, or None."""
        if fault.delay > 0:
            await self._clock.sleep(fault.delay)
        watching = call.info.verb == "watch"
        if fault.silent and not watching:
            await asyncio.get_running_loop().create_future()  # until the client gives up
        if fault.drop and not (watching and fault.after):
            transport = call.request.transport
            if transport is not None:
                transport.abort()
            return Response()
        if fault.status == 429 and not fault.message and not fault.reason:
            return too_many_requests(fault.retry_after)
        if fault.status:
            return call.refuse(fault.error(fault.status))
        return None

    async def tamper(self, call: Call, fault: Fault, response: StreamResponse) -> StreamResponse:
        """Write a response only in part, and close the connection."""
        if not isinstance(response, Response) or not isinstance(response.body, bytes):
            return response  # a watch, written through a `TamperedTransport`
        body = response.body
        end = cut_at(fault, body, 0)
        if end is None:
            return response
        broken = StreamResponse(status=response.status, headers=response.headers)
        broken.content_length = len(body)
        await broken.prepare(call.request)
        await broken.write(body[:end])
        if call.request.transport is not None:
            call.request.transport.close()
        return broken


def too_many_requests(after: float | None = None) -> Response:
    """Return the response of a real server's flow control, which is not a Status."""
    answer = text_answer("Too many requests, please try again later.\n", 429)
    after = 1.0 if after is None else after
    answer.headers["Retry-After"] = str(max(1, round(after)))
    return answer


def cut_at(fault: Fault, data: bytes, written: int) -> int | None:
    """Return how much of the data to write before the cut; None for all of it."""
    if fault.cut is not None and written + len(data) > fault.cut:
        return max(0, fault.cut - written)
    if fault.cut_event:
        return len(data) // 2
    if fault.cut_character:
        for position, byte in enumerate(data):
            if byte >= 0xC0:  # the first byte of a multi-byte character
                return position + 1
    return None


class TamperedTransport:
    """A watch's connection with a fault in it.

    Args:
        transport: the connection.
        fault: the fault.
        end: ends the stream normally after an error event.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        fault: Fault,
        end: Callable[[StatusError], None],
    ) -> None:
        self._transport = transport
        self._fault = fault
        self._end = end
        self._written = 0
        self._left = fault.after
        self._ended = False
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Apply at once the effects that don't wait for another event."""
        if self._left > 0 or self._ended:
            return
        if self._fault.error_event:
            self._ended = True
            self._end(self._fault.error(self._fault.error_event))
        elif self._fault.drop:
            self._ended = True
            self._transport.close()

    def write(self, data: bytes) -> None:
        """Write one frame, or part of it and the end of the connection, or nothing."""
        if self._ended or self._transport.is_closing():
            return
        if self._left <= 0:
            if self._fault.silent:
                return
            end = cut_at(self._fault, data, self._written)
            if end is not None:
                self._transport.write(data[:end])
                self._transport.close()
                return
        self._written += len(data)
        self._left -= 1
        self._transport.write(data)
        self._look_ahead()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the client has not read yet."""
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        return self._transport.is_closing()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
