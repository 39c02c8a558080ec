"""Connections to one API server, and what can go wrong with them."""

import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import aiohttp

from listwatch.client.auth import Certificate
from listwatch.errors import ConfigError, DisconnectedError, FrameError

#: Seconds in which the status line and headers must have come: a server ends a request after 60.
HEADERS_TIMEOUT: Final = 75.0
#: Seconds in which a connection, TLS included, must stand.
CONNECT_TIMEOUT: Final = 30.0
#: Characters of foreign words that become part of a message.
MAX_WORDS: Final = 300


class Pool:
    """The connections that show one client certificate, those for watches apart."""

    def __init__(
        self,
        certificate: Certificate | None,
        context: ssl.SSLContext | None,
        *,
        proxy: str = "",
        unix_socket: str = "",
    ) -> None:
        self.certificate = certificate
        #: What can be raised where a connection is made or used.
        self.errors: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError)
        if proxy.startswith("socks"):
            self.errors += _socks_errors()
        self.requests = _session(_connector(context, proxy, unix_socket, limit=100))
        self.watches = _session(_connector(context, proxy, unix_socket, limit=0))
        self._users = 0
        self._is_retired = False

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keep the connections while the body runs, even when they are retired meanwhile."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._is_retired and not self._users:
                await self.close()

    async def retire(self) -> None:
        """Close when the last user has gone."""
        self._is_retired = True
        if not self._users:
            await self.close()

    async def close(self) -> None:
        """Close them all, those in use too."""
        await self.requests.close()
        await self.watches.close()


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
    context: ssl.SSLContext | None, proxy: str, unix_socket: str, *, limit: int
) -> aiohttp.BaseConnector:
    if unix_socket:
        return aiohttp.UnixConnector(unix_socket, limit=limit)
    trust = True if context is None else context
    if proxy.startswith("socks"):
        from aiohttp_socks import ProxyConnector  # noqa: PLC0415 - an extra

        # The proxy looks the name up, which is what one is behind a proxy for.
        url = proxy.replace("socks5h://", "socks5://", 1)
        connector: aiohttp.BaseConnector = ProxyConnector.from_url(
            url, rdns=True, ssl=trust, limit=limit
        )
        return connector
    return aiohttp.TCPConnector(ssl=trust, limit=limit, socket_factory=_make_socket)


def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(_connecting)
    trace.on_connection_create_end.append(_connected)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[trace],
        read_bufsize=2**18,
        max_line_size=2**14,
        max_field_size=2**16,
    )


async def _connecting(_session: object, trace: SimpleNamespace, _params: object) -> None:
    trace.trace_request_ctx.postpone(CONNECT_TIMEOUT)


async def _connected(_session: object, trace: SimpleNamespace, _params: object) -> None:
    trace.trace_request_ctx.postpone(HEADERS_TIMEOUT)


def _make_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make a socket that finds out within a minute that the peer's host is gone."""
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


def translated(error: Exception, where: str) -> Exception:
    """Return what an error of aiohttp or of the socket means, in words fit for a user's eyes."""
    if isinstance(error, aiohttp.ClientPayloadError):
        if isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError):
            return FrameError(f"{where}: the answer can't be decompressed")
        return DisconnectedError(f"{where}: the connection broke within an answer")
    if isinstance(error, aiohttp.ClientResponseError) and not isinstance(
        error, aiohttp.ClientHttpProxyError
    ):
        return FrameError(f"{where}: the answer is no HTTP: {_first_line(error.message)}")
    refused = (
        isinstance(error, aiohttp.ClientConnectorError)
        and error.os_error.errno == errno.ECONNREFUSED
    )
    return DisconnectedError(f"{where}: {_disconnection(error)}", refused=refused)


def _disconnection(error: Exception) -> str:
    match error:
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refuses ({error.status})"
        case aiohttp.ClientConnectorCertificateError():
            words = getattr(error.certificate_error, "verify_message", "") or "it is not valid"
            return (
                f"the server's certificate is not trusted: {words}; check certificate-authority "
                "and tls-server-name"
            )
        case aiohttp.ClientConnectorDNSError():
            return f"the host is unknown: {_reason(error.os_error)}"
        case aiohttp.ClientProxyConnectionError():
            return f"no connection to the proxy: {_reason(error.os_error)}"
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
    ):  # the event loop's own words only repeat the address
        return os.strerror(error.errno)
    return _first_line(error.strerror or str(error))


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:MAX_WORDS]
