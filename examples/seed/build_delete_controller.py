"""Deletes a build's pod after the build; a new build of the same name keeps its pod.

Does what `BuildControllerFactory.CreateDeleteController` does.
"""

import asyncio

from listwatch import APIServer, Client, NotFoundError
from listwatch.client import UnknownResourceError
from listwatch.controllers import BuildControllerFactory, ClientBuilds

LABEL = "openshift.io/build.name"
#: Builds as a custom resource, for a cluster that is not OpenShift.
DEFINITION = {
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


async def make_build(client: Client) -> None:
    """Create a build and its pod, without an owner reference that garbage collection would use."""
    meta = {"name": "app-1", "namespace": "default"}
    await client.create({"kind": "Build", "apiVersion": "build.openshift.io/v1", "metadata": meta})
    marks = {"labels": {LABEL: "app-1"}, "annotations": {LABEL: "app-1"}}
    spec = {"containers": [{"name": "build", "image": "builder"}]}
    meta = {"name": "app-1-build", "namespace": "default"}
    await client.create(
        {"kind": "Pod", "apiVersion": "v1", "metadata": {**meta, **marks}, "spec": spec}
    )


async def main() -> None:
    """Run the controller while builds come and go."""
    async with APIServer() as server, server.client() as client:
        await client.create(DEFINITION)
        builds = client.list_watch("builds")
        while True:  # the server starts to serve them in its own time
            try:
                await builds.resource()
                break
            except UnknownResourceError:
                await asyncio.sleep(0.02)
        await make_build(client)

        controller = BuildControllerFactory(
            ClientBuilds(client), builds, client.list_watch("pods", label_selector=LABEL)
        ).create_delete_controller()
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(controller.run_until(stop))
            await client.delete("builds", "app-1", "default")
            try:
                while True:
                    pod = await client.get("pods", "app-1-build", "default")
                    if pod.meta.deletion_timestamp is not None:
                        # Its grace period runs, because no kubelet ends it here.
                        await client.delete(
                            "pods", "app-1-build", "default", grace_period_seconds=0
                        )
                    await asyncio.sleep(0.02)
            except NotFoundError:
                print("the pod of the deleted build is gone")

            await make_build(client)
            while controller.statistics().queue.depth:  # noqa: ASYNC110 - the server's and controller's doing
                await asyncio.sleep(0.02)
            pod = await client.get("pods", "app-1-build", "default")
            if pod.meta.deletion_timestamp is None:
                print("the pod of the new build stays")
            stop.set()


if __name__ == "__main__":
    asyncio.run(main())
