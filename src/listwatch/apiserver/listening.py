"""Listening for connections, and the connections themselves."""

import asyncio
import ipaddress
import os
import ssl
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from listwatch.apiserver import refusal
from listwatch.apiserver.call import BODY_LIMIT
from listwatch.apiserver.negotiation import JSON
from listwatch.errors import ConfigError

#: The largest line of a request's head, in bytes: Go's limit for all of it.
_HEAD_LIMIT = 1 << 20

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def listen(
    handle: Handle, host: str, port: int, tls: ssl.SSLContext | None = None
) -> web.ServerRunner:
    """Begin to answer requests on an address; `cleanup` of what is returned ends it.

    Raises:
        ConfigError: the address can't be listened on.
    """
    server = _Server(
        handle,
        request_factory=_make_request,
        handler_cancellation=True,
        access_log=None,
        max_line_size=_HEAD_LIMIT,
        max_field_size=_HEAD_LIMIT,
        # a body is taken as it comes, whatever its Content-Encoding says
        auto_decompress=False,
    )
    runner = web.ServerRunner(server, shutdown_timeout=0.05)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024, reuse_address=True, ssl_context=tls)
        await site.start()
    except OSError as error:
        await runner.cleanup()
        # asyncio puts words of its own around the system's, which say it all
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {why}; choose another port, or 0 for a free one"
        ) from None
    except BaseException:
        await runner.cleanup()
        raise
    return runner


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL of an address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Connection(RequestHandler):
    """A connection that refuses unknown methods as the rest of the server would."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that could not be read or handled."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        if isinstance(exc, BadHttpMethod):
            body = msgspec.json.encode(refusal.method_not_allowed().to_status()) + b"\n"
            response = web.Response(body=body, status=405, headers={"Content-Type": JSON})
        else:
            # in the words of Go's server, which logs nothing of it either
            long = isinstance(exc, LineTooLong)
            words = "431 Request Header Fields Too Large" if long else "400 Bad Request"
            response = web.Response(text=words, status=int(words[:3]))
        response.force_close()
        return response


class _Server(web.Server):
    """aiohttp's server, with connections of our own."""

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    return web.BaseRequest(
        message,
        payload,
        protocol,
        writer,
        task,
        asyncio.get_running_loop(),
        client_max_size=BODY_LIMIT,
    )
