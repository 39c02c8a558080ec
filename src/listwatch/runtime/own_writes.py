"""Reading your own writes: a key is reconciled again only after its last writes are cached.

The most common bug of controllers is to read a cache that lacks their own last write, and to repeat
the write. Resource versions are comparable (KEP-5504), so a cache can be waited for; Kubernetes'
own controllers do so since 1.36 (KEP-5647).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from listwatch.cache.factory import Selection
from listwatch.cache.processor import StoppedError
from listwatch.cache.reflector_machine import is_comparable, is_older
from listwatch.clock import Clock
from listwatch.errors import (
    DisconnectedError,
    FrameError,
    ListWatchError,
    NotFoundError,
    StatusError,
)
from listwatch.objects import Object, ObjectDecodeError, ObjectKey, decode_object, select
from listwatch.printable import printable
from listwatch.runtime.caches import Cache
from listwatch.selector import parse_field_selector, parse_label_selector

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.http import HTTP, Answer
    from listwatch.client.resource import Resource

_logger = logging.getLogger(__name__)

#: Seconds after which a key is reconciled even if a cache lacks its last write.
OWN_WRITES_SECONDS: Final = 10.0
#: Seconds between two reads of what a lost response may have written.
_READ_AGAIN: Final = 1.0

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Subresources that are not part of their object.
_ASIDE: Final = frozenset({"token", "log", "exec", "attach", "portforward", "proxy"})


class WriteTarget(NamedTuple):
    """The target of a request."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str


class Write(msgspec.Struct, kw_only=True):
    """A write of a reconcile.

    Attributes:
        target: what was written; `name` is the object's, also if generated.
        uid: of the object; "" if unknown.
        resource_version: of the written state; "" for a deletion, or if the response was lost.
        obj: the written state; None if the server did not return it.
        is_deletion: the object was deleted.
        is_lost: the response was lost, so it is unknown what was written.
    """

    target: WriteTarget
    uid: str = ""
    resource_version: str = ""
    obj: Object | None = None
    is_deletion: bool = False
    is_lost: bool = False

    @property
    def key(self) -> str:
        """The key of the object in a cache."""
        return str(ObjectKey(self.target.namespace, self.target.name))


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


class Recording:
    """What a reconcile wrote, until it ends: a task that it started may go on for ever."""

    def __init__(self) -> None:
        #: In order.
        self.writes: list[Write] = []
        self.is_over = False

    def end(self) -> list[Write]:
        """Record nothing more; return what was written."""
        self.is_over = True
        writes, self.writes = self.writes, []
        return writes


_recording: ContextVar[Recording | None] = ContextVar("own_writes", default=None)


def record() -> Recording:
    """Record the writes that this task, and tasks it starts later, send through `recorded`."""
    recording = Recording()
    _recording.set(recording)
    return recording


# --- Recording ------------------------------------------------------------------------------------


def recorded(client: "Client") -> "Client":
    """Return a client that shares everything with this one and records its writes."""
    # HTTP has no protocol class; a client uses two of its methods.
    http: Any = _RecordingHTTP(client.http)
    return client.through(http)


class _RecordingHTTP:
    def __init__(self, http: "HTTP") -> None:
        self._http = http
        self.stream = http.stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    async def request(
        self, method: str, path: str, query: Iterable[tuple[str, str]] = (), **options: Any
    ) -> "Answer":
        recording = None if method in _READS else _recording.get()
        if recording is None or recording.is_over:
            return await self._http.request(method, path, query, **options)
        writes = recording.writes
        query = list(query)
        body = options.get("body")
        target = target_of(path)
        if target is None or target.subresource in _ASIDE or _is_dry(query, body):
            return await self._http.request(method, path, query, **options)
        try:
            answer = await self._http.request(method, path, query, **options)
        except (DisconnectedError, TimeoutError, FrameError, asyncio.CancelledError) as error:
            if not getattr(error, "refused", False):
                writes.append(_lost(method, target, body))
            raise
        except StatusError as error:
            if error.code >= 500:  # a server's time-out may follow its commit
                writes.append(_lost(method, target, body))
            raise
        writes += _written(method, target, answer.body)
        return answer


