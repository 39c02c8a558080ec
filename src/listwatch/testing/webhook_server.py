"""A server for the webhooks of a test, over HTTPS, with a CA made for it."""

import asyncio
import base64
import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from aiohttp import web

from listwatch.errors import ConfigError

__all__ = ["WebhookServer"]

#: Gets a review's `request`; returns fields of its `response`, or None to allow.
WebhookHandler = Callable[
    [dict[str, Any]], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None
]
WebhookFault = Literal["slow", "refusing", "garbage", "expired"]

_GARBAGE = b"\x00garbage"


class WebhookServer:
    """A server that an API server calls for admission and conversion, on loopback.

    An asynchronous context manager, for one event loop. `on` sets a path's handler, and
    `client_config` returns the `clientConfig` for a webhook configuration or definition. Handlers
    get and return the contents of reviews.

    Args:
        services: services, as `NAMESPACE/NAME`, to include in its certificate; map them to this
            server with `APIServer.add_service`.

    Raises:
        ConfigError: at the start, the extra `tls` is not installed.
    """

    def __init__(self, *, services: Iterable[str] = ()) -> None:
        self._names = ["127.0.0.1", "localhost"]
        for service in services:
            namespace, _, name = service.partition("/")
            self._names.append(f"{name}.{namespace}.svc")
        self._handlers: dict[str, WebhookHandler] = {}
        self._fault: WebhookFault | None = None
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca: Any = None
        self._runner: web.ServerRunner | None = None
        self._recovered = asyncio.Event()
        self.port = 0
        #: the requests so far, each with its path
        self.requests: list[tuple[str, dict[str, Any]]] = []

    async def __aenter__(self) -> Self:
        try:
            import trustme  # noqa: PLC0415 - an extra, slow to load
        except ImportError:
            raise ConfigError(
                "certificates require trustme: run pip install 'listwatch[tls]'"
            ) from None
        self._ca = trustme.CA(organization_name="listwatch")
        self._ca.issue_cert(*self._names).configure_cert(self._context)
        await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recovered.set()
        await self._close()

    async def _listen(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @property
    def ca_bundle(self) -> str:
        """The CA's certificate, as in `caBundle`."""
        return base64.b64encode(self._ca.cert_pem.bytes()).decode()

    def on(self, path: str, handler: WebhookHandler) -> None:
        """Set the handler for the reviews of a path.

        Args:
            path: such as "/check".
            handler: a function, possibly asynchronous, of the review's `request`. It returns fields
                of the `response`: for admission `allowed` (default true), `status`, `warnings`, and
                `patch` as a list of operations; for conversion `convertedObjects`.
        """
        self._handlers[path] = handler

    def client_config(self, path: str, *, service: str = "") -> dict[str, Any]:
        """Return the `clientConfig` for a path.

        Args:
            path: of a handler.
            service: call it through this service, `NAMESPACE/NAME`, instead of its URL.
        """
        if not service:
            return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": self.ca_bundle}
        namespace, _, name = service.partition("/")
        reference = {"namespace": namespace, "name": name, "path": path}
        return {"service": reference, "caBundle": self.ca_bundle}

    async def fail(self, fault: WebhookFault) -> None:
        """Misbehave from now on, until `recover`.

        Args:
            fault: "slow" does not respond, "refusing" refuses connections, "garbage" responds with
                something other than a review, and "expired" uses an expired certificate.
        """
        self._fault = fault
        self._recovered.clear()
        if fault == "refusing":
            await self._close()
        elif fault == "expired":
            yesterday = datetime.now(UTC) - timedelta(days=1)
            begun = yesterday - timedelta(days=1)
            expired = self._ca.issue_cert(*self._names, not_before=begun, not_after=yesterday)
            expired.configure_cert(self._context)

    async def recover(self) -> None:
        """Behave again; slow requests get their response."""
        fault, self._fault = self._fault, None
        self._recovered.set()
        if fault == "expired":
            self._ca.issue_cert(*self._names).configure_cert(self._context)
        elif fault == "refusing":
            await self._listen()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        review = msgspec.json.decode(await request.read())
        asked = review["request"]
        self.requests.append((request.path, asked))
        if self._fault == "slow":
            await self._recovered.wait()
        if self._fault == "garbage":
            return _closing(_GARBAGE)
        handler = self._handlers.get(request.path)
        if handler is None:
            return web.Response(status=404)
        given = handler(asked)
        response = dict((await given if inspect.isawaitable(given) else given) or {})
        response["uid"] = asked["uid"]
        if review["kind"] == "ConversionReview":
            response.setdefault("result", {"status": "Success"})
        else:
            response.setdefault("allowed", True)
        if isinstance(response.get("patch"), list):
            patch = base64.b64encode(msgspec.json.encode(response["patch"])).decode()
            response |= {"patchType": "JSONPatch", "patch": patch}
        kinds = {key: review[key] for key in ("apiVersion", "kind")}
        return _closing(msgspec.json.encode({**kinds, "response": response}))


def _closing(body: bytes) -> web.Response:
    """Return a response that closes the connection, so that each call sees the certificate."""
    response = web.Response(body=body, content_type="application/json")
    response.force_close()
    return response
