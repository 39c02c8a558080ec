"""A streaming HTTP/1.1 transport for reads, on `asyncio.Protocol` and httptools.

It does only what a long response of an API server needs, and passes on the pieces of a body as the
parser found them. A watch event in its own HTTP chunk is then one piece: no byte is joined or
searched here. aiohttp handles the rest: methods other than GET, proxies, redirects, cookies. Needs
the extra `listwatch[httptools]`.
"""

import asyncio
import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from ssl import SSLContext, SSLError
from typing import Final, Self, cast
from urllib.parse import urlsplit

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from listwatch.client.content_coding import ContentDecoder
from listwatch.client.tls import CLOSED_IN_CLEAR, TLS_ALERT, handshake_failure
from listwatch.clock import Clock, Timeout, Timer
from listwatch.errors import DisconnectedError, FrameError

try:
    import httptools
except ImportError as missing:
    raise ImportError(
        "listwatch.client.transport needs httptools: pip install 'listwatch[httptools]'"
    ) from missing

try:
    import aiofastnet
except ImportError:  # the extra `fast` is not installed
    _HAS_AIOFASTNET = False
else:
    _HAS_AIOFASTNET = True

#: Maximum bytes of a response's status line and headers, including preceding 1xx responses.
MAX_HEAD_BYTES: Final = 64 * 1024
#: Bytes read from the network at once. Next to a thread that computes, each return to the
#: interpreter may take the switch interval of 5 ms, so one read should do much work.
MAX_READ_BYTES: Final = 2 * 1024 * 1024
#: The same for a server that sends tiny chunks: a larger read would take milliseconds to parse.
_SMALL_READ_BYTES: Final = 64 * 1024
_MOST_PIECES: Final = 16 * 1024
#: Cost of a piece in addition to its bytes: many waiting pieces also pause the connection.
_PIECE_BYTES: Final = 128
#: Bytes that may wait for a slow reader before the connection is paused. It is more than one read,
#: because pausing and resuming also return to the interpreter.
MAX_WAITING_BYTES: Final = 2 * MAX_READ_BYTES
# Maximum bytes of a certificate in PEM.
_LARGEST_CERTIFICATE: Final = 16 * 1024
#: `connect_timeout`, on the injected clock, limits a TLS handshake, not asyncio's timer.
_NO_TIMEOUT: Final = 7 * 24 * 3600.0

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_FIELD_VALUE = re.compile("[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")  # RFC 9110, 5.5
_URL = re.compile(r"[\x21-\x7e]+")


class Target(msgspec.Struct, frozen=True):
    """The destination of a request; connections of equal targets are interchangeable.

    Attributes:
        host, port: from the URL; an IPv6 address without brackets.
        authority: both in the form of the Host header.
        ssl: None for plain text.
        server_hostname: the name that the certificate must have.
        unix_socket: path of a socket to connect to instead of host and port.
    """

    host: str
    port: int
    authority: str
    ssl: SSLContext | None
    server_hostname: str | None
    unix_socket: str | None

    def __str__(self) -> str:
        return self.unix_socket or f"{'https' if self.ssl else 'http'}://{self.authority}"


