from collections.abc import AsyncIterator
from typing import Any

import pytest

from workload_cluster import Cluster, cluster, conditions, template, workload


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


@pytest.fixture
async def slow() -> AsyncIterator[Cluster]:
    async with cluster(start_seconds=5) as made:
        yield made


def images(pods: list[Any]) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)


NEW = {"spec": {"template": template(image="web:2")}}


async def test_a_deployment_becomes_available(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload())
    deployment = await at_once.get("deployments", "web")
    status = deployment["status"]
    assert status["observedGeneration"] == deployment["metadata"]["generation"]
    assert [
        status[key] for key in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    ] == [3, 3, 3, 3]
    assert "unavailableReplicas" not in status
    assert conditions(deployment) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    assert deployment["metadata"]["annotations"] == {"deployment.kubernetes.io/revision": "1"}


async def test_a_replica_set_has_the_hash_of_its_template_in_name_labels_and_selector(
    at_once: Cluster,
) -> None:
    await at_once.create("deployments", "web", spec=workload())
    (replica_set,) = await at_once.all("replicasets")
    name = replica_set["metadata"]["name"]
    digest = name.removeprefix("web-")
    labels = {"app": "web", "pod-template-hash": digest}
    assert replica_set["metadata"]["labels"] == labels
    assert replica_set["spec"]["selector"] == {"matchLabels": labels}
    assert replica_set["spec"]["template"]["metadata"]["labels"] == labels
    (owner,) = replica_set["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Deployment", "web", True)
    for pod in await at_once.all("pods"):
        assert pod["metadata"]["name"].startswith(f"{name}-")
        assert pod["metadata"]["labels"] == labels
        assert pod["metadata"]["ownerReferences"][0]["name"] == name


async def test_a_rolling_update_keeps_its_bounds(slow: Cluster) -> None:
    await slow.create("deployments", "web", spec=workload(replicas=4))
    await slow.clock.advance(5)
    strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    await slow.patch("deployments", "web", {"spec": {**NEW["spec"], "strategy": strategy}})
    seen = []
    for _ in range(4):
        pods = [pod for pod in await slow.all("pods") if "deletionTimestamp" not in pod["metadata"]]
        status = await slow.status("deployments", "web")
        assert len(pods) <= 5
        assert status["availableReplicas"] >= 3
        seen.append(images(pods))
        await slow.clock.advance(5)
    assert seen[0] == ["web:1"] * 3 + ["web:2"] * 2
    assert seen[-1] == ["web:2"] * 4


async def test_recreate_starts_new_pods_when_the_old_ones_are_gone() -> None:
    async with cluster(stop_seconds=10) as slow:
        spec = workload(strategy={"type": "Recreate"})
        await slow.create("deployments", "web", spec=spec)
        await slow.patch("deployments", "web", NEW)
        assert images(await slow.all("pods")) == ["web:1"] * 3
        await slow.clock.advance(10)
        assert images(await slow.all("pods")) == ["web:2"] * 3


async def test_a_rollback_makes_an_old_replica_set_the_latest_revision(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload())
    (first,) = await at_once.names("replicasets")
    await at_once.patch("deployments", "web", NEW)
    await at_once.patch("deployments", "web", {"spec": {"template": template()}})
    old = await at_once.get("replicasets", first)
    assert old["status"]["readyReplicas"] == 3
    annotations = old["metadata"]["annotations"]
    assert annotations["deployment.kubernetes.io/revision"] == "3"
    assert annotations["deployment.kubernetes.io/revision-history"] == "1"
    deployment = await at_once.get("deployments", "web")
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"
    assert len(await at_once.names("replicasets")) == 2


async def test_only_so_many_old_replica_sets_are_kept(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload(revisionHistoryLimit=1))
    for number in range(2, 6):
        patch = {"spec": {"template": template(image=f"web:{number}")}}
        await at_once.patch("deployments", "web", patch)
    found = sorted(
        (each["spec"]["template"]["spec"]["containers"][0]["image"], each["spec"]["replicas"])
        for each in await at_once.all("replicasets")
    )
    assert found == [("web:4", 0), ("web:5", 3)]


async def test_while_paused_it_scales_but_does_not_roll(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload())
    await at_once.patch("deployments", "web", {"spec": {"paused": True}})
    await at_once.patch("deployments", "web", NEW)
    await at_once.patch("deployments", "web", {"spec": {"replicas": 5}})
    assert images(await at_once.all("pods")) == ["web:1"] * 5
    deployment = await at_once.get("deployments", "web")
    assert conditions(deployment)["Progressing"] == ("Unknown", "DeploymentPaused")
    await at_once.patch("deployments", "web", {"spec": {"paused": False}})
    assert images(await at_once.all("pods")) == ["web:2"] * 5
    deployment = await at_once.get("deployments", "web")
    assert conditions(deployment)["Progressing"] == ("True", "NewReplicaSetAvailable")


