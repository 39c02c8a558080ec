"""The embedded provider: a proxy in this process for each service, on an address of a pool."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.reflector import Reflector
from listwatch.clock import Clock
from listwatch.controllers.failures import single_error
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import ProviderError, default_load_balancer_name
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.balancing import Backend, Balancer
from listwatch.controllers.services.providers.endpoints import Endpoints
from listwatch.controllers.services.providers.frontend import (
    PortKey,
    node_port_backends,
    ports_of,
    rules_of,
    status_of,
)
from listwatch.controllers.services.providers.health import failing
from listwatch.controllers.services.providers.listening import (
    AddressInUseError,
    Listener,
    ListenerStatistics,
    Rules,
)
from listwatch.controllers.services.providers.tcp import TCPListener
from listwatch.controllers.services.providers.udp import UDPListener
from listwatch.controllers.services.service import LoadBalancerStatus, Service, ServicePort

_logger = logging.getLogger(__name__)

# How many addresses are tried for a new load balancer whose ports others use.
_ADDRESS_TRIES: Final = 16


class LocalProviderStatistics(msgspec.Struct, frozen=True):
    """The figures of a local provider at one moment.

    Attributes:
        load_balancers: how many there are.
        listeners: ports that are served.
        addresses: of the pool that are in use.
        backends: of all ports together.
        failed_backends: of these, those that are passed over.
        draining: ports that are served no more and whose connections go on.
        traffic: of all ports that are served now.
    """

    load_balancers: int
    listeners: int
    addresses: int
    backends: int
    failed_backends: int
    draining: int
    traffic: ListenerStatistics


class _LoadBalancer:
    """What one service has."""

    def __init__(self, service: Service, address: str) -> None:
        self.service = service
        self.address = address
        self.nodes: Sequence[Node] = ()
        self.listeners: dict[PortKey, Listener] = {}
        self.ports: dict[PortKey, ServicePort] = {}
        self.checks: asyncio.Task[None] | None = None


class LocalProvider:
    """Makes load balancers of TCP and UDP proxies in this process: a `LoadBalancerProvider`.

    Use it as `async with LocalProvider(...) as provider:`; at the end everything is closed.

    Connections are kept while backends, ports or rules change around them; those to a backend
    that was removed, or of a service that was deleted, may end within `drain_seconds`. A service
    keeps its address over restarts: it is read from its status, and else found by its uid.

    For one event loop.

    Args:
        pool: the addresses.
        backends: "endpoint-slices" sends straight to the endpoints; "node-ports" to the nodes'
            internal addresses, for clusters whose pods can't be reached from here.
        endpoint_slices: all of them; needed for "endpoint-slices".
        health_check_seconds: between two checks of a backend; 0 for none beside the connections.
        drain_seconds: see above.
        clock: the time.
    """

    def __init__(
        self,
        pool: AddressPool | None = None,
        *,
        backends: Literal["endpoint-slices", "node-ports"] = "endpoint-slices",
        endpoint_slices: ListerWatcher | None = None,
        health_check_seconds: float = 10.0,
        drain_seconds: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        if (backends == "endpoint-slices") != (endpoint_slices is not None):
            raise ValueError(
                "endpoint_slices= is needed for backends='endpoint-slices', and for nothing else"
            )
        self._clock = clock or Clock()
        self._pool = AddressPool() if pool is None else pool
        self._slices = endpoint_slices
        self._endpoints = Endpoints(self._refresh_key)
        self._health_check_seconds = health_check_seconds
        self._drain_seconds = drain_seconds
        self._stack = AsyncExitStack()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._balancers: dict[str, _LoadBalancer] = {}
        self._by_key: dict[str, _LoadBalancer] = {}
        self._draining: list[Listener] = []

    # --- Life ---

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(asyncio.TaskGroup())
        if self._slices is not None:
            reflector = Reflector(
                self._slices, self._endpoints, name="endpoint slices", clock=self._clock
            )
            self._reflecting = self._spawn(reflector.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for balancer in list(self._balancers.values()):
            self._close(balancer, drain=False)
            self._pool.release(balancer.address)
        self._balancers.clear()
        for listener in self._draining:
            listener.close(drain=False)
        self._draining.clear()
        for task in self._tasks:
            task.cancel()
        self._group = None
        # What the body raised goes on as it is; a task group would wrap it.
        with single_error():
            if isinstance(error, asyncio.CancelledError):
                await self._stack.__aexit__(kind, error, traceback)
            else:
                await self._stack.aclose()

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        if self._group is None:
            work.close()
            raise ProviderError("the provider runs within `async with` only")
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def statistics(self) -> LocalProviderStatistics:
        """Return the figures of this moment."""
        self._draining = [one for one in self._draining if one.statistics().open]
        listeners = [
            listener
            for balancer in self._balancers.values()
            for listener in balancer.listeners.values()
        ]
        figures = [msgspec.structs.astuple(listener.statistics()) for listener in listeners]
        return LocalProviderStatistics(
            len(self._balancers),
            len(listeners),
            len(self._pool),
            sum(len(listener.balancer.backends) for listener in listeners),
            sum(len(listener.balancer.failed) for listener in listeners),
            len(self._draining),
            ListenerStatistics(*map(sum, zip(*figures, strict=True)))
            if figures
            else ListenerStatistics(0, 0, 0, 0, 0, 0),
        )

    # --- The provider's interface ---

    def name(self, cluster: str, service: Service) -> str:  # noqa: ARG002 - the protocol's
        """Return the load balancer's name."""
        return default_load_balancer_name(service)

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:  # noqa: ARG002 - as above
        """Return where a service's load balancer is reached, or None if there is none."""
        balancer = self._balancers.get(service.uid)
        return None if balancer is None else status_of(balancer.address, balancer.listeners)

    async def ensure(
        self,
        cluster: str,  # noqa: ARG002 - as above
        service: Service,
        nodes: Sequence[Node],
    ) -> LoadBalancerStatus:
        """Make or change a service's load balancer, all of it or nothing.

        Raises:
            ProviderError: no address or port can be had, or the service asks for what can't be.
        """
        if self._group is None:
            raise ProviderError("the provider runs within `async with` only")
        rules = rules_of(service)
        ports = ports_of(service)
        balancer = self._balancers.get(service.uid)
        wanted = service.spec.load_balancer_ip
        if balancer is not None and wanted in {"", balancer.address}:
            await self._change(balancer, service, ports, rules)
        else:
            made = await self._make(service, ports, rules)
            if balancer is not None:
                self._remove(balancer)
            balancer = self._balancers[service.uid] = made
        self._by_key[service.key] = balancer
        balancer.nodes = nodes
        self._refresh(balancer)
        if balancer.checks is None and self._health_check_seconds:
            balancer.checks = self._spawn(self._check_forever(balancer))
        return status_of(balancer.address, balancer.listeners)

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Send to these nodes from now on, where nodes are sent to at all."""
        balancer = self._balancers.get(service.uid)
        if balancer is None:
            await self.ensure(cluster, service, nodes)
            return
        balancer.nodes = nodes
        self._refresh(balancer)

    async def ensure_deleted(self, cluster: str, service: Service) -> None:  # noqa: ARG002 - as above
        """Close a service's ports and give its address back; connections may end in time."""
        balancer = self._balancers.pop(service.uid, None)
        if balancer is not None:
            self._remove(balancer)

    # --- Making ---

    async def _make(
        self, service: Service, ports: dict[PortKey, ServicePort], rules: Rules
    ) -> _LoadBalancer:
        before = next((i.ip for i in service.status.ingress if i.ip), "")
        candidates = self._pool.candidates(service.uid, service.spec.load_balancer_ip, before)
        tries = 0
        for address in candidates:
            self._pool.take(service.uid, address)
            balancer = _LoadBalancer(service, address)
            try:
                await self._change(balancer, service, ports, rules)
            except AddressInUseError as error:
                self._pool.release(address)
                tries += 1
                # An address that clients know is waited for; a new one may be any.
                if address in {service.spec.load_balancer_ip, before} or tries >= _ADDRESS_TRIES:
                    raise
                _logger.info("service %s: %s, another address is tried", service.key, error)
            except BaseException:
                self._pool.release(address)
                raise
            else:
                return balancer
        raise ProviderError("no address is left")  # the pool has said so before

    async def _change(
        self,
        balancer: _LoadBalancer,
        service: Service,
        ports: dict[PortKey, ServicePort],
        rules: Rules,
    ) -> None:
        """Open what is new, and close what is gone once everything new is there."""
        opened: dict[PortKey, Listener] = {}
        try:
            for key in ports:
                if key not in balancer.listeners:
                    opened[key] = await self._open(balancer.address, key, rules)
        except BaseException:
            for listener in opened.values():
                listener.close(drain=False)
            raise
        for key in [key for key in balancer.listeners if key not in ports]:
            self._drain(balancer.listeners.pop(key))
        balancer.listeners.update(opened)
        balancer.service = service
        balancer.ports = ports
        for listener in balancer.listeners.values():
            listener.rules = rules
            listener.balancer.affinity_seconds = service.spec.affinity_seconds

    async def _open(self, address: str, key: PortKey, rules: Rules) -> Listener:
        protocol, port = key
        balancer = Balancer(self._clock)
        listener: TCPListener | UDPListener
        if protocol == "TCP":
            listener = TCPListener(
                address,
                port,
                balancer,
                rules,
                spawn=self._spawn,
                clock=self._clock,
                drain_seconds=self._drain_seconds,
            )
        else:
            listener = UDPListener(
                address,
                port,
                balancer,
                rules,
                clock=self._clock,
                drain_seconds=self._drain_seconds,
            )
        await listener.open()
        return listener

    def _remove(self, balancer: _LoadBalancer) -> None:
        self._close(balancer, drain=True)
        self._pool.release(balancer.address)

    def _close(self, balancer: _LoadBalancer, *, drain: bool) -> None:
        if balancer.checks is not None:
            balancer.checks.cancel()
        for listener in balancer.listeners.values():
            if drain:
                self._drain(listener)
            else:
                listener.close(drain=False)
        balancer.listeners.clear()
        if self._by_key.get(balancer.service.key) is balancer:
            del self._by_key[balancer.service.key]

    def _drain(self, listener: Listener) -> None:
        listener.close(drain=True)
        self._draining = [one for one in self._draining if one.statistics().open]
        self._draining.append(listener)

    # --- Backends ---

    def _refresh_key(self, key: str) -> None:
        if (balancer := self._by_key.get(key)) is not None:
            self._refresh(balancer)

    def _refresh(self, balancer: _LoadBalancer) -> None:
        for key, listener in balancer.listeners.items():
            listener.set_backends(self._backends(balancer, balancer.ports[key]))

    def _backends(self, balancer: _LoadBalancer, port: ServicePort) -> list[Backend]:
        if self._slices is not None:
            return self._endpoints.backends(balancer.service.key, port)
        return node_port_backends(port, balancer.nodes, balancer.service)

    async def _check_forever(self, balancer: _LoadBalancer) -> None:
        while True:
            await self._clock.sleep(self._health_check_seconds)
            for (protocol, _), listener in list(balancer.listeners.items()):
                health_port = self._health_port(balancer.service)
                if protocol != "TCP" and not health_port:
                    continue  # nothing tells whether somebody listens
                backends = listener.balancer.backends
                try:
                    failed = await failing(backends, health_port, self._clock)
                except OSError as error:
                    _logger.warning("backends were not checked: %s", error)
                    continue
                for backend in backends:
                    if listener.balancer.report(backend, well=backend not in failed):
                        words = "does not answer" if backend in failed else "is well again"
                        _logger.warning("backend %s:%d %s", *backend, words)

    def _health_port(self, service: Service) -> int:
        if self._slices is None and service.spec.external_traffic_policy == "Local":
            return service.spec.health_check_node_port
        return 0
