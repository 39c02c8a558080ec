from collections.abc import AsyncIterator
from typing import Any

import pytest

from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import Cluster, cluster, conditions, template, workload


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


POD: dict[str, Any] = template()["spec"]


def state(pod: Any, index: int = 0) -> tuple[str, str]:
    """Return the state of a container and its reason."""
    ((kind, state),) = pod["status"]["containerStatuses"][index]["state"].items()
    return kind, state.get("reason", "")


async def test_a_pod_runs_and_is_ready_after_its_time() -> None:
    async with cluster(start_seconds=3) as slow:
        await slow.create("pods", "one", spec=POD)
        pod = await slow.get("pods", "one")
        assert pod["spec"]["nodeName"] == "node-0"
        assert pod["status"]["phase"] == "Pending"
        assert state(pod) == ("waiting", "ContainerCreating")
        await slow.clock.advance(2)
        assert (await slow.status("pods", "one"))["phase"] == "Pending"
        await slow.clock.advance(1)
        pod = await slow.get("pods", "one")
        assert pod["status"]["phase"] == "Running"
        assert state(pod) == ("running", "")
        assert pod["status"]["podIP"] == pod["status"]["podIPs"][0]["ip"] == "10.244.0.1"
        assert {kind: status for kind, (status, _) in conditions(pod).items()} == {
            "PodReadyToStartContainers": "True",
            "Initialized": "True",
            "Ready": "True",
            "ContainersReady": "True",
            "PodScheduled": "True",
        }


async def test_init_containers_are_done_and_sidecars_run(at_once: Cluster) -> None:
    inits = [
        {"name": "first", "image": "i:1"},
        {"name": "beside", "image": "i:1", "restartPolicy": "Always"},
    ]
    await at_once.create("pods", "one", spec={**POD, "initContainers": inits})
    first, beside = (await at_once.status("pods", "one"))["initContainerStatuses"]
    assert first["state"]["terminated"]["reason"] == "Completed"
    assert "running" in beside["state"]
    assert beside["started"] is True


async def test_a_readiness_gate_is_waited_for(at_once: Cluster) -> None:
    gates = [{"conditionType": "example.com/in-service"}]
    await at_once.create("pods", "one", spec={**POD, "readinessGates": gates})
    pod = await at_once.get("pods", "one")
    assert conditions(pod)["Ready"] == ("False", "ReadinessGatesNotReady")
    told = [*pod["status"]["conditions"], {"type": "example.com/in-service", "status": "True"}]
    await at_once.patch("pods", "one", {"status": {"conditions": told}}, "status")
    assert conditions(await at_once.get("pods", "one"))["Ready"] == ("True", "")


async def test_a_deleted_pod_is_gone_when_its_containers_have_stopped() -> None:
    async with cluster(stop_seconds=7) as slow:
        await slow.create("pods", "one", spec=POD)
        await slow.delete("pods", "one")
        await slow.clock.advance(6)
        assert await slow.names("pods") == ["one"]
        await slow.clock.advance(1)
        assert await slow.names("pods") == []


async def test_a_grace_period_ends_what_stops_more_slowly() -> None:
    async with cluster(stop_seconds=100) as slow:
        await slow.create("pods", "one", spec=POD)
        await slow.delete("pods", "one", gracePeriodSeconds=5)
        await slow.clock.advance(5)
        assert await slow.names("pods") == []


async def test_a_pod_that_a_finalizer_holds_has_ended(at_once: Cluster) -> None:
    await at_once.create("pods", "one", spec=POD, metadata={"finalizers": ["example.com/hold"]})
    await at_once.delete("pods", "one")
    pod = await at_once.get("pods", "one")
    assert pod["status"]["phase"] == "Failed"
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    await at_once.patch("pods", "one", {"metadata": {"finalizers": None}})
    assert await at_once.names("pods") == []


async def test_a_crash_loop_backs_off_longer_each_time(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("CrashLoopBackOff", exit_code=3))
    await at_once.create("pods", "one", spec=POD)
    restarts = []
    for seconds in (0, 10, 20, 40):
        await at_once.clock.advance(seconds)
        pod = await at_once.get("pods", "one")
        (container,) = pod["status"]["containerStatuses"]
        assert state(pod) == ("waiting", "CrashLoopBackOff")
        assert container["lastState"]["terminated"]["exitCode"] == 3
        assert conditions(pod)["Ready"] == ("False", "ContainersNotReady")
        assert pod["status"]["phase"] == "Running"
        restarts.append(container["restartCount"])
    assert restarts == [1, 2, 3, 4]
    at_once.server.workloads.heal()
    await at_once.clock.advance(80)
    pod = await at_once.get("pods", "one")
    assert state(pod) == ("running", "")
    assert conditions(pod)["Ready"] == ("True", "")


async def test_what_crashes_is_never_ready_in_between(at_once: Cluster) -> None:
    path = "/api/v1/namespaces/default/pods"
    at_once.server.workloads.fail(PodFailure("CrashLoopBackOff"))
    await at_once.create("pods", "one", spec=POD)
    await at_once.clock.advance(200)
    store = at_once.server.store
    states = [change.entry.data for change in store.bucket("pods").since(0)]
    assert len(states) > 10
    assert not any(b'"type":"Ready","status":"True"' in data for data in states)
    assert await at_once.client.call("GET", path, expect=200)


