"""Reports a controller's actions as Events on the object, without delaying the controller."""

import asyncio
import contextlib
import itertools
import logging
import socket
import uuid
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import msgspec

from listwatch.backoff import EVENT, retry
from listwatch.client.typed_objects import object_of
from listwatch.clock import Clock
from listwatch.errors import (
    AlreadyExistsError,
    DisconnectedError,
    ListWatchError,
    NotFoundError,
    StatusError,
)
from listwatch.objects import Object
from listwatch.printable import printable
from listwatch.runtime.api_time import api_time, micro_time
from listwatch.runtime.event_correlation import (
    CoreCorrelator,
    Correlator,
    Count,
    Create,
    ObjectReference,
    Occurrence,
    SeriesCorrelator,
    WrittenEvent,
)
from listwatch.selector import qualified_name_problems, subdomain_problems

if TYPE_CHECKING:
    from listwatch.client.client import Client

_logger = logging.getLogger(__name__)

#: Maximum events waiting to be written; further ones are dropped.
QUEUE_LIMIT = 1000
#: Maximum concurrent requests, and the time limit of one in seconds.
WRITES_AT_ONCE = 8
REQUEST_SECONDS = 30.0
# In bytes, as the server counts.
_NOTE_LIMIT = 1024
_WORD_LIMIT = 128
_NAME_LIMIT = 253
_SERIES_SECONDS = 60.0


