"""Requests to one API server; refusals, broken connections and silence become errors."""

import html
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Final, Self, TypeAlias
from urllib.parse import urlencode, urlsplit

import msgspec

from listwatch.client.auth import (
    Authenticator,
    Certificate,
    Credentials,
    impersonation_headers,
    make_authenticator,
)
from listwatch.client.config import (
    Config,
    base_url,
    in_clear,
    is_loopback,
    without_credentials,
)
from listwatch.client.connections import MAX_WORDS, Connections, Pool, Response
from listwatch.client.credentials import user_agent
from listwatch.client.prober import Prober
from listwatch.client.proxy import proxy_for
from listwatch.client.reach import current_reach
from listwatch.client.request_statistics import NO_RESPONSE, RequestStatistics
from listwatch.client.tls import make_ssl_context
from listwatch.clock import Clock
from listwatch.errors import ConfigError, DisconnectedError, FrameError, StatusError
from listwatch.printable import printable
from listwatch.workqueue.rate_limiters import TokenBucket

_log = logging.getLogger(__name__)

#: Seconds without a byte after which a body, except a watch's, is given up.
SILENCE_TIMEOUT: Final = 150.0
#: Maximum bytes of a response read whole, and of an error's body.
MAX_BODY_BYTES: Final = 64 * 2**20
MAX_ERROR_BYTES: Final = 2**20

#: Maximum bytes of a page or text that are searched for a message.
MAX_PAGE_BYTES: Final = 4096

_TITLE: Final = re.compile(r"(?is)<title[^>]{0,200}>([^<]{1,1000})")
_WARNING: Final = re.compile(r'299 [^ ]+ "((?:[^"\\]|\\.)*)"(?: ".*")?')

_NO_HEADER: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

JSON: Final = "application/json"

Query = Iterable[tuple[str, str]]


