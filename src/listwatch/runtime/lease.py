"""A `coordination.k8s.io/v1` Lease as a record of its holder."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from listwatch.errors import ListWatchError
from listwatch.objects import Object
from listwatch.selector import subdomain_problems

if TYPE_CHECKING:
    from listwatch.client.client import Client

#: The resource of Leases, as clients name it.
LEASES = "leases.coordination.k8s.io"
LEASE_CANDIDATES = "leasecandidates.coordination.k8s.io"


class LeaseFormatError(ListWatchError):
    """A Lease whose fields have the wrong types."""


class LeaseClient(Protocol):
    """Reads and writes the Leases of one namespace.

    The methods may raise what a client raises: `StatusError`, `DisconnectedError`, `TimeoutError`.
    They must end promptly when cancelled.
    """

    async def get(self, name: str) -> Object:
        """Return the Lease; raise `NotFoundError` if there is none."""
        ...

    async def create(self, lease: Mapping[str, Any]) -> Object:
        """Create the Lease; raise `AlreadyExistsError` if it exists."""
        ...

    async def update(self, lease: Mapping[str, Any]) -> Object:
        """Replace the Lease of this name and version; raise `ConflictError` if it changed."""
        ...

    async def delete(self, name: str, *, resource_version: str) -> None:
        """Delete the Lease if it still has this version; raise `ConflictError` otherwise."""
        ...

    async def list(self, label_selector: str) -> Sequence[Object]:
        """Return the Leases with these labels."""
        ...


class ClientLeases:
    """The Leases of one namespace through a client, in the client's event loop.

    Args:
        client: sends the requests.
        namespace: of the leases.
        resource: LeaseCandidates can be read and written in the same way.
    """

    def __init__(self, client: "Client", namespace: str, resource: str = LEASES) -> None:
        self._client = client
        self._namespace = namespace
        self._resource = resource

    @property
    def candidates(self) -> "ClientLeases":
        """The LeaseCandidates of the namespace."""
        return ClientLeases(self._client, self._namespace, LEASE_CANDIDATES)

    async def get(self, name: str) -> Object:
        """Return the Lease."""
        return await self._client.get(self._resource, name, self._namespace)

    async def create(self, lease: Mapping[str, Any]) -> Object:
        """Create the Lease."""
        if "apiVersion" not in lease:
            served = await self._client.discovery.find(self._resource)
            lease = {**lease, "apiVersion": served.api_version}
        return await self._client.create(lease, resource=self._resource, namespace=self._namespace)

    async def update(self, lease: Mapping[str, Any]) -> Object:
        """Replace the Lease."""
        return await self._client.update(lease, resource=self._resource, namespace=self._namespace)

    async def delete(self, name: str, *, resource_version: str) -> None:
        """Delete this version of the Lease."""
        await self._client.delete(
            self._resource, name, self._namespace, resource_version=resource_version
        )

    async def list(self, label_selector: str) -> Sequence[Object]:
        """Return the Leases with these labels."""
        found = await self._client.list(
            self._resource, self._namespace, label_selector=label_selector
        )
        return found.items


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease's spec.

    Attributes:
        holder: the holder of the lease; empty if nobody holds it.
        duration: seconds without a renewal after which the holder counts as gone; 0 if unknown.
        acquired: when the holder acquired it, as RFC 3339 text.
        renewed: when the holder last renewed it. Only for people: never compared with a clock.
        transitions: how often it passed from one holder to another.
    """

    holder: str = ""
    duration: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0

    @classmethod
    def of(cls, lease: Object) -> "LeaseRecord":
        """Read the record of a Lease.

        Raises:
            LeaseFormatError: the Lease has fields of the wrong types.
        """
        spec = lease.get("spec")
        spec = spec if isinstance(spec, Mapping) else {}
        try:
            return msgspec.convert(
                {
                    ours: spec[theirs]
                    for ours, theirs in _FIELDS.items()
                    if spec.get(theirs) is not None
                },
                cls,
            )
        except msgspec.ValidationError as error:
            raise LeaseFormatError(f"Lease {lease.key} is malformed: {error}") from error

    def into(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the Lease with this record; other writers' fields stay."""
        spec = dict(lease.get("spec") or {})
        for ours, theirs in _FIELDS.items():
            value = getattr(self, ours)
            # Absent, not empty: a server may refuse an empty holder, and an empty time is invalid.
            if value == "":
                spec.pop(theirs, None)
            else:
                spec[theirs] = value
        return {**lease, "spec": spec}


_FIELDS = {
    "holder": "holderIdentity",
    "duration": "leaseDurationSeconds",
    "acquired": "acquireTime",
    "renewed": "renewTime",
    "transitions": "leaseTransitions",
}


def new_lease(
    namespace: str, name: str, record: LeaseRecord, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a Lease to create."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if labels:
        metadata["labels"] = dict(labels)
    return record.into(
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    )


def check_lease_name(name: str) -> None:
    """Raise a ValueError if an API server would refuse this as a Lease's name."""
    if problems := subdomain_problems(name):
        raise ValueError(f"{name!r} can't name a Lease: {problems[0]}")
