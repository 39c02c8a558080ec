"""One manager over several clusters."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from listwatch.apiserver.http.faults import Fault
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError
from listwatch.objects import Object, decode_object
from listwatch.runtime import ClusterKey, ClusterReconciler, Clusters
from listwatch.runtime.clusters.cluster_key import cluster_of
from listwatch.runtime.clusters.clusters import UnknownClusterError
from listwatch.runtime.clusters.finding import FindClusters, config_of, in_kubeconfig, in_secrets
from listwatch.runtime.clusters.slots import Slots
from listwatch.runtime.manager import Manager
from listwatch.testing.waiting import eventually
from listwatch.workqueue.priority_queue import PriorityQueue
from metric_samples import samples_of


def config_map(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **more}


class World:
    """A hub, spokes, and the keys that were reconciled."""

    def __init__(self, servers: Mapping[str, EmbeddedAPIServer], stack: Any) -> None:
        self.servers = servers
        self.stack = stack
        self.calls: list[str] = []
        self.app = Manager("fleet", config=self.config("hub"), grace=1)

    def config(self, name: str) -> Config:
        return Config(server=self.servers[name].url)

    async def client(self, name: str) -> Client:
        client: Client = await self.stack.enter_async_context(Client(self.config(name)))
        return client

    def make(
        self, find: FindClusters | None = None, **options: Any
    ) -> tuple[Clusters, ClusterReconciler]:
        clusters = Clusters(self.app, find, grace=1)
        maps = clusters.reconciler("maps", **options)
        maps.for_("configmaps", namespace="default", label_selector="!kube")

        @maps
        async def reconcile(key: str) -> None:
            obj = maps.get(key)
            self.calls.append(key if obj is not None else f"gone {key}")

        return clusters, maps

    async def until(self, *calls: str) -> None:
        await eventually(lambda: set(calls) <= set(self.calls), str(calls))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(EmbeddedAPIServer())
            for name in ("hub", "east", "west")
        }
        yield World(servers, stack)


async def test_keys_carry_their_cluster_and_each_cluster_has_its_cache(world: World) -> None:
    clusters, maps = world.make()
    east, west = await world.client("east"), await world.client("west")
    await east.create(config_map("a"))
    clusters.add("east", world.config("east"))
    async with world.app:
        await world.until("east:default/a")
        clusters.add("west", world.config("west"))
        await west.create(config_map("b"))
        await world.until("west:default/b")
        await eventually(lambda: all(each.has_synced for each in clusters.status()))
        assert [obj.name for obj in maps.lister(cluster="east").list()] == ["a"]
        assert [obj.name for obj in maps.lister("configmaps", cluster="west").list()] == ["b"]
        assert maps.get("west:default/a") is None
        with pytest.raises(ValueError, match="no cluster 'north'; it has east, west"):
            maps.lister(cluster="north")
        names = {cache.name for cache in maps.caches}
        assert names == {f"{n}: configmaps in default !kube" for n in ("east", "west")}
        samples = samples_of(clusters._metrics())
        assert samples["listwatch_cluster_ready", "west"] == 1
        assert maps.history is not None


async def test_a_removed_cluster_wakes_nothing_and_may_come_back(world: World) -> None:
    clusters, maps = world.make()
    east = await world.client("east")
    await east.create(config_map("a"))
    clusters.add("east", world.config("east"))
    with pytest.raises(ValueError, match="cluster east exists"):
        clusters.add("east", world.config("west"))
    async with world.app:
        await world.until("east:default/a")
        await clusters.remove("east")
        assert (maps.members, list(clusters.status())) == ({}, [])
        with pytest.raises(UnknownClusterError):
            clusters.client("east")
        maps.enqueue("east:default/a")
        await east.create(config_map("b"))
        clusters.add("east", world.config("east"))
        await world.until("east:default/b")
        with pytest.raises(UnknownClusterError):
            await clusters.remove("north")


async def test_a_cluster_that_is_away_delays_no_other_and_is_served_when_it_is_back(
    world: World,
) -> None:
    clusters, _ = world.make()
    east = await world.client("east")
    await east.create(config_map("a"))
    clusters.add("away", Config(server="http://127.0.0.1:9"))
    clusters.add("east", world.config("east"))
    async with world.app:
        await world.until("east:default/a")
        away, there = clusters.status()
        assert (away.has_synced, there.name) == (False, "east")
        await eventually(lambda: "refused" in clusters.status()[0].problem)


async def test_reconciles_that_hang_in_one_cluster_leave_workers_to_the_others(
    world: World,
) -> None:
    clusters = Clusters(world.app, grace=0.1)
    maps = clusters.reconciler("maps", concurrency=3).for_("configmaps", namespace="default")
    hang = asyncio.Event()

    @maps
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        if cluster_of(key) == "east":
            await hang.wait()

    east, west = await world.client("east"), await world.client("west")
    for number in range(8):
        await east.create(config_map(f"e{number}"))
    clusters.add("east", world.config("east"))
    async with world.app:
        await eventually(lambda: len(world.calls) == 2)
        clusters.add("west", world.config("west"))
        for number in range(8):
            await west.create(config_map(f"w{number}"))
        await world.until(*(f"west:default/w{number}" for number in range(8)))
        assert len([key for key in world.calls if cluster_of(key) == "east"]) == 2
        assert maps.slots.statistics()["east"][0] == 2
        hang.set()
        await world.until(*(f"east:default/e{number}" for number in range(8)))


async def test_a_reconcile_reads_its_own_writes_in_the_cluster_of_each(world: World) -> None:
    clusters = Clusters(world.app)
    maps = clusters.reconciler("maps").for_("configmaps", namespace="default", label_selector="in")
    seen: list[str] = []

    @maps
    async def reconcile(key: str) -> None:
        where = ClusterKey(key)
        obj = maps.get(key)
        if obj is None or "done" in obj.labels:
            return
        seen.append(key)
        patch = {"metadata": {"labels": {"done": "yes"}}}
        await clusters.client(where.cluster).patch("configmaps", obj.name, patch, "default")
        # The hub has an object of the same key, which no cache of the cluster will hold.
        await world.app.client.patch("configmaps", obj.name, patch, "default")
        now = maps.get(key)
        assert now is not None
        assert "done" in now.labels

    hub, east = await world.client("hub"), await world.client("east")
    await hub.create(config_map("a"))
    created = config_map("a")
    created["metadata"]["labels"] = {"in": ""}
    clusters.add("east", world.config("east"))
    async with world.app:
        await east.create(created)
        await eventually(lambda: maps.statistics().successes >= 2)
        assert seen == ["east:default/a"]
        own = maps.statistics().own_writes
        assert own is not None
        assert own.timeouts == 0


async def test_sources_named_later_start_in_every_cluster_and_can_be_removed(
    world: World,
) -> None:
    clusters, maps = world.make()
    clusters.add("east", world.config("east"))
    east = await world.client("east")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    await east.create(secret, namespace="default")
    async with world.app:
        await eventually(lambda: all(each.has_synced for each in clusters.status()))
        maps.watches("secrets", lambda obj: [f"default/of-{obj.name}"], namespace="default")
        await world.until("gone east:default/of-s")
        await maps.remove("secrets")
        with pytest.raises(ValueError, match="no cache of 'secrets'"):
            maps.lister("secrets", cluster="east")
        clusters.add("west", world.config("west"))
        await eventually(lambda: len(clusters.status()) == 2 and clusters.status()[1].has_synced)
        assert [len(member.sources.sources) for member in maps.members.values()] == [1, 1]


async def test_keys_of_a_cluster_wait_for_a_source_named_late_and_others_go_on(
    world: World,
) -> None:
    clusters, maps = world.make(concurrency=4)
    east, west = await world.client("east"), await world.client("west")
    await west.create(config_map("a"))
    clusters.add("east", world.config("east"))
    clusters.add("west", world.config("west"))
    async with world.app:
        await eventually(lambda: all(each.has_synced for each in clusters.status()))
        world.servers["east"].faults.add(Fault(resource="secrets", status=503, times=0))
        maps.reads("secrets", namespace="default")
        for name in "bcd":
            await east.create(config_map(name))
            await west.create(config_map(name))
        await world.until(*(f"west:default/{name}" for name in "abcd"))
        await eventually(lambda: maps.slots.statistics().get("east") == (0, 3))
        assert {cluster_of(key) for key in world.calls} == {"west"}
        world.servers["east"].faults.replace([])
        await world.until(*(f"east:default/{name}" for name in "bcd"))


async def test_a_late_source_that_never_syncs_can_be_removed_and_the_cluster_goes_on(
    world: World,
) -> None:
    clusters, maps = world.make()
    east = await world.client("east")
    clusters.add("east", world.config("east"))
    async with world.app:
        await eventually(lambda: all(each.has_synced for each in clusters.status()))
        member = maps.members["east"]
        world.servers["east"].faults.add(Fault(resource="secrets", status=503, times=0))
        maps.reads("secrets", namespace="default")
        await eventually(lambda: member.sources.has("secrets"))
        await maps.remove("secrets")
        await east.create(config_map("a"))
        await world.until("east:default/a")
        assert maps.members["east"] is member


async def test_a_source_named_while_a_connection_ends_holds_no_keys(world: World) -> None:
    clusters, maps = world.make()
    east = await world.client("east")
    clusters.add("east", world.config("east"))
    async with world.app, asyncio.TaskGroup() as ended:
        await eventually(lambda: all(each.has_synced for each in clusters.status()))
        # The window between the end of a connection's tasks and the next connection.
        clusters._clusters["east"].group = ended
        ended._aborting = True  # type: ignore[attr-defined]  # as after the failure of a task
        maps.reads("secrets", namespace="default")
        assert [each.resource for each in maps.declarations] == ["configmaps", "secrets"]
        await east.create(config_map("a"))
        await world.until("east:default/a")


async def test_each_object_of_each_cluster_has_its_own_timer(world: World) -> None:
    clusters, maps = world.make()

    def seconds(obj: Object) -> float | None:
        text = (obj.to_dict().get("data") or {}).get("seconds")
        return None if text is None else float(text)

    maps.every(seconds, name="timers")
    for name, text in (("east", "0.02"), ("west", "3600")):
        client = await world.client(name)
        await client.create(config_map("a", data={"seconds": text}))
        clusters.add(name, world.config(name))
    async with world.app:
        await eventually(lambda: world.calls.count("east:default/a") > 3)
        await world.until("west:default/a")
        assert world.calls.count("west:default/a") == 1
        await maps.remove("timers")
        members = maps.members.values()
        assert [member.sources.has("timers") for member in members] == [False, False]
        maps.every(seconds)  # by another name, and late
        world.calls.clear()
        await eventually(lambda: world.calls.count("east:default/a") > 3)


async def test_a_key_that_another_replica_has_taken_over_keeps_no_parked_key_waiting(
    world: World,
) -> None:
    clusters = Clusters(world.app, grace=0.1)
    maps = clusters.reconciler("maps", per_cluster=1).for_("configmaps", label_selector="in")
    go_on = asyncio.Event()

    @maps
    async def reconcile(key: str) -> None:
        world.calls.append(key)
        await go_on.wait()

    east = await world.client("east")
    clusters.add("east", world.config("east"))
    async with world.app:
        for name in "abcd":
            made = config_map(name)
            made["metadata"]["labels"] = {"in": ""}
            await east.create(made)
            await world.until("east:default/a")
        await eventually(lambda: maps.slots.statistics()["east"] == (1, 3))
        maps.share(lambda key: key.endswith(("/a", "/d")))
        go_on.set()
        await world.until("east:default/d")
        assert world.calls == ["east:default/a", "east:default/d"]


async def test_clusters_come_from_secrets_of_the_hub(world: World) -> None:
    clusters, _ = world.make(in_secrets("default", label_selector="cluster"))
    hub, east = await world.client("hub"), await world.client("east")
    await east.create(config_map("a"))

    def secret(name: str, text: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "default", "labels": {"cluster": ""}}
        data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}

    await hub.create(secret("broken", "{"))
    async with world.app:
        await hub.create(secret("east", kubeconfig(world.servers["east"].url)))
        await world.until("east:default/a")
        assert [each.name for each in clusters.status()] == ["east"]
        await hub.delete("secrets", "east", "default")
        await eventually(lambda: not clusters.status())


async def test_a_search_that_begins_again_sees_that_all_secrets_are_gone(world: World) -> None:
    hub = await world.client("hub")
    seen: list[Mapping[str, Config]] = []

    async def search() -> None:
        async for found in in_secrets("default")(hub):
            seen.append(found)  # noqa: PERF401 - looked at before the end

    task = asyncio.create_task(search())
    await eventually(lambda: seen == [{}])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_clusters_come_from_the_contexts_of_a_kubeconfig(
    world: World, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(world.servers["east"].url, "Prod_East"), "utf-8")
    path.chmod(0o600)
    found = in_kubeconfig(path, contexts="Prod.*", every=0.05)
    stream = found(await world.client("hub"))
    reading = aiter(stream)
    first = await anext(reading)
    assert {name: config.server for name, config in first.items()} == {
        "prod-east": world.servers["east"].url
    }
    path.write_text(kubeconfig(world.servers["west"].url, "Prod_West_2"), "utf-8")
    assert list(await anext(reading)) == ["prod-west-2"]


def kubeconfig(server: str, name: str = "c", **user: Any) -> str:
    named: Callable[[str, Any], Any] = lambda kind, value: [{"name": name, kind: value}]  # noqa: E731 - one line
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": named("cluster", {"server": server}),
            "users": named("user", user),
            "contexts": named("context", {"cluster": name, "user": name}),
        }
    )


EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "sh",
    "interactiveMode": "Never",
}
TAGGED = kubeconfig("https://a", exec=EXEC).replace('"exec"', "!!binary ZXhlYw==")
BOMB = "".join(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]\n" for n in range(1, 60))


def in_secret(text: str | None) -> Object:
    data = {} if text is None else {"kubeconfig": base64.b64encode(text.encode()).decode()}
    meta = {"name": "s", "namespace": "ns"}
    return decode_object(json.dumps({"metadata": meta, "data": data}).encode())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no 'kubeconfig' in its data"),
        ("{", "Secret ns/s: its kubeconfig.* invalid YAML"),
        (kubeconfig("https://a", exec=EXEC), "uses exec, which can name files"),
        (TAGGED, "uses exec"),
        (f"{kubeconfig('https://a', exec=EXEC)[:-1]}, users: []}}", "Secret ns/s: "),
        (kubeconfig("https://a", tokenFile="/etc/passwd"), "uses tokenFile"),
        (kubeconfig("https://a", **{"client-certificate": "/a"}), "uses client-certificate,"),
        (kubeconfig("https://a", **{"client-key": "/a"}), "uses client-key"),
        (kubeconfig("unix:///run/other.sock"), "uses a unix socket"),
        (f"x: &x [*x]\n{'- ' * 5000}", "Secret ns/s: "),
        (f"x: {'[' * 3000}", "Secret ns/s: "),
        (f"x0: &x0 [1]\n{BOMB}", "Secret ns/s: .*no current-context"),
        ("users: &x [*x]", "Secret ns/s: "),
    ],
)
def test_a_secret_that_reaches_out_or_has_no_kubeconfig_is_refused(
    text: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(in_secret(text), "kubeconfig", trusted=False)


def test_a_trusted_secret_may_run_commands_and_any_may_have_a_token() -> None:
    text = kubeconfig("https://a", exec=EXEC)
    assert config_of(in_secret(text), "kubeconfig", trusted=True).exec is not None
    text = kubeconfig("https://a", token="t")
    assert config_of(in_secret(text), "kubeconfig", trusted=False).token == "t"


def test_a_key_of_a_cluster_is_text_with_two_parts() -> None:
    key = ClusterKey.of("east", "ns/role:admin")
    assert (key, key.cluster, key.key) == ("east:ns/role:admin", "east", "ns/role:admin")


async def test_a_busy_cluster_parks_its_keys_and_gets_them_back_by_priority() -> None:
    queue: PriorityQueue[str] = PriorityQueue(clock=FakeClock())
    slots = Slots(queue, 1)
    for key, priority in (("a:1", 3), ("a:2", 1), ("a:3", 2), ("b:1", 0)):
        queue.add(key, priority=priority)
    taken = []
    for _ in range(4):
        key = await queue.get()
        if slots.take(key):
            taken.append(key)
        else:
            queue.done(key)
    assert taken == ["a:1", "b:1"]
    assert slots.statistics() == {"a": (1, 2), "b": (1, 0)}
    queue.done("a:1")
    slots.leave("a:1")
    assert (await queue.get(), queue.priority_of("a:3")) == ("a:3", 2)
    slots.forget("a")
    assert slots.take("a:3")
    slots.leave("a:3")
    assert len(queue) == 0


async def take(queue: PriorityQueue[str], slots: Slots, *keys: str) -> list[str]:
    """Take keys from the queue, and return those that got a slot."""
    taken = []
    for each in keys:
        queue.add(each)
        key = await queue.get()
        if slots.take(key):
            taken.append(key)
        else:
            queue.done(key)
    return taken


async def test_a_held_cluster_parks_all_its_keys_until_the_last_release() -> None:
    queue: PriorityQueue[str] = PriorityQueue(clock=FakeClock())
    slots = Slots(queue, 2)
    for _ in range(2):
        slots.hold("a")
    assert await take(queue, slots, "a:1", "a:2", "a:3", "b:1") == ["b:1"]
    slots.release("a")
    assert (await take(queue, slots, "a:4"), len(queue)) == ([], 0)
    slots.release("a")
    assert (len(queue), slots.statistics()["a"]) == (2, (0, 2))


async def test_a_parked_key_comes_although_the_one_before_it_needs_no_slot_any_more() -> None:
    queue: PriorityQueue[str] = PriorityQueue(clock=FakeClock())
    slots = Slots(queue, 1)
    assert await take(queue, slots, "a:1", "a:2", "a:3") == ["a:1"]
    queue.done("a:1")
    slots.leave("a:1")
    refused = await queue.get()  # it belongs to another replica now
    queue.done(refused)
    slots.pass_on(refused)
    assert (refused, await queue.get()) == ("a:2", "a:3")


def test_a_key_without_a_cluster_is_refused() -> None:
    app = Manager("fleet", client=None)
    maps = Clusters(app).reconciler("maps").for_("configmaps")
    with pytest.raises(ValueError, match="a key is 'cluster:key', not ns/a"):
        maps._put("ns/a", 0, None)  # type: ignore[arg-type]  # no trigger needed
