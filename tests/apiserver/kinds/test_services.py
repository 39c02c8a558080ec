"""Validation of services and endpoints."""

from typing import Any

import pytest

from kind_causes import of_change, of_new
from listwatch.apiserver.kinds.catalog import built_in

PORT = {"port": 80, "protocol": "TCP", "targetPort": 80}


def service(kind: str = "ClusterIP", **spec: Any) -> dict[str, Any]:
    return {"spec": {"type": kind, "ports": [PORT], **spec}}


@pytest.mark.parametrize(
    ("obj", "broken"),
    [
        (service(), []),
        (service(ports=[]), ["spec.ports"]),
        (service(ports=[], clusterIP="None"), []),
        (service("LoadBalancer", ports=[{**PORT, "port": 10250}]), ["spec.ports[0]"]),
        (service("NodePort", clusterIP="None"), ["spec.clusterIPs[0]"]),
        (service(ports=[{**PORT, "nodePort": 30000}]), ["spec.ports[0].nodePort"]),
        (
            service(
                "NodePort",
                ports=[
                    {**PORT, "name": "a", "nodePort": 30000},
                    {**PORT, "name": "b", "port": 81, "nodePort": 30000},
                ],
            ),
            ["spec.ports[1].nodePort"],
        ),
        (service(ports=[{**PORT, "name": "a"}, {**PORT, "name": "b"}]), ["spec.ports[1]"]),
        (service(ports=[{**PORT, "appProtocol": "a b"}]), ["spec.ports[0].appProtocol"]),
        (service("ExternalName", externalName="a.example."), []),
        (service("ExternalName"), ["spec.externalName"]),
        (
            service(
                "ExternalName",
                externalName="a",
                clusterIP="None",
                ipFamilies=["IPv4"],
                ipFamilyPolicy="SingleStack",
            ),
            ["spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy"],
        ),
        (service("LoadBalancer", loadBalancerSourceRanges=[" 10.0.0.0/8 "]), []),
        (
            service("LoadBalancer", loadBalancerSourceRanges=["10.0.0.1"]),
            ["spec.LoadBalancerSourceRanges[0]"],
        ),
        (service(loadBalancerSourceRanges=["10.0.0.0/8"]), ["spec.LoadBalancerSourceRanges"]),
        (
            service(allocateLoadBalancerNodePorts=False, loadBalancerClass="example.com/x"),
            ["spec.allocateLoadBalancerNodePorts", "spec.loadBalancerClass"],
        ),
        (service("LoadBalancer", loadBalancerClass="a b"), ["spec.loadBalancerClass"]),
        (service(trafficDistribution="PreferSameNode"), []),
        (service(trafficDistribution="Near"), ["spec.trafficDistribution"]),
        (service(internalTrafficPolicy=""), ["spec.internalTrafficPolicy"]),
        (service(externalTrafficPolicy="Local"), ["spec.externalTrafficPolicy"]),
        (service("NodePort", healthCheckNodePort=30000), ["spec.healthCheckNodePort"]),
        (service(externalIPs=["169.254.0.1", "x"]), ["spec.externalIPs[0]", "spec.externalIPs[1]"]),
    ],
)
def test_the_rules_of_a_service(obj: dict[str, Any], broken: list[str]) -> None:
    assert of_new("services", obj) == broken


@pytest.mark.parametrize(
    ("new", "old", "broken"),
    [
        (service(clusterIP="10.0.0.1"), service(), []),
        (service(clusterIP="10.0.0.2"), service(clusterIP="10.0.0.1"), ["spec.clusterIPs[0]"]),
        (service(ipFamilies=["IPv6"]), service(ipFamilies=["IPv4"]), ["spec.ipFamilies[0]"]),
        (
            service("LoadBalancer", loadBalancerClass="example.com/x"),
            service("LoadBalancer"),
            ["spec.loadBalancerClass"],
        ),
        (service("LoadBalancer", loadBalancerClass="example.com/x"), service(), []),
    ],
)
def test_what_of_a_service_may_not_change(
    new: dict[str, Any], old: dict[str, Any], broken: list[str]
) -> None:
    assert of_change("services", new, old) == broken


@pytest.mark.parametrize(
    ("subset", "broken"),
    [
        ({"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}]}, []),
        ({}, [""]),
        ({"addresses": [{"ip": "x"}]}, [".addresses[0].ip"] * 2),
        ({"addresses": [{"ip": "::"}]}, [".addresses[0].ip"]),
        (
            {"notReadyAddresses": [{"ip": "10.0.0.1", "hostname": "A_", "nodeName": "B B"}]},
            [".notReadyAddresses[0].hostname", ".notReadyAddresses[0].nodeName"],
        ),
        (
            {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 0}, {"name": "A_", "port": 1}]},
            [".ports[0].name", ".ports[0].port", ".ports[1].name"],
        ),
        (
            {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1, "appProtocol": "a b"}]},
            [".ports[0].appProtocol"],
        ),
    ],
)
def test_the_rules_of_endpoints(subset: dict[str, Any], broken: list[str]) -> None:
    assert of_new("endpoints", {"subsets": [subset]}) == [f"subsets[0]{each}" for each in broken]


@pytest.mark.parametrize(
    ("obj", "policy"),
    [
        (service(), None),
        (service(externalIPs=["10.0.0.1"]), "Cluster"),
        (service("NodePort"), "Cluster"),
    ],
)
def test_a_service_that_others_reach_has_a_policy_for_their_traffic(
    obj: dict[str, Any], policy: str | None
) -> None:
    defaults = built_in("services").defaults
    assert defaults is not None
    defaults(obj)
    assert obj["spec"].get("externalTrafficPolicy") == policy


def test_an_address_of_a_load_balancer_is_virtual_by_default() -> None:
    obj = service("LoadBalancer")
    obj["status"] = {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}, {"hostname": "a"}]}}
    defaults = built_in("services").defaults
    assert defaults is not None
    defaults(obj)
    assert obj["status"]["loadBalancer"]["ingress"] == [
        {"ip": "10.0.0.1", "ipMode": "VIP"},
        {"hostname": "a"},
    ]
