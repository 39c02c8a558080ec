"""One HTTP/1.1 connection, and the response that is read from it."""

import asyncio
import socket
from ssl import SSLContext
from typing import TYPE_CHECKING, Final, cast

import msgspec
from multidict import CIMultiDict

from listwatch.client.tls import CLOSED_IN_CLEAR, TLS_ALERT
from listwatch.errors import DisconnectedError, FrameError

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import httptools
except ImportError as missing:
    raise ImportError(
        "listwatch.client.transport needs httptools: pip install 'listwatch[httptools]'"
    ) from missing

#: Maximum bytes of a response's status line and headers, including preceding 1xx responses.
MAX_HEAD_BYTES: Final = 64 * 1024
#: Bytes read from the network at once. Next to a thread that computes, each return to the
#: interpreter may take the switch interval of 5 ms, so one read should do much work.
MAX_READ_BYTES: Final = 2 * 1024 * 1024
#: Bytes of TLS that aiofastnet receives at once: fewer, larger reads cost a quarter less. Together
#: with the rest of a record, they fit into the buffer, so that nothing is left when reading pauses:
#: aiofastnet returns to such a rest only when the peer sends more.
MAX_TLS_BYTES: Final = MAX_READ_BYTES - 64 * 1024
#: The same for a server that sends tiny chunks: a larger read would take milliseconds to parse.
_SMALL_READ_BYTES: Final = 64 * 1024
_MOST_PIECES: Final = 16 * 1024
#: Cost of a piece in addition to its bytes: many waiting pieces also pause the connection.
_PIECE_BYTES: Final = 128
#: Bytes that may wait for a slow reader before the connection is paused. It is more than one read,
#: because pausing and resuming also return to the interpreter.
MAX_WAITING_BYTES: Final = 2 * MAX_READ_BYTES


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


class Connection(asyncio.BufferedProtocol):
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
        self._receives_less = False
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
        """Take the connection."""
        # A cast, because other event loops, such as uvloop, have other classes.
        self._transport = cast("asyncio.Transport", transport)
        _find_dead_hosts(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the part of the shared buffer that one read may fill."""
        return self._buffer[: self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what a read has put into the buffer."""
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
                self._read_less()
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

    def _read_less(self) -> None:
        if self.target.ssl is None:
            self._read_bytes = _SMALL_READ_BYTES
        elif self._transport is not None and not self._receives_less:
            # The buffer must have room for all that TLS has received, see `MAX_TLS_BYTES`.
            self._receives_less = True
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_READ_BYTES)

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
        """End the response, or report that it broke."""
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
        """Refuse a second response."""
        if self.complete:
            raise FrameError("the server sent a second response to one request")

    def on_status(self, status: bytes) -> None:
        """Add a part of the reason phrase."""
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        if not self._has_head:  # otherwise it is a trailer
            self.headers.add(
                name.decode("latin-1"), value.strip(b" \t").decode("utf-8", "surrogateescape")
            )

    def on_headers_complete(self) -> None:
        """Let the reader have the head, unless the response is an interim one."""
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
        """End the response."""
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
