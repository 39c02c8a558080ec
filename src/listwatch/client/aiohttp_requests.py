"""Requests sent by aiohttp: writes, and everything that no other transport can send.

Importing aiohttp takes a tenth of a second and a dozen megabytes. Programs that only read avoid
that: this module is imported when its first request is sent.
"""

import errno
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import yarl

from listwatch.client.config import without_password
from listwatch.client.response import (
    CONNECT_TIMEOUT,
    HEADERS_TIMEOUT,
    MAX_WORDS,
    Response,
)
from listwatch.client.tls import CLOSED_IN_CLEAR, handshake_failure
from listwatch.clock import Clock, Timeout
from listwatch.errors import ConfigError, DisconnectedError, FrameError

_QUOTE: Final = re.compile(r"[\s:]*b?['\"]")


class AiohttpResponse:
    """A response read by aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse, where: str) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers
        self._read = response.content.readany
        self._where = where

    async def read_pieces(self) -> list[bytes]:
        """Return the body bytes that have arrived; none at its normal end."""
        try:
            chunk = await self._read()
        except (aiohttp.ClientError, OSError) as error:
            raise translated(error, self._where) from None
        return [chunk] if chunk else []


class _Progress:
    """The progress of a request that waits for response headers."""

    def __init__(self, limit: Timeout, headers_timeout: float) -> None:
        self.limit = limit
        self.headers_timeout = headers_timeout
        self.is_connecting = False


class AiohttpRequests:
    """An aiohttp session to one server, with any number of connections. For one event loop.

    Args:
        context: None for plain HTTP.
        clock: for every time-out; aiohttp's own are off.
        where: the server, for messages.
        server_hostname: the name in the server's certificate, if not the URL's.
        proxy: the proxy's URL.
        unix_socket: path of a socket, instead of host and port.

    Raises:
        ConfigError: the proxy needs an extra that is not installed.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None,
        *,
        clock: Clock,
        where: str,
        server_hostname: str | None,
        proxy: str,
        unix_socket: str | None,
    ) -> None:
        self._clock = clock
        self._where = where
        self._server_hostname = server_hostname
        self._proxy = proxy
        self._errors: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError)
        if proxy.startswith("socks"):
            self._errors += _socks_errors()
        self._make_session = partial(_session, context, proxy, unix_socket)
        self._session = self._make_session()
        #: For requests on their own connections; created when needed.
        self._own: aiohttp.ClientSession | None = None
        # aiohttp does not wake tasks that wait for a connection that it closes.
        self._waiting: set[Timeout] = set()
        self._reading: set[aiohttp.ClientResponse] = set()
        self._is_closed = False

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        headers: list[tuple[str, str]],
        body: bytes | None,
        *,
        own: bool = False,
        headers_timeout: float = HEADERS_TIMEOUT,
    ) -> AsyncIterator[Response]:
        """Send a request. Entering returns the response headers; leaving closes an unread body.

        Args:
            method: the HTTP method.
            url: the URL.
            headers: the headers.
            body: the body; None for none.
            own: use a new connection, for this request only.
            headers_timeout: seconds within which the response must begin.

        Raises:
            DisconnectedError: no connection, it broke, or `close` was called.
            FrameError: the response is not HTTP.
            TimeoutError: no response in time.
        """
        try:
            async with self._clock.timeout(headers_timeout) as limit:
                progress = _Progress(limit, headers_timeout)
                self._waiting.add(limit)
                try:
                    response = await self._session_for(own=own).request(
                        method,
                        yarl.URL(url, encoded=True),
                        data=body,
                        headers=headers,
                        allow_redirects=False,
                        server_hostname=self._server_hostname,
                        proxy=self._proxy if self._proxy.startswith("http") else None,
                        trace_request_ctx=progress,
                    )
                except self._errors as error:
                    # Without its cause, which contains the request's headers.
                    raise translated(error, self._where, self._proxy) from None
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if self._is_closed:
                raise DisconnectedError(f"{self._where}: the client is closed") from None
            if progress.is_connecting:
                raise DisconnectedError(
                    f"{self._where}: no connection within {CONNECT_TIMEOUT:g} s"
                ) from None
            raise TimeoutError(f"{self._where} did not respond in time") from None
        self._reading.add(response)
        try:
            if self._is_closed:  # since the headers came
                raise DisconnectedError(f"{self._where}: the client is closed")
            yield AiohttpResponse(response, self._where)
        finally:
            self._reading.discard(response)
            close_at_once(response)

    def _session_for(self, *, own: bool) -> aiohttp.ClientSession:
        if not own:
            return self._session
        if self._own is None:
            self._own = self._make_session(force_close=True)
        return self._own

    async def close(self) -> None:
        """Close every connection: waiting and reading tasks get a `DisconnectedError`."""
        self._is_closed = True
        for limit in self._waiting:
            limit.postpone(0)
        for response in self._reading:
            response.content.set_exception(aiohttp.ClientConnectionError())
        await self._session.close()
        if self._own is not None:
            await self._own.close()


