"""Compares the changes that an observer reported with the changes that were made."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec


class ChapterType(StrEnum):
    """The type of one change in an object's history."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    #: Part of a list: an addition or an update, depending on what is known of the object.
    SYNC = "Sync"


class Chapter(msgspec.Struct, frozen=True):
    """One change of one object, made or reported.

    Attributes:
        type: what happened.
        key: the object's "namespace/name".
        uid: of the object, because a name can be reused.
        version: the resource version of the change. A reported deletion may carry that of the last
            known state, or none, because a missed deletion leaves nothing else.
        deleting: the reported state is marked for deletion (metadata.deletionTimestamp). The server
            creates such a state itself, so the client that deletes does not know its version.
    """

    type: ChapterType
    key: str
    uid: str
    version: int = 0
    deleting: bool = False


class Gap(msgspec.Struct, frozen=True):
    """Versions after `after` up to `until` that a list may have skipped."""

    after: int
    until: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.after < version <= self.until


class Comparison(msgspec.Struct, frozen=True):
    """The result of a comparison.

    Attributes:
        told: number of reported changes.
        done: number of changes made.
        skipped_updates: states that a list skipped, as it may.
        skipped_lives: objects created and deleted between a watch and the list after it.
        mistakes: one line for each mistake; empty if the report is correct.
    """

    told: int
    done: int
    skipped_updates: int
    skipped_lives: int
    mistakes: Sequence[str]


class _Life(msgspec.Struct):
    versions: list[int] = []
    deleted: int = 0


def compare(
    done: Iterable[Chapter],
    told: Iterable[Chapter],
    gaps: Sequence[Gap] = (),
    *,
    marked: bool = False,
) -> Comparison:
    """Compare reported changes with the changes made.

    A report is correct if, for every key, it reads (add update* delete)* with one uid from addition
    to deletion; every reported state was really made, and is reported in order and once; every
    object and state is reported, except within a gap; and the last state of each remaining object
    is reported.

    Args:
        done: the changes made, in version order, with the types Added, Updated, Deleted.
        told: the reported changes, in the order reported, at least for each key.
        gaps: where a list replaced the watch.
        marked: the server first marks objects for deletion, as with pods, so one update with
            `deleting` must precede each reported deletion.
    """
    lives: dict[str, dict[str, _Life]] = defaultdict(dict)
    done_count = 0
    for change in done:
        done_count += 1
        life = lives[change.key].setdefault(change.uid, _Life())
        if change.type is ChapterType.DELETED:
            life.deleted = change.version
        else:
            life.versions.append(change.version)
    stories: dict[str, list[Chapter]] = defaultdict(list)
    told_count = 0
    for change in told:
        told_count += 1
        stories[change.key].append(change)
    updates = skipped_lives = 0
    mistakes: list[str] = []
    for key in sorted(lives.keys() | stories.keys()):
        reader = _Reader(key, lives.get(key, {}), gaps, marked=marked)
        reader.read(stories.get(key, []))
        updates += reader.skipped_updates
        skipped_lives += reader.skipped_lives
        mistakes += reader.mistakes
    return Comparison(told_count, done_count, updates, skipped_lives, mistakes)


class _Reader:
    """Checks the changes reported for one key."""

    def __init__(
        self, key: str, lives: Mapping[str, _Life], gaps: Sequence[Gap], *, marked: bool
    ) -> None:
        self.skipped_updates = 0
        self.skipped_lives = 0
        self.mistakes: list[str] = []
        self._key = key
        self._lives = lives
        self._order = list(lives)
        self._gaps = gaps
        self._wants_marks = marked
        self._marks: dict[str, int] = defaultdict(int)
        self._uid: str | None = None
        self._ended: set[str] = set()
        self._told: dict[str, list[int]] = defaultdict(list)

    def read(self, story: Sequence[Chapter]) -> None:
        for change in story:
            if change.uid not in self._lives:
                self._wrong(f"{change.type} of uid {change.uid!r}, which never existed")
            elif change.type is ChapterType.DELETED:
                self._deleted(change)
            else:
                self._stated(change)
        for uid, life in self._lives.items():
            self._settle(uid, life)

    def _stated(self, change: Chapter) -> None:
        adds = self._uid is None
        if self._uid is not None and self._uid != change.uid:
            self._wrong(f"{change.type} of uid {change.uid} before uid {self._uid} was deleted")
        elif change.uid in self._ended:
            self._wrong(f"{change.type} of uid {change.uid} after its deletion")
        elif change.type is ChapterType.ADDED and not adds:
            self._wrong(f"Added at version {change.version}, but it existed already")
        elif change.type is ChapterType.UPDATED and adds:
            self._wrong(f"Updated to version {change.version}, but it was never added")
        elif adds and self._order_of(change.uid) < max(map(self._order_of, self._ended), default=0):
            self._wrong(f"uid {change.uid} delivered after a later object of that name")
        self._uid = change.uid
        told = self._told[change.uid]
        if change.deleting:
            self._marked(change)
        elif change.version not in self._lives[change.uid].versions:
            self._wrong(f"{change.type} at version {change.version}, which was never made")
        elif told and change.version == told[-1] and change.type is ChapterType.SYNC:
            pass  # a list that found a known state
        elif told and change.version <= told[-1]:
            self._wrong(f"{change.type} at version {change.version} after version {told[-1]}")
        else:
            told.append(change.version)

    def _marked(self, change: Chapter) -> None:
        self._marks[change.uid] += 1
        life, told = self._lives[change.uid], self._told[change.uid]
        if not life.versions[-1] < change.version < life.deleted:
            self._wrong(f"marked for deletion at version {change.version}, which never happened")
        elif told and change.version < told[-1]:
            self._wrong(f"{change.type} at version {change.version} after version {told[-1]}")

    def _deleted(self, change: Chapter) -> None:
        if self._uid != change.uid:
            self._wrong(f"Deleted uid {change.uid}, which was not delivered as existing")
        elif not self._lives[change.uid].deleted:
            self._wrong(f"Deleted uid {change.uid}, which still exists")
        self._ended.add(change.uid)
        self._uid = None

    def _settle(self, uid: str, life: _Life) -> None:
        told = self._told.get(uid)
        seen = not any(life.deleted in gap for gap in self._gaps)
        marks = self._marks[uid]
        wants_mark = self._wants_marks and bool(life.deleted) and uid in self._ended
        if wants_mark and (marks > 1 or (seen and not marks)):
            self._wrong(f"uid {uid} was delivered {marks} times as marked, not once")
        if not told:
            if life.deleted and any(
                life.versions[0] in g and life.deleted in g for g in self._gaps
            ):
                self.skipped_lives += 1
            else:
                self._wrong(f"uid {uid} was never delivered")
            return
        if life.deleted and uid not in self._ended:
            self._wrong(f"the deletion of uid {uid} at version {life.deleted} was never delivered")
        if not life.deleted and told[-1] != life.versions[-1]:
            self._wrong(f"its last state is version {life.versions[-1]}, delivered was {told[-1]}")
            return
        heard = set(told)
        for version in life.versions:
            if version in heard:
                continue
            # A list skips a state only if a later one, or the deletion, came before the list.
            later = next((v for v in life.versions if v > version), life.deleted)
            if any(version in gap and later in gap for gap in self._gaps):
                self.skipped_updates += 1
            else:
                self._wrong(f"version {version} of uid {uid} was never delivered")

    def _order_of(self, uid: str) -> int:
        return self._order.index(uid) if uid in self._lives else 0

    def _wrong(self, what: str) -> None:
        self.mistakes.append(f"{self._key}: {what}")
