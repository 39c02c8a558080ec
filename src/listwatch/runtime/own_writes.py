"""Reading your own writes: a key is reconciled again only after its last writes are cached.

The most common bug of controllers is to read a cache that lacks their own last write, and to repeat
the write. Resource versions are comparable (KEP-5504), so a cache can be waited for; Kubernetes'
own controllers do so since 1.36 (KEP-5647).
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from listwatch.cache.factory import Selection
from listwatch.cache.processor import StoppedError
from listwatch.cache.reflector_machine import is_comparable, is_older
from listwatch.client.request_target import RequestTarget
from listwatch.clock import Clock
from listwatch.errors import ListWatchError, NotFoundError
from listwatch.objects import Object, select
from listwatch.printable import printable
from listwatch.runtime.caches import Cache
from listwatch.runtime.recorded_writes import Write, writes_so_far
from listwatch.selector import parse_field_selector, parse_label_selector

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.resource import Resource

_logger = logging.getLogger(__name__)

#: Seconds after which a key is reconciled even if a cache lacks its last write.
OWN_WRITES_SECONDS: Final = 10.0
#: Seconds between two reads of what a lost response may have written.
_READ_AGAIN: Final = 1.0


class OwnWritesStatistics(msgspec.Struct, frozen=True):
    """Statistics of waiting for own writes; counters start with the reconciler.

    Attributes:
        waits: keys delayed until a cache had their last write.
        seconds: total delay.
        timeouts: keys released although a cache lacked their last write.
        waiting: keys being delayed now.
    """

    waits: int
    seconds: float
    timeouts: int
    waiting: int


class OwnWrites:
    """Waits until a reconciler's caches contain what a reconcile wrote. For one event loop.

    Args:
        name: of the reconciler, for logs.
        caches: the caches; more may be added.
        seconds: time limit.
        clock: the time.
        origin: the cluster whose writes count; "" for the manager's own.
    """

    def __init__(
        self,
        name: str,
        caches: Iterable[Cache],
        *,
        seconds: float,
        clock: Clock,
        origin: str = "",
    ) -> None:
        self._name = name
        self._origin = origin
        self._caches = caches
        #: The time limit.
        self.seconds = seconds
        self._missing: dict[str, tuple[float, Write | None, Cache | None]] = {}
        self._clock = clock
        self._resources: dict[str, tuple[str, str]] = {}
        #: The caches by group and plural of what they hold, as far as `begin` knows them.
        self._by_resource: dict[tuple[str, str], list[Cache]] = {}
        self._client: Client | None = None
        self._waits = self._timeouts = self._waiting = 0
        self._spent = 0.0
        self._told_incomparable = False

    def statistics(self) -> OwnWritesStatistics:
        """Return statistics so far; any thread may call this."""
        return OwnWritesStatistics(self._waits, self._spent, self._timeouts, self._waiting)

    def waiting_for(self, key: str) -> tuple[float, Write | None, Cache | None] | None:
        """Return since when a key waits, the write, and the cache that lacks it; None if not."""
        return self._missing.get(key)

    @property
    def waiting_keys(self) -> list[str]:
        """The keys that wait, the one that has waited longest first."""
        return list(self._missing)

    async def begin(
        self, client: "Client | None", find: "Callable[[str], Awaitable[Resource]]"
    ) -> None:
        """Find out which resources the caches hold, once the server is known.

        Args:
            client: reads what lost responses may have written; None to continue at once.
            find: returns the resource of a word, like `Discovery.find`.
        """
        self._client = client
        words = {cache.selection.resource for cache in self._caches}
        for word in words - self._resources.keys():
            found = await find(word)
            self._resources[word] = (found.group, found.plural)
        self._by_resource = {}
        for cache in self._caches:
            resource = self._resources.get(cache.selection.resource)
            if resource is not None:
                self._by_resource.setdefault(resource, []).append(cache)

    def cached(self, target: RequestTarget) -> Object | None:
        """Return the object that a request is about from any cache that has it."""
        for cache in self._by_resource.get((target.group, target.plural), ()):
            key = f"{target.namespace}/{target.name}" if target.namespace else target.name
            if (obj := cache.indexer.get_by_key(key)) is not None:
                return obj
        return None

    def latest(self, cache: Cache, key: str) -> Object | None:
        """Return an object as the running reconcile last wrote it, otherwise as cached."""
        cached = cache.indexer.get_by_key(key)
        writes = writes_so_far()
        if not writes:
            return cached
        resource = self._resources.get(cache.selection.resource)
        for write in reversed(writes):
            if write.origin != self._origin:
                continue
            if write.key != key or (write.target.group, write.target.plural) != resource:
                continue
            if write.is_deletion and not write.is_lost:
                is_another = cached is not None and write.uid not in {"", cached.uid}
                is_held = cached is not None and bool(cached.meta.finalizers)
                return cached if is_another or (is_held and not write.is_gone) else None
            if write.obj is not None:  # otherwise look for an earlier write
                is_newer = cached is None or _is_newer(write.obj, cached)
                return cache.as_cached(write.obj) if is_newer else cached
        return cached

    def are_seen(self, writes: Iterable[Write]) -> bool:
        """Return whether every cache already has all of these writes."""
        for write in writes:
            for cache in self._holding(write):
                if not _is_seen(write, cache):
                    return False
        return True

    async def wait(self, key: str, writes: Sequence[Write]) -> None:
        """Return when every cache has the writes, or at the time limit, which is logged.

        Raises:
            CancelledError: of the caller.
        """
        self._waits += 1
        self._waiting += 1
        began = self._clock.now()
        missing: tuple[Write, Cache] | None = None
        self._missing[key] = (began, next(iter(writes), None), None)
        try:
            async with self._clock.timeout(self.seconds):
                for write in writes:
                    for missing in await self._wanted(write):
                        self._missing[key] = (began, *missing)
                        await self._wait_for(*missing)
                    missing = None
        except StoppedError:
            return
        except TimeoutError:
            self._timeouts += 1
            self._tell(key, missing, writes)
        finally:
            self._waiting -= 1
            del self._missing[key]
            self._spent += self._clock.now() - began

    def _holding(self, write: Write) -> Iterator[Cache]:
        """Yield the caches that have, or should have, the object of a write."""
        target = write.target
        if write.origin not in {"", self._origin}:
            return
        for cache in self._by_resource.get((target.group, target.plural), ()):
            selection = cache.selection
            # In a cache of a namespace, a cluster-scoped resource is there as a whole.
            if selection.namespace and target.namespace not in {"", selection.namespace}:
                continue
            if write.is_lost or _selects(selection, write) or cache.holds(write.key):
                yield cache

    async def _wait_for(self, write: Write, cache: Cache) -> None:
        informer = cache.informer
        if not write.is_deletion:
            if is_comparable(write.resource_version):
                await informer.wait_for_resource_version(write.resource_version)
            else:
                self._tell_incomparable(write.resource_version)
            return
        if not write.uid and (cached := cache.indexer.get_by_key(write.key)) is not None:
            # Another object may have the name when this cache is read again.
            write = replace(write, uid=cached.uid)
        while not _is_seen(write, cache):
            version = informer.resource_version
            if not is_comparable(version):
                self._tell_incomparable(version)
                return
            await informer.wait_for_resource_version(str(int(version) + 1))

    # --- Lost responses ---

    async def _wanted(self, write: Write) -> list[tuple[Write, Cache]]:
        """Return the writes to wait for, by cache; ask the server about a lost response."""
        caches = list(self._holding(write))
        if not write.is_lost:
            return [(write, cache) for cache in caches]
        if self._client is None or not caches:
            return []
        while True:
            try:
                return [one async for one in self._left_by(write, self._client, caches)]
            except (ListWatchError, TimeoutError) as error:
                _logger.info(
                    "reconciler %s: reading %s after a lost response: %s",
                    self._name,
                    write.target.plural,
                    printable(str(error)),
                )
            await self._clock.sleep(_READ_AGAIN)

    async def _left_by(
        self, write: Write, client: "Client", caches: Sequence[Cache]
    ) -> AsyncGenerator[tuple[Write, Cache], None]:
        """Yield the state that a write with a lost response left on the server."""
        target = write.target
        word = f"{target.plural}.{target.version}.{target.group}"
        resource = await client.discovery.find(word)
        namespace = target.namespace or None
        if target.name:
            try:
                left = Write.of(target, await client.get(resource, target.name, namespace))
            except NotFoundError:
                left = Write(target=target, is_deletion=True, is_gone=True)
            for cache in self._holding(left):
                yield left, cache
            return
        for cache in caches:
            selection = cache.selection
            cached = cache.indexer.list() if write.is_deletion else []
            listed = client.pages(
                resource,
                namespace,
                label_selector=selection.label_selector,
                field_selector=selection.field_selector,
            )
            newest: Object | None = None
            kept: set[str] = set()
            async for page in listed:
                for obj in page.items:
                    kept.add(obj.uid)
                    is_held = selection.shard is None or selection.shard.contains(obj.uid)
                    if is_held and (newest is None or _is_newer(obj, newest)):
                        newest = obj
            if newest is not None:
                # An object that the write created, or that began to terminate, is not newer.
                yield Write.of(target, newest), cache
            for obj in cached:
                if obj.namespace == target.namespace and obj.uid not in kept:
                    gone = target._replace(name=obj.name)
                    yield Write(target=gone, uid=obj.uid, is_deletion=True, is_gone=True), cache

    def _tell(self, key: str, missing: tuple[Write, Cache] | None, writes: Iterable[Write]) -> None:
        if missing is not None:
            write, cache = missing
            there = cache.informer.resource_version or "nothing"
            wanted = "the deletion" if write.is_deletion else f"version {write.resource_version}"
            what = f"the cache of {cache.selection} lacks {wanted} of {write.key}, being at {there}"
        else:
            lost = ", ".join(one.target.plural for one in writes if one.is_lost)
            what = f"what was written to {lost} is still unknown after a lost response"
        _logger.warning(
            "reconciler %s: %s: %s after %g s; continuing without it",
            self._name,
            printable(key),
            printable(what),
            self.seconds,
        )

    def _tell_incomparable(self, version: str) -> None:
        if not self._told_incomparable:
            self._told_incomparable = True
            _logger.warning(
                "reconciler %s: the server's resource version %.40r can't be compared, so caches "
                "may lack what was just written",
                self._name,
                version,
            )


def _is_newer(one: Object, other: Object) -> bool:
    new, old = one.resource_version, other.resource_version
    return is_comparable(new) and (not is_comparable(old) or is_older(old, new))


def _is_seen(write: Write, cache: Cache) -> bool:
    if write.is_lost:
        return False
    if write.is_deletion:
        cached = cache.indexer.get_by_key(write.key)
        if cached is None or (write.uid and cached.uid != write.uid):
            return True
        return cached.meta.deletion_timestamp is not None and not write.is_gone
    version = cache.informer.resource_version
    wanted = write.resource_version
    return is_comparable(version) and is_comparable(wanted) and not is_older(version, wanted)


def _selects(selection: Selection, write: Write) -> bool:
    """Return whether a cache should have the written object, as far as known."""
    if not write.answer:
        return False
    if not (selection.shard or selection.label_selector or selection.field_selector):
        return True
    obj = write.obj
    assert obj is not None  # noqa: S101 - for the type checker: there is an answer
    if selection.shard is not None and not selection.shard.contains(obj.uid):
        return False
    if not select([obj], parse_label_selector(selection.label_selector)):
        return False
    known = {"metadata.name": obj.name, "metadata.namespace": obj.namespace}
    terms = parse_field_selector(selection.field_selector)
    # Don't wait if only the server can evaluate a term, unless the object is cached.
    return all(term.field in known for term in terms.requirements) and terms.matches(known.get)
