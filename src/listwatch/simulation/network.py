"""Requests from clients to the embedded API server in the same event loop, without sockets."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from http import HTTPStatus
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_writer import HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy, MultiMapping
from yarl import URL

from listwatch.apiserver.http.call import BODY_LIMIT
from listwatch.errors import DisconnectedError

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_BROKEN: Final = "the connection to the simulated server broke"


class Exchange:
    """One request as the world sees it.

    Attributes:
        method: the HTTP method.
        path: with the query.
        body: of the request.
        watch: whether the response is a watch.
        sent: what the wire knows about it.
    """

    __slots__ = ("body", "method", "path", "sent", "watch")

    def __init__(self, method: str, path: str, body: bytes | None, *, watch: bool) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.watch = watch
        self.sent: object = None


class Wire(Protocol):
    """Decides what happens to the requests of one client."""

    async def before(self, exchange: Exchange) -> Handle:
        """Return what answers the request, at the time when it reaches the server.

        Raises:
            DisconnectedError: it does not reach the server.
        """
        ...

    async def after(self, exchange: Exchange, status: int, body: bytes) -> None:
        """Return when the response reaches the client.

        Raises:
            DisconnectedError: it does not.
        """
        ...

    def deliver(self, stream: "Stream", piece: bytes) -> None:
        """Give a watch's event to `stream.arrive` now or later, or break the stream."""
        ...

    def opened(self, stream: "Stream") -> None:
        """Take notice of a watch's response."""
        ...

    @property
    def server_context(self) -> Context:
        """The context of the server's steps."""
        ...


class _Writer(AbstractStreamWriter):
    """Receives what the server writes through aiohttp's response."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        data = bytes(chunk)
        self.output_size += len(data)
        if data:
            self._connection.take(data)

    async def write_eof(self, chunk: bytes = b"") -> None:
        if chunk:
            await self.write(chunk)
        self._connection.end()

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        """Compress nothing: the client never asks for it."""

    def enable_chunking(self) -> None:
        """Frame nothing."""

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        self._connection.begin(int(status_line.split(" ", 2)[1]), headers)


class _Request(web.BaseRequest):
    """A request whose whole body is there."""

    body = b""

    async def read(self) -> bytes:
        """Return the body."""
        if len(self.body) > BODY_LIMIT:
            raise web.HTTPRequestEntityTooLarge(BODY_LIMIT, len(self.body))
        return self.body


class _Connection:
    """The server's side of one request: the parts of aiohttp's protocol and transport it uses."""

    ssl_context = None
    peername = ("127.0.0.1", 1)
    sockname = ("127.0.0.1", 443)

    def __init__(self, on_head: Callable[[int, MultiMapping[str]], None] | None) -> None:
        self._on_head = on_head
        self._is_closing = False
        self.pieces: list[bytes] = []
        self.stream: Stream | None = None
        self.on_abort: Callable[[], None] | None = None

    @property
    def transport(self) -> "_Connection | None":
        """The transport; None once it is closed."""
        return None if self._is_closing else self

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return nothing: there is no socket."""
        del name
        return default

    # -- written through the transport, in HTTP's chunks

    def write(self, data: bytes) -> None:
        """Take the chunks of a watch."""
        place = 0
        while place < len(data):
            line = data.index(b"\r\n", place)
            size = int(data[place:line], 16)
            if size:
                self.take(data[line + 2 : line + 2 + size])
            place = line + size + 4

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing waits here."""
        return 0

    def is_closing(self) -> bool:
        """Whether the client is gone."""
        return self._is_closing

    def abort(self) -> None:
        """Break the connection from the server's side."""
        self._is_closing = True
        if self.stream is not None:
            self.stream.break_off()
        if self.on_abort is not None:
            self.on_abort()

    close = abort

    # -- written through the response

    def begin(self, status: int, headers: MultiMapping[str]) -> None:
        """Pass the head on."""
        if self._on_head is not None:
            self._on_head(status, headers)

    def take(self, data: bytes) -> None:
        """Pass a piece of the body on."""
        if self._is_closing:
            return
        if self.stream is None:
            self.pieces.append(data)
        else:
            self.stream.wire.deliver(self.stream, data)

    def end(self) -> None:
        """End the body."""
        if self.stream is not None:
            self.stream.finish()

    def leave(self) -> None:
        """Let the server know that the client is gone."""
        self._is_closing = True


