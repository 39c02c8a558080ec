"""What a simulation found, and exactly what it covered."""

from collections.abc import Sequence

import msgspec

from listwatch.apiserver.access.asked_rights import AskedRight
from listwatch.printable import printable
from listwatch.simulation.faults import Plan
from listwatch.simulation.journal import Entry
from listwatch.simulation.oracles import Violation


class Coverage(msgspec.Struct):
    """What was tried.

    Attributes:
        worlds: number of worlds that ran.
        seconds: real seconds that they took.
        points: boundaries passed in the world without faults.
        singles: single faults tried.
        all_singles: single faults that there are.
        pairs: pairs of faults tried.
        all_pairs: pairs that there are, known once all single faults were tried.
        schedules: worlds with random orders, delays and faults.
    """

    worlds: int = 0
    seconds: float = 0.0
    points: int = 0
    singles: int = 0
    all_singles: int = 0
    pairs: int = 0
    all_pairs: int = 0
    schedules: int = 0

    @property
    def words(self) -> str:
        """The same as one sentence."""
        if not self.points:  # a replay
            return f"{self.worlds:,} worlds in {self.seconds:.1f} s"
        if self.singles == self.all_singles:
            words = f"all {self.all_singles:,} single faults"
            words += f", {self.pairs:,} of {self.all_pairs:,} pairs"
        else:
            words = f"{self.singles:,} of {self.all_singles:,} single faults, no pairs"
        if self.schedules:
            words += f", {self.schedules:,} random schedules"
        return f"{words} at {self.points:,} points: {self.worlds:,} worlds in {self.seconds:.1f} s"


class Found(msgspec.Struct):
    """A world in which an oracle objects.

    Attributes:
        token: replays it.
        violations: the objections.
        entries: what happened.
        strikes: its faults, in words.
        worlds: number of worlds that ran before it was found.
        seconds: real seconds until then.
    """

    token: str
    violations: list[Violation]
    entries: list[Entry]
    strikes: list[str]
    worlds: int = 0
    seconds: float = 0.0


class Report(msgspec.Struct):
    """The result of a simulation.

    Attributes:
        coverage: what was tried.
        found: the world that goes wrong, with the fewest faults; None if none did.
        digest: of the world without faults, or of the replayed one.
        problem: why nothing could be simulated; "" if it could.
        asked: the rights that were asked for, if they are recorded.
    """

    coverage: Coverage
    found: Found | None = None
    digest: str = ""
    problem: str = ""
    asked: list[AskedRight] = []

    @property
    def ok(self) -> bool:
        """Whether no oracle objected."""
        return self.found is None and not self.problem

    def text(self, *, replay: str = "") -> str:
        """Return the report for people.

        Args:
            replay: how to replay a world; the token follows.
        """
        if self.problem:
            return printable(self.problem, None, keep="\n")
        if self.found is None:
            return f"{self.coverage.words}; no violation"
        return story(self.found, self.coverage, replay)

    def check(self) -> None:
        """Return if no oracle objected.

        Raises:
            SimulationFailedError: one did; the message is the story.
        """
        if not self.ok:
            raise SimulationFailedError(self.text())


class SimulationFailedError(AssertionError):
    """An oracle objected to a simulated world."""


def story(found: Found, coverage: Coverage, replay: str = "") -> str:
    """Return a violation as text: the objections, the token, and what happened."""
    lines = []
    for violation in found.violations:
        lines.append(f"violation of {violation.oracle}: {violation.words}")
        lines += [f"    {line}" for line in violation.details]
    with_faults = "\n    ".join(found.strikes) or "none: it happens without faults"
    lines += [
        f"faults: {with_faults}",
        f"replay: {replay} {found.token}".replace("  ", " "),
        f"found in world {found.worlds:,} after {found.seconds:.1f} s; tried: {coverage.words}",
        "",
        "seconds  server  who          what",
    ]
    for entry in chosen_entries(found.entries):
        at = f" (version {entry.seen})" if entry.seen else ""
        lines.append(
            f"{entry.time:8.3f} {entry.revision:6}  {entry.lane:<12} {entry.words}{at}".rstrip()
        )
    return printable("\n".join(lines), None, keep="\n")


def chosen_entries(entries: Sequence[Entry], limit: int = 80) -> list[Entry]:
    """Return the entries that tell the story, at most about this many.

    Of a long story those near faults and objections stay, and all writes.
    """
    if len(entries) <= limit:
        return list(entries)
    marks = [n for n, entry in enumerate(entries) if entry.lane in {"fault", "oracle"}]
    near = {n + d for n in marks for d in range(-6, 14)}
    kept = [
        entry
        for number, entry in enumerate(entries)
        if number in near
        or entry.lane in {"user", "fault", "oracle"}
        or (" → 2" in entry.words and entry.point and not entry.words.startswith(("get", "list")))
    ]
    if len(kept) <= limit or not marks:
        return kept[-limit:]
    return [entry for number, entry in enumerate(entries) if number in near][: 2 * limit]


def strike_words(plan: Plan, words: dict[int, str]) -> list[str]:
    """Return the faults of a plan in words.

    Args:
        plan: the plan.
        words: what happens at each point.
    """
    lines = [f"{name} at point {number}: {words.get(number, '')}" for number, name in plan.strikes]
    if plan.seed:
        lines.append(f"orders and delays of the seed {plan.seed}")
    return lines
