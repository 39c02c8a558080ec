"""Decides about an event: create it, count it on an earlier one, combine it, or drop it.

Pure rules without I/O, for both APIs. Those for core/v1 are client-go's
`tools/record/events_cache.go`, those for events.k8s.io/v1 its `tools/events`. Unlike there, the key
of a series lacks the object's resourceVersion, which would end a series at every change of the
object.
"""

from collections.abc import Hashable, Mapping

import msgspec

from listwatch.runtime.key_limits import KeyLimits, Lru

COMBINED = "(combined from similar events): "


class EventLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How floods of events are cut and similar ones combined; by default as client-go does.

    Attributes:
        spam_burst: events of one source, object and type that are written without a pause.
        spam_interval: seconds per event after that.
        similar_messages: this many different messages are combined into one event (core/v1 only).
        similar_seconds: time within which they count as similar.
        refresh_seconds: time after which a series' count is written again.
        finish_seconds: time after which a quiet series ends.
    """

    spam_burst: int = 25
    spam_interval: float = 300.0
    similar_messages: int = 10
    similar_seconds: float = 600.0
    refresh_seconds: float = 1800.0
    finish_seconds: float = 360.0

    def __post_init__(self) -> None:
        if self.spam_burst < 1 or self.similar_messages < 2:
            raise ValueError(
                "spam_burst must be at least 1 and similar_messages at least 2, not "
                f"{self.spam_burst} and {self.similar_messages}"
            )


class ObjectReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The object that an event is about."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """What identifies the object, whatever its state."""
        return (
            self.api_version,
            self.kind,
            self.namespace,
            self.name,
            self.uid,
            self.field_path,
        )


class Occurrence(msgspec.Struct, frozen=True):
    """One occurrence of an event, as a controller reports it."""

    regarding: ObjectReference
    type: str
    reason: str
    message: str
    action: str = ""
    related: ObjectReference | None = None
    #: Seconds since 1970, and by the monotonic clock.
    time: float = 0.0
    at: float = 0.0
    annotations: Mapping[str, str] = {}

    @property
    def similar(self) -> tuple[Hashable, ...]:
        """A key shared by occurrences that differ only in their message."""
        related = self.related.identity if self.related is not None else ()
        return (self.regarding.identity, self.type, self.reason, self.action, related)


class WrittenEvent(msgspec.Struct):
    """An event that exists on the API server."""

    namespace: str
    name: str
    count: int
    first_time: float
    last_time: float
    #: The object that it is about.
    regarding: tuple[str, ...] = ()
    #: Monotonic: time of the last occurrence, and of the last written count.
    last_at: float = 0.0
    written_at: float = 0.0
    written_count: int = 1


class Create(msgspec.Struct, frozen=True):
    """Create an event under this key; earlier occurrences may be unwritten."""

    key: Hashable
    occurrence: Occurrence
    count: int = 1
    first_time: float | None = None


class Count(msgspec.Struct, frozen=True):
    """Update an event's count, and its message if given."""

    key: Hashable
    written: WrittenEvent
    occurrence: Occurrence | None = None


class Drop(msgspec.Struct, frozen=True):
    """Write nothing; `spam` if there were too many."""

    spam: bool


class SpamFilter:
    """A token bucket per source, object and type."""

    def __init__(self, limits: EventLimits | None = None) -> None:
        limits = limits or EventLimits()
        self._buckets: KeyLimits[Hashable] = KeyLimits(limits.spam_burst, limits.spam_interval)

    def accepts(self, occurrence: Occurrence) -> bool:
        """Take a token, if there is one."""
        key = (occurrence.regarding.identity, occurrence.type)
        return self._buckets.take(key, occurrence.at) == 0


class _Similar(msgspec.Struct):
    messages: dict[str, None]
    at: float


class _Unwritten(msgspec.Struct):
    count: int
    first_time: float


