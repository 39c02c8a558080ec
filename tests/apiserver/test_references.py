"""References and selectors within classes, routes and roles."""

from typing import Any

import pytest

from listwatch.apiserver.kinds.catalog import built_in

CLASSES = "networking.k8s.io/ingressclasses"
ROLES = "rbac.authorization.k8s.io/clusterroles"
GOOD = {"kind": "P", "name": "n", "scope": "Cluster"}


def fields(storage: str, obj: dict[str, Any]) -> list[str]:
    rule = built_in(storage).rule
    assert rule is not None
    return [cause.field.rpartition(".")[2] for cause in rule({"metadata": {}, **obj})]


@pytest.mark.parametrize(
    ("parameters", "wrong"),
    [
        ({}, []),
        ({"apiGroup": "A_B c"}, ["apiGroup"]),
        ({"kind": "", "name": ""}, ["kind", "name"]),
        ({"scope": "10"}, ["scope"]),
        ({"scope": "Namespace"}, ["namespace"]),
        ({"scope": "Namespace", "namespace": "ns"}, []),
        ({"namespace": "ns"}, ["namespace"]),
    ],
    ids=str,
)
def test_parameters_of_a_class_name_one_object(
    parameters: dict[str, str], wrong: list[str]
) -> None:
    spec = {"controller": "acme.io/foo", "parameters": {**GOOD, **parameters}}
    assert fields(CLASSES, {"spec": spec}) == wrong


@pytest.mark.parametrize(("name", "wrong"), [("http", []), ("10", ["name"])])
def test_a_backend_names_a_port_as_services_do(name: str, wrong: list[str]) -> None:
    backend = {"service": {"name": "s", "port": {"name": name}}}
    assert fields("networking.k8s.io/ingresses", {"spec": {"defaultBackend": backend}}) == wrong


def test_a_role_gathers_by_selectors_that_can_match() -> None:
    for value, wrong in (("b", 0), ("2024-01-01T00:00:00Z", 2)):
        rule = {"clusterRoleSelectors": [{"matchLabels": {"a": value}}]}
        assert len(fields(ROLES, {"aggregationRule": rule})) == wrong
