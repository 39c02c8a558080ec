"""A provider that runs HAProxy: its configuration, its runtime API and its process."""

import asyncio
import hashlib
import logging
import socket
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Self

import msgspec

from listwatch.accepting import ShortageLog
from listwatch.backoff import RESTART
from listwatch.cache.list_watch import ListerWatcher
from listwatch.clock import Clock
from listwatch.controllers.services.figures import (
    LoadBalancerFigures,
    ProviderFigures,
    Traffic,
)
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import default_load_balancer_name
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.balancing import Balancer
from listwatch.controllers.services.providers.claims import Claim
from listwatch.controllers.services.providers.frontend import (
    PortKey,
    ports_of,
    rules_of,
    status_of,
)
from listwatch.controllers.services.providers.haproxy_config import (
    Assignment,
    Frontend,
    Slot,
)
from listwatch.controllers.services.providers.haproxy_process import (
    HAProxyError,
    HAProxyProcess,
    require_program,
)
from listwatch.controllers.services.providers.haproxy_supervisor import (
    OLD_WORKER_SECONDS,
    HAProxySupervisor,
)
from listwatch.controllers.services.providers.listening import Rules, bind
from listwatch.controllers.services.providers.pool_provider import (
    BackendKind,
    LoadBalancer,
    PoolProvider,
)
from listwatch.controllers.services.providers.private_directory import private_directory
from listwatch.controllers.services.providers.udp import UDPListener
from listwatch.controllers.services.service import LoadBalancerStatus, Service, ServicePort

_logger = logging.getLogger(__name__)


class HAProxyStatistics(msgspec.Struct, frozen=True):
    """Statistics of a provider.

    Attributes:
        load_balancers: number of load balancers.
        reloads: configurations that took effect.
        runtime_changes: changes of backends without a reload.
        restarts: how often the process ended and was started again.
    """

    load_balancers: int
    reloads: int
    runtime_changes: int
    restarts: int


class _LoadBalancer(LoadBalancer):
    def __init__(self, service: Service, addresses: Sequence[str]) -> None:
        super().__init__(service, addresses)
        self.frontends: dict[PortKey, Frontend] = {}
        #: Listeners for UDP, which HAProxy does not forward, by address and port.
        self.datagrams: dict[tuple[str, int], UDPListener] = {}


