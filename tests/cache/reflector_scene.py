"""A reflector between a faulty source and a store, for tests."""

import asyncio
import random
from typing import Any, Self

from listwatch.cache.list_watch import (
    ListOptions,
    WatchOptions,
)
from listwatch.cache.reflector import Reflector
from listwatch.cache.store import Store
from listwatch.clock import FakeClock
from listwatch.errors import (
    DisconnectedError,
)
from listwatch.testing.fake_controller_source import (
    FakeControllerSource,
    pod,
)

REFUSED = DisconnectedError("nobody listens", refused=True)


class Scene:
    """A reflector between a source and a store, with a readable log of its requests."""

    def __init__(
        self,
        *names: str,
        store: Any = None,
        bookmark_seconds: float | None = 60.0,
        **options: Any,
    ) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock, bookmark_seconds=bookmark_seconds)
        for name in names:
            self.source.add(pod(name))
        self.store = store if store is not None else Store()
        self.failures: list[object] = []
        options.setdefault("on_error", self.failures.append)
        options.setdefault("rng", random.Random(1))
        self.reflector = Reflector(self.source, self.store, clock=self.clock, **options)
        self._told = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self.reflector.run())
        await self.clock.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert self.source.open_watches == 0

    def asked(self) -> list[str]:
        """Return the requests since the last call."""
        new, self._told = self.source.requests[self._told :], len(self.source.requests)
        return [in_words(request.options) for request in new]

    def same(self) -> bool:
        return {obj.key: obj for obj in self.store.list()} == self.source.objects


def in_words(options: ListOptions | WatchOptions) -> str:
    if isinstance(options, ListOptions):
        more = " continued" if options.continue_token else ""
        return f"list limit={options.limit} rv={options.resource_version!r}{more}"
    if options.send_initial_events:
        match = options.resource_version_match
        return f"watch-list rv={options.resource_version!r} match={match}"
    return f"watch rv={options.resource_version!r}"
