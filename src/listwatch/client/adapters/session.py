"""What all adapters share: connections that stay theirs, and their authentication."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from listwatch.client.auth import Credentials
from listwatch.client.connections import HEADERS_TIMEOUT, Response
from listwatch.clock import Clock
from listwatch.errors import ConfigError

T = TypeVar("T")


class Session(ABC):
    """Another client's connections as `Connections`: they serve watches too, and stay open.

    Args:
        clock: for the time limit of a response's headers.
        where: the server, for messages.
        translate: returns the meaning of an error of theirs; the second argument is `where`.
    """

    def __init__(
        self, clock: Clock, where: str, translate: Callable[[Exception, str], Exception]
    ) -> None:
        self._clock = clock
        self._where = where
        self._translate = translate

    @abstractmethod
    def request(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request, like `Connections.request`."""

    async def head(self, sending: Awaitable[T], errors: tuple[type[Exception], ...]) -> T:
        """Return the result of sending a request once the response headers have arrived.

        Raises:
            TimeoutError: they did not arrive in time.
            ListWatchError: a translated error of theirs.
        """
        try:
            async with self._clock.timeout(HEADERS_TIMEOUT):
                return await self.translated(sending, errors)
        except TimeoutError:
            raise TimeoutError(f"{self._where} did not respond in time") from None

    async def translated(self, work: Awaitable[T], errors: tuple[type[Exception], ...]) -> T:
        """Return the result of the work; translate their errors to ours.

        Raises:
            ListWatchError: a translated error of theirs.
        """
        try:
            return await work
        except errors as error:
            # Without its cause, which may contain the request's headers.
            raise self._translate(error, self._where) from None

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Do nothing: they keep their connections open themselves."""
        yield

    def stream(
        self, url: str, headers: list[tuple[str, str]], *, watch: bool, prompt: bool
    ) -> AbstractAsyncContextManager[Response]:
        """Get a long response, like any other."""
        del watch, prompt
        return self.request("GET", url, headers, None)

    async def close(self) -> None:  # noqa: B027 - all of them do
        """Leave their session open."""


class SessionAuthentication:
    """Adds nothing: their session adds the credentials and retries itself."""

    async def credentials(self) -> Credentials:
        """Return none."""
        return Credentials()

    async def renew(self, refused: Credentials) -> bool:
        """Return False: trying again is useless."""
        del refused
        return False


class GeneratedAuthentication:
    """The Authorization header of a generated client's configuration.

    Args:
        settings: returns the result of its `auth_settings()`.
    """

    def __init__(self, settings: Callable[[], Awaitable[Any]]) -> None:
        self._settings = settings

    async def credentials(self) -> Credentials:
        """Return the current header.

        Raises:
            ConfigError: another kind of authentication.
        """
        for setting in (await self._settings()).values():
            if not setting["value"]:
                continue
            if setting["in"] != "header" or setting["key"].lower() != "authorization":
                raise ConfigError(f"an authentication by {setting['in']} {setting['key']!r}")
            return Credentials(str(setting["value"]))
        return Credentials()

    async def renew(self, refused: Credentials) -> bool:
        """Return whether the header has changed."""
        return await self.credentials() != refused
