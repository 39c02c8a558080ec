"""The observer's plain HTTP pages: metrics and health."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.options import UsageError
from listwatch.observe.page import Page


class ListenError(UsageError):
    """The address can't be listened on."""


@asynccontextmanager
async def serve(
    address: str, metrics: ObserveMetrics, *, ready: Callable[[], bool], page: Page | None = None
) -> AsyncIterator[str]:
    """Serve `/metrics`, `/healthz`, `/readyz` and a page while the body runs; yield the URL.

    `/healthz/ready`, the original's path, is the same as `/readyz`: 500 until the first list was
    told and processed.

    Args:
        address: `host:port`; port 0 is a free one, and an empty host is every interface.
        metrics: what `/metrics` shows.
        ready: says whether the first list was processed.
        page: the page to serve at `/`.

    Raises:
        ListenError: the address is no address, or is taken.
    """
    host, port = _split(address)

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

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", show_metrics),
            web.get("/healthz", healthy),
            web.get("/readyz", readiness),
            web.get("/healthz/ready", readiness),
        ]
    )
    if page is not None:
        app.add_routes(page.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host or None, port)
        try:
            await site.start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ListenError(
                f"unable to listen on {address!r}: {reason}; choose another --listen-addr"
            ) from error
        bound = runner.addresses[0]
        shown = host or "127.0.0.1"
        yield f"http://{f'[{shown}]' if ':' in shown else shown}:{bound[1]}"
    finally:
        if page is not None:
            page.close()
        await runner.cleanup()


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ListenError(f"{address!r} is no address; write host:port, such as 127.0.0.1:11251")
    return host.strip("[]"), int(port)
