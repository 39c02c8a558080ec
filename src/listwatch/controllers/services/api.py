"""The requests of the service controller, and a client that sends them."""

from collections.abc import Mapping
from typing import Any, Protocol

from listwatch.cache.list_watch import ListerWatcher
from listwatch.client.client import Client, PatchType
from listwatch.controllers.services.service import Service
from listwatch.errors import InvalidError, NotFoundError
from listwatch.objects import Object
from listwatch.shard_range import ShardRange


class ListWatches:
    """Provides caches with the given list-watches, by resource."""

    def __init__(self, list_watches: Mapping[str, ListerWatcher]) -> None:
        self._list_watches = list_watches

    def list_watch(
        self,
        resource: str,
        namespace: str | None = None,  # noqa: ARG002 - required by the protocol
        *,
        label_selector: str = "",  # noqa: ARG002 - as above
        field_selector: str = "",  # noqa: ARG002 - as above
        metadata_only: bool = False,  # noqa: ARG002 - as above
        shard: ShardRange | None = None,  # noqa: ARG002 - as above
    ) -> ListerWatcher:
        """Return the list-watch of a resource."""
        return self._list_watches[resource]


class ServicesAPI(Protocol):
    """Changes services. May raise a client's exceptions; ends promptly when cancelled."""

    async def patch(self, service: Service, patch: Mapping[str, Any]) -> Object | None:
        """Merge a strategic patch into status and metadata of the service of this uid.

        Returns:
            The service as written; None if it is deleted, or another one has its name.
        """
        ...


class ClientServices:
    """Services through a client, in the client's event loop.

    Writes only through the subresource `status`: the controller may change nothing else.
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
