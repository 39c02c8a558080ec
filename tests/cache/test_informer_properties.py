"""The reflector, each queue and the indexer, against a fake source with random faults."""

import asyncio
import random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache.deltas import Item
from listwatch.cache.handlers import last_state
from listwatch.cache.informer import Informer
from listwatch.cache.list_watch import ERROR, MODIFIED, WatchEvent
from listwatch.cache.shared_informer import SharedInformer
from listwatch.cache.store import Indexer
from listwatch.clock import FakeClock
from listwatch.errors import (
    DisconnectedError,
    ExpiredError,
    FrameError,
    InternalServerError,
    TooManyRequestsError,
)
from listwatch.objects import Object, ObjectDecodeError
from listwatch.testing.fake_controller_source import (
    END,
    SILENCE,
    Backup,
    Ending,
    FakeControllerSource,
    WatchScript,
    pod,
)

KEYS = ["ns/a", "ns/b", "ns/c", "d"]
ERRORS = [
    DisconnectedError("reset by peer"),
    DisconnectedError("nobody listens", refused=True),
    ExpiredError("too old"),
    TooManyRequestsError("later", retry_after=3),
    InternalServerError("broken"),
    FrameError("half an event"),
    RuntimeError("a source's own mistake"),
]
ENDINGS: list[Exception | Ending] = [END, SILENCE, *ERRORS]


