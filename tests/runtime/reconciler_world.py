"""In-memory resources for tests of reconcilers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from listwatch.client.discovery import Resource
from listwatch.clock import FakeClock
from listwatch.runtime.caches import Caches
from listwatch.runtime.reconciler import Reconciler
from listwatch.runtime.results import Result
from listwatch.shard_range import ShardRange
from listwatch.testing.fake_controller_source import FakeControllerSource


class World:
    """In-memory resources, a reconciler, and the keys of its calls."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.sources: dict[str, FakeControllerSource] = {}
        self.caches = Caches(self.clock)
        self.reconciler = Reconciler("test", self.caches, clock=self.clock, **options)
        self.shards: dict[str, ShardRange | None] = {}
        self.calls: list[str] = []
        self.outcomes: dict[str, list[Result | Exception | None]] = {}

    def source(self, resource: str) -> FakeControllerSource:
        return self.sources.setdefault(
            resource, FakeControllerSource(kind=resource.title(), clock=self.clock)
        )

    def list_watch(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        shard: ShardRange | None = None,
    ) -> Any:
        del namespace, label_selector, field_selector, metadata_only
        self.shards[resource] = shard
        return self.source(resource)

    async def find(self, word: str) -> Resource:
        return Resource(group="example.com", version="v1", plural=word, kind=word.title())

    async def reconcile(self, key: str) -> Result | None:
        self.calls.append(key)
        outcomes = self.outcomes.get(key)
        outcome = outcomes.pop(0) if outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Reconciler]:
        if self.reconciler._function is None:  # unless the test set one
            self.reconciler(self.reconcile)
        await self.reconciler.prepare(self)
        self.caches.open(self)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.caches.run()),
                group.create_task(self.reconciler.run()),
            ]
            await self.clock.advance(1)
            yield self.reconciler
            for task in tasks:
                task.cancel()


def widget(name: str, **more: Any) -> dict[str, Any]:
    meta = {"namespace": "ns", "name": name, **more.pop("meta", {})}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta, **more}


def owned(name: str, owner: str, **more: Any) -> dict[str, Any]:
    reference = {
        "apiVersion": "example.com/v1beta1",
        "kind": "Widget",
        "name": owner,
        "uid": f"u-{owner}",
        "controller": True,
    }
    return widget(name, meta={"ownerReferences": [reference | more]})
