"""A streaming HTTP/1.1 transport for reads, on `asyncio.Protocol` and httptools.

It does only what a long response of an API server needs, and passes on the pieces of a body as the
parser found them. A watch event in its own HTTP chunk is then one piece: no byte is joined or
searched here. aiohttp handles the rest: methods other than GET, proxies, redirects, cookies. Needs
the extra `listwatch[httptools]`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Final, Self
from urllib.parse import urlsplit

from multidict import CIMultiDictProxy

from listwatch.client.connection_pool import ConnectionPool, connect
from listwatch.client.content_coding import ContentDecoder
from listwatch.client.transport_connection import Connection, Target
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError, FrameError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_FIELD_VALUE = re.compile("[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")  # RFC 9110, 5.5
_URL = re.compile(r"[\x21-\x7e]+")


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

    def __init__(self, connection: Connection) -> None:
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
            connection = await connect(target, clock, connect_timeout, pool)
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
