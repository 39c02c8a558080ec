"""What the build controllers ask of an API server, and a client that does it."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from listwatch.client.client import Client
from listwatch.errors import ConflictError, NotFoundError
from listwatch.objects import Object

#: Changes a build, given as a dict of one's own; tells whether there was anything to change.
MutateBuild: TypeAlias = Callable[[dict[str, Any]], bool]


class BuildsAPI(Protocol):
    """Builds and pods, as the server has them now.

    Everything may raise what a client raises, and ends promptly when cancelled.
    """

    async def get_build(self, namespace: str, name: str) -> Object | None:
        """Return a build, or None if there is none."""
        ...

    async def get_pod(self, namespace: str, name: str) -> Object | None:
        """Return a pod, or None if there is none."""
        ...

    async def change_build(self, namespace: str, name: str, mutate: MutateBuild) -> Object | None:
        """Read a build, change it, write it, and begin anew when somebody else was faster.

        Returns:
            The build as written; None if there is none, or nothing was to be changed.
        """
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Delete the pod of this uid; tell whether it was there."""
        ...


class ClientBuilds:
    """Builds and pods by way of a client, in whose event loop it is used.

    Args:
        client: speaks to the server.
        resource: which word means the builds.
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
        """Read a build, change it, write it, and begin anew when somebody else was faster."""
        changes = False

        def change(build: dict[str, Any]) -> None:
            nonlocal changes
            changes = mutate(build)

        resource = await self._client.discovery.find(self._builds)
        # OpenShift takes the status with the rest; a definition may have made it a subresource.
        subresource = "status" if "status" in resource.subresources else ""
        try:
            build = await self._client.update_existing(
                resource, name, change, namespace, subresource=subresource
            )
        except NotFoundError:
            return None
        return build if changes else None

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Delete the pod of this uid; tell whether it was there."""
        try:
            await self._client.delete("pods.v1.", name, namespace, uid=uid)
        except (NotFoundError, ConflictError):  # a conflict: another pod has the name by now
            return False
        return True
