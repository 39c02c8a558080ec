from collections.abc import AsyncIterator
from typing import Any

import pytest

from workload_cluster import Cluster, cluster, template


@pytest.fixture
async def three() -> AsyncIterator[Cluster]:
    async with cluster(nodes=3) as made:
        yield made


@pytest.fixture
async def slow() -> AsyncIterator[Cluster]:
    async with cluster(nodes=3, start_seconds=5) as made:
        yield made


def agent(**spec: Any) -> dict[str, Any]:
    made = template("agent")
    return {"selector": {"matchLabels": {"app": "agent"}}, "template": made, **spec}


NEW = {"spec": {"template": template("agent", "agent:2")}}


async def places(where: Cluster) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in await where.all("pods"))


async def images(where: Cluster) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in await where.all("pods"))


async def test_each_node_gets_a_pod_also_one_that_comes_later(three: Cluster) -> None:
    await three.create("daemonsets", "agent", spec=agent())
    assert await places(three) == ["node-0", "node-1", "node-2"]
    await three.create("nodes", "late")
    assert await places(three) == ["late", "node-0", "node-1", "node-2"]
    status = await three.status("daemonsets", "agent")
    counts = (
        "currentNumberScheduled",
        "desiredNumberScheduled",
        "numberReady",
        "numberAvailable",
        "updatedNumberScheduled",
    )
    assert [status[key] for key in counts] == [4] * 5
    assert (status["numberMisscheduled"], status["observedGeneration"]) == (0, 1)


async def test_a_node_that_does_not_fit_gets_none_and_loses_what_it_has(three: Cluster) -> None:
    await three.patch("nodes", "node-1", {"metadata": {"labels": {"gpu": "yes"}}})
    spec = agent()
    spec["template"]["spec"]["nodeSelector"] = {"gpu": "yes"}
    await three.create("daemonsets", "agent", spec=spec)
    assert await places(three) == ["node-1"]
    await three.patch("nodes", "node-1", {"metadata": {"labels": {"gpu": None}}})
    assert await places(three) == []
    assert (await three.status("daemonsets", "agent"))["desiredNumberScheduled"] == 0


async def test_a_cordoned_node_keeps_its_pod(three: Cluster) -> None:
    await three.patch("nodes", "node-1", {"spec": {"unschedulable": True}})
    await three.create("daemonsets", "agent", spec=agent())
    assert await places(three) == ["node-0", "node-1", "node-2"]


async def test_an_update_goes_node_by_node(slow: Cluster) -> None:
    await slow.create("daemonsets", "agent", spec=agent())
    await slow.clock.advance(5)
    await slow.patch("daemonsets", "agent", NEW)
    seen = []
    for _ in range(3):
        seen.append(await images(slow))
        await slow.clock.advance(5)
    assert seen == [
        ["agent:2", "web:1", "web:1"],
        ["agent:2", "agent:2", "web:1"],
        ["agent:2", "agent:2", "agent:2"],
    ]
    assert (await slow.status("daemonsets", "agent"))["updatedNumberScheduled"] == 3


async def test_with_a_surge_the_new_pod_starts_beside_the_old(slow: Cluster) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await slow.create("daemonsets", "agent", spec=agent(updateStrategy=strategy))
    await slow.clock.advance(5)
    await slow.patch("daemonsets", "agent", NEW)
    assert await images(slow) == ["agent:2", "web:1", "web:1", "web:1"]
    await slow.clock.advance(15)
    assert await images(slow) == ["agent:2"] * 3


async def test_on_delete_waits_for_somebody_to_delete_a_pod(three: Cluster) -> None:
    await three.create("daemonsets", "agent", spec=agent(updateStrategy={"type": "OnDelete"}))
    await three.patch("daemonsets", "agent", NEW)
    first, *_ = await three.names("pods")
    await three.delete("pods", first)
    assert await images(three) == ["agent:2", "web:1", "web:1"]


async def test_revisions_are_numbered_and_name_the_pods(three: Cluster) -> None:
    await three.create("daemonsets", "agent", spec=agent())
    await three.patch("daemonsets", "agent", NEW)
    revisions = {each["revision"]: each["metadata"] for each in await three.all("revisions")}
    assert set(revisions) == {1, 2}
    digest = revisions[2]["labels"]["controller-revision-hash"]
    assert revisions[2]["name"] == f"agent-{digest}"
    assert {
        pod["metadata"]["labels"]["controller-revision-hash"] for pod in await three.all("pods")
    } == {digest}


async def test_a_failed_pod_is_replaced(three: Cluster) -> None:
    await three.create("daemonsets", "agent", spec=agent())
    first, *_ = await three.names("pods")
    await three.patch("pods", first, {"status": {"phase": "Failed"}}, "status")
    assert await places(three) == ["node-0", "node-1", "node-2"]
    assert first not in await three.names("pods")
