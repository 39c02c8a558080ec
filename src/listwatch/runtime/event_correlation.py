"""What becomes of an event: written anew, counted on an earlier one, combined, or dropped.

Pure rules without I/O, in the two styles that the API has. Those of core/v1 are client-go's
`tools/record/events_cache.go`, those of events.k8s.io/v1 its `tools/events`; there, unlike in the
reference, the key of a series does not hold the object's resourceVersion, which would end a series
at every change of the object.
"""

from collections.abc import Hashable

import msgspec

from listwatch.runtime.key_limits import KeyLimits, Lru

#: Events in a burst, and the seconds that one more takes, of one source, object and type.
SPAM_BURST = 25
SPAM_INTERVAL = 300.0
#: So many different messages within so many seconds are combined into one event.
SIMILAR_MESSAGES = 10
SIMILAR_SECONDS = 600.0
COMBINED = "(combined from similar events): "
#: Seconds after which a series' count is written again, and of quiet after which it is over.
REFRESH_SECONDS = 1800.0
FINISH_SECONDS = 360.0


class ObjectReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which object an event is about."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells the object from others, whatever its state."""
        return (
            self.api_version,
            self.kind,
            self.namespace,
            self.name,
            self.uid,
            self.field_path,
        )


class Occurrence(msgspec.Struct, frozen=True):
    """Something that happened to an object, as a controller reports it."""

    regarding: ObjectReference
    type: str
    reason: str
    message: str
    action: str = ""
    related: ObjectReference | None = None
    #: Seconds since 1970, and by the monotonic clock.
    time: float = 0.0
    at: float = 0.0

    @property
    def similar(self) -> tuple[Hashable, ...]:
        """The same for occurrences that differ in their message only."""
        related = self.related.identity if self.related is not None else ()
        return (self.regarding.identity, self.type, self.reason, self.action, related)


class WrittenEvent(msgspec.Struct):
    """An event that an API server has."""

    namespace: str
    name: str
    count: int
    first_time: float
    last_time: float
    #: The object that it is about.
    regarding: tuple[str, ...] = ()
    #: Monotonic: when it occurred last, and when the count was written last.
    last_at: float = 0.0
    written_at: float = 0.0
    written_count: int = 1


class Create(msgspec.Struct, frozen=True):
    """Write a new event under this key; it may have occurred before, unwritten."""

    key: Hashable
    occurrence: Occurrence
    count: int = 1
    first_time: float | None = None


class Count(msgspec.Struct, frozen=True):
    """Write an event's new count, and message where one is given."""

    key: Hashable
    written: WrittenEvent
    occurrence: Occurrence | None = None


class Drop(msgspec.Struct, frozen=True):
    """Write nothing; `spam` if there were too many of it."""

    spam: bool


class SpamFilter:
    """A token bucket for each source, object and type."""

    def __init__(self) -> None:
        self._buckets: KeyLimits[Hashable] = KeyLimits(SPAM_BURST, SPAM_INTERVAL)

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

    As in client-go the count goes on through what the spam filter drops.
    """

    def __init__(self) -> None:
        self._similar: Lru[Hashable, _Similar] = Lru()
        self._written: Lru[Hashable, WrittenEvent] = Lru()
        self._unwritten: Lru[Hashable, _Unwritten] = Lru()
        self._spam = SpamFilter()

    def decide(self, occurrence: Occurrence) -> Create | Count | Drop:
        """Say what to write."""
        key: Hashable = occurrence.similar
        similar = self._similar.get(key)
        if similar is None or occurrence.at - similar.at > SIMILAR_SECONDS:
            similar = _Similar({}, occurrence.at)
        similar.at = occurrence.at
        similar.messages[occurrence.message] = None
        self._similar.put(key, similar)
        if len(similar.messages) >= SIMILAR_MESSAGES:
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
        """Forget an event that is gone from the server."""
        self._written.pop(key)

    def due(self, now: float) -> list[Count]:  # noqa: ARG002 - the other style's, nothing is kept back
        """Return the counts that were kept back and are due."""
        return []

    def __len__(self) -> int:
        return len(self._written)


class SeriesCorrelator:
    """The rules for events.k8s.io/v1: a repetition begins a series, which is counted in memory."""

    def __init__(self) -> None:
        self._written: Lru[Hashable, WrittenEvent] = Lru()
        self._spam = SpamFilter()

    def decide(self, occurrence: Occurrence) -> Create | Count | Drop:
        """Say what to write."""
        key = occurrence.similar
        written = self._written.get(key)
        if written is None or occurrence.at - written.last_at > FINISH_SECONDS:
            return Create(key, occurrence) if self._spam.accepts(occurrence) else Drop(spam=True)
        written.count += 1
        written.last_time, written.last_at = occurrence.time, occurrence.at
        return Count(key, written) if written.count == 2 else Drop(spam=False)

    def wrote(self, key: Hashable, written: WrittenEvent) -> None:
        """Remember an event that was created."""
        self._written.put(key, written)

    def lost(self, key: Hashable) -> None:
        """Forget an event that is gone from the server."""
        self._written.pop(key)

    def due(self, now: float) -> list[Count]:
        """Return the counts that were kept back and are due; forget the series that are over."""
        due = []
        for key, written in self._written.items():
            is_over = now - written.last_at > FINISH_SECONDS
            if written.count > written.written_count and (
                is_over or now - written.written_at >= REFRESH_SECONDS
            ):
                due.append(Count(key, written))
            if is_over:
                self._written.pop(key)
        return due

    def __len__(self) -> int:
        return len(self._written)


Correlator = CoreCorrelator | SeriesCorrelator
