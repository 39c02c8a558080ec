"""Deletions of pods and of builds, handled by the two controllers."""

from typing import Any

import pytest

from controllers.build_cluster import Cluster, build, build_pod
from listwatch.clock import FakeClock
from listwatch.controllers.builds.deletion import BuildDeleteController, BuildPodDeleteController
from listwatch.objects import Object

END = {
    "phase": "Error",
    "reason": "BuildPodDeleted",
    "message": "The pod for this build was deleted before the build completed.",
    "completionTimestamp": "2026-01-01T00:10:00Z",
}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def pod_controller(cluster: Cluster) -> BuildPodDeleteController:
    return BuildPodDeleteController(cluster, cluster, FakeClock(time=1_767_226_200.0))


async def test_a_build_whose_pod_was_deleted_ends_with_reason_time_and_event(
    cluster: Cluster,
) -> None:
    cluster.builds.add(build("app-1", startTimestamp="2026-01-01T00:00:30Z"))
    await pod_controller(cluster).handle_build_pod_deletion(Object.from_dict(build_pod("app-1")))
    started = {"startTimestamp": "2026-01-01T00:00:30Z", "duration": 570 * 10**9}
    assert cluster.status("app-1") == END | started
    assert cluster.events == [("ci/app-1", "Normal", "BuildFailed", "Build ci/app-1 failed")]


@pytest.mark.parametrize(
    "untouched",
    [
        build("app-1", "Complete"),
        build("app-1", "Cancelled"),
        build("app-1", "Running", cancelled=True),
        build("app-1", "Running", strategy="JenkinsPipeline"),
        build("app-1", "Running", uid="another"),
    ],
    ids=["complete", "cancelled", "being cancelled", "pipeline", "another build of the name"],
)
async def test_a_build_that_has_its_end_or_gets_it_elsewhere_stays(
    cluster: Cluster, untouched: dict[str, Any]
) -> None:
    before = cluster.builds.add(untouched)
    await pod_controller(cluster).handle_build_pod_deletion(Object.from_dict(build_pod("app-1")))
    assert cluster.builds.objects["ci/app-1"] is before
    assert cluster.events == []


async def test_a_pod_without_its_build_or_without_any_is_nothing_to_do(cluster: Cluster) -> None:
    pod = build_pod("app-1")
    await pod_controller(cluster).handle_build_pod_deletion(Object.from_dict(pod))
    del pod["metadata"]["annotations"], pod["metadata"]["labels"]
    await pod_controller(cluster).handle_build_pod_deletion(Object.from_dict(pod))
    assert cluster.events == []


async def test_a_build_that_has_a_pod_again_runs_on(cluster: Cluster) -> None:
    cluster.builds.add(build("app-1"))
    cluster.pods.add(build_pod("app-1", uid="p2"))
    await pod_controller(cluster).handle_build_pod_deletion(
        Object.from_dict(build_pod("app-1", uid="p1"))
    )
    assert cluster.status("app-1") == {"phase": "Running"}


async def test_a_build_that_completes_while_it_is_written_keeps_its_success(
    cluster: Cluster,
) -> None:
    cluster.builds.add(build("app-1"))

    class Racing(Cluster):
        async def get_pod(self, namespace: str, name: str) -> Object | None:
            assert (namespace, name) == ("ci", "app-1-build")
            cluster.builds.modify(build("app-1", "Complete"))
            return None

    racing = Racing()
    racing.builds = cluster.builds
    await BuildPodDeleteController(racing, racing).handle_build_pod_deletion(
        Object.from_dict(build_pod("app-1"))
    )
    assert cluster.status("app-1") == {"phase": "Complete"}
    assert racing.events == []


async def test_conflicts_are_tried_again(cluster: Cluster) -> None:
    cluster.builds.add(build("app-1"))
    cluster.conflicts = 3
    await pod_controller(cluster).handle_build_pod_deletion(Object.from_dict(build_pod("app-1")))
    assert cluster.status("app-1") == END
    assert len(cluster.events) == 1


async def test_the_cached_build_is_not_changed_when_its_update_fails(cluster: Cluster) -> None:
    cached = cluster.builds.add(build("app-1"))
    cluster.broken = RuntimeError("no")
    with pytest.raises(RuntimeError):
        await pod_controller(cluster).handle_build_pod_deletion(
            Object.from_dict(build_pod("app-1"))
        )
    assert cached["status"] == {"phase": "Running"}


async def test_the_pod_of_a_deleted_build_is_deleted(cluster: Cluster) -> None:
    cluster.pods.add(build_pod("app-1"))
    await BuildDeleteController(cluster).handle_build_deletion(Object.from_dict(build("app-1")))
    assert cluster.deleted == [("app-1-build", "p1")]


async def test_a_build_without_a_pod_is_nothing_to_do(cluster: Cluster) -> None:
    await BuildDeleteController(cluster).handle_build_deletion(Object.from_dict(build("app-1")))
    assert cluster.deleted == []


async def test_the_pod_of_a_new_build_under_the_same_name_stays(cluster: Cluster) -> None:
    cluster.builds.add(build("app-1", uid="b2"))
    cluster.pods.add(build_pod("app-1", uid="p2", owner="b2"))
    await BuildDeleteController(cluster).handle_build_deletion(
        Object.from_dict(build("app-1", uid="b1"))
    )
    assert cluster.deleted == []


async def test_the_pod_of_a_third_build_stays_even_when_that_is_gone_too(cluster: Cluster) -> None:
    cluster.pods.add(build_pod("app-1", owner="b2"))
    await BuildDeleteController(cluster).handle_build_deletion(
        Object.from_dict(build("app-1", uid="b1"))
    )
    assert cluster.deleted == []


async def test_an_old_pod_without_an_owner_goes_though_a_new_build_has_the_name(
    cluster: Cluster,
) -> None:
    cluster.builds.add(build("app-1", uid="b2", created="2026-02-01T00:00:00Z"))
    cluster.pods.add(build_pod("app-1", owner=""))
    await BuildDeleteController(cluster).handle_build_deletion(Object.from_dict(build("app-1")))
    assert cluster.deleted == [("app-1-build", "p1")]


async def test_pipelines_and_pods_of_other_builds_stay(cluster: Cluster) -> None:
    pod = build_pod("app-1")
    pod["metadata"]["annotations"] = {"openshift.io/build.name": "app-2"}
    cluster.pods.add(pod)
    controller = BuildDeleteController(cluster)
    await controller.handle_build_deletion(Object.from_dict(build("app-1")))
    await controller.handle_build_deletion(
        Object.from_dict(build("app-1", strategy="JenkinsPipeline"))
    )
    assert cluster.deleted == []


async def test_a_pod_without_an_owner_stays_with_the_build_that_was_there_before_it(
    cluster: Cluster,
) -> None:
    cluster.builds.add(build("app-1", uid="b2"))
    cluster.pods.add(build_pod("app-1", uid="p2", owner=""))
    await BuildDeleteController(cluster).handle_build_deletion(
        Object.from_dict(build("app-1", uid="b1"))
    )
    assert cluster.deleted == []
