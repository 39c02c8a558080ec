"""The base of providers whose load balancers each have an address of a pool."""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Final, Generic, Literal, Self, TypeAlias, TypeVar

from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.reflector import Reflector
from listwatch.clock import Clock
from listwatch.controllers.failures import single_error
from listwatch.controllers.services.figures import LoadBalancerFigures, ProviderFigures
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import (
    Holders,
    ProviderError,
    default_load_balancer_name,
)
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.balancing import Backend, is_address
from listwatch.controllers.services.providers.claims import Claim, Wish
from listwatch.controllers.services.providers.endpoints import Endpoints
from listwatch.controllers.services.providers.frontend import (
    PortKey,
    node_port_backends,
    status_of,
)
from listwatch.controllers.services.providers.listening import AddressInUseError
from listwatch.controllers.services.service import LoadBalancerStatus, Service, ServicePort

_logger = logging.getLogger(__name__)

# Maximum addresses tried for a new load balancer whose ports are taken.
_ADDRESS_TRIES: Final = 16

BackendKind: TypeAlias = Literal["endpoint-slices", "node-ports"]


class LoadBalancer:
    """The load balancer of one service."""

    def __init__(self, service: Service, addresses: Sequence[str] = ()) -> None:
        self.service = service
        self.addresses = addresses
        self.nodes: Sequence[Node] = ()
        self.ports: dict[PortKey, ServicePort] = {}


B = TypeVar("B", bound=LoadBalancer)
T = TypeVar("T")


