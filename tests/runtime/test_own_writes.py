"""A reconcile of a key reads what its last reconcile wrote."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from listwatch.cache.list_watch import (
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.client.http import HTTP, Answer
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError, InternalServerError, NotFoundError
from listwatch.objects import Object
from listwatch.runtime.own_writes import (
    Write,
    WriteTarget,
    _RecordingHTTP,  # private: `recorded` puts it in place of a client's HTTP
    record,
    target_of,
)
from listwatch.testing.fake_controller_source import FakeControllerSource
from runtime.reconciler_world import World, widget


class Lagging:
    """A source whose watch delivers events late, in order."""

    def __init__(self, source: FakeControllerSource, lag: Any, clock: FakeClock) -> None:
        self._source = source
        self._lag = lag
        self._clock = clock

    async def list(self, options: ListOptions) -> ObjectList:
        return await self._source.list(options)

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        arrived: asyncio.Queue[tuple[float, WatchEvent] | None] = asyncio.Queue()

        async def take_in(stream: WatchStream) -> None:
            async for batch in stream:
                for event in batch:
                    lag = 0.0 if event.object is None else self._lag()
                    arrived.put_nowait((self._clock.now() + lag, event))
            arrived.put_nowait(None)

        async def tell() -> WatchStream:
            while (item := await arrived.get()) is not None:
                due, event = item
                if (seconds := due - self._clock.now()) > 0:
                    await self._clock.sleep(seconds)
                yield [event]

        async with self._source.watch(options) as stream:
            pump = asyncio.create_task(take_in(stream))
            try:
                yield tell()
            finally:
                pump.cancel()
                await asyncio.wait({pump})


class Server:
    """Answers a reconcile's requests from the sources, and loses some answers."""

    def __init__(self, world: "LaggingWorld") -> None:
        self._world = world
        self.requests: list[str] = []
        #: Fates of the next writes: "lost", "not sent", or "".
        self.fates: Iterable[str] = iter(())
        self.stream = None
        self._names = 0

    async def request(
        self, method: str, path: str, _query: Any = (), *, body: bytes | None = None, **_: Any
    ) -> Answer:
        target = target_of(path)
        assert target is not None
        await self._world.clock.sleep(self._world.rng.choice([0, 0.01]))
        fate = next(iter(self.fates), "")
        self.requests.append(f"{method} {target.plural}")
        if fate == "not sent":
            raise DisconnectedError("no connection")
        source = self._world.source(target.plural)
        if method == "DELETE":
            key = f"{target.namespace}/{target.name}"
            if key not in source.objects:
                raise NotFoundError("gone")
            gone = source.delete(source.objects[key])
            status = {"kind": "Status", "apiVersion": "v1", "details": {"uid": gone.uid}}
            answer = json.dumps(status).encode()
        else:
            obj = json.loads(body or b"{}")
            if prefix := obj["metadata"].pop("generateName", ""):
                self._names += 1
                obj["metadata"]["name"] = f"{prefix}{self._names}"
            stored = source.add(obj) if method == "POST" else source.modify(obj)
            answer = stored.json()
        if fate == "lost":
            raise DisconnectedError("the connection broke within a response")
        return Answer(200, {}, answer)


class Reader:
    """The client that reads the result of writes whose answers were lost."""

    def __init__(self, world: "LaggingWorld") -> None:
        self._world = world
        self.discovery = world

    async def get(self, resource: Any, name: str, namespace: str | None) -> Object:
        found = self._world.source(resource.plural).objects.get(f"{namespace}/{name}")
        if found is None:
            raise NotFoundError("no such object")
        return found

    async def pages(self, resource: Any, namespace: str | None) -> AsyncIterator[ObjectList]:
        objects = self._world.source(resource.plural).objects.values()
        yield ObjectList(items=[one for one in objects if one.namespace == namespace])


