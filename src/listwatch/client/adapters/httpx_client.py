"""The session of a `lightkube.AsyncClient` or a kr8s API object."""

import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from multidict import CIMultiDict

from listwatch.client.adapters.session import Session, SessionAuthentication
from listwatch.client.auth import Authenticator, Credentials
from listwatch.client.config import Config
from listwatch.client.connections import Connections, Response
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError, FrameError, unwrap


class _Source(SessionAuthentication):
    """The owner of the session, who may replace it at any time."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self._is_kr8s = type(theirs).__module__.partition(".")[0] == "kr8s"

    async def session(self) -> Any:
        if not self._is_kr8s:
            return self._theirs._client._client  # noqa: SLF001 - there is no public way
        if self._theirs._session is None or self._theirs._session.is_closed:  # noqa: SLF001 - as above
            await self._theirs._create_session()  # noqa: SLF001 - as above
        return self._theirs._session  # noqa: SLF001 - as above

    def extensions(self) -> dict[str, str]:
        name = self._theirs.auth.tls_server_name if self._is_kr8s else None
        return {"sni_hostname": name} if name else {}

    async def renew(self, refused: Credentials) -> bool:
        if not self._is_kr8s:
            return await super().renew(refused)
        await self._theirs.auth.reauthenticate()
        await self._theirs._create_session()  # noqa: SLF001 - as above
        return True


class _Response:
    def __init__(
        self, response: Any, session: "_Session", errors: tuple[type[Exception], ...]
    ) -> None:
        self.status: int = response.status_code
        self.reason: str = response.reason_phrase
        self.headers = CIMultiDict(response.headers.multi_items())
        self._pieces = response.aiter_bytes()
        self._session = session
        self._errors = errors

    async def read_pieces(self) -> list[bytes]:
        return await self._session.translated(self._next(), self._errors)

    async def _next(self) -> list[bytes]:
        async for piece in self._pieces:
            if piece:
                return [piece]
        return []


class _Session(Session):
    def __init__(self, source: _Source, clock: Clock, where: str) -> None:
        super().__init__(clock, where, translated)
        self._source = source

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AsyncIterator[Response]:
        session = await self._source.session()
        errors = errors_of(session)
        request = session.build_request(
            method,
            url,
            headers=headers,
            content=body,
            timeout=None,
            extensions=self._source.extensions(),
        )
        sending = session.send(request, stream=True, follow_redirects=False)
        response = await self.head(sending, errors)
        try:
            yield _Response(response, self, errors)
        finally:
            await response.aclose()


def adapt(theirs: Any, clock: Clock) -> tuple[Config, Connections, Authenticator]:
    """Return the parts that use the client's session.

    Raises:
        TypeError: the API object of kr8s's synchronous interface, whose session belongs to its own
            thread.
    """
    module = type(theirs).__module__.partition(".")[0]
    if module == "kr8s":
        if not theirs._asyncio:  # noqa: SLF001 - there is no public way
            raise TypeError("pass kr8s' asynchronous API object: await kr8s.asyncio.api()")
        server, namespace = theirs.auth.server, theirs.auth.namespace
    else:
        server, namespace = theirs.config.cluster.server, theirs.namespace
    config = Config(server=server.rstrip("/"), namespace=namespace or "default", source=module)
    source = _Source(theirs)
    return config, _Session(source, clock, config.server), source


def errors_of(session: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions of a session of httpx, or of its successor httpx2."""
    httpx = import_module(type(session).__module__.partition(".")[0])
    return (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)


def translated(error: Exception, where: str) -> Exception:
    """Return the meaning of such an error."""
    name = type(error).__name__
    if name in {"LocalProtocolError", "RemoteProtocolError", "DecodingError"}:
        if "peer closed" in str(error) or "disconnected" in str(error):
            return DisconnectedError(f"{where}: the connection broke")
        # Its text quotes what was sent or received, including credentials.
        return FrameError(f"{where}: the response is not HTTP ({name})")
    chain = list(_chain(error))
    words = next((str(e) for e in reversed(chain) if str(e)), name).split("\n")[0][:300]
    refused = any(isinstance(e, ConnectionRefusedError) for e in chain)
    return DisconnectedError(
        f"{where}: {os.strerror(errno.ECONNREFUSED) if refused else words}", refused=refused
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        error = unwrap(error, first=True)
        yield error
        error = error.__cause__ or error.__context__
