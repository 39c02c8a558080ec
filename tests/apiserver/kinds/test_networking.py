"""Validation of Ingresses, IngressClasses, NetworkPolicies and address ranges."""

from typing import Any

import pytest

from kind_causes import of_change, of_new

BACKEND = {"service": {"name": "s", "port": {"number": 80}}}
PATHS = {"paths": [{"path": "/", "pathType": "Exact", "backend": BACKEND}]}


def hosted(host: str) -> dict[str, Any]:
    return {"rules": [{"host": host, "http": PATHS}]}


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        (hosted("a.example"), []),
        (hosted("*.a.example"), []),
        (hosted("*"), ["spec.rules[0].host"]),
        (hosted("a.*.example"), ["spec.rules[0].host"]),
        (hosted("10.0.0.1"), ["spec.rules[0].host"]),
        (hosted("fd00::1"), ["spec.rules[0].host"] * 2),
        (
            {"defaultBackend": {"service": {"name": "A_", "port": {"number": 0x10000}}}},
            ["spec.defaultBackend.service.name", "spec.defaultBackend.service.port.number"],
        ),
        (
            {"defaultBackend": {"resource": {"apiGroup": "A B", "kind": "a/b", "name": "."}}},
            [
                "spec.defaultBackend.resource.apiGroup",
                "spec.defaultBackend.resource.kind",
                "spec.defaultBackend.resource.name",
            ],
        ),
        (
            {"defaultBackend": {"resource": {}}},
            ["spec.defaultBackend.resource.kind", "spec.defaultBackend.resource.name"],
        ),
        (
            {"defaultBackend": BACKEND, "tls": [{"hosts": ["*.b", "A_"], "secretName": "B B"}]},
            ["spec.tls[0].hosts[1]", "spec.tls[0].secretName"],
        ),
        ({"defaultBackend": BACKEND, "ingressClassName": "A_"}, ["spec.ingressClassName"]),
    ],
)
def test_the_rules_of_an_ingress(spec: dict[str, Any], broken: list[str]) -> None:
    assert of_new("networking.k8s.io/ingresses", {"spec": spec}) == broken


@pytest.mark.parametrize(
    ("noted", "chosen", "broken"),
    [
        ("x", "x", []),
        ("x", None, []),
        ("x", "y", ["annotations.kubernetes.io/ingress.class"]),
    ],
)
def test_an_ingress_names_one_class(noted: str, chosen: str | None, broken: list[str]) -> None:
    obj = {
        "metadata": {"annotations": {"kubernetes.io/ingress.class": noted}},
        "spec": {"defaultBackend": BACKEND, "ingressClassName": chosen},
    }
    assert of_new("networking.k8s.io/ingresses", obj) == broken


def parameters(**found: Any) -> dict[str, Any]:
    whole = {"kind": "K", "name": "n", "scope": "Cluster", **found}
    return {"controller": "example.com/c", "parameters": whole}


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        ({"controller": "example.com/c"}, []),
        ({}, ["spec.controller"]),
        ({"controller": "c"}, ["spec.controller"]),
        ({"controller": "A_/c"}, ["spec.controller"]),
        ({"controller": "a.example/c d"}, ["spec.controller"]),
        ({"controller": "a.example/" + "c" * 250}, ["spec.controller"]),
        (parameters(), []),
        (parameters(kind="a/b", name=""), ["spec.parameters.kind", "spec.parameters.name"]),
        (parameters(namespace="n"), ["spec.parameters.namespace"]),
        (parameters(scope="Namespace"), ["spec.parameters.namespace"]),
        (parameters(scope="Namespace", namespace="A_"), ["spec.parameters.namespace"]),
        (parameters(scope="Zone"), ["spec.parameters.scope"]),
    ],
)
def test_the_rules_of_an_ingress_class(spec: dict[str, Any], broken: list[str]) -> None:
    assert of_new("networking.k8s.io/ingressclasses", {"spec": spec}) == broken


