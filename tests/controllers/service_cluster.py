"""In-memory services, nodes and a provider for tests of the service controller."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from listwatch.clock import FakeClock
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import default_load_balancer_name
from listwatch.controllers.services.service import (
    FINALIZER,
    Ingress,
    LoadBalancerStatus,
    Service,
)
from listwatch.controllers.services.service_controller import ServiceController
from listwatch.objects import Object
from listwatch.testing.fake_controller_source import FakeControllerSource


def service(name: str, kind: str = "LoadBalancer", *, uid: str = "", **spec: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid or f"uid-of-{name}"}
    ports = spec.pop("ports", [{"port": 80, "protocol": "TCP"}])
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": meta,
        "spec": {"type": kind, "ports": ports, **spec},
    }


def annotated(service: Service, annotations: Mapping[str, str]) -> Service:
    """Return the service with its annotations replaced."""
    value = service.object.to_dict()
    value["metadata"]["annotations"] = dict(annotations)
    return Service.of(Object.from_dict(value))


def node(name: str, *, ip: str = "", **more: Any) -> dict[str, Any]:
    addresses = [{"type": "InternalIP", "address": ip}] if ip else []
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": more.pop("labels", {})},
        "spec": more.pop("spec", {}),
        "status": {"addresses": addresses, **more},
    }


class FakeProvider:
    """Record calls; `before` may raise or wait in any of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.balancers: dict[str, LoadBalancerStatus] = {}
        self.nodes: dict[str, list[str]] = {}
        self.before: Callable[[str, Service], Any] = lambda _call, _service: None
        self.running = self.most_running = 0
        self.needs_nodes = True

    async def _called(self, call: str, service: Service) -> None:
        self.calls.append(f"{call} {service.object.name}")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            result = self.before(call, service)
            if result is not None:
                await result
        finally:
            self.running -= 1

    def name(self, cluster: str, service: Service) -> str:
        assert cluster
        return default_load_balancer_name(service)

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        assert cluster
        return self.balancers.get(service.uid)

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        assert cluster
        # A failure leaves half a load balancer.
        self.balancers[service.uid] = LoadBalancerStatus()
        await self._called("ensure", service)
        self.nodes[service.uid] = [node.name for node in nodes]
        number = len(self.balancers)
        status = LoadBalancerStatus((Ingress(ip=f"192.0.2.{number}", ip_mode="VIP"),))
        if self.balancers[service.uid].ingress:
            status = self.balancers[service.uid]
        self.balancers[service.uid] = status
        return status

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        assert cluster
        await self._called("update", service)
        self.nodes[service.uid] = [node.name for node in nodes]

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        assert cluster
        await self._called("delete", service)
        self.balancers.pop(service.uid, None)


class World:
    """A service controller and its surroundings."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.services = FakeControllerSource(kind="Service", api_version="v1")
        self.nodes = FakeControllerSource(kind="Node", api_version="v1")
        self.nodes.add(node("n1"))
        self.provider = FakeProvider()
        self.events: list[str] = []
        self.patches = 0
        self.broken: Exception | None = None
        self.controller = ServiceController(
            self.provider,
            self,
            self.services,
            self.nodes,
            recorder=self,
            clock=self.clock,
            **options,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.controller.run())
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        assert not self._task.done()
        self._task.cancel()
        await asyncio.wait({self._task})
        assert self.clock.next_timer is None, "timers are left"

    async def settle(self) -> None:
        await self.clock.advance(0.5)

    def get(self, name: str) -> Service:
        return Service.of(self.services.objects[f"default/{name}"])

    def delete(self, name: str) -> None:
        """Delete a service as the server does: finalizers keep it."""
        value = self.services.objects[f"default/{name}"].to_dict()
        if value["metadata"].get("finalizers"):
            value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.services.modify(value)
        else:
            self.services.delete(value)

    def change(self, name: str, **spec: Any) -> None:
        value = self.services.objects[f"default/{name}"].to_dict()
        value["spec"].update(spec)
        self.services.modify(value)

    # --- The controller's recorder and API ---

    def event(self, obj: object, type: str, reason: str, message: str) -> None:  # noqa: A002 - the recorder's
        assert isinstance(obj, Object)
        assert type == ("Warning" if "Failed" in reason or "UnAvail" in reason else "Normal")
        assert message
        self.events.append(f"{reason} {obj.name}")

    async def patch(self, service: Service, patch: Mapping[str, Any]) -> Object | None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        found = self.services.objects.get(service.key)
        if found is None or found.uid != service.uid:
            return None
        self.patches += 1
        value = found.to_dict()
        meta = patch.get("metadata", {})
        finalizers = set(value["metadata"].get("finalizers", ())) | set(meta.get("finalizers", ()))
        finalizers -= set(meta.get("$deleteFromPrimitiveList/finalizers", ()))
        value["metadata"]["finalizers"] = sorted(finalizers)
        if "status" in patch:
            ingress = patch["status"]["loadBalancer"]["ingress"]
            value["status"] = {"loadBalancer": {"ingress": ingress} if ingress else {}}
        if not finalizers and value["metadata"].get("deletionTimestamp"):
            return self.services.delete(value)
        return self.services.modify(value)


def has_finalizer(world: World, name: str) -> bool:
    return FINALIZER in world.get(name).object.meta.finalizers
