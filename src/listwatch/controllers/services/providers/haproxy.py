"""A provider that runs HAProxy: its configuration, its runtime API and its process."""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
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
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.balancing import Balancer
from listwatch.controllers.services.providers.claims import Claim
from listwatch.controllers.services.providers.frontend import (
    PortKey,
    ports_of,
    rules_of,
    status_of,
)
from listwatch.controllers.services.providers.haproxy_balancer import (
    HAProxyBalancer,
    needs_reload,
)
from listwatch.controllers.services.providers.haproxy_config import Assignment, Frontend, Slot
from listwatch.controllers.services.providers.haproxy_process import (
    HAProxyError,
    HAProxyProcess,
    require_program,
)
from listwatch.controllers.services.providers.haproxy_saved import (
    SavedError,
    decode,
    encode,
)
from listwatch.controllers.services.providers.haproxy_supervisor import (
    OLD_WORKER_SECONDS,
    HAProxySupervisor,
)
from listwatch.controllers.services.providers.kept_directory import kept_directory
from listwatch.controllers.services.providers.listening import Rules, bind
from listwatch.controllers.services.providers.pool_provider import (
    BackendKind,
    PoolProvider,
)
from listwatch.controllers.services.providers.private_directory import private_directory
from listwatch.controllers.services.providers.udp import UDPListener
from listwatch.controllers.services.service import LoadBalancerStatus, Service
from listwatch.errors import ListWatchError

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


