from typing import Any

from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.endpoints import Endpoints
from listwatch.controllers.services.service import ServicePort
from listwatch.objects import Object

PORT = ServicePort(port=80, name="web")


def slice_of(
    name: str, *endpoints: tuple[str, dict[str, bool]], service: str = "a", **more: Any
) -> Object:
    return Object.from_dict(
        {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": service} if service else {},
            },
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": [address], "conditions": conditions}
                for address, conditions in endpoints
            ],
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
            **more,
        }
    )


def make() -> tuple[Endpoints, list[str]]:
    told: list[str] = []
    return Endpoints(told.append), told


def addresses(endpoints: Endpoints, port: ServicePort = PORT) -> list[str]:
    return sorted(backend.host for backend in endpoints.backends("default/a", port))


def test_all_slices_of_a_service_are_its_endpoints() -> None:
    endpoints, told = make()
    endpoints.add(slice_of("a-1", ("192.0.2.1", {}), ("192.0.2.2", {"ready": True})))
    endpoints.add(slice_of("a-2", ("192.0.2.3", {"ready": True})))
    endpoints.add(slice_of("b-1", ("192.0.2.9", {}), service="b"))
    endpoints.add(slice_of("nobody's", ("192.0.2.8", {}), service=""))
    assert addresses(endpoints) == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert endpoints.backends("default/b", PORT) == [Backend("192.0.2.9", 8080)]
    assert told == ["default/a", "default/a", "default/b"]


def test_what_is_not_ready_counts_only_while_it_serves_and_nothing_else_does() -> None:
    endpoints, _ = make()
    ending = {"ready": False, "serving": True, "terminating": True}
    ended = {"ready": False, "serving": False, "terminating": True}
    endpoints.add(slice_of("a-1", ("192.0.2.1", {"ready": True}), ("192.0.2.2", ending)))
    assert addresses(endpoints) == ["192.0.2.1"]
    endpoints.update(slice_of("a-1", ("192.0.2.2", ending), ("192.0.2.3", ended)))
    assert addresses(endpoints) == ["192.0.2.2"]
    endpoints.update(slice_of("a-1", ("192.0.2.3", ended), ("192.0.2.4", {"ready": False})))
    assert addresses(endpoints) == []


def test_ports_are_found_by_name_and_protocol() -> None:
    endpoints, _ = make()
    ports = [
        {"name": "web", "port": 8080, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "", "port": 9},
        {"name": "none"},
    ]
    endpoints.add(slice_of("a-1", ("192.0.2.1", {}), ports=ports))
    dns = ServicePort(port=53, name="dns", protocol="UDP")
    assert endpoints.backends("default/a", dns) == [Backend("192.0.2.1", 53)]
    assert addresses(endpoints, ServicePort(port=53, name="dns")) == []
    assert endpoints.backends("default/a", ServicePort(port=1)) == [Backend("192.0.2.1", 9)]
    assert addresses(endpoints, ServicePort(port=1, name="none")) == []


def test_names_in_place_of_addresses_and_wrong_types_are_left_out() -> None:
    endpoints, told = make()
    endpoints.add(slice_of("a-1", ("example.com", {}), addressType="FQDN"))
    endpoints.add(slice_of("a-2", ("192.0.2.1", {})))
    endpoints.update(slice_of("a-2", ports="many"))
    assert addresses(endpoints) == []
    assert told == ["default/a"] * 3


def test_a_list_tells_of_what_changed_and_of_what_is_gone() -> None:
    endpoints, told = make()
    endpoints.add(slice_of("a-1", ("192.0.2.1", {})))
    endpoints.add(slice_of("b-1", ("192.0.2.2", {}), service="b"))
    told.clear()
    endpoints.replace([slice_of("c-1", ("192.0.2.3", {}), service="c")], "7")
    assert sorted(told) == ["default/a", "default/b", "default/c"]
    assert addresses(endpoints) == []
    endpoints.delete(slice_of("c-1"))
    endpoints.delete(slice_of("c-1"))
    endpoints.resync()
    endpoints.bookmark("8")
    assert endpoints.backends("default/c", PORT) == []


def test_a_slice_that_moves_to_another_service_leaves_the_first() -> None:
    endpoints, told = make()
    endpoints.add(slice_of("x", ("192.0.2.1", {})))
    endpoints.update(slice_of("x", ("192.0.2.1", {}), service="b"))
    assert addresses(endpoints) == []
    assert endpoints.backends("default/b", PORT) == [Backend("192.0.2.1", 8080)]
    assert sorted(told) == ["default/a", "default/a", "default/b"]


def test_an_address_that_is_none_and_a_port_that_is_none_are_left_out() -> None:
    """A proxy would resolve them as names, or read them as words of its configuration."""
    endpoints, _ = make()
    odd = ("", "web", "192.0.2.1 backup", "192.0.2.1\n  bind :1", "x; shutdown", "fe80::1%eth0")
    endpoints.add(slice_of("a-1", *((address, {}) for address in odd), ("192.0.2.9", {})))
    for number, port in enumerate((0, -1, 65_536)):
        ports = [{"name": "web", "port": port}]
        endpoints.add(slice_of(f"b-{number}", ("192.0.2.8", {}), ports=ports))
    assert addresses(endpoints) == ["192.0.2.9"]


def test_of_two_families_the_first_that_has_endpoints_counts() -> None:
    endpoints, _ = make()
    endpoints.add(slice_of("a-6", ("2001:db8::1", {}), addressType="IPv6"))
    endpoints.add(slice_of("a-4", ("192.0.2.1", {})))

    def hosts(*families: str) -> list[str]:
        return sorted(b.host for b in endpoints.backends("default/a", PORT, families))

    assert hosts("IPv6", "IPv4") == ["2001:db8::1"]
    assert hosts("IPv4") == ["192.0.2.1"]
    assert hosts() == ["192.0.2.1", "2001:db8::1"]
    endpoints.delete(slice_of("a-4"))
    assert hosts("IPv4") == ["2001:db8::1"]
