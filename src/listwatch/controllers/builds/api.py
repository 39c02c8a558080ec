"""The requests of the build controllers, and a client that sends them."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from listwatch.client.client import Client
from listwatch.errors import ConflictError, NotFoundError
from listwatch.objects import Object

#: Changes a build, given as a new dict; returns whether anything changed.
MutateBuild: TypeAlias = Callable[[dict[str, Any]], bool]


class BuildsAPI(Protocol):
    """Builds and pods, in their current state on the server.

    All methods may raise a client's exceptions, and end promptly when cancelled.
    """

    async def get_build(self, namespace: str, name: str) -> Object | None:
        """Return a build, or None if there is none."""
        ...

    async def get_pod(self, namespace: str, name: str) -> Object | None:
        """Return a pod, or None if there is none."""
        ...

    async def change_build(self, namespace: str, name: str, mutate: MutateBuild) -> Object | None:
        """Read a build, change it and write it, starting over on a conflict.

        Returns:
            The build as written; None if it does not exist, or nothing changed.
        """
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Delete the pod of this uid; return whether it existed."""
        ...


class ClientBuilds:
    """Builds and pods through a client, in the client's event loop.

    Args:
        client: sends the requests.
        resource: name of the builds' resource.
    """

    def __init__(self, client: Client, resource: str = "builds.build.openshift.io") -> None:
        self._client = client
        self._builds = resource

    async def get_build(self, namespace: str, name: str) -> Object | None:
        """Return a build, or None if there is none."""
        try:
            return await self._client.get(self._builds, name, namespace)
        except NotFoundError:
            return None

    async def get_pod(self, namespace: str, name: str) -> Object | None:
        """Return a pod, or None if there is none."""
        try:
            return await self._client.get("pods.v1.", name, namespace)
        except NotFoundError:
            return None

    async def change_build(self, namespace: str, name: str, mutate: MutateBuild) -> Object | None:
        """Read a build, change it and write it, starting over on a conflict."""
        changes = False

        def change(build: dict[str, Any]) -> None:
            nonlocal changes
            changes = mutate(build)

        resource = await self._client.discovery.find(self._builds)
        # OpenShift accepts the status with the rest; a CRD may make it a subresource.
        subresource = "status" if "status" in resource.subresources else ""
        try:
            build = await self._client.update_existing(
                resource, name, change, namespace, subresource=subresource
            )
        except NotFoundError:
            return None
        return build if changes else None

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Delete the pod of this uid; return whether it existed."""
        try:
            await self._client.delete("pods.v1.", name, namespace, uid=uid)
        except (NotFoundError, ConflictError):  # a conflict: another pod has the name by now
            return False
        return True
