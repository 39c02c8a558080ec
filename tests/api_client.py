"""A bare client for the tests of the embedded API server: paths in, JSON out."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp

from listwatch.apiserver import EmbeddedAPIServer

CORE = "/api/v1/namespaces/default"


class Client:
    """Speaks to one server; an asynchronous context manager."""

    def __init__(self, server: EmbeddedAPIServer) -> None:
        self.server = server
        #: The base URL of requests; "" means the server's.
        self.url = ""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=45))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        expect: int | None = None,
    ) -> Any:
        """Send a request, check the status if one is expected, and return the decoded body."""
        assert self._session is not None
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        async with self._session.request(
            method,
            (self.url or self.server.url) + path,
            data=data and io.BytesIO(data),
            headers=given,
        ) as response:
            text = await response.text()
            if expect is not None:
                assert response.status == expect, text
            return json.loads(text) if text[:1] in "{[" else text

    async def create(self, path: str, name: str, **fields: Any) -> Any:
        """POST an object and return it."""
        metadata = {"name": name, **fields.pop("metadata", {})}
        return await self.call("POST", path, {"metadata": metadata, **fields}, expect=201)

    async def merge(self, path: str, patch: Any) -> Any:
        """Merge-patch an object and return it."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return await self.call("PATCH", path, patch, headers=headers, expect=200)

    @asynccontextmanager
    async def watch(self, path: str, query: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a watch."""
        assert self._session is not None
        async with self._session.get(
            f"{self.url or self.server.url}{path}?watch=1&{query}"
        ) as response:
            assert response.status == 200
            yield response


async def events(response: aiohttp.ClientResponse, count: int, seconds: float = 45.0) -> list[Any]:
    """Return the next events of a watch."""
    found: list[Any] = []
    async with asyncio.timeout(seconds):
        for _ in range(count):
            line = await response.content.readline()
            assert line, f"the stream ended after {found}"
            found.append(json.loads(line))
    return found


def names(answer: Any) -> list[str]:
    """Return the names of a list's items."""
    return [item["metadata"]["name"] for item in answer["items"]]


def is_gone(answer: Any) -> bool:
    """Return True for a 404 Status."""
    return bool(answer.get("kind") == "Status" and answer.get("code") == 404)


PODS = f"{CORE}/pods"
MAPS = f"{CORE}/configmaps"
