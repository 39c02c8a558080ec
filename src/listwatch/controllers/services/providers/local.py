"""The embedded provider: forwards each service's traffic in this process."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from listwatch.accepting import ShortageLog
from listwatch.cache.list_watch import ListerWatcher
from listwatch.clock import Clock
from listwatch.controllers.services.figures import (
    LoadBalancerFigures,
    ProviderFigures,
    Traffic,
)
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.balancing import Balancer
from listwatch.controllers.services.providers.claims import Claim
from listwatch.controllers.services.providers.frontend import (
    PortKey,
    ports_of,
    rules_of,
    status_of,
)
from listwatch.controllers.services.providers.health import HealthProbe, check
from listwatch.controllers.services.providers.listening import (
    PortListener,
    Rules,
)
from listwatch.controllers.services.providers.pool_provider import (
    BackendKind,
    LoadBalancer,
    PoolProvider,
)
from listwatch.controllers.services.providers.tcp import TCPListener
from listwatch.controllers.services.providers.transport import Poller
from listwatch.controllers.services.providers.udp import UDPListener
from listwatch.controllers.services.service import LoadBalancerStatus, Service, ServicePort

if TYPE_CHECKING:
    import asyncio

_logger = logging.getLogger(__name__)


class LocalProviderStatistics(msgspec.Struct, frozen=True):
    """Statistics of a local provider.

    Attributes:
        load_balancers: number of load balancers.
        listeners: served ports.
        addresses: addresses of the pool in use.
        backends: of all ports together.
        failed_backends: backends that are skipped.
        draining: ports no longer served, whose connections continue.
        shortages: how often this process could open no more files.
        traffic: of all served ports.
    """

    load_balancers: int
    listeners: int
    addresses: int
    backends: int
    failed_backends: int
    draining: int
    shortages: int
    traffic: Traffic


#: Address, protocol and port of a listener.
_ListenerKey: TypeAlias = tuple[str, str, int]


class _LoadBalancer(LoadBalancer):
    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.listeners: dict[_ListenerKey, PortListener] = {}
        self.checks: asyncio.Task[None] | None = None


class LocalProvider(PoolProvider[_LoadBalancer]):
    """Makes load balancers from TCP and UDP proxies in this process: a `LoadBalancerProvider`.

    Use it as `async with LocalProvider(...) as provider:`; at the end everything is closed.

    Connections continue while backends, ports or rules change around them. Those to a removed
    backend, or of a deleted service, may end within `drain_seconds`. A service keeps its address
    across restarts: it is read from its status, or derived from its uid.

    For one event loop.

    Args:
        pool: the addresses.
        backends: "endpoint-slices" connects directly to the endpoints; "node-ports" to the nodes'
            internal addresses, for clusters whose pods are unreachable from here.
        endpoint_slices: all of them; needed for "endpoint-slices".
        health_check_seconds: interval between checks of a backend; 0 to rely on connections only.
        drain_seconds: see above.
        clock: the time.
    """

    def __init__(
        self,
        pool: AddressPool | None = None,
        *,
        backends: BackendKind = "endpoint-slices",
        endpoint_slices: ListerWatcher | None = None,
        health_check_seconds: float = 10.0,
        drain_seconds: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(pool, backends=backends, endpoint_slices=endpoint_slices, clock=clock)
        self._health_check_seconds = health_check_seconds
        self._drain_seconds = drain_seconds
        self._draining: list[PortListener] = []
        self._shortages = ShortageLog(self._clock)
        self._check_shortages = ShortageLog(self._clock)
        self._poller = Poller()

    def _end(self) -> None:
        for balancer in self._balancers.values():
            self._close(balancer, drain=False)
        for listener in self._draining:
            listener.close(drain=False)
        self._draining.clear()
        super()._end()

    def statistics(self) -> LocalProviderStatistics:
        """Return current statistics."""
        self._draining = [one for one in self._draining if one.statistics().open]
        listeners = [
            listener
            for balancer in self._balancers.values()
            for listener in balancer.listeners.values()
        ]
        return LocalProviderStatistics(
            len(self._balancers),
            len(listeners),
            len(self._pool),
            sum(len(listener.balancer.backends) for listener in listeners),
            sum(len(listener.balancer.failed) for listener in listeners),
            len(self._draining),
            self._shortages.count + self._check_shortages.count,
            sum((listener.statistics() for listener in listeners), Traffic()),
        )

    def figures(self) -> ProviderFigures:
        """Return the figures of each load balancer."""
        paused = sum(
            listener.is_paused
            for balancer in self._balancers.values()
            for listener in balancer.listeners.values()
        )
        return msgspec.structs.replace(
            self._figures(),
            shortages=self._shortages.count + self._check_shortages.count,
            problem=f"{paused} ports accept no connections: too many open files" if paused else "",
        )

    def _figures_of(self, balancer: _LoadBalancer) -> LoadBalancerFigures:
        listeners = balancer.listeners.values()
        return LoadBalancerFigures(
            namespace=balancer.service.object.namespace,
            name=balancer.service.object.name,
            addresses=balancer.addresses,
            backends=sum(len(listener.balancer.backends) for listener in listeners),
            failed_backends=sum(len(listener.balancer.failed) for listener in listeners),
            traffic=sum((listener.statistics() for listener in listeners), Traffic()),
        )

    # --- The provider's interface ---

    async def ensure(
        self,
        cluster: str,  # noqa: ARG002 - required by the protocol
        service: Service,
        nodes: Sequence[Node],
    ) -> LoadBalancerStatus:
        """Create or update a service's load balancer, completely or not at all.

        Raises:
            ProviderError: no address or port is available, or the service asks for something
                unsupported.
        """
        self._running()
        rules, ports, claim = rules_of(service), ports_of(service), Claim.of(service)
        balancer = self._balancers.get(service.uid)
        if balancer is None:
            balancer = _LoadBalancer(service)
        await self._change(balancer, service, claim, ports, rules)
        self._balancers[service.uid] = self._by_key[service.key] = balancer
        balancer.nodes = nodes
        self._refresh(balancer)
        if balancer.checks is None and self._health_check_seconds:
            balancer.checks = self._spawn(self._check_forever(balancer))
        return status_of(balancer.addresses, ports)

    async def ensure_deleted(self, cluster: str, service: Service) -> None:  # noqa: ARG002 - as above
        """Close a service's ports and free its address; connections may drain."""
        balancer = self._balancers.pop(service.uid, None)
        if balancer is not None:
            self._remove(balancer)

    # --- Making ---

    async def _change(
        self,
        balancer: _LoadBalancer,
        service: Service,
        claim: Claim,
        ports: dict[PortKey, ServicePort],
        rules: Rules,
    ) -> None:
        """Open new listeners, then close removed ones."""
        opened: dict[_ListenerKey, PortListener] = {}

        async def open_ports(address: str) -> None:
            for protocol, port in ports:
                key = (address, protocol, port)
                if key not in balancer.listeners and key not in opened:
                    try:
                        opened[key] = await self._open(key, rules)
                    except BaseException:
                        close(address)
                        raise

        def close(address: str) -> None:
            for key in [key for key in opened if key[0] == address]:
                opened.pop(key).close(drain=False)

        try:
            addresses = await self._place(claim, service, open_ports)
        except BaseException:
            for listener in opened.values():
                listener.close(drain=False)
            raise
        self._pool.keep(claim, addresses)
        wanted = {(address, *key) for address in addresses for key in ports}
        for gone in balancer.listeners.keys() - wanted:
            self._drain(balancer.listeners.pop(gone))
        balancer.listeners.update(opened)
        balancer.service, balancer.addresses, balancer.ports = service, addresses, ports
        for listener in balancer.listeners.values():
            listener.rules = rules
            listener.balancer.affinity_seconds = service.spec.affinity_seconds
            listener.balancer.least_connections = rules.least_connections

    async def _open(self, key: _ListenerKey, rules: Rules) -> PortListener:
        address, protocol, port = key
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
                shortages=self._shortages,
                poller=self._poller,
            )
        else:
            listener = UDPListener(
                address,
                port,
                balancer,
                rules,
                clock=self._clock,
                drain_seconds=self._drain_seconds,
                shortages=self._shortages,
            )
        await listener.open()
        return listener

    def _remove(self, balancer: _LoadBalancer) -> None:
        self._close(balancer, drain=True)
        self._pool.release_all(balancer.service.uid)

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

    def _drain(self, listener: PortListener) -> None:
        listener.close(drain=True)
        self._draining = [one for one in self._draining if one.statistics().open]
        self._draining.append(listener)

    # --- Backends ---

    def _endpoints_changed(self, key: str) -> None:
        if (balancer := self._by_key.get(key)) is not None:
            self._refresh(balancer)

    async def _change_backends(self, balancer: _LoadBalancer) -> None:
        self._refresh(balancer)

    def _refresh(self, balancer: _LoadBalancer) -> None:
        for (_, protocol, port), listener in balancer.listeners.items():
            listener.set_backends(self._backends(balancer, balancer.ports[protocol, port]))

    async def _check_forever(self, balancer: _LoadBalancer) -> None:
        while True:
            await self._clock.sleep(self._health_check_seconds)
            probe = self._probe(balancer.service)
            for (_, protocol, _), listener in list(balancer.listeners.items()):
                if protocol != "TCP" and not probe.node_port:
                    continue  # there is no way to check it
                backends = listener.balancer.backends
                if protocol == "TCP":
                    probe = msgspec.structs.replace(probe, path=listener.rules.health_path)
                try:
                    finding = await check(backends, probe, self._clock)
                except OSError as error:
                    self._check_shortages.tell("backends were not checked", error)
                    continue
                listener.balancer.set_weights(finding.weights)
                for backend in backends:
                    is_well = backend not in finding.failed
                    if listener.balancer.report(backend, well=is_well):
                        words = "is healthy again" if is_well else "does not answer"
                        _logger.warning("backend %s:%d %s", *backend, words)

    def _probe(self, service: Service) -> HealthProbe:
        return HealthProbe(node_port=self._health_port(service))
