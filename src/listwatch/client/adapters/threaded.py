"""The session of a blocking client: `kubernetes.client.ApiClient` or `lightkube.Client`.

Each response has its own thread while it is read. Leaving it shuts its socket down, which ends the
thread's read at once.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import Any, Final, Protocol

from multidict import CIMultiDict

from listwatch.client.adapters.httpx_client import errors_of, translated
from listwatch.client.adapters.session import (
    GeneratedAuthentication,
    Session,
    SessionAuthentication,
)
from listwatch.client.auth import Authenticator
from listwatch.client.config import Config
from listwatch.client.connections import CONNECT_TIMEOUT, HEADERS_TIMEOUT, Connections, Response
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError, FrameError

#: Seconds that a thread waits for a byte before the headers; afterwards there is no limit.
_FIRST_BYTE: Final = HEADERS_TIMEOUT + 5


class _Answer(Protocol):
    """A response whose headers have arrived, used on its thread except for `abort`."""

    status: int
    reason: str
    headers: CIMultiDict[str]
    pieces: Iterator[bytes]

    def close(self) -> None:
        """Return or close the connection."""

    def abort(self) -> None:
        """Interrupt any read, from any thread."""


class _Urllib3Answer:
    def __init__(self, response: Any) -> None:
        self.status: int = response.status
        self.reason: str = response.reason or ""
        self.headers = CIMultiDict(response.headers.items())
        self.pieces = response.stream(2**16, decode_content=True)
        self._response = response
        self._socket = _socket_of(response)
        if self._socket is not None:
            self._socket.settimeout(None)

    def close(self) -> None:
        self._response.close()

    def abort(self) -> None:
        _shut_down(self._socket)


def _socket_of(response: Any) -> socket.socket | None:
    connection = getattr(response, "connection", None) or getattr(response, "_connection", None)
    found = getattr(connection, "sock", None)
    if found is None:  # a response with Connection: close has released it
        found = getattr(getattr(getattr(response, "_fp", None), "fp", None), "raw", None)
        found = getattr(found, "_sock", None)
    return found if isinstance(found, socket.socket) else None


class _HttpxAnswer:
    def __init__(self, response: Any) -> None:
        self.status: int = response.status_code
        self.reason: str = response.reason_phrase
        self.headers = CIMultiDict(response.headers.multi_items())
        self.pieces = response.iter_bytes()
        self._response = response
        stream = response.extensions.get("network_stream")
        self._socket = stream.get_extra_info("socket") if stream is not None else None

    def close(self) -> None:
        self._response.close()

    def abort(self) -> None:
        _shut_down(self._socket)


def _shut_down(found: socket.socket | None) -> None:
    if found is not None:
        with suppress(OSError):  # it is closed already
            found.shutdown(socket.SHUT_RDWR)


Open = Callable[[str, str, list[tuple[str, str]], bytes | None], _Answer]


class _Response:
    def __init__(self, answer: _Answer, session: "_Session", run: ThreadPoolExecutor) -> None:
        self.status = answer.status
        self.reason = answer.reason
        self.headers = answer.headers
        self._pieces = answer.pieces
        self._session = session
        self._run = run
        self.is_finished = False

    async def read_pieces(self) -> list[bytes]:
        reading = asyncio.wrap_future(self._run.submit(self._next))
        piece = await self._session.translated(reading, self._session.errors)
        self.is_finished = not piece
        return [piece] if piece else []

    def _next(self) -> bytes:
        return next((piece for piece in self._pieces if piece), b"")


class _Session(Session):
    def __init__(
        self,
        open_: Open,
        errors: tuple[type[Exception], ...],
        translate: Callable[[Exception, str], Exception],
        clock: Clock,
        where: str,
    ) -> None:
        super().__init__(clock, where, translate)
        self._open = open_
        self.errors = errors

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AsyncIterator[Response]:
        run = ThreadPoolExecutor(1, thread_name_prefix="listwatch-adapter")
        opening = run.submit(self._open, method, url, headers, body)
        response = None
        try:
            answer = await self.head(asyncio.wrap_future(opening), self.errors)
            response = _Response(answer, self, run)
            yield response
        finally:
            if response is None or not response.is_finished:
                # Nothing waits for the thread: it ends with its socket.
                opening.add_done_callback(_abort)
            run.submit(_close, opening)
            run.shutdown(wait=False)


def _abort(opening: "Future[_Answer]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abort()


def _close(opening: "Future[_Answer]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def adapt(theirs: Any, clock: Clock) -> tuple[Config, Connections, Authenticator]:
    """Return the parts that use the client's session."""
    if type(theirs).__module__.partition(".")[0] == "lightkube":
        return _adapt_lightkube(theirs, clock)
    urllib3: Any = import_module("urllib3")  # a dependency of the adapted client
    timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT, read=_FIRST_BYTE)

    def open_(method: str, url: str, headers: list[tuple[str, str]], body: bytes | None) -> _Answer:
        sent = urllib3.HTTPHeaderDict(theirs.default_headers)
        for name, value in headers:
            sent[name] = value
        return _Urllib3Answer(
            theirs.rest_client.pool_manager.request(
                method,
                url,
                body=body,
                headers=sent,
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=timeout,
            )
        )

    host = theirs.configuration.host.rstrip("/")
    config = Config(server=host, source="kubernetes")
    errors = (urllib3.exceptions.HTTPError, OSError)
    session = _Session(open_, errors, _translate_urllib3, clock, host)

    async def settings() -> Any:
        # Its hook may run a plugin, or send a request.
        return await asyncio.to_thread(theirs.configuration.auth_settings)

    return config, session, GeneratedAuthentication(settings)


def _translate_urllib3(error: Exception, where: str) -> Exception:
    name = type(error).__name__
    if name == "ProtocolError" and "InvalidChunkLength" in str(error):
        name = "InvalidChunkLength"
    if name in {"DecodeError", "InvalidHeader", "InvalidChunkLength"}:
        return FrameError(f"{where}: the response is not HTTP ({name})")
    if name == "ProtocolError":
        return DisconnectedError(f"{where}: the connection broke")
    return translated(error, where)


def _adapt_lightkube(theirs: Any, clock: Clock) -> tuple[Config, Connections, Authenticator]:
    session = theirs._client._client  # noqa: SLF001 - there is no public way

    def open_(method: str, url: str, headers: list[tuple[str, str]], body: bytes | None) -> _Answer:
        request = session.build_request(method, url, headers=headers, content=body, timeout=None)
        return _HttpxAnswer(session.send(request, stream=True, follow_redirects=False))

    server = theirs.config.cluster.server.rstrip("/")
    config = Config(server=server, namespace=theirs.namespace or "default", source="lightkube")
    connections = _Session(open_, errors_of(session), translated, clock, server)
    return config, connections, SessionAuthentication()
