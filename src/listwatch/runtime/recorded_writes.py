"""Records the writes of a reconcile through the client."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from listwatch.client.request_target import RequestTarget, target_of, verb_of
from listwatch.errors import DisconnectedError, FrameError, StatusError
from listwatch.objects import Object, ObjectKey, decode_object
from listwatch.runtime.reconcile_record import SentRequest

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.config import Config
    from listwatch.client.http import HTTP, Answer, Body
    from listwatch.runtime.history import History
    from listwatch.runtime.reconcile_record import ReconcileRecord

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Subresources that are not part of their object.
_ASIDE: Final = frozenset({"token", "log", "exec", "attach", "portforward", "proxy"})


class Write(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A write of a reconcile.

    Attributes:
        target: the target; `name` is the object's, even if the server generated it.
        uid: of the object; "" if unknown.
        resource_version: of the written state; "" for a deletion, or if the response was lost.
        answer: JSON of the written state; empty if the server did not return it.
        is_deletion: the object was deleted.
        is_gone: the deleted object is completely gone, not terminating.
        is_lost: the response was lost, so it is unknown what was written.
        origin: the cluster, for a manager of several; "" for the manager's own.
    """

    target: RequestTarget
    uid: str = ""
    resource_version: str = ""
    answer: bytes = b""
    is_deletion: bool = False
    is_gone: bool = False
    is_lost: bool = False
    origin: str = ""

    @classmethod
    def of(cls, target: RequestTarget, obj: Object) -> "Write":
        """Return the write whose result is this object."""
        return cls(
            target=target._replace(name=obj.name),
            uid=obj.uid,
            resource_version=obj.resource_version,
            answer=obj.json(),
        )

    @cached_property
    def obj(self) -> Object | None:
        """The written state, decoded when somebody asks; None if the server did not return it."""
        return decode_object(self.answer) if self.answer else None

    @property
    def key(self) -> str:
        """The key of the object in a cache."""
        return str(ObjectKey(self.target.namespace, self.target.name))


class Recording:
    """The writes of a reconcile until its end; tasks that it started may continue for ever."""

    def __init__(self, story: "ReconcileRecord | None", history: "History | None") -> None:
        #: In order.
        self.writes: list[Write] = []
        #: The objects that it has read as another type, by uid and version.
        self.reads: dict[tuple[str, str], Object] = {}
        #: Gets every request; None for none.
        self.story = story
        self.history = history
        self.is_over = False

    def end(self) -> list[Write]:
        """Stop recording; return the writes."""
        self.is_over = True
        self.reads = {}
        writes, self.writes = self.writes, []
        return writes


_recording: ContextVar[Recording | None] = ContextVar("own_writes", default=None)


def record(story: "ReconcileRecord | None" = None, history: "History | None" = None) -> Recording:
    """Record the writes that this task, and tasks it starts later, send through `recorded`.

    Args:
        story: also gets every request.
        history: of the story.
    """
    recording = Recording(story, history)
    _recording.set(recording)
    return recording


def writes_so_far() -> Sequence[Write]:
    """Return the writes of the running reconcile."""
    recording = _recording.get()
    return () if recording is None else recording.writes


def note_read(obj: Object) -> None:
    """Remember until the end of the running reconcile that it reads an object as another type."""
    recording = _recording.get()
    if recording is not None and not recording.is_over:
        recording.reads[obj.uid, obj.resource_version] = obj


def whole_state(uid: str, resource_version: str) -> Object | None:
    """Return the whole object of a typed one that the running reconcile has read or written."""
    recording = _recording.get()
    if recording is None:
        return None
    read = recording.reads.get((uid, resource_version))
    if read is not None:
        return read
    for write in reversed(recording.writes):
        if (write.uid, write.resource_version) == (uid, resource_version):
            return write.obj
    return None


def recorded(client: "Client", origin: str = "") -> "Client":
    """Return a client that shares everything with this one and records its writes.

    Args:
        client: sends the requests.
        origin: of the writes.
    """
    # There is no protocol for HTTP; a client uses two of its methods.
    http: Any = _RecordingHTTP(client.http, origin)
    return client.through(http)


