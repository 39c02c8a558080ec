"""The project's own controllers as programs to simulate, with a cloud that outlives them."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from listwatch import AlreadyExistsError, Client, Manager, NotFoundError
from listwatch.controllers import (
    ClientServices,
    Ingress,
    LoadBalancerStatus,
    Node,
    Service,
    ServiceController,
    default_load_balancer_name,
)

if TYPE_CHECKING:
    from listwatch.simulation import World


class CloudOfConfigMaps:
    """A provider whose load balancers are ConfigMaps, so that every call may fail and be lost."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def name(self, cluster: str, service: Service) -> str:
        del cluster
        return default_load_balancer_name(service)

    def _place(self, service: Service) -> str:
        return f"{service.object.name}-balancer"

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        del cluster
        try:
            await self._client.get("configmaps", self._place(service), "default")
        except NotFoundError:
            return None
        return LoadBalancerStatus((Ingress(ip="192.0.2.1"),))

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap"}
        body["metadata"] = {"name": self._place(service), "namespace": "default"}
        with contextlib.suppress(AlreadyExistsError):
            await self._client.create(body)
        await self.update(cluster, service, nodes)
        return LoadBalancerStatus((Ingress(ip="192.0.2.1"),))

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        del cluster
        names = ",".join(sorted(node.name for node in nodes))
        data = {"data": {"nodes": names, "ports": str([port.port for port in service.spec.ports])}}
        await self._client.patch("configmaps", self._place(service), data, "default")

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        del cluster
        with contextlib.suppress(NotFoundError):
            await self._client.delete("configmaps", self._place(service), "default")


def make_service_controller() -> Manager:
    app = Manager("services", leader_election="services")

    async def control() -> None:
        client = app.client
        controller = ServiceController(
            CloudOfConfigMaps(client),
            ClientServices(client),
            client.list_watch("services.v1."),
            client.list_watch("nodes.v1."),
            recorder=app.recorder,
        )
        await controller.run(app.guard)

    app.task(control, name="service controller")
    return app


def service(port: int) -> dict[str, Any]:
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    spec = {"type": "LoadBalancer", "ports": ports, "selector": {"app": "web"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}


async def one_service(world: "World") -> None:
    await world.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}})
    await world.create(service(80))
    await world.settle()
    await world.change("services", "web", {"spec": service(81)["spec"]})
    await world.settle()
    await world.delete("services", "web")
    await world.settle()


def make_sharing_app() -> Manager:
    """Return a program whose replicas share the ConfigMaps, and copy each to a Secret."""
    app = Manager("copier", sharing="copier")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app").owns("secrets")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": found.name, "namespace": found.namespace}
        secret["stringData"] = {"colour": (found.get("data") or {}).get("colour", "none")}
        await app.client.apply(secret, field_manager="copier", force=True)

    return app


async def two_maps(world: "World") -> None:
    for name in ("one", "two"):
        metadata = {"name": name, "labels": {"app": "shop"}}
        await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await world.settle()
    await world.change("configmaps", "one", {"data": {"colour": "blue"}})
    await world.change("configmaps", "two", {"data": {"colour": "red"}})
    await world.settle()
