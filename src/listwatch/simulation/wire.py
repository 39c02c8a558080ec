"""The way of requests and events between a simulated process and the server."""

import asyncio
import json
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qs

import msgspec
from aiohttp import web

from listwatch.apiserver.http.request_info import RequestInfo, parse_request
from listwatch.errors import DisconnectedError
from listwatch.simulation.faults import SLOW_SECONDS, Boundary
from listwatch.simulation.network import Exchange, Handle, Stream
from listwatch.simulation.oracles import SentRequest

if TYPE_CHECKING:
    from listwatch.simulation.processes import Process
    from listwatch.simulation.world import World

_READS = frozenset({"get", "list"})
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
#: Requests at which no fault strikes, because there are many and they rarely matter.
_PLAIN = frozenset({"leases", "events"})


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    code: int = 0


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Object


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_object = msgspec.json.Decoder(_Object).decode


class Sent:
    """A request on its way.

    Attributes:
        info: what it asks for.
        words: the same for people.
        boundary: None for requests at which no fault strikes.
        is_consistent: whether it reads the newest state.
        fault: what strikes once the server has answered; "" for nothing.
        point: the number of its point.
    """

    __slots__ = ("boundary", "fault", "info", "is_consistent", "path", "point", "words")

    def __init__(self, exchange: Exchange) -> None:
        path, _, text = exchange.path.partition("?")
        query = parse_qs(text, keep_blank_values=True) if text else {}
        self.info = info = parse_request(exchange.method, path, query)
        self.path = path
        self.fault = ""
        self.point = 0
        self.boundary: Boundary | None = None
        if not info.is_resource or info.resource in _PLAIN:
            pass
        elif info.verb in _READS:
            self.boundary = Boundary.READ
        elif info.verb in _WRITES:
            self.boundary = Boundary.WRITE
        self.is_consistent = not any(query.get("resourceVersion", ("",)))
        self.words = words_of(info)
        if info.verb == "create" and not info.name and exchange.body:
            meta = json.loads(exchange.body).get("metadata") or {}
            name = meta.get("name") or f"{meta.get('generateName', '')}…"
            self.words += f" {name}"


def words_of(info: RequestInfo) -> str:
    """Return a request in a few words."""
    if not info.is_resource:
        return f"{info.method} {info.path}"
    resource = f"{info.resource}.{info.group}" if info.group else info.resource
    if info.subresource:
        resource += f"/{info.subresource}"
    place = "/".join(part for part in (info.namespace, info.name) if part)
    return f"{info.verb} {resource} {place}".rstrip()


def _depends_on_version(exchange: Exchange) -> bool:
    if exchange.method == "PUT":
        return True
    if exchange.method not in {"PATCH", "DELETE"} or not exchange.body:
        return False
    return b'"resourceVersion"' in exchange.body


def status_answer(code: int, reason: str, message: str, retry_after: int = 0) -> Handle:
    """Return a handler that refuses a request."""
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    headers = {"Content-Type": "application/json"}
    if retry_after:
        status["details"] = {"retryAfterSeconds": retry_after}
        headers["Retry-After"] = str(retry_after)
    body = msgspec.json.encode(status)

    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, status=code, headers=headers)

    return handle


_REFUSALS: dict[str, Callable[[], Handle]] = {
    "server-error": lambda: status_answer(500, "InternalError", "a simulated fault"),
    "throttled": lambda: status_answer(429, "TooManyRequests", "a simulated fault", 1),
    "conflict": lambda: status_answer(
        409,
        "Conflict",
        "the object has been modified; please apply your changes to the latest version",
    ),
    "webhook": lambda: status_answer(
        500, "InternalError", 'failed calling webhook "simulated": connection refused'
    ),
}