class PoolProvider(ABC, Generic[B]):
    """The part of a `LoadBalancerProvider` that manages addresses, backends and tasks.

    Used with `async with`; at the end its tasks have ended and its addresses are free. For one
    event loop.

    Args:
        pool: the addresses.
        backends: "endpoint-slices" connects directly to the endpoints; "node-ports" to the nodes'
            internal addresses, for clusters whose pods are unreachable from here.
        endpoint_slices: all of them; needed for "endpoint-slices".
        clock: the time.
    """

    def __init__(
        self,
        pool: AddressPool | None,
        *,
        backends: BackendKind,
        endpoint_slices: ListerWatcher | None,
        clock: Clock | None,
    ) -> None:
        if (backends == "endpoint-slices") != (endpoint_slices is not None):
            raise ValueError("give endpoint_slices= with backends='endpoint-slices', and only then")
        self._clock = clock or Clock()
        self._pool = AddressPool() if pool is None else pool
        self._slices = endpoint_slices
        self._endpoints = Endpoints(self._endpoints_changed)
        self._stack = contextlib.AsyncExitStack()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._balancers: dict[str, B] = {}
        self._by_key: dict[str, B] = {}

    @abstractmethod
    def _endpoints_changed(self, key: str) -> None:
        """Handle a possible change of a service's endpoints."""

    @abstractmethod
    async def _change_backends(self, balancer: B) -> None:
        """Apply the current backends of a load balancer."""

    # --- Life ---

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await self._begin(stack)
            self._group = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(self._end)
            if self._slices is not None:
                reflector = Reflector(
                    self._slices, self._endpoints, name="endpoint slices", clock=self._clock
                )
                _ = self._spawn(reflector.run())
            self._stack = stack.pop_all()
        return self

    async def _begin(self, stack: contextlib.AsyncExitStack) -> None:
        """Enter contexts that must start before all tasks and outlive them."""

    def _end(self) -> None:
        """End all tasks and forget all load balancers."""
        self._group = None
        for task in self._tasks:
            task.cancel()
        for uid in self._balancers:
            self._pool.release_all(uid)
        self._balancers.clear()
        self._by_key.clear()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # An exception of the body propagates unchanged; a task group would wrap it.
        with single_error():
            if isinstance(error, asyncio.CancelledError):
                await self._stack.__aexit__(kind, error, traceback)
            else:
                await self._stack.aclose()

    def _running(self) -> asyncio.TaskGroup:
        if self._group is None:
            raise ProviderError("use the provider within `async with`")
        return self._group

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        try:
            group = self._running()
        except ProviderError:
            work.close()
            raise
        try:
            task = group.create_task(work)
        except RuntimeError:  # the group is ending
            work.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- The interface ---

    def name(self, cluster: str, service: Service) -> str:  # noqa: ARG002 - required by the protocol
        """Return the load balancer's name."""
        return default_load_balancer_name(service)

    def use_holders(self, holders: Holders) -> None:
        """Set the lookup of services that have an address in their status."""
        self._pool.use_holders(holders)

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:  # noqa: ARG002 - as above
        """Return the status of a service's load balancer, or None if there is none."""
        balancer = self._balancers.get(service.uid)
        return None if balancer is None else status_of(balancer.addresses, balancer.ports)

    @abstractmethod
    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        """Create or update a service's load balancer, completely or not at all.

        Raises:
            ProviderError: no address or port is available, or the service asks for something
                unsupported.
        """

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Use these nodes from now on, if nodes are used at all."""
        balancer = self._balancers.get(service.uid)
        if balancer is None:
            await self.ensure(cluster, service, nodes)
            return
        balancer.nodes = nodes
        await self._change_backends(balancer)

    @abstractmethod
    def _figures_of(self, balancer: B) -> LoadBalancerFigures:
        """Return the figures of one load balancer."""

    def _figures(self) -> ProviderFigures:
        return ProviderFigures(
            load_balancers=[self._figures_of(one) for one in self._balancers.values()],
            pools={one.name: (self._pool.used(one), one.size) for one in self._pool.pools},
            misfits=sum(1 for _ in self._pool.misfits()),
        )

    # --- For subclasses ---

    async def _place(
        self, claim: Claim, service: Service, attempt: Callable[[str], Awaitable[object]]
    ) -> list[str]:
        """Return a service's new addresses, once an attempt with each succeeds.

        A service waits for an address that clients know; a new one may be any whose ports are free.
        The caller releases addresses that the service no longer has, with `AddressPool.keep`.

        Args:
            claim: what the service asks for.
            service: its status has the previous addresses.
            attempt: starts to use an address; if it raises, everything taken here is undone.

        Raises:
            ProviderError: a needed address is unavailable; nothing was taken.
        """
        balancer = self._balancers.get(service.uid)
        held = () if balancer is None else balancer.addresses
        told = [each.ip for each in service.status.ingress if is_address(each.ip)]
        placed: list[str] = []
        missing: list[ProviderError] = []
        try:
            for wish in claim.wishes:
                before = [ip for ip in (*held, *told) if ip not in placed]
                try:
                    placed.append(await self._place_one(claim, wish, before, attempt))
                except ProviderError as error:
                    missing.append(error)
                    if wish.required or len(missing) == len(claim.wishes):
                        raise
        except BaseException:
            for address in placed:
                if address not in held:
                    self._pool.release(claim.uid, address)
            raise
        return placed

    async def _place_one(
        self,
        claim: Claim,
        wish: Wish,
        before: Sequence[str],
        attempt: Callable[[str], Awaitable[object]],
    ) -> str:
        for address in before:
            if wish.accepts(address) and self._pool.may_keep(claim, address):
                await attempt(address)
                return address
        candidates = self._pool.candidates(claim, wish, before)
        for tries, address in enumerate(candidates, 1):
            self._pool.take(claim, address)
            try:
                await attempt(address)
            except BaseException as error:
                self._pool.release(claim.uid, address)
                if not isinstance(error, AddressInUseError):
                    raise
                if wish.address is not None or address in before or tries >= _ADDRESS_TRIES:
                    raise
                _logger.info("service %s: %s, another address is tried", claim.key, error)
            else:
                return address
        raise ProviderError("no free address is left")  # usually the pool raises this before

    @property
    def needs_nodes(self) -> bool:
        """Return whether traffic goes through nodes."""
        return self._slices is None

    def _health_port(self, service: Service) -> int:
        """Return the port on which nodes report whether they have endpoints of a service, or 0."""
        if self.needs_nodes and service.spec.external_traffic_policy == "Local":
            return service.spec.health_check_node_port
        return 0

    def _backends(self, balancer: B, port: ServicePort) -> list[Backend]:
        service = balancer.service
        if self._slices is None:
            return node_port_backends(port, balancer.nodes, service)
        return self._endpoints.backends(service.key, port, service.spec.ip_families)
