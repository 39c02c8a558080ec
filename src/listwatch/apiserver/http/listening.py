"""Listening for connections, and the connections themselves."""

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import StreamReader
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

from listwatch.accepting import Acceptor, ConnectionLimit, ShortageLog, listening_sockets
from listwatch.apiserver import refusal
from listwatch.apiserver.http.call import BODY_LIMIT
from listwatch.apiserver.http.negotiation import JSON
from listwatch.clock import Clock, Timer
from listwatch.errors import ConfigError

#: Seconds for which a client may read nothing although data waits. The system reports progress only
#: once a third of its buffer is free again, which is a megabyte or more.
_PATIENCE = 300.0
#: Maximum line of a request's headers, in bytes: Go's limit for all of them.
_HEAD_LIMIT = 1 << 20
#: Seconds for the first request of a connection, like a real server's ReadHeaderTimeout.
_HEAD_SECONDS = 32.0
#: Seconds for a body: a real server's request time-out.
_BODY_SECONDS = 60.0
#: Seconds until an idle connection is closed, like a real server's IdleTimeout.
_IDLE_SECONDS = 90.0
#: Default limit of open connections: idle ones take 8 KB each, watches 20 KB.
CONNECTION_LIMIT = 10_000
#: Seconds for which running requests may continue when the server stops.
_SHUTDOWN_SECONDS = 0.05

Handle = Callable[[BaseRequest], Awaitable[StreamResponse]]


class Listening:
    """A server that listens on an address, until `close`. For one event loop."""

    def __init__(self, server: "_Server", acceptors: Sequence[Acceptor], port: int) -> None:
        self._server = server
        self._acceptors = acceptors
        #: the port
        self.port = port

    async def stop_accepting(self) -> None:
        """Accept no more connections; existing ones continue. Harmless when called twice."""
        for acceptor in self._acceptors:
            await acceptor.aclose()

    async def close(self) -> None:
        """Accept no more connections and close existing ones."""
        await self.stop_accepting()
        await asyncio.sleep(0)  # start to handle the requests that have arrived
        self._server.pre_shutdown()
        await self._server.shutdown(_SHUTDOWN_SECONDS)


async def listen(
    handle: Handle,
    host: str,
    port: int,
    clock: Clock,
    tls: ssl.SSLContext | None = None,
    *,
    connection_limit: int = CONNECTION_LIMIT,
) -> Listening:
    """Start to answer requests on an address, until the result's `close`.

    Further connections than the limit wait in the system's queue until others end.

    Raises:
        ConfigError: it can't listen on the address.
    """
    limit = ConnectionLimit(connection_limit)
    server = _Server(
        handle,
        clock,
        limit,
        keepalive_timeout=_IDLE_SECONDS,
        request_factory=_make_request,
        handler_cancellation=True,
        access_log=None,
        max_line_size=_HEAD_LIMIT,
        max_field_size=_HEAD_LIMIT,
        # a body is read unchanged, whatever its Content-Encoding
        auto_decompress=False,
    )
    try:
        sockets = await listening_sockets(host or None, port)
    except OSError as error:
        named = isinstance(error, socket.gaierror)  # its number is not an errno
        why = error.strerror if named or not error.errno else os.strerror(error.errno)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {str(why or error).lower()}; choose another port, "
            "or 0 for a free one"
        ) from None
    port = sockets[0].getsockname()[1]
    shortages = ShortageLog(clock)
    acceptors = [
        Acceptor(each, server, shortages=shortages, clock=clock, ssl_context=tls, limit=limit)
        for each in sockets
    ]
    return Listening(server, acceptors, port)


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL of an address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Connection(RequestHandler):
    """A connection that refuses unknown methods like the rest of the server.

    It ends with the server, if its client reads nothing for too long, and if its first request or a
    body does not come in time.
    """

    __slots__ = ("_awaited", "_clock", "_limit", "_patience")

    def __init__(
        self, manager: Server, clock: Clock, limit: ConnectionLimit, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self._clock = clock
        self._limit = limit
        self._patience: Timer | None = None
        #: before the first request, then while a body is read
        self._awaited: Timer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._awaited = self._clock.call_later(_HEAD_SECONDS, self.force_close)

    def await_body(self, payload: StreamReader) -> None:
        """Make reading a request's body raise TimeoutError if it is late."""
        self._end_waiting()
        if not payload.is_eof():
            self._awaited = self._clock.call_later(_BODY_SECONDS, _give_up, payload)

    def _end_waiting(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None

    def pause_writing(self) -> None:
        """Note that too much data waits for the client."""
        super().pause_writing()
        if self.transport is not None:
            self._be_patient(self.transport)

    def _be_patient(self, transport: asyncio.Transport) -> None:
        waiting = transport.get_write_buffer_size()

        def look() -> None:
            if transport.get_write_buffer_size() < waiting:
                self._be_patient(transport)
            else:
                transport.abort()

        self._patience = self._clock.call_later(_PATIENCE, look)

    def resume_writing(self) -> None:
        """Note that the client has read data."""
        super().resume_writing()
        self._end_patience()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the work for the client."""
        self._end_patience()
        self._end_waiting()
        super().connection_lost(exc)
        self._limit.release()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def shutdown(
        self,
        timeout: float | None = 15.0,  # noqa: ASYNC109 - aiohttp's name
    ) -> None:
        """End the connection; unread data is lost."""
        transport = self.transport
        await super().shutdown(timeout)
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()  # otherwise it would wait for the client for ever

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer a request that could not be parsed or handled."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        if isinstance(exc, BadHttpMethod):
            body = msgspec.json.encode(refusal.method_not_allowed().to_status()) + b"\n"
            response = Response(body=body, status=405, headers={"Content-Type": JSON})
        else:
            # in the words of Go's server, which does not log it either
            long = isinstance(exc, LineTooLong)
            words = "431 Request Header Fields Too Large" if long else "400 Bad Request"
            response = Response(text=words, status=int(words[:3]))
        response.force_close()
        return response


class _Server(Server):
    """aiohttp's server, with our own connections."""

    def __init__(
        self, handle: Handle, clock: Clock, limit: ConnectionLimit, **options: Any
    ) -> None:
        super().__init__(handle, **options)
        self._clock = clock
        self._limit = limit

    def __call__(self) -> RequestHandler:
        return _Connection(self, self._clock, self._limit, loop=self._loop, **self._kwargs)


def _give_up(payload: StreamReader) -> None:
    if not payload.is_eof():
        payload.set_exception(TimeoutError("the body did not come in time"))


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> BaseRequest:
    assert isinstance(protocol, _Connection)  # noqa: S101 - `_Server` creates no others
    protocol.await_body(payload)
    return BaseRequest(
        message,
        payload,
        protocol,
        writer,
        task,
        asyncio.get_running_loop(),
        client_max_size=BODY_LIMIT,
    )
