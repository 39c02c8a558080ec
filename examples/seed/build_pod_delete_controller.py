"""Fails a running build that lost its pod, once before the watch and once during it.

Does what `BuildPodControllerFactory.CreateDeleteController` does.
"""

import asyncio
from typing import Any

from listwatch import APIServer, Client
from listwatch.controllers import BuildPodControllerFactory, ClientBuilds

LABEL = "openshift.io/build.name"
#: Builds as a custom resource, for a cluster that is not OpenShift.
DEFINITION: dict[str, Any] = {
    "kind": "CustomResourceDefinition",
    "apiVersion": "apiextensions.k8s.io/v1",
    "metadata": {"name": "builds.build.openshift.io"},
    "spec": {
        "group": "build.openshift.io",
        "scope": "Namespaced",
        "names": {"plural": "builds", "singular": "build", "kind": "Build"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


async def make_build(client: Client, name: str, *, pod: bool) -> None:
    """Create a running build, with its pod or without."""
    meta = {"name": name, "namespace": "default"}
    build = {"kind": "Build", "apiVersion": "build.openshift.io/v1", "metadata": meta}
    made = await client.create({**build, "status": {"phase": "Running"}})
    if pod:
        owner = {"kind": "Build", "apiVersion": made.api_version, "name": name, "uid": made.uid}
        marks = {"labels": {LABEL: name}, "annotations": {LABEL: name}, "ownerReferences": [owner]}
        spec = {"containers": [{"name": "build", "image": "builder"}]}
        meta = {"name": f"{name}-build", "namespace": "default"}
        await client.create(
            {"kind": "Pod", "apiVersion": "v1", "metadata": {**meta, **marks}, "spec": spec}
        )


async def failed(client: Client, name: str) -> str:
    """Wait until a build has failed, and return why."""
    build = await client.wait_for(
        "builds", name, lambda build: build["status"]["phase"] == "Error", "default", seconds=20
    )
    return f"{build['status']['reason']}: {build['status']['message']}"


async def main() -> None:
    """Run the controller until both builds have failed."""
    async with APIServer() as server, server.client() as client:
        await client.create(DEFINITION)
        builds = client.list_watch("builds")
        await client.wait_for("crds", DEFINITION["metadata"]["name"], "Established", seconds=20)
        await make_build(client, "lost-before", pod=False)
        await make_build(client, "loses-now", pod=True)

        controller = BuildPodControllerFactory(
            ClientBuilds(client), client.list_watch("pods", label_selector=LABEL), builds
        ).create_delete_controller()
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(controller.run_until(stop))
            print("lost-before", await failed(client, "lost-before"))
            await client.delete("pods", "loses-now-build", "default", grace_period_seconds=0)
            print("loses-now", await failed(client, "loses-now"))
            stop.set()


if __name__ == "__main__":
    asyncio.run(main())
