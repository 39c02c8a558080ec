"""Collects what is known about the keys of a manager's reconcilers."""

from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from listwatch.clock import Clock
from listwatch.printable import printable
from listwatch.runtime.sharing import owner
from listwatch.runtime.story import stories_of
from listwatch.runtime.why import Answer, KeyState, Settling, answer, worst_first

if TYPE_CHECKING:
    from listwatch.runtime.reconciler import Reconciler


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """Who may reconcile.

    Attributes:
        leads: this process does.
        leader: who leads instead; empty if unknown.
        member: the name of this process among those that share the keys.
        members: the processes that share the keys; empty without sharing.
    """

    leads: bool = True
    leader: str = ""
    member: str = ""
    members: Sequence[str] = ()


class KeyStates:
    """Answers questions about the keys of a manager. For its event loop.

    Args:
        reconcilers: returns all reconcilers.
        leadership: returns who leads.
        clock: the time.
    """

    def __init__(
        self,
        reconcilers: "Callable[[], Iterable[Reconciler]]",
        leadership: Callable[[], Leadership],
        clock: Clock,
    ) -> None:
        self._reconcilers = reconcilers
        self._leadership = leadership
        self._clock = clock

    def about(self, key: str, reconciler: str = "") -> list[tuple[KeyState, Answer]]:
        """Return what every reconciler that knows a key knows about it.

        Args:
            key: the key.
            reconciler: only this one, also if it does not know the key.
        """
        leadership = self._leadership()
        states = [
            self._state(each, key, leadership)
            for each in self._reconcilers()
            if (each.name == reconciler if reconciler else _knows(each, key))
        ]
        return [(state, answer(state)) for state in states]

    def troubled(self, limit: int = 100) -> list[tuple[KeyState, Answer]]:
        """Return the keys in trouble, the worst first."""
        leadership = self._leadership()
        found: list[tuple[KeyState, Answer]] = []
        for each in self._reconcilers():
            for key in _suspects(each, limit):
                state = self._state(each, key, leadership)
                found.append((state, answer(state)))
        return worst_first(found)[:limit]

    def similar(self, key: str, limit: int = 5) -> list[str]:
        """Return known keys that contain the last part of a key, for a message."""
        part = key.rpartition("/")[2]
        known = (other for each in self._reconcilers() for other in _keys(each))
        return list(dict.fromkeys(other for other in known if part and part in other))[:limit]

    def _state(self, reconciler: "Reconciler", key: str, leadership: Leadership) -> KeyState:
        now, queue, history = self._clock.now(), reconciler.queue, reconciler.history
        known = None if history is None else history.of(key)
        running = None if history is None else history.running.get(key)
        records = [] if known is None else list(known.records)
        if running is not None:
            records.append(running)
        trigger, merged = (None, 0) if history is None else history.waking(key)
        primary = reconciler.primary
        cache = None if primary is None else primary.cache_of(key)
        held = cache is not None and cache.holds(key)
        obj = cache.indexer.get_by_key(key) if cache is not None and held else None
        is_shared = bool(leadership.members)
        is_everywhere = not reconciler.leader_only
        is_mine, leader = True, leadership.leader
        if is_shared and not is_everywhere:
            leader = owner(key, leadership.members)
            is_mine = leader == leadership.member
        return KeyState(
            reconciler=reconciler.name,
            key=key,
            leads=leadership.leads or is_everywhere,
            leader=leader,
            is_shared=is_shared,
            is_mine=is_mine,
            unready=[
                printable(f"{health.name}: {health.problem}")
                for cache in reconciler.caches
                if not (health := cache.health()).ready
            ],
            running=None if running is None else now - running.began,
            settling=_settling(reconciler, key, now),
            due_in=queue.due_in(key),
            trigger=trigger,
            merged=merged,
            ahead=len(queue),
            busy=len(reconciler.in_process),
            workers=reconciler.concurrency,
            failures=reconciler.failures_of(key),
            cached="" if obj is None else obj.resource_version,
            has_objects=primary is not None,
            own_wakes=0 if known is None else known.own_wakes,
            total=0 if known is None else known.total,
            stories=stories_of(records, now, self._clock.time()),
        )


def _settling(reconciler: "Reconciler", key: str, now: float) -> Settling | None:
    own = reconciler.own_writes
    if own is None or (waiting := own.waiting_for(key)) is None:
        return None
    began, write, cache = waiting
    is_version = write is not None and not write.is_deletion and not write.is_lost
    return Settling(
        cache="" if cache is None else printable(cache.selection.resource),
        wanted=printable(write.resource_version) if write is not None and is_version else "",
        version="" if cache is None else printable(cache.version),
        object="" if write is None else printable(f"{write.target.plural} {write.key}"),
        seconds=now - began,
        limit=own.seconds,
    )


def _knows(reconciler: "Reconciler", key: str) -> bool:
    history, primary = reconciler.history, reconciler.primary
    return (
        (primary is not None and primary.holds(key))
        or reconciler.queue.due_in(key) is not None
        or key in reconciler.in_process
        or (history is not None and history.of(key) is not None)
    )


def _suspects(reconciler: "Reconciler", limit: int) -> list[str]:
    """Return the keys that may be in trouble, at most `limit` for each reason, the worst ones."""
    suspects: list[str] = []
    history, own = reconciler.history, reconciler.own_writes
    if history is None:
        suspects += islice(reconciler.in_process, limit)
    else:
        # In the order of their begin.
        suspects += islice(history.running, limit)
        suspects += nlargest(
            limit,
            history.troubled(),
            key=lambda key: reconciler.failures_of(key) + history.own_wakes(key),
        )
    if own is not None:
        suspects += own.waiting_keys[:limit]
    if (oldest := reconciler.queue.oldest) is not None:
        suspects.append(oldest)
    return list(dict.fromkeys(suspects))


def _keys(reconciler: "Reconciler") -> Iterable[str]:
    primary = reconciler.primary
    if primary is not None and primary.has_synced:
        yield from primary.cached_keys()
    if reconciler.history is not None:
        yield from reconciler.history.keys()
