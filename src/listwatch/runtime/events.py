"""Reports a controller's actions as Events on the object, without delaying the controller."""

import asyncio
import contextlib
import itertools
import logging
import socket
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import msgspec

from listwatch.backoff import EVENT, retry
from listwatch.clock import Clock
from listwatch.errors import (
    AlreadyExistsError,
    DisconnectedError,
    NotFoundError,
    StatusError,
)
from listwatch.objects import Object
from listwatch.printable import printable
from listwatch.runtime.event_bodies import (
    WORD_LIMIT,
    Reporter,
    ReportsEvents,
    count_patch,
    cut,
    event_body,
)
from listwatch.runtime.event_correlation import (
    Count,
    Create,
    EventLimits,
    Occurrence,
    WrittenEvent,
    make_correlator,
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


class EventRecorder(ReportsEvents):
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
        limits: how floods are cut.
        more_sinks: also write all events there, such as to another cluster. Each has its own queue
            and limits: one that is slow or away delays and costs no other.
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
        limits: EventLimits | None = None,
        more_sinks: Sequence[EventClient] = (),
        clock: Clock | None = None,
        flush_seconds: float = 2.0,
    ) -> None:
        if problems := qualified_name_problems(component):
            raise ValueError(
                f"component must name the reporter, for example 'widget-controller', not "
                f"{component!r}: {problems[0]}"
            )
        self._client = client
        instance = cut(instance or socket.gethostname(), WORD_LIMIT)
        self._reporter = Reporter(component, instance, api)
        self._api = api
        self._others = [
            EventRecorder(sink, component, instance=instance, api=api, limits=limits, clock=clock)
            for sink in more_sinks
        ]
        super().__init__(clock or Clock())
        self._flush_seconds = flush_seconds
        self._correlator = make_correlator(api, limits)
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

    def _report(self, occurrence: Occurrence) -> None:
        self.accept(occurrence)
        for other in self._others:
            other.accept(occurrence)

    def accept(self, occurrence: Occurrence) -> None:
        """Queue what was reported, for this sink; any thread may call this."""
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
        if not self._others:
            await self._run()
            return
        async with asyncio.TaskGroup() as group:
            _ = group.create_task(self._run())
            for other in self._others:
                _ = group.create_task(other.run())

    async def _run(self) -> None:
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
        for other in self._others:
            await other.flush()

    def statistics(self) -> EventRecorderStatistics:
        """Return the current state, summed over all sinks; any thread may call this."""
        own = self._statistics()
        if not self._others:
            return own
        parts = [own, *(other.statistics() for other in self._others)]
        names = own.__struct_fields__
        return EventRecorderStatistics(**{n: sum(getattr(p, n) for p in parts) for n in names})

    def _statistics(self) -> EventRecorderStatistics:
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
        metadata = {"name": name, "namespace": namespace}
        body = event_body(self._reporter, metadata, what, first)
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
        patch = count_patch(self._api, what)
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


def _may_try_again(error: Exception) -> bool:
    """Return whether the server gave no answer, so that another try may help."""
    if isinstance(error, StatusError):
        return False  # as client-go: the server answered, so it had the event
    return isinstance(error, DisconnectedError | TimeoutError | OSError)


def component_of(name: str) -> str:
    """Return a qualified name as close to this one as possible."""
    if not qualified_name_problems(name):
        return name
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept[:63].strip("-_.") or "listwatch"
