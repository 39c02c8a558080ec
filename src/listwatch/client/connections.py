"""Connections to one API server, and their failures."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from listwatch.client.credentials import Certificate
from listwatch.client.prober import try_to_connect
from listwatch.client.response import CONNECT_TIMEOUT, HEADERS_TIMEOUT, MAX_WORDS, Response
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError

if TYPE_CHECKING:
    from listwatch.client.aiohttp_requests import AiohttpRequests

try:
    from listwatch.client import connection_pool, transport
except ImportError:  # the extra `httptools` is not installed
    _HAS_TRANSPORT = False
else:
    _HAS_TRANSPORT = True

__all__ = [
    "CONNECT_TIMEOUT",
    "HEADERS_TIMEOUT",
    "MAX_IDLE",
    "MAX_REQUESTS",
    "MAX_WORDS",
    "PROMPT_TIMEOUT",
    "Connections",
    "Pool",
    "Response",
]

#: HEADERS_TIMEOUT for a page of a list and for a watch, which respond at once. After it a new
#: connection is tried, because the silent one may be dead.
PROMPT_TIMEOUT: Final = 30.0
#: Maximum concurrent requests.
MAX_REQUESTS: Final = 100
#: Maximum idle connections, as in client-go's transport/cache.go.
MAX_IDLE: Final = 25


class Connections(Protocol):
    """Sends requests: a `Pool`, or another client's session."""

    def used(self) -> AbstractAsyncContextManager[None]:
        """Keep the connections open while the body runs."""

    def stream(
        self, url: str, headers: list[tuple[str, str]], *, watch: bool, prompt: bool
    ) -> AbstractAsyncContextManager[Response]:
        """Get a long response. Entering returns its headers; leaving closes an unread body.

        Args:
            url: the URL.
            headers: the headers.
            watch: use a separate connection.
            prompt: the response begins soon, or the connection is dead.

        Raises:
            DisconnectedError: no connection, or it broke.
            FrameError: the response is not HTTP.
            TimeoutError: no response in time.
        """

    def request(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request. Entering returns the response headers; leaving closes an unread body.

        Raises:
            As `stream`.
        """

    async def close(self) -> None:
        """Close everything opened here."""


class Pool:
    """The connections that use one client certificate.

    GET requests use this package's transport if it is installed and can reach the server, which it
    can't through proxies. All other requests use aiohttp, loaded on first use. At most
    `MAX_REQUESTS` are sent at once; streams neither wait nor make requests wait.

    Args:
        certificate: the certificate of the context.
        context: None for plain HTTP.
        clock: for every time-out.
        where: the server, for messages.
        server_hostname: the name in the server's certificate, if not the URL's.
        proxy: the proxy's URL.
        unix_socket: path of a socket, instead of host and port.
    """

    def __init__(
        self,
        certificate: Certificate | None,
        context: ssl.SSLContext | None,
        *,
        clock: Clock,
        where: str,
        server_hostname: str = "",
        proxy: str = "",
        unix_socket: str = "",
    ) -> None:
        self.certificate = certificate
        self._context = context
        self._clock = clock
        self._where = where
        self._server_hostname = server_hostname or None
        self._proxy = proxy
        self._unix_socket = unix_socket or None
        self._reads = (
            connection_pool.ConnectionPool(clock, max_idle=MAX_IDLE)
            if _HAS_TRANSPORT and not proxy
            else None
        )
        self._turns = asyncio.Semaphore(MAX_REQUESTS)
        self._aiohttp: AiohttpRequests | None = None
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._is_retired = False
        self._is_closed = False

    @asynccontextmanager
    async def stream(
        self, url: str, headers: list[tuple[str, str]], *, watch: bool, prompt: bool
    ) -> AsyncIterator[Response]:
        """Get a long response. Entering returns its headers; leaving closes an unread body.

        Args:
            url: the URL.
            headers: the headers.
            watch: use a separate connection.
            prompt: the response begins within `PROMPT_TIMEOUT`; otherwise send the request once
                more on a new connection.

        Raises:
            DisconnectedError: no connection, or it broke.
            FrameError: the response is not HTTP.
            TimeoutError: no response in time.
        """
        limit = PROMPT_TIMEOUT if prompt else HEADERS_TIMEOUT
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(
                    self._read(url, headers, own=watch, headers_timeout=limit)
                )
            except TimeoutError:
                if not prompt:
                    raise
                response = await stack.enter_async_context(
                    self._read(url, headers, own=True, headers_timeout=limit)
                )
            yield response

    async def try_to_connect(self) -> None:
        """Connect to the server once, without a request or a proxy.

        Raises:
            DisconnectedError: the server is unreachable.
        """
        if self._is_closed:
            raise DisconnectedError(f"{self._where}: the client is closed")
        url = urlsplit(self._where)
        await try_to_connect(
            url.hostname or "",
            url.port or (443 if self._context else 80),
            clock=self._clock,
            ssl=self._context,
            server_hostname=(self._server_hostname or url.hostname) if self._context else None,
            unix_socket=self._unix_socket,
        )

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AsyncIterator[Response]:
        """Send a request. Entering returns the response headers; leaving closes an unread body.

        Raises:
            As `stream`; and `ConfigError` for a proxy that needs an extra.
        """
        try:
            async with self._clock.timeout(HEADERS_TIMEOUT):
                await self._turns.acquire()
        except TimeoutError:
            raise TimeoutError(f"{self._where} did not respond in time") from None
        try:
            is_read = method == "GET" and body is None
            async with (
                self._read(url, headers, own=False, headers_timeout=HEADERS_TIMEOUT)
                if is_read
                else self._requests().request(method, url, headers, body)
            ) as response:
                yield response
        finally:
            self._turns.release()

    def _read(
        self, url: str, headers: list[tuple[str, str]], *, own: bool, headers_timeout: float
    ) -> AbstractAsyncContextManager[Response]:
        if self._reads is None:
            return self._requests().request(
                "GET", url, headers, None, own=own, headers_timeout=headers_timeout
            )
        return transport.stream(
            url,
            headers,
            clock=self._clock,
            ssl=self._context,
            server_hostname=self._server_hostname,
            unix_socket=self._unix_socket,
            connect_timeout=CONNECT_TIMEOUT,
            headers_timeout=headers_timeout,
            pool=self._reads,
            keep=not own,
        )

    def _requests(self) -> "AiohttpRequests":
        if self._is_closed:
            raise DisconnectedError(f"{self._where}: the client is closed")
        if self._aiohttp is None:
            from listwatch.client.aiohttp_requests import (  # noqa: PLC0415 - heavy, and not needed for reading
                AiohttpRequests,
            )

            self._aiohttp = AiohttpRequests(
                self._context,
                clock=self._clock,
                where=self._where,
                server_hostname=self._server_hostname,
                proxy=self._proxy,
                unix_socket=self._unix_socket,
            )
        return self._aiohttp

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keep the connections open while the body runs, even if they are retired.

        Raises:
            RuntimeError: they belong to another event loop, which would read the response.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"the connections to {self._where} belong to another event loop, or to the process "
                "that this one was forked off: create a client in each"
            )
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._is_retired and not self._users:
                await self.close()

    async def retire(self) -> None:
        """Close once the last user has left."""
        self._is_retired = True
        if not self._users:
            await self.close()

    async def close(self) -> None:
        """Close all connections: waiting and reading tasks get a `DisconnectedError`."""
        self._is_closed = True
        if self._reads is not None:
            self._reads.close()
        if self._aiohttp is not None:
            await self._aiohttp.close()
