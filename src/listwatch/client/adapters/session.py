"""What all adapters have in common: connections that stay theirs, and their authentication."""

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
    """Another client's connections, as `Connections`: they serve watches too, and are left open.

    Args:
        clock: for the time that an answer's head may take.
        where: the server, for messages.
        translate: returns what an error of theirs means; the second argument is `where`.
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
        """Send a request, as `Connections.request`."""

    async def head(self, sending: Awaitable[T], errors: tuple[type[Exception], ...]) -> T:
        """Return what sending a request gives once the answer's head has come.

        Raises:
            TimeoutError: it has not come in time.
            ListWatchError: what one of their errors means.
        """
        try:
            async with self._clock.timeout(HEADERS_TIMEOUT):
                return await self.translated(sending, errors)
        except TimeoutError:
            raise TimeoutError(f"{self._where} has not answered in time") from None

    async def translated(self, work: Awaitable[T], errors: tuple[type[Exception], ...]) -> T:
        """Return what the work gives; their errors become ours.

        Raises:
            ListWatchError: what one of their errors means.
        """
        try:
            return await work
        except errors as error:
            # Without its cause, which may tell the request's headers.
            raise self._translate(error, self._where) from None

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Do nothing: they keep their connections themselves."""
        yield

    def stream(
        self, url: str, headers: list[tuple[str, str]], *, watch: bool, prompt: bool
    ) -> AbstractAsyncContextManager[Response]:
        """Get what is long like anything else."""
        del watch, prompt
        return self.request("GET", url, headers, None)

    async def close(self) -> None:  # noqa: B027 - all of them do
        """Leave their session open."""


class SessionAuthentication:
    """Adds nothing, for their session adds the credentials itself, and tries again itself."""

    async def credentials(self) -> Credentials:
        """Return none."""
        return Credentials()

    async def renew(self, refused: Credentials) -> bool:
        """Return that trying again is no use."""
        del refused
        return False


class GeneratedAuthentication:
    """The Authorization header that a generated client's configuration asks for.

    Args:
        settings: returns what its `auth_settings()` does.
    """

    def __init__(self, settings: Callable[[], Awaitable[Any]]) -> None:
        self._settings = settings

    async def credentials(self) -> Credentials:
        """Return the header of this moment.

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
        """Return whether there is another by now."""
        return await self.credentials() != refused
