"""Reports what a controller did as Events on the object, without ever getting in its way."""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import msgspec

from listwatch.clock import Clock
from listwatch.errors import (
    ConflictError,
    ListWatchError,
    NotFoundError,
    StatusError,
    TooManyRequestsError,
)
from listwatch.objects import Object
from listwatch.runtime.api_time import api_time, micro_time
from listwatch.runtime.event_correlation import (
    CoreCorrelator,
    Correlator,
    Count,
    Create,
    ObjectReference,
    Occurrence,
    SeriesCorrelator,
    Written,
)

if TYPE_CHECKING:
    from listwatch.client.client import Client

_logger = logging.getLogger(__name__)

#: Events that wait to be written; what comes on top is dropped.
QUEUE_LIMIT = 1000
#: How often an event is tried, and the seconds between two tries (client-go `tools/record`).
TRIES = 12
RETRY_SECONDS = 10.0
_NOTE_LIMIT = 1024
_WORD_LIMIT = 128
_SERIES_SECONDS = 60.0


class EventClient(Protocol):
    """Writes Events; may raise what a client raises, and must end promptly when cancelled."""

    async def create(self, event: Mapping[str, Any]) -> Object:
        """Create an event of its own apiVersion in its own namespace."""
        ...

    async def patch(
        self, api_version: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        """Merge a patch into an event; `NotFoundError` if it is gone."""
        ...


class ClientEvents:
    """The Events of a whole cluster by way of a client, in whose event loop it is used."""

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
    """The state of a recorder at one moment.

    Attributes:
        queued: waiting to be written.
        written: creates and counts that the server took.
        counted: repetitions that were counted in memory only.
        spam: dropped because there were too many of one source, object and type.
        overflowed: dropped because too many waited.
        failed: given up after all tries, or refused.
        remembered: events that a repetition would be counted on.
    """

    queued: int
    written: int
    counted: int
    spam: int
    overflowed: int
    failed: int
    remembered: int


def reference(obj: Object | Mapping[str, Any], field_path: str = "") -> ObjectReference:
    """Return a reference to an object.

    Raises:
        ListWatchError: the object has no kind, apiVersion or name.
    """
    if isinstance(obj, Object):
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

    `event` may be called from any thread, also before `run`; it never waits, and never raises for
    anything that the server or the network does. Repetitions are counted, similar messages
    combined, floods cut; what the server refuses is logged and dropped. Events are a help for
    people and may be lost: nothing may rest on them.

    Use it as `async with recorder:`, which runs it and at the end gives it `flush_seconds` to
    write what waits; or call `run`.

    Args:
        client: writes the events.
        component: who reports, such as "widget-controller" or "example.com/widgets".
        instance: which one of them; by default this host's name.
        api: "events.k8s.io/v1" counts a series in memory and writes now and then; "v1" writes
            each repetition, for old tools and servers.
        clock: the time.
        flush_seconds: how long leaving the `async with` may take.
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
        if not component:
            raise ValueError("component must say who reports, for example 'widget-controller'")
        self._client = client
        self._component = component
        self._instance = (instance or socket.gethostname())[:_WORD_LIMIT]
        self._api = api
        self._clock = clock or Clock()
        self._flush_seconds = flush_seconds
        self._correlator: Correlator = SeriesCorrelator() if api != "v1" else CoreCorrelator()
        # A deque's append and popleft are atomic, so that any thread may report.
        self._queue: deque[Occurrence] = deque()
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
        obj: Object | Mapping[str, Any],
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
        reason: str,
        message: str,
        *,
        action: str = "",
        related: Object | Mapping[str, Any] | None = None,
    ) -> None:
        """Report that something happened to an object.

        Args:
            obj: the object, which has kind, apiVersion, name and best a uid.
            type: "Normal" or "Warning".
            reason: one word in CamelCase, for machines, such as "ScaledUp".
            message: for people; cut after 1,024 characters.
            action: what was done, in CamelCase; by default the reason.
            related: another object that it was about.

        Raises:
            ValueError: another type, or no reason.
            ListWatchError: the object lacks what names it.
        """
        if type not in {"Normal", "Warning"} or not reason:
            raise ValueError(
                f"an event needs a reason and the type Normal or Warning, not {reason!r}, {type!r}"
            )
        occurrence = Occurrence(
            reference(obj),
            type,
            reason[:_WORD_LIMIT],
            message if len(message) <= _NOTE_LIMIT else message[: _NOTE_LIMIT - 3] + "...",
            (action or reason)[:_WORD_LIMIT],
            reference(related) if related is not None else None,
            self._clock.time(),
            self._clock.now(),
        )
        if len(self._queue) >= QUEUE_LIMIT:
            self._overflowed += 1
            return
        self._queue.append(occurrence)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed just now: it waits for another run
                loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Write events until cancelled. What waits then is not written."""
        self._loop = asyncio.get_running_loop()
        next_series = self._clock.now() + _SERIES_SECONDS
        try:
            while True:
                self._wake.clear()
                while self._queue:
                    self._idle.clear()
                    await self._record(self._queue.popleft())
                if self._clock.now() >= next_series:
                    next_series = self._clock.now() + _SERIES_SECONDS
                    for count in self._correlator.due(self._clock.now()):
                        await self._write(count)
                self._idle.set()
                with contextlib.suppress(TimeoutError):
                    async with self._clock.timeout(next_series - self._clock.now()):
                        await self._wake.wait()
        finally:
            self._loop = None
            self._idle.set()

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
        """Return when everything that was reported until now is written or given up."""
        if self._queue:
            self._idle.clear()
        await self._idle.wait()

    def statistics(self) -> EventRecorderStatistics:
        """Return the state of this moment; any thread may ask."""
        return EventRecorderStatistics(
            queued=len(self._queue),
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
        for attempt in range(1, TRIES + 1):
            try:
                if isinstance(what, Create):
                    await self._create(what)
                else:
                    await self._count(what)
            except Exception as error:  # noqa: BLE001 - an event never fails its reporter; it is logged
                if _is_final(error) or attempt == TRIES:
                    self._failed += 1
                    _logger.warning("an event was not written: %s", error)
                    return
            else:
                self._written += 1
                return
            await self._clock.sleep(RETRY_SECONDS)

    async def _create(self, what: Create) -> None:
        occurrence = what.occurrence
        namespace = occurrence.regarding.namespace or "default"
        # The time makes it unique among processes, the number within this one.
        suffix = f".{int(occurrence.time * 1e6):x}{next(self._sequence) & 0xFFF:03x}"
        name = occurrence.regarding.name[: 253 - len(suffix)].rstrip("-.") + suffix
        await self._client.create(
            self._body({"name": name, "namespace": namespace}, occurrence, first=occurrence.time)
        )
        self._correlator.wrote(
            what.key,
            Written(
                namespace,
                name,
                1,
                occurrence.time,
                occurrence.time,
                last_at=occurrence.at,
                written_at=self._clock.now(),
            ),
        )

    async def _count(self, what: Count) -> None:
        written = what.written
        count = written.count
        patch: dict[str, Any]
        if self._api == "v1":
            patch = {"count": count, "lastTimestamp": api_time(written.last_time)}
            if what.occurrence is not None:
                patch["message"] = what.occurrence.message
        else:
            patch = {
                "series": {"count": count, "lastObservedTime": micro_time(written.last_time)},
            }
        try:
            await self._client.patch(self._api, written.namespace, written.name, patch)
        except NotFoundError:
            # It has expired on the server; a series' count belonged to it and goes with it.
            self._correlator.lost(what.key)
            if what.occurrence is not None:
                await self._create(Create(what.key, what.occurrence))
            return
        written.written_count = count
        written.written_at = self._clock.now()

    def _body(
        self, metadata: dict[str, Any], occurrence: Occurrence, *, first: float
    ) -> dict[str, Any]:
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
                "message": occurrence.message,
                "source": {"component": self._component, "host": self._instance},
                "reportingComponent": self._component,
                "firstTimestamp": api_time(first),
                "lastTimestamp": api_time(occurrence.time),
                "count": 1,
            }
        return event | {
            "apiVersion": self._api,
            "kind": "Event",
            "regarding": regarding,
            "note": occurrence.message,
            "reportingController": self._component,
            "eventTime": micro_time(occurrence.time),
        }


def _is_final(error: Exception) -> bool:
    """Whether trying again can't help: the server understood and refused."""
    return (
        isinstance(error, StatusError)
        and 400 <= error.code < 500
        and not isinstance(error, TooManyRequestsError | ConflictError)
    )