class Answer(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Request(msgspec.Struct):
    """The request that a hook sees.

    Attributes:
        method: the HTTP method.
        path: without the query.
        headers: names and values; a hook may add some. Credentials are added later.
        status: of the response, once there is one.
    """

    method: str
    path: str
    headers: list[tuple[str, str]]
    status: int | None = None


#: Returns a context manager that is entered before a request is sent and left when its response has
#: ended; connection errors pass through it.
RequestHook: TypeAlias = Callable[[Request], AbstractContextManager[object]]


class Body:
    """The body of a response, in pieces as they arrive.

    Attributes:
        headers: of the response; names are case-insensitive.
    """

    def __init__(self, response: Response) -> None:
        #: Returns the pieces that have arrived, at least one; none at the normal end.
        self.read_pieces = response.read_pieces
        self.headers: Mapping[str, str] = response.headers

    async def read(self) -> bytes:
        """Return all bytes that have arrived, at least one; b"" at the normal end.

        Raises:
            DisconnectedError: the connection broke.
            FrameError: the bytes are not HTTP, or can't be decompressed.
        """
        return b"".join(await self.read_pieces())


class HTTP:
    """A connection pool to one API server: `async with HTTP(config) as http`.

    Watches never make a write wait, however many there are. A renewed client certificate gets new
    connections; those in use continue until they end. For one event loop; any number of tasks may
    use it.

    Args:
        config: the server and the identity.
        clock: for every time-out.
        authenticator: replaces the configuration's credentials.
        hooks: entered for every request sent, for tracing and metrics.
        connections: replace its own; they determine how the server is reached, and the
            configuration only its URL and the default namespace.

    Raises:
        ConfigError: the configuration is invalid.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        authenticator: Authenticator | None = None,
        hooks: Iterable[RequestHook] = (),
        connections: Connections | None = None,
    ) -> None:
        if connections is None and (reach := current_reach.get()) is not None:
            config, connections = reach.config_like(config), reach.connections
        self.config = config
        self._clock = Clock() if clock is None else clock
        self._auth = (
            make_authenticator(_sendable(config), self._clock)
            if authenticator is None
            else authenticator
        )
        self._base, self._unix_socket = base_url(config)
        self._headers = [
            ("User-Agent", user_agent(config)),
            *impersonation_headers(config.impersonate),
        ]
        for name, value in self._headers:
            self._check_header(name, value)
        self._is_local = is_loopback(self._base)
        self._compression = not config.disable_compression and not self._is_local
        proxy = "" if self._unix_socket else proxy_for(config, self._base, os.environ)
        self._proxy = proxy
        self._hooks = tuple(hooks)
        #: Counts and times the requests.
        self.statistics = RequestStatistics(urlsplit(self._base).netloc)
        self._bucket = (
            TokenBucket(config.qps, config.burst, clock=self._clock) if config.qps > 0 else None
        )
        self._given = connections
        self._pool: Pool | None = None
        self._prober = Prober(self._try_to_connect, self._clock)
        self._closed = False
        self._unusable: Certificate | None = None
        self._warned: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; running requests fail with `DisconnectedError`."""
        self._closed = True
        if self._given is not None:
            await self._given.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def request(
        self,
        method: str,
        path: str,
        query: Query = (),
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Answer:
        """Send a request and return the complete response, of at most 64 MiB.

        Args:
            method: the HTTP method.
            path: below the server's URL, percent-encoded, as `path_of` returns it.
            query: names and values, not encoded.
            body: the body; None for none.
            content_type: of the body.
            accept: the accepted media types.

        Raises:
            StatusError: the server refused; raised as the matching subclass.
            DisconnectedError: no connection, or it broke; a write may have been executed.
            TimeoutError: no headers, silence within the response, or `Config.request_timeout`.
            ConfigError: there are no credentials.
        """
        limit = self._clock.timeout(self.config.request_timeout or None)
        try:
            async with (
                limit,
                self._open(
                    method, path, query, body=body, content_type=content_type, accept=accept
                ) as response,
            ):
                content = await self._read(response, MAX_BODY_BYTES)
                return Answer(response.status, response.headers, content)
        except TimeoutError as error:
            if not limit.expired:
                raise
            seconds = self.config.request_timeout
            raise TimeoutError(f"{method} {path}: no response within {seconds:g} s") from error

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        query: Query = (),
        *,
        accept: str = JSON,
        watch: bool = False,
        prompt: bool = False,
    ) -> AsyncIterator[Body]:
        """Get a long response: enter when the headers have come, read the body, leave to close.

        Args:
            path: as in `request`.
            query: as in `request`.
            accept: as in `request`.
            watch: the body has no end: never request compression.
            prompt: the response begins within 30 s; otherwise send the request once more on a new
                connection.

        Raises:
            As `request`.
        """
        async with self._open(
            "GET", path, query, accept=accept, stream=True, watch=watch, prompt=prompt
        ) as response:
            yield Body(response)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Query = (),
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        stream: bool = False,
        watch: bool = False,
        prompt: bool = False,
    ) -> AsyncIterator[Response]:
        query = list(query)
        statistics, now = self.statistics, self._clock.now
        kind = statistics.kind(method, path, query, content_type)
        text = urlencode(query)
        url = f"{self._base}{path}{'?' if text else ''}{text}"
        headers = [*self._headers, ("Accept", accept)]
        headers.append(
            ("Accept-Encoding", "gzip" if self._compression and not watch else "identity")
        )
        if body is not None:
            headers.append(("Content-Type", content_type))
        retried = False
        while True:
            credentials = await self._auth.credentials()
            if self._bucket is not None:
                asked = now()
                await self._bucket.accept()
                statistics.waited(kind, now() - asked)
            pool = await self._connections(credentials.certificate)
            sent = Request(method=method, path=path, headers=list(headers))
            async with pool.used(), AsyncExitStack() as stack:
                for hook in self._hooks:
                    stack.enter_context(hook(sent))
                authorized = sent.headers
                if credentials.authorization:
                    self._check_secrecy()
                    self._check_header("Authorization", credentials.authorization)
                    authorized = [*authorized, ("Authorization", credentials.authorization)]
                began = now()
                try:
                    response = await stack.enter_async_context(
                        pool.stream(url, authorized, watch=watch, prompt=prompt)
                        if stream
                        else pool.request(method, url, authorized, body)
                    )
                except Exception:
                    statistics.count(kind, NO_RESPONSE)
                    raise
                sent.status = response.status
                statistics.count(kind, str(response.status))
                if stream:
                    statistics.took(kind, now() - began)
                if response.status < 300 and _media_type(response) == "text/html":
                    await self._check_no_page(f"{method} {path}", response, credentials)
                if response.status < 300:
                    self._log_warnings(response, credentials)
                    yield response
                    if not stream:
                        statistics.took(kind, now() - began)
                    return
                error = await self._refusal(response, method, credentials)
                error.resource = kind.resource
                if not stream:
                    statistics.took(kind, now() - began)
            if response.status == 401 and not retried and await self._auth.renew(credentials):
                retried = True
                continue
            raise error

    async def wait_until_reachable(self) -> bool:
        """Return when the server accepts connections, without a request; True if it did not before.

        Returns False also if that is unknown: through a proxy, with the caller's connections, and
        before the first request. One task connects for all that wait.
        """
        if self._pool is None or self._proxy:
            return False
        return await self._prober.wait()

    async def _try_to_connect(self) -> None:
        if self._pool is None:
            raise DisconnectedError("the client is closed")
        await self._pool.try_to_connect()

    async def _read(self, response: Response, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async with self._clock.timeout(SILENCE_TIMEOUT) as silence:
                while new := await response.read_pieces():
                    pieces += new
                    size += sum(map(len, new))
                    if size > limit:
                        raise FrameError(f"{self._base} sent a response of more than {limit} bytes")
                    silence.postpone(SILENCE_TIMEOUT)
        except TimeoutError:
            raise TimeoutError(
                f"{self._base} sent nothing for {SILENCE_TIMEOUT:g} s within a response"
            ) from None
        return b"".join(pieces)

    def _check_secrecy(self) -> None:
        if self._base.startswith("http:") and not self._unix_socket and not self._is_local:
            raise ConfigError(
                f"{self.config.source or self._base}: credentials are not sent over plain HTTP to "
                "another host; set the server to an https:// URL"
            )

    def _check_header(self, name: str, value: str) -> None:
        if _NO_HEADER.search(value):
            raise ConfigError(
                f"{self.config.source or self._base}: the value of header {name} has a line "
                "break or another character that headers must not have; correct it"
            )

    def _hidden(self, text: str, credentials: Credentials) -> str:
        """Return a server's text without the credentials, which it may have echoed."""
        for secret in (credentials.authorization.partition(" ")[2], self.config.password):
            if len(secret) >= 8:  # a shorter one would match common words
                text = text.replace(secret, "<hidden>")
        return text

    async def _refusal(
        self, response: Response, method: str, credentials: Credentials
    ) -> StatusError:
        code = response.status
        retry_after = _retry_after(response.headers.get("Retry-After", ""), self._clock.time())
        if code < 400:
            location = self._hidden(response.headers.get("Location", ""), credentials)
            where = _redirected_to(location)
            message = f"{self._base} redirects a {method} to {where}; set the server to that URL"
            return StatusError(message, code=code)
        try:
            body = await self._read(response, MAX_ERROR_BYTES)
        except (DisconnectedError, FrameError, TimeoutError):
            body = b""  # the status alone says what matters
        text = body.decode("utf-8", "replace")
        try:
            status = json.loads(self._hidden(text, credentials))
        except (ValueError, RecursionError):
            status = None
        if not isinstance(status, dict) or status.get("kind") != "Status":
            status = {"message": self._hidden(_words(body, response), credentials)}
        return StatusError.from_status(status, code=code, retry_after=retry_after)

    async def _check_no_page(
        self, request: str, response: Response, credentials: Credentials
    ) -> None:
        """Refuse a page for people, such as a login page in front of the server."""
        if "/proxy" in request:  # the response of a pod, a service or a node
            return
        try:
            body = await self._read(response, MAX_ERROR_BYTES)
        except (DisconnectedError, FrameError, TimeoutError):
            body = b""
        words = self._hidden(_words(body, response), credentials)
        raise FrameError(
            f"{self._base}: the response to {request} is not an object but a web page ({words}); "
            "is there a login page or a proxy in front of the server?"
        )

    def _log_warnings(self, response: Response, credentials: Credentials) -> None:
        for value in response.headers.getall("Warning", ()):
            text = self._hidden(_warning_text(value), credentials)
            if text and text not in self._warned and len(self._warned) < 1000:
                self._warned.add(text)
                _log.warning("%s: %s", self._base, printable(text))

    async def _connections(self, certificate: Certificate | None) -> Connections:
        if self._closed:
            raise DisconnectedError("the client is closed")
        if self._given is not None:
            return self._given
        pool = self._pool
        if pool is None or pool.certificate != certificate:
            is_tls = self._base.startswith("https:")
            try:
                context = make_ssl_context(self.config, certificate) if is_tls else None
            except ConfigError as error:
                if pool is None:
                    raise
                # The files are being replaced, or were replaced by something else. Existing
                # connections continue, as in client-go's transport/cert_rotation.go.
                if certificate != self._unusable:
                    self._unusable = certificate
                    _log.warning("%s; the last certificate is used", error)
                return pool
            new = Pool(
                certificate,
                context,
                clock=self._clock,
                where=self._base,
                server_hostname=self.config.tls_server_name,
                proxy=self._proxy,
                unix_socket=self._unix_socket,
            )
            self._pool, old = new, pool
            if old is not None:
                await old.retire()
            return self._pool
        return pool


def _sendable(config: Config) -> Config:
    """Return a configuration without the credentials that must not be sent in clear text."""
    if not (config.tls_only and in_clear(config)):
        return config
    sendable = without_credentials(config)
    if sendable != config:
        _log.warning(
            "%s: the server is http, so the user's credentials are not sent; "
            "set it to an https:// URL",
            config.source or config.server,
        )
    return sendable


def _retry_after(value: str, now: float) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3)."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rarely needed

    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    return max(0.0, date.timestamp() - now)


