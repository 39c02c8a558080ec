"""After any sequence of events, once failures end, the cluster matches the specs."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import PATHS, Cluster, cluster, template, workload

KINDS = ("deployments", "statefulsets", "replicasets", "daemonsets", "jobs")
NAMES = ("a", "b")
REASONS = ("CrashLoopBackOff", "ImagePullBackOff", "OOMKilled", "Error", "Evicted")

which = st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES))
actions = st.one_of(
    st.tuples(st.just("apply"), which, st.integers(0, 5), st.sampled_from(("i:1", "i:2", "i:3"))),
    st.tuples(st.just("apply"), which, st.integers(0, 5), st.sampled_from(("i:1", "i:2", "i:3"))),
    st.tuples(st.just("delete"), which, st.sampled_from(("Background", "Foreground"))),
    st.tuples(st.just("delete-pod"), st.integers(0, 9), st.sampled_from((0, 30))),
    st.tuples(st.just("fail"), st.sampled_from(REASONS), st.integers(1, 3)),
    st.tuples(st.just("lose"), st.integers(0, 1)),
    st.tuples(st.just("cordon"), st.integers(0, 1)),
    st.tuples(st.just("heal")),
    st.tuples(st.just("pass"), st.sampled_from((0.5, 5.0, 60.0, 600.0))),
)


class World:
    """A cluster and the state that was asked for."""

    def __init__(self, made: Cluster) -> None:
        self.cluster = made
        #: Replicas and image of each workload.
        self.wanted: dict[tuple[str, str], tuple[int, str]] = {}

    async def do(self, action: Any) -> None:
        name, *values = action
        await getattr(self, f"do_{name.replace('-', '_')}")(*values)
        await self.cluster.clock.settle()

    async def do_apply(self, which: tuple[str, str], replicas: int, image: str) -> None:
        kind, name = which
        label = f"{kind}-{name}"
        if which in self.wanted:
            if kind == "jobs":
                return
            spec: dict[str, Any] = {"template": template(label, image)}
            if kind != "daemonsets":
                spec["replicas"] = replicas
            await self.cluster.patch(kind, name, {"spec": spec})
        elif kind == "jobs":
            pod = {"containers": [{"name": "c", "image": image}], "restartPolicy": "Never"}
            spec = {"completions": replicas, "parallelism": 2, "backoffLimit": 1000}
            await self.cluster.create(kind, name, spec={**spec, "template": {"spec": pod}})
        else:
            spec = workload(label, replicas, template=template(label, image))
            if kind == "daemonsets":
                del spec["replicas"]
            await self.cluster.create(kind, name, spec=spec)
        self.wanted[which] = (replicas, image)

    async def do_delete(self, which: tuple[str, str], policy: str) -> None:
        if self.wanted.pop(which, None) is not None:
            await self.cluster.delete(*which, propagationPolicy=policy)
            # The name is free only after a foreground deletion.
            await self.cluster.clock.advance(4000)

    async def do_delete_pod(self, number: int, grace: int) -> None:
        names = await self.cluster.names("pods")
        if names:
            path = f"{PATHS['pods']}/{names[number % len(names)]}"
            await self.cluster.client.call("DELETE", path, {"gracePeriodSeconds": grace})

    async def do_fail(self, reason: str, times: int) -> None:
        self.cluster.server.workloads.fail(PodFailure(reason, times=times))

    async def do_lose(self, number: int) -> None:
        self.cluster.server.workloads.lose_node(f"node-{number}")

    async def do_cordon(self, number: int) -> None:
        await self.cluster.patch("nodes", f"node-{number}", {"spec": {"unschedulable": True}})

    async def do_heal(self) -> None:
        self.cluster.server.workloads.heal()

    async def do_pass(self, seconds: float) -> None:
        await self.cluster.clock.advance(seconds)

    async def check(self) -> None:
        """End all failures, and compare the cluster with the state that was asked for."""
        await self.do_heal()
        for number in (0, 1):
            await self.cluster.patch("nodes", f"node-{number}", {"spec": {"unschedulable": None}})
        await self.cluster.clock.advance(4000)
        revision = self.cluster.server.store.revision
        await self.cluster.clock.advance(4000)
        assert self.cluster.server.store.revision == revision, "something never rests"
        pods = [
            pod
            for pod in await self.cluster.all("pods")
            if pod["status"]["phase"] not in {"Failed", "Succeeded"}
        ]
        for (kind, name), (replicas, image) in self.wanted.items():
            if kind == "jobs":
                await self._check_job(name, replicas)
                continue
            own = [pod for pod in pods if pod["metadata"]["labels"]["app"] == f"{kind}-{name}"]
            assert len(own) == (2 if kind == "daemonsets" else replicas), (kind, name)
            assert {pod["status"]["phase"] for pod in own} <= {"Running"}
            if kind != "replicasets":  # ReplicaSets never replace pods for a new template.
                images = {pod["spec"]["containers"][0]["image"] for pod in own}
                assert images <= {image}, (kind, name)
            if kind == "statefulsets":
                names = sorted(pod["metadata"]["name"] for pod in own)
                assert names == [f"{name}-{number}" for number in range(replicas)]
            status = await self.cluster.status(kind, name)
            ready = status.get("numberReady" if kind == "daemonsets" else "readyReplicas", 0)
            assert ready == len(own), (kind, name)
        labels = {f"{kind}-{name}" for kind, name in self.wanted}
        strays = [pod for pod in pods if pod["metadata"]["labels"].get("app") not in labels]
        assert strays == []

    async def _check_job(self, name: str, completions: int) -> None:
        status = await self.cluster.status("jobs", name)
        assert status.get("succeeded", 0) == completions
        assert status["uncountedTerminatedPods"] == {}
        assert any(each["type"] == "Complete" for each in status["conditions"])


@given(st.lists(actions, min_size=3, max_size=12), st.sampled_from((0.0, 2.0)))
def test_after_any_sequence_all_is_as_the_specs_say(steps: list[Any], seconds: float) -> None:
    async def run() -> None:
        async with cluster(nodes=2, start_seconds=seconds, run_seconds=3, stop_seconds=1) as made:
            world = World(made)
            for step in steps:
                await world.do(step)
            await world.check()

    asyncio.run(run())
