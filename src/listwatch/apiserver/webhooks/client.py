"""Calls a webhook: its address, TLS, and errors in Go's words.

The rules and messages are those of `apiserver/pkg/util/webhook`, client-go and Go's `net/http`.
"""

import asyncio
import base64
import binascii
import posixpath
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.schema.causes import go_quoted

#: Returns a service's host and port; None if unknown.
Services = Callable[[str, str, int], tuple[str, int] | None]

#: How all webhooks can be made to misbehave, for tests.
Misbehaviour = Literal["slow", "refusing", "garbage", "expired"]

#: Maximum response size, in bytes.
ANSWER_LIMIT = 16 * 1024 * 1024
_HEADERS = {
    "Accept": "application/json, */*",
    "Accept-Encoding": "identity",  # a compressed body could expand beyond the limit
    "User-Agent": "kube-apiserver-admission",
}
_REDIRECTS = 10
#: Maximum sessions kept; the least recently used one is closed.
_KEPT = 16
_UNKNOWN_AUTHORITY = "x509: certificate signed by unknown authority"
#: Go's messages by OpenSSL's error codes for certificates.
_CERTIFICATE_WORDS = {
    9: "x509: certificate has expired or is not yet valid",
    10: "x509: certificate has expired or is not yet valid",
}
_OTHER_HOST, _OTHER_ADDRESS = 62, 64


class WebhookCallError(ListWatchError):
    """A call without a usable response; the message is Go's."""


class Endpoint(msgspec.Struct, frozen=True):
    """A webhook's address, from its `clientConfig`.

    Attributes:
        url: with a path, and without a query.
        authority: CA certificates, in PEM, that verify the webhook's certificate; "" for the
            system's.
        service: namespace, name and port of a service; None for a URL.
    """

    url: str
    authority: str = ""
    service: tuple[str, str, int] | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Endpoint":
        """Parse the `clientConfig` of a webhook or of a definition's conversion."""
        authority = _pem(config.get("caBundle") or "")
        service = config.get("service")
        if service is None:
            url = urlsplit(config.get("url") or "")
            return cls(f"{url.scheme}://{url.netloc}{_path(url.path)}", authority)
        namespace, name = service.get("namespace", ""), service.get("name", "")
        port = service.get("port") or 443
        path = _path(service.get("path") or "")
        return cls(
            f"https://{name}.{namespace}.svc:{port}{path}", authority, (namespace, name, port)
        )


def _path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _pem(bundle: str) -> str:
    try:
        return base64.b64decode(bundle).decode().strip()
    except (binascii.Error, ValueError):
        return bundle  # not a certificate; the call will report it


class WebhookClient:
    """Calls webhooks. For one event loop at a time; `close` it when the loop ends.

    Args:
        clock: times the calls.
        services: returns the address of a service.
    """

    def __init__(self, clock: Clock, services: Services) -> None:
        self._clock = clock
        self._services = services
        self._sessions: OrderedDict[tuple[str, str], aiohttp.ClientSession] = OrderedDict()
        self._misbehaviour: Misbehaviour | None = None
        self._behaves = asyncio.Event()

    def misbehave(self, how: Misbehaviour | None) -> None:
        """Fail all calls from now on as if the webhooks did; None ends that.

        Args:
            how: "slow" webhooks do not answer, "refusing" ones accept no connection, "garbage" is
                no review, and "expired" is their certificate.
        """
        self._misbehaviour = how
        if how is None:
            self._behaves.set()
        else:
            self._behaves.clear()

    async def close(self) -> None:
        """Close all connections."""
        sessions, self._sessions = self._sessions, OrderedDict()
        for session in sessions.values():
            await session.close()

    async def post(
        self, endpoint: Endpoint, body: bytes, seconds: int, *, told: int | None = None
    ) -> bytes:
        """Send a review, and return the body of the response.

        Args:
            endpoint: the webhook.
            body: the review, in JSON.
            seconds: time limit, which is also sent to the webhook.
            told: the limit to send to the webhook instead, if the request ends earlier.

        Raises:
            WebhookCallError: no response came, or it reports a failure.
        """
        url = f"{endpoint.url}?timeout={seconds if told is None else told}s"
        call = _Call(self._session, self._services, endpoint)
        try:
            async with self._clock.timeout(seconds):
                if self._misbehaviour is not None:
                    call.show(url)
                    if self._misbehaviour == "garbage":
                        return b"\x00garbage"
                    await self._suffer(call, self._misbehaviour)
                return await call.send(url, body)
        except TimeoutError:
            raise WebhookCallError(call.failed("context deadline exceeded")) from None
        except aiohttp.ClientConnectorCertificateError as error:
            words = await call.certificate_words(error.certificate_error)
            raise WebhookCallError(
                call.failed(f"tls: failed to verify certificate: {words}")
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookCallError(call.failed(_words(error, call.host))) from None

    async def _suffer(self, call: "_Call", how: Misbehaviour) -> None:
        if how == "expired":
            words = f"tls: failed to verify certificate: {_CERTIFICATE_WORDS[10]}"
            raise WebhookCallError(call.failed(words))
        if how == "refusing":
            words = f"dial tcp {call.address}: connect: connection refused"
            raise WebhookCallError(call.failed(words))
        await self._behaves.wait()

    async def _session(self, authority: str, name: str) -> aiohttp.ClientSession:
        key = (authority, name)
        session = self._sessions.pop(key, None)
        if session is None:
            context = _context(authority)
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, keepalive_timeout=10.0),
                timeout=aiohttp.ClientTimeout(total=None),  # the injected clock times the call
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        self._sessions[key] = session
        if len(self._sessions) > _KEPT:
            _, oldest = self._sessions.popitem(last=False)
            await oldest.close()
        return session