def _redirected_to(location: str) -> str:
    try:
        parts = urlsplit(location)
    except ValueError:
        return "nowhere"
    if not parts.netloc:
        return parts.path[:MAX_WORDS] or "nowhere"
    return f"{parts.scheme or 'https'}://{parts.netloc.rpartition('@')[2]}"[:MAX_WORDS]


def _words(body: bytes, response: Response) -> str:
    """Return the message of a response that is not a Status, in one line."""
    text = body[:MAX_PAGE_BYTES].decode("utf-8", "replace").strip()
    reason = f"HTTP status {response.status} {response.reason}".strip()
    if title := _TITLE.search(text):
        line = f"{reason}: {html.unescape(' '.join(title[1].split()))}"
    elif text and text[0] != "<" and _media_type(response) in {"", "text/plain"}:
        line = " ".join(text.split())  # Go's net/http sends some of its own messages without a type
    else:
        line = reason
    if response.status == 400 and ("HTTPS server" in line or "HTTPS port" in line):
        line += "; is the URL https://?"
    return line if len(line) <= MAX_WORDS else f"{line[:MAX_WORDS]}…"


def _media_type(response: Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _warning_text(header: str) -> str:
    """Return the text of a Warning header with code 299 (RFC 7234, 5.5), otherwise ""."""
    match = _WARNING.fullmatch(header.strip())
    return re.sub(r"\\(.)", r"\1", match[1]) if match else ""