class CoreCorrelator:
    """The rules for core/v1 events: each repetition is counted on the event, at once.

    As in client-go, dropped repetitions count too.
    """

    def __init__(self, limits: EventLimits | None = None) -> None:
        self._limits = limits or EventLimits()
        self._similar: Lru[Hashable, _Similar] = Lru()
        self._written: Lru[Hashable, WrittenEvent] = Lru()
        self._unwritten: Lru[Hashable, _Unwritten] = Lru()
        self._spam = SpamFilter(self._limits)

    def decide(self, occurrence: Occurrence) -> Create | Count | Drop:
        """Return what to write."""
        key: Hashable = occurrence.similar
        similar = self._similar.get(key)
        if similar is None or occurrence.at - similar.at > self._limits.similar_seconds:
            similar = _Similar({}, occurrence.at)
        similar.at = occurrence.at
        similar.messages[occurrence.message] = None
        self._similar.put(key, similar)
        if len(similar.messages) >= self._limits.similar_messages:
            similar.messages.pop(next(iter(similar.messages)))  # keeps the bound
            occurrence = msgspec.structs.replace(occurrence, message=COMBINED + occurrence.message)
        else:
            key = (key, occurrence.message)
        is_spam = not self._spam.accepts(occurrence)
        written = self._written.get(key)
        if written is not None:
            written.count += 1
            written.last_time = occurrence.time
            return Drop(spam=True) if is_spam else Count(key, written, occurrence)
        before = self._unwritten.get(key)
        if is_spam:
            before = before or _Unwritten(0, occurrence.time)
            before.count += 1
            self._unwritten.put(key, before)
            return Drop(spam=True)
        if before is None:
            return Create(key, occurrence)
        self._unwritten.pop(key)
        return Create(key, occurrence, before.count + 1, before.first_time)

    def wrote(self, key: Hashable, written: WrittenEvent) -> None:
        """Remember an event that was created."""
        self._written.put(key, written)

    def lost(self, key: Hashable) -> None:
        """Forget an event that no longer exists on the server."""
        self._written.pop(key)

    def due(self, now: float) -> list[Count]:  # noqa: ARG002 - the other style's, nothing is kept back
        """Return the counts that were delayed and are due."""
        return []

    def __len__(self) -> int:
        return len(self._written)


class SeriesCorrelator:
    """The rules for events.k8s.io/v1: a repetition starts a series, counted in memory."""

    def __init__(self, limits: EventLimits | None = None) -> None:
        self._limits = limits or EventLimits()
        self._written: Lru[Hashable, WrittenEvent] = Lru()
        self._spam = SpamFilter(self._limits)

    def decide(self, occurrence: Occurrence) -> Create | Count | Drop:
        """Return what to write."""
        key = occurrence.similar
        written = self._written.get(key)
        if written is None or occurrence.at - written.last_at > self._limits.finish_seconds:
            return Create(key, occurrence) if self._spam.accepts(occurrence) else Drop(spam=True)
        written.count += 1
        written.last_time, written.last_at = occurrence.time, occurrence.at
        return Count(key, written) if written.count == 2 else Drop(spam=False)

    def wrote(self, key: Hashable, written: WrittenEvent) -> None:
        """Remember an event that was created."""
        self._written.put(key, written)

    def lost(self, key: Hashable) -> None:
        """Forget an event that no longer exists on the server."""
        self._written.pop(key)

    def due(self, now: float) -> list[Count]:
        """Return the counts that were delayed and are due; forget the series that have ended."""
        due = []
        for key, written in self._written.items():
            is_over = now - written.last_at > self._limits.finish_seconds
            if written.count > written.written_count and (
                is_over or now - written.written_at >= self._limits.refresh_seconds
            ):
                due.append(Count(key, written))
            if is_over:
                self._written.pop(key)
        return due

    def __len__(self) -> int:
        return len(self._written)


Correlator = CoreCorrelator | SeriesCorrelator


def make_correlator(api: str, limits: EventLimits | None = None) -> Correlator:
    """Return the rules for an API, "v1" or "events.k8s.io/v1"."""
    return CoreCorrelator(limits) if api == "v1" else SeriesCorrelator(limits)