async def test_a_container_that_takes_too_much_memory_is_restarted_once(at_once: Cluster) -> None:
    await at_once.create("pods", "one", spec=POD)
    at_once.server.workloads.fail(PodFailure("OOMKilled", selector="!other", times=1))
    await at_once.clock.settle()
    pod = await at_once.get("pods", "one")
    (container,) = pod["status"]["containerStatuses"]
    ended = container["lastState"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert container["restartCount"] == 1
    assert conditions(pod)["Ready"] == ("True", "")


@pytest.mark.parametrize(
    ("policy", "reason", "phase"),
    [
        ("Never", "Error", "Failed"),
        ("OnFailure", "Error", "Running"),
        ("Always", "Error", "Running"),
    ],
)
async def test_the_restart_policy_decides_what_a_failure_is(
    at_once: Cluster, policy: str, reason: str, phase: str
) -> None:
    at_once.server.workloads.fail(PodFailure(reason, name="on*"))
    await at_once.create("pods", "one", spec={**POD, "restartPolicy": policy})
    assert (await at_once.status("pods", "one"))["phase"] == phase


async def test_an_image_that_cannot_be_pulled_is_waited_for(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("ImagePullBackOff", namespace="def*"))
    await at_once.create("pods", "one", spec=POD)
    await at_once.clock.advance(600)
    pod = await at_once.get("pods", "one")
    assert state(pod) == ("waiting", "ImagePullBackOff")
    assert pod["status"]["phase"] == "Pending"
    at_once.server.workloads.heal()
    await at_once.clock.settle()
    assert (await at_once.status("pods", "one"))["phase"] == "Running"


async def test_an_evicted_pod_stays_as_failed_and_is_replaced(at_once: Cluster) -> None:
    await at_once.create("replicasets", "web", spec=workload(replicas=1))
    (name,) = await at_once.names("pods")
    at_once.server.workloads.fail(PodFailure("Evicted", times=1))
    await at_once.clock.settle()
    status = await at_once.status("pods", name)
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert len(await at_once.names("pods")) == 2
    assert (await at_once.status("replicasets", "web"))["readyReplicas"] == 1


async def test_containers_end_after_the_seconds_of_an_annotation(at_once: Cluster) -> None:
    metadata = {"annotations": {"listwatch/run-seconds": "30"}}
    await at_once.create("pods", "one", spec={**POD, "restartPolicy": "Never"}, metadata=metadata)
    await at_once.clock.advance(29)
    assert (await at_once.status("pods", "one"))["phase"] == "Running"
    await at_once.clock.advance(1)
    pod = await at_once.get("pods", "one")
    assert pod["status"]["phase"] == "Succeeded"
    assert state(pod) == ("terminated", "Completed")
    assert conditions(pod)["Ready"] == ("False", "PodCompleted")


async def test_pods_of_a_lost_node_are_deleted_after_their_tolerance() -> None:
    async with cluster(nodes=2) as two:
        await two.create("replicasets", "web", spec=workload(replicas=2))
        lost = [pod for pod in await two.all("pods") if pod["spec"]["nodeName"] == "node-1"]
        name = lost[0]["metadata"]["name"]
        two.server.workloads.lose_node("node-1")
        await two.clock.settle()
        node = await two.get("nodes", "node-1")
        assert conditions(node)["Ready"] == ("Unknown", "NodeStatusUnknown")
        assert {each["effect"] for each in node["spec"]["taints"]} == {"NoSchedule", "NoExecute"}
        assert conditions(await two.get("pods", name))["Ready"][0] == "False"
        await two.clock.advance(299)
        assert len(await two.names("pods")) == 2
        await two.clock.advance(60)
        pods = {pod["metadata"]["name"]: pod for pod in await two.all("pods")}
        assert len(pods) == 3
        assert "deletionTimestamp" in pods[name]["metadata"]
        assert {pod["spec"]["nodeName"] for key, pod in pods.items() if key != name} == {"node-0"}
        two.server.workloads.recover_node("node-1")
        await two.clock.settle()
        assert len(await two.names("pods")) == 2
        assert "taints" not in (await two.get("nodes", "node-1"))["spec"]


async def test_a_node_that_comes_back_in_time_keeps_its_pods(at_once: Cluster) -> None:
    await at_once.create("pods", "one", spec=POD)
    at_once.server.workloads.lose_node("node-0")
    await at_once.clock.advance(60)
    at_once.server.workloads.recover_node("node-0")
    await at_once.clock.advance(600)
    pod = await at_once.get("pods", "one")
    assert conditions(pod)["Ready"] == ("True", "")
    assert "reason" not in pod["status"]


async def test_pods_go_with_their_node(at_once: Cluster) -> None:
    await at_once.create("pods", "one", spec=POD)
    await at_once.delete("nodes", "node-0")
    assert await at_once.names("pods") == []


def test_an_unknown_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="no such failure: Tired; there are CrashLoopBackOff"):
        PodFailure("Tired")


async def test_a_node_that_is_not_there_can_not_be_lost(at_once: Cluster) -> None:
    with pytest.raises(ValueError, match="no such node: node-7; there are node-0"):
        at_once.server.workloads.lose_node("node-7")
