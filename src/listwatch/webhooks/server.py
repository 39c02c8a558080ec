"""Serves webhooks over TLS with aiohttp."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from listwatch.accepting import accepting_at, unavailable
from listwatch.clock import Clock, Timer
from listwatch.errors import ConfigError
from listwatch.private_file import file_of
from listwatch.webhooks.dispatch import Dispatcher

_logger = logging.getLogger(__name__)

#: Seconds for running requests at the end.
GRACE: Final = 5.0
#: Seconds within which the headers of a connection's first request must have arrived, and those of
#: its next one. API servers keep connections for 90 s.
FIRST_REQUEST: Final = 10.0
NEXT_REQUEST: Final = 120.0


async def _pieces(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; raise OSError if it ends early or is broken."""
    try:
        async for piece in request.content.iter_any():
            yield piece
    except HttpProcessingError as error:
        raise ConnectionError(type(error).__name__) from error


class ServingContext:
    """The TLS of new connections, whose certificate can change while the server runs."""

    def __init__(self) -> None:
        self.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ssl.minimum_version = ssl.TLSVersion.TLSv1_2

    def use(self, certificate: bytes, key: bytes) -> None:
        """Use another certificate for new connections.

        Args:
            certificate: PEM, with its chain.
            key: its private key, PEM.

        Raises:
            ConfigError: they are no PEM, or don't belong together.
        """
        # OpenSSL's binding reads keys only from files.
        with file_of(key.rstrip() + b"\n" + certificate) as path:
            try:
                self.ssl.load_cert_chain(path)
            except (ssl.SSLError, ValueError) as error:
                raise ConfigError(f"the certificate and key can't be used: {error}") from None


class ReviewServer:
    """Serves the reviews of a dispatcher: `async with server`.

    Args:
        dispatcher: answers.
        context: the certificate.
        host: the address to listen on; in a pod "0.0.0.0".
        port: 0 for a free port.
        clock: the time.

    Raises:
        ConfigError: at the start, if it can't listen on the address.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        context: ServingContext,
        *,
        host: str,
        port: int,
        clock: Clock,
    ) -> None:
        self._dispatcher = dispatcher
        self._context = context
        self._host = host
        self._asked_port = port
        self._clock = clock
        self._stack = AsyncExitStack()
        self._waiting: dict[object, Timer] = {}
        #: The port that it listens on.
        self.port = port

    async def __aenter__(self) -> Self:
        # A compressed body could expand beyond its limit; API servers send none.
        server = web.Server(
            self._handle,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=NEXT_REQUEST,
        )

        def connected() -> asyncio.BaseProtocol:
            protocol = server()
            self._await_request(protocol, FIRST_REQUEST)
            return protocol

        runner = web.ServerRunner(server, shutdown_timeout=GRACE)
        await runner.setup()
        async with AsyncExitStack() as stack:
            stack.callback(self._cancel_timers)
            stack.push_async_callback(runner.cleanup)
            accepting = accepting_at(
                self._host,
                self._asked_port,
                connected,
                clock=self._clock,
                ssl_context=self._context.ssl,
            )
            try:
                self.port = await stack.enter_async_context(accepting)
            except OSError as error:
                raise unavailable("webhooks", self._host, self._asked_port, error) from None
            self._stack = stack.pop_all()
        _logger.info("webhooks on port %d of %s", self.port, self._host)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def _cancel_timers(self) -> None:
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _await_request(self, protocol: web.RequestHandler, seconds: float) -> None:
        """Close a connection on which no request arrives in time."""

        def close() -> None:
            self._waiting.pop(protocol, None)
            protocol.force_close()

        self._waiting[protocol] = self._clock.call_later(seconds, close)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        timer = self._waiting.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()
        response = await self._answer(request)
        if request.transport is not None:
            self._await_request(request.protocol, NEXT_REQUEST)
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405, text="webhooks take POST", headers={"Allow": "POST"})
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return web.Response(status=415, text="webhooks take no compressed reviews")
        reply = await self._dispatcher.reply(
            request.path, request.query.get("timeout", ""), _pieces(request)
        )
        response = web.Response(status=reply.status, body=reply.body)
        response.headers["Content-Type"] = reply.content_type
        if reply.status == 413:
            response.force_close()  # the rest of the body is still to come
        return response