class LaggingWorld(World):
    def __init__(self, seed: int = 0, lag: float = 0.0, **options: Any) -> None:
        super().__init__(hot_key_interval=0, **options)
        self.rng = random.Random(seed)
        self.lag = lag
        self.server = Server(self)
        self.http = _RecordingHTTP(cast("HTTP", self.server))

    def list_watch(self, resource: str, *args: Any, **options: Any) -> Any:
        source = super().list_watch(resource, *args, **options)
        return Lagging(
            source, lambda: self.rng.choice([0.0, self.rng.uniform(0, self.lag)]), self.clock
        )

    async def find(self, word: str) -> Any:
        return await super().find(word.partition(".")[0])

    async def post(self, plural: str, obj: dict[str, Any]) -> None:
        path = f"/apis/example.com/v1/namespaces/ns/{plural}"
        await self.http.request("POST", path, body=json.dumps(obj).encode())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Any]:
        prepare = self.reconciler.prepare

        async def prepared(discovery: Any) -> None:
            await prepare(discovery, cast("Any", Reader(self)))

        self.reconciler.prepare = prepared  # type: ignore[method-assign,assignment]
        async with super().running() as reconciler:
            yield reconciler


def children_of(world: LaggingWorld, parent: str) -> int:
    return sum(
        obj.meta.labels.get("parent") == parent for obj in world.source("children").objects.values()
    )


class OneChild:
    """Creates a child with a generated name for each parent that has none in the lister."""

    def __init__(self, world: LaggingWorld) -> None:
        self.world = world
        self.reconciles = 0
        self.most: Counter[str] = Counter()
        world.reconciler.for_("parents").reads("children")
        world.reconciler(self.reconcile)

    async def reconcile(self, key: str) -> None:
        self.reconciles += 1
        name = key.partition("/")[2]
        if self.world.reconciler.get(key) is None:
            return
        if not self.world.reconciler.lister("children").list(f"parent={name}"):
            meta = {"namespace": "ns", "generateName": "c-", "labels": {"parent": name}}
            try:
                await self.world.post("children", {**widget(""), "metadata": meta})
            finally:
                self.most[name] = max(self.most[name], children_of(self.world, name))


async def tried(seed: int, rounds: int, *, faults: bool = True, **options: Any) -> OneChild:
    world = LaggingWorld(seed, lag=30.0, concurrency=3, **options)
    rng = world.rng
    for number in range(3):
        world.source("parents").add(widget(f"p{number}"))
    if faults:
        world.server.fates = iter(lambda: rng.choice(["", "", "", "lost", "not sent"]), None)
    controller = OneChild(world)
    async with world.running() as reconciler:
        await world.clock.advance(100)
        for _ in range(rounds):
            reconciler.enqueue(f"ns/p{rng.randrange(3)}")
            if rng.random() < 0.05:
                children = list(world.source("children").objects.values())
                if children:
                    world.source("children").delete(rng.choice(children))
            await world.clock.advance(rng.choice([0.01, 0.1, 1.0, 5.0]))
    return controller


@pytest.mark.parametrize("seed", range(3))
async def test_there_is_never_a_second_child_however_far_the_watch_lags(seed: int) -> None:
    controller = await tried(seed, 300, own_writes_timeout=60.0)
    assert set(controller.most.values()) == {1}
    assert controller.reconciles > 150
    statistics = controller.world.reconciler.statistics().own_writes
    assert statistics is not None
    assert statistics.timeouts == 0
    assert statistics.waits > 3
    assert statistics.seconds > 10


async def test_without_it_the_same_controller_makes_second_children() -> None:
    found = [await tried(seed, 100, own_writes_timeout=None) for seed in range(3)]
    assert max(max(one.most.values()) for one in found) > 1
    assert found[0].world.reconciler.statistics().own_writes is None


async def test_a_second_child_follows_a_counted_time_out_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = [await tried(seed, 300, own_writes_timeout=2.0) for seed in range(3)]
    for one in found:
        statistics = one.world.reconciler.statistics().own_writes
        assert statistics is not None
        assert statistics.timeouts > 0
    assert max(max(one.most.values()) for one in found) > 1
    assert any(
        "lacks version" in line and "the cache of children" in line and "after 2 s" in line
        for line in caplog.messages
    )


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(32))
async def test_there_is_never_a_second_child_in_a_long_run(seed: int) -> None:
    controller = await tried(seed, 50_000, own_writes_timeout=60.0)
    assert set(controller.most.values()) == {1}
    statistics = controller.world.reconciler.statistics().own_writes
    assert statistics is not None
    assert statistics.timeouts == 0


