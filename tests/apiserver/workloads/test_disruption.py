"""The statuses of PodDisruptionBudgets, and evictions by them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import PATHS, Cluster, cluster, conditions, template, workload


@pytest.fixture
async def made() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


def budget(name: str = "web", **spec: Any) -> dict[str, Any]:
    return {"selector": {"matchLabels": {"app": name}}, **spec}


async def evict(made: Cluster, name: str, expect: int = 201) -> Any:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"{PATHS['pods']}/{name}/eviction"
    answer = await made.client.call("POST", path, body, expect=expect)
    await made.clock.settle()
    return answer


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 2, 1),
        ({"minAvailable": 5}, 5, 0),
        ({"minAvailable": "50%"}, 2, 1),
        ({"minAvailable": "100%"}, 3, 0),
        ({"maxUnavailable": 1}, 2, 1),
        ({"maxUnavailable": "34%"}, 1, 2),
        ({"maxUnavailable": 9}, 0, 3),
    ],
)
async def test_the_status_counts_pods_as_the_spec_asks(
    made: Cluster, spec: dict[str, Any], desired: int, allowed: int
) -> None:
    await made.create("deployments", "web", spec=workload())
    await made.create("budgets", "web", spec=budget(**spec))
    found = await made.get("budgets", "web")
    status = found["status"]
    assert (status["expectedPods"], status["currentHealthy"]) == (3, 3)
    assert (status["desiredHealthy"], status["disruptionsAllowed"]) == (desired, allowed)
    assert status["observedGeneration"] == found["metadata"]["generation"]
    reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    assert conditions(found) == {"DisruptionAllowed": reason}


async def test_the_status_follows_pods_and_scales(made: Cluster) -> None:
    await made.create("statefulsets", "web", spec=workload(serviceName="web"))
    await made.create("budgets", "web", spec=budget(maxUnavailable=1))
    made.server.workloads.fail(PodFailure("Error", name="web-0"))
    await made.clock.advance(1)
    assert (await made.status("budgets", "web"))["disruptionsAllowed"] == 0
    made.server.workloads.heal()
    await made.clock.advance(60)
    assert (await made.status("budgets", "web"))["disruptionsAllowed"] == 1
    await made.patch("statefulsets", "web", {"spec": {"replicas": 5}})
    status = await made.status("budgets", "web")
    assert (status["expectedPods"], status["desiredHealthy"]) == (5, 4)


async def test_evictions_wait_for_the_replacements() -> None:
    async with cluster(start_seconds=5) as made:
        await made.create("deployments", "web", spec=workload(replicas=2))
        await made.clock.advance(5)
        await made.create("budgets", "web", spec=budget(minAvailable=1))
        first, second = await made.names("pods")
        await evict(made, first)
        refused = await evict(made, second, expect=429)
        assert refused["reason"] == "TooManyRequests"
        await made.clock.advance(5)
        await evict(made, second)
        assert (await made.status("budgets", "web"))["disruptionsAllowed"] == 0


async def test_an_evicted_pod_that_stays_counts_again_after_two_minutes() -> None:
    async with cluster() as made:
        await made.create("deployments", "web", spec=workload(replicas=2))
        await made.create("budgets", "web", spec=budget(minAvailable=1))
        name, _ = await made.names("pods")
        stamp = (await made.get("pods", name))["metadata"]["creationTimestamp"]
        spent = {"disruptedPods": {name: stamp}, "disruptionsAllowed": 0}
        await made.patch("budgets", "web", {"status": spent}, "status")
        status = await made.status("budgets", "web")
        assert (status["currentHealthy"], status["disruptedPods"]) == (1, {name: stamp})
        await made.clock.advance(120)
        status = await made.status("budgets", "web")
        assert (status["currentHealthy"], status["disruptionsAllowed"]) == (2, 1)
        assert "disruptedPods" not in status


async def test_pods_of_a_controller_without_a_scale_make_the_budget_refuse(made: Cluster) -> None:
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template()}
    await made.create("daemonsets", "web", spec=spec)
    await made.create("budgets", "web", spec=budget(maxUnavailable=1))
    found = await made.get("budgets", "web")
    (told,) = found["status"]["conditions"]
    assert (told["reason"], told["message"]) == (
        "SyncFailed",
        "daemonsets.apps does not implement the scale subresource",
    )
    assert found["status"]["disruptionsAllowed"] == 0


@pytest.mark.parametrize(
    ("policy", "healthy", "expect"),
    [
        ("IfHealthyBudget", 2, 201),
        ("IfHealthyBudget", 1, 429),
        ("AlwaysAllow", 1, 201),
    ],
)
async def test_pods_that_are_not_ready_are_evicted_by_the_policy(
    made: Cluster, policy: str, healthy: int, expect: int
) -> None:
    made.server.workloads.fail(PodFailure("Error", name="web-0"))
    if healthy == 1:
        made.server.workloads.fail(PodFailure("Error", name="web-1"))
    spec = workload(serviceName="web", podManagementPolicy="Parallel")
    await made.create("statefulsets", "web", spec=spec)
    rule = budget(minAvailable=2, unhealthyPodEvictionPolicy=policy)
    await made.create("budgets", "web", spec=rule)
    await made.clock.advance(1)
    await evict(made, "web-0", expect=expect)
