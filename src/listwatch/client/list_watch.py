"""The list and watch of one resource on an API server."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

from msgspec.structs import force_setattr

from listwatch.cache.callers import YIELD_SECONDS
from listwatch.cache.frames import ListFrames, WatchFrames
from listwatch.cache.kinds import ExpectedKind
from listwatch.cache.list_watch import (
    Decoder,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.client.definition import Definition
from listwatch.client.discovery import Discovery, Resource, UnknownResourceError
from listwatch.client.http import HTTP, JSON, SILENCE_TIMEOUT, Body
from listwatch.clock import Clock
from listwatch.errors import FrameError, NotFoundError
from listwatch.objects import Object, decode_object, split_key
from listwatch.objects.json_values import identity
from listwatch.shard_range import ShardRange

#: Upper bound on a list body: etcd cannot hold more.
MAX_LIST_BYTES: Final = 8 * 2**30

#: Maximum bytes of whitespace between two events.
MAX_SPACE_BYTES: Final = 2**20
#: Bytes of a list that are split in one step.
_STEP: Final = 2**16
#: What an API server says about an unknown path.
_NO_PAGE: Final = "404 page not found"
#: Seconds between two look-ups of a resource that is not served.
_LOOK_UP_SECONDS: Final = 60.0

_logger = logging.getLogger(__name__)

_METADATA: Final = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST: Final = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ResourceListWatch:
    """Lists and watches one resource: the `ListerWatcher` of `Client.list_watch`.

    The resource is looked up on first use, so creating this is free and never fails, and again
    after the server stopped serving it. For the client's event loop.
    """

    def __init__(
        self,
        http: HTTP,
        discovery: Discovery,
        clock: Clock,
        resource: str | Resource,
        *,
        namespace: str | None,
        label_selector: str,
        field_selector: str,
        metadata_only: bool,
        shard: ShardRange | None = None,
    ) -> None:
        self._http = http
        self._discovery = discovery
        self._clock = clock
        self._word = resource
        self._resource = resource if isinstance(resource, Resource) else None
        self._expected: ExpectedKind | None = None
        self._namespace = namespace or ""
        self._selectors = [
            (name, value)
            for name, value in (
                ("labelSelector", label_selector),
                ("fieldSelector", field_selector),
                ("shardSelector", "" if shard is None else shard.selector),
            )
            if value
        ]
        self._metadata_only = metadata_only
        self._shard = shard
        self._definition = Definition(http, clock)
        #: The resource from the last look-up.
        self._last: Resource | None = self._resource
        #: The last list was answered by 404, a reason to check the definition.
        self._was_not_found = False
        #: The resource last looked up without success, and when to try again.
        self._in_vain: Resource | None = None
        self._look_up_at = 0.0
        #: Whether the server applied the shard selector to the last list; None before one.
        self.server_shards: bool | None = None

    def __repr__(self) -> str:
        place = f" in {self._namespace}" if self._namespace else ""
        return f"<list and watch of {self._word}{place}>"

    async def resource(self) -> Resource:
        """Return the resource; looks it up once.

        Raises:
            UnknownResourceError: the server has none of this name, or several.
        """
        if self._resource is None:
            self._resource = await self._discovery.find(str(self._word))
            self._expected = None
        return self._resource

    def _expected_kind(self, resource: Resource) -> ExpectedKind | None:
        if self._expected is None and resource.kind:
            self._expected = ExpectedKind(
                resource.kind, resource.api_version, metadata_only=self._metadata_only
            )
        return self._expected

    async def _served(self) -> Resource:
        """Return the resource; the old one if discovery lacks it, so that the server decides."""
        try:
            resource = await self.resource()
        except UnknownResourceError:
            if self._last is None:
                raise
            return self._last
        self._last = resource
        return resource

    def _collection(self, resource: Resource) -> str:
        # A cluster-scoped resource in a cache of namespaces is watched as a whole.
        return resource.path(self._namespace if resource.namespaced else "")

    async def wait_until_reachable(self) -> bool:
        """Return when the server accepts connections; True if it did not before (see `HTTP`)."""
        return await self._http.wait_until_reachable()

    async def is_gone(self) -> bool:
        """Return whether the resource was defined and certainly is no longer (see `Definition`).

        Raises:
            DisconnectedError: no connection, or it broke.
            TimeoutError: no response in time.
        """
        if self._last is None or not self._was_not_found:
            return False
        return await self._definition.is_gone(self._last)

    async def list(self, options: ListOptions) -> ObjectList:
        """Return the objects, or one page of them; decoded while the body arrives.

        Raises:
            StatusError: the server refused.
            DisconnectedError: no connection, or it broke.
            FrameError: the body is not a list.
            TimeoutError: no headers, or silence within the body.
            UnknownResourceError: the server has no such resource.
        """
        resource = await self._served()
        query = list(self._selectors)
        if options.limit:
            query.append(("limit", str(options.limit)))
        if options.continue_token:
            query.append(("continue", options.continue_token))
        if options.resource_version:
            query.append(("resourceVersion", options.resource_version))
        if options.resource_version_match:
            query.append(("resourceVersionMatch", options.resource_version_match))
        frames = ListFrames(
            self._decoder(options.decoder),
            kind=resource.kind,
            api_version=resource.api_version,
            expected=self._expected_kind(resource),
        )
        path = self._collection(resource)
        # Only a page begins at once: the server collects a whole list first.
        opening = self._http.stream(
            path, query, accept=self._accept(_METADATA_LIST), prompt=bool(options.limit)
        )
        try:
            async with opening as body:
                await self._feed(body, frames, options.progress)
        except NotFoundError as error:
            self._was_not_found = error.is_status or error.message == _NO_PAGE
            self._look_up_anew(resource)
            raise
        answer = frames.finish()
        self._was_not_found = False
        self._in_vain = None
        self._definition.seen()
        if self._shard is not None:
            # Filtering again what a server has selected costs little, and a server without shards
            # sends everything.
            shard = self._shard
            if self.server_shards is None and not answer.sharded:
                _logger.info(
                    "%s: the server does not support shardSelector and sends all objects", self
                )
            self.server_shards = answer.sharded
            answer.items = [obj for obj in answer.items if shard.contains(obj.uid)]
        return answer

    async def find(self, key: str, decoder: Decoder) -> Object | None:
        """Return one of the listed objects; None if the server says that it does not exist.

        Raises:
            ObjectDecodeError: it exists and can't be decoded.
            StatusError: any refusal except that the object does not exist.
            As `list` otherwise; the object may exist then.
        """
        resource = await self.resource()
        namespace, name = split_key(key)
        path = resource.path(namespace, name)
        try:
            answer = await self._http.request("GET", path, accept=self._accept(_METADATA))
        except NotFoundError as error:
            if not error.is_status or error.details.get("name", name) != name:
                raise  # something else does not exist, or another server says so
            return None
        which = identity(answer.body)
        if which.key != key:
            raise FrameError(f"the server sent {which.key or 'no object'} in place of {key}")
        expected = self._expected_kind(resource)
        named = which.kind or which.api_version
        if expected and named and not expected.is_kind(which.kind, which.api_version):
            raise expected.refusal(which.kind, which.api_version)
        obj = self._decoder(decoder)(answer.body, resource.kind, resource.api_version)
        if self._shard is not None and not self._shard.contains(obj.uid):
            return None
        return obj if await self._is_selected(path.rpartition("/")[0], name, resource) else None

    async def _is_selected(self, collection: str, name: str, resource: Resource) -> bool:
        query = dict(self._selectors)
        if not query:
            return True
        fields = [query.get("fieldSelector", ""), f"metadata.name={name}"]
        query["fieldSelector"] = ",".join(filter(None, fields))
        answer = await self._http.request("GET", collection, list(query.items()))
        frames = ListFrames(
            decode_object,
            kind=resource.kind,
            api_version=resource.api_version,
            expected=self._expected_kind(resource),
        )
        frames.feed(answer.body)
        found = frames.finish()
        return bool(found.items or found.undecodable)

    def _look_up_anew(self, refused: Resource) -> None:
        """Look the resource up before the next request, unless that has just failed.

        The server may serve another version by now, or nothing of this name.
        """
        if isinstance(self._word, Resource):
            return
        now = self._clock.now()
        if refused == self._in_vain and now < self._look_up_at:
            self._resource = refused
            return
        self._in_vain, self._look_up_at = refused, now + _LOOK_UP_SECONDS
        self._resource = None
        self._discovery.forget()

    async def _feed(
        self, body: Body, frames: ListFrames, progress: Callable[[], None] | None
    ) -> None:
        size = 0
        yielded = self._clock.now()
        # A caller that wants progress enforces its own limit.
        limit = SILENCE_TIMEOUT if progress is None else None
        try:
            async with self._clock.timeout(limit) as silence:
                while pieces := await body.read_pieces():
                    silence.postpone(limit)
                    size += sum(map(len, pieces))
                    if size > MAX_LIST_BYTES:
                        raise FrameError(
                            f"the server sent more than {MAX_LIST_BYTES} bytes as a list of "
                            f"{self._word}"
                        )
                    if progress is not None:
                        progress()
                    for piece in pieces:
                        for at in range(0, len(piece), _STEP):
                            frames.feed(piece if len(piece) <= _STEP else piece[at : at + _STEP])
                            while frames.is_behind:
                                await self._clock.sleep(0)
                                frames.feed(b"")
                            if self._clock.now() - yielded >= YIELD_SECONDS:
                                await self._clock.sleep(0)
                                yielded = self._clock.now()
        except TimeoutError:
            raise TimeoutError(
                f"the server sent nothing for {SILENCE_TIMEOUT:g} s within a list of {self._word}"
            ) from None

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Open a watch. Entering returns when the server has accepted it; leaving closes it.

        Does not give up a silent server; that is up to the reader.

        Raises:
            As `list`, on entering; `DisconnectedError` and `FrameError` while it is read.
        """
        return self._watch(options)

    @asynccontextmanager
    async def _watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        resource = await self._served()
        query = [("watch", "true"), *self._selectors]
        if options.resource_version:
            query.append(("resourceVersion", options.resource_version))
        if options.resource_version_match:
            query.append(("resourceVersionMatch", options.resource_version_match))
        if options.send_initial_events:
            query.append(("sendInitialEvents", "true"))
        if options.allow_bookmarks:
            query.append(("allowWatchBookmarks", "true"))
        if options.timeout_seconds:
            query.append(("timeoutSeconds", str(options.timeout_seconds)))
        frames = WatchFrames(
            self._decoder(options.decoder),
            kind=resource.kind,
            api_version=resource.api_version,
            expected=self._expected_kind(resource),
        )
        path = self._collection(resource)
        async with AsyncExitStack() as stack:
            opening = self._http.stream(
                path, query, accept=self._accept(_METADATA), watch=True, prompt=True
            )
            try:
                body = await stack.enter_async_context(opening)
            except NotFoundError:
                self._look_up_anew(resource)
                raise
            yield _Events(body, frames, self._shard, self._clock)

    def _accept(self, form: str) -> str:
        return f"{JSON};{form},{JSON}" if self._metadata_only else JSON

    def _decoder(self, decoder: Decoder) -> Decoder:
        if not self._metadata_only:
            return decoder

        def decode_partial(raw: bytes, kind: str, api_version: str) -> Object:
            obj = decoder(raw, kind, api_version)
            if obj.kind == "PartialObjectMetadata":
                force_setattr(obj, "partial", True)  # no other code has seen it yet
            return obj

        return decode_partial