# --- Which requests are writes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/v1/namespaces/ns/pods", WriteTarget("", "v1", "pods", "ns", "", "")),
        ("/api/v1/namespaces/ns/pods/a", WriteTarget("", "v1", "pods", "ns", "a", "")),
        ("/api/v1/namespaces/ns/pods/a/status", WriteTarget("", "v1", "pods", "ns", "a", "status")),
        ("/api/v1/namespaces/ns", WriteTarget("", "v1", "namespaces", "", "ns", "")),
        ("/api/v1/namespaces/ns/status", WriteTarget("", "v1", "namespaces", "", "ns", "status")),
        (
            "/api/v1/namespaces/ns/finalize",
            WriteTarget("", "v1", "namespaces", "", "ns", "finalize"),
        ),
        ("/api/v1/nodes", WriteTarget("", "v1", "nodes", "", "", "")),
        ("/apis/a.io/v1/namespaces/n/bs/a%3Ab", WriteTarget("a.io", "v1", "bs", "n", "a:b", "")),
        ("/apis/a.io/v1/bs/b/scale", WriteTarget("a.io", "v1", "bs", "", "b", "scale")),
        ("/apis/a.io/v1", None),
        ("/version", None),
        ("/", None),
    ],
)
def test_a_path_tells_what_is_written(path: str, target: WriteTarget | None) -> None:
    assert target_of(path) == target


class Canned:
    """Gives every request the same answer."""

    stream = None

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def request(self, *_: Any, **__: Any) -> Answer:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return Answer(
            200,
            {},
            self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode(),
        )


async def written(method: str, path: str, answer: Any, **options: Any) -> list[Write]:
    recording = record()
    http = _RecordingHTTP(cast("HTTP", Canned(answer)))
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await http.request(method, path, **options)
    return recording.end()


PODS = "/api/v1/namespaces/ns/pods"
POD = {"kind": "Pod", "apiVersion": "v1"} | {
    "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
}
DRY = json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}).encode()
DRY_EVICTION = json.dumps({"kind": "Eviction", "deleteOptions": {"dryRun": ["All"]}}).encode()


@pytest.mark.parametrize(
    ("method", "path", "answer", "options", "known"),
    [
        ("POST", PODS, POD, {}, [("a", "u", "7", False, False)]),
        ("PUT", f"{PODS}/a", POD, {}, [("a", "u", "7", False, False)]),
        ("PATCH", f"{PODS}/a/status", POD, {}, [("a", "u", "7", False, False)]),
        ("PATCH", f"{PODS}/a/scale", POD | {"kind": "Scale"}, {}, [("a", "u", "7", False, False)]),
        ("DELETE", f"{PODS}/a", POD, {}, [("a", "u", "", True, False)]),
        (
            "DELETE",
            f"{PODS}/a",
            {"kind": "Status", "details": {"uid": "u"}},
            {},
            [("a", "u", "", True, False)],
        ),
        ("DELETE", PODS, {"kind": "PodList", "items": [POD]}, {}, [("a", "u", "", True, False)]),
        ("POST", f"{PODS}/a/eviction", {"kind": "Status"}, {}, [("a", "", "", True, False)]),
        ("POST", f"{PODS}/a/eviction", {"kind": "Status"}, {"body": DRY_EVICTION}, []),
        ("POST", f"{PODS}/a/binding", {"kind": "Status"}, {}, [("a", "", "", False, True)]),
        ("POST", f"{PODS}/a/token", {"kind": "TokenRequest"}, {}, []),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"kind": "R"}, {}, []),
        ("GET", f"{PODS}/a", POD, {}, []),
        ("POST", PODS, POD, {"query": [("dryRun", "All")]}, []),
        ("DELETE", f"{PODS}/a", POD, {"body": DRY}, []),
        ("PUT", f"{PODS}/a", DisconnectedError("broke"), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", DisconnectedError("no", refused=True), {}, []),
        ("PUT", f"{PODS}/a", TimeoutError(), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", asyncio.CancelledError(), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", InternalServerError("timeout"), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", NotFoundError("none"), {}, []),
        ("DELETE", f"{PODS}/a", TimeoutError(), {}, [("a", "", "", True, True)]),
        (
            "POST",
            PODS,
            TimeoutError(),
            {"body": json.dumps(POD).encode()},
            [("a", "", "", False, True)],
        ),
        (
            "POST",
            PODS,
            TimeoutError(),
            {"body": b'{"metadata": {"generateName": "a-"}}'},
            [("", "", "", False, True)],
        ),
        ("PUT", f"{PODS}/a", b"no JSON", {}, [("a", "", "", False, True)]),
    ],
    ids=str,
)
async def test_every_write_is_recorded_with_what_is_known_of_it(
    method: str,
    path: str,
    answer: Any,
    options: dict[str, Any],
    known: list[tuple[str, str, str, bool, bool]],
) -> None:
    assert [
        (one.target.name, one.uid, one.resource_version, one.is_deletion, one.is_lost)
        for one in await written(method, path, answer, **options)
    ] == known


