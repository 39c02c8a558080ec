"""Watching a resource that can only be listed: it is listed at an interval and compared."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    MODIFIED,
    Decoder,
    ListerWatcher,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.clock import Clock
from listwatch.objects import Object

# A reflector gives up on a watch that is silent for longer.
_SILENT_SECONDS = 30.0


class PollingListWatch:
    """Makes a watch of repeated lists.

    States between two lists are not seen. Objects are compared by their bytes, since objects that
    can't be watched may have no versions; lists and events are numbered instead. For one event
    loop.

    Args:
        source: lists the resource.
        seconds: time from one list to the next.
        clock: the time.
    """

    def __init__(self, source: ListerWatcher, seconds: float, clock: Clock) -> None:
        self._source = source
        self._seconds = seconds
        self._clock = clock
        self._number = 0
        self._known: dict[str, Object] = {}

    async def list(self, options: ListOptions) -> ObjectList:
        """Return all objects; the version is the number of this list."""
        whole = await self._whole(options)
        self._learn(whole)
        return whole

    def _learn(self, whole: ObjectList) -> None:
        """Know the listed objects. Known ones that can't be read now are not gone."""
        before, self._known = self._known, {obj.key: obj for obj in whole.items}
        unread = {error.key for error in whole.undecodable}
        for key, obj in before.items():
            if key in unread or None in unread:
                self._known.setdefault(key, obj)

    async def _whole(self, options: ListOptions) -> ObjectList:
        items: list[Object] = []
        undecodable = []
        options = msgspec.structs.replace(options, resource_version="", resource_version_match="")
        while True:
            page = await self._source.list(options)
            items += page.items
            undecodable += page.undecodable
            if not page.continue_token:
                break
            options = msgspec.structs.replace(options, continue_token=page.continue_token)
        self._number += 1
        version = str(self._number)
        return ObjectList(items=items, resource_version=version, undecodable=undecodable)

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        """Open a watch that lists; a failing list ends it with the list's error."""
        stream = self._events(options)
        try:
            yield stream
        finally:
            await stream.aclose()

    async def _events(self, options: WatchOptions) -> AsyncGenerator[Sequence[WatchEvent], None]:
        if options.send_initial_events:
            yield await self._initial(options.decoder)
        while True:
            left = self._seconds
            while left > 0:
                await self._clock.sleep(min(left, _SILENT_SECONDS))
                left -= _SILENT_SECONDS
                if left > 0:
                    yield [self._bookmark()]
            yield await self._changes(options.decoder)

    async def _initial(self, decoder: Decoder) -> Sequence[WatchEvent]:
        whole = await self.list(ListOptions(decoder=decoder))
        events = [WatchEvent(ADDED, obj) for obj in whole.items]
        events += [WatchEvent(ADDED, error=error) for error in whole.undecodable]
        end = WatchEvent(BOOKMARK, resource_version=str(self._number), initial_events_end=True)
        return [*events, end]

    async def _changes(self, decoder: Decoder) -> Sequence[WatchEvent]:
        whole = await self._whole(ListOptions(decoder=decoder))
        before = self._known
        self._learn(whole)
        events = [WatchEvent(MODIFIED, error=error) for error in whole.undecodable]
        for key, obj in self._known.items():
            old = before.get(key)
            if old is None:
                events.append(self._event(ADDED, obj))
            elif old.raw != obj.raw:
                events.append(self._event(MODIFIED, obj))
        events += [
            self._event(DELETED, old) for key, old in before.items() if key not in self._known
        ]
        return events or [self._bookmark()]

    def _event(self, kind: str, obj: Object) -> WatchEvent:
        self._number += 1
        return WatchEvent(kind, obj, str(self._number))

    def _bookmark(self) -> WatchEvent:
        return WatchEvent(BOOKMARK, resource_version=str(self._number))