class _RecordingHTTP:
    def __init__(self, http: "HTTP", origin: str = "") -> None:
        self._http = http
        self._origin = origin

    @property
    def config(self) -> "Config":  # asked for by each request, and faster than by name
        return self._http.config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    async def request(
        self, method: str, path: str, query: Iterable[tuple[str, str]] = (), **options: Any
    ) -> "Answer":
        recording = _recording.get()
        if recording is None or recording.is_over:
            return await self._http.request(method, path, query, **options)
        query = list(query)
        target = target_of(path)
        story, history = recording.story, recording.history
        if story is None or history is None or target is None:
            answer, _ = await self._send(recording, target, method, path, query, options)
            return answer
        verb = verb_of(method, target, query, options.get("content_type", ""))
        sent = SentRequest(verb, target, history.now())
        if target.name and method not in _READS:
            sent.before = history.find(target)
        story.add_request(sent)
        try:
            answer, writes = await self._send(recording, target, method, path, query, options)
        except BaseException as error:
            story.fail_request(sent, history.now(), error)
            raise
        version = writes[0].resource_version if writes else ""
        story.end_request(sent, history.now(), answer.status, answer.body, version)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, query: Iterable[tuple[str, str]] = (), **options: Any
    ) -> "AsyncIterator[Body]":
        recording, query, target = _recording.get(), list(query), target_of(path)
        opening = self._http.stream(path, query, **options)
        if recording is None or recording.is_over or target is None:
            story = history = None
        else:
            story, history = recording.story, recording.history
        if story is None or history is None or target is None:
            async with opening as body:
                yield body
            return
        sent = SentRequest(verb_of("GET", target, query), target, history.now())
        story.add_request(sent)
        try:
            async with opening as body:
                yield body
        except BaseException as error:
            story.fail_request(sent, history.now(), error)
            raise
        story.end_request(sent, history.now(), 200, b"")

    async def _send(
        self,
        recording: Recording,
        target: RequestTarget | None,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        options: dict[str, Any],
    ) -> "tuple[Answer, list[Write]]":
        """Send a request; record and return what it writes."""
        body = options.get("body")
        if (
            method in _READS
            or target is None
            or target.subresource in _ASIDE
            or _is_dry(method, target.subresource, query, body)
        ):
            return await self._http.request(method, path, query, **options), []
        writes = recording.writes
        try:
            answer = await self._http.request(method, path, query, **options)
        except (DisconnectedError, TimeoutError, FrameError, asyncio.CancelledError) as error:
            if not getattr(error, "refused", False):
                writes += self._from_here([_lost(method, target, body)])
            raise
        except StatusError as error:
            if error.code >= 500:  # a server's time-out may follow its commit
                writes += self._from_here([_lost(method, target, body)])
            raise
        written = self._from_here(_written(method, target, body, answer.body))
        writes += written
        return answer, written

    def _from_here(self, writes: list[Write]) -> list[Write]:
        if not self._origin:
            return writes
        return [msgspec.structs.replace(write, origin=self._origin) for write in writes]


class _Options(msgspec.Struct):
    dryRun: list[str] | None = None  # noqa: N815 - the name in JSON
    deleteOptions: "_Options | None" = None  # noqa: N815 - the name in JSON; for an eviction


def _is_dry(
    method: str, subresource: str, query: Iterable[tuple[str, str]], body: bytes | None
) -> bool:
    if query and any(name == "dryRun" for name, _ in query):
        return True
    if not body or b"dryRun" not in body:
        return False
    try:
        options: _Options | None = msgspec.json.decode(body, type=_Options)
    except (msgspec.MsgspecError, RecursionError):
        return False
    if subresource == "eviction" and options is not None:
        options = options.deleteOptions
    elif method != "DELETE":
        return False
    return options is not None and bool(options.dryRun)


def _lost(method: str, target: RequestTarget, body: bytes | None) -> Write:
    if method == "POST" and not target.name and body is not None:
        target = target._replace(name=_named(body).metadata.name or "")
    return Write(target=target, is_lost=True, is_deletion=method == "DELETE")


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class _Details(msgspec.Struct):
    uid: str | None = None


class _Named(msgspec.Struct):
    kind: str = ""
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    details: _Details | None = None


_read_named: Final = msgspec.json.Decoder(_Named).decode


def _named(body: bytes) -> _Named:
    """Return what names an object; nothing if the body is something else."""
    try:
        return _read_named(body)
    except (msgspec.MsgspecError, RecursionError):
        return _Named()


class _Deleted(msgspec.Struct):
    items: list[_Named] | None = None


def _written(method: str, target: RequestTarget, body: bytes | None, answer: bytes) -> list[Write]:
    if method == "DELETE":
        return _deleted(target, answer) if target.name else _deleted_all(target, answer)
    if target.subresource == "eviction":
        return [Write(target=target, is_deletion=True)]
    named = _named(answer)
    meta = named.metadata
    if named.kind == "Status" or not meta.name or not meta.resource_version:
        # A Status instead of the object, or a review, which changes nothing and has no name.
        lost = _lost(method, target, body)
        return [lost] if lost.target.name else []
    target = target._replace(name=meta.name)
    uid = meta.uid or ""
    is_whole = target.subresource != "scale"
    if is_whole and meta.deletion_timestamp is not None and _is_gone(target, meta, answer):
        return [Write(target=target, uid=uid, is_deletion=True, is_gone=True)]
    return [
        Write(
            target=target,
            uid=uid,
            resource_version=meta.resource_version,
            answer=answer if is_whole else b"",
        )
    ]


def _is_gone(target: RequestTarget, meta: _Metadata, answer: bytes) -> bool:
    """Return whether an update has removed the last finalizer of a terminating object.

    The server then deletes the object, but its answer has the version of the previous state.
    """
    if meta.finalizers or meta.deletion_grace_period_seconds:
        return False
    return not (
        target.plural == "namespaces" and (decode_object(answer)["spec"] or {}).get("finalizers")
    )


def _deleted(target: RequestTarget, answer: bytes) -> list[Write]:
    named = _named(answer)
    details = named.details or _Details()
    uid = details.uid if named.kind == "Status" else named.metadata.uid
    return [Write(target=target, uid=uid or "", is_deletion=True)]


def _deleted_all(target: RequestTarget, answer: bytes) -> list[Write]:
    try:
        items = msgspec.json.decode(answer, type=_Deleted).items
    except (msgspec.MsgspecError, RecursionError):
        items = None
    if items is None:  # a Status instead of the objects
        return [Write(target=target, is_deletion=True, is_lost=True)]
    return [
        Write(
            target=target._replace(name=item.metadata.name),
            uid=item.metadata.uid or "",
            is_deletion=True,
        )
        for item in items
        if item.metadata.name
    ]
