"""The writes as their writers recorded them, and whether the delivered changes are correct.

Nothing here uses the package: consumers are measured by the writers' own record. Every write has
its own number, which identifies a state.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

#: The number of a deleted object.
GONE = 0


@dataclass
class Facts:
    """The states of each key, in the order of the writes."""

    #: Numbers by key, with `GONE` for each deletion.
    written: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    creations: int = 0
    changes: int = 0
    deletions: int = 0

    @property
    def writes(self) -> int:
        return self.creations + self.changes + self.deletions

    def wrote(self, key: str, number: int) -> None:
        """Record a write that the server acknowledged, or that a later read found."""
        if number == GONE:
            self.deletions += 1
        elif self.number(key) == GONE:
            self.creations += 1
        else:
            self.changes += 1
        self.written[key].append(number)

    def number(self, key: str) -> int:
        """Return the number of a key's state, `GONE` if there is none."""
        states = self.written.get(key)
        return states[-1] if states else GONE

    def alive(self, namespace: str = "") -> dict[str, int]:
        """Return the numbers of existing objects, of one namespace or of all."""
        return {
            key: states[-1]
            for key, states in self.written.items()
            if states[-1] != GONE and key.startswith(f"{namespace}/" if namespace else "")
        }


@dataclass(frozen=True)
class Told:
    """One line of a consumer's story.

    Attributes:
        type: Added, Updated, Deleted, or Sync for either of the first two.
        key: namespace/name.
        number: the number of the state; for a deletion, of the last known state.
    """

    type: str
    key: str
    number: int


@dataclass
class Reader:
    """Compares a consumer's story with the facts, part by part.

    Args:
        repeats_allowed: a killed consumer may repeat the last change of a key.
    """

    facts: Facts
    repeats_allowed: bool = False
    told: int = 0
    repeats: int = 0
    skipped: int = 0
    mistakes: list[str] = field(default_factory=list)
    _now: dict[str, int] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _last: dict[str, Told] = field(default_factory=dict)

    def state(self) -> dict[str, int]:
        """Return the objects that exist according to the story."""
        return {key: number for key, number in self._now.items() if number != GONE}

    def read(self, line: Told, *, may_skip: bool) -> None:
        """Read one line.

        Args:
            line: the delivered change.
            may_skip: the consumer has listed, and a list shows only the newest states.
        """
        self.told += 1
        if self.repeats_allowed and self._last.get(line.key) == line:
            self.repeats += 1
            return
        self._last[line.key] = line
        before = self._now.get(line.key, GONE)
        is_there = before != GONE
        if line.type == "Deleted":
            number = GONE
            if not is_there:
                self._wrong(line, "it was not told to be there")
        else:
            number = line.number
            if line.type == "Added" and is_there:
                self._wrong(line, f"it was there already, as {before}")
            if line.type == "Updated" and not is_there:
                self._wrong(line, "it was never added")
        self._now[line.key] = number
        self._follow(line, number, may_skip=may_skip)

    def _follow(self, line: Told, number: int, *, may_skip: bool) -> None:
        states, at = self.facts.written.get(line.key, []), self._read[line.key]
        if line.type == "Sync" and at and states[at - 1] == number:
            return  # The list found a known state.
        try:
            found = states.index(number, at)
        except ValueError:
            self._wrong(line, f"that was not written after {states[max(0, at - 1) : at]}")
            return
        self._read[line.key] = found + 1
        self.skipped += found - at
        if found > at and not may_skip:
            self._wrong(line, f"not told before: {states[at:found]}, though it has not listed")

    def end_round(self, namespace: str = "", *, may_skip: bool) -> None:
        """Count states that will never be delivered, such as objects that came and went unseen.

        Args:
            namespace: the consumer's namespace; all if empty.
            may_skip: as for `read`.
        """
        for key, states in self.facts.written.items():
            unseen = states[self._read[key] :]
            if not unseen or not key.startswith(f"{namespace}/" if namespace else ""):
                continue
            self._read[key] = len(states)
            self.skipped += len(unseen)
            if not may_skip:
                self.mistakes.append(f"{key}: {unseen} were never told, though it has not listed")

    def missing(self, namespace: str = "") -> Iterator[str]:
        """Yield the differences between the facts and a story that should be complete."""
        alive, told = self.facts.alive(namespace), self.state()
        for key in sorted(alive.keys() | told.keys()):
            if alive.get(key) != told.get(key):
                yield f"{key}: written was {alive.get(key)}, told {told.get(key)}"

    def _wrong(self, line: Told, why: str) -> None:
        self.mistakes.append(f"{line.key}: {line.type} {line.number}: {why}")