class Stream:
    """The body of a watch, at the client.

    Attributes:
        exchange: the request.
        wire: decides when its events arrive.
        held: the events that wait for their time, oldest first.
    """

    def __init__(self, exchange: Exchange, wire: Wire, connection: _Connection) -> None:
        self.exchange = exchange
        self.wire = wire
        self.held: deque[bytes] = deque()
        #: Until when events wait, in virtual seconds; for the wire.
        self.held_until = 0.0
        #: When its connection will break; 0 if it will not.
        self.breaks_at = 0.0
        #: Whether its initial events are still being sent.
        self.is_initial = "sendInitialEvents=true" in exchange.path
        self._connection = connection
        self._pieces: list[bytes] = []
        self._ended = False
        self._broken = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether events may still arrive."""
        return not self._broken and not self._ended

    def arrive(self, piece: bytes) -> None:
        """Let the client read an event."""
        if self.is_open:
            self._pieces.append(piece)
            self._wake()

    def finish(self) -> None:
        """End the body normally, after the events that wait."""
        for piece in self.held:
            self.arrive(piece)
        self.held.clear()
        self._ended = True
        self._wake()

    def break_off(self) -> None:
        """Break the connection; events that have not arrived are lost with it."""
        self.held.clear()
        self._broken = True
        self._connection.leave()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> list[bytes]:
        """Return the events that have arrived; none at the end."""
        while not self._pieces:
            if self._broken:
                raise DisconnectedError(_BROKEN)
            if self._ended:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        pieces, self._pieces = self._pieces, []
        return pieces


class _Response:
    """A response at the client."""

    def __init__(
        self,
        status: int,
        headers: MultiMapping[str],
        pieces: list[bytes],
        stream: Stream | None = None,
    ) -> None:
        self.status = status
        self.reason = HTTPStatus(status).phrase
        self.headers = headers
        self._pieces = pieces
        self._stream = stream

    async def read_pieces(self) -> list[bytes]:
        """Return the pieces of the body that have arrived; none at its normal end."""
        if self._stream is not None:
            return await self._stream.read()
        pieces, self._pieces = self._pieces, []
        return pieces


class MemoryConnections:
    """A client's connections to a server in the same event loop.

    Args:
        wire: decides what happens to each request.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Do nothing: nothing is kept open."""
        yield

    async def close(self) -> None:
        """Do nothing, as `used`."""

    @asynccontextmanager
    async def stream(
        self, url: str, headers: list[tuple[str, str]], *, watch: bool, prompt: bool
    ) -> AsyncIterator[_Response]:
        """Get a long response."""
        del prompt
        exchange = Exchange("GET", _path_of(url), None, watch=watch)
        if not watch:
            yield await self._send(exchange, headers)
            return
        handle = await self._wire.before(exchange)
        loop = asyncio.get_running_loop()
        head: asyncio.Future[tuple[int, MultiMapping[str]]] = loop.create_future()

        def on_head(status: int, fields: MultiMapping[str]) -> None:
            if not head.done():
                head.set_result((status, fields))

        connection = _Connection(on_head)
        stream = connection.stream = Stream(exchange, self._wire, connection)

        async def serve() -> web.StreamResponse:
            return await handle(_request(exchange, headers, connection))

        serving = loop.create_task(serve(), context=self._wire.server_context)
        try:
            waiting: set[asyncio.Future[Any]] = {head, serving}
            _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if head.done():
                self._wire.opened(stream)
                await self._wire.after(exchange, head.result()[0], b"")
                yield _Response(*head.result(), [], stream)
            else:
                status, fields, body = _whole(serving.result(), connection)
                await self._wire.after(exchange, status, body)
                yield _Response(status, fields, [body] if body else [])
        finally:
            connection.leave()
            serving.cancel()

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AsyncIterator[_Response]:
        """Send a request."""
        yield await self._send(Exchange(method, _path_of(url), body, watch=False), headers)

    async def _send(self, exchange: Exchange, headers: list[tuple[str, str]]) -> _Response:
        handle = await self._wire.before(exchange)
        connection = _Connection(None)

        async def serve() -> web.StreamResponse:
            return await handle(_request(exchange, headers, connection))

        loop = asyncio.get_running_loop()
        answer = await loop.create_task(serve(), context=self._wire.server_context)
        status, fields, body = _whole(answer, connection)
        await self._wire.after(exchange, status, body)
        return _Response(status, fields, [body] if body else [])


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _whole(
    answer: web.StreamResponse, connection: _Connection
) -> tuple[int, MultiMapping[str], bytes]:
    if connection.pieces:
        body = b"".join(connection.pieces)
    else:
        found = getattr(answer, "body", b"")
        body = found if isinstance(found, bytes) else b""
    return answer.status, answer.headers, body


def _request(
    exchange: Exchange, headers: list[tuple[str, str]], connection: _Connection
) -> web.BaseRequest:
    fields = CIMultiDictProxy(CIMultiDict([("Host", "simulated"), *headers]))
    message = RawRequestMessage(
        exchange.method,
        exchange.path,
        HttpVersion11,
        fields,
        (),
        False,
        None,
        False,
        False,
        URL(exchange.path, encoded=True),
    )
    request = _Request(
        message,
        cast("Any", None),
        cast("Any", connection),
        _Writer(connection),
        cast("Any", asyncio.current_task()),
        asyncio.get_running_loop(),
    )
    request.body = exchange.body or b""
    return request
