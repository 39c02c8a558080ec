"""Why is this key not done? The answer, from what is known about the key; without I/O."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from listwatch.cache.reflector_machine import is_older
from listwatch.printable import printable
from listwatch.runtime.history import HOT_WAKES
from listwatch.runtime.reconcile_record import Trigger
from listwatch.runtime.story import ReconcileStory

#: A reconcile that runs for this many seconds is in trouble.
LONG_RUN: Final = 60.0
#: A key that is due for this many seconds is in trouble.
LONG_QUEUE: Final = 10.0
#: A key that was last reconciled more seconds ago is not hot any more.
HOT_SECONDS: Final = 60.0


class Verdict(StrEnum):
    """The state of a key, the worst first."""

    CACHE_NOT_READY = "cache not ready"
    STUCK = "stuck"
    GAVE_UP = "gave up"
    BACKING_OFF = "backing off"
    HOT = "hot"
    WAITING_FOR_CACHE = "waiting for cache"
    QUEUED_LONG = "queued for long"
    NOT_MINE = "not mine"
    RUNNING = "running"
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    MISSED = "changed since"
    DONE = "done"
    UNKNOWN = "unknown"

    @property
    def is_trouble(self) -> bool:
        """Whether somebody should look at it."""
        return _ORDER.index(self) <= _ORDER.index(Verdict.QUEUED_LONG)


_ORDER: Final = list(Verdict)


class Settling(msgspec.Struct, frozen=True):
    """A key that waits until a cache has its last write.

    Attributes:
        cache: what the cache holds.
        wanted: the version that it lacks; empty for a deletion, or after a lost response.
        version: the version at which it is.
        object: the key of the written object.
        seconds: for which the key waits.
        limit: after which it goes on anyway.
    """

    cache: str
    wanted: str
    version: str
    object: str
    seconds: float
    limit: float


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a key of a reconciler at one time.

    Attributes:
        reconciler: the reconciler's name.
        key: the key.
        leads: whether this process may reconcile.
        leader: who leads instead, or whose share the key is in; empty if unknown.
        is_shared: the keys are shared among replicas, instead of a leader having all.
        is_mine: whether the key belongs to this process.
        unready: what is wrong with the caches, such as "deployments: not synced".
        running: seconds since its reconcile began; None if none runs.
        settling: what it waits for before it may be reconciled again.
        due_in: seconds until it is due; 0 or less if it is due; None if it is not queued.
        trigger: what queued it.
        merged: the number of further triggers.
        ahead: the keys that are due.
        busy: the workers that run.
        workers: the workers.
        failures: in a row.
        cached: the version of its object; empty if there is none in the cache.
        has_objects: its keys are those of objects.
        own_wakes: reconciles in a row that its own writes woke.
        total: reconciles so far, including forgotten ones.
        stories: the last reconciles, oldest first.
    """

    reconciler: str
    key: str
    leads: bool = True
    leader: str = ""
    is_shared: bool = False
    is_mine: bool = True
    unready: Sequence[str] = ()
    running: float | None = None
    settling: Settling | None = None
    due_in: float | None = None
    trigger: Trigger | None = None
    merged: int = 0
    ahead: int = 0
    busy: int = 0
    workers: int = 1
    failures: int = 0
    cached: str = ""
    has_objects: bool = True
    own_wakes: int = 0
    total: int = 0
    stories: Sequence[ReconcileStory] = ()


class Answer(msgspec.Struct, frozen=True):
    """Why a key is not done, or that it is.

    Attributes:
        verdict: the kind of answer.
        words: the answer, one sentence.
    """

    verdict: Verdict
    words: str


def worst_first(answers: Sequence[tuple[KeyState, Answer]]) -> list[tuple[KeyState, Answer]]:
    """Return the keys in trouble, the worst first."""
    troubled = [each for each in answers if each[1].verdict.is_trouble]
    return sorted(
        troubled,
        key=lambda each: (
            _ORDER.index(each[1].verdict),
            -each[0].failures,
            each[0].reconciler,
            each[0].key,
        ),
    )


def answer(state: KeyState) -> Answer:
    """Return why the key is not done, or that it is."""
    for rule in (_not_mine, _not_ready, _hot, _running, _settling, _failing, _queued):
        if (found := rule(state)) is not None:
            return found
    return _at_rest(state)


def _not_mine(state: KeyState) -> Answer | None:
    if state.leads and state.is_mine:
        return None
    who = printable(state.leader)
    if state.is_shared and state.leads:
        words = f"not mine: it is in the share of replica {who}" if who else "not mine: no replica"
    else:
        words = f"not mine: replica {who} leads" if who else "not mine: no replica leads yet"
    return Answer(Verdict.NOT_MINE, words)


def _not_ready(state: KeyState) -> Answer | None:
    if not state.unready:
        return None
    return Answer(Verdict.CACHE_NOT_READY, f"its caches are not ready: {'; '.join(state.unready)}")


def _running(state: KeyState) -> Answer | None:
    if state.running is None:
        return None
    words = f"it is being reconciled, for {duration(state.running)}"
    sent = [each for each in state.stories[-1].requests if each.ms is None] if state.stories else []
    if sent:
        words += f"; it waits for {sent[-1].verb} {sent[-1].resource} {sent[-1].key}".rstrip()
    if state.running >= LONG_RUN:
        return Answer(Verdict.STUCK, f"{words}; set timeout= to end such reconciles")
    return Answer(Verdict.RUNNING, words)


