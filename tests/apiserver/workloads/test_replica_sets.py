from collections.abc import AsyncIterator

import pytest

from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import Cluster, cluster, template, workload


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


async def test_a_deleted_pod_is_replaced(at_once: Cluster) -> None:
    await at_once.create("replicasets", "web", spec=workload())
    first, *others = await at_once.names("pods")
    await at_once.delete("pods", first)
    names = await at_once.names("pods")
    assert len(names) == 3
    assert first not in names
    assert set(others) < set(names)


async def test_a_pod_that_is_no_longer_selected_is_let_go_and_replaced(at_once: Cluster) -> None:
    await at_once.create("replicasets", "web", spec=workload())
    first, *_ = await at_once.names("pods")
    await at_once.patch("pods", first, {"metadata": {"labels": {"app": "other"}}})
    assert "ownerReferences" not in (await at_once.get("pods", first))["metadata"]
    assert len(await at_once.names("pods")) == 4
    await at_once.patch("pods", first, {"metadata": {"labels": {"app": "web"}}})
    # It is adopted again, so one pod is too many.
    assert len(await at_once.names("pods")) == 3


async def test_of_too_many_pods_those_that_are_not_ready_go_first(at_once: Cluster) -> None:
    await at_once.create("replicasets", "web", spec=workload())
    *others, last = await at_once.names("pods")
    at_once.server.workloads.fail(PodFailure("CrashLoopBackOff", name=last))
    await at_once.clock.settle()
    await at_once.patch("replicasets", "web", {"spec": {"replicas": 2}})
    assert await at_once.names("pods") == others


async def test_the_cost_of_deletion_decides_between_ready_pods(at_once: Cluster) -> None:
    await at_once.create("replicasets", "web", spec=workload())
    names = await at_once.names("pods")
    for cost, name in enumerate(names):
        annotations = {"controller.kubernetes.io/pod-deletion-cost": str(100 - cost)}
        await at_once.patch("pods", name, {"metadata": {"annotations": annotations}})
    await at_once.patch("replicasets", "web", {"spec": {"replicas": 1}})
    assert await at_once.names("pods") == names[:1]


async def test_a_finished_pod_counts_no_more(at_once: Cluster) -> None:
    await at_once.create("replicasets", "web", spec=workload())
    first, *_ = await at_once.names("pods")
    await at_once.patch("pods", first, {"status": {"phase": "Failed"}}, "status")
    assert len(await at_once.names("pods")) == 4
    assert (await at_once.status("replicasets", "web"))["replicas"] == 3


async def test_a_replication_controller_keeps_its_pods(at_once: Cluster) -> None:
    spec = {"replicas": 2, "selector": {"app": "web"}, "template": template()}
    await at_once.create("rcs", "web", spec=spec)
    status = await at_once.status("rcs", "web")
    assert (status["replicas"], status["readyReplicas"], status["availableReplicas"]) == (2, 2, 2)


async def test_pods_whose_conditions_have_no_time_can_be_ranked(at_once: Cluster) -> None:
    await at_once.create("replicasets", "web", spec=workload())
    first, *_ = await at_once.names("pods")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": None}
    await at_once.patch("pods", first, {"status": {"conditions": [ready]}}, "status")
    await at_once.patch("replicasets", "web", {"spec": {"replicas": 1}})
    assert len(await at_once.names("pods")) == 1
