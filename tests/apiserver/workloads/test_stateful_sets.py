from collections.abc import AsyncIterator
from typing import Any

import pytest

from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import Cluster, cluster, template, workload


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


@pytest.fixture
async def slow() -> AsyncIterator[Cluster]:
    async with cluster(start_seconds=5) as made:
        yield made


def db(replicas: int = 3, **spec: Any) -> dict[str, Any]:
    return workload("db", replicas, serviceName="db", **spec)


def claims(**spec: Any) -> dict[str, Any]:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {**wanted, **spec}}]}


async def test_pods_start_one_after_the_other(slow: Cluster) -> None:
    await slow.create("statefulsets", "db", spec=db())
    for number in (1, 2, 3):
        assert await slow.names("pods") == [f"db-{each}" for each in range(number)]
        await slow.clock.advance(5)
    status = await slow.status("statefulsets", "db")
    counts = (
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
    )
    assert [status[key] for key in counts] == [3] * 5
    assert status["currentRevision"] == status["updateRevision"]
    assert status["observedGeneration"] == 1


async def test_in_parallel_they_start_at_once(slow: Cluster) -> None:
    await slow.create("statefulsets", "db", spec=db(podManagementPolicy="Parallel"))
    assert len(await slow.names("pods")) == 3


async def test_a_pod_has_name_index_host_and_revision_of_its_own(at_once: Cluster) -> None:
    await at_once.create("statefulsets", "db", spec=db(ordinals={"start": 4}, replicas=1))
    pod = await at_once.get("pods", "db-4")
    (revision,) = await at_once.all("revisions")
    digest = revision["metadata"]["labels"]["controller.kubernetes.io/hash"]
    assert revision["metadata"]["name"] == f"db-{digest}"
    assert pod["metadata"]["labels"] == {
        "app": "db",
        "apps.kubernetes.io/pod-index": "4",
        "controller-revision-hash": f"db-{digest}",
        "statefulset.kubernetes.io/pod-name": "db-4",
    }
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("db-4", "db")
    assert revision["data"]["spec"]["template"]["$patch"] == "replace"
    assert revision["revision"] == 1


async def test_it_shrinks_from_the_last_pod_on() -> None:
    async with cluster(stop_seconds=5) as slow:
        await slow.create("statefulsets", "db", spec=db())
        await slow.patch("statefulsets", "db", {"spec": {"replicas": 1}})
        deleting = [
            pod["metadata"]["name"]
            for pod in await slow.all("pods")
            if "deletionTimestamp" in pod["metadata"]
        ]
        assert deleting == ["db-2"]
        await slow.clock.advance(10)
        assert await slow.names("pods") == ["db-0"]


async def test_a_rolling_update_goes_from_the_last_pod_to_the_first(slow: Cluster) -> None:
    await slow.create("statefulsets", "db", spec=db())
    await slow.clock.advance(15)
    await slow.patch("statefulsets", "db", {"spec": {"template": template("db", "db:2")}})
    seen = []
    for _ in range(3):
        seen.append([pod["spec"]["containers"][0]["image"] for pod in await slow.all("pods")])
        await slow.clock.advance(5)
    assert seen == [
        ["web:1", "web:1", "db:2"],
        ["web:1", "db:2", "db:2"],
        ["db:2", "db:2", "db:2"],
    ]
    status = await slow.status("statefulsets", "db")
    assert status["currentRevision"] == status["updateRevision"]
    assert status["currentReplicas"] == status["updatedReplicas"] == 3
    assert [each["revision"] for each in await slow.all("revisions")] in ([1, 2], [2, 1])


async def test_a_partition_keeps_the_first_pods_as_they_are(at_once: Cluster) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    await at_once.create("statefulsets", "db", spec=db(updateStrategy=strategy))
    await at_once.patch("statefulsets", "db", {"spec": {"template": template("db", "db:2")}})
    await at_once.delete("pods", "db-0")
    images = [pod["spec"]["containers"][0]["image"] for pod in await at_once.all("pods")]
    assert images == ["web:1", "web:1", "db:2"]
    status = await at_once.status("statefulsets", "db")
    assert status["currentRevision"] != status["updateRevision"]
    assert (status["currentReplicas"], status["updatedReplicas"]) == (2, 1)


