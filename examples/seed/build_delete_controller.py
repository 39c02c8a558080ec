"""Deletes a build's pod after the build; a new build of the same name keeps its pod.

Does what `BuildControllerFactory.CreateDeleteController` does.
"""

import asyncio
from typing import Any

from listwatch import APIServer, Client, Object
from listwatch.controllers import BuildControllerFactory, ClientBuilds, DeleteController
from listwatch.testing import eventually

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


def has_handled(controller: DeleteController, build: Object) -> bool:
    """Return whether a controller has seen a build, and nothing is left to do."""
    state = controller.statistics()
    seen = int(state.reflector.resource_version or 0)
    return seen >= int(build.resource_version) and not state.queue.depth


async def make_build(client: Client) -> Object:
    """Create a build and its pod, without an owner reference that garbage collection would use."""
    meta = {"name": "app-1", "namespace": "default"}
    made = await client.create(
        {"kind": "Build", "apiVersion": "build.openshift.io/v1", "metadata": meta}
    )
    marks = {"labels": {LABEL: "app-1"}, "annotations": {LABEL: "app-1"}}
    spec = {"containers": [{"name": "build", "image": "builder"}]}
    meta = {"name": "app-1-build", "namespace": "default"}
    await client.create(
        {"kind": "Pod", "apiVersion": "v1", "metadata": {**meta, **marks}, "spec": spec}
    )
    return made


async def main() -> None:
    """Run the controller while builds come and go."""
    async with APIServer() as server, server.client() as client:
        await client.create(DEFINITION)
        builds = client.list_watch("builds")
        await client.wait_for("crds", DEFINITION["metadata"]["name"], "Established", seconds=20)
        await make_build(client)

        controller = BuildControllerFactory(
            ClientBuilds(client), builds, client.list_watch("pods", label_selector=LABEL)
        ).create_delete_controller()
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(controller.run_until(stop))
            await client.delete("builds", "app-1", "default")
            await client.wait_for_deletion("pods", "app-1-build", "default", seconds=20)
            print("the pod of the deleted build is gone")

            made = await make_build(client)
            await eventually(lambda: has_handled(controller, made), "the new build is known")
            pod = await client.get("pods", "app-1-build", "default")
            if pod.meta.deletion_timestamp is None:
                print("the pod of the new build stays")
            stop.set()


if __name__ == "__main__":
    asyncio.run(main())
