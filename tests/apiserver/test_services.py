"""Addresses and ports that the server allocates to services and releases."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.kinds.addresses import Addresses

SERVICES = f"{CORE}/services"
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


async def make(client: Client, name: str, expect: int = 201, **spec: Any) -> Any:
    body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}
    return await client.call("POST", SERVICES, body, expect=expect)


async def patch(client: Client, name: str, **spec: Any) -> Any:
    answer = await client.call(
        "PATCH", f"{SERVICES}/{name}", {"spec": spec}, headers=MERGE, expect=200
    )
    return answer["spec"]


async def test_a_service_gets_what_its_type_needs_and_loses_it_with_the_type(
    client: Client,
) -> None:
    made = await make(client, "a")
    address = made["spec"]["clusterIP"]
    assert made["spec"]["clusterIPs"] == [address]
    assert "nodePort" not in made["spec"]["ports"][0]
    spec = await patch(client, "a", type="LoadBalancer")
    port = spec["ports"][0]["nodePort"]
    assert 30_000 <= port <= 32_767
    assert (spec["clusterIP"], spec["externalTrafficPolicy"]) == (address, "Cluster")
    assert spec["allocateLoadBalancerNodePorts"] is True
    spec = await patch(client, "a", type="NodePort")
    assert spec["ports"][0]["nodePort"] == port
    assert "allocateLoadBalancerNodePorts" not in spec
    spec = await patch(client, "a", type="ClusterIP")
    assert "nodePort" not in spec["ports"][0]
    assert "externalTrafficPolicy" not in spec
    spec = await patch(client, "a", type="ExternalName", externalName="example.com")
    assert "clusterIP" not in spec
    spec = await patch(client, "a", type="ClusterIP", externalName=None)
    assert spec["clusterIP"].startswith("10.96.")


async def test_a_load_balancer_may_go_without_node_ports(client: Client) -> None:
    made = await make(client, "a", type="LoadBalancer", allocateLoadBalancerNodePorts=False)
    assert "nodePort" not in made["spec"]["ports"][0]


async def test_an_address_and_a_port_are_for_one_service(client: Client) -> None:
    both = [
        {"name": "t", "port": 53, "protocol": "TCP", "nodePort": 30_053},
        {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 30_053},
    ]
    await make(client, "a", type="NodePort", clusterIP="10.96.0.9", ports=both)
    refused = await make(
        client,
        "b",
        422,
        type="NodePort",
        clusterIP="10.96.0.9",
        ports=[{"port": 1, "nodePort": 30_053}],
    )
    assert {each["field"]: each["message"] for each in refused["details"]["causes"]} == {
        "spec.clusterIPs": (
            'Invalid value: ["10.96.0.9"]: failed to allocate IP 10.96.0.9: provided IP is already '
            "allocated"
        ),
        "spec.ports[0].nodePort": "Invalid value: 30053: provided port is already allocated",
    }
    await client.call("DELETE", f"{SERVICES}/a", expect=200)
    await make(client, "b", type="NodePort", clusterIP="10.96.0.9", ports=both)
    labels = {"metadata": {"labels": {"a": "b"}}}
    await client.call("PATCH", f"{SERVICES}/b", labels, headers=MERGE, expect=200)


async def test_a_port_out_of_the_range_and_a_bad_address_are_refused(client: Client) -> None:
    refused = await make(client, "a", 422, type="NodePort", ports=[{"port": 1, "nodePort": 1}])
    assert refused["message"] == (
        'Service "a" is invalid: spec.ports[0].nodePort: Invalid value: 1: provided port is not in '
        "the valid range. The range of valid ports is 30000-32767"
    )
    refused = await make(client, "a", 422, clusterIP="1.2.3")
    assert refused["message"] == (
        'Service "a" is invalid: spec.clusterIPs[0]: Invalid value: "1.2.3": must be a valid IP '
        "address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    )


async def test_what_was_given_out_before_a_start_stays_taken(tmp_path: Path) -> None:
    seen = set()
    for start in range(3):
        async with EmbeddedAPIServer(data=tmp_path / "data") as server, Client(server) as client:
            made = await make(client, f"s{start}", type="NodePort")
            seen.add((made["spec"]["clusterIP"], made["spec"]["ports"][0]["nodePort"]))
    assert len({address for address, _ in seen}) == 3
    assert len({port for _, port in seen}) == 3


def test_what_users_choose_from_is_given_out_last() -> None:
    addresses = Addresses(list)
    ports = [addresses.node_port() for _ in range(2_768)]
    hosts = [addresses.cluster_ip() for _ in range(64_998)]
    assert set(ports[-86:]) == set(range(30_000, 30_086))
    assert set(hosts[-255:]) == {f"10.96.{n >> 8}.{n & 255}" for n in range(2, 257)}


def test_when_all_is_given_out_what_is_free_is_found_or_nothing() -> None:
    used: set[int] = set()
    addresses = Addresses(lambda: [{"spec": {"ports": [{"nodePort": port} for port in used]}}])
    for _ in range(2_768):
        port = addresses.node_port()
        assert port is not None
        used.add(port)
    assert len(used) == 2_768
    assert addresses.node_port() is None
    used.remove(31_000)
    assert addresses.node_port() == 31_000


async def test_a_policy_local_comes_with_a_port_for_health_checks_and_goes_with_it(
    client: Client,
) -> None:
    local: dict[str, Any] = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    made = (await make(client, "a", **local))["spec"]
    number = made["healthCheckNodePort"]
    assert 30_000 <= number <= 32_767
    assert number != made["ports"][0]["nodePort"]
    # An update without it keeps it.
    body = {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 81}], **local}}
    kept = await client.call("PUT", f"{SERVICES}/a", body, expect=200)
    assert kept["spec"]["healthCheckNodePort"] == number
    await make(client, "b", expect=422, **local, healthCheckNodePort=number)
    await make(client, "b", expect=422, **local, healthCheckNodePort=80)
    assert "healthCheckNodePort" not in await patch(client, "a", externalTrafficPolicy="Cluster")
    wanted = await make(client, "b", **local, healthCheckNodePort=number)
    assert wanted["spec"]["healthCheckNodePort"] == number
    assert "healthCheckNodePort" not in (await make(client, "c", type="LoadBalancer"))["spec"]