class _Events:
    """A watch's events, in batches as their bytes arrive."""

    def __init__(
        self, body: Body, frames: WatchFrames, shard: ShardRange | None, clock: Clock
    ) -> None:
        self._read_pieces = body.read_pieces
        self._shard = shard
        self._frames = frames
        self._clock = clock
        self._has_ended = False
        self._space = 0  # whitespace since the last event

    def __aiter__(self) -> AsyncIterator[Sequence[WatchEvent]]:
        return self

    async def __anext__(self) -> Sequence[WatchEvent]:
        frames = self._frames
        while not self._has_ended:
            pieces: Sequence[bytes] = ()
            if frames.is_behind:  # long work is done in steps
                await self._clock.sleep(0)
            elif not (pieces := await self._read_pieces()):
                self._has_ended = True
                if last := _of_shard(frames.finish(), self._shard):
                    return last
                break
            events = frames.feed(*pieces)
            if events or frames.is_in_event:
                self._space = 0
                return _of_shard(events, self._shard)
            # Whitespace is neither an event nor a sign of life.
            self._space += sum(map(len, pieces))
            if self._space > MAX_SPACE_BYTES:
                raise FrameError("the watch sends only white space")
            if not frames.is_behind:
                await self._clock.sleep(0)
        raise StopAsyncIteration


def _of_shard(events: Sequence[WatchEvent], shard: ShardRange | None) -> Sequence[WatchEvent]:
    # Bookmarks carry the positions of skipped events; every server sends them.
    if shard is None:
        return events
    return [event for event in events if event.object is None or shard.contains(event.object.uid)]
