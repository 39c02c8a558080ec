"""Endpoints of services, for a provider under test."""

from collections.abc import Mapping, Sequence

from listwatch.controllers.services.service import Service
from listwatch.testing.fake_controller_source import FakeControllerSource
from listwatch.testing.load_balancer_conformance import Address


class Slices:
    """In-memory EndpointSlices for the ports of services."""

    def __init__(self) -> None:
        self.source = FakeControllerSource(kind="EndpointSlice", api_version="discovery.k8s.io/v1")

    async def publish(self, service: Service, ports: Mapping[str, Sequence[Address]]) -> None:
        protocols = {port.name: port.protocol for port in service.spec.ports}
        for port, addresses in ports.items():
            # Backends on one host have different ports, so each needs a slice.
            for place in range(8):
                name = f"{service.object.name}-{port or 'main'}-{place}"
                key = f"{service.object.namespace}/{name}"
                if place >= len(addresses):
                    if key in self.source.objects:
                        self.source.delete(key)
                    continue
                host, number = addresses[place]
                value = {
                    "metadata": {
                        "name": name,
                        "namespace": service.object.namespace,
                        "labels": {"kubernetes.io/service-name": service.object.name},
                    },
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
                    "ports": [
                        {"name": port, "port": number, "protocol": protocols.get(port, "TCP")}
                    ],
                }
                if key in self.source.objects:
                    self.source.modify(value)
                else:
                    self.source.add(value)
