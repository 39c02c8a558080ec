"""Get, list and watch."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from aiohttp.web_response import Response, StreamResponse

from listwatch.apiserver import refusal
from listwatch.apiserver.api.continue_tokens import (
    INCONSISTENT,
    TOO_OLD_WORDS,
    ExpiredTokenError,
    read_token,
    write_token,
)
from listwatch.apiserver.api.tables import TableMaker
from listwatch.apiserver.api.watch import Filter, FrameCache, WatchQuery, WatchStream
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.http.negotiation import (
    JSON,
    PROTOBUF,
    Representation,
    entry_bytes,
    event_bytes,
    list_body,
    negotiate,
    partial_bytes,
)
from listwatch.apiserver.http.request_info import ListQuery, parse_list_options, parse_version
from listwatch.apiserver.kinds.catalog import supported_fields
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.registry import Registry
from listwatch.apiserver.storage.store import Bucket, CompactedError, Entry, Span, Storage
from listwatch.apiserver.webhooks.consultation import ask_all
from listwatch.clock import Clock
from listwatch.errors import StatusError
from listwatch.schema.causes import go_quoted
from listwatch.selector import FieldRequirement, FieldSelector

if TYPE_CHECKING:
    from listwatch.apiserver.storage.mirror import Mirror

#: How long a read waits for a future resource version, in seconds.
FUTURE_WAIT = 3.0
#: Lists from this size in bytes are written piece by piece, to save memory.
_STREAMED_FROM = 1 << 20
_PIECE = 256 * 1024
#: Objects encoded in protobuf at once, in a few milliseconds.
_TURN = 32
_PARTIAL_PREFIX = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/%b",'


class Reader:
    """Answers reads. For one event loop.

    Args:
        backlog_limit: changes that may wait for a watch's slow client before it is cut off.
        streams: collects open watches; a replica shares those of its server, to be stopped with it.
    """

    def __init__(
        self,
        store: Storage,
        registry: Registry,
        clock: Clock,
        *,
        randomness: random.Random,
        backlog_limit: int = 20_000,
        streams: dict[WatchStream, None] | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._random = randomness
        self._backlog_limit = backlog_limit
        self._cache = FrameCache()
        self.tables = TableMaker(clock)
        #: if set, reads that may be stale are answered as of this revision, for tests
        self.stale_at: int | None = None
        self.withhold_bookmarks = False
        #: the watches that are open now, in the order in which they were opened
        self.streams: dict[WatchStream, None] = {} if streams is None else streams

    def set_stale(self, revision: int | None) -> None:
        """Stop following the store at a revision, for tests; None catches up."""
        self.stale_at = revision
        for stream in self.streams:
            stream.look_again()

    def forget(self) -> None:
        """Drop cached data of revisions that may be reused for other content."""
        self._cache = FrameCache()

    def stop_watches(self, bucket: Bucket) -> None:
        """End the watches on a bucket whose resource is no longer served."""
        for stream in self.streams:
            if stream.bucket is bucket:
                stream.stop()

    # -- get ---------------------------------------------------------------------------------

    async def get(self, call: Call, resource: APIResource) -> Response:
        """Answer with one object."""
        version = self._version(call.first("resourceVersion"), refusal.server_error)
        await self._wait_for(version)
        if resource.mirror is not None:
            resource.mirror.begin()
        if self.stale_at is not None and call.first("resourceVersion"):
            key = f"{call.namespace}/{call.info.name}" if call.namespace else call.info.name
            bucket = self._registry.bucket(resource)
            for entry in islice(bucket.span(start=key, revision=self.stale_at), 1):
                if entry.key == key:
                    return self.answer_entry(call, resource, entry)
            raise refusal.not_found(resource, call.info.name)
        entry = self._registry.get(resource, call.namespace, call.info.name)
        return self.answer_entry(call, resource, entry)

    def answer_entry(
        self, call: Call, resource: APIResource, entry: Entry, *, status: int = 200
    ) -> Response:
        """Respond with the state of an object in the negotiated form."""
        transform = call.representation.transform
        entry = converted(resource, entry)
        if not transform:
            return call.answer_json(entry_bytes(resource, entry) + b"\n", status=status)
        if transform == "Table":
            table = self.tables.table(
                resource,
                [entry],
                {"resourceVersion": str(entry.revision)},
                include=self._include(call),
                version=call.representation.version,
            )
            return call.answer_value(table, status=status)
        if transform == "PartialObjectMetadataList":
            raise refusal.not_acceptable(
                "you requested PartialObjectMetadataList, but the requested object is not a list "
                f"(*{_go_type(resource)})"
            )
        return call.answer_json(
            partial_bytes(resource, entry.data, call.representation.version) + b"\n",
            status=status,
        )

    @staticmethod
    def _include(call: Call) -> str:
        include = call.first("includeObject")
        if include not in {"", "Metadata", "Object", "None"}:
            raise refusal.bad_request(
                f"Unable to convert to Table as requested: includeObject: Invalid value: "
                f"{go_quoted(include)}: must be 'Metadata', 'Object', 'None', or empty"
            )
        return include or "Metadata"

    @staticmethod
    def _version(text: str, refuse: Callable[[str], StatusError]) -> int:
        try:
            return parse_version(text)
        except ValueError as error:
            raise refuse(str(error)) from None

    async def _wait_for(self, version: int) -> None:
        if version > self._store.revision:
            await self._store.reached(version, FUTURE_WAIT)
            if version > self._store.revision:
                raise refusal.too_large_version(version, self._store.revision)

    # -- list --------------------------------------------------------------------------------

    async def list_objects(self, call: Call, resource: APIResource) -> StreamResponse:
        """Respond with the objects that the options select."""
        options = parse_list_options(call.query, watch=False)
        fields = check_fields(resource, options.field_selector)
        options = msgspec.structs.replace(options, field_selector=fields)
        entries, metadata = await self.select(resource, call.namespace, options)
        return await self.answer_list(call, resource, entries, metadata)

    async def answer_list(
        self,
        call: Call,
        resource: APIResource,
        entries: Sequence[Entry],
        metadata: Mapping[str, object],
    ) -> StreamResponse:
        """Respond with a list in the negotiated form, a large one piece by piece."""
        transform = call.representation.transform
        if transform == "Table":
            table = self.tables.table(
                resource,
                entries,
                metadata,
                include=self._include(call),
                version=call.representation.version,
            )
            return call.answer_value(table)
        if transform == "PartialObjectMetadata":
            raise refusal.not_acceptable(
                "you requested PartialObjectMetadata, but the requested object is a list "
                f"(*{_go_type(resource)}List)"
            )
        partial = transform == "PartialObjectMetadataList"
        if call.representation.media_type == PROTOBUF:
            return await _protobuf_list(call, resource, entries, metadata, partial=partial)
        if resource.custom is not None and not partial:
            metadata = {"continue": "", **metadata}
        body = list_body(
            resource,
            [entry.data for entry in entries],
            metadata,
            partial=call.representation.version if partial else "",
        )
        if body.size < _STREAMED_FROM or not call.can_stream:
            return call.answer_json(body.whole())
        response = StreamResponse(headers=call.headers(JSON))
        response.content_length = body.size
        await response.prepare(call.request)
        for piece in body.pieces(_PIECE):
            await response.write(piece)
            await asyncio.sleep(0)  # let other tasks run, and notice a disconnected client
        await response.write_eof()
        return response

    async def select(
        self, resource: APIResource, namespace: str, options: ListQuery
    ) -> tuple[list[Entry], dict[str, object]]:
        """Return the selected entries, in the resource's version, and the list's metadata."""
        store, bucket = self._store, self._registry.bucket(resource)
        mirror: Mirror | None = resource.mirror
        if mirror is not None and options.resource_version != "0":
            # if that fails, convert each object now, and let the response show the error
            mirror = mirror if await mirror.settled(FUTURE_WAIT) else None
        if mirror is not None:
            bucket = mirror.bucket
        version = self._version(
            options.resource_version,
            lambda words: refusal.bad_request(f"invalid resource version: {words}"),
        )
        limit = max(0, options.limit)
        if options.continue_token:
            if options.resource_version not in {"", "0"}:
                raise refusal.bad_request(
                    "specifying resource version is not allowed when using continue"
                )
            revision, start = read_token(options.continue_token)
            if revision == INCONSISTENT:
                revision = store.revision
            found = self._at(bucket, namespace, revision, token_start=start)
        else:
            exact = options.match == "Exact" or (version > 0 and limit > 0 and not options.match)
            await self._wait_for(version)
            if exact:
                revision = version
                found = self._at(bucket, namespace, revision)
            else:
                revision = store.revision if mirror is None else mirror.revision
                found = bucket.span(namespace)
                if self.stale_at is not None and options.resource_version:
                    # answer reads that may be stale like a replica whose cache lags
                    revision = min(self.stale_at, revision)
                    if version > revision:
                        await self._clock.sleep(FUTURE_WAIT)
                        raise refusal.too_large_version(version, revision)
                    found = bucket.span(namespace, revision=revision)
                if options.resource_version == "0":
                    limit = 0
        selection = Filter(options.label_selector, options.field_selector, options.shard)
        plain = selection.is_everything
        chosen: Iterable[Entry] = found if plain else filter(selection.matches, found)
        # one extra entry shows whether there are more
        entries = list(islice(chosen, limit + 1) if limit else chosen)
        metadata: dict[str, object] = {"resourceVersion": str(revision)}
        if options.shard is not None:
            metadata["shardInfo"] = {"selector": options.shard.selector}
        if 0 < limit < len(entries):
            del entries[limit:]
            prefix = f"{namespace}/" if namespace else ""
            metadata["continue"] = write_token(revision, entries[-1].key[len(prefix) :])
            if plain:
                metadata["remainingItemCount"] = len(found) - limit
        if mirror is None:
            entries = converted_all(resource, entries)
        return entries, metadata

    def _at(
        self,
        bucket: Bucket,
        namespace: str,
        revision: int,
        *,
        token_start: str | None = None,
    ) -> Span:
        store = self._store
        try:
            store.check_readable(revision)
        except CompactedError:
            if token_start is None:
                raise refusal.expired(
                    "The resourceVersion for the provided list is too old."
                ) from None
            error = refusal.expired(TOO_OLD_WORDS)
            raise ExpiredTokenError(error, write_token(INCONSISTENT, token_start[:-1])) from None
        prefix = f"{namespace}/" if namespace else ""
        return bucket.span(namespace, start=f"{prefix}{token_start or ''}", revision=revision)

    # -- watch -------------------------------------------------------------------------------

    async def watch(self, call: Call, resource: APIResource) -> StreamResponse:
        """Stream changes until the client leaves, the time is over or the server stops."""
        options = parse_list_options(call.query, watch=True)
        fields = options.field_selector
        name = call.info.name
        if name:
            fields = FieldSelector((*fields.requirements, FieldRequirement("metadata.name", name)))
        fields = check_fields(resource, fields)
        version = self._version(options.resource_version, refusal.server_error)
        representation = call.representation
        include = self._include(call) if representation.transform == "Table" else ""
        response = StreamResponse(
            status=200,
            headers={
                "Content-Type": representation.content_type,
                "Cache-Control": "no-cache, private",
            },
        )
        response.enable_chunked_encoding()
        # only a stream of initial events waits for a future version
        awaited = version if options.send_initial else 0
        if awaited > self._present():
            await self._store.reached(awaited, FUTURE_WAIT)
        make, bookmark, form = self._frames(resource, representation, include)
        mirror: Mirror | None = resource.mirror
        stream = WatchStream(
            self._store,
            self._registry.bucket(resource) if mirror is None else mirror.bucket,
            self._watch_options(call, options, fields, version),
            clock=self._clock,
            cache=self._cache,
            form=form,
            make=make,
            bookmark=bookmark,
            error=_error_frame(representation),
            backlog_limit=self._backlog_limit,
        )
        fault = call.fault
        stream.withhold_bookmarks = self.withhold_bookmarks
        if fault is not None:
            stream.withhold_bookmarks |= fault.withhold_bookmarks
            stream.fault = fault if fault.tampers else None
        stream.lag = lambda: self.stale_at
        if representation.transform == "PartialObjectMetadataList":
            # a real server can't write an object as a list: the first event ends the watch
            stream.make_nothing()
        if awaited > self._present():
            stream.refused = refusal.too_large_version(awaited, self._present())
        if mirror is not None:
            stream.progress = lambda: mirror.revision
            newest = options.send_initial or not options.resource_version
            if newest and not await mirror.settled(FUTURE_WAIT):
                present = self._store.revision
                stream.refused = refusal.too_large_version(present, mirror.revision)
        self.streams[stream] = None
        try:
            await stream.run(call.request, response)
        finally:
            del self.streams[stream]
        return response

    def _present(self) -> int:
        return self._store.revision if self.stale_at is None else self.stale_at

    def _watch_options(
        self, call: Call, options: ListQuery, fields: FieldSelector, version: int
    ) -> WatchQuery:
        initial = options.send_initial
        if initial is None:
            initial = options.resource_version in {"", "0"}
        return WatchQuery(
            namespace=call.namespace,
            selection=Filter(options.label_selector, fields, options.shard),
            since=None if initial or not version else version,
            initial=initial,
            initial_bookmark=bool(options.send_initial) and options.bookmarks,
            bookmarks=options.bookmarks,
            timeout=float(options.timeout or 0) or self._random.uniform(1800.0, 3600.0),
        )

    def _frames(
        self, resource: APIResource, representation: Representation, include: str
    ) -> tuple[Callable[[str, Entry], bytes], Callable[[int, bool], bytes], object]:
        transform = representation.transform
        plain = resource.convert is None and (
            resource.versions is None or resource.mirror is not None
        )

        def seen(entry: Entry) -> Entry:
            return entry if plain else converted(resource, entry)

        if transform == "Table":
            row, rows_bookmark = self.tables.frames(resource, include, representation.version)
            return (lambda kind, entry: row(kind, seen(entry))), rows_bookmark, object()
        version = representation.version
        prefix = _PARTIAL_PREFIX % version.encode() if transform else resource.object_prefix

        def body(entry: Entry) -> bytes:
            if transform:
                return partial_bytes(resource, entry.data, version)
            return entry_bytes(resource, seen(entry))

        def mark(revision: int, initial_end: bool) -> bytes:  # noqa: FBT001 - one caller
            metadata: dict[str, object] = {"resourceVersion": str(revision)}
            if initial_end:
                metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
            return prefix + b'"metadata":%b}' % msgspec.json.encode(metadata)

        event = _event_maker(representation)

        def make(kind: str, entry: Entry) -> bytes:
            return event(kind, body(entry))

        def make_plain(kind: str, entry: Entry) -> bytes:
            # the common case, without an extra copy
            return b'{"type":"%b","object":%b%b}\n' % (kind.encode(), prefix, entry.data[1:])

        if event is event_bytes and not transform and plain:
            make = make_plain
        form = (representation.media_type, prefix)
        return make, lambda revision, end: event("BOOKMARK", mark(revision, end)), form


def _event_maker(representation: Representation) -> Callable[[str, bytes], bytes]:
    """Return the function that frames an event's type and its object's JSON."""
    if representation.media_type != PROTOBUF:
        return event_bytes
    from listwatch.apiserver.http.protobuf import (  # noqa: PLC0415 - rarely needed
        encode_event,
        encode_json,
    )

    return lambda kind, body: encode_event(kind, encode_json(body))


def _error_frame(representation: Representation) -> Callable[[StatusError], bytes]:
    event = _event_maker(representation)
    return lambda error: event("ERROR", msgspec.json.encode(error.to_status()))


async def _protobuf_list(
    call: Call,
    resource: APIResource,
    entries: Sequence[Entry],
    metadata: Mapping[str, object],
    *,
    partial: bool,
) -> Response:
    """Respond with a list in protobuf, encoded in steps between which other tasks run."""
    from listwatch.apiserver.http.protobuf import (  # noqa: PLC0415 - rarely needed
        encode_item,
        encode_list,
    )

    version, kind = resource.api_version, resource.kind
    if partial:
        version = f"meta.k8s.io/{call.representation.version}"
        kind = "PartialObjectMetadata"
    items = []
    for number, entry in enumerate(entries, 1):
        data = partial_bytes(resource, entry.data) if partial else entry.data
        items.append(encode_item(version, kind, data))
        if number % _TURN == 0:
            await asyncio.sleep(0)
    body = encode_list(
        version, f"{kind}List" if partial else resource.list_kind, dict(metadata), items
    )
    return call.answer(body, content_type=PROTOBUF)


def _go_type(resource: APIResource) -> str:
    if resource.custom is not None:
        return "unstructured.Unstructured"
    return f"{resource.group.partition('.')[0] or 'core'}.{resource.kind}"


def check_fields(resource: APIResource, selector: FieldSelector) -> FieldSelector:
    """Return a selector with the stored field names.

    Raises:
        BadRequestError: 400, the resource lacks one of these fields.
    """
    if not selector.requirements:
        return selector
    known = supported_fields(resource)
    found = []
    for requirement in selector.requirements:
        name = requirement.field
        if name in known:
            found.append(FieldRequirement(known[name], requirement.value, requirement.negated))
            continue
        if resource.custom is not None or len(known) > 2:
            raise refusal.bad_request(f"field label not supported: {name}")
        raise refusal.bad_request(
            f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        )
    return FieldSelector(tuple(found))


def converted(resource: APIResource, entry: Entry) -> Entry:
    """Return an entry in the resource's version."""
    convert = resource.convert or resource.versions
    if convert is None:
        return entry
    obj = convert.outward(msgspec.json.decode(entry.data))
    ordered = {"metadata": obj["metadata"], **obj}
    return msgspec.structs.replace(entry, data=msgspec.json.encode(ordered))


def converted_all(resource: APIResource, entries: list[Entry]) -> list[Entry]:
    """Return entries in the resource's version.

    Raises:
        Unanswered: webhooks have to convert some of them first.
    """
    if resource.convert is None and resource.versions is None:
        return entries
    return ask_all([partial(converted, resource, entry) for entry in entries])


__all__ = ["Reader", "check_fields", "converted", "negotiate"]
