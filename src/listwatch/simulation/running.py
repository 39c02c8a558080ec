"""Runs single worlds in this process, one after the other."""

import gc
import logging
import random
from typing import Final

import msgspec

from listwatch.apiserver.access.asked_rights import AskedRight, merged
from listwatch.simulation.determinism import Machine
from listwatch.simulation.faults import Plan, Point
from listwatch.simulation.journal import Entry
from listwatch.simulation.loop import EndlessWorkError, SimulationError, VirtualLoop
from listwatch.simulation.oracles import Outcome, Violation
from listwatch.simulation.world import Setting, World

#: Worlds between two collections of garbage.
_COLLECT_EVERY: Final = 20


class WorldResult(msgspec.Struct):
    """What one world was.

    Attributes:
        plan: makes it again.
        points: the boundaries passed.
        violations: the objections; none if all is well.
        outcome: what it left; None if it did not come to its end.
        digest: of all requests, answers and events.
        entries: the story, if it was kept.
        marks: the digest after each request, if the story was kept.
        seconds: virtual seconds that it lasted.
    """

    plan: Plan
    points: list[Point]
    violations: list[Violation]
    outcome: Outcome | None
    digest: str
    entries: list[Entry]
    marks: list[tuple[str, str]]
    seconds: float


class Worlds:
    """Runs worlds of one setting.

    While one runs, the collector of garbage waits and nothing is logged.

    Args:
        setting: what they have in common.
        machine: the replaced clocks and sources of chance of this process.
    """

    def __init__(self, setting: Setting, machine: Machine) -> None:
        self._setting = setting
        self._machine = machine
        #: The worlds run so far.
        self.count = 0
        #: The rights asked for in them, if they are recorded.
        self.asked: list[AskedRight] = []

    def run(
        self, plan: Plan, reference: Outcome | None = None, *, keeps_story: bool = False
    ) -> WorldResult:
        """Run a world.

        Args:
            plan: what makes it differ.
            reference: what the world without faults left; None for that world.
            keeps_story: keep what happened, for people.
        """
        order = random.Random(plan.seed) if plan.seed else None  # noqa: S311 - to be repeated, not secret
        loop = VirtualLoop(order=order)
        was_enabled = gc.isenabled()
        gc.disable()
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with self._machine.running(loop, plan.seed):
                world = World(self._setting, plan, loop, reference, keeps_story=keeps_story)
                try:
                    loop.run_until_complete(world.run())
                except EndlessWorkError as error:
                    world.object_to("stability", str(error))
                except SimulationError as error:
                    world.object_to("scenario", str(error))
                loop.abandon()
                result = WorldResult(
                    plan,
                    world.points,
                    world.violations,
                    world.outcome,
                    world.journal.digest,
                    world.journal.entries,
                    world.journal.marks,
                    loop.time(),
                )
                self.asked = merged([*self.asked, *world.server.asked_rights])
                del world
                self._end(loop)
        finally:
            logging.disable(disabled)
            if was_enabled:
                gc.enable()
        return result

    def _end(self, loop: VirtualLoop) -> None:
        """Collect the remains of a world, whose coroutines never end by themselves."""
        loop.close()
        self.count += 1
        if self.count % _COLLECT_EVERY == 1:
            _ = gc.collect()
            if self.count == 1:
                gc.freeze()  # what is here now stays: modules, caches
