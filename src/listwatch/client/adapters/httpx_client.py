"""The session of a `lightkube.AsyncClient` or a kr8s API object."""

import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from multidict import CIMultiDict

from listwatch.client.auth import Authenticator, Credentials
from listwatch.client.config import Config
from listwatch.client.connections import HEADERS_TIMEOUT, Connections, Response
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError, FrameError


class _Source:
    """Where the session is: it may be replaced by its owner at any time."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self._is_kr8s = type(theirs).__module__.partition(".")[0] == "kr8s"

    async def session(self) -> Any:
        if not self._is_kr8s:
            return self._theirs._client._client  # noqa: SLF001 - nothing public leads there
        if self._theirs._session is None or self._theirs._session.is_closed:  # noqa: SLF001 - as above
            await self._theirs._create_session()  # noqa: SLF001 - as above
        return self._theirs._session  # noqa: SLF001 - as above

    def extensions(self) -> dict[str, str]:
        name = self._theirs.auth.tls_server_name if self._is_kr8s else None
        return {"sni_hostname": name} if name else {}

    # The authenticator: their session adds the credentials itself.

    async def credentials(self) -> Credentials:
        return Credentials()

    async def renew(self, refused: Credentials) -> bool:
        del refused
        if not self._is_kr8s:
            return False  # lightkube has tried again itself
        await self._theirs.auth.reauthenticate()
        await self._theirs._create_session()  # noqa: SLF001 - as above
        return True


class _Response:
    def __init__(self, response: Any, errors: tuple[type[Exception], ...], where: str) -> None:
        self.status: int = response.status_code
        self.reason: str = response.reason_phrase
        self.headers = CIMultiDict(response.headers.multi_items())
        self._pieces = response.aiter_bytes()
        self._errors = errors
        self._where = where

    async def read_pieces(self) -> list[bytes]:
        try:
            async for piece in self._pieces:
                if piece:
                    return [piece]
        except self._errors as error:
            raise translated(error, self._where) from None
        return []


class _Connections:
    def __init__(self, source: _Source, clock: Clock, where: str) -> None:
        self._source = source
        self._clock = clock
        self._where = where

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def stream(
        self, url: str, headers: list[tuple[str, str]], *, watch: bool
    ) -> AsyncIterator[Response]:
        del watch
        async with self.request("GET", url, headers, None) as response:
            yield response

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
        try:
            async with self._clock.timeout(HEADERS_TIMEOUT):
                try:
                    response = await session.send(request, stream=True, follow_redirects=False)
                except errors as error:
                    raise translated(error, self._where) from None
        except TimeoutError:
            raise TimeoutError(f"{self._where} has not answered in time") from None
        try:
            yield _Response(response, errors, self._where)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Leave their session open."""


def adapt(theirs: Any, clock: Clock) -> tuple[Config, Connections, Authenticator]:
    """Return how to use the session of theirs.

    Raises:
        TypeError: the API object of kr8s's synchronous interface, whose session lives on a
            thread of its own.
    """
    module = type(theirs).__module__.partition(".")[0]
    if module == "kr8s":
        if not theirs._asyncio:  # noqa: SLF001 - nothing public tells
            raise TypeError("give the API object of kr8s.asyncio: await kr8s.asyncio.api()")
        server, namespace = theirs.auth.server, theirs.auth.namespace
    else:
        server, namespace = theirs.config.cluster.server, theirs.namespace
    config = Config(server=server.rstrip("/"), namespace=namespace or "default", source=module)
    source = _Source(theirs)
    return config, _Connections(source, clock, config.server), source


def errors_of(session: Any) -> tuple[type[Exception], ...]:
    """Return what a session of httpx, or of its successor httpx2, raises."""
    httpx = import_module(type(session).__module__.partition(".")[0])
    return (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)


def translated(error: Exception, where: str) -> Exception:
    """Return what such an error means."""
    name = type(error).__name__
    if name in {"LocalProtocolError", "RemoteProtocolError", "DecodingError"}:
        if "peer closed" in str(error) or "disconnected" in str(error):
            return DisconnectedError(f"{where}: the connection broke")
        # Its words quote what was sent or received, credentials included.
        return FrameError(f"{where}: the answer is no HTTP ({name})")
    chain = list(_chain(error))
    words = next((str(e) for e in reversed(chain) if str(e)), name).split("\n")[0][:300]
    refused = any(isinstance(e, ConnectionRefusedError) for e in chain)
    return DisconnectedError(
        f"{where}: {os.strerror(errno.ECONNREFUSED) if refused else words}", refused=refused
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            error = error.__cause__ or error.__context__
