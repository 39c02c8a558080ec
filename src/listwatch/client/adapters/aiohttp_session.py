"""The session of a `kubernetes_asyncio` or `kubernetes.aio` API client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import aiohttp
import yarl

from listwatch.client.adapters.session import GeneratedAuthentication, Session
from listwatch.client.aiohttp_requests import AiohttpResponse, close_at_once, translated
from listwatch.client.auth import Authenticator
from listwatch.client.config import Config
from listwatch.client.connections import Connections, Response
from listwatch.clock import Clock


class _Session(Session):
    def __init__(self, api_client: Any, clock: Clock, where: str) -> None:
        super().__init__(clock, where, translated)
        self._client = api_client

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AsyncIterator[Response]:
        rest = self._client.rest_client
        if rest.pool_manager is None and hasattr(rest, "_create_pool_manager"):
            rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001 - created on first use
        sending = rest.pool_manager.request(
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
        response = await self.head(sending, (aiohttp.ClientError, OSError))
        try:
            yield AiohttpResponse(response, self._where)
        finally:
            close_at_once(response)


def adapt(api_client: Any, clock: Clock) -> tuple[Config, Connections, Authenticator]:
    """Return the parts that use an API client's session."""
    host = api_client.configuration.host.rstrip("/")
    config = Config(server=host, source=type(api_client).__module__)

    async def settings() -> Any:
        found = api_client.configuration.auth_settings()
        return await found if isawaitable(found) else found

    return config, _Session(api_client, clock, host), GeneratedAuthentication(settings)


def _merged(theirs: dict[str, str], ours: list[tuple[str, str]]) -> list[tuple[str, str]]:
    names = {name.lower() for name, _ in ours if name != "User-Agent"}
    kept = [(name, value) for name, value in theirs.items() if name.lower() not in names]
    has_agent = any(name.lower() == "user-agent" for name, _ in kept)
    return kept + [pair for pair in ours if not (has_agent and pair[0] == "User-Agent")]
