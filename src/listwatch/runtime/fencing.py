"""A client that writes only while this process leads."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from listwatch.clock import Clock
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.config import Config
    from listwatch.client.http import HTTP, Answer

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


def fenced(
    client: "Client", guard: Callable[[], LeadershipGuard | None], clock: Clock | None = None
) -> "Client":
    """Return a client that shares everything with this one, and checks the guard before each write.

    Without leadership a write raises `LeadershipLostError` before anything is sent. A write's time
    limit is the remaining leadership: if it is not answered by then, it raises that error too, and
    may have been carried out.

    Args:
        client: sends the requests.
        guard: returns the current guard; None if this process does not lead.
        clock: for the time limit.
    """
    # HTTP has no protocol class; a client uses two of its methods.
    http: Any = _FencedHTTP(client.http, guard, clock or Clock())
    return client.through(http)


class _FencedHTTP:
    def __init__(
        self, http: "HTTP", guard: Callable[[], LeadershipGuard | None], clock: Clock
    ) -> None:
        self._http = http
        self._guard = guard
        self._clock = clock
        self.stream = http.stream

    @property
    def config(self) -> "Config":  # asked for by each request, and faster than by name
        return self._http.config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    async def request(self, method: str, path: str, *args: Any, **options: Any) -> "Answer":
        if method in _READS:
            return await self._http.request(method, path, *args, **options)
        guard = self._guard()
        if guard is None:
            raise LeadershipLostError(f"{method} {path} refused: this process is not the leader")
        guard.check()
        try:
            async with self._clock.timeout(guard.remaining()) as limit:
                return await self._http.request(method, path, *args, **options)
        except TimeoutError:
            if not limit.expired:
                raise
            raise LeadershipLostError(
                f"{method} {path} got no response before the leadership ended; "
                "the server may have executed it"
            ) from None