class EventClient(Protocol):
    """Writes Events. May raise what a client raises; must end promptly when cancelled."""

    async def create(self, event: Mapping[str, Any]) -> Object:
        """Create an event in the apiVersion and namespace that it names."""
        ...

    async def patch(
        self, api_version: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        """Merge a patch into an event; raise `NotFoundError` if it no longer exists."""
        ...


class ClientEvents:
    """Writes the Events of a whole cluster through a client, in the client's event loop."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def create(self, event: Mapping[str, Any]) -> Object:
        """Create an event."""
        return await self._client.create(event)

    async def patch(
        self, api_version: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        """Merge a patch into an event."""
        resource = "events.v1." if api_version == "v1" else "events.v1.events.k8s.io"
        return await self._client.patch(resource, name, patch, namespace)


class EventRecorderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a recorder.

    Attributes:
        queued: events waiting to be written.
        written: creations and counts that the server accepted.
        counted: repetitions counted in memory only.
        spam: dropped because there were too many of one source, object and type.
        overflowed: dropped because too many were waiting.
        failed: refused, or given up after all tries.
        remembered: events that a repetition would be counted on.
    """

    queued: int
    written: int
    counted: int
    spam: int
    overflowed: int
    failed: int
    remembered: int


def reference(obj: object, field_path: str = "") -> ObjectReference:
    """Return a reference to an object.

    Raises:
        ListWatchError: the object has no kind, apiVersion or name.
        TypeError: it is neither an `Object`, a mapping, nor of a resource type.
    """
    if not isinstance(obj, Mapping):
        obj = object_of(obj)
        found = ObjectReference(
            obj.api_version,
            obj.kind,
            obj.namespace,
            obj.name,
            obj.uid,
            obj.resource_version,
            field_path,
        )
    else:
        meta = obj.get("metadata") or {}
        found = ObjectReference(
            str(obj.get("apiVersion") or ""),
            str(obj.get("kind") or ""),
            str(meta.get("namespace") or ""),
            str(meta.get("name") or ""),
            str(meta.get("uid") or ""),
            str(meta.get("resourceVersion") or ""),
            field_path,
        )
    if not (found.api_version and found.kind and found.name):
        raise ListWatchError("an event needs an object with apiVersion, kind and metadata.name")
    return found


class EventRecorder:
    """Writes events in the background.

    Any thread may call `event`, even before `run`. It never waits, and never raises for anything
    that the server or the network does. Repetitions are counted, similar messages combined, and
    floods cut. An event that the server refuses is logged and dropped. One that never reached the
    server is retried, and delays only events of the same object. Events inform people and may be
    lost; never depend on them.

    Use it as `async with recorder:`, which runs it and at the end gives it `flush_seconds` to write
    waiting events; or call `run`.

    Args:
        client: writes the events.
        component: the reporting controller, such as "widget-controller" or "example.com/widgets";
            servers accept only a qualified name.
        instance: the reporting instance; by default this host's name.
        api: "events.k8s.io/v1" counts a series in memory and writes its count rarely; "v1" writes
            each repetition, for old tools and servers.
        clock: the time.
        flush_seconds: how long leaving the `async with` may take.

    Raises:
        ValueError: the component is not a qualified name.
    """

    def __init__(
        self,
        client: EventClient,
        component: str,
        *,
        instance: str = "",
        api: Literal["events.k8s.io/v1", "v1"] = "events.k8s.io/v1",
        clock: Clock | None = None,
        flush_seconds: float = 2.0,
    ) -> None:
        if problems := qualified_name_problems(component):
            raise ValueError(
                f"component must name the reporter, for example 'widget-controller', not "
                f"{component!r}: {problems[0]}"
            )
        self._client = client
        self._component = component
        self._instance = _cut(instance or socket.gethostname(), _WORD_LIMIT)
        self._api = api
        self._clock = clock or Clock()
        self._flush_seconds = flush_seconds
        self._correlator: Correlator = SeriesCorrelator() if api != "v1" else CoreCorrelator()
        # A deque's append and popleft are atomic, so any thread may report.
        self._queue: deque[Occurrence] = deque()
        # The events waiting for each object, in order; one task per object writes them.
        self._lanes: dict[tuple[str, ...], deque[Occurrence | Count]] = {}
        self._waiting = 0
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._sequence = itertools.count()
        self._written = 0
        self._counted = 0
        self._spam = 0
        self._overflowed = 0
        self._failed = 0

    def event(
        self,
        obj: object,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
        reason: str,
        message: str,
        *,
        action: str = "",
        related: object = None,
    ) -> None:
        """Report an event about an object.

        Args:
            obj: an `Object`, a mapping or an object of a resource type, with kind, apiVersion, name
                and preferably a uid.
            type: "Normal" or "Warning".
            reason: one word in CamelCase, for machines, such as "ScaledUp".
            message: for people; cut after 1,024 bytes.
            action: the action taken, in CamelCase; by default the reason.
            related: another object that was involved.

        Raises:
            ValueError: another type, or no reason.
            ListWatchError: the object lacks kind, apiVersion or name.
            TypeError: the object is of another type.
        """
        if type not in {"Normal", "Warning"} or not reason:
            raise ValueError(
                f"an event needs a reason and the type Normal or Warning, not {reason!r}, {type!r}"
            )
        occurrence = Occurrence(
            reference(obj),
            type,
            _cut(reason, _WORD_LIMIT),
            _cut(message, _NOTE_LIMIT),
            _cut(action or reason, _WORD_LIMIT),
            reference(related) if related is not None else None,
            self._clock.time(),
            self._clock.now(),
        )
        if len(self._queue) + self._waiting >= QUEUE_LIMIT:
            self._overflowed += 1
            return
        self._queue.append(occurrence)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # just closed: the event waits for another run
                loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Write events until cancelled. Events still waiting are not written."""
        self._loop = asyncio.get_running_loop()
        next_series = self._clock.now() + _SERIES_SECONDS
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._wake.clear()
                    while self._queue:
                        occurrence = self._queue.popleft()
                        self._put(group, occurrence.regarding.identity, occurrence)
                    if self._clock.now() >= next_series:
                        next_series = self._clock.now() + _SERIES_SECONDS
                        for count in self._correlator.due(self._clock.now()):
                            self._put(group, count.written.regarding, count)
                    if not self._lanes:
                        self._idle.set()
                    with contextlib.suppress(TimeoutError):
                        async with self._clock.timeout(next_series - self._clock.now()):
                            await self._wake.wait()
        finally:
            self._loop = None
            self._idle.set()

    def _put(
        self, group: asyncio.TaskGroup, regarding: tuple[str, ...], what: Occurrence | Count
    ) -> None:
        """Write something after everything waiting for the same object."""
        self._idle.clear()
        self._waiting += 1
        lane = self._lanes.get(regarding)
        if lane is None:
            lane = self._lanes[regarding] = deque()
            _ = group.create_task(self._write_lane(regarding, lane))
        lane.append(what)

    async def _write_lane(
        self, regarding: tuple[str, ...], lane: "deque[Occurrence | Count]"
    ) -> None:
        try:
            while lane:
                what = lane.popleft()
                self._waiting -= 1
                await (self._record(what) if isinstance(what, Occurrence) else self._write(what))
        finally:
            self._waiting -= len(lane)
            self._lanes.pop(regarding, None)
            if not self._lanes:
                self._wake.set()  # so that it checks whether anything is left

    async def __aenter__(self) -> Self:
        self._runner = asyncio.get_running_loop().create_task(self.run(), name="event recorder")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(self._flush_seconds):
                    await self.flush()
        finally:
            runner.cancel()
            await asyncio.wait({runner})
            if not runner.cancelled() and (failure := runner.exception()) is not None:
                _logger.error("the event recorder failed", exc_info=failure)

    async def flush(self) -> None:
        """Wait until everything reported so far is written or given up."""
        if self._queue:
            self._idle.clear()
        await self._idle.wait()

    def statistics(self) -> EventRecorderStatistics:
        """Return the current state; any thread may call this."""
        return EventRecorderStatistics(
            queued=len(self._queue) + self._waiting,
            written=self._written,
            counted=self._counted,
            spam=self._spam,
            overflowed=self._overflowed,
            failed=self._failed,
            remembered=len(self._correlator),
        )

    # --- Writing ---

    async def _record(self, occurrence: Occurrence) -> None:
        decision = self._correlator.decide(occurrence)
        if isinstance(decision, Create | Count):
            await self._write(decision)
        elif decision.spam:
            self._spam += 1
        else:
            self._counted += 1

    async def _write(self, what: Create | Count) -> None:
        name = self._name_for(what.occurrence) if isinstance(what, Create) else ""

        async def write() -> None:
            async with self._slots, self._clock.timeout(REQUEST_SECONDS):
                if isinstance(what, Create):
                    await self._create(what, name)
                else:
                    await self._count(what)

        def after(error: Exception, delay: float) -> float | None:
            return delay if _may_try_again(error) else None

        try:
            await retry(write, EVENT, after, clock=self._clock)
        except Exception as error:  # noqa: BLE001 - an event never fails its reporter; it is logged
            self._failed += 1
            words = printable(str(error) or type(error).__name__)
            _logger.warning("an event was not written: %s", words)
        else:
            self._written += 1

    def _name_for(self, occurrence: Occurrence) -> str:
        # The time makes it unique among processes, the number within this process.
        suffix = f".{int(occurrence.time * 1e6):x}{next(self._sequence) & 0xFFF:03x}"
        name = occurrence.regarding.name[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix
        # Objects of some kinds, such as roles, may have names that an event can't have.
        return str(uuid.uuid4()) if subdomain_problems(name) else name

    async def _create(self, what: Create, name: str) -> None:
        occurrence = what.occurrence
        namespace = occurrence.regarding.namespace or "default"
        first = occurrence.time if what.first_time is None else what.first_time
        body = self._body({"name": name, "namespace": namespace}, what, first)
        with contextlib.suppress(AlreadyExistsError):  # an earlier try succeeded
            await self._client.create(body)
        self._correlator.wrote(
            what.key,
            WrittenEvent(
                namespace,
                name,
                what.count,
                first,
                occurrence.time,
                occurrence.regarding.identity,
                last_at=occurrence.at,
                written_at=self._clock.now(),
                written_count=what.count,
            ),
        )

    async def _count(self, what: Count) -> None:
        written = what.written
        count = written.count
        patch: dict[str, Any]
        if self._api == "v1":
            patch = {"count": count, "lastTimestamp": api_time(written.last_time)}
            if what.occurrence is not None:
                patch["message"] = _cut(what.occurrence.message, _NOTE_LIMIT)
        else:
            patch = {
                "series": {"count": count, "lastObservedTime": micro_time(written.last_time)},
            }
        try:
            await self._client.patch(self._api, written.namespace, written.name, patch)
        except NotFoundError:
            # It has expired on the server; its series ends with it.
            self._correlator.lost(what.key)
            if what.occurrence is not None:
                await self._create(
                    Create(what.key, what.occurrence), self._name_for(what.occurrence)
                )
            return
        written.written_count = count
        written.written_at = self._clock.now()

    def _body(self, metadata: dict[str, Any], what: Create, first: float) -> dict[str, Any]:
        occurrence = what.occurrence
        note = _cut(occurrence.message, _NOTE_LIMIT)  # "combined …" may have made it longer
        regarding = msgspec.to_builtins(occurrence.regarding)
        event: dict[str, Any] = {
            "metadata": metadata,
            "type": occurrence.type,
            "reason": occurrence.reason,
            "action": occurrence.action,
            "reportingInstance": self._instance,
        }
        if occurrence.related is not None:
            event["related"] = msgspec.to_builtins(occurrence.related)
        if self._api == "v1":
            return event | {
                "apiVersion": "v1",
                "kind": "Event",
                "involvedObject": regarding,
                "message": note,
                "source": {"component": self._component, "host": self._instance},
                "reportingComponent": self._component,
                "firstTimestamp": api_time(first),
                "lastTimestamp": api_time(occurrence.time),
                "count": what.count,
            }
        return event | {
            "apiVersion": self._api,
            "kind": "Event",
            "regarding": regarding,
            "note": note,
            "reportingController": self._component,
            "eventTime": micro_time(occurrence.time),
        }


def _may_try_again(error: Exception) -> bool:
    """Return whether the server gave no answer, so that another try may help."""
    if isinstance(error, StatusError):
        return False  # as client-go: the server answered, so it had the event
    return isinstance(error, DisconnectedError | TimeoutError | OSError)


def _cut(text: str, limit: int) -> str:
    """Cut a text to this many bytes of UTF-8; half characters become question marks."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    dots = "..." if limit == _NOTE_LIMIT else ""
    return data[: limit - len(dots)].decode("utf-8", "ignore") + dots


def component_of(name: str) -> str:
    """Return a qualified name as close to this one as possible."""
    if not qualified_name_problems(name):
        return name
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept[:63].strip("-_.") or "listwatch"