def target_of(path: str) -> WriteTarget | None:
    """Return the target of a request's path; None if it is not a resource."""
    parts = [unquote(part) for part in path.split("/")[1:]]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource, *_ = [*rest, "", ""]
    return WriteTarget(group, version, plural, namespace, name, subresource)


class _Options(msgspec.Struct):
    dryRun: list[str] | None = None  # noqa: N815 - the name in JSON
    kind: str = ""
    deleteOptions: "_Options | None" = None  # noqa: N815 - the name in JSON; for an eviction


def _is_dry(query: Iterable[tuple[str, str]], body: bytes | None) -> bool:
    if any(name == "dryRun" for name, _ in query):
        return True
    if not body or b"dryRun" not in body:
        return False
    try:
        options = msgspec.json.decode(body, type=_Options)
    except (msgspec.MsgspecError, RecursionError):
        return False
    if options.kind == "Eviction":
        return options.deleteOptions is not None and bool(options.deleteOptions.dryRun)
    return options.kind == "DeleteOptions" and bool(options.dryRun)


def _lost(method: str, target: WriteTarget, body: bytes | None) -> Write:
    if method == "POST" and not target.name and body is not None:
        try:
            named = msgspec.json.decode(body, type=_Named)
        except (msgspec.MsgspecError, RecursionError):
            named = _Named()
        target = target._replace(name=named.metadata.name or "")
    return Write(target=target, is_lost=True, is_deletion=method == "DELETE")


class _Metadata(msgspec.Struct):
    name: str | None = None
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815 - as above


class _Details(msgspec.Struct):
    uid: str | None = None


class _Named(msgspec.Struct):
    kind: str = ""
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    details: _Details | None = None


class _Deleted(msgspec.Struct):
    items: list[_Named] | None = None


def _written(method: str, target: WriteTarget, body: bytes) -> list[Write]:
    if method == "DELETE":
        return _deleted(target, body)
    if target.subresource == "eviction":
        return [Write(target=target, is_deletion=True)]
    try:
        obj = decode_object(body)
    except ObjectDecodeError:
        # A review, which changes nothing, or a Status instead of the object.
        return [Write(target=target, is_lost=True)] if target.name else []
    if obj.kind == "Status" or not obj.resource_version:
        return [Write(target=target, is_lost=True)] if target.name else []
    is_whole = target.subresource != "scale"
    return [
        Write(
            target=target._replace(name=obj.name),
            uid=obj.uid,
            resource_version=obj.resource_version,
            obj=obj if is_whole else None,
        )
    ]


def _deleted(target: WriteTarget, body: bytes) -> list[Write]:
    try:
        if not target.name:
            listed = msgspec.json.decode(body, type=_Deleted)
            return [
                Write(
                    target=target._replace(name=item.metadata.name),
                    uid=item.metadata.uid or "",
                    is_deletion=True,
                )
                for item in listed.items or ()
                if item.metadata.name
            ]
        answer = msgspec.json.decode(body, type=_Named)
    except (msgspec.MsgspecError, RecursionError):
        return [Write(target=target, is_deletion=True)] if target.name else []
    details = answer.details or _Details()
    uid = details.uid if answer.kind == "Status" else answer.metadata.uid
    return [Write(target=target, uid=uid or "", is_deletion=True)]


# --- Waiting --------------------------------------------------------------------------------------


