from typing import Any

import pytest

from controllers.service_cluster import node
from listwatch.controllers.services.nodes import (
    DELETION_TAINT,
    EXCLUDE_LABEL,
    Node,
    NodeSet,
    eligible_node,
)
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.frontend import node_port_backends
from listwatch.controllers.services.service import ServicePort
from listwatch.objects import Object
from listwatch.testing.load_balancer_conformance import make_service


def of(name: str, **more: Any) -> Object:
    return Object.from_dict(node(name, **more))


@pytest.mark.parametrize(
    ("more", "eligible"),
    [
        ({}, True),
        ({"labels": {EXCLUDE_LABEL: "true"}}, False),
        ({"labels": {EXCLUDE_LABEL: ""}}, False),
        ({"labels": {EXCLUDE_LABEL: "no"}}, False),
        ({"labels": {EXCLUDE_LABEL: "false"}}, True),
        ({"labels": {EXCLUDE_LABEL: "F"}}, True),
        ({"spec": {"taints": [{"key": DELETION_TAINT, "effect": "NoSchedule"}]}}, False),
        ({"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}}, True),
        ({"spec": {"unschedulable": True}}, True),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, True),
    ],
)
def test_which_nodes_are_sent_to(more: dict[str, Any], eligible: bool) -> None:
    assert (eligible_node(of("n", **more)) is not None) is eligible


def test_a_node_that_is_being_deleted_is_not_sent_to() -> None:
    value = node("n")
    value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert eligible_node(Object.from_dict(value)) is None


def test_only_what_matters_is_a_change() -> None:
    changes: list[int] = []
    nodes = NodeSet(lambda: changes.append(1))

    def changed() -> bool:
        result = bool(changes)
        changes.clear()
        return result

    def update(new: Object) -> bool:
        nodes.on_update(new, new)
        return changed()

    nodes.on_add(of("b", ip="192.0.2.2"), True)
    nodes.on_add(of("a", ip="192.0.2.1"), True)
    assert changed()
    assert nodes.nodes() == (Node("a", "", ("192.0.2.1",)), Node("b", "", ("192.0.2.2",)))
    assert not update(of("a", ip="192.0.2.1", labels={"x": "y"}, conditions=[{"type": "Ready"}]))
    assert update(of("a", ip="192.0.2.1", spec={"providerID": "cloud://a"}))
    assert update(of("b", ip="192.0.2.9"))
    assert update(of("b", labels={EXCLUDE_LABEL: "true"}))
    nodes.on_delete(of("b"))
    assert not changed()
    nodes.on_add(of("c"), False)
    assert [node.name for node in nodes.nodes()] == ["a", "c"]
    assert len(nodes) == 2


def test_a_node_with_wrong_types_is_left_out() -> None:
    nodes = NodeSet()
    nodes.on_add(of("a"), True)
    nodes.on_add(of("b", spec={"taints": "many"}), True)
    assert [node.name for node in nodes.nodes()] == ["a"]


def test_an_address_that_is_none_is_no_backend() -> None:
    """A proxy would resolve it as a name, or read it as words of its configuration."""
    port = ServicePort(80, node_port=30000)
    nodes = [Node("n", internal_ips=(ip,)) for ip in ("192.0.2.1", "host", "1\nlisten x", "::1%lo")]
    service = make_service(ports=[{"port": 80}])
    assert node_port_backends(port, nodes, service) == [Backend("192.0.2.1", 30000)]
