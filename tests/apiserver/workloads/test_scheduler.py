from collections import Counter
from typing import Any

import pytest

from workload_cluster import Cluster, cluster, conditions, template, workload

POD: dict[str, Any] = template()["spec"]


def asking(cpu: str) -> dict[str, Any]:
    container = {"name": "c", "image": "i:1", "resources": {"requests": {"cpu": cpu}}}
    return {"containers": [container]}


async def node(where: Cluster, name: str, cpu: str = "4", pods: str = "10", **spec: Any) -> None:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": pods}
    await where.create(
        "nodes",
        name,
        metadata={"labels": {"zone": name[-1], "number": name[-1]}},
        spec=spec,
        status={"capacity": amounts, "allocatable": amounts},
    )


async def why(where: Cluster, name: str = "one") -> str:
    pod = await where.get("pods", name)
    (told,) = (each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
    assert (told["status"], told["reason"]) == ("False", "Unschedulable")
    assert pod["status"]["phase"] == "Pending"
    return str(told["message"])


async def test_without_nodes_pods_wait_for_one() -> None:
    async with cluster(nodes=0) as none:
        await none.create("pods", "one", spec=POD)
        assert await why(none) == "no nodes available to schedule pods"
        await node(none, "n1")
        assert (await none.get("pods", "one"))["spec"]["nodeName"] == "n1"


async def test_pods_are_spread() -> None:
    async with cluster(nodes=3) as three:
        await three.create("replicasets", "web", spec=workload(replicas=9))
        placed = Counter(pod["spec"]["nodeName"] for pod in await three.all("pods"))
        assert placed == {"node-0": 3, "node-1": 3, "node-2": 3}


async def test_requests_fill_a_node_until_a_pod_leaves() -> None:
    async with cluster(nodes=0) as one:
        await node(one, "n1", cpu="2")
        await one.create("pods", "first", spec=asking("1500m"))
        await one.create("pods", "one", spec=asking("501m"))
        assert (await why(one)).startswith(
            "0/1 nodes are available: 1 Insufficient cpu. preemption"
        )
        await one.delete("pods", "first")
        assert (await one.get("pods", "one"))["spec"]["nodeName"] == "n1"


async def test_a_node_takes_so_many_pods() -> None:
    async with cluster(nodes=0) as one:
        await node(one, "n1", pods="1")
        await one.create("pods", "first", spec=POD)
        await one.create("pods", "one", spec=POD)
        assert "1 Too many pods" in await why(one)


async def test_a_node_that_is_cordoned_gets_no_pods() -> None:
    async with cluster() as one:
        await one.patch("nodes", "node-0", {"spec": {"unschedulable": True}})
        await one.create("pods", "one", spec=POD)
        assert "1 node(s) were unschedulable" in await why(one)
        await one.patch("nodes", "node-0", {"spec": {"unschedulable": None}})
        assert (await one.get("pods", "one"))["spec"]["nodeName"] == "node-0"


async def test_taints_keep_pods_away_that_do_not_tolerate_them() -> None:
    async with cluster(nodes=0) as one:
        await node(one, "n1", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
        await one.create("pods", "one", spec=POD)
        assert "1 node(s) had untolerated taint {gpu: yes}" in await why(one)
        tolerations = [{"key": "gpu", "operator": "Equal", "value": "yes"}]
        await one.create("pods", "two", spec={**POD, "tolerations": tolerations})
        assert (await one.get("pods", "two"))["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize(
    "chosen",
    [
        {"nodeSelector": {"zone": "2"}},
        {"expressions": [{"key": "zone", "operator": "In", "values": ["2", "3"]}]},
        {"expressions": [{"key": "zone", "operator": "NotIn", "values": ["1"]}]},
        {"expressions": [{"key": "number", "operator": "Gt", "values": ["1"]}]},
        {"fields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]},
    ],
)
async def test_a_pod_goes_where_its_selectors_say(chosen: dict[str, Any]) -> None:
    spec = {**POD}
    if "nodeSelector" in chosen:
        spec |= chosen
    else:
        term = {f"match{key.title()}": value for key, value in chosen.items()}
        required = {"nodeSelectorTerms": [term]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        spec["affinity"] = {"nodeAffinity": affinity}
    async with cluster(nodes=0) as two:
        await node(two, "n1")
        await node(two, "n2")
        await two.create("pods", "one", spec=spec)
        assert (await two.get("pods", "one"))["spec"]["nodeName"] == "n2"


async def test_a_selector_that_no_node_has_is_told() -> None:
    async with cluster() as one:
        await one.create("pods", "one", spec={**POD, "nodeSelector": {"zone": "9"}})
        assert "1 node(s) didn't match Pod's node affinity/selector" in await why(one)


async def test_what_has_a_node_or_another_scheduler_is_left_alone() -> None:
    async with cluster(nodes=2) as two:
        await two.create("pods", "given", spec={**POD, "nodeName": "node-1"})
        assert (await two.get("pods", "given"))["spec"]["nodeName"] == "node-1"
        assert (await two.status("pods", "given"))["phase"] == "Running"
        await two.create("pods", "theirs", spec={**POD, "schedulerName": "mine"})
        assert "nodeName" not in (await two.get("pods", "theirs"))["spec"]


async def test_a_scheduling_gate_holds_a_pod_back() -> None:
    async with cluster() as one:
        await one.create("pods", "one", spec={**POD, "schedulingGates": [{"name": "a.b/wait"}]})
        assert conditions(await one.get("pods", "one"))["PodScheduled"] == (
            "False",
            "SchedulingGated",
        )
        await one.patch("pods", "one", {"spec": {"schedulingGates": []}})
        assert (await one.status("pods", "one"))["phase"] == "Running"
