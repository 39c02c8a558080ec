"""Both build controllers, compared with a simple model after any sequence of steps."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from controllers.build_cluster import NAME, Cluster, build, build_pod
from listwatch.clock import FakeClock
from listwatch.controllers.builds.factory import BuildControllerFactory, BuildPodControllerFactory
from listwatch.controllers.builds.naming import belongs_to
from listwatch.errors import InternalServerError
from listwatch.objects import Object

NAMES = ("a", "b", "c")
STEPS = {
    "create": 6,
    "start": 8,
    "lose pod": 5,
    "delete": 4,
    "complete": 1,
    "cancel": 1,
    "break": 1,
    "mend": 2,
    "reset": 1,
    "wait": 8,
}


class Story:
    """Act as users, the build controller and kubelets; remember builds that lost their pod."""

    def __init__(self, cluster: Cluster, clock: FakeClock, chance: random.Random) -> None:
        self.cluster, self.clock, self.chance = cluster, clock, chance
        self.lives = 0
        self.lost: set[str] = set()
        self.orphaned: set[str] = set()

    def build(self, name: str) -> Object | None:
        return self.cluster.builds.objects.get(f"ci/{name}")

    def pod(self, name: str) -> Object | None:
        return self.cluster.pods.objects.get(f"ci/{name}-build")

    async def step(self, kind: str) -> None:
        name = self.chance.choice(NAMES)
        found, pod, cluster = self.build(name), self.pod(name), self.cluster
        unseen = self.chance.random() < 0.3
        if kind == "create" and found is None:
            self.lives += 1
            cluster.builds.add(build(name, "New", uid=f"b{self.lives}"))
        elif kind == "start" and found is not None and pod is None:
            if found["status"]["phase"] == "New":
                cluster.pods.add(build_pod(name, uid=f"p-{found.uid}", owner=found.uid))
                self.set_status(found, phase="Running")
        elif kind == "lose pod" and pod is not None:
            self.lost.add(pod.uid.removeprefix("p-"))
            (cluster.pods.delete_drop_watch if unseen else cluster.pods.delete)(pod)
        elif kind == "delete" and found is not None:
            self.orphaned.add(found.uid)
            (cluster.builds.delete_drop_watch if unseen else cluster.builds.delete)(found)
        elif kind == "complete" and found is not None:
            if found["status"]["phase"] == "Running":
                self.set_status(found, phase="Complete")
        elif kind == "cancel" and found is not None:
            self.set_status(found, cancelled=True)
        elif kind == "break":
            cluster.broken = InternalServerError("no")
            cluster.builds.fail_lists(InternalServerError("no"))
            cluster.pods.fail_lists(InternalServerError("no"))
        elif kind == "mend":
            cluster.broken = None
        elif kind == "reset":
            self.chance.choice([cluster.builds, cluster.pods]).reset_watch()
        else:
            await self.clock.advance(self.chance.choice([0.0, 0.01, 5.0, 100.0]))

    def set_status(self, found: Object, **status: object) -> None:
        value = found.to_dict()
        value["status"] |= status
        self.cluster.builds.modify(value)


@given(st.integers(0, 2**32))
async def test_no_build_runs_without_its_pod_and_no_pod_stays_without_its_build(seed: int) -> None:
    chance = random.Random(seed)
    clock = FakeClock()
    cluster = Cluster(clock)
    pods = cluster.pods.list_watch(label_selector=NAME)
    stop = asyncio.Event()
    controllers = (
        BuildPodControllerFactory(
            cluster, pods, cluster.builds, recorder=cluster, clock=clock
        ).create_delete_controller(),
        BuildControllerFactory(
            cluster, cluster.builds, pods, clock=clock
        ).create_delete_controller(),
    )
    async with asyncio.TaskGroup() as tasks:
        for controller in controllers:
            tasks.create_task(controller.run_until(stop))
        story = Story(cluster, clock, chance)
        for kind in chance.choices(list(STEPS), list(STEPS.values()), k=40):
            await story.step(kind)
        cluster.broken = None
        cluster.builds.heal()
        cluster.pods.heal()
        await clock.advance(1000)
        stop.set()

    failed = set()
    for found in cluster.builds.objects.values():
        status = found["status"]
        pod = cluster.pods.objects.get(f"ci/{found.name}-build")
        if status["phase"] == "Running" and not status.get("cancelled"):
            assert pod is not None
            assert belongs_to(pod, found)
        if status["phase"] == "Error":
            failed.add(found.uid)
            assert status["reason"] == "BuildPodDeleted"
            assert not status.get("cancelled") or story.lost
    uids = {found.uid for found in cluster.builds.objects.values()}
    assert failed <= story.lost, "a build failed that had kept its pod"
    assert {pod.uid.removeprefix("p-") for pod in cluster.pods.objects.values()} <= uids
    deleted = {uid.removeprefix("p-") for _, uid in cluster.deleted}
    assert deleted <= story.orphaned, "a pod was deleted whose build was there"
    assert len(cluster.events) >= len(failed)
    assert clock.next_timer is None
