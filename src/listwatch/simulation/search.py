"""Searches the worlds of a program: no fault, every single one, then pairs and random schedules."""

import random
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from listwatch.errors import ListWatchError
from listwatch.simulation.faults import FAULTS, Plan, Point
from listwatch.simulation.oracles import Outcome
from listwatch.simulation.report import Coverage, Found, Report, strike_words
from listwatch.simulation.running import WorldResult, Worlds

#: The order in which single faults are tried: those that find most first.
_ORDER: Final = (
    "crash-after",
    "lag",
    "slow",
    "pause",
    "lost-reply",
    "missed",
    "crash-before",
    "stale-restart",
    "conflict",
)
#: Of how many worlds after the single faults one is a random schedule.
_SCHEDULE_EVERY: Final = 3
#: The largest number of random faults in a random schedule.
_RANDOM_FAULTS: Final = 3

Place = tuple[int, tuple[str, ...]]


class NotDeterministicError(ListWatchError):
    """The same world ran twice and was not the same."""


class Budget(msgspec.Struct, frozen=True):
    """When a search ends.

    Attributes:
        seconds: real seconds.
        worlds: number of worlds; 0 for no limit.
    """

    seconds: float = 10.0
    worlds: int = 0


class Search:
    """One search.

    Args:
        worlds: runs the worlds.
        budget: when to end.
        stopwatch: real seconds.
        hash_seed: of this process, for tokens.
    """

    def __init__(
        self, worlds: Worlds, budget: Budget, stopwatch: Callable[[], float], hash_seed: int = 0
    ) -> None:
        self._worlds = worlds
        self._budget = budget
        self._stopwatch = stopwatch
        self._hash_seed = hash_seed
        self._began = stopwatch()
        self._coverage = Coverage()
        #: The points of the worlds with one fault, after that fault.
        self._after: dict[tuple[int, str], list[Place]] = {}

    def replay(self, plan: Plan) -> Report:
        """Run one world, and tell its story whether or not it goes wrong.

        Raises:
            NotDeterministicError: the world without faults is not the same twice.
        """
        reference = self._reference()
        result = reference
        if plan.strikes or plan.seed:
            result = self._worlds.run(plan, reference.outcome, keeps_story=True)
        found = self._found(result) if result.violations else None
        return Report(self._measured(), found, result.digest)

    def run(self) -> Report:
        """Search until the budget is used up, or an oracle objects.

        Raises:
            NotDeterministicError: the world without faults is not the same twice.
        """
        reference = self._reference()
        if reference.violations or reference.outcome is None:
            return Report(self._measured(), self._found(reference), reference.digest)
        bad = self._search(reference)
        if bad is None:
            return Report(self._measured(), None, reference.digest)
        worlds, seconds = self._worlds.count, self._stopwatch() - self._began
        coverage = msgspec.structs.replace(self._measured())
        small = self._shrunk(bad, reference.outcome)
        found = self._found(self._worlds.run(small, reference.outcome, keeps_story=True))
        found.worlds, found.seconds = worlds, seconds
        return Report(coverage, found, reference.digest)

    def _reference(self) -> WorldResult:
        plan = Plan(hash_seed=self._hash_seed)
        first = self._worlds.run(plan, keeps_story=True)
        second = self._worlds.run(plan, keeps_story=True)
        if first.digest != second.digest:
            pairs = zip(first.marks, second.marks, strict=False)
            where = next((one[0] for one, two in pairs if one != two), "the end")
            raise NotDeterministicError(
                f"two runs of the world without faults differ from '{where}' on: the program or "
                "the scenario depends on something that a simulation can't repeat, such as the "
                "order of a set of objects, or a clock imported by name before the simulation began"
            )
        return second

    def _search(self, reference: WorldResult) -> Plan | None:
        """Return the plan of the first world that goes wrong."""
        coverage = self._coverage
        coverage.points = len(reference.points)
        singles = single_faults(reference.points)
        coverage.all_singles = len(singles)
        for single in singles:
            if self._is_over():
                return None
            result = self._try((single,), reference.outcome)
            coverage.singles += 1
            if result.violations:
                return result.plan
            self._after[single] = [
                (point.number, point.faults)
                for point in result.points
                if point.number > single[0] and point.faults
            ]
        coverage.all_pairs = sum(
            len(faults) for places in self._after.values() for _, faults in places
        )
        chance = random.Random(0)  # noqa: S311 - to be repeated, not secret
        pairs = self._pairs(chance)
        pair = next(pairs, None)
        turn = 0
        while not self._is_over():
            turn += 1
            if pair is None or turn % _SCHEDULE_EVERY == 0:
                result = self._try_schedule(reference, chance)
                coverage.schedules += 1
            else:
                result = self._try(pair, reference.outcome)
                coverage.pairs += 1
                pair = next(pairs, None)
            if result.violations:
                return result.plan
        return None

    def _pairs(self, chance: random.Random) -> Iterator[tuple[tuple[int, str], ...]]:
        """Yield all pairs, in a random order in which early ones come from many first faults."""
        waiting = [
            (first, [(number, name) for number, names in places for name in names])
            for first, places in self._after.items()
        ]
        for _, seconds in waiting:
            chance.shuffle(seconds)
        chance.shuffle(waiting)
        while waiting:
            for first, seconds in waiting:
                if seconds:
                    yield (first, seconds.pop())
            waiting = [each for each in waiting if each[1]]

    def _try_schedule(self, reference: WorldResult, chance: random.Random) -> WorldResult:
        names = sorted({name for point in reference.points for name in point.faults})
        strikes = tuple(
            sorted(
                {
                    chance.randint(1, max(1, len(reference.points))): chance.choice(names)
                    for _ in range(chance.randint(0, _RANDOM_FAULTS) if names else 0)
                }.items()
            )
        )
        seed = chance.randrange(1, 1_000_000)
        return self._worlds.run(Plan(seed, strikes, self._hash_seed), reference.outcome)

    def _try(self, strikes: tuple[tuple[int, str], ...], outcome: Outcome | None) -> WorldResult:
        return self._worlds.run(Plan(0, strikes, self._hash_seed), outcome)

    def _is_over(self) -> bool:
        limit = self._budget.worlds
        return (
            self._stopwatch() - self._began >= self._budget.seconds
            or 0 < limit <= self._worlds.count
        )

    def _shrunk(self, plan: Plan, outcome: Outcome | None) -> Plan:
        """Return a plan with as few faults as possible that still goes wrong."""
        if plan.seed:
            calm = msgspec.structs.replace(plan, seed=0)
            if self._worlds.run(calm, outcome).violations:
                plan = calm
        shrinks = True
        while shrinks and len(plan.strikes) > (0 if plan.seed else 1):
            shrinks = False
            for strike in plan.strikes:
                fewer = tuple(each for each in plan.strikes if each != strike)
                smaller = msgspec.structs.replace(plan, strikes=fewer)
                if self._worlds.run(smaller, outcome).violations:
                    plan, shrinks = smaller, True
                    break
        return plan

    def _found(self, result: WorldResult) -> Found:
        words = {point.number: point.words for point in result.points}
        return Found(
            result.plan.token,
            result.violations,
            result.entries,
            strike_words(result.plan, words),
            self._worlds.count,
            self._stopwatch() - self._began,
        )

    def _measured(self) -> Coverage:
        self._coverage.worlds = self._worlds.count
        self._coverage.seconds = self._stopwatch() - self._began
        return self._coverage


def single_faults(points: list[Point]) -> list[tuple[int, str]]:
    """Return all single faults in the order to try them.

    No delay is left out because nothing was written after it: it may be the cause of a write.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for point in points:
        for name in point.faults:
            found.setdefault(name, []).append((point.number, name))
    names = [*_ORDER, *(name for name in FAULTS if name not in _ORDER)]
    return [single for name in names for single in found.get(name, [])]
