from collections.abc import AsyncIterator
from typing import Any

import pytest

from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import Cluster, cluster, workload


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


def service(**spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {"selector": {"app": "web"}, "ports": ports, **spec}


async def slices(where: Cluster) -> list[Any]:
    """Return the slices of the service `web`."""
    return [
        each
        for each in await where.all("slices")
        if each["metadata"]["labels"].get("kubernetes.io/service-name") == "web"
    ]


async def test_ready_pods_are_endpoints(at_once: Cluster) -> None:
    await at_once.create("services", "web", spec=service(), metadata={"labels": {"team": "a"}})
    await at_once.create("replicasets", "web", spec=workload())
    (found,) = await slices(at_once)
    assert found["metadata"]["name"].startswith("web-")
    assert found["metadata"]["labels"] == {
        "team": "a",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    assert found["metadata"]["ownerReferences"][0]["kind"] == "Service"
    assert found["addressType"] == "IPv4"
    assert found["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    pods = await at_once.all("pods")
    assert [each["addresses"] for each in found["endpoints"]] == [
        [pod["status"]["podIP"]] for pod in pods
    ]
    first = found["endpoints"][0]
    assert first["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert first["targetRef"]["name"] == pods[0]["metadata"]["name"]
    assert first["nodeName"] == "node-0"
    endpoints = await at_once.get("endpoints", "web")
    assert len(endpoints["subsets"][0]["addresses"]) == 3
    assert endpoints["subsets"][0]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]


async def test_a_pod_that_is_not_ready_is_told_as_such(at_once: Cluster) -> None:
    await at_once.create("services", "web", spec=service())
    await at_once.create("replicasets", "web", spec=workload(replicas=1))
    at_once.server.workloads.fail(PodFailure("CrashLoopBackOff"))
    await at_once.clock.settle()
    (found,) = await slices(at_once)
    (endpoint,) = found["endpoints"]
    assert endpoint["conditions"] == {"ready": False, "serving": False, "terminating": False}
    (subset,) = (await at_once.get("endpoints", "web"))["subsets"]
    assert ("addresses" in subset, len(subset["notReadyAddresses"])) == (False, 1)


async def test_a_pod_that_ends_still_serves() -> None:
    async with cluster(stop_seconds=20) as slow:
        await slow.create("services", "web", spec=service())
        await slow.create("replicasets", "web", spec=workload(replicas=1))
        await slow.patch("replicasets", "web", {"spec": {"replicas": 0}})
        (found,) = await slices(slow)
        (endpoint,) = found["endpoints"]
        assert endpoint["conditions"] == {"ready": False, "serving": True, "terminating": True}
        assert "subsets" not in await slow.get("endpoints", "web")
        await slow.clock.advance(20)
        (found,) = await slices(slow)
        assert found["endpoints"] is None
        assert found["ports"] is None


async def test_a_headless_service_and_named_ports(at_once: Cluster) -> None:
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    await at_once.create("services", "web", spec=service(clusterIP="None", ports=ports))
    for name, number in (("one", 8080), ("two", 9090)):
        container = {
            "name": "c",
            "image": "i:1",
            "ports": [{"name": "web", "containerPort": number}],
        }
        labels = {"labels": {"app": "web"}}
        spec = {"containers": [container], "hostname": name, "subdomain": "web"}
        await at_once.create("pods", name, metadata=labels, spec=spec)
    found = sorted(await slices(at_once), key=lambda each: each["ports"][0]["port"])
    assert [each["ports"][0]["port"] for each in found] == [8080, 9090]
    assert [each["endpoints"][0]["hostname"] for each in found] == ["one", "two"]
    assert all("service.kubernetes.io/headless" in each["metadata"]["labels"] for each in found)


async def test_many_endpoints_are_cut_into_slices_of_a_hundred(at_once: Cluster) -> None:
    await at_once.create("services", "web", spec=service())
    await at_once.create("replicasets", "web", spec=workload(replicas=150))
    assert sorted(len(each["endpoints"]) for each in await slices(at_once)) == [50, 100]
    await at_once.patch("replicasets", "web", {"spec": {"replicas": 20}})
    assert [len(each["endpoints"]) for each in await slices(at_once)] == [20]


async def test_with_the_service_all_of_it_goes(at_once: Cluster) -> None:
    await at_once.create("services", "web", spec=service())
    await at_once.create("replicasets", "web", spec=workload())
    await at_once.delete("services", "web")
    assert await slices(at_once) == []
    assert "web" not in await at_once.names("endpoints")


async def test_what_somebody_else_deletes_is_made_anew(at_once: Cluster) -> None:
    await at_once.create("services", "web", spec=service())
    await at_once.create("replicasets", "web", spec=workload())
    (found,) = await slices(at_once)
    await at_once.delete("slices", found["metadata"]["name"])
    await at_once.delete("endpoints", "web")
    (again,) = await slices(at_once)
    assert len(again["endpoints"]) == 3
    assert "web" in await at_once.names("endpoints")


async def test_a_service_without_selector_is_left_alone(at_once: Cluster) -> None:
    await at_once.create("services", "web", spec=service(selector=None))
    assert await slices(at_once) == []
    assert "web" not in await at_once.names("endpoints")


async def test_a_selector_that_changes_leads_elsewhere(at_once: Cluster) -> None:
    await at_once.create("services", "web", spec=service())
    await at_once.create("replicasets", "web", spec=workload())
    await at_once.patch("services", "web", {"spec": {"selector": {"app": "other"}}})
    (found,) = await slices(at_once)
    assert found["endpoints"] is None
