"""Compares a cache with the server periodically."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from listwatch.cache.failures import Failure, OnError
from listwatch.cache.list_watch import Decoder, ListerWatcher
from listwatch.cache.pages import pages
from listwatch.cache.reflector_machine import is_older
from listwatch.cache.store import Store
from listwatch.clock import Clock, stray
from listwatch.errors import ListWatchError

#: How long after a list the cache may take to catch up.
_CATCH_UP_SECONDS = 60.0
_LOOK_SECONDS = 1.0
#: Number of keys that an error names.
_NAMED = 5


class AuditError(ListWatchError):
    """Cache and server differ, and no change in flight explains it.

    Attributes:
        missing: keys that the server has and the cache lacks.
        surplus: keys that the cache has and the server lacks.
        stale: keys whose state differs.
    """

    def __init__(self, missing: set[str], surplus: set[str], stale: set[str]) -> None:
        self.missing = missing
        self.surplus = surplus
        self.stale = stale
        parts = [
            f"{len(keys)} {word} ({', '.join(sorted(keys)[:_NAMED])}{'…' * (len(keys) > _NAMED)})"
            for word, keys in (("missing", missing), ("surplus", surplus), ("stale", stale))
            if keys
        ]
        super().__init__("the cache differs from the server: " + ", ".join(parts))


class _Seen(msgspec.Struct, frozen=True):
    missing: frozenset[str]
    surplus: frozenset[str]
    stale: frozenset[str]


class Auditor:
    """Lists a resource periodically and reports how the cache differs.

    It finds what no watch can show: a server restored from a backup whose versions have overtaken
    the cache's. A difference counts if two lists in a row show it, because changes are in flight at
    any time. For one event loop.

    Args:
        list_watch: the resource.
        store: its cache.
        period: seconds between two audits.
        decoder: creates objects from bytes; only key, uid and version are kept.
        on_error: called with differences, and with lists that fail.
        relist: called after a difference, to refill the cache.
        clock: the time.
        name: of the informer.
        page_size: objects per page of a list.

    Raises:
        ValueError: a period under a second.
    """

    def __init__(
        self,
        list_watch: ListerWatcher,
        store: Store,
        *,
        period: float,
        decoder: Decoder,
        on_error: OnError,
        relist: Callable[[], None],
        clock: Clock,
        name: str = "",
        page_size: int = 500,
    ) -> None:
        self._source = list_watch
        self._store = store
        if period < 1.0:
            raise ValueError(f"{period:g} s is too short an audit period: use 1 s or more")
        self._period = period
        self._decoder = decoder
        self._on_error = on_error
        self._relist = relist
        self._clock = clock
        self._name = name
        self._page_size = page_size

    async def run(self) -> None:
        """Audit until cancelled."""
        while True:
            await self._clock.sleep(self._period)
            try:
                await self.audit()
            except AuditError as error:
                self._report(error)
                self._relist()
            except asyncio.CancelledError as cancellation:
                self._report(stray(cancellation))
            except Exception as error:  # noqa: BLE001 - reported; the next audit tries again
                self._report(error)

    def _report(self, error: Exception) -> None:
        failure = Failure(error=error, doing="audit", name=self._name, delay=self._period)
        self._on_error(failure)

    async def audit(self) -> None:
        """List and compare; do it again if there are differences.

        Raises:
            AuditError: there are differences both times.
        """
        first = await self._compare()
        if not (first.missing or first.surplus or first.stale):
            return
        await self._clock.sleep(_LOOK_SECONDS)
        second = await self._compare()
        missing = first.missing & second.missing
        surplus = first.surplus & second.surplus
        stale = first.stale & second.stale
        if missing or surplus or stale:
            raise AuditError(set(missing), set(surplus), set(stale))

    async def _compare(self) -> _Seen:
        listed, version = await self._list()
        waited = 0.0
        while (
            is_older(self._store.last_store_sync_resource_version, version)
            and waited < _CATCH_UP_SECONDS
        ):
            await self._clock.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
        cached = {obj.key: (obj.meta.uid, obj.meta.resource_version) for obj in self._store.list()}
        # Objects newer than the list are no difference.
        cached = {key: state for key, state in cached.items() if not is_older(version, state[1])}
        held = self._store.list_keys()
        return _Seen(
            missing=frozenset(listed.keys() - set(held)),
            surplus=frozenset(cached.keys() - listed.keys()),
            stale=frozenset(
                key for key, state in listed.items() if key in cached and cached[key] != state
            ),
        )

    async def _list(self) -> tuple[Mapping[str, tuple[str, str]], str]:
        found: dict[str, tuple[str, str]] = {}
        version = ""
        listing = pages(self._source.list, page_size=self._page_size, decoder=self._decoder)
        async for page, anew in listing:
            if anew:
                found, version = {}, page.resource_version
            for obj in page.items:
                found[obj.key] = (obj.meta.uid, obj.meta.resource_version)
            for error in page.undecodable:
                if error.key is not None and (kept := self._store.get_by_key(error.key)):
                    found[error.key] = (kept.meta.uid, kept.meta.resource_version)
        return found, version
