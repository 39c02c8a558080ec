"""A server with running pods and a fake clock, for tests of workloads."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.workloads.options import Workloads
from listwatch.clock import FakeClock

PATHS: Mapping[str, str] = {
    "pods": "/api/v1/namespaces/default/pods",
    "services": "/api/v1/namespaces/default/services",
    "endpoints": "/api/v1/namespaces/default/endpoints",
    "claims": "/api/v1/namespaces/default/persistentvolumeclaims",
    "rcs": "/api/v1/namespaces/default/replicationcontrollers",
    "quotas": "/api/v1/namespaces/default/resourcequotas",
    "nodes": "/api/v1/nodes",
    "slices": "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
    "deployments": "/apis/apps/v1/namespaces/default/deployments",
    "replicasets": "/apis/apps/v1/namespaces/default/replicasets",
    "statefulsets": "/apis/apps/v1/namespaces/default/statefulsets",
    "daemonsets": "/apis/apps/v1/namespaces/default/daemonsets",
    "revisions": "/apis/apps/v1/namespaces/default/controllerrevisions",
    "jobs": "/apis/batch/v1/namespaces/default/jobs",
    "budgets": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "events": "/api/v1/namespaces/default/events",
    "cronjobs": "/apis/batch/v1/namespaces/default/cronjobs",
}


class Cluster:
    """Reads and writes objects in the namespace `default`; a write waits until nothing changes."""

    def __init__(self, server: EmbeddedAPIServer, client: Client, clock: FakeClock) -> None:
        self.server = server
        self.client = client
        self.clock = clock

    async def create(self, what: str, name: str, **fields: Any) -> Any:
        made = await self.client.create(PATHS[what], name, **fields)
        await self.clock.settle()
        return made

    async def patch(self, what: str, name: str, patch: Any, subresource: str = "") -> Any:
        path = f"{PATHS[what]}/{name}{subresource and '/'}{subresource}"
        changed = await self.client.merge(path, patch)
        await self.clock.settle()
        return changed

    async def delete(self, what: str, name: str, **options: Any) -> Any:
        gone = await self.client.call("DELETE", f"{PATHS[what]}/{name}", options, expect=200)
        await self.clock.settle()
        return gone

    async def get(self, what: str, name: str) -> Any:
        return await self.client.call("GET", f"{PATHS[what]}/{name}", expect=200)

    async def all(self, what: str) -> list[Any]:
        items: list[Any] = (await self.client.call("GET", PATHS[what], expect=200))["items"]
        return items

    async def names(self, what: str) -> list[str]:
        return [each["metadata"]["name"] for each in await self.all(what)]

    async def status(self, what: str, name: str) -> Any:
        return (await self.get(what, name)).get("status") or {}


@asynccontextmanager
async def cluster(**options: Any) -> AsyncIterator[Cluster]:
    """Yield a cluster whose pods run as `Workloads(**options)` says."""
    clock = FakeClock()
    server = EmbeddedAPIServer(clock=clock, seed=1, workloads=Workloads(**options))
    async with server, Client(server) as client:
        await clock.settle()
        yield Cluster(server, client, clock)


def template(name: str = "web", image: str = "web:1", **spec: Any) -> dict[str, Any]:
    """Return a pod template with the label `app`."""
    containers = spec.pop("containers", [{"name": "c", "image": image}])
    annotations = spec.pop("annotations", None)
    metadata: dict[str, Any] = {"labels": {"app": name}}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def workload(name: str = "web", replicas: int = 3, **spec: Any) -> dict[str, Any]:
    """Return the spec of a Deployment or a similar workload."""
    return {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": template(name),
        **spec,
    }


def conditions(obj: Any) -> dict[str, tuple[str, str]]:
    """Return the status and reason of an object's conditions, by type."""
    return {
        each["type"]: (each["status"], each.get("reason", ""))
        for each in obj["status"].get("conditions") or ()
    }
