"""An API server with scripted responses."""

import json
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from listwatch.testing.replay_server import Capture, ReplayServer


class ScriptedServer:
    """Responds by path: `answers["/api"] = {...}`; any other path gets a 404.

    An answer is a JSON value, bytes of a complete response (see `respond`), or a callable that
    takes the request's bytes and returns one of these. A path with its query takes precedence over
    the path alone. A response with the header `Connection: close` ends its connection. For one
    event loop: `async with ScriptedServer() as server`.
    """

    def __init__(self, *, ssl: SSLContext | None = None) -> None:
        self.answers: dict[str, Any] = {}
        self._replay = ReplayServer(choose=self._choose, ssl=ssl)

    async def __aenter__(self) -> Self:
        await self._replay.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._replay.__aexit__(kind, error, traceback)

    def _choose(self, request: bytes) -> Capture | None:
        target = request.split(b" ", 2)[1].decode()
        path = target.partition("?")[0]
        answer = self.answers.get(target, self.answers.get(path))
        if callable(answer):
            answer = answer(request)
        if answer is None:
            answer = respond(b"404 page not found", code=404, type_="text/plain")
        if not isinstance(answer, bytes):
            answer = respond(answer)
        end = "closed" if b"\r\nconnection: close\r\n" in answer.lower() else "open"
        return Capture(name=target, response=answer, end=end)

    @property
    def url(self) -> str:
        """The URL, "http://127.0.0.1:PORT"."""
        return self._replay.url

    @property
    def requests(self) -> list[bytes]:
        """The requests so far, headers and bodies."""
        return self._replay.requests

    @property
    def connections(self) -> int:
        """Number of connections opened."""
        return self._replay.connections

    @property
    def targets(self) -> list[str]:
        """The methods and targets of the requests."""
        return [b" ".join(r.split(b" ", 2)[:2]).decode() for r in self._replay.requests]

    def header(self, name: str, number: int = -1) -> str | None:
        """Return a header of one of the requests, None if it was not sent."""
        for line in self._replay.requests[number].split(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
            key, _, value = line.decode().partition(": ")
            if key.lower() == name.lower():
                return value
        return None

    def body(self, number: int = -1) -> Any:
        """Return the decoded body of one of the requests."""
        return json.loads(self._replay.requests[number].split(b"\r\n\r\n", 1)[1])


def respond(
    body: object, *, code: int = 200, type_: str = "application/json", more: str = ""
) -> bytes:
    """Return a complete response; `more` has header lines, each with its line end."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {code} Word\r\nContent-Type: {type_}\r\n{more}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
