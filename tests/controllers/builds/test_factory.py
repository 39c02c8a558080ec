"""Both controllers, built by the factories, with in-memory sources."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from controllers.build_cluster import NAME, Cluster, build, build_pod
from listwatch.cache.list_watch import ListOptions, ObjectList
from listwatch.clock import FakeClock
from listwatch.controllers.builds.factory import (
    BuildControllerFactory,
    BuildPodControllerFactory,
    DeleteController,
)
from listwatch.errors import InternalServerError
from listwatch.workqueue.retry_controller import retry_always


class Program:
    def __init__(self, cluster: Cluster, clock: FakeClock) -> None:
        self.cluster, self.clock = cluster, clock
        pods = cluster.pods.list_watch(label_selector=NAME)
        self.pod_deletions = BuildPodControllerFactory(
            cluster, pods, cluster.builds, recorder=cluster, clock=clock
        ).create_delete_controller()
        self.build_deletions = BuildControllerFactory(
            cluster, cluster.builds, pods, clock=clock
        ).create_delete_controller()
        self.stop = asyncio.Event()
        self.tasks = [
            asyncio.create_task(controller.run_until(self.stop))
            for controller in (self.pod_deletions, self.build_deletions)
        ]

    async def settle(self) -> None:
        await self.clock.advance(0.1)

    async def end(self) -> None:
        self.stop.set()
        await self.clock.settle()
        assert all(task.done() for task in self.tasks)
        await asyncio.gather(*self.tasks)


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster(clock: FakeClock) -> Cluster:
    return Cluster(clock)


@pytest.fixture
async def program(cluster: Cluster, clock: FakeClock) -> AsyncIterator[Program]:
    running = Program(cluster, clock)
    await running.settle()
    yield running
    await running.end()


async def test_a_deleted_pod_ends_its_build(program: Program, cluster: Cluster) -> None:
    cluster.builds.add(build("app-1"))
    cluster.pods.add(build_pod("app-1"))
    await program.settle()
    cluster.pods.delete("ci/app-1-build")
    await program.settle()
    assert cluster.status("app-1")["phase"] == "Error"


async def test_a_deleted_build_takes_its_pod_along(program: Program, cluster: Cluster) -> None:
    cluster.builds.add(build("app-1"))
    cluster.pods.add(build_pod("app-1"))
    await program.settle()
    cluster.builds.delete("ci/app-1")
    await program.settle()
    assert cluster.deleted == [("app-1-build", "p1")]


async def test_deletions_from_before_the_start_are_found(
    cluster: Cluster, clock: FakeClock
) -> None:
    cluster.builds.add(build("lost-its-pod"))
    cluster.builds.add(build("new-has-none-yet", "New", uid="b2"))
    cluster.builds.add(
        build("new-lost-it", "New", uid="b3", annotations={"openshift.io/build.pod-name": "x"})
    )
    cluster.builds.add(build("done", "Complete", uid="b4"))
    cluster.builds.add(build("pipeline", uid="b5", strategy="JenkinsPipeline"))
    cluster.builds.add(build("well", uid="b6"))
    cluster.pods.add(build_pod("well", uid="p6", owner="b6"))
    cluster.pods.add(build_pod("lost-its-build", uid="p7", owner="b7"))
    program = Program(cluster, clock)
    await program.settle()
    phases = {obj.name: obj["status"]["phase"] for obj in cluster.builds.objects.values()}
    assert phases == {
        "lost-its-pod": "Error",
        "new-has-none-yet": "New",
        "new-lost-it": "Error",
        "done": "Complete",
        "pipeline": "Running",
        "well": "Running",
    }
    assert cluster.deleted == [("lost-its-build-build", "p7")]
    await program.end()


async def test_a_deletion_that_no_watch_told_is_found_within_the_relist_period(
    program: Program, cluster: Cluster, clock: FakeClock
) -> None:
    cluster.builds.add(build("app-1"))
    cluster.pods.add(build_pod("app-1"))
    await program.settle()
    cluster.pods.delete_drop_watch("ci/app-1-build")
    await clock.advance(290)
    assert cluster.status("app-1") == {"phase": "Running"}
    await clock.advance(20)
    assert cluster.status("app-1")["phase"] == "Error"
    assert program.pod_deletions.statistics().searches == 1


async def test_nothing_is_lost_between_the_list_and_its_watch(
    cluster: Cluster, clock: FakeClock
) -> None:
    """The pod is deleted right after the list of pods; the watch continues from that list."""
    cluster.builds.add(build("app-1"))
    cluster.pods.add(build_pod("app-1"))

    class Builds:
        """Delete the pod before listing builds."""

        watch = cluster.builds.watch

        async def list(self, options: ListOptions) -> ObjectList:
            if "ci/app-1-build" in cluster.pods.objects:
                cluster.pods.delete("ci/app-1-build")
            return await cluster.builds.list(options)

    controller = BuildPodControllerFactory(
        cluster,
        cluster.pods.list_watch(label_selector=NAME),
        Builds(),
        clock=clock,
    ).create_delete_controller()
    stop = asyncio.Event()
    task = asyncio.create_task(controller.run_until(stop))
    await clock.advance(1)
    assert cluster.status("app-1")["phase"] == "Error"
    stop.set()
    await task


@pytest.mark.usefixtures("program")
async def test_a_relist_does_not_end_builds_whose_changes_are_queued(
    cluster: Cluster, clock: FakeClock
) -> None:
    cluster.builds.add(build("app-1"))
    cluster.pods.add(build_pod("app-1"))
    cluster.pods.reset_watch()
    cluster.builds.reset_watch()
    await clock.advance(60)
    assert cluster.status("app-1") == {"phase": "Running"}
    assert cluster.deleted == []


async def test_delete_and_recreate_of_a_build_leaves_the_new_one_alone(
    program: Program, cluster: Cluster
) -> None:
    cluster.builds.add(build("app-1", uid="b1"))
    cluster.pods.add(build_pod("app-1", uid="p1", owner="b1"))
    await program.settle()
    cluster.builds.delete("ci/app-1")
    cluster.builds.add(build("app-1", uid="b2"))
    await program.settle()
    cluster.pods.add(build_pod("app-1", uid="p2", owner="b2"))
    await program.settle()
    assert cluster.deleted == [("app-1-build", "p1")]
    assert cluster.status("app-1") == {"phase": "Running"}


async def test_every_deletion_of_one_name_is_handled_not_only_the_first(
    program: Program, cluster: Cluster
) -> None:
    cluster.builds.add(build("app-1", uid="b1"))
    cluster.pods.add(build_pod("app-1", uid="p0", owner="b0"))
    cluster.pods.delete("ci/app-1-build")
    cluster.pods.add(build_pod("app-1", uid="p1", owner="b1"))
    cluster.pods.delete("ci/app-1-build")
    await program.settle()
    assert cluster.status("app-1")["phase"] == "Error"


async def test_a_failure_is_not_retried_but_found_again_by_the_next_search(
    program: Program, cluster: Cluster, clock: FakeClock
) -> None:
    cluster.builds.add(build("app-1"))
    cluster.pods.add(build_pod("app-1"))
    cluster.broken = InternalServerError("no")
    await program.settle()
    cluster.pods.delete("ci/app-1-build")
    await program.settle()
    handling = program.pod_deletions.statistics().handling
    assert (handling.failed, handling.given_up) == (1, 1)
    cluster.broken = None
    await clock.advance(310)
    assert cluster.status("app-1")["phase"] == "Error"


async def test_failures_are_retried_once_a_second_after_a_burst_if_asked_for(
    cluster: Cluster, clock: FakeClock
) -> None:
    cluster.builds.add(build("app-1"))
    cluster.broken = InternalServerError("no")
    controller: DeleteController = BuildPodControllerFactory(
        cluster, cluster.pods, cluster.builds, retry_func=retry_always, clock=clock
    ).create_delete_controller()
    stop = asyncio.Event()
    task = asyncio.create_task(controller.run_until(stop))
    await clock.advance(0.5)
    assert controller.statistics().handling.failed == 11
    await clock.advance(3)
    assert controller.statistics().handling.failed == 14
    cluster.broken = None
    await clock.advance(1)
    assert cluster.status("app-1")["phase"] == "Error"
    stop.set()
    await task


async def test_a_failing_search_is_counted_and_comes_again(
    program: Program, cluster: Cluster, clock: FakeClock
) -> None:
    cluster.builds.fail_lists(InternalServerError("no"), times=2)
    await clock.advance(310)
    assert program.pod_deletions.statistics().failed_searches == 1
    assert program.build_deletions.statistics().failed_searches == 1
    await clock.advance(310)
    assert program.pod_deletions.statistics().searches == 2
    assert program.pod_deletions.statistics().failed_searches == 1