class HAProxyProvider(PoolProvider[HAProxyBalancer]):
    """Makes load balancers with one HAProxy process: a `LoadBalancerProvider`.

    HAProxy forwards TCP; this process itself forwards UDP. Backends change through the runtime API.
    Any other change writes a new configuration, which is checked and replaced in one step, and
    reloads. A reload passes the listening sockets on, so no connection is lost: the old process
    serves its connections until they end.

    Use it as `async with HAProxyProvider(...) as provider:`. At the end HAProxy ends, and its files
    are removed. With `outlives` it continues, however this process ends, until the next provider
    with the same directory takes it over: no connection is lost. That provider must be told by
    `forget_others` which services are gone. For one event loop.

    Args:
        pool: the addresses.
        backends: as for `LocalProvider`.
        endpoint_slices: as for `LocalProvider`.
        health_check_seconds: interval between checks of a backend.
        drain_seconds: how long connections to a removed backend, port or service continue.
        old_worker_seconds: how long other connections continue in an old process after a reload.
        binary: the program.
        directory: the directory for HAProxy's files, for one provider at a time; None for a
            temporary one. A running HAProxy in it is taken over.
        outlives: let HAProxy continue at the end; needs a directory.
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
        directory: Path | None = None,
        outlives: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if outlives and directory is None:
            raise ValueError(
                "outlives=True needs directory=, where the next provider finds HAProxy"
            )
        super().__init__(pool, backends=backends, endpoint_slices=endpoint_slices, clock=clock)
        self._drain_seconds = drain_seconds
        self._binary = binary
        self._directory = directory
        self._outlives = outlives
        self._haproxy = HAProxySupervisor(
            self._frontends,
            self._saved,
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
        if self._directory is None:
            directory = stack.enter_context(private_directory("listwatch-haproxy-"))
        else:
            kept = kept_directory(self._directory, self._clock)
            directory = await stack.enter_async_context(kept)
        process = HAProxyProcess(found, directory, self._clock, outlives=self._outlives)
        stack.push_async_callback(process.end)
        if self._directory is None or not await self._take_over(process):
            await self._haproxy.start(process)

    async def _take_over(self, process: HAProxyProcess) -> bool:
        """Continue with the HAProxy of the previous provider; return False if there is none."""
        if not await process.adopt():
            return False
        generation = self._restore(process.saved_file)
        try:
            await self._haproxy.take_over(process, generation)
        except (HAProxyError, OSError) as error:
            _logger.warning("haproxy can't be taken over and is started again: %s", error)
            self._forget(list(self._balancers.values()))
            await process.stop()
            return False
        _logger.info("took over haproxy with %d load balancers", len(self._balancers))
        return True

    def _restore(self, file: Path) -> int:
        """Put the saved load balancers in place; return the generation of their configuration."""
        try:
            saved = decode(file.read_bytes())
        except (OSError, SavedError) as error:
            _logger.warning("the previous load balancers are unknown: %s: %s", file, error)
            return -1
        for one in saved.balancers:
            try:
                balancer = HAProxyBalancer.restored(one, self._health_port)
                claim = Claim.of(balancer.service)
            except ListWatchError as error:
                _logger.warning("a previous load balancer is unreadable: %s", error)
                continue
            self._put(balancer.service, balancer)
            self._pool.keep(claim, balancer.addresses)
        return saved.generation

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        _ = self._spawn(self._haproxy.keep_running())
        _ = self._spawn(self._follow_endpoints())
        _ = self._spawn(self._haproxy.follow_traffic())
        if self._balancers:
            _ = self._spawn(self._continue_with(list(self._balancers.values())))
        return self

    async def _continue_with(self, taken_over: Iterable[HAProxyBalancer]) -> None:
        """Finish what the previous provider began, and bring the backends up to date."""
        for balancer in taken_over:
            for key, frontend in balancer.frontends.items():
                for number, slot in enumerate(frontend.slots):
                    if slot.draining:
                        _ = self._spawn(self._drain(balancer.service.uid, key, number))
        try:
            workers = await self._haproxy.process.old_workers()
        except OSError as error:
            _logger.warning("connections of removed backends may stay open: %s", error)
        else:
            if workers:
                _ = self._spawn(self._end_sessions(self._is_unknown, workers))
        await self._endpoints.synced.wait()
        for balancer in taken_over:
            self._endpoints_changed(balancer.service.key)

    def _is_unknown(self, server: str) -> bool:
        """Return whether no load balancer has this server for a backend."""
        return server not in {
            frontend.server(number)
            for frontend in self._frontends()
            for number, slot in enumerate(frontend.slots)
            if slot.backend is not None and not slot.draining
        }

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

    def _figures_of(self, balancer: HAProxyBalancer) -> LoadBalancerFigures:
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
        held = set() if before is None else before.held()
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
        balancer = HAProxyBalancer(service, addresses)
        balancer.ports, balancer.nodes = ports, nodes
        balancer.datagrams = {
            at: listener
            for at, listener in (datagrams | opened).items()
            if at[0] in addresses and ("UDP", at[1]) in ports
        }
        for key, port in ports.items():
            if key[0] == "TCP":
                old = before.frontends.get(key) if before else None
                slots = [] if old is None else [msgspec.structs.replace(one) for one in old.slots]
                health_port = self._health_port(service)
                balancer.frontends[key] = balancer.frontend(port, rules, health_port, slots)
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
        self, before: HAProxyBalancer | None, balancer: HAProxyBalancer
    ) -> None:
        if before is not None and not needs_reload(before, balancer):
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

    async def forget_others(self, cluster: str, uids: Collection[str]) -> None:  # noqa: ARG002 - as above
        """Remove the load balancers of services with other uids, which no longer exist."""
        others = [one for uid, one in self._balancers.items() if uid not in uids]
        if not others:
            return
        _logger.info("%d load balancers of services that no longer exist are removed", len(others))
        self._forget(others)
        try:
            await self._haproxy.reload()
        except (HAProxyError, OSError) as error:
            # The next configuration is without them, too.
            _logger.warning("load balancers were not removed: %s", error)
        await self._end_later([frontend for one in others for frontend in one.frontends.values()])

    def _forget(self, balancers: Iterable[HAProxyBalancer]) -> None:
        for balancer in balancers:
            self._put(balancer.service, None)
            self._pool.release_all(balancer.service.uid)

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

    def _put(self, service: Service, balancer: HAProxyBalancer | None) -> None:
        if balancer is None:
            gone = self._balancers.pop(service.uid, None)
            if self._by_key.get(service.key) is gone:  # not a successor with another uid
                self._by_key.pop(service.key, None)
        else:
            self._balancers[service.uid] = self._by_key[service.key] = balancer

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

    async def _change_backends(self, balancer: HAProxyBalancer) -> None:
        """Apply the current backends through the runtime API."""
        changes = self._assign(balancer)
        await self._haproxy.change([line for one in changes for line in one.commands])

    def _assign(self, balancer: HAProxyBalancer) -> list[Assignment]:
        """Give each port its current backends; return what HAProxy must be told."""
        for (_, port), listener in balancer.datagrams.items():
            listener.set_backends(self._backends(balancer, balancer.ports["UDP", port]))
        changes: list[Assignment] = []
        if self._slices is not None and not self._endpoints.synced.is_set():
            return changes  # unknown backends must not replace those taken over
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
                await process.end_sessions(await process.old_workers(), {server}.__contains__)
            except (HAProxyError, OSError) as error:
                _logger.warning("connections of a removed backend were not closed: %s", error)
            frontend.slots[number] = Slot()

    async def _end_later(self, frontends: Iterable[Frontend]) -> None:
        """End the connections of removed ports after the drain time, in every worker."""
        servers = {one.server(number) for one in frontends for number in range(len(one.slots))}
        if not servers:
            return
        try:
            workers = await self._haproxy.process.old_workers()
        except OSError as error:
            _logger.warning("connections of removed ports may stay open: %s", error)
            return
        if workers:
            _ = self._spawn(self._end_sessions(servers.__contains__, workers))

    async def _end_sessions(self, is_gone: Callable[[str], bool], workers: Sequence[int]) -> None:
        await self._clock.sleep(self._drain_seconds)
        try:
            await self._haproxy.process.end_sessions(workers, is_gone)
        except OSError as error:
            _logger.warning("connections of removed ports were not closed: %s", error)

    def _saved(self, generation: int) -> bytes:
        return encode(generation, [one.saved() for one in self._balancers.values()])

    def _frontends(self) -> list[Frontend]:
        return [f for b in self._balancers.values() for f in b.frontends.values()]


def _check_ports(address: str, ports: Iterable[int]) -> None:
    """Refuse taken TCP ports with a clear message; HAProxy would only fail to reload."""
    for port in ports:
        bind(socket.SOCK_STREAM, address, port).close()


def _close(listeners: Iterable[UDPListener]) -> None:
    for listener in listeners:
        listener.close(drain=False)