class OwnWrites:
    """Waits until a reconciler's caches contain what a reconcile wrote. For one event loop.

    Args:
        name: of the reconciler, for logs.
        caches: returns the caches; more may be added.
        seconds: time limit.
        clock: the time.
    """

    def __init__(
        self,
        name: str,
        caches: Callable[[], Mapping[Selection, Cache]],
        *,
        seconds: float,
        clock: Clock,
    ) -> None:
        self._name = name
        self._caches = caches
        self._seconds = seconds
        self._clock = clock
        self._resources: dict[str, tuple[str, str]] = {}
        self._client: Client | None = None
        self._waits = self._timeouts = self._waiting = 0
        self._spent = 0.0
        self._told_incomparable = False

    def statistics(self) -> OwnWritesStatistics:
        """Return statistics so far; any thread may call this."""
        return OwnWritesStatistics(self._waits, self._spent, self._timeouts, self._waiting)

    async def begin(self, client: "Client | None", find: "Callable[[str], Any]") -> None:
        """Find out which resources the caches hold, once the server is known.

        Args:
            client: reads what lost responses may have written; None to continue after the time
                limit.
            find: returns the `Resource` of a word, like `Discovery.find`.
        """
        self._client = client
        for selection in self._caches():
            if selection.resource not in self._resources:
                found: Resource = await find(selection.resource)
                self._resources[selection.resource] = (found.group, found.plural)

    def latest(self, cache: Cache, key: str) -> Object | None:
        """Return an object as the running reconcile last wrote it, otherwise as cached."""
        cached = cache.indexer.get_by_key(key)
        recording = _recording.get()
        if recording is None or not recording.writes:
            return cached
        resource = self._resources.get(cache.selection.resource)
        for write in reversed(recording.writes):
            if write.key != key or (write.target.group, write.target.plural) != resource:
                continue
            if write.is_deletion and not write.is_lost:
                gone = cached is None or not write.uid or cached.uid == write.uid
                return None if gone and not _is_held(cached) else cached
            if write.obj is not None:  # else an earlier write tells more
                is_newer = cached is None or _is_newer(write.obj, cached)
                return cache.as_cached(write.obj) if is_newer else cached
        return cached

    def are_seen(self, writes: Iterable[Write]) -> bool:
        """Return whether every cache already has all of these writes."""
        return all(
            _is_seen(write, cache) for write in writes for cache in self._holding(write)
        ) and not any(write.is_lost for write in writes)

    async def wait(self, key: str, writes: list[Write]) -> None:
        """Return when every cache has the writes, or at the time limit, which is logged.

        Raises:
            CancelledError: of the caller.
        """
        self._waits += 1
        self._waiting += 1
        began = self._clock.now()
        missing: list[tuple[Write, Cache]] = []
        try:
            async with self._clock.timeout(self._seconds):
                for write in writes:
                    for known in [write] if not write.is_lost else await self._read(write):
                        for cache in self._holding(known):
                            missing = [(known, cache)]
                            await self._wait_for(known, cache)
                            missing = []
        except StoppedError:
            return
        except TimeoutError:
            self._timeouts += 1
            self._tell(key, missing, writes)
        finally:
            self._waiting -= 1
            self._spent += self._clock.now() - began

    def _holding(self, write: Write) -> Iterator[Cache]:
        """Yield the caches that have, or should have, the object of a write."""
        target = write.target
        for selection, cache in self._caches().items():
            if self._resources.get(selection.resource) != (target.group, target.plural):
                continue
            if selection.namespace is not None and target.namespace != selection.namespace:
                continue
            if cache.holds(write.key) or _selects(selection, write):
                yield cache

    async def _wait_for(self, write: Write, cache: Cache) -> None:
        informer = cache.informer
        if not write.is_deletion:
            if not is_comparable(write.resource_version):
                self._tell_incomparable(write)
                return
            await informer.wait_for_resource_version(write.resource_version)
            return
        while not _is_seen(write, cache):
            version = informer.resource_version
            if not is_comparable(version):
                self._tell_incomparable(write)
                return
            await informer.wait_for_resource_version(str(int(version) + 1))

    async def _read(self, write: Write) -> list[Write]:
        """Return what a write with a lost response has left on the server."""
        if self._client is None:
            return []
        while True:
            try:
                return [one async for one in self._left_by(self._client, write)]
            except (ListWatchError, TimeoutError) as error:
                _logger.info(
                    "reconciler %s: reading %s after a lost response: %s",
                    self._name,
                    write.target.plural,
                    printable(str(error)),
                )
            await self._clock.sleep(_READ_AGAIN)

    async def _left_by(self, client: "Client", write: Write) -> AsyncGenerator[Write, None]:
        target = write.target
        word = f"{target.plural}.{target.version}.{target.group}"
        resource = await client.discovery.find(word)
        if target.name:
            try:
                obj = await client.get(resource, target.name, target.namespace or None)
            except NotFoundError:
                yield Write(target=target, is_deletion=True)
                return
            yield Write(target=target, uid=obj.uid, resource_version=obj.resource_version, obj=obj)
            return
        # The newest existing object: anything committed is no newer.
        newest: Object | None = None
        listed = client.pages(resource, target.namespace or None)
        async for page in listed:
            for obj in page.items:
                if newest is None or _is_newer(obj, newest):
                    newest = obj
        if newest is not None:
            yield Write(
                target=target._replace(name=newest.name),
                uid=newest.uid,
                resource_version=newest.resource_version,
                obj=newest,
            )

    def _tell(self, key: str, missing: list[tuple[Write, Cache]], writes: list[Write]) -> None:
        if missing:
            ((write, cache),) = missing
            there = cache.informer.resource_version or "nothing"
            wanted = "the deletion" if write.is_deletion else f"version {write.resource_version}"
            what = f"the cache of {cache.selection} lacks {wanted} of {write.key}, being at {there}"
        else:
            lost = ", ".join(str(one.target.plural) for one in writes if one.is_lost)
            what = f"what was written to {lost} is still unknown after a lost response"
        _logger.warning(
            "reconciler %s: %s: %s after %g s; continuing without it",
            self._name,
            printable(key),
            printable(what),
            self._seconds,
        )

    def _tell_incomparable(self, write: Write) -> None:
        if not self._told_incomparable:
            self._told_incomparable = True
            _logger.warning(
                "reconciler %s: the server's resource version %.40r can't be compared, so caches "
                "may lack what was just written",
                self._name,
                write.resource_version,
            )