# --- Waiting for own writes -----------------------------------------------------------------------


async def test_get_shows_what_the_reconcile_wrote() -> None:
    world = LaggingWorld(lag=30)
    world.source("parents").add(widget("p"))
    shown: list[Any] = []
    reconciler = world.reconciler.for_("parents")

    @reconciler
    async def reconcile(key: str) -> None:
        if shown:
            return
        shown.append(reconciler.get(key))
        path = f"/apis/example.com/v1/namespaces/ns/parents/{key[3:]}"
        changed = widget("p", spec={"a": 1})
        await world.http.request("PUT", path, body=json.dumps(changed).encode())
        shown.append(reconciler.get(key))
        await world.http.request("DELETE", path)
        shown.append(reconciler.get(key))

    async with world.running():
        await world.clock.advance(100)
    before, changed, gone = shown
    assert "spec" not in before
    assert changed["spec"] == {"a": 1}
    assert gone is None


@pytest.mark.parametrize(
    ("selection", "holds"),
    [
        ({}, True),
        ({"namespace": "ns"}, True),
        ({"namespace": "other"}, False),
        ({"label_selector": "app=web"}, True),
        ({"label_selector": "app=db"}, False),
    ],
    ids=str,
)
async def test_only_caches_that_are_to_have_the_object_are_waited_for(
    selection: dict[str, str], *, holds: bool
) -> None:
    world = LaggingWorld(lag=0)
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children", **selection)
    done: list[str] = []

    @reconciler
    async def reconcile(key: str) -> None:
        if not done:
            done.append(key)
            world.lag = 1e6
            meta = {"namespace": "ns", "name": "c", "labels": {"app": "web"}}
            await world.post("children", {**widget("c"), "metadata": meta})

    async with world.running():
        await world.clock.advance(1)
        statistics = reconciler.statistics().own_writes
        assert statistics is not None
        assert statistics.waiting == holds
    assert reconciler.statistics().queue.depth == 0


async def test_what_wakes_a_key_meanwhile_is_one_reconcile_and_other_keys_go_on() -> None:
    world = LaggingWorld(lag=0, own_writes_timeout=5.0)
    for name in "ab":
        world.source("parents").add(widget(name))
    reconciler = world.reconciler.for_("parents").reads("children")

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if world.calls == ["ns/a"]:
            world.lag = 1e6
            await world.post("children", widget("c"))

    async with world.running():
        assert world.calls == ["ns/a", "ns/b"]
        for _ in range(3):
            reconciler.enqueue("ns/a")
            reconciler.enqueue("ns/b")
            await world.clock.advance(0.1)
        assert world.calls == ["ns/a", "ns/b", "ns/b", "ns/b", "ns/b"]
        await world.clock.advance(5)
        assert world.calls[5:] == ["ns/a"]


