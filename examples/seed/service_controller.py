"""A service gets a load balancer that carries traffic, and loses it.

Does what `ServiceController.Run` does, with the embedded provider.
"""

import asyncio

from listwatch import APIServer, Client
from listwatch.controllers import ClientServices, LocalProvider, ServiceController
from listwatch.testing import ask, eventually, free_port, named_server


async def make_service(client: Client, port: int, backend: tuple[str, int]) -> None:
    """Create a service with one endpoint, and a node."""
    await client.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}})
    meta = {"name": "web", "namespace": "default"}
    spec = {"type": "LoadBalancer", "ports": [{"name": "main", "port": port}]}
    await client.create({"kind": "Service", "apiVersion": "v1", "metadata": meta, "spec": spec})
    labels = {"kubernetes.io/service-name": "web"}
    await client.create(
        {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"name": "web-1", "namespace": "default", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [backend[0]]}],
            "ports": [{"name": "main", "port": backend[1], "protocol": "TCP"}],
        }
    )


async def main() -> None:
    """Run the controller from a service's creation to its deletion."""
    async with (
        APIServer() as server,
        server.client() as client,
        named_server("backend") as backend,
        LocalProvider(endpoint_slices=client.list_watch("endpointslices")) as provider,
    ):
        controller = ServiceController(
            provider,
            ClientServices(client),
            client.list_watch("services"),
            client.list_watch("nodes"),
        )
        running = asyncio.ensure_future(controller.run())
        port = free_port()
        await make_service(client, port, backend)
        service = await client.wait_for(
            "services", "web", lambda it: it["status"]["loadBalancer"], "default", seconds=20
        )
        address = service["status"]["loadBalancer"]["ingress"][0]["ip"]
        print("finalizers:", *service.meta.finalizers)
        print("answer:", await eventually(lambda: ask((address, port))))
        await client.delete("services", "web", "default")
        await client.wait_for_deletion("services", "web", "default", seconds=20)
        print("deleted; answer:", await ask((address, port)) or "none")
        running.cancel()
        await asyncio.wait({running})


if __name__ == "__main__":
    asyncio.run(main())