class HAProxyProvider(PoolProvider[_LoadBalancer]):
    """Makes load balancers with one HAProxy process: a `LoadBalancerProvider`.

    HAProxy forwards TCP; this process itself forwards UDP. Backends change through the runtime API.
    Any other change writes a new configuration, which is checked and replaced in one step, and
    reloads. A reload passes the listening sockets on, so no connection is lost: the old process
    serves its connections until they end.

    Use it as `async with HAProxyProvider(...) as provider:`; at the end the process and its files
    are removed. For one event loop.

    Args:
        pool: the addresses.
        backends: as for `LocalProvider`.
        endpoint_slices: as for `LocalProvider`.
        health_check_seconds: interval between checks of a backend.
        drain_seconds: how long connections to a removed backend, port or service continue.
        old_worker_seconds: how long other connections continue in an old process after a reload.
        binary: the program.
        clock: the time.
    """

    def __init__(
        self,
        pool: AddressPool | None = None,
        *,
        backends: BackendKind = "endpoint-slices",
        endpoint_slices: ListerWatcher | None = None,
        health_check_seconds: float = 2.0,
        drain_seconds: float = 30.0,
        old_worker_seconds: float = OLD_WORKER_SECONDS,
        binary: str = "haproxy",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(pool, backends=backends, endpoint_slices=endpoint_slices, clock=clock)
        self._drain_seconds = drain_seconds
        self._binary = binary
        self._haproxy = HAProxySupervisor(
            self._frontends,
            check_seconds=health_check_seconds,
            old_worker_seconds=old_worker_seconds,
            clock=self._clock,
        )
        self._dirty: set[str] = set()
        self._news = asyncio.Event()
        self._shortages = ShortageLog(self._clock)

    # --- Life ---

    async def _begin(self, stack: AsyncExitStack) -> None:
        found = require_program(self._binary)
        directory = stack.enter_context(private_directory("listwatch-haproxy-"))
        process = HAProxyProcess(found, directory, self._clock)
        stack.push_async_callback(process.end)
        await self._haproxy.start(process)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        _ = self._spawn(self._haproxy.keep_running())
        _ = self._spawn(self._follow_endpoints())
        _ = self._spawn(self._haproxy.follow_traffic())
        return self

    def _end(self) -> None:
        for balancer in self._balancers.values():
            _close(balancer.datagrams.values())
        super()._end()

    def statistics(self) -> HAProxyStatistics:
        """Return current statistics."""
        made = self._haproxy
        return HAProxyStatistics(
            len(self._balancers), made.reloads, made.runtime_changes, made.restarts
        )

    def figures(self) -> ProviderFigures:
        """Return the figures of each load balancer, a few seconds old."""
        return msgspec.structs.replace(
            self._figures(),
            shortages=self._shortages.count,
            counters={
                "reloads": self._haproxy.reloads,
                "runtime_changes": self._haproxy.runtime_changes,
                "restarts": self._haproxy.restarts,
            },
            problem="" if self._haproxy.is_up else "haproxy is being restarted",
        )

    def _figures_of(self, balancer: _LoadBalancer) -> LoadBalancerFigures:
        names = [frontend.name for frontend in balancer.frontends.values()]
        datagrams = balancer.datagrams.values()
        traffic = [self._haproxy.traffic.total(name) for name in names]
        traffic += [listener.statistics() for listener in datagrams]
        slots = [slot for one in balancer.frontends.values() for slot in one.slots]
        backends = sum(slot.backend is not None and not slot.draining for slot in slots)
        failed = sum(self._haproxy.traffic.failed(name) for name in names)
        return LoadBalancerFigures(
            namespace=balancer.service.object.namespace,
            name=balancer.service.object.name,
            addresses=balancer.addresses,
            backends=backends + sum(len(one.balancer.backends) for one in datagrams),
            failed_backends=failed + sum(len(one.balancer.failed) for one in datagrams),
            traffic=sum(traffic, Traffic()),
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
            HAProxyError: the configuration did not take effect.
        """
        self._running()
        rules, ports = rules_of(service), ports_of(service)
        claim = Claim.of(service)
        before = self._balancers.get(service.uid)
        datagrams = {} if before is None else before.datagrams
        held = {(ip, *key) for ip in before.addresses for key in before.ports} if before else set()
        opened: dict[tuple[str, int], UDPListener] = {}

        async def open_ports(address: str) -> None:
            missing = [key for key in ports if (address, *key) not in held]
            _check_ports(address, [port for protocol, port in missing if protocol == "TCP"])
            made: dict[tuple[str, int], UDPListener] = {}
            try:
                for protocol, port in missing:
                    if protocol == "UDP":
                        made[address, port] = await self._open_datagrams(address, port, rules)
            except BaseException:
                _close(made.values())
                raise
            opened.update(made)

        try:
            addresses = await self._place(claim, service, open_ports)
        except BaseException:
            _close(opened.values())
            raise
        balancer = _LoadBalancer(service, addresses)
        balancer.ports, balancer.nodes = ports, nodes
        balancer.datagrams = {
            at: listener
            for at, listener in (datagrams | opened).items()
            if at[0] in addresses and ("UDP", at[1]) in ports
        }
        for key, port in ports.items():
            if key[0] == "TCP":
                old = before.frontends.get(key) if before else None
                balancer.frontends[key] = self._frontend(balancer, port, rules, old)
        self._put(service, balancer)
        try:
            await self._bring_into_force(before, balancer)
        except BaseException:
            # The previous state is in effect, or will be with the next configuration.
            for address in addresses:
                if before is None or address not in before.addresses:
                    self._pool.release(service.uid, address)
            _close(opened.values())
            self._put(service, before)
            raise
        self._pool.keep(claim, addresses)
        if before is not None:
            gone = before.frontends.keys() - balancer.frontends.keys()
            await self._end_later([before.frontends[key] for key in gone])
        _close(listener for at, listener in datagrams.items() if at not in balancer.datagrams)
        for listener in balancer.datagrams.values():
            listener.rules = rules
            listener.balancer.affinity_seconds = service.spec.affinity_seconds
            listener.balancer.least_connections = rules.least_connections
        return status_of(addresses, ports)

    async def _bring_into_force(
        self, before: _LoadBalancer | None, balancer: _LoadBalancer
    ) -> None:
        if before is not None and not _needs_reload(before, balancer):
            await self._change_backends(balancer)
            return
        _ = self._assign(balancer)
        if balancer.frontends or (before is not None and before.frontends):
            await self._haproxy.reload()

    async def ensure_deleted(self, cluster: str, service: Service) -> None:  # noqa: ARG002 - as above
        """Close a service's ports; its connections continue until they end."""
        balancer = self._balancers.get(service.uid)
        if balancer is None:
            return
        self._put(service, None)
        try:
            if balancer.frontends:
                await self._haproxy.reload()
        except BaseException:
            self._put(service, balancer)
            raise
        _close(balancer.datagrams.values())
        self._pool.release_all(service.uid)
        await self._end_later(balancer.frontends.values())

    async def _open_datagrams(self, address: str, port: int, rules: Rules) -> UDPListener:
        listener = UDPListener(
            address,
            port,
            Balancer(self._clock),
            rules,
            clock=self._clock,
            drain_seconds=self._drain_seconds,
            shortages=self._shortages,
        )
        await listener.open()
        return listener

    # --- Making ---

    def _put(self, service: Service, balancer: _LoadBalancer | None) -> None:
        if balancer is None:
            gone = self._balancers.pop(service.uid, None)
            if self._by_key.get(service.key) is gone:  # not a successor with another uid
                self._by_key.pop(service.key, None)
        else:
            self._balancers[service.uid] = self._by_key[service.key] = balancer

    def _frontend(
        self, balancer: _LoadBalancer, port: ServicePort, rules: Rules, old: Frontend | None
    ) -> Frontend:
        return Frontend(
            name=f"{_one_line(default_load_balancer_name(balancer.service))}-{port.port}",
            addresses=balancer.addresses,
            port=port.port,
            rules=rules,
            affinity_seconds=balancer.service.spec.affinity_seconds,
            health_port=self._health_port(balancer.service),
            slots=[] if old is None else [msgspec.structs.replace(slot) for slot in old.slots],
        )

    # --- Backends ---

    def _endpoints_changed(self, key: str) -> None:
        self._dirty.add(key)
        self._news.set()

    async def _follow_endpoints(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            dirty, self._dirty = self._dirty, set()
            for key in dirty:
                if (balancer := self._by_key.get(key)) is None:
                    continue
                try:
                    await self._change_backends(balancer)
                except (HAProxyError, OSError) as error:
                    _logger.warning("the backends of service %s did not change: %s", key, error)
                    self._endpoints_changed(key)
                    await self._clock.sleep(RESTART.delay(0))

    async def _change_backends(self, balancer: _LoadBalancer) -> None:
        """Apply the current backends through the runtime API."""
        changes = self._assign(balancer)
        await self._haproxy.change([line for one in changes for line in one.commands])

    def _assign(self, balancer: _LoadBalancer) -> list[Assignment]:
        """Give each port its current backends; return what HAProxy must be told."""
        for (_, port), listener in balancer.datagrams.items():
            listener.set_backends(self._backends(balancer, balancer.ports["UDP", port]))
        changes = []
        for key, frontend in balancer.frontends.items():
            backends = self._backends(balancer, balancer.ports[key])
            change = frontend.assign(backends, self._haproxy.check_seconds)
            changes.append(change)
            for number in change.drained:
                _ = self._spawn(self._drain(balancer.service.uid, key, number))
        return changes

    async def _drain(self, uid: str, key: PortKey, number: int) -> None:
        """End the connections of a removed backend after the drain time; then free its slot."""
        await self._clock.sleep(self._drain_seconds)
        async with self._haproxy.changing:
            balancer = self._balancers.get(uid)
            frontend = None if balancer is None else balancer.frontends.get(key)
            if frontend is None or not frontend.slots[number].draining:
                return  # the port is gone, or the backend has returned
            server, process = frontend.server(number), self._haproxy.process
            try:
                await process.tell([f"shutdown sessions server {server}"])
                await process.end_sessions([server], await process.old_workers())
            except (HAProxyError, OSError) as error:
                _logger.warning("connections of a removed backend were not closed: %s", error)
            frontend.slots[number] = Slot()

    async def _end_later(self, frontends: Iterable[Frontend]) -> None:
        """End the connections of removed ports after the drain time, in every worker."""
        servers = [one.server(number) for one in frontends for number in range(len(one.slots))]
        if not servers:
            return
        try:
            workers = await self._haproxy.process.old_workers()
        except OSError as error:
            _logger.warning("connections of removed ports may stay open: %s", error)
            return
        if workers:
            _ = self._spawn(self._end_sessions(servers, workers))

    async def _end_sessions(self, servers: Sequence[str], workers: Sequence[int]) -> None:
        await self._clock.sleep(self._drain_seconds)
        try:
            await self._haproxy.process.end_sessions(servers, workers)
        except OSError as error:
            _logger.warning("connections of removed ports were not closed: %s", error)

    def _frontends(self) -> list[Frontend]:
        return [f for b in self._balancers.values() for f in b.frontends.values()]


def _one_line(name: str) -> str:
    """Return a name without line breaks: no uid can add lines to the configuration."""
    if name.isprintable():
        return name
    return f"a{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:31]}"


def _check_ports(address: str, ports: Iterable[int]) -> None:
    """Refuse taken TCP ports with a clear message; HAProxy would only fail to reload."""
    for port in ports:
        bind(socket.SOCK_STREAM, address, port).close()


def _close(listeners: Iterable[UDPListener]) -> None:
    for listener in listeners:
        listener.close(drain=False)


def _needs_reload(before: _LoadBalancer, after: _LoadBalancer) -> bool:
    if before.addresses != after.addresses or before.frontends.keys() != after.frontends.keys():
        return True
    return any(
        (old.rules, old.affinity_seconds, old.health_port, len(old.slots))
        != (new.rules, new.affinity_seconds, new.health_port, len(new.slots))
        for old, new in ((before.frontends[key], after.frontends[key]) for key in before.frontends)
    )
