"""Faults on demand, for tests of what speaks to a server."""

import asyncio
import fnmatch
import random
from collections.abc import Iterable

import msgspec
from aiohttp import web

from listwatch.apiserver.call import Call
from listwatch.clock import Clock
from listwatch.errors import StatusError


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What goes wrong with some requests.

    Attributes:
        path: a pattern of the path, such as `*/pods*`.
        verb: get, list, watch, create, update, patch, delete, deletecollection; "" is any.
        skip: so many matching requests are spared first.
        times: so many are hit; 0 is all.
        probability: of a matching request being hit, drawn from the server's seed.
        delay: seconds until anything else happens.
        status: answer with this HTTP status instead.
        reason: the reason in that answer's Status.
        message: the words in it.
        retry_after: seconds for its Retry-After header.
        drop: close the connection without an answer.
        silent: a watch sends its headers and nothing more; another request gets no answer.
        cut: close the connection after so many bytes of the body.
        cut_character: close it in the middle of the first character of several bytes.
        expired: a watch gets an ERROR event with 410 and ends.
    """

    path: str = "*"
    verb: str = ""
    skip: int = 0
    times: int = 1
    probability: float = 1.0
    delay: float = 0.0
    status: int = 0
    reason: str = ""
    message: str = ""
    retry_after: float | None = None
    drop: bool = False
    silent: bool = False
    cut: int | None = None
    cut_character: bool = False
    expired: bool = False

    def matches(self, call: Call) -> bool:
        """Tell whether a request is of this fault's kind."""
        if self.verb and self.verb != call.info.verb:
            return False
        return fnmatch.fnmatchcase(call.info.path, self.path)

    @property
    def tampers(self) -> bool:
        """Whether the body is written otherwise."""
        return self.cut is not None or self.cut_character or self.silent


class Faults:
    """The faults that are to happen. For one event loop."""

    def __init__(self, clock: Clock, randomness: random.Random) -> None:
        self._clock = clock
        self._random = randomness
        self._waiting: list[tuple[Fault, list[int]]] = []
        #: how many requests were hit
        self.hits = 0

    def add(self, *faults: Fault) -> None:
        """Let faults happen, after those that were added before."""
        self._waiting += [(fault, [fault.skip, fault.times]) for fault in faults]

    def replace(self, faults: Iterable[Fault]) -> None:
        """Let these faults happen and no others."""
        self._waiting = []
        self.add(*faults)

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        self._waiting = []

    def take(self, call: Call) -> Fault | None:
        """Return the fault that hits a request, or None."""
        for item in self._waiting:
            fault, left = item
            if not fault.matches(call):
                continue
            if left[0] > 0:
                left[0] -= 1
                continue
            if fault.probability < 1.0 and self._random.random() >= fault.probability:
                continue
            if fault.times:
                left[1] -= 1
                if left[1] <= 0:
                    self._waiting.remove(item)
            self.hits += 1
            return fault
        return None

    async def before(self, call: Call, fault: Fault) -> web.StreamResponse | None:
        """Do what comes before an answer; returns one that replaces it, or None."""
        if fault.delay > 0:
            await self._clock.sleep(fault.delay)
        if fault.drop or (fault.silent and call.info.verb != "watch"):
            if fault.silent:
                await asyncio.get_running_loop().create_future()  # until the client gives up
            transport = call.request.transport
            if transport is not None:
                transport.abort()
            return web.Response()
        if fault.status:
            error = StatusError.from_status(
                {
                    "message": fault.message or "a fault was asked for",
                    "reason": fault.reason,
                    "code": fault.status,
                },
                retry_after=fault.retry_after,
            )
            return call.refuse(error)
        return None

    async def tamper(
        self, call: Call, fault: Fault, response: web.StreamResponse
    ) -> web.StreamResponse:
        """Write an answer only in part, and close the connection."""
        if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
            return response  # a watch, which was written through a `TamperedTransport`
        body = response.body
        broken = web.StreamResponse(status=response.status, headers=response.headers)
        broken.content_length = len(body)
        await broken.prepare(call.request)
        await broken.write(body[: cut_at(fault, body, 0)])
        if call.request.transport is not None:
            call.request.transport.close()
        return broken


def cut_at(fault: Fault, data: bytes, written: int) -> int | None:
    """Return how much of the data is written before the cut; None for all of it."""
    if fault.cut is not None and written + len(data) > fault.cut:
        return max(0, fault.cut - written)
    if fault.cut_character:
        for position, byte in enumerate(data):
            if byte >= 0xC0:  # the first byte of a character of several
                return position + 1
    return None


class TamperedTransport:
    """A watch's way to its client, with a fault in it."""

    def __init__(self, transport: asyncio.WriteTransport, fault: Fault) -> None:
        self._transport = transport
        self._fault = fault
        self._written = 0

    def write(self, data: bytes) -> None:
        """Write the data, or a part of it and the end of the connection, or nothing."""
        if self._fault.silent or self._transport.is_closing():
            return
        end = cut_at(self._fault, data, self._written)
        if end is None:
            self._written += len(data)
            self._transport.write(data)
            return
        self._transport.write(data[:end])
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the client has not taken yet."""
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Tell whether the connection is on its way out."""
        return self._transport.is_closing()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
