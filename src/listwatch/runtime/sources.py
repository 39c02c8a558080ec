"""The sources of a reconciler's keys."""

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from listwatch.backoff import STREAM
from listwatch.cache.deltas import Item
from listwatch.cache.handlers import Added, Change, Deleted, Updated, last_state
from listwatch.clock import Clock
from listwatch.objects import Object, ObjectKey, OwnerReference
from listwatch.printable import printable
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.reconcile_record import Trigger
from listwatch.workqueue.priority_queue import LOW_PRIORITY

#: Takes a key, its priority, and what woke it.
Enqueue: TypeAlias = Callable[[str, int, Trigger], object]
_TIMER: Final = Trigger("Timer")
_STREAM: Final = Trigger("Stream")
#: Returns the keys to reconcile because of an object.
MapFunc: TypeAlias = Callable[[Object], Iterable[str]]


class KeySource:
    """Turns changes of a resource into keys in a queue.

    The objects of the first list, and updates without a change, get low priority: real changes go
    first. Both states of an update give keys, so an object that moves from one owner to another
    wakes both.

    Args:
        resource: the resource, for the triggers.
        enqueue: receives the keys.
        map_func: returns the keys of an object; None for its own.
        predicates: all must accept a change.
        gone: called with the key of each deleted object, whatever the predicates say.
    """

    def __init__(
        self,
        resource: str,
        enqueue: Enqueue,
        map_func: MapFunc | None,
        predicates: Sequence[Predicate],
        gone: Callable[[str], object] | None = None,
    ) -> None:
        self._resource = resource
        self._enqueue = enqueue
        self._map = map_func
        self._predicates = predicates
        self._gone = gone

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: FBT001 - required by the protocol
        """Queue the keys of a new object."""
        if self._passes(Added(obj, is_in_initial_list)):
            if is_in_initial_list:
                self._put([obj], LOW_PRIORITY, "Listed")
            else:
                self._put([obj], 0, "Added")

    def on_update(self, old: Object, new: Object) -> None:
        """Queue the keys of both states."""
        if self._passes(Updated(old, new, is_resync=old is new)):
            if old.resource_version == new.resource_version:
                self._put([new] if old is new else [old, new], LOW_PRIORITY, "Resync")
            else:
                self._put([old, new], 0, "Updated")

    def on_delete(self, obj: Item) -> None:
        """Queue the keys of an object's last state."""
        if self._gone is not None:
            self._gone(obj.key)
        if not self._passes(Deleted(obj)):
            return
        if self._map is None:
            last = last_state(obj)
            version = "" if last is None else last.resource_version
            self._enqueue(obj.key, 0, Trigger("Deleted", self._resource, obj.key, version))
        elif (last := last_state(obj)) is not None:
            self._put([last], 0, "Deleted")

    def _passes(self, change: Change) -> bool:
        return all(predicate(change) for predicate in self._predicates)

    def _put(self, states: Sequence[Object], priority: int, change: str) -> None:
        newest = states[-1]
        own = newest.key
        trigger = Trigger(change, self._resource, own, newest.resource_version)
        if self._map is None:
            self._enqueue(own, priority, trigger)
            return
        for key in {key for obj in states for key in _keys(self._map(obj))}:
            self._enqueue(key, priority, trigger)


class Feeds:
    """Timers and streams that put keys into a queue, in a task group once there is one.

    Args:
        put: receives the keys, their priority and what woke them.
        report: called with exceptions of timers and streams, and a description.
        clock: the time.
    """

    def __init__(
        self, put: Enqueue, report: Callable[[str, Exception], None], clock: Clock
    ) -> None:
        self._put = put
        self._report = report
        self._clock = clock
        self._feeds: list[tuple[str, Callable[[], Coroutine[object, object, None]]]] = []
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[asyncio.Task[None], str] = {}

    @property
    def are_running(self) -> bool:
        """Whether new timers and streams start at once."""
        return self._group is not None

    def every(self, name: str, seconds: float, keys: Callable[[], Iterable[str]]) -> None:
        """Put these keys at this interval, with low priority."""
        self.add(name, partial(self._tick, seconds, keys))

    def follow(self, name: str, stream: Callable[[], AsyncIterable[str]]) -> None:
        """Put the keys that a stream yields."""
        self.add(name, partial(self._follow, stream))

    def add(self, name: str, feed: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a coroutine function as long as the sources run."""
        self._feeds.append((name, feed))
        if self._group is not None:
            _ = self.spawn(feed(), name)

    async def remove(self, name: str) -> bool:
        """End all timers and streams of a name; return whether there were any."""
        kept = [(each, feed) for each, feed in self._feeds if each != name]
        if len(kept) == len(self._feeds):
            return False
        self._feeds = kept
        ending = {task for task, each in self._tasks.items() if each == name}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        return True

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Start them in this group."""
        self._group = group
        for name, feed in self._feeds:
            _ = self.spawn(feed(), name)

    def end(self) -> None:
        """Cancel them."""
        self._group = None
        for task in self._tasks:
            task.cancel()

    def spawn(self, work: Coroutine[object, object, None], name: str = "") -> asyncio.Task[None]:
        """Run something alongside the sources."""
        assert self._group is not None  # noqa: S101 - callers check first
        try:
            task = self._group.create_task(work)
        except RuntimeError:  # the group is ending
            work.close()
            raise
        self._tasks[task] = name
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        return task

    async def _tick(self, seconds: float, keys: Callable[[], Iterable[str]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                for key in keys():
                    self._put(key, LOW_PRIORITY, _TIMER)
            except Exception as error:  # noqa: BLE001 - reported; the next try may succeed
                self._report(printable(f"the keys of a timer: {error}"), error)

    async def _follow(self, stream: Callable[[], AsyncIterable[str]]) -> None:
        failures = 0
        while True:
            try:
                async for key in stream():
                    failures = 0
                    self._put(key, 0, _STREAM)
            except Exception as error:  # noqa: BLE001 - reported, and retried below
                self._report(printable(f"a stream of events failed: {error}"), error)
            await self._clock.sleep(STREAM.delay(failures))
            failures += 1


def _keys(keys: Iterable[str]) -> Iterable[str]:
    if isinstance(keys, str):
        raise TypeError(f"a map function must return a list of keys, not one string: {keys!r}")
    return keys


def owner_keys(
    group: str, kind: str, *, namespaced: bool, controllers_only: bool = True
) -> MapFunc:
    """Return a function that returns the keys of an object's owners of one kind.

    Args:
        group: the owners' API group; the version does not matter.
        kind: the owners' kind.
        namespaced: the owners are namespaced, so they are in the namespace of their objects.
        controllers_only: only the owner marked as the controller.
    """

    def matches(owner: OwnerReference) -> bool:
        owners_group, slash, _ = owner.api_version.rpartition("/")
        return (
            owner.kind == kind
            and (owners_group if slash else "") == group
            and (owner.controller is True or not controllers_only)
        )

    def map_func(obj: Object) -> Iterable[str]:
        return [
            str(ObjectKey(obj.namespace if namespaced else "", owner.name))
            for owner in obj.meta.owner_references
            if matches(owner)
        ]

    return map_func