# --- The end of a reconcile, and of the reconciler ------------------------------------------------


async def test_a_reconcile_that_hides_its_cancellation_and_writes_ends_the_reconciler_quietly() -> (
    None
):
    world = LaggingWorld(lag=1e6)
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children")

    @reconciler
    async def reconcile(_key: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await world.post("children", widget("c"))

    world.lag = 0
    async with world.running():
        assert reconciler.in_process == {"ns/p"}
        world.lag = 1e6
    assert "ns/c" in world.source("children").objects
    assert reconciler.statistics().queue.processing == 0


async def test_a_key_is_let_go_although_its_wait_is_cancelled_before_it_begins() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents").reads("children")

    @reconciler
    async def reconcile(_key: str) -> None:
        world.lag = 1e6
        await world.post("children", widget("c"))
        running.cancel()  # as lost leadership does, right after the last step

    await reconciler.prepare(world)
    world.caches.open(world)
    caches = asyncio.create_task(world.caches.run())
    running = asyncio.create_task(reconciler.run())
    await world.clock.advance(1)
    await asyncio.wait({running})
    caches.cancel()
    await asyncio.wait({caches})
    assert running.cancelled()
    assert reconciler.statistics().queue.processing == 0


async def test_a_task_that_outlives_its_reconcile_piles_up_no_writes() -> None:
    recording = record()
    http = _RecordingHTTP(cast("HTTP", Canned(POD)))

    async def go_on() -> None:
        for _ in range(3):
            await http.request("PUT", f"{PODS}/a")

    await http.request("PUT", f"{PODS}/a")
    task = asyncio.create_task(go_on())
    assert len(recording.end()) == 1
    await task
    assert not recording.writes


async def test_what_the_reconcile_wrote_has_the_fields_of_its_cache() -> None:
    class Fields(msgspec.Struct):
        spec: dict[str, int] = {}

    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents", fields=Fields)
    shown: list[Any] = []

    @reconciler
    async def reconcile(key: str) -> None:
        if shown:
            return
        path = f"/apis/example.com/v1/namespaces/ns/parents/{key[3:]}"
        changed = json.dumps(widget("p", spec={"a": 1})).encode()
        await world.http.request("PUT", path, body=changed)
        found = reconciler.get(key)
        assert found is not None
        shown.append(found.fields)

    async with world.running():
        await world.clock.advance(100)
    assert [one.spec for one in shown] == [{"a": 1}]


async def test_a_write_whose_answer_was_lost_does_not_hide_the_one_before() -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents")
    shown: list[Any] = []

    @reconciler
    async def reconcile(key: str) -> None:
        if shown:
            return
        path = f"/apis/example.com/v1/namespaces/ns/parents/{key[3:]}"
        changed = json.dumps(widget("p", spec={"a": 1})).encode()
        await world.http.request("PUT", path, body=changed)
        for method in ("PUT", "DELETE"):
            world.server.fates = iter(["lost"])
            with contextlib.suppress(DisconnectedError):
                await world.http.request(method, path, body=changed)
            found = reconciler.get(key)
            assert found is not None
            shown.append(found["spec"])

    async with world.running():
        await world.clock.advance(100)
    assert shown == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize("version", ["9" * 5000, "٣", "²", "x", ""], ids=lambda v: v[:3] or "none")
async def test_a_version_that_is_no_number_of_sane_length_holds_nothing_back(version: str) -> None:
    world = LaggingWorld()
    world.source("parents").add(widget("p"))
    reconciler = world.reconciler.for_("parents")
    answer = widget("p", meta={"uid": "u", "resourceVersion": version})
    http = _RecordingHTTP(cast("HTTP", Canned(answer)))

    @reconciler
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if len(world.calls) < 3:
            reconciler.enqueue(key)
        await http.request("PUT", "/apis/example.com/v1/namespaces/ns/parents/p")
        reconciler.get(key)

    async with world.running():
        await world.clock.advance(100)
    assert world.calls == ["ns/p"] * 3
