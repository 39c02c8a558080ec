"""The session of a `kubernetes_asyncio` or `kubernetes.aio` API client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import aiohttp
import yarl

from listwatch.client.adapters.threaded import authorization_of
from listwatch.client.aiohttp_requests import AiohttpResponse, close_at_once, translated
from listwatch.client.auth import Authenticator, Credentials
from listwatch.client.config import Config
from listwatch.client.connections import HEADERS_TIMEOUT, Connections, Response
from listwatch.clock import Clock


class _Connections:
    def __init__(self, api_client: Any, clock: Clock, where: str) -> None:
        self._client = api_client
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
        rest = self._client.rest_client
        if rest.pool_manager is None and hasattr(rest, "_create_pool_manager"):
            rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001 - made when first used
        try:
            async with self._clock.timeout(HEADERS_TIMEOUT):
                try:
                    response = await rest.pool_manager.request(
                        method,
                        yarl.URL(url, encoded=True),
                        data=body,
                        headers=_merged(self._client.default_headers, headers),
                        allow_redirects=False,
                        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                        server_hostname=self._client.configuration.tls_server_name or None,
                        proxy=rest.proxy or None,
                        proxy_headers=rest.proxy_headers or None,
                    )
                except (aiohttp.ClientError, OSError) as error:
                    raise translated(error, self._where) from None
        except TimeoutError:
            raise TimeoutError(f"{self._where} has not answered in time") from None
        try:
            yield AiohttpResponse(response, self._where)
        finally:
            close_at_once(response)

    async def close(self) -> None:
        """Leave their session open."""


class _Authenticator:
    def __init__(self, api_client: Any) -> None:
        self._configuration = api_client.configuration

    async def credentials(self) -> Credentials:
        settings = self._configuration.auth_settings()
        if isawaitable(settings):
            settings = await settings
        return Credentials(authorization_of(settings))

    async def renew(self, refused: Credentials) -> bool:
        return await self.credentials() != refused


def adapt(api_client: Any, clock: Clock) -> tuple[Config, Connections, Authenticator]:
    """Return how to use an API client's session."""
    host = api_client.configuration.host.rstrip("/")
    config = Config(server=host, source=type(api_client).__module__)
    return config, _Connections(api_client, clock, host), _Authenticator(api_client)


def _merged(theirs: dict[str, str], ours: list[tuple[str, str]]) -> list[tuple[str, str]]:
    names = {name.lower() for name, _ in ours if name != "User-Agent"}
    kept = [(name, value) for name, value in theirs.items() if name.lower() not in names]
    has_agent = any(name.lower() == "user-agent" for name, _ in kept)
    return kept + [pair for pair in ours if not (has_agent and pair[0] == "User-Agent")]