def _settling(state: KeyState) -> Answer | None:
    wait = state.settling
    if wait is None:
        return None
    limit = f"for {duration(wait.seconds)} of at most {duration(wait.limit)}"
    if wait.wanted:
        words = (
            f"waiting for the cache of {wait.cache} to reach {wait.wanted} (at {wait.version}), "
            f"{limit}: it wrote {wait.object}"
        )
    else:
        words = (
            f"waiting for the cache of {wait.cache} to show what it wrote: {wait.object}, {limit}"
        )
    return Answer(Verdict.WAITING_FOR_CACHE, words)


def _hot(state: KeyState) -> Answer | None:
    stories = [story for story in state.stories if story.seconds is not None]
    if state.own_wakes < HOT_WAKES or not stories or stories[-1].ago > HOT_SECONDS:
        return None
    woken = stories[-state.own_wakes - 1 :]
    span = woken[0].ago - woken[-1].ago
    rate = f"{(len(woken) - 1) / span * 60:.0f} times a minute" if span > 0 else "again and again"
    changed: Counter[str] = Counter()
    values: dict[str, tuple[str, str]] = {}
    resources: Counter[str] = Counter()
    for story in woken:
        for write in story.writes:
            resources[write.resource] += 1
            for path, old, new in write.fields or ():
                changed[path] += 1
                values[path] = (old, new)
    if changed:
        path, _ = changed.most_common(1)[0]
        old, new = values[path]
        words = (
            f"wakes itself by writing {path} {rate}: the field that flips is {path}: {old} → {new}"
        )
    elif resources:
        words = f"wakes itself by writing {resources.most_common(1)[0][0]} {rate}"
    else:
        words = f"wakes itself {rate}"
    return Answer(Verdict.HOT, f"hot: {words}")


def _failing(state: KeyState) -> Answer | None:
    stories = [story for story in state.stories if story.seconds is not None]
    if not stories or not stories[-1].error:
        return None
    last = stories[-1]
    error = f"{last.error}{f' at {last.place}' if last.place else ''}"
    if state.due_in is None:
        return Answer(Verdict.GAVE_UP, f"gave up until something changes: {error}")
    number = ordinal(max(state.failures, 1))
    if state.due_in <= -1:
        when = f"due for {duration(-state.due_in)} ({state.busy} of {state.workers} workers busy)"
    else:
        when = f"in {duration(state.due_in)}" if state.due_in > 0 else "now"
    return Answer(Verdict.BACKING_OFF, f"backing off: next try {when}, {number} failure: {error}")


def _queued(state: KeyState) -> Answer | None:
    if state.due_in is None:
        return None
    if state.due_in > 0:
        asked = bool(state.stories) and state.stories[-1].result.startswith("requeue")
        why = "asked for by its last reconcile" if asked else _woken_by(state)
        return Answer(Verdict.SCHEDULED, f"next reconcile in {duration(state.due_in)}, {why}")
    waited = -state.due_in
    due = "1 key is" if state.ahead == 1 else f"{state.ahead} keys are"
    words = (
        f"in the queue for {duration(waited)}, {_woken_by(state)}; {state.busy} of "
        f"{state.workers} workers are busy, {due} due"
    )
    is_long = waited >= LONG_QUEUE
    return Answer(Verdict.QUEUED_LONG if is_long else Verdict.QUEUED, words)


def _woken_by(state: KeyState) -> str:
    return f"woken by {told(state.trigger)}" if state.trigger is not None else "woken by something"


def _at_rest(state: KeyState) -> Answer:
    is_gone = state.has_objects and not state.cached
    if not state.stories:
        if is_gone:
            return Answer(Verdict.UNKNOWN, "never reconciled here, and not in the cache")
        return Answer(
            Verdict.MISSED,
            "in the cache, but not reconciled since this process began or memory was needed: "
            "no source woke it",
        )
    last = state.stories[-1]
    what = _effect(last)
    when = f"last reconcile {duration(last.ago)} ago"
    seen = last.caches[0].version if last.caches else ""
    if (
        state.cached
        and is_older(seen, state.cached)
        and not any(
            state.cached == write.version for story in state.stories for write in story.requests
        )
    ):
        words = (
            f"changed since to version {state.cached}, but no source woke it (a predicate?); "
            f"{when} {what}"
        )
        return Answer(Verdict.MISSED, words)
    gone = "its object is gone; " if is_gone else ""
    return Answer(Verdict.DONE, f"{gone}no change since; {when} {what}")


def _effect(story: ReconcileStory) -> str:
    writes = story.writes
    if not writes:
        return "changed nothing"
    return f"wrote {', '.join(dict.fromkeys(f'{each.resource} {each.key}' for each in writes))}"


def told(trigger: Trigger) -> str:
    """Return a trigger in words."""
    if not trigger.resource:
        return {
            "Timer": "a timer",
            "Stream": "a stream of events",
            "Enqueued": "the program",
            "Shared": "a new share of keys",
            "Retry": "a retry",
            "Requeue": "its own request",
        }.get(trigger.change, trigger.change)
    version = f" at {trigger.version}" if trigger.version else ""
    return printable(f"{trigger.resource} {trigger.object} {trigger.change.lower()}{version}")


def duration(seconds: float) -> str:
    """Return a duration for people, such as "41 s" or "1 h 5 min"."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th and so on."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    end = "th" if number % 100 in {11, 12, 13} else ends.get(number % 10, "th")
    return f"{number}{end}"