class ProcessWire:
    """The way between one process and the server, on which faults strike.

    Args:
        world: counts the points, and says which fault strikes.
        process: sends the requests.
    """

    def __init__(self, world: "World", process: "Process") -> None:
        self._world = world
        self._process = process

    @property
    def server_context(self) -> Context:
        """The context of the server's steps."""
        return self._world.server_context

    async def before(self, exchange: Exchange) -> Handle:
        """Return what answers the request, at the time when it reaches the server."""
        world, process = self._world, self._process
        exchange.sent = sent = Sent(exchange)
        fault = ""
        if sent.boundary is not None:
            versioned = sent.boundary is Boundary.WRITE and _depends_on_version(exchange)
            sent.point, fault = world.pass_point(
                sent.boundary,
                process,
                sent.words,
                versioned=versioned,
                creates=sent.info.verb == "create" and not sent.info.subresource,
            )
        if sent.boundary is Boundary.WRITE:
            world.check_leadership(process, sent.words)
        elif sent.info.resource == "leases" and exchange.body:
            world.note_lease(process, exchange.body)
        if fault == "crash-before":
            await self._die()
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        await asyncio.sleep(world.latency())
        if fault == "unreachable":
            world.tell(process.name, f"{sent.words}: no answer", point=sent.point)
            world.note_request(self._request(sent, 0))
            raise DisconnectedError("a simulated fault: the connection broke")
        if fault in _REFUSALS:
            return _REFUSALS[fault]()
        sent.fault = fault
        return world.handle_for(process, sent)

    async def after(self, exchange: Exchange, status: int, body: bytes) -> None:
        """Return when the response reaches the process."""
        world, process, sent = self._world, self._process, exchange.sent
        assert isinstance(sent, Sent)  # noqa: S101 - set by `before`
        world.journal.digest_of(
            f"{process.name} {exchange.method} {exchange.path} {status}", exchange.body or b"", body
        )
        world.note_request(self._request(sent, status))
        if sent.boundary is not None or sent.info.verb == "watch":
            seen = _revision_of(body) if sent.boundary is not None and status < 300 else 0
            world.tell(process.name, f"{sent.words} → {status}", seen=seen, point=sent.point)
        fault = sent.fault
        if fault in {"crash-after", "stale-restart"}:
            if fault == "stale-restart":
                world.fall_behind()
            await self._die()
        if fault == "deleted" and status < 300:
            world.delete_created(sent.info, body)
        if fault == "lost-reply":
            raise DisconnectedError("a simulated fault: the reply was lost")
        if fault == "pause":
            world.pause(process)
        await asyncio.sleep(world.latency())

    async def _die(self) -> NoReturn:
        self._world.crash(self._process)
        _ = await asyncio.get_running_loop().create_future()
        raise AssertionError("a dead process took a step")

    def _request(self, sent: Sent, status: int) -> SentRequest:
        info = sent.info
        resource = f"{info.resource}.{info.group}" if info.group else info.resource
        return SentRequest(
            self._world.now,
            self._process.name,
            info.verb,
            resource,
            info.namespace,
            info.name,
            info.subresource,
            status,
        )

    # --- Watches ---

    def opened(self, stream: Stream) -> None:
        """Remember a watch, to break it when the process dies."""
        self._process.streams = [each for each in self._process.streams if each.is_open]
        self._process.streams.append(stream)

    def deliver(self, stream: Stream, piece: bytes) -> None:
        """Let an event arrive at its time, unless a fault strikes."""
        if not stream.is_open:
            return
        world, process = self._world, self._process
        event = _decode_event(piece)
        sent = stream.exchange.sent
        assert isinstance(sent, Sent)  # noqa: S101 - set by `before`
        world.journal.digest_of(f"{process.name} {sent.words} {world.now:.6f}", piece)
        meta = event.object.metadata
        if event.type in {"BOOKMARK", "ERROR"} or stream.is_initial:
            if event.type == "BOOKMARK":
                stream.is_initial = False
            self._later(stream, piece, "", 0)
            return
        resource = sent.words.removeprefix("watch ").split(" ", 1)[0]
        name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        words = f"{event.type} {resource} {name}"
        point, fault = world.pass_point(Boundary.EVENT, process, words)
        if fault == "lag":
            stream.held_until = max(stream.held_until, world.hold())
        elif fault == "missed":
            stream.held_until = max(stream.held_until, world.hold())
            stream.breaks_at = stream.held_until
            world.loop.call_at(stream.held_until, self._lose, stream, context=self.server_context)
        elif fault == "cut":
            stream.break_off()
            return
        self._later(stream, piece, words, int(meta.resourceVersion or 0), point)

    def _later(
        self, stream: Stream, piece: bytes, words: str, revision: int, point: int = 0
    ) -> None:
        world = self._world
        stream.held.append(piece)
        stream.held_until = max(stream.held_until, world.now + world.latency())
        _ = world.loop.call_at(
            stream.held_until,
            self._arrive,
            stream,
            piece,
            words,
            revision,
            point,
            context=self.server_context,
        )

    def _arrive(self, stream: Stream, piece: bytes, words: str, revision: int, point: int) -> None:
        if not stream.is_open or not stream.held or stream.breaks_at:
            return
        stream.held.popleft()
        if words:
            self._world.tell(self._process.name, f"hears {words}", seen=revision, point=point)
        stream.arrive(piece)

    def _lose(self, stream: Stream) -> None:
        """Break a watch whose history is gone."""
        world = self._world
        world.server.compact()
        world.tell("fault", f"the history is gone, and a watch of {self._process.name} breaks")
        stream.break_off()


def _revision_of(body: bytes) -> int:
    try:
        return int(_decode_object(body).metadata.resourceVersion or 0)
    except (msgspec.DecodeError, ValueError):
        return 0


class ScenarioWire:
    """The way between the scenario and the server: no faults, and no time passes.

    Args:
        world: tells the story.
    """

    def __init__(self, world: "World") -> None:
        self._world = world

    @property
    def server_context(self) -> Context:
        """The context of the server's steps."""
        return self._world.server_context

    async def before(self, exchange: Exchange) -> Handle:
        """Return what answers the request."""
        exchange.sent = sent = Sent(exchange)
        if sent.info.verb in _WRITES:
            self._world.note_user_change()
        return self._world.server.api.handle

    async def after(self, exchange: Exchange, status: int, body: bytes) -> None:
        """Tell about a change."""
        sent = exchange.sent
        assert isinstance(sent, Sent)  # noqa: S101 - set by `before`
        self._world.journal.digest_of(
            f"user {exchange.method} {exchange.path} {status}", exchange.body or b"", body
        )
        if sent.info.verb in _WRITES:
            self._world.tell("user", f"{sent.words} → {status}")

    def opened(self, stream: Stream) -> None:
        """Take no notice."""

    def deliver(self, stream: Stream, piece: bytes) -> None:
        """Let an event arrive at once."""
        stream.arrive(piece)
