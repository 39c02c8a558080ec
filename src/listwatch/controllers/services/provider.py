"""What makes load balancers: the interface between the service controller and a provider.

`docs/load-balancers.md` says how to write one, and `listwatch.testing.load_balancer_conformance`
checks one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.service import LoadBalancerStatus, Service
from listwatch.errors import ListWatchError


class ProviderError(ListWatchError):
    """A provider can't do what a service asks for; the message says why and what would help."""


class ImplementedElsewhereError(ProviderError):
    """Something else takes care of this service; the controller leaves it alone."""


class RetryAfterError(ProviderError):
    """Not yet: try again after a time, which is no failure.

    Args:
        message: what is waited for.
        seconds: until the next try.
    """

    def __init__(self, message: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(message)


class AddressTakenError(ProviderError):
    """Others have the address, or all of them; the controller calls again when one is let go."""


#: Gives the services whose status tells an address, the oldest first.
Holders: TypeAlias = Callable[[str], Iterable[Service]]


@runtime_checkable
class KeepsAddresses(Protocol):
    """A provider that gives each service addresses of its own, and must give none twice."""

    def use_holders(self, holders: Holders) -> None:
        """Take what tells which services have an address in their status.

        Called once, before any load balancer is asked for. From then on it always knows the status
        of every service, so an address that any of them tells is given to no other one. A change
        is in force before the services that it concerns are worked on.
        """
        ...


class LoadBalancerProvider(Protocol):
    """Makes, changes and removes load balancers: Go's `cloudprovider.LoadBalancer`.

    The controller calls everything in its own event loop, for several services at once but never
    twice at once for one. A call may take long, and is cancelled after the controller's
    time-out; what it has done by then must be found by the next one, which comes with a backoff.
    What it raises is told to users in an event, so the message should name the remedy.
    """

    def name(self, cluster: str, service: Service) -> str:
        """Return the load balancer's name, the same for one uid at all times."""
        ...

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        """Return where a service's load balancer is reached, or None if there is none."""
        ...

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        """Make a load balancer, or change the one that is there, and return where it is reached.

        Called again with the same arguments it changes nothing; connections through what stays
        are kept. An address that `service.status` tells is kept where that is possible.

        Raises:
            ImplementedElsewhereError: not this provider's service.
            RetryAfterError: not ready yet.
            AddressTakenError: an address is lacking, which others have.
            Exception: anything else is a failure.
        """
        ...

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Send to these nodes from now on; connections to nodes that stay are kept.

        Raises:
            As `ensure`.
        """
        ...

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Remove a load balancer with all that belongs to it, also what is half made.

        Nothing is to be done, and nothing raised, where there is none.

        Raises:
            Exception: something is left; the controller calls again.
        """
        ...


def default_load_balancer_name(service: Service) -> str:
    """Return "a" and the uid without hyphens, cut to 32 characters: what clouds take."""
    return f"a{service.uid.replace('-', '')}"[:32]
