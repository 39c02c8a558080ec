"""The observer's plain HTTP pages: metrics and health."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import web

from listwatch.accepting import accepting_at
from listwatch.clock import Clock
from listwatch.local_web import is_own_name
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.options import UsageError
from listwatch.observe.page import Page

_HEALTH: Final = frozenset({"/healthz", "/readyz", "/healthz/ready"})


class ListenError(UsageError):
    """Listening on the address failed."""


@asynccontextmanager
async def serve(
    address: str, metrics: ObserveMetrics, *, ready: Callable[[], bool], page: Page | None = None
) -> AsyncIterator[str]:
    """Serve `/metrics`, `/healthz`, `/readyz` and a page while the body runs; yield the URL.

    `/healthz/ready`, the original's path, equals `/readyz`: 500 until the first list was reported
    and processed.

    Everything except health answers only requests for an IP address, localhost or the host of
    `address`. Otherwise a web site could point its own name here and let its visitors' browsers
    read the data (DNS rebinding).

    Args:
        address: `host:port`; port 0 for a free port, an empty host for every interface.
        metrics: what `/metrics` shows.
        ready: returns whether the first list was processed.
        page: the page to serve at `/`.

    Raises:
        ListenError: the address is invalid, or in use.
    """
    host, port = _split(address)

    @web.middleware
    async def refuse_foreign_names(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path not in _HEALTH and not is_own_name(request.headers.get("Host", ""), host):
            raise web.HTTPForbidden(text="use the address, not a name")
        return await handler(request)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(
            text=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readiness(_: web.Request) -> web.Response:
        if ready():
            return web.Response(text="ok")
        return web.Response(status=500, text="waiting for initial sync")

    app = web.Application(middlewares=[refuse_foreign_names])
    app.add_routes([web.get("/metrics", show_metrics), web.get("/healthz", healthy)])
    app.add_routes([web.get(path, readiness) for path in ("/readyz", "/healthz/ready")])
    if page is not None:
        app.add_routes(page.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    serve_connection = runner.server
    assert serve_connection is not None  # noqa: S101 - set up before
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        if page is not None:
            stack.callback(page.close)
        accepting = accepting_at(host, port, serve_connection, clock=Clock())
        try:
            bound = await stack.enter_async_context(accepting)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ListenError(
                f"unable to listen on {address!r}: {reason}; choose another --listen-addr"
            ) from error
        shown = host or "127.0.0.1"
        yield f"http://{f'[{shown}]' if ':' in shown else shown}:{bound}"


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ListenError(
            f"{address!r} is not an address; write host:port, such as 127.0.0.1:11251"
        )
    return host.strip("[]"), int(port)
