"""The Events that controllers, the scheduler and the kubelets write."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import Cluster, cluster, template, workload


@pytest.fixture
async def made() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


async def told(made: Cluster, kind: str = "", name: str = "") -> list[tuple[str, str, str]]:
    """Return type, reason and message of the events about some objects, oldest first."""
    events = sorted(await made.all("events"), key=lambda event: event["metadata"]["name"][-16:])
    return [
        (event["type"], event["reason"], event["message"])
        for event in events
        if kind in {"", event["involvedObject"]["kind"]}
        and name in {"", event["involvedObject"]["name"]}
    ]


async def test_a_deployment_tells_how_its_pods_come_to_run(made: Cluster) -> None:
    await made.create("deployments", "web", spec=workload(replicas=1))
    (replica_set,), (pod,) = await made.names("replicasets"), await made.names("pods")
    assert await told(made, "Deployment") == [
        ("Normal", "ScalingReplicaSet", f"Scaled up replica set {replica_set} from 0 to 1")
    ]
    assert await told(made, "ReplicaSet") == [("Normal", "SuccessfulCreate", f"Created pod: {pod}")]
    assert await told(made, "Pod") == [
        ("Normal", "Scheduled", f"Successfully assigned default/{pod} to node-0"),
        ("Normal", "Pulled", 'Container image "web:1" already present on machine'),
        ("Normal", "Created", "Created container: c"),
        ("Normal", "Started", "Started container c"),
    ]
    events = {event["reason"]: event for event in await made.all("events")}
    started, scaled = events["Started"], events["ScalingReplicaSet"]
    assert started["source"] == {"component": "kubelet", "host": "node-0"}
    assert started["involvedObject"]["fieldPath"] == "spec.containers{c}"
    assert scaled["source"] == {"component": "deployment-controller"}
    assert events["Scheduled"]["source"] == {"component": "default-scheduler"}
    assert (scaled["count"], scaled["involvedObject"]["apiVersion"]) == (1, "apps/v1")


async def test_scaling_down_tells_what_stops(made: Cluster) -> None:
    await made.create("deployments", "web", spec=workload(replicas=1))
    (replica_set,), (pod,) = await made.names("replicasets"), await made.names("pods")
    await made.patch("deployments", "web", {"spec": {"replicas": 0}})
    assert (await told(made, "Deployment"))[-1] == (
        "Normal",
        "ScalingReplicaSet",
        f"Scaled down replica set {replica_set} from 1 to 0",
    )
    assert (await told(made, "ReplicaSet"))[-1] == (
        "Normal",
        "SuccessfulDelete",
        f"Deleted pod: {pod}",
    )
    assert (await told(made, "Pod"))[-1] == ("Normal", "Killing", "Stopping container c")


async def test_a_stateful_set_names_its_pods(made: Cluster) -> None:
    await made.create("statefulsets", "db", spec=workload("db", 1, serviceName="db"))
    await made.patch("statefulsets", "db", {"spec": {"replicas": 0}})
    assert await told(made, "StatefulSet") == [
        ("Normal", "SuccessfulCreate", "create Pod db-0 in StatefulSet db successful"),
        ("Normal", "SuccessfulDelete", "delete Pod db-0 in StatefulSet db successful"),
    ]


async def test_a_job_tells_its_end(made: Cluster) -> None:
    pod = {"spec": template()["spec"] | {"restartPolicy": "Never"}}
    await made.create("jobs", "sum", spec={"template": pod})
    made.server.workloads.fail(PodFailure("Error"))
    await made.create("jobs", "odd", spec={"template": pod, "backoffLimit": 0})
    assert (await told(made, "Job", "sum"))[-1] == ("Normal", "Completed", "Job completed")
    assert (await told(made, "Job", "odd"))[-1] == (
        "Warning",
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )


async def test_a_container_that_crashes_again_and_again_is_counted(made: Cluster) -> None:
    made.server.workloads.fail(PodFailure("CrashLoopBackOff"))
    await made.create("pods", "p", spec=template()["spec"])
    for _ in range(12):
        await made.clock.advance(60)
    (again,) = [event for event in await made.all("events") if event["reason"] == "BackOff"]
    uid = (await made.get("pods", "p"))["metadata"]["uid"]
    words = f"Back-off restarting failed container c in pod p_default({uid})"
    assert (again["type"], again["message"]) == ("Warning", words)
    assert again["count"] >= 3
    assert again["lastTimestamp"] > again["firstTimestamp"]


async def test_an_image_that_is_not_there_is_told(made: Cluster) -> None:
    made.server.workloads.fail(PodFailure("ImagePullBackOff"))
    await made.create("pods", "p", spec=template()["spec"])
    assert [event[:2] for event in await told(made, "Pod")] == [
        ("Normal", "Scheduled"),
        ("Normal", "Pulling"),
        ("Warning", "Failed"),
        ("Warning", "Failed"),
        ("Normal", "BackOff"),
        ("Warning", "Failed"),
    ]
    assert ("Warning", "Failed", "Error: ErrImagePull") in await told(made, "Pod")


async def test_a_pod_that_fits_nowhere_says_why(made: Cluster) -> None:
    spec = template()["spec"] | {"nodeSelector": {"disk": "fast"}}
    await made.create("pods", "p", spec=spec)
    (event,) = await told(made, "Pod")
    assert event[:2] == ("Warning", "FailedScheduling")
    assert event[2].startswith("0/1 nodes are available: 1 node(s) didn't match")


async def test_refused_pods_are_told(made: Cluster) -> None:
    hard = {"hard": {"pods": "0"}}
    await made.create("quotas", "few", spec=hard)
    await made.patch("quotas", "few", {"status": {**hard, "used": {"pods": "0"}}}, "status")
    await made.create("deployments", "web", spec=workload(replicas=1))
    failed = [event for event in await told(made, "ReplicaSet") if event[1] == "FailedCreate"]
    assert failed[0][0] == "Warning"
    assert failed[0][2].startswith("Error creating: pods ")
    assert "exceeded quota: few" in failed[0][2]


async def test_a_flood_of_events_about_one_object_is_limited(made: Cluster) -> None:
    await made.create("deployments", "web", spec=workload(replicas=40))
    counts = Counter(event[1] for event in await told(made))
    assert len(await made.names("pods")) == 40
    assert (counts["SuccessfulCreate"], counts["Started"]) == (25, 40)


async def test_an_hour_later_events_are_gone(made: Cluster) -> None:
    await made.create("pods", "p", spec=template()["spec"])
    await made.clock.advance(3601)
    await made.create("pods", "q", spec=template()["spec"])
    assert {event["involvedObject"]["name"] for event in await made.all("events")} == {"q"}


async def test_the_events_of_a_lost_node_are_in_the_default_namespace(made: Cluster) -> None:
    made.server.workloads.lose_node("node-0")
    await made.clock.settle()
    (event,) = await told(made, "Node")
    assert event[1:] == ("NodeNotReady", "Node node-0 status is now: NodeNotReady")


async def test_events_about_what_is_in_a_namespace_that_ends_hold_nothing_up(
    made: Cluster,
) -> None:
    spaces: Any = "/api/v1/namespaces"
    await made.client.create(spaces, "gone")
    path = "/apis/apps/v1/namespaces/gone/deployments"
    await made.client.create(path, "web", spec=workload(replicas=2))
    await made.clock.settle()
    await made.client.call("DELETE", f"{spaces}/gone", expect=200)
    for _ in range(10):
        await made.clock.advance(10)
    await made.client.call("GET", f"{spaces}/gone", expect=404)
