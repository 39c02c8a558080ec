"""An observer with a state file, killed at random moments, compared with the real changes."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.observer import Observer, Source
from listwatch.observe.options import ObserveOptions
from listwatch.observe.reaction import ErrorBudget, Reaction
from listwatch.observe.state import StateFile
from listwatch.testing import story
from listwatch.testing.fake_controller_source import FakeControllerSource, pod

if TYPE_CHECKING:
    from listwatch.observe.output import OutputStream

KEYS = "abc"
#: One object's command takes longer than several of another object's.
SECONDS = {"ns/a": 2.0, "ns/b": 0.3, "ns/c": 0.05}


class Commands:
    """A reaction whose commands take some time; record finished ones."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.budget = ErrorBudget(-1, 0, clock)
        self.running: list[story.Chapter] = []
        self.finished: list[story.Chapter] = []

    async def __call__(self, changes: Sequence[Observation]) -> None:
        chapters = [self._chapter(change) for change in changes]
        self.running += chapters
        await self._clock.sleep(max(SECONDS[change.key] for change in changes))
        for chapter in chapters:
            self.running.remove(chapter)
        self.finished += chapters

    def is_same_command(self, one: Observation, other: Observation) -> bool:
        """Share a run as commands and commands of deletions do."""
        return (one.type is ObservationType.DELETED) == (other.type is ObservationType.DELETED)

    def _chapter(self, change: Observation) -> story.Chapter:
        assert change.object is not None
        kind = story.ChapterType(change.type.plain)
        if kind is story.ChapterType.SYNC:
            kind = story.ChapterType.ADDED if change.old is None else story.ChapterType.UPDATED
        version = int(change.object.resource_version)
        return story.Chapter(kind, change.key, change.object.uid, version)

    async def sync_line(self, word: str, resource: str) -> None:
        """Print nothing."""


class World:
    """A cluster, its changes, and an observer that is started and killed."""

    def __init__(self, path: Path, parallel: int, exec_batch: int) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock, bookmark_seconds=5.0)
        self.done: list[story.Chapter] = []
        self.gaps: list[story.Gap] = []
        self.allowed_repeats: Counter[story.Chapter] = Counter()
        self.begun: dict[str, story.Chapter] = {}
        self.commands = Commands(self.clock)
        self._path = path
        self._parallel = parallel
        self._exec_batch = exec_batch
        self._state: StateFile | None = None
        self._observer: Observer | None = None
        self._task: asyncio.Task[None] | None = None

    def write(self, key: str, *, delete: bool) -> None:
        known = f"ns/{key}" in self.source.objects
        if delete and not known:
            return
        if delete:
            obj, kind = self.source.delete(f"ns/{key}"), story.ChapterType.DELETED
        elif known:
            body = pod(key, "ns", n=len(self.done))
            obj, kind = self.source.modify(body), story.ChapterType.UPDATED
        else:
            obj, kind = self.source.add(pod(key, "ns")), story.ChapterType.ADDED
        self.done.append(story.Chapter(kind, obj.key, obj.uid, int(obj.resource_version)))

    def compact(self) -> None:
        # An observer that is behind must list, and a list may skip any states.
        self.source.reset_watch()
        self.gaps = [story.Gap(0, 10_000)]

    def start(self) -> None:
        async def exists(key: str) -> bool:
            return key in self.source.objects

        self._state = StateFile(self._path, {"cluster": "c"})
        self._observer = Observer(
            ObserveOptions(
                resources=("pods",), parallel=self._parallel, exec_batch=self._exec_batch
            ),
            [Source("pods", self.source, True, exists, "pods.v1.")],
            reaction=cast("Reaction", self.commands),
            known_names=None,
            err=cast("OutputStream", None),
            clock=self.clock,
            state=self._state,
        )
        self._task = asyncio.ensure_future(self._observer.run())

    def told(self) -> list[story.Chapter]:
        """Return the delivered changes, with those of killed commands before their deletions.

        A killed command may have done its work, so the deletion is due.
        """
        told: list[story.Chapter] = []
        for change in self.commands.finished:
            is_end = change.type is story.ChapterType.DELETED and change.uid in self.begun
            if is_end and all(other.uid != change.uid for other in told):
                told.append(self.begun[change.uid])
            told.append(change)
        return told

    async def kill(self) -> None:
        assert self._task is not None
        assert self._state is not None
        self.allowed_repeats.update(self.commands.running)
        for change in self.commands.running:
            # A deletion does not begin an object's life.
            if change.type is not story.ChapterType.DELETED:
                self.begun[change.uid] = change
        self._task.cancel()
        await asyncio.wait({self._task})
        self.commands.running.clear()
        self._state.close()


async def _run(steps: list[tuple[str, str]], parallel: int, exec_batch: int, path: Path) -> None:
    world = World(path, parallel, exec_batch)
    world.write("a", delete=False)
    world.gaps = [story.Gap(0, 1)]
    world.start()
    await world.clock.advance(5)
    for step, key in steps:
        if step in {"write", "delete"}:
            world.write(key, delete=step == "delete")
            await world.clock.settle()
        elif step == "wait":
            await world.clock.advance(0.2)
        elif step == "long":
            await world.clock.advance(6)
        elif step == "compact":
            world.compact()
        elif step == "behind":
            # One object's command still runs while another object changes twice.
            for name in ("a", key, key):
                world.write(name, delete=False)
                await world.clock.advance(0.4)
        else:
            await world.kill()
            world.start()
            await world.clock.settle()
    await world.clock.advance(300)
    told = world.commands.finished
    result = story.compare(world.done, dict.fromkeys(world.told()), world.gaps)
    assert result.mistakes == [], (result.mistakes, told, world.done)
    repeats = Counter(told) - Counter(dict.fromkeys(told, 1))
    # A killed command may have finished unnoticed and run again; nothing else repeats.
    assert not repeats - world.allowed_repeats
    await world.kill()


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["write", "write", "behind", "delete", "wait", "kill", "long", "compact"]
            ),
            st.sampled_from(KEYS),
        ),
        min_size=10,
        max_size=40,
    ),
    parallel=st.integers(1, 3),
    exec_batch=st.integers(0, 2),
)
def test_kills_at_any_moment_lose_nothing_and_repeat_only_what_was_running(
    steps: list[tuple[str, str]], parallel: int, exec_batch: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_run(steps, parallel, exec_batch, Path(directory) / "state"))
