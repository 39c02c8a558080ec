"""A shared informer with an in-memory source, and a handler that records changes."""

import asyncio
from collections.abc import Mapping
from typing import Any

from listwatch.cache.deltas import Item
from listwatch.cache.failures import Failure
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.objects import DeletedFinalStateUnknown, Object
from listwatch.testing.fake_controller_source import FakeControllerSource


class Recorder:
    """Records each change as text."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:
        self.told.append(f"add {obj.key} {obj.resource_version}" + "!" * is_in_initial_list)

    def on_update(self, old: Object, new: Object) -> None:
        self.told.append(f"update {new.key} {old.resource_version}->{new.resource_version}")

    def on_delete(self, obj: Item) -> None:
        kind = "tombstone" if isinstance(obj, DeletedFinalStateUnknown) else "delete"
        self.told.append(f"{kind} {obj.key}")

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told


class Scene:
    """A source and a shared informer, on a fake clock."""

    def __init__(self, *objects: Mapping[str, Any], **options: Any) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock)
        for obj in objects:
            self.source.add(obj)
        self.failures: list[Failure] = []
        self.failed = asyncio.Event()
        self.informer = SharedInformer(
            self.source, clock=self.clock, on_error=self.on_error, **options
        )

    def on_error(self, failure: Failure) -> None:
        assert isinstance(failure, Failure)
        self.failures.append(failure)
        self.failed.set()

    async def relist(self) -> None:
        self.source.modify_drop_watch(next(iter(self.source.objects.values())))
        self.source.reset_watch()
        await self.clock.advance(5)
