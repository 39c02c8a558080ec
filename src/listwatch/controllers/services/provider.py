"""The interface between the service controller and a load balancer provider.

`docs/load-balancers.md` says how to write a provider, and
`listwatch.testing.load_balancer_conformance` checks one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.service import LoadBalancerStatus, Service
from listwatch.errors import ListWatchError


class ProviderError(ListWatchError):
    """A provider can't do what a service asks for; the message says why, and what to do."""


class ImplementedElsewhereError(ProviderError):
    """Another controller handles this service; ours leaves it alone."""


class RetryAfterError(ProviderError):
    """Not ready yet: try again later. Does not count as a failure.

    Args:
        message: the reason for the wait.
        seconds: until the next try.
    """

    def __init__(self, message: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(message)


class AddressTakenError(ProviderError):
    """The requested address, or every address, is taken; retried when an address is freed."""


#: Returns the services whose status has an address, oldest first.
Holders: TypeAlias = Callable[[str], Iterable[Service]]


@runtime_checkable
class KeepsAddresses(Protocol):
    """A provider that gives each service its own addresses."""

    def use_holders(self, holders: Holders) -> None:
        """Set the lookup of services that have an address in their status.

        Called once, before any load balancer is requested. From then on the lookup knows the status
        of every service; do not give an address in it to any other service. A change takes effect
        before the services that it concerns are processed.
        """
        ...


@runtime_checkable
class OutlivesController(Protocol):
    """A provider whose load balancers may be those of a previous controller."""

    async def forget_others(self, cluster: str, uids: Collection[str]) -> None:
        """Remove the load balancers of services that no longer exist.

        Called once, before any load balancer is requested. A failure must not be raised: the
        provider removes them later.

        Args:
            cluster: the cluster's name.
            uids: of the services whose load balancers the controller makes or removes.
        """
        ...


@runtime_checkable
class MayNeedNoNodes(Protocol):
    """A provider whose traffic may bypass nodes."""

    @property
    def needs_nodes(self) -> bool:
        """Return whether a load balancer without nodes serves no traffic."""
        ...


class LoadBalancerProvider(Protocol):
    """Creates, updates and removes load balancers: Go's `cloudprovider.LoadBalancer`.

    The controller calls all methods in its own event loop, for several services at once but never
    twice at once for one. A call may take long, and is cancelled after the controller's time-out.
    The next call, after a back-off, must find what the cancelled one has created. Users see an
    exception's message in an event, so the message should say what to do.
    """

    def name(self, cluster: str, service: Service) -> str:
        """Return the load balancer's name, which never changes for a uid."""
        ...

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        """Return the status of a service's load balancer, or None if there is none."""
        ...

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        """Create or update a load balancer, and return its status.

        Called again with the same arguments it changes nothing; connections through unchanged parts
        continue. Keep an address that `service.status` has, if possible.

        Raises:
            ImplementedElsewhereError: another controller handles the service.
            RetryAfterError: not ready yet.
            AddressTakenError: the needed address is taken.
            Exception: anything else is a failure.
        """
        ...

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Use these nodes from now on; connections to remaining nodes continue.

        Raises:
            As `ensure`.
        """
        ...

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Remove a load balancer completely, including a half-created one.

        If there is none, do nothing and raise nothing.

        Raises:
            Exception: something is left; the controller calls again.
        """
        ...


def default_load_balancer_name(service: Service) -> str:
    """Return "a" and the uid without hyphens, cut to 32 characters, as clouds require."""
    return f"a{service.uid.replace('-', '')}"[:32]