def test_the_controller_of_an_ingress_class_does_not_change() -> None:
    old, new = ({"spec": {"controller": f"example.com/{name}"}} for name in "ab")
    assert of_change("networking.k8s.io/ingressclasses", new, old) == ["spec.controller"]
    assert of_change("networking.k8s.io/ingressclasses", old, old) == []


PORT, PEER = "spec.ingress[0].ports[0]", "spec.ingress[0].from[0]"


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ({"ports": [{"port": 80, "endPort": 90}]}, []),
        ({"ports": [{"endPort": 90}]}, [f"{PORT}.endPort"]),
        ({"ports": [{"port": "web", "endPort": 90}]}, [f"{PORT}.endPort"]),
        ({"ports": [{"port": 80, "endPort": 79}]}, [f"{PORT}.endPort"]),
        ({"ports": [{"port": 80, "endPort": 70_000}]}, [f"{PORT}.endPort"]),
        ({"from": [{}]}, [PEER]),
        ({"from": [{"ipBlock": {}}]}, [f"{PEER}.ipBlock.cidr"]),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}, [PEER]),
        (
            {"from": [{"ipBlock": {"cidr": "x"}, "podSelector": {}}]},
            [PEER, f"{PEER}.ipBlock.cidr"],
        ),
        (
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8", "y"]}}]},
            [f"{PEER}.ipBlock.except[0]", f"{PEER}.ipBlock.except[1]"],
        ),
    ],
)
def test_the_rules_of_a_network_policy(rule: dict[str, Any], broken: list[str]) -> None:
    spec = {"podSelector": {}, "ingress": [rule]}
    assert of_new("networking.k8s.io/networkpolicies", {"spec": spec}) == broken


@pytest.mark.parametrize(
    ("cidrs", "broken"),
    [
        (["10.0.0.0/24"], []),
        (["10.0.0.0/24", "fd00::/112"], []),
        ([], ["spec.cidrs"]),
        (["10.0.0.0"], ["spec.cidrs[0]"]),
        (["10.0.0.0/24", "10.1.0.0/24"], ["spec.cidrs"]),
        (["10.0.0.0/24", "fd00::/112", "fd01::/112"], ["spec.cidrs"]),
    ],
)
def test_the_rules_of_ranges_of_services(cidrs: list[str], broken: list[str]) -> None:
    assert of_new("networking.k8s.io/servicecidrs", {"spec": {"cidrs": cidrs}}) == broken


@pytest.mark.parametrize(
    ("new", "old", "broken"),
    [
        (["10.0.0.0/24", "fd00::/112"], ["10.0.0.0/24"], []),
        (["10.1.0.0/24", "fd00::/112"], ["10.0.0.0/24"], ["spec.cidrs[0]"]),
        (["10.1.0.0/24"], ["10.0.0.0/24"], ["spec.cidrs"]),
    ],
)
def test_ranges_of_services_only_gain_a_family(
    new: list[str], old: list[str], broken: list[str]
) -> None:
    changed = of_change(
        "networking.k8s.io/servicecidrs", {"spec": {"cidrs": new}}, {"spec": {"cidrs": old}}
    )
    assert changed == broken


@pytest.mark.parametrize(
    ("name", "parent", "broken"),
    [
        ("10.0.0.1", {"resource": "services", "name": "s", "namespace": "n"}, []),
        ("x", {"resource": "services", "name": "s"}, ["metadata.name"]),
        ("10.0.0.1", None, ["spec.parentRef"]),
        ("10.0.0.1", {}, ["spec.parentRef.name", "spec.parentRef.resource"]),
        (
            "10.0.0.1",
            {"group": "A_", "resource": "a/b", "name": "c%d"},
            ["spec.parentRef.group", "spec.parentRef.name", "spec.parentRef.resource"],
        ),
    ],
)
def test_the_rules_of_an_address(
    name: str, parent: dict[str, Any] | None, broken: list[str]
) -> None:
    obj = {"metadata": {"name": name}, "spec": {} if parent is None else {"parentRef": parent}}
    assert of_new("networking.k8s.io/ipaddresses", obj) == broken