class _Connection(asyncio.BufferedProtocol):
    """One connection and the response being read from it.

    The parser appends each piece of a body to `_pieces` without a Python call in between; the
    reader takes the whole list. Without a parser no response is expected, and any data closes the
    connection.

    All connections of an event loop may share the buffer: the parser copies what it returns, so the
    buffer is empty when `buffer_updated` returns.
    """

    def __init__(self, target: Target, buffer: memoryview) -> None:
        self.target = target
        self._buffer = buffer
        self._read_bytes = MAX_READ_BYTES
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: list[bytes] = []
        self.on_body: Callable[[bytes], None] = self._pieces.append
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.reason = b""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.unanswered = True
        self.complete = False
        self._has_head = False
        self._keeps_alive = False
        self._ends_with_connection = False
        self._error: Exception | None = None
        self._overhead_bytes = 0
        self._waiting_bytes = 0
        self._pieces.clear()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because other event loops, such as uvloop, have other classes.
        self._transport = cast("asyncio.Transport", transport)
        _find_dead_hosts(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._buffer[: self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        data: bytes | memoryview = self._buffer[:nbytes]
        parser = self._parser
        if parser is None:
            self.abort()
            return
        self.unanswered = False
        received, had = len(data), len(self._pieces)
        try:
            if not self._has_head:
                data = self._feed_head(parser, data)
            if data:
                parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(FrameError(f"{self.target} switched protocols unasked"))
        except httptools.HttpParserError as error:
            if self.complete:  # bytes after a valid response: no other response may follow
                self.abort()
            else:
                self._fail(self._no_http(data, error))
        if (pieces := len(self._pieces) - had) > 0:
            if pieces > _MOST_PIECES:
                self._read_bytes = _SMALL_READ_BYTES
            elif nbytes == self._read_bytes and pieces <= _MOST_PIECES // 8:
                self._read_bytes = MAX_READ_BYTES
            self._overhead_bytes = 0
            self._waiting_bytes += received + pieces * _PIECE_BYTES
            if self._waiting_bytes >= MAX_WAITING_BYTES and not self._paused:
                self._pause()
        elif self._has_head and not self.complete:
            # Chunk extensions or trailers, which llhttp does not limit.
            self._overhead_bytes += received
            if self._overhead_bytes > MAX_HEAD_BYTES:
                self._fail(FrameError(f"{self.target} sent over {MAX_HEAD_BYTES} B of trailers"))
        if self.complete:
            self._parser = None
        self._wake()

    def _no_http(self, data: bytes | memoryview, error: Exception) -> FrameError:
        if bytes(data[:2]) == TLS_ALERT:
            return FrameError(f"{self.target} responds in TLS; is the URL https://?")
        return FrameError(f"{self.target} sent an invalid HTTP/1.1 response: {error}")

    def _feed_head(
        self, parser: httptools.HttpResponseParser, data: bytes | memoryview
    ) -> bytes | memoryview:
        part = data[: MAX_HEAD_BYTES - self._overhead_bytes]
        self._overhead_bytes += len(part)
        parser.feed_data(part)
        if not self._has_head and self._overhead_bytes >= MAX_HEAD_BYTES:
            self._fail(FrameError(f"{self.target} sent headers over {MAX_HEAD_BYTES} B"))
            return b""
        return data[len(part) :]

    def eof_received(self) -> None:
        """Let asyncio close the connection; `connection_lost` then decides what that means."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._parser = None
        if not self.complete and self._error is None:
            if self._ends_with_connection and exc is None:
                self.complete = True
            elif self.unanswered:
                hint = CLOSED_IN_CLEAR if self.target.ssl is None else ""
                self._error = DisconnectedError(
                    f"{self.target}: the server closed the connection{hint}"
                )
            else:
                self._error = DisconnectedError(
                    f"{self.target}: the connection broke within a response"
                )
            if self._error is not None:
                self._error.__cause__ = exc
        self._wake()

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            raise FrameError("the server sent a second response to one request")

    def on_status(self, status: bytes) -> None:
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # otherwise it is a trailer
            self.headers.add(
                name.decode("latin-1"), value.strip(b" \t").decode("utf-8", "surrogateescape")
            )

    def on_headers_complete(self) -> None:
        if self._parser is None:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:  # an interim response: RFC 9110, 15.2
            self.reason = b""
            self.headers.clear()
            return
        self._has_head = True
        self._overhead_bytes = 0
        # RFC 9112, 6.3: a body without another end lasts as long as the connection.
        codings = self.headers.get("Transfer-Encoding", "").rpartition(",")
        self._ends_with_connection = (
            "Content-Length" not in self.headers and codings[2].strip().lower() != "chunked"
        )

    def on_message_complete(self) -> None:
        if self._has_head and self._parser is not None:
            self.complete = True
            self._keeps_alive = self._parser.should_keep_alive()

    # Called by the reader.

    @property
    def is_idle(self) -> bool:
        """Whether another request may be sent on this connection."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._parser is None
            and self._keeps_alive
        )

    def send(self, request: bytes) -> None:
        """Send a request, and expect its response."""
        if self._transport is None:  # lost after its creation: `connection_lost` has reported it
            return
        self._reset()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    def rest(self) -> None:
        """Discard the response; the connection waits for the next request."""
        self._pieces.clear()
        self._resume()

    def abort(self) -> None:
        """Close the connection at once, without notice to the peer."""
        self._parser = None
        self._keeps_alive = False
        if self._transport is not None:
            self._transport.abort()

    def disconnect(self) -> None:
        """Close the connection at once; the reader learns that the client is closed."""
        self._fail(self._error or DisconnectedError(f"{self.target}: the client is closed"))

    async def read_head(self) -> None:
        """Wait for the status and the headers."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read_pieces(self) -> list[bytes]:
        """Return the pieces of the body that have arrived; an empty list is its end."""
        while not self._pieces:
            if self.complete:
                return []
            if self._error is not None:
                raise self._error
            await self._wait()
        pieces = self._pieces.copy()
        self._pieces.clear()
        self._waiting_bytes = 0
        self._resume()
        return pieces

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.abort()

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("a response can be read only once")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Response:
    """A response whose headers have arrived: iterate over it, once and in one task, for its body.

    Each step returns a list of one or more non-empty pieces of the body, in order: what arrived
    since the last step, cut at HTTP chunks and network reads. The iteration ends with the body. It
    raises `DisconnectedError` if the connection broke before that, after returning everything that
    arrived, and `FrameError` for bytes that are not HTTP/1.1 or not of the announced
    Content-Encoding. A cancelled reader may continue later.

    Attributes:
        status: the status code; redirects are not followed.
        reason: the reason phrase, as sent.
        headers: names are case-insensitive; without trailers.
    """

    def __init__(self, connection: _Connection) -> None:
        self.status: Final = connection.status
        self.reason: Final = connection.reason.decode("latin-1")
        self.headers: Final = CIMultiDictProxy(connection.headers)
        self._connection = connection
        coding = ",".join(self.headers.getall("Content-Encoding", ())).strip().lower()
        if coding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise FrameError("the response has a Content-Encoding that was not requested")
        self._decoder = (
            None if coding in {"", "identity"} else ContentDecoder(coding.removeprefix("x-"))
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        pieces = await self.read_pieces()
        if not pieces:
            raise StopAsyncIteration
        return pieces

    async def read_pieces(self) -> list[bytes]:
        """Return what a step of the iteration returns; an empty list at the end of the body."""
        decoder = self._decoder
        if decoder is None:
            return await self._connection.read_pieces()
        if decoder.is_behind:  # one large step per turn of the event loop
            await asyncio.sleep(0)
        while not (decoded := decoder.decode()):
            pieces = await self._connection.read_pieces()
            if not pieces:
                decoder.finish()
                break
            decoder.feed(pieces)
        return decoded

    async def read(self, max_bytes: int) -> bytes:
        """Return the whole body, such as an error's; raise `FrameError` if it is longer."""
        body = bytearray()
        async for pieces in self:
            for piece in pieces:
                body += piece
            if len(body) > max_bytes:
                raise FrameError(f"a body of over {max_bytes} B")
        return bytes(body)


class PoolStatistics(msgspec.Struct, frozen=True):
    """The connections of a `ConnectionPool`: idle ones, and those in use."""

    idle: int
    used: int


class ConnectionPool:
    """The connections to a client's servers: those in use, and idle ones for the next list.

    For one event loop.

    Args:
        clock: measures the idle time.
        max_idle: maximum idle connections; further ones are closed.
        idle_seconds: how long one stays idle; less than servers and load balancers allow.
    """

    def __init__(self, clock: Clock, *, max_idle: int = 4, idle_seconds: float = 30.0) -> None:
        self._clock = clock
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._idle: dict[_Connection, Timer] = {}
        self._used: set[_Connection] = set()
        #: The time limits of tasks that wait for a new connection.
        self.connecting: set[Timeout] = set()
        self.is_closed = False
        self._buffer: memoryview | None = None

    @property
    def buffer(self) -> memoryview:
        """The buffer that the connections read into; created on first use."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(MAX_READ_BYTES))
        return self._buffer

    def statistics(self) -> PoolStatistics:
        """Return the number of connections."""
        return PoolStatistics(idle=len(self._idle), used=len(self._used))

    def find(self, target: Target) -> _Connection | None:
        """Return the most recently used idle connection; `use` it at once."""
        for connection in reversed(self._idle):
            if connection.target == target and connection.is_idle:
                return connection
        return None

    def use(self, connection: _Connection) -> None:
        """Count a connection as in use, until it is given back."""
        if self.is_closed:
            connection.abort()
            raise DisconnectedError(f"{connection.target}: the client is closed")
        if (timer := self._idle.pop(connection, None)) is not None:
            timer.cancel()
        self._used.add(connection)

    def give(self, connection: _Connection, *, keep: bool) -> None:
        """Take a connection back: keep it for the next request, or close it."""
        self._used.discard(connection)
        if not keep or self.is_closed or not (connection.complete and connection.is_idle):
            connection.abort()
            return
        if len(self._idle) >= self._max_idle:
            self._expire(next(iter(self._idle)))
        connection.rest()
        timer = self._clock.call_later(self._idle_seconds, self._expire, connection)
        self._idle[connection] = timer

    def _expire(self, connection: _Connection) -> None:
        self._idle.pop(connection).cancel()
        connection.abort()

    def close(self) -> None:
        """Close every connection: tasks that read or wait for one get a `DisconnectedError`."""
        self.is_closed = True
        for limit in self.connecting:
            limit.postpone(0)
        for connection in [*self._idle]:
            self._expire(connection)
        for connection in self._used:
            connection.disconnect()


@asynccontextmanager
async def stream(
    url: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    *,
    clock: Clock,
    ssl: SSLContext | None = None,
    server_hostname: str | None = None,
    unix_socket: str | None = None,
    connect_timeout: float | None = 30.0,
    headers_timeout: float | None = 75.0,
    pool: ConnectionPool | None = None,
    keep: bool = True,
) -> AsyncIterator[Response]:
    """Send a GET request. Entering returns the response headers; leaving closes the connection.

    A cancelled or failed body closes the connection in the same turn of the event loop, without
    waiting for the peer. Reading pauses while `MAX_WAITING_BYTES` wait for the reader; the body has
    no time limit.

    Args:
        url: http or https, ASCII (other characters percent-encoded), without a user.
        headers: sent unchanged, in order, after a Host header if there is none. For a repeated name
            use pairs. Request `gzip` or `deflate` with your own Accept-Encoding.
        clock: measures all time limits.
        ssl: needed for https, ignored for http.
        server_hostname: the name in the certificate, if it is not the URL's.
        unix_socket: path of a socket to connect to; the URL's host is then only a name.
        connect_timeout: seconds for the address look-up, the connection and the TLS handshake.
        headers_timeout: seconds from the request to the end of the response headers.
        pool: closes the connection with its others, and may provide an idle one. If the server has
            just closed the idle one, so that no byte of a response arrives, the request is sent
            once more on a new connection (RFC 9110, 9.2.2).
        keep: let the pool keep the connection after a complete response, and use a kept one: for
            lists. A watch needs its own connection.

    Raises:
        DisconnectedError: no connection (`refused` if nothing listens), none within
            `connect_timeout`, or it was closed before the headers were complete.
        TimeoutError: no headers within `headers_timeout`.
        FrameError: the bytes are not an HTTP/1.1 response, or have an unknown coding.
        ValueError: the URL or a header can't be sent.
    """
    target, request = _request(url, headers, ssl, server_hostname, unix_socket)
    if pool is None:
        pool, keep = ConnectionPool(clock), False
    connection = pool.find(target) if keep else None
    is_reused = connection is not None
    while True:
        if connection is None:
            connection = await _connect(target, clock, connect_timeout, pool)
        pool.use(connection)
        try:
            connection.send(request)
            try:
                async with clock.timeout(headers_timeout):
                    await connection.read_head()
            except TimeoutError as error:
                raise TimeoutError(
                    f"{target} sent no response within {headers_timeout:g} s"
                ) from error
            except DisconnectedError:
                if pool.is_closed or not (is_reused and connection.unanswered):
                    raise
                is_reused = False
            else:
                yield Response(connection)
                break
        finally:
            pool.give(connection, keep=keep)
        connection = None


def _request(
    url: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    ssl: SSLContext | None,
    server_hostname: str | None,
    unix_socket: str | None,
) -> tuple[Target, bytes]:
    if not _URL.fullmatch(url):
        raise ValueError("a URL must be ASCII without spaces; percent-encode other characters")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError("a URL must start with http:// or https:// and a host, without a user")
    is_secure = parts.scheme == "https"
    if is_secure and ssl is None:
        raise ValueError("an https URL needs an SSLContext")
    target = Target(
        host=parts.hostname,
        port=parts.port or (443 if is_secure else 80),
        authority=parts.netloc,
        ssl=ssl if is_secure else None,
        server_hostname=(server_hostname or parts.hostname) if is_secure else None,
        unix_socket=unix_socket,
    )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"GET {path} HTTP/1.1"]
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if not any(name.lower() == "host" for name, _ in pairs):
        lines.append(f"Host: {target.authority}")
    for name, value in pairs:
        if not _TOKEN.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} has characters that HTTP does not allow")
        lines.append(f"{name}: {value}")
    return target, "\r\n".join([*lines, "", ""]).encode()


async def _connect(
    target: Target, clock: Clock, connect_timeout: float | None, pool: ConnectionPool
) -> _Connection:
    if pool.is_closed:
        raise DisconnectedError(f"{target}: the client is closed")
    try:
        async with clock.timeout(connect_timeout) as limit:
            pool.connecting.add(limit)
            try:
                if target.unix_socket is not None:
                    return await _open(target, None, pool.buffer)
                return await _connect_to_any(target, pool.buffer)
            finally:
                pool.connecting.discard(limit)
    except TimeoutError as error:
        if pool.is_closed:
            raise DisconnectedError(f"{target}: the client is closed") from None
        raise DisconnectedError(f"{target}: no connection within {connect_timeout:g} s") from error


async def _connect_to_any(target: Target, buffer: memoryview) -> _Connection:
    """Try the addresses in turn; asyncio's version reports only as text whether all refused."""
    errors: list[DisconnectedError] = []
    for address in await _look_up(target):
        try:
            return await _open(target, address, buffer)
        except DisconnectedError as error:
            errors.append(error)
    for failure in errors:
        if not failure.refused:
            raise failure
    raise errors[0]


async def _look_up(target: Target) -> list[str]:
    kind = socket.SOCK_STREAM
    try:
        try:
            found = socket.getaddrinfo(
                target.host, target.port, type=kind, flags=socket.AI_NUMERICHOST
            )
        except socket.gaierror:  # a name, whose look-up may take long
            found = await asyncio.get_running_loop().getaddrinfo(
                target.host, target.port, type=kind
            )
    except socket.gaierror as error:
        raise DisconnectedError(f"{target}: the host is unknown: {error.strerror}") from error
    return [str(address[4][0]) for address in found]


def is_fast() -> bool:
    """Return whether connections are aiofastnet's, whose TLS keeps the interpreter lock.

    Python's own TLS releases it for each record of 16 KB (CPython#81536): next to a thread that
    computes, a TLS watch then gets 1 % of its rate. aiofastnet reads the peer's certificate through
    a temporary file; if none can be created, Python's own TLS is used.
    """
    return _HAS_AIOFASTNET and _has_temporary_files()


def _has_temporary_files() -> bool:
    # Check each time: since the start the directory may have become full or read-only, or be gone.
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(_LARGEST_CERTIFICATE))
            file.flush()
    except OSError:
        return False
    return True


