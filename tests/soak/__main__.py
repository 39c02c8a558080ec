"""Change a cluster for many minutes while everything goes wrong, and count what was lost.

Writers change objects of a server that is killed and forgets its history. An informer, `listwatch
observe --state` and two managers follow it, each through a proxy that cuts, delays, silences and
splits what passes, and the latter two are killed as well. Every half a minute the faults pause
until each of them has everything written. Exit code 1 if anything was lost, invented or delivered
in the wrong order, or if the informer's memory grew without more objects.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from soak.cluster import Cluster, Numbers, Writer
from soak.consumers import (
    COPIES,
    Consumer,
    InformerProgram,
    MirrorProgram,
    ObserveProgram,
    Teller,
    differences,
)
from soak.facts import Facts

#: Seconds of faults before each pause.
ROUND = 25.0
#: Seconds within which every consumer must have all writes.
CATCH_UP = 120.0
#: Allowed growth of the informer's memory: a fraction, plus bytes.
GROWTH, SLACK = 0.10, 3_000_000

out = Console(highlight=False)


class Soak:
    """A run of the soak."""

    def __init__(self, directory: Path, seed: int, rate: float, objects: int) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.facts = Facts()
        self.losses: list[str] = []
        self.faults: dict[str, int] = {}
        #: The informer's memory and the number of objects, after each round.
        self.memory: list[tuple[int, int]] = []
        self.cluster = Cluster(directory)
        numbers = Numbers()
        self.writers = [
            Writer(self.cluster, self.facts, numbers, name, objects)
            for name in ("observed", "mirrored", "other-1", "other-2")
        ]
        self.pause = len(self.writers) / rate
        self.informer = InformerProgram("informer", self.cluster, directory, self.facts)
        self.observe = ObserveProgram("observe", self.cluster, directory, self.facts, "observed")
        self.mirror = MirrorProgram("mirror", self.cluster, directory, self.facts, "mirrored")

    @property
    def tellers(self) -> list[Teller]:
        return [self.informer, self.observe]

    @property
    def consumers(self) -> list[Consumer]:
        return [self.informer, self.observe, self.mirror]

    async def run(self, minutes: float) -> None:
        """Run for so many minutes; the results are in the attributes."""
        ends = time.monotonic() + 60 * minutes
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.cluster)
            for namespace in (COPIES, *(writer.namespace for writer in self.writers)):
                await self.cluster.ask(
                    "POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}
                )
            for consumer in self.consumers:
                await stack.enter_async_context(consumer)
            number = 0
            while time.monotonic() < ends and not self.losses:
                number += 1
                await self._round(number, min(ROUND, ends - time.monotonic()))
                await self._settle()
                resident, alive = self.informer.resident(), len(self.facts.alive())
                self.memory.append((resident, alive))
                out.print(
                    f"round {number}: {self.facts.writes} writes, {alive} objects, "
                    f"{sum(self.faults.values())} faults, informer {resident / 1e6:.1f} MB"
                )
            listed = await self.cluster.listed()
        self.losses += differences("the server's file", self.cluster.journaled(), listed)
        self.losses += self.growth()

    async def _round(self, number: int, seconds: float) -> None:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for writer in self.writers:
                tasks.create_task(writer.run(stop, self.pause))
            # In every other round the server forgets its history, so consumers must list.
            tasks.create_task(self._trouble(stop, forgets=number % 2 == 0))
            await asyncio.sleep(seconds)
            stop.set()

    async def _trouble(self, stop: asyncio.Event, *, forgets: bool) -> None:
        while not stop.is_set():
            await self._strike(forgets=forgets)
            await asyncio.sleep(self.chance.uniform(0.2, 2))

    async def _strike(self, *, forgets: bool) -> None:
        proxy = self.chance.choice(self.consumers).proxy
        kinds = ["kill server", "kill observe", "kill mirror", "split", "delay", "refuse"]
        kinds += ["strike"] * 6 + ["compact"] * forgets
        kind = self.chance.choice(kinds)
        match kind:
            case "kill server":
                await self.cluster.kill(self.chance.choice((0, 0.5, 4)))
            case "compact":
                await self.cluster.compact()
            case "kill observe":
                await self.observe.kill()
            case "kill mirror":
                await self.mirror.kill(self.chance.randrange(2))
            case "split":
                proxy.throttle(to_client=self.chance.choice((1, 2, 7, 100)))
                await asyncio.sleep(1)
                proxy.throttle()
            case "delay":
                proxy.delay(to_client=0.2, jitter=0.3)
                await asyncio.sleep(1)
                proxy.delay()
            case "refuse":
                proxy.refuse(reset=self.chance.random() < 0.5)
                proxy.drop(reset=True)
                await asyncio.sleep(self.chance.uniform(0, 4))
                proxy.accept()
            case _:
                kind = proxy.strike().split(" ")[0]
        self.faults[kind] = self.faults.get(kind, 0) + 1

    async def _settle(self) -> None:
        """Pause the faults until every consumer has all writes."""
        for consumer in self.consumers:
            consumer.proxy.heal()
        deadline = time.monotonic() + CATCH_UP
        while True:
            for consumer in self.consumers:
                await consumer.start_again()
            lacking = await self._lacking()
            late = time.monotonic() > deadline
            if not lacking or late:
                break
            await asyncio.sleep(0.3)
        self.losses += lacking
        for teller in self.tellers:
            teller.end_round()
            self.losses += [f"{teller.name}: {each}" for each in teller.reader.mistakes]
        for consumer in self.consumers:
            self.losses += consumer.complaints()

    async def _lacking(self) -> list[str]:
        listed = await self.cluster.listed()
        written = {key: at for key, at in listed.items() if not key.startswith(f"{COPIES}/")}
        lacking = differences("server", written, self.facts.alive())
        lacking += await self.mirror.missing()
        for teller in self.tellers:
            teller.read()
            lacking += [
                f"{teller.name}: {each}" for each in teller.reader.missing(teller.namespace)
            ]
        if not lacking:
            lacking = differences("cache", await self.informer.cache(), listed)
        return lacking

    def growth(self) -> list[str]:
        """Return the growth of the informer's memory if it is too large for its objects."""
        third = len(self.memory) // 3
        if third < 2:  # too short to tell growth from start-up
            return []
        before, objects = max(self.memory[:third])
        after, now = self.memory[-1]
        if now > objects * 1.1 or after <= before * (1 + GROWTH) + SLACK:
            return []
        return [f"informer: {before:,} bytes with {objects} objects, {after:,} with {now} later"]

    def table(self, seconds: float) -> Table:
        """Return the statistics and the findings as a table."""
        table = Table(show_header=False)
        rows: list[tuple[str, object]] = [
            ("seconds", f"{seconds:.0f}"),
            ("creations", self.facts.creations),
            ("changes", self.facts.changes),
            ("deletions", self.facts.deletions),
            ("writes without an answer", sum(writer.unanswered for writer in self.writers)),
            *((f"fault: {kind}", times) for kind, times in sorted(self.faults.items())),
        ]
        rows += [
            (f"{each.name}: started again", len(each.ends)) for each in self.consumers if each.ends
        ]
        for teller in self.tellers:
            reader = teller.reader
            rows += [
                (f"{teller.name}: told", reader.told),
                (f"{teller.name}: states that a list skipped over", reader.skipped),
            ]
            if teller.is_restarted:
                rows.append((f"{teller.name}: told again after a kill", reader.repeats))
        for (resident, alive), when in zip(
            (self.memory[:1] + self.memory[-1:]), ("first", "last"), strict=False
        ):
            size = f"{resident / 1e6:.1f} MB, {alive} objects"
            rows.append((f"informer after the {when} round", size))
        rows.append(("lost, invented, out of order", len(self.losses)))
        for name, value in rows:
            table.add_row(name, str(value))
        return table


def main() -> int:
    """Run, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("minutes", type=float, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="chooses the faults")
    parser.add_argument("--rate", type=float, default=60, help="writes a second")
    parser.add_argument("--objects", type=int, default=100, help="names for each of four writers")
    options = parser.parse_args()
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(directory, options.seed, options.rate, options.objects)
    asyncio.run(soak.run(options.minutes))
    out.print(soak.table(time.monotonic() - began))
    for loss in soak.losses[:50]:
        out.print(loss, style="red", markup=False, soft_wrap=True)
    if soak.losses:
        out.print(f"The stories and the logs are in {directory}.", soft_wrap=True)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