def _socks_errors() -> tuple[type[Exception], ...]:
    try:
        import aiohttp_socks  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            "a socks proxy needs aiohttp-socks: pip install 'listwatch[socks]'"
        ) from None
    return (
        aiohttp_socks.ProxyConnectionError,
        aiohttp_socks.ProxyError,
        aiohttp_socks.ProxyTimeoutError,
    )


def _connector(
    context: ssl.SSLContext | None, proxy: str, unix_socket: str | None, *, force_close: bool
) -> aiohttp.BaseConnector:
    if unix_socket:
        return aiohttp.UnixConnector(unix_socket, limit=0, force_close=force_close)
    trust = True if context is None else context
    if proxy.startswith("socks"):
        from aiohttp_socks import ProxyConnector  # noqa: PLC0415 - an extra

        # The proxy resolves the name, as is expected behind a proxy.
        url = proxy.replace("socks5h://", "socks5://", 1)
        connector: aiohttp.BaseConnector = ProxyConnector.from_url(
            url, rdns=True, ssl=trust, limit=0, force_close=force_close
        )
        return connector
    return aiohttp.TCPConnector(
        ssl=trust, limit=0, socket_factory=_make_socket, force_close=force_close
    )


def _session(
    context: ssl.SSLContext | None,
    proxy: str,
    unix_socket: str | None,
    *,
    force_close: bool = False,
) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(_connecting)
    trace.on_connection_create_end.append(_connected)
    return aiohttp.ClientSession(
        connector=_connector(context, proxy, unix_socket, force_close=force_close),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[trace],
        read_bufsize=2**18,
        max_line_size=2**14,
        max_field_size=2**16,
    )


async def _connecting(_session: object, trace: SimpleNamespace, _params: object) -> None:
    progress: _Progress = trace.trace_request_ctx
    progress.is_connecting = True
    progress.limit.postpone(CONNECT_TIMEOUT)


async def _connected(_session: object, trace: SimpleNamespace, _params: object) -> None:
    progress: _Progress = trace.trace_request_ctx
    progress.is_connecting = False
    progress.limit.postpone(progress.headers_timeout)


def _make_socket(info: tuple[Any, ...]) -> socket.socket:
    """Create a socket that notices within a minute that the peer's host is gone."""
    made = socket.socket(info[0], info[1], info[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 20),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        option = getattr(socket, name, None)  # not on every platform
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def close_at_once(response: aiohttp.ClientResponse) -> None:
    """Close a response; an incomplete one closes its connection, without notice to the peer.

    A proper TLS shutdown would wait for the peer.
    """
    connection = response.connection  # a complete response has returned it
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def translated(error: Exception, where: str, proxy: str = "") -> Exception:
    """Return what an error of aiohttp or of the socket means, with a message fit for users."""
    if isinstance(error, aiohttp.ClientPayloadError):
        if isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError):
            return FrameError(f"{where}: the response can't be decompressed")
        return DisconnectedError(f"{where}: the connection broke within a response")
    if isinstance(error, aiohttp.ClientResponseError) and not isinstance(
        error, aiohttp.ClientHttpProxyError
    ):
        # Its message quotes the response, in which the server may have echoed anything.
        words = _QUOTE.split(_first_line(error.message), maxsplit=1)[0]
        return FrameError(f"{where}: the response is not HTTP: {words}")
    refused = (
        isinstance(error, aiohttp.ClientConnectorError)
        and error.os_error.errno == errno.ECONNREFUSED
    )
    words = _disconnection(error, without_password(proxy))
    if isinstance(error, aiohttp.ServerDisconnectedError) and where.startswith("http:"):
        words += CLOSED_IN_CLEAR
    return DisconnectedError(f"{where}: {words}", refused=refused)


def _disconnection(error: Exception, proxy: str) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            found = getattr(error, "certificate_error", None) or error.os_error
            return handshake_failure(found)
        case aiohttp.ClientConnectorDNSError() if proxy and error.host == urlsplit(proxy).hostname:
            return f"no connection to the proxy: {_reason(error.os_error)} ({proxy})"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refuses ({error.status})"
        case aiohttp.ClientConnectorDNSError():
            return f"the host is unknown: {_reason(error.os_error)}"
        case aiohttp.ClientProxyConnectionError():
            return f"no connection to the proxy: {_reason(error.os_error)} ({proxy})"
        case aiohttp.ClientConnectorError():
            return f"no connection: {_reason(error.os_error)}"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection"
        case OSError() if error.strerror:
            return f"the connection broke: {_reason(error)}"
        case aiohttp.ClientError() | OSError():
            return f"the connection broke ({type(error).__name__})"
    return f"no connection through the proxy: {_first_line(str(error))}"


def _reason(error: OSError) -> str:
    if (
        error.errno is not None and error.errno in errno.errorcode
    ):  # the event loop's message only repeats the address
        return os.strerror(error.errno)
    return _first_line(error.strerror or str(error))


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:MAX_WORDS]
