from typing import Any

import pytest

from controllers.service_cluster import service
from listwatch.controllers.services.provider import default_load_balancer_name
from listwatch.controllers.services.service import (
    FINALIZER,
    Ingress,
    InvalidServiceError,
    LoadBalancerStatus,
    PortStatus,
    Service,
    changes,
    needs_cleanup,
    needs_update,
    wants_load_balancer,
)
from listwatch.objects import Object


def of(value: dict[str, Any]) -> Service:
    return Service.of(Object.from_dict(value))


def changed(**spec: Any) -> Service:
    return of(service("a", **spec))


@pytest.mark.parametrize(
    ("spec", "wants"),
    [
        ({}, True),
        ({"kind": "ClusterIP"}, False),
        ({"kind": "NodePort"}, False),
        ({"loadBalancerClass": "example.com/x"}, False),
    ],
)
def test_a_load_balancer_is_wanted_by_type_and_without_a_class(
    spec: dict[str, Any], wants: bool
) -> None:
    assert wants_load_balancer(changed(**spec)) is wants


@pytest.mark.parametrize(
    ("kind", "finalizer", "deleted", "cleanup"),
    [
        ("LoadBalancer", True, False, False),
        ("LoadBalancer", True, True, True),
        ("LoadBalancer", False, True, False),
        ("ClusterIP", True, False, True),
        ("ClusterIP", False, False, False),
    ],
)
def test_cleanup_is_needed_by_the_finalizer_of_what_is_deleted_or_of_another_type(
    kind: str, finalizer: bool, deleted: bool, cleanup: bool
) -> None:
    value = service("a", kind)
    value["metadata"]["finalizers"] = [FINALIZER] if finalizer else []
    if deleted:
        value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert needs_cleanup(of(value)) is cleanup


@pytest.mark.parametrize(
    "port",
    [
        {"name": "other"},
        {"protocol": "UDP"},
        {"port": 81},
        {"nodePort": 30001},
        {"targetPort": "http"},
        {"appProtocol": "http"},
    ],
)
def test_each_part_of_a_port_matters(port: dict[str, Any]) -> None:
    before = {"name": "a", "port": 80, "protocol": "TCP", "nodePort": 30000, "targetPort": 80}
    old = changed(ports=[before])
    assert not needs_update(old, changed(ports=[before]))
    assert list(changes(old, changed(ports=[{**before, **port}]))) == ["ports"]


def test_uid_and_annotations_matter_and_status_and_labels_do_not() -> None:
    value = service("a", uid="1")
    old = of(value)
    assert needs_update(old, of(service("a", uid="2")))
    value["metadata"]["labels"] = {"x": "y"}
    value["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    assert not needs_update(old, of(value))
    value["metadata"]["annotations"] = {"x": "y"}
    assert list(changes(old, of(value))) == ["annotations"]


def test_the_order_of_families_is_no_change_and_their_number_is() -> None:
    one = changed(ipFamilies=["IPv4"])
    assert not needs_update(one, changed(ipFamilies=["IPv6"]))
    assert needs_update(one, changed(ipFamilies=["IPv4", "IPv6"]))


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 0),
        ({"sessionAffinity": "ClientIP"}, 10_800),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            },
            60,
        ),
    ],
)
def test_the_time_of_an_affinity(spec: dict[str, Any], seconds: int) -> None:
    assert changed(**spec).spec.affinity_seconds == seconds


def test_a_status_is_written_as_the_api_has_it() -> None:
    ports = (PortStatus(80, "TCP"), PortStatus(53, "UDP", "InUse"))
    status = LoadBalancerStatus((Ingress(ip="192.0.2.1", ip_mode="Proxy", ports=ports),))
    assert status.to_dict() == {
        "ingress": [
            {
                "ip": "192.0.2.1",
                "ipMode": "Proxy",
                "ports": [
                    {"port": 80, "protocol": "TCP"},
                    {"port": 53, "protocol": "UDP", "error": "InUse"},
                ],
            }
        ]
    }
    value = service("a")
    value["status"] = {"loadBalancer": status.to_dict()}
    assert of(value).status == status


def test_wrong_types_are_an_error_that_names_the_service() -> None:
    value = service("a")
    value["spec"]["ports"] = "many"
    with pytest.raises(InvalidServiceError, match="Service default/a"):
        of(value)


def test_the_default_name_is_the_clouds() -> None:
    value = service("a", uid="0b4a1c9e-1111-2222-3333-444455556666")
    assert default_load_balancer_name(of(value)) == "a0b4a1c9e11112222333344445555666"
