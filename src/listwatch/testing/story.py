"""Compares the story that an observer told of objects with what was done to them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec


class ChapterType(StrEnum):
    """A chapter of an object's story."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    #: Part of a list, so an addition or an update, whichever the object's state calls for.
    SYNC = "Sync"


class Chapter(msgspec.Struct, frozen=True):
    """One change of one object, done or told.

    Attributes:
        type: what happened.
        key: the object's "namespace/name".
        uid: of the object, since one name may have several lives.
        version: the resource version that the change made. A told deletion may carry the one of
            the last known state, or none, since a deletion that was missed leaves nothing else.
        deleting: a told state that is marked for deletion (metadata.deletionTimestamp). A server
            makes such a state of its own accord, so nobody who deletes knows its version.
    """

    type: ChapterType
    key: str
    uid: str
    version: int = 0
    deleting: bool = False


class Gap(msgspec.Struct, frozen=True):
    """Versions after `after` up to `until` which a list may have skipped over."""

    after: int
    until: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.after < version <= self.until


class Comparison(msgspec.Struct, frozen=True):
    """What a comparison found.

    Attributes:
        told: how many changes were told.
        done: how many changes were done.
        skipped_updates: states that a list skipped over, as it may.
        skipped_lives: objects that came and went between a list and the watch before it.
        mistakes: one line for each fault of the story; empty when it is true.
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
    """Compare a told story with what was done.

    A story is true when, for every key, it reads (add update* delete)* with one uid in a life;
    every told state was really made, and is told in order and once; every life and every state is
    told, but for what lies in a gap; and what is alive at the end has its last state told.

    Args:
        done: the changes in the order of their versions, with the types Added, Updated, Deleted.
        told: the changes in the order in which they were told, of each key at least.
        gaps: where a list stood in for the watch.
        marked: the server marks what it deletes, as it does with pods, so that each deletion
            must be told with one update before it that is `deleting`.
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
    """Reads the story of one key."""

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
                self._wrong(f"{change.type} of uid {change.uid!r}, which never was")
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
            self._wrong(f"Added at version {change.version}, but it was there already")
        elif change.type is ChapterType.UPDATED and adds:
            self._wrong(f"Updated to version {change.version}, but it was never added")
        elif adds and self._order_of(change.uid) < max(map(self._order_of, self._ended), default=0):
            self._wrong(f"uid {change.uid} told after a later life of that name")
        self._uid = change.uid
        told = self._told[change.uid]
        if change.deleting:
            self._marked(change)
        elif change.version not in self._lives[change.uid].versions:
            self._wrong(f"{change.type} at version {change.version}, which was never made")
        elif told and change.version == told[-1] and change.type is ChapterType.SYNC:
            pass  # a list that found what was known already
        elif told and change.version <= told[-1]:
            self._wrong(f"{change.type} at version {change.version} after version {told[-1]}")
        else:
            told.append(change.version)

    def _marked(self, change: Chapter) -> None:
        self._marks[change.uid] += 1
        life, told = self._lives[change.uid], self._told[change.uid]
        if not life.versions[-1] < change.version < life.deleted:
            self._wrong(f"marked for deletion at version {change.version}, which was never done")
        elif told and change.version < told[-1]:
            self._wrong(f"{change.type} at version {change.version} after version {told[-1]}")

    def _deleted(self, change: Chapter) -> None:
        if self._uid != change.uid:
            self._wrong(f"Deleted uid {change.uid}, which was not told to be there")
        elif not self._lives[change.uid].deleted:
            self._wrong(f"Deleted uid {change.uid}, which is still there")
        self._ended.add(change.uid)
        self._uid = None

    def _settle(self, uid: str, life: _Life) -> None:
        told = self._told.get(uid)
        seen = not any(life.deleted in gap for gap in self._gaps)
        marks = self._marks[uid]
        wants_mark = self._wants_marks and bool(life.deleted) and uid in self._ended
        if wants_mark and (marks > 1 or (seen and not marks)):
            self._wrong(f"uid {uid} was told {marks} times to be marked, not once")
        if not told:
            if life.deleted and any(
                life.versions[0] in g and life.deleted in g for g in self._gaps
            ):
                self.skipped_lives += 1
            else:
                self._wrong(f"uid {uid} was never told")
            return
        if life.deleted and uid not in self._ended:
            self._wrong(f"the deletion of uid {uid} at version {life.deleted} was never told")
        if not life.deleted and told[-1] != life.versions[-1]:
            self._wrong(f"its last state is version {life.versions[-1]}, told was {told[-1]}")
            return
        heard = set(told)
        for version in life.versions:
            if version in heard:
                continue
            # A list skips a state only when a later one, or the deletion, came before the list.
            later = next((v for v in life.versions if v > version), life.deleted)
            if any(version in gap and later in gap for gap in self._gaps):
                self.skipped_updates += 1
            else:
                self._wrong(f"version {version} of uid {uid} was never told")

    def _order_of(self, uid: str) -> int:
        return self._order.index(uid) if uid in self._lives else 0

    def _wrong(self, what: str) -> None:
        self.mistakes.append(f"{self._key}: {what}")