async def _open(target: Target, address: str | None, buffer: memoryview) -> _Connection:
    loop = asyncio.get_running_loop()
    connection = _Connection(target, buffer)
    handshake_timeout = None if target.ssl is None else _NO_TIMEOUT
    try:
        if target.unix_socket is not None:
            await loop.create_unix_connection(
                lambda: connection,
                target.unix_socket,
                ssl=target.ssl,
                server_hostname=target.server_hostname,
                ssl_handshake_timeout=handshake_timeout,
            )
        else:
            create = loop.create_connection
            if is_fast():  # its handshake never ends without room for a temporary file
                create = partial(aiofastnet.create_connection, loop)
            await create(
                lambda: connection,
                address or target.host,
                target.port,
                ssl=target.ssl,
                server_hostname=target.server_hostname,
                ssl_handshake_timeout=handshake_timeout,
            )
    except asyncio.CancelledError:
        connection.abort()  # asyncio's orderly close may take long with TLS
        raise
    except SSLError as error:
        raise DisconnectedError(f"{target}: {handshake_failure(error)}") from error
    except (ConnectionRefusedError, FileNotFoundError) as error:
        words = _reason(error)
        raise DisconnectedError(f"{target}: no connection: {words}", refused=True) from error
    except OSError as error:
        raise DisconnectedError(f"{target}: no connection: {_reason(error)}") from error
    return connection


def _reason(error: OSError) -> str:
    # The event loop's text for an error with a number only repeats the address.
    return os.strerror(error.errno) if error.errno else str(error)


def _find_dead_hosts(sock: socket.socket | None) -> None:
    """Make the kernel drop a TCP connection within 60 s after its peer is gone.

    Uses probes while the connection is silent (first after 30 s, then every 10 s), and a limit on
    unacknowledged bytes. Does nothing for sockets of other families.
    """
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