async def test_on_delete_waits_for_somebody_to_delete_a_pod(at_once: Cluster) -> None:
    await at_once.create("statefulsets", "db", spec=db(updateStrategy={"type": "OnDelete"}))
    await at_once.patch("statefulsets", "db", {"spec": {"template": template("db", "db:2")}})
    await at_once.delete("pods", "db-1")
    images = [pod["spec"]["containers"][0]["image"] for pod in await at_once.all("pods")]
    assert images == ["web:1", "db:2", "web:1"]


async def test_a_rollback_makes_an_old_revision_the_newest(at_once: Cluster) -> None:
    await at_once.create("statefulsets", "db", spec=db())
    await at_once.patch("statefulsets", "db", {"spec": {"template": template("db", "db:2")}})
    await at_once.patch("statefulsets", "db", {"spec": {"template": template("db")}})
    assert sorted(each["revision"] for each in await at_once.all("revisions")) == [2, 3]
    images = [pod["spec"]["containers"][0]["image"] for pod in await at_once.all("pods")]
    assert images == ["web:1"] * 3


async def test_one_that_does_not_get_ready_holds_the_others_back(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("ImagePullBackOff", name="db-1"))
    await at_once.create("statefulsets", "db", spec=db())
    assert await at_once.names("pods") == ["db-0", "db-1"]
    at_once.server.workloads.heal()
    await at_once.clock.settle()
    assert await at_once.names("pods") == ["db-0", "db-1", "db-2"]


async def test_claims_are_made_bound_and_kept(at_once: Cluster) -> None:
    await at_once.create("statefulsets", "db", spec=db(2, **claims()))
    assert await at_once.names("claims") == ["data-db-0", "data-db-1"]
    (claim, _) = await at_once.all("claims")
    assert claim["status"]["phase"] == "Bound"
    assert claim["metadata"]["labels"] == {"app": "db"}
    (volume,) = (await at_once.get("pods", "db-0"))["spec"]["volumes"]
    assert volume == {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}
    await at_once.patch("statefulsets", "db", {"spec": {"replicas": 1}})
    await at_once.delete("statefulsets", "db", propagationPolicy="Background")
    assert await at_once.names("pods") == []
    assert await at_once.names("claims") == ["data-db-0", "data-db-1"]


async def test_claims_go_as_the_retention_policy_says(at_once: Cluster) -> None:
    policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    spec = db(3, persistentVolumeClaimRetentionPolicy=policy, **claims())
    await at_once.create("statefulsets", "db", spec=spec)
    await at_once.patch("statefulsets", "db", {"spec": {"replicas": 1}})
    assert await at_once.names("claims") == ["data-db-0"]
    await at_once.delete("statefulsets", "db", propagationPolicy="Background")
    assert await at_once.names("claims") == []


async def test_a_claim_that_is_used_stays_until_its_pod_is_gone(at_once: Cluster) -> None:
    await at_once.create("statefulsets", "db", spec=db(1, **claims()))
    await at_once.delete("claims", "data-db-0")
    assert await at_once.names("claims") == ["data-db-0"]
    await at_once.delete("statefulsets", "db", propagationPolicy="Background")
    assert await at_once.names("claims") == []
    volumes = await at_once.client.call("GET", "/api/v1/persistentvolumes", expect=200)
    assert volumes["items"] == []


async def test_a_claim_takes_the_smallest_volume_that_fits(at_once: Cluster) -> None:
    for size in ("1Gi", "5Gi", "3Gi"):
        name = f"v{size.lower()}"
        spec = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/x"},
        }
        await at_once.client.create("/api/v1/persistentvolumes", name, spec=spec)
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
    await at_once.create("claims", "one", spec={**wanted, "storageClassName": ""})
    claim = await at_once.get("claims", "one")
    assert claim["spec"]["volumeName"] == "v3gi"
    assert claim["status"]["phase"] == "Bound"
    await at_once.delete("claims", "one")
    volume = await at_once.client.call("GET", "/api/v1/persistentvolumes/v3gi", expect=200)
    assert volume["status"]["phase"] == "Released"


async def test_a_pod_waits_for_its_claim(at_once: Cluster) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "late"}}
    await at_once.create("pods", "one", spec={**template()["spec"], "volumes": [volume]})
    told = (await at_once.status("pods", "one"))["conditions"][0]["message"]
    assert 'persistentvolumeclaim "late" not found' in told
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await at_once.create("claims", "late", spec=spec)
    assert (await at_once.status("pods", "one"))["phase"] == "Running"
