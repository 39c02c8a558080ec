"""A `coordination.k8s.io/v1` Lease as a record of who holds it."""

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


class LeaseFormatError(ListWatchError):
    """A Lease whose fields have other types than the API gives them."""


class LeaseClient(Protocol):
    """Reads and writes the Leases of one namespace.

    What any of these may raise is what a client raises: `StatusError`, `DisconnectedError`,
    `TimeoutError`. All must end promptly when they are cancelled.
    """

    async def get(self, name: str) -> Object:
        """Return the Lease; `NotFoundError` if there is none."""
        ...

    async def create(self, lease: Mapping[str, Any]) -> Object:
        """Create the Lease; `AlreadyExistsError` if there is one."""
        ...

    async def update(self, lease: Mapping[str, Any]) -> Object:
        """Replace the Lease of this name and resourceVersion; `ConflictError` if that changed."""
        ...

    async def delete(self, name: str, *, resource_version: str) -> None:
        """Delete the Lease if it still has this version; `ConflictError` if not."""
        ...

    async def list(self, label_selector: str) -> Sequence[Object]:
        """Return the Leases with these labels."""
        ...


class ClientLeases:
    """The Leases of one namespace by way of a client, in whose event loop it is used."""

    def __init__(self, client: "Client", namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def get(self, name: str) -> Object:
        """Return the Lease."""
        return await self._client.get(LEASES, name, self._namespace)

    async def create(self, lease: Mapping[str, Any]) -> Object:
        """Create the Lease."""
        return await self._client.create(lease, resource=LEASES, namespace=self._namespace)

    async def update(self, lease: Mapping[str, Any]) -> Object:
        """Replace the Lease."""
        return await self._client.update(lease, resource=LEASES, namespace=self._namespace)

    async def delete(self, name: str, *, resource_version: str) -> None:
        """Delete this version of the Lease."""
        await self._client.delete(LEASES, name, self._namespace, resource_version=resource_version)

    async def list(self, label_selector: str) -> Sequence[Object]:
        """Return the Leases with these labels."""
        found = await self._client.list(LEASES, self._namespace, label_selector=label_selector)
        return found.items


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease's spec.

    Attributes:
        holder: who holds the lease; empty when nobody does.
        duration: seconds after which a holder that has not renewed counts as gone; 0 is unknown.
        acquired: when the holder took it, as RFC 3339 text.
        renewed: when the holder renewed it last. Only for people: nobody compares it with a clock.
        transitions: how often it went from one holder to another.
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
            LeaseFormatError: the Lease holds something else.
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
        """Return a copy of the Lease with this record; fields of other writers stay."""
        spec = dict(lease.get("spec") or {})
        for ours, theirs in _FIELDS.items():
            value = getattr(self, ours)
            # Absent, not empty: a server may refuse an empty holder, and an empty time is no time.
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
