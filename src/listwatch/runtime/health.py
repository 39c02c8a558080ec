"""The endpoints that a platform probes, /healthz, /readyz and /metrics, and one for people."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import msgspec

from listwatch.accepting import accepting_at, unavailable
from listwatch.clock import Clock
from listwatch.local_web import is_loopback, is_own_name
from listwatch.printable import printable
from listwatch.runtime.stacks import stacks

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

_logger = logging.getLogger(__name__)


class Check(msgspec.Struct, frozen=True):
    """One part's state for a readiness probe.

    Attributes:
        name: the part.
        ok: it works.
        problem: why not, and since when; empty if it works.
    """

    name: str
    ok: bool
    problem: str = ""


def checked(check: Callable[[], Check]) -> Check:
    """Return the result of a program's check; a check that raises has failed."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - shown to whoever probes
        name = getattr(check, "__name__", type(check).__name__)
        return Check(name, False, printable(f"{type(error).__name__}: {error}"))


#: Answers a request for a page.
Handler: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"


class Page(msgspec.Struct, frozen=True):
    """A page that shows the inside of the program, so only to those who may see it.

    Attributes:
        path: such as "/debug/why".
        handle: answers its requests.
        anywhere: also for clients that are not on loopback.
    """

    path: str
    handle: Handler
    anywhere: bool = False


class HealthServer:
    """Serves the three endpoints, in the event loop that it reports on: `async with server`.

    /healthz answers as long as the event loop runs; like /readyz it returns 200 if all of its
    checks pass, otherwise 503, and lists the result of each check. /debug/stacks, which shows what
    every task and thread is doing, and other pages answer only clients on loopback. The endpoints
    need no password and show no secrets. It listens on loopback by default.

    Args:
        checks: called at each probe of /readyz.
        registry: the metrics.
        live_checks: called at each probe of /healthz.
        pages: further pages.
        host: the address to listen on; in a pod "0.0.0.0", because probes come from outside.
        port: 0 for a free port.
        clock: the time.

    Raises:
        ConfigError: at the start, if it can't listen on the address.
    """

    def __init__(
        self,
        checks: Callable[[], Iterable[Check]],
        registry: "CollectorRegistry",
        *,
        live_checks: Callable[[], Iterable[Check]] = tuple,
        pages: Iterable[Page] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or Clock()
        self._stack = AsyncExitStack()
        self._checks = checks
        self._live_checks = live_checks
        self._registry = registry
        self._pages = [Page("/debug/stacks", self._stacks), *pages]
        self._host = host
        self._asked_port = port
        self.port = port

    @property
    def url(self) -> str:
        """The URL of the server, such as http://127.0.0.1:8080."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        from aiohttp import web  # noqa: PLC0415 - slow to load

        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/livez", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        for page in self._pages:
            app.router.add_get(page.path, self._guarded(page))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        serve = runner.server
        assert serve is not None  # noqa: S101 - set up before
        async with AsyncExitStack() as stack:
            stack.push_async_callback(runner.cleanup)
            accepting = accepting_at(self._host, self._asked_port, serve, clock=self._clock)
            try:
                self.port = await stack.enter_async_context(accepting)
            except OSError as error:
                what = "health and metrics"
                raise unavailable(what, self._host, self._asked_port, error) from None
            self._stack = stack.pop_all()
        _logger.info("health and metrics on %s", self.url)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _healthz(self, request: "web.Request") -> "web.Response":
        del request
        return _report(self._live_checks(), "ok", "not ok")

    async def _readyz(self, request: "web.Request") -> "web.Response":
        del request
        return _report(self._checks(), "ready", "not ready")

    async def _stacks(self, request: "web.Request") -> "web.Response":
        del request
        return _response(stacks())

    def _guarded(self, page: Page) -> Handler:
        async def handle(request: "web.Request") -> "web.StreamResponse":
            if not (page.anywhere or is_loopback(request.remote)):
                return _response("only for clients on loopback: use kubectl port-forward\n", 403)
            if not is_own_name(request.headers.get("Host", ""), self._host):
                return _response("use the address, not a name\n", 403)
            return await page.handle(request)

        return handle

    async def _metrics(self, request: "web.Request") -> "web.Response":
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - loaded on first use

        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return _response(encode(self._registry), content_type=content_type)


def _response(
    body: str | bytes, status: int = 200, content_type: str = "text/plain; charset=utf-8"
) -> "web.Response":
    from aiohttp.web import Response  # noqa: PLC0415 - as above

    data = body.encode() if isinstance(body, str) else body
    return Response(body=data, status=status, headers={"Content-Type": content_type})


def _report(checks: Iterable[Check], good: str, bad: str) -> "web.Response":
    checks = list(checks)
    lines = [
        f"[+] {check.name}" if check.ok else f"[-] {check.name}: {check.problem}"
        for check in checks
    ]
    passed = all(check.ok for check in checks)
    lines.append(good if passed else bad)
    return _response("\n".join(lines) + "\n", 200 if passed else 503)
