"""A provider that drives HAProxy: its configuration, its runtime API, and the process itself."""

import asyncio
import contextlib
import logging
import shutil
import socket
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
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
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.endpoints import Endpoints
from listwatch.controllers.services.providers.frontend import (
    PortKey,
    node_port_backends,
    ports_of,
    rules_of,
    status_of,
)
from listwatch.controllers.services.providers.haproxy_config import (
    Frontend,
    Settings,
    Slot,
    render,
)
from listwatch.controllers.services.providers.listening import AddressInUseError, Rules, bind
from listwatch.controllers.services.providers.private_directory import private_directory
from listwatch.controllers.services.service import LoadBalancerStatus, Service, ServicePort

_logger = logging.getLogger(__name__)

#: Seconds that a new configuration has to come into force.
RELOAD_SECONDS: Final = 10.0
_RESTART_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.02
_RELOAD_AGAIN_SECONDS: Final = 1.5
_COMMAND_BYTES: Final = 8000
# How many addresses are tried for a new load balancer whose ports others use.
_ADDRESS_TRIES: Final = 16


def find_program(name: str) -> str | None:
    """Return where a program is, also when it is where only root's PATH leads to."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


class HAProxyError(ProviderError):
    """HAProxy is missing, or does not do what it is told."""


class HAProxyStatistics(msgspec.Struct, frozen=True):
    """The figures of a provider at one moment.

    Attributes:
        load_balancers: how many there are.
        reloads: configurations that came into force.
        runtime_changes: changes of backends that needed no reload.
        restarts: times that the process had ended and was started again.
    """

    load_balancers: int
    reloads: int
    runtime_changes: int
    restarts: int


class _LoadBalancer:
    def __init__(self, service: Service, address: str) -> None:
        self.service = service
        self.address = address
        self.nodes: Sequence[Node] = ()
        self.ports: dict[PortKey, ServicePort] = {}
        self.frontends: dict[PortKey, Frontend] = {}


class HAProxyProvider:
    """Makes load balancers of one HAProxy process that it runs: a `LoadBalancerProvider`.

    TCP only. Backends change by the runtime API; whatever else changes is a new configuration,
    checked and written in one step, and a reload that passes the listening sockets on, so that no
    connection is lost: the former process serves its connections to their end.

    Use it as `async with HAProxyProvider(...) as provider:`; at the end the process and its
    files are gone. For one event loop.

    Args:
        pool: the addresses.
        backends: as for `LocalProvider`.
        endpoint_slices: as for `LocalProvider`.
        health_check_seconds: between two checks of a backend.
        drain_seconds: how long connections to a removed backend go on.
        binary: the program.
        clock: the time.
    """

    def __init__(
        self,
        pool: AddressPool | None = None,
        *,
        backends: Literal["endpoint-slices", "node-ports"] = "endpoint-slices",
        endpoint_slices: ListerWatcher | None = None,
        health_check_seconds: float = 2.0,
        drain_seconds: float = 30.0,
        binary: str = "haproxy",
        clock: Clock | None = None,
    ) -> None:
        if (backends == "endpoint-slices") != (endpoint_slices is not None):
            raise ValueError(
                "endpoint_slices= is needed for backends='endpoint-slices', and for nothing else"
            )
        self._clock = clock or Clock()
        self._pool = AddressPool() if pool is None else pool
        self._slices = endpoint_slices
        self._endpoints = Endpoints(self._endpoints_changed)
        self._health_check_seconds = health_check_seconds
        self._drain_seconds = drain_seconds
        self._binary = binary
        self._balancers: dict[str, _LoadBalancer] = {}
        self._by_key: dict[str, _LoadBalancer] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._directory = Path()
        # One change at a time; those that wait for it go along with the next.
        self._changing = asyncio.Lock()
        self._wanted = self._applied = 0
        # Slots were assigned that HAProxy may not know of: a whole configuration comes next.
        self._is_unsure = False
        self._dirty: set[str] = set()
        self._news = asyncio.Event()
        self._reloads = self._runtime_changes = self._restarts = 0

    # --- Life ---

    async def __aenter__(self) -> Self:
        found = find_program(self._binary)
        if found is None:
            raise HAProxyError(
                f"{self._binary} is not installed: on Debian, apt-get install haproxy"
            )
        self._binary = found
        async with contextlib.AsyncExitStack() as stack:
            self._directory = stack.enter_context(private_directory("listwatch-haproxy-"))
            stack.push_async_callback(self._end_process)
            await self._start()
            self._group = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(self._end_tasks)
            self._spawn(self._keep_running())
            self._spawn(self._follow_endpoints())
            if self._slices is not None:
                reflector = Reflector(
                    self._slices, self._endpoints, name="endpoint slices", clock=self._clock
                )
                self._spawn(reflector.run())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What the body raised goes on as it is; a task group would wrap it.
        with single_error():
            if isinstance(error, asyncio.CancelledError):
                await self._stack.__aexit__(kind, error, traceback)
            else:
                await self._stack.aclose()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        if self._group is None:
            work.close()
            return
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end_tasks(self) -> None:
        self._group = None
        for task in self._tasks:
            task.cancel()
        for balancer in self._balancers.values():
            self._pool.release(balancer.address)
        self._balancers.clear()
        self._by_key.clear()

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()  # the master ends its workers, former ones included
        try:
            async with self._clock.timeout(RELOAD_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _start(self) -> None:
        # The file may be of a change that did not come into force.
        await self._check(await self._write())
        # However this program ends, HAProxy must not go on holding the addresses.
        setpriv = shutil.which("setpriv")
        self._process = await asyncio.create_subprocess_exec(
            *([setpriv, "--pdeathsig", "TERM"] if setpriv else []),
            self._binary,
            "-W",
            "-db",
            "-S",
            str(self._directory / "master.sock"),
            "-f",
            str(self._directory / "haproxy.cfg"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await self._wait_for(self._applied)

    async def _keep_running(self) -> None:
        while (process := self._process) is not None:
            await process.wait()
            _logger.error("haproxy has ended with code %s and is started again", process.returncode)
            self._restarts += 1
            await self._clock.sleep(_RESTART_SECONDS)
            async with self._changing:
                try:
                    await self._start()
                except (HAProxyError, OSError) as error:
                    _logger.error("haproxy does not start: %s", error)  # noqa: TRY400 - its words say it

    def statistics(self) -> HAProxyStatistics:
        """Return the figures of this moment."""
        return HAProxyStatistics(
            len(self._balancers), self._reloads, self._runtime_changes, self._restarts
        )

    # --- The provider's interface ---

    def name(self, cluster: str, service: Service) -> str:  # noqa: ARG002 - the protocol's
        """Return the load balancer's name."""
        return default_load_balancer_name(service)

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:  # noqa: ARG002 - as above
        """Return where a service's load balancer is reached, or None if there is none."""
        balancer = self._balancers.get(service.uid)
        return None if balancer is None else status_of(balancer.address, balancer.ports)

    async def ensure(
        self,
        cluster: str,  # noqa: ARG002 - as above
        service: Service,
        nodes: Sequence[Node],
    ) -> LoadBalancerStatus:
        """Make or change a service's load balancer, all of it or nothing.

        Raises:
            ProviderError: no address or port can be had, or the service asks for what can't be.
            HAProxyError: the configuration did not come into force.
        """
        if self._group is None:
            raise ProviderError("the provider runs within `async with` only")
        rules, ports = rules_of(service), ports_of(service, ("TCP",))
        before = self._balancers.get(service.uid)
        wanted = service.spec.load_balancer_ip
        if before is not None and wanted in {"", before.address}:
            address = before.address
            _check_ports(address, [key for key in ports if key not in before.ports])
        else:
            address = self._find_address(service, ports)
        balancer = _LoadBalancer(service, address)
        balancer.ports, balancer.nodes = ports, nodes
        for key, port in ports.items():
            old = before.frontends.get(key) if before and before.address == address else None
            balancer.frontends[key] = self._frontend(balancer, port, rules, old)
        self._pool.take(service.uid, address)
        self._put(service, balancer)
        try:
            if before is None or _needs_reload(before, balancer):
                for key, frontend in balancer.frontends.items():
                    frontend.assign(self._backends(balancer, ports[key]))
                await self._reload()
            else:
                await self._change_backends(balancer)
        except BaseException:
            # The former state is in force, or will be with the next configuration.
            if before is None or before.address != address:
                self._pool.release(address)
            self._put(service, before)
            raise
        if before is not None and before.address != address:
            self._pool.release(before.address)
        return status_of(address, ports)

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Send to these nodes from now on, where nodes are sent to at all."""
        balancer = self._balancers.get(service.uid)
        if balancer is None:
            await self.ensure(cluster, service, nodes)
            return
        balancer.nodes = nodes
        await self._change_backends(balancer)

    async def ensure_deleted(self, cluster: str, service: Service) -> None:  # noqa: ARG002 - as above
        """Close a service's ports; its connections go on to their end."""
        balancer = self._balancers.get(service.uid)
        if balancer is None:
            return
        self._put(service, None)
        try:
            await self._reload()
        except BaseException:
            self._put(service, balancer)
            raise
        self._pool.release(balancer.address)

    # --- Making ---

    def _put(self, service: Service, balancer: _LoadBalancer | None) -> None:
        if balancer is None:
            gone = self._balancers.pop(service.uid, None)
            if self._by_key.get(service.key) is gone:  # and not of a successor with another uid
                self._by_key.pop(service.key, None)
        else:
            self._balancers[service.uid] = self._by_key[service.key] = balancer

    def _find_address(self, service: Service, ports: dict[PortKey, ServicePort]) -> str:
        before = next((i.ip for i in service.status.ingress if i.ip), "")
        wanted = service.spec.load_balancer_ip
        for tries, address in enumerate(self._pool.candidates(service.uid, wanted, before)):
            try:
                _check_ports(address, ports)
            except AddressInUseError:
                if address in {wanted, before} or tries >= _ADDRESS_TRIES:
                    raise
            else:
                return address
        raise ProviderError("no address is left")  # the pool has said so before

    def _frontend(
        self, balancer: _LoadBalancer, port: ServicePort, rules: Rules, old: Frontend | None
    ) -> Frontend:
        return Frontend(
            name=f"{default_load_balancer_name(balancer.service)}-{port.port}",
            address=balancer.address,
            port=port.port,
            rules=rules,
            affinity_seconds=balancer.service.spec.affinity_seconds,
            slots=[] if old is None else [msgspec.structs.replace(slot) for slot in old.slots],
        )

    def _backends(self, balancer: _LoadBalancer, port: ServicePort) -> list[Backend]:
        if self._slices is not None:
            return self._endpoints.backends(balancer.service.key, port)
        return node_port_backends(port, balancer.nodes, balancer.service)

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
                    await self._clock.sleep(_RESTART_SECONDS)

    async def _change_backends(self, balancer: _LoadBalancer) -> None:
        """Bring the present backends into force, by the runtime API where there is room."""
        commands: list[str] = []
        grown = False
        for key, frontend in balancer.frontends.items():
            change = frontend.assign(self._backends(balancer, balancer.ports[key]))
            commands += change.commands
            grown = grown or change.grown
            for number in change.drained:
                self._spawn(self._drain(balancer.service.uid, key, number))
        if grown or self._is_unsure:
            await self._reload()
        elif commands:
            try:
                async with self._changing:
                    await self._write()
                    await self._tell(commands)
            except BaseException:
                self._is_unsure = True
                raise
            self._runtime_changes += 1

    async def _drain(self, uid: str, key: PortKey, number: int) -> None:
        """End the connections of a backend that is gone, in due time; then free its slot."""
        await self._clock.sleep(self._drain_seconds)
        async with self._changing:
            balancer = self._balancers.get(uid)
            frontend = None if balancer is None else balancer.frontends.get(key)
            if frontend is None or not frontend.slots[number].draining:
                return  # the port is gone, or the backend has come back
            try:
                await self._tell([f"shutdown sessions server {frontend.server(number)}"])
            except (HAProxyError, OSError) as error:
                _logger.warning("connections of a removed backend go on: %s", error)
            frontend.slots[number] = Slot()

    # --- HAProxy ---

    async def _reload(self) -> None:
        """Bring the whole present state into force."""
        self._wanted += 1
        mine = self._wanted
        async with self._changing:
            if self._applied >= mine:
                return  # somebody else's reload had this change in it
            generation = self._wanted
            try:
                path = await self._write(generation)
                self._is_unsure = False
                await self._check(path)
                await self._wait_for(generation, reload=True)
            except BaseException:
                self._is_unsure = True
                raise
            self._applied = generation
            self._reloads += 1

    async def _write(self, generation: int | None = None) -> Path:
        frontends = [f for b in self._balancers.values() for f in b.frontends.values()]
        settings = Settings(
            runtime_socket=str(self._directory / "runtime.sock"),
            generation=self._applied if generation is None else generation,
            check_seconds=self._health_check_seconds,
        )
        path = self._directory / "haproxy.cfg"
        new = path.with_suffix(".new")
        text = render(settings, frontends)
        new.write_text(text)
        new.replace(path)
        return path

    async def _check(self, path: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            self._binary,
            "-c",
            "-f",
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, complaints = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            words = "; ".join(
                line.partition(" : ")[2] or line
                for line in complaints.decode(errors="replace")
                .replace(str(path), path.name)
                .splitlines()
                if "[ALERT]" in line
            )
            raise HAProxyError(f"haproxy refuses its configuration: {words[:500]}")

    async def _wait_for(self, generation: int, *, reload: bool = False) -> None:
        ask_at = self._clock.now()
        try:
            async with self._clock.timeout(RELOAD_SECONDS):
                while await self._generation() != generation:
                    if self._process is None or self._process.returncode is not None:
                        raise HAProxyError("haproxy has ended before it took its configuration")
                    # A master that still is at its last reload may miss the next.
                    if reload and self._clock.now() >= ask_at:
                        ask_at = self._clock.now() + _RELOAD_AGAIN_SECONDS
                        with contextlib.suppress(OSError):  # it closes the connection at once
                            await self._ask("master.sock", ["reload"])
                    await self._clock.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise HAProxyError(
                f"haproxy has not taken its configuration within {RELOAD_SECONDS:g} s"
            ) from None

    async def _generation(self) -> int:
        with contextlib.suppress(OSError):
            for line in (await self._ask("runtime.sock", ["show info"])).splitlines():
                name, _, value = line.partition(": ")
                if name == "description" and value.isdigit():
                    return int(value)
        return -1

    async def _tell(self, commands: Sequence[str]) -> None:
        answers = [await self._ask("runtime.sock", some) for some in _in_pieces(commands)]
        complaints = [
            line
            for answer in answers
            for line in answer.splitlines()
            if line and not line.startswith(("no need to change", "IP changed", "port changed"))
        ]
        if complaints:
            raise HAProxyError(f"haproxy answers: {' '.join(complaints)[:300]}")

    async def _ask(self, name: str, commands: Sequence[str]) -> str:
        async with self._clock.timeout(RELOAD_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(self._directory / name))
            try:
                writer.write("; ".join(commands).encode() + b"\n")
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.transport.abort()


def _check_ports(address: str, keys: Iterable[PortKey]) -> None:
    """Find out in our own words whether ports can be had; HAProxy would only not reload."""
    for _, port in keys:
        bind(socket.SOCK_STREAM, address, port).close()


def _in_pieces(commands: Iterable[str]) -> Iterator[list[str]]:
    """Yield commands in as many as HAProxy takes at once: what fits its buffer of 16 KiB."""
    piece: list[str] = []
    room = _COMMAND_BYTES
    for command in commands:
        room -= len(command) + 2
        if room < 0 and piece:
            yield piece
            piece, room = [], _COMMAND_BYTES - len(command) - 2
        piece.append(command)
    if piece:
        yield piece


def _needs_reload(before: _LoadBalancer, after: _LoadBalancer) -> bool:
    if before.address != after.address or before.frontends.keys() != after.frontends.keys():
        return True
    return any(
        (old.rules, old.affinity_seconds, len(old.slots))
        != (new.rules, new.affinity_seconds, len(new.slots))
        for old, new in ((before.frontends[key], after.frontends[key]) for key in before.frontends)
    )