class StoryTeller:
    """A handler that checks that the changes of each key are consistent."""

    def __init__(self, clock: FakeClock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        self.last: dict[str, Object] = {}
        self.wrong: list[str] = []

    async def _tire(self) -> None:
        # Rare, or most examples would only wait.
        match self.rng.randrange(12):
            case 0:
                await self.clock.sleep(self.rng.random() * 3)
            case 1:
                raise ValueError("a handler's own mistake")

    async def on_add(self, obj: Object, is_in_initial_list: bool) -> None:
        if obj.key in self.last:
            self.wrong.append(f"added twice: {obj} (initial: {is_in_initial_list})")
        self.last[obj.key] = obj
        await self._tire()

    async def on_update(self, old: Object, new: Object) -> None:
        if self.last.get(new.key) is not old:
            self.wrong.append(f"updated from {old}, but told was {self.last.get(new.key)}")
        if old.uid != new.uid:
            self.wrong.append(f"another uid in an update: {old.uid} -> {new.uid}")
        self.last[new.key] = new
        await self._tire()

    async def on_delete(self, obj: Item) -> None:
        last = self.last.pop(obj.key, None)
        state = last_state(obj)
        if last is None:
            self.wrong.append(f"deleted without being there: {obj}")
        elif state is None or state.uid != last.uid:
            self.wrong.append(f"the deletion of another: {obj}, told was {last.uid}")
        await self._tire()


def named(key: str, x: float = 0.0) -> dict[str, object]:
    namespace, _, name = key.rpartition("/")
    return pod(name, namespace, x=x)


class World:
    """The fake source and the random changes and faults it undergoes."""

    def __init__(self, source: FakeControllerSource, clock: FakeClock, rng: random.Random) -> None:
        self.source = source
        self.clock = clock
        self.rng = rng
        self.backup: Backup | None = None

    def write(self) -> None:
        rng, source = self.rng, self.source
        key = rng.choice(KEYS)
        drop = rng.random() < 0.2
        if key not in source.objects:
            (source.add_drop_watch if drop else source.add)(named(key, x=rng.random()))
        elif rng.random() < 0.4:
            (source.delete_drop_watch if drop else source.delete)(key)
        else:
            (source.modify_drop_watch if drop else source.modify)(named(key, x=rng.random()))

    async def act(self, action: str) -> None:  # noqa: C901, PLR0912 - one case for each fault
        rng, source = self.rng, self.source
        match action:
            case "write":
                self.write()
            case "burst":
                for _ in range(rng.randrange(20)):
                    self.write()
            case "recreate":
                key = rng.choice(KEYS)
                if key in source.objects:
                    source.delete(key)
                source.add(named(key))
            case "wait":
                await self.clock.advance(rng.choice([0.0, 0.5, 5.0, 40.0]))
            case "wait long":
                await self.clock.advance(rng.choice([160.0, 400.0, 700.0]))
            case "end":
                source.end_watches(rng.choice([END, *ERRORS]))
            case "expire":
                source.reset_watch()
            case "error event":
                source.send(WatchEvent(ERROR, error=rng.choice(ERRORS)))
            case "garbage":
                source.send(
                    rng.choice(
                        [
                            WatchEvent("", error=FrameError("not JSON")),
                            WatchEvent("UNHEARD", error=None),
                            WatchEvent(
                                MODIFIED, error=ObjectDecodeError("null", key=rng.choice(KEYS))
                            ),
                        ]
                    )
                )
            case "bookmark":
                source.send_bookmark()
            case "poison":
                source.poison.add(rng.choice(KEYS))
            case "antidote":
                source.poison.clear()
            case "silence":
                source.silence_watches()
            case "fail lists":
                source.fail_lists(rng.choice([SILENCE, *ERRORS]), rng.randrange(1, 4))
            case "fail watches":
                source.fail_watches(rng.choice([SILENCE, *ERRORS]), rng.randrange(1, 4))
            case "script":
                then = rng.choice(ENDINGS)
                script = WatchScript(backlog=rng.random() < 0.7, then=then)
                source.script_watches(script, rng.randrange(1, 4))
            case "watch-list":
                source.watch_list = rng.choice(["yes", "invalid", "ignored", ERRORS[2]])
            case "backup":
                self.backup = source.backup()
            case "restore":
                if self.backup is not None:
                    source.restore(self.backup)


ACTIONS = [
    *(["write"] * 6),
    *(["wait"] * 4),
    "burst",
    "recreate",
    "recreate",
    "wait long",
    "end",
    "end",
    "expire",
    "error event",
    "garbage",
    "bookmark",
    "poison",
    "antidote",
    "silence",
    "fail lists",
    "fail watches",
    "script",
    "watch-list",
    "backup",
    "restore",
]


def identities(objects: list[Object]) -> set[tuple[str, str, str]]:
    return {(obj.key, obj.uid, obj.resource_version) for obj in objects}


async def live(fifo: Literal["ordered", "delta"], seed: int, actions: list[str]) -> None:
    rng = random.Random(seed)
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    world = World(source, clock, rng)
    for _ in range(rng.randrange(6)):
        world.write()
    handler = StoryTeller(clock, rng)
    informer = Informer(
        source,
        handler,
        indexers={"namespace": lambda obj: [obj.namespace]},
        resync_period=rng.choice([None, 7.0]),
        fifo=fifo,
        clock=clock,
        page_size=rng.choice([0, 1, 2]),
        on_error=lambda _: None,
        rng=rng,
    )
    async with informer:
        for action in actions:
            await world.act(action)
        await come_to_rest(world)
        assert informer.has_synced
        check(informer.indexer, source, [handler])


async def come_to_rest(world: World) -> None:
    """End all faults and force a list, which shows dropped and poisoned objects.

    No client can notice a restore whose versions have overtaken its own; the list ends that too.
    """
    source = world.source
    source.heal()
    source.poison.clear()
    source.watch_list = "yes"
    for _ in range(200):
        if "last" in source.objects:
            source.modify_drop_watch(named("last", x=world.rng.random()))
        else:
            source.add_drop_watch(named("last"))
    source.reset_watch()
    await world.clock.advance(1500)


def check(indexer: Indexer, source: FakeControllerSource, handlers: list[StoryTeller]) -> None:
    present = list(source.objects.values())
    assert identities(indexer.list()) == identities(present)
    for namespace in ("", "ns"):
        assert identities(indexer.by_index("namespace", namespace)) == identities(
            [obj for obj in present if obj.namespace == namespace]
        )
    for handler in handlers:
        assert not handler.wrong, handler.wrong[0]
        assert identities(list(handler.last.values())) == identities(present)


async def live_shared(seed: int, actions: list[str]) -> None:
    rng = random.Random(seed)
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    world = World(source, clock, rng)
    for _ in range(rng.randrange(6)):
        world.write()
    informer = SharedInformer(source, clock=clock, page_size=2, on_error=lambda _: None, rng=rng)
    handlers: list[StoryTeller] = []

    def join() -> None:
        handlers.append(StoryTeller(clock, rng))
        informer.add_handler(
            handlers[-1],
            resync_period=rng.choice([0, 7.0]),
            max_pending=rng.choice([None, 1, 3]),
        )

    join()
    async with informer:
        for action in actions:
            if action == "join":
                join()
            else:
                await world.act(action)
        await come_to_rest(world)
        assert all(one.has_synced for one in informer.statistics().listeners)
        check(informer.indexer, source, handlers)


@pytest.mark.parametrize("fifo", ["ordered", "delta"])
@given(seed=st.integers(0, 2**32), actions=st.lists(st.sampled_from(ACTIONS), max_size=40))
def test_at_rest_the_cache_equals_the_source_and_every_story_is_consistent(
    fifo: Literal["ordered", "delta"], seed: int, actions: list[str]
) -> None:
    asyncio.run(live(fifo, seed, actions))


@given(
    seed=st.integers(0, 2**32),
    actions=st.lists(st.sampled_from([*ACTIONS, "join", "join", "join"]), max_size=40),
)
def test_every_handler_of_a_shared_informer_hears_a_consistent_story(
    seed: int, actions: list[str]
) -> None:
    """Including handlers that joined late, are slow, fail, or have a bounded queue."""
    asyncio.run(live_shared(seed, actions))