async def test_what_does_not_get_ready_misses_its_deadline_and_the_old_pods_stay(
    at_once: Cluster,
) -> None:
    await at_once.create("deployments", "web", spec=workload(progressDeadlineSeconds=60))
    failing = template(image="web:2", annotations={"listwatch/fail": "ImagePullBackOff"})
    await at_once.patch("deployments", "web", {"spec": {"template": failing}})
    deployment = await at_once.get("deployments", "web")
    assert conditions(deployment)["Progressing"] == ("True", "ReplicaSetUpdated")
    await at_once.clock.advance(61)
    deployment = await at_once.get("deployments", "web")
    assert conditions(deployment) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("False", "ProgressDeadlineExceeded"),
    }
    assert deployment["status"]["availableReplicas"] == 3
    back = {**template(), "metadata": {"annotations": None}}
    await at_once.patch("deployments", "web", {"spec": {"template": back}})
    deployment = await at_once.get("deployments", "web")
    assert conditions(deployment)["Progressing"] == ("True", "NewReplicaSetAvailable")


async def test_pods_are_available_after_min_ready_seconds(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload(minReadySeconds=30))
    status = await at_once.status("deployments", "web")
    assert (status["readyReplicas"], status.get("availableReplicas")) == (3, None)
    assert status["unavailableReplicas"] == 3
    await at_once.clock.advance(31)
    assert (await at_once.status("deployments", "web"))["availableReplicas"] == 3


async def test_in_the_middle_of_a_rollout_all_replica_sets_are_scaled(slow: Cluster) -> None:
    await slow.create("deployments", "web", spec=workload(replicas=10))
    await slow.clock.advance(5)
    strategy = {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}
    await slow.patch("deployments", "web", {"spec": {**NEW["spec"], "strategy": strategy}})
    before = sorted(each["spec"]["replicas"] for each in await slow.all("replicasets"))
    assert before == [5, 8]
    await slow.patch("deployments", "web", {"spec": {"replicas": 15}})
    after = sorted(each["spec"]["replicas"] for each in await slow.all("replicasets"))
    assert after == [7, 11]
    await slow.clock.advance(60)
    assert images(await slow.all("pods")) == ["web:2"] * 15


async def test_a_quota_that_is_full_is_told_in_the_conditions(at_once: Cluster) -> None:
    quota = await at_once.create("quotas", "few", spec={"hard": {"pods": "2"}})
    quota["status"] = {"hard": {"pods": "2"}, "used": {"pods": "0"}}
    path = "/api/v1/namespaces/default/resourcequotas/few/status"
    await at_once.client.call("PUT", path, quota, expect=200)
    await at_once.create("deployments", "web", spec=workload())
    deployment = await at_once.get("deployments", "web")
    assert conditions(deployment)["ReplicaFailure"] == ("True", "FailedCreate")
    assert deployment["status"]["replicas"] == 2
    await at_once.delete("quotas", "few")
    await at_once.clock.advance(60)
    deployment = await at_once.get("deployments", "web")
    assert "ReplicaFailure" not in conditions(deployment)
    assert deployment["status"]["availableReplicas"] == 3


async def test_its_pods_go_with_it(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload())
    await at_once.delete("deployments", "web", propagationPolicy="Foreground")
    assert await at_once.names("deployments") == []
    assert await at_once.names("replicasets") == []
    assert await at_once.names("pods") == []


async def test_a_name_that_is_taken_leads_to_another(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload())
    (name,) = await at_once.names("replicasets")
    await at_once.delete("deployments", "web", propagationPolicy="Foreground")
    await at_once.create("replicasets", name, spec=workload("other", 0))
    await at_once.create("deployments", "web", spec=workload())
    assert (await at_once.status("deployments", "web"))["collisionCount"] == 1
    assert (await at_once.status("deployments", "web"))["availableReplicas"] == 3


async def test_replica_sets_and_pods_that_nobody_controls_are_taken_over(at_once: Cluster) -> None:
    await at_once.create("deployments", "web", spec=workload())
    pods, sets = await at_once.names("pods"), await at_once.names("replicasets")
    await at_once.delete("deployments", "web", propagationPolicy="Orphan")
    assert await at_once.names("pods") == pods
    await at_once.create("deployments", "web", spec=workload())
    assert await at_once.names("replicasets") == sets
    assert await at_once.names("pods") == pods
