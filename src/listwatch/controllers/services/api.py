"""The requests of the service controller, and a client that sends them."""

from collections.abc import Mapping
from typing import Any, Protocol

from listwatch.client.client import Client, PatchType
from listwatch.controllers.services.service import Service
from listwatch.errors import InvalidError, NotFoundError
from listwatch.objects import Object


class ServicesAPI(Protocol):
    """Changes services. May raise what a client raises; ends promptly when cancelled."""

    async def patch(self, service: Service, patch: Mapping[str, Any]) -> Object | None:
        """Merge a strategic patch into status and metadata of the service of this uid.

        Returns:
            The service as written; None if it is deleted, or another one has its name.
        """
        ...


class ClientServices:
    """Services through a client, in the client's event loop.

    Writes only through the subresource `status`, which is all that the controller may change.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def patch(self, service: Service, patch: Mapping[str, Any]) -> Object | None:
        """Merge a strategic patch into status and metadata of the service of this uid."""
        meta = {**patch.get("metadata", {}), "uid": service.uid}
        try:
            return await self._client.patch(
                "services.v1.",
                service.object.name,
                {**patch, "metadata": meta},
                service.object.namespace,
                type=PatchType.STRATEGIC,
                subresource="status",
            )
        except NotFoundError:
            return None
        except InvalidError as error:
            # A uid can't change, so another service has the name.
            if any(cause.get("field") == "metadata.uid" for cause in error.causes):
                return None
            raise