def _is_held(cached: Object | None) -> bool:
    return cached is not None and bool(cached.meta.finalizers)


def _is_newer(one: Object, other: Object) -> bool:
    new, old = one.resource_version, other.resource_version
    return is_comparable(new) and (not is_comparable(old) or is_older(old, new))


def _is_seen(write: Write, cache: Cache) -> bool:
    cached = cache.indexer.get_by_key(write.key)
    if write.is_deletion:
        return (
            cached is None
            or bool(write.uid and cached.uid != write.uid)
            or cached.meta.deletion_timestamp is not None
        )
    version = cache.informer.resource_version
    wanted = write.resource_version
    return is_comparable(version) and is_comparable(wanted) and not is_older(version, wanted)


def _selects(selection: Selection, write: Write) -> bool:
    """Return whether a cache should have the written object, as far as known."""
    obj = write.obj
    if write.is_deletion or obj is None:
        return False  # what it holds counts
    if selection.shard is not None and not selection.shard.contains(obj.uid):
        return False
    if selection.label_selector:
        labels = parse_label_selector(selection.label_selector)
        if not select([obj], labels):
            return False
    if selection.field_selector:
        known = {"metadata.name": obj.name, "metadata.namespace": obj.namespace}
        terms = parse_field_selector(selection.field_selector)
        # Terms that only the server can evaluate are not waited for, unless the object is cached.
        return all(term.field in known for term in terms.requirements) and terms.matches(known.get)
    return True