def _context(authority: str) -> ssl.SSLContext:
    if not authority:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=authority)
    except (ssl.SSLError, ValueError):
        raise WebhookCallError(
            "unable to load root certificates: unable to parse bytes as PEM block"
        ) from None
    return context


class _Call:
    """One call, with its redirects."""

    def __init__(
        self,
        session: Callable[[str, str], Any],
        services: Services,
        endpoint: Endpoint,
    ) -> None:
        self._session = session
        self._services = services
        self._endpoint = endpoint
        self._method = "POST"
        self._shown = ""
        self._url = URL(endpoint.url)
        self._redirects_as_get = True
        #: the host of the connection
        self.host = ""

    def show(self, url: str) -> None:
        """Note the URL for messages."""
        self._shown = url

    @property
    def address(self) -> str:
        """Host and port of the webhook, or of the service in front of it."""
        service = self._endpoint.service
        found = None if service is None else self._services(*service)
        host, port = (self._url.host, self._url.port) if found is None else found
        return f"{host}:{port}"

    def failed(self, words: str) -> str:
        """Return an error message with the request that failed."""
        return f'{self._method.title()} "{self._shown}": {words}'

    async def send(self, url: str, body: bytes) -> bytes:
        """Send the request and follow redirects."""
        headers = {**_HEADERS, "Content-Type": "application/json"}
        sent: bytes | None = body
        for _ in range(_REDIRECTS + 1):
            self._shown, self._url = url, URL(url)
            answer, location = await self._send(headers, sent)
            if location is None:
                return answer
            previous, url = url, str(self._url.join(URL(location)))
            if self._redirects_as_get:
                self._method, sent = "GET", None
                headers = {**_HEADERS, "Referer": previous}
        raise WebhookCallError(self.failed(f"stopped after {_REDIRECTS} redirects"))

    async def _send(
        self, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[bytes, str | None]:
        url, name = self._url, self._url.host or ""
        target = url
        if self._endpoint.service is not None and url.origin() == URL(self._endpoint.url).origin():
            found = self._services(*self._endpoint.service)
            if found is None:
                words = f"service {go_quoted(self._endpoint.service[1])} not found"
                raise WebhookCallError(self.failed(words))
            target = url.with_host(found[0]).with_port(found[1])
            headers = {**headers, "Host": f"{name}:{url.port}"}
        self.host = f"{target.host}:{target.port}"
        session = await self._session(self._endpoint.authority, name)
        async with session.request(
            self._method,
            target,
            data=body,
            headers=headers,
            allow_redirects=False,
            server_hostname=name if target is not url else None,
        ) as response:
            location = response.headers.get("Location")
            if response.status in _REDIRECT_CODES and location is not None:
                self._redirects_as_get = response.status not in {307, 308}
                return b"", location
            data = await self._read(response)
            if not 200 <= response.status <= 206:
                text = response.content_type.startswith("text/")
                raise WebhookCallError(_refusal(response.status, data, text=text))
            return data, None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        pieces, size = [], 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > ANSWER_LIMIT:
                raise WebhookCallError(
                    self.failed(f"the answer has more than {ANSWER_LIMIT} bytes")
                )
            pieces.append(piece)
        return b"".join(pieces)

    async def certificate_words(self, error: Exception) -> str:
        """Return Go's message for the fault of the webhook's certificate."""
        code = getattr(error, "verify_code", 0)
        if code not in {_OTHER_HOST, _OTHER_ADDRESS}:
            return _CERTIFICATE_WORDS.get(code, _UNKNOWN_AUTHORITY)
        name = self._url.host or ""
        names = await self._names()
        hosts = [value for kind, value in names if kind == "DNS"]
        addresses = [value for kind, value in names if kind == "IP Address"]
        if code == _OTHER_ADDRESS:
            if not addresses:
                return (
                    f"x509: cannot validate certificate for {name} because it doesn't contain any "
                    "IP SANs"
                )
            return f"x509: certificate is valid for {', '.join(addresses)}, not {name}"
        if not hosts:
            return f"x509: certificate is not valid for any names, but wanted to match {name}"
        return f"x509: certificate is valid for {', '.join(hosts)}, not {name}"

    async def _names(self) -> list[tuple[str, str]]:
        """Connect without sending anything, and return the names in the webhook's certificate."""
        host, _, port = self.host.rpartition(":")
        context = _context(self._endpoint.authority)
        context.check_hostname = False
        try:
            async with asyncio.timeout(1.0):
                _, writer = await asyncio.open_connection(
                    host.strip("[]"), int(port), ssl=context, server_hostname=self._url.host
                )
        except (OSError, ValueError):
            return []
        certificate = writer.get_extra_info("peercert") or {}
        writer.transport.abort()
        return list(certificate.get("subjectAltName") or ())


_REDIRECT_CODES = frozenset((301, 302, 303, 307, 308))
_PLAIN_HTTP = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"))


def _words(error: Exception, host: str) -> str:
    """Return Go's message for a failed connection."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return f"dial tcp: lookup {host.rpartition(':')[0]}: no such host"
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            reason = getattr(cause, "reason", None) or ""
            if reason in _PLAIN_HTTP:
                return "http: server gave HTTP response to HTTPS client"
            return f"tls: {str(reason).lower().replace('_', ' ') or 'handshake failure'}"
        case aiohttp.ClientConnectorError():
            why = (error.os_error.strerror or str(error.os_error)).lower()
            if "connect call failed" in why:
                why = "connection refused"
            return f"dial tcp {host}: connect: {why}"
        case aiohttp.ClientPayloadError():
            return "unexpected EOF"
        case aiohttp.ServerDisconnectedError() | OSError():
            return "EOF"
        case aiohttp.ClientResponseError():
            return f"net/http: HTTP/1.x transport connection broken: {error.message}"
    return str(error) or type(error).__name__


_REFUSALS: Mapping[int, str] = {
    HTTPStatus.BAD_REQUEST: "the server rejected our request for an unknown reason",
    HTTPStatus.UNAUTHORIZED: "the server has asked for the client to provide credentials",
    HTTPStatus.NOT_FOUND: "the server could not find the requested resource",
    HTTPStatus.METHOD_NOT_ALLOWED: (
        "the server does not allow this method on the requested resource"
    ),
    HTTPStatus.CONFLICT: "the server reported a conflict",
    HTTPStatus.UNPROCESSABLE_ENTITY: (
        "the server rejected our request due to an error in our request"
    ),
    HTTPStatus.TOO_MANY_REQUESTS: (
        "the server has received too many requests and has asked us to try again later"
    ),
    HTTPStatus.SERVICE_UNAVAILABLE: "the server is currently unable to handle the request",
    HTTPStatus.GATEWAY_TIMEOUT: (
        "the server was unable to return a response in the time allotted, but may still be "
        "processing the request"
    ),
}


def _refusal(code: int, body: bytes, *, text: bool) -> str:
    """Return client-go's message for an unsuccessful response.

    Args:
        code: of the response.
        body: of the response; may be a Status with a message.
        text: the body is text, and can be shown.
    """
    try:
        status = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        message = status.get("message")
        if status.get("status") == "Failure" and isinstance(message, str):
            return message
    said = body.decode(errors="replace").strip() if text else "unknown"
    if code in {HTTPStatus.FORBIDDEN, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}:
        return said
    if code == HTTPStatus.NOT_ACCEPTABLE:
        known = said not in {"", "unknown"}
        return (
            said
            if known
            else "the server was unable to respond with a content type that the client supports"
        )
    if code in _REFUSALS:
        return _REFUSALS[code]
    if code >= 500:
        return (
            f"an error on the server ({go_quoted(said)}) has prevented the request from succeeding"
        )
    return f"the server responded with the status code {code} but did not return more information"
