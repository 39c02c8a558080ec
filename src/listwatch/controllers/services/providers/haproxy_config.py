"""HAProxy's configuration, and the commands that change it at runtime."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.listening import Rules
from listwatch.controllers.services.providers.proxy_protocol import ProxyProtocol

#: Name of this process as a peer of the processes before and after it.
PEER: Final = "listwatch"
# Maximum old workers, each of which takes some megabytes.
_MOST_OLD_WORKERS: Final = 100
# Words of a line; HAProxy allows 64.
_WORDS: Final = 50
# A backend that refuses a connection is down at once, before its next check.
_CHECKS: Final = "fall 2 rise 1 observe layer4 error-limit 1 on-error mark-down"
_SEND_PROXY: Final = {
    ProxyProtocol.NONE: "",
    ProxyProtocol.V1: " send-proxy",
    ProxyProtocol.V2: " send-proxy-v2",
}


class Slot(msgspec.Struct):
    """A place for a backend that can be filled and emptied without a reload.

    Attributes:
        backend: its backend; None if free.
        draining: takes no new connections; existing ones continue for a while.
    """

    backend: Backend | None = None
    draining: bool = False


class Assignment(msgspec.Struct, frozen=True):
    """The result of assigning backends.

    Attributes:
        commands: apply it while HAProxy runs.
        drained: numbers of slots that have started to drain.
    """

    commands: Sequence[str]
    drained: Sequence[int]


class Frontend(msgspec.Struct, kw_only=True):
    """A listening port, with its backends."""

    name: str
    addresses: Sequence[str]
    port: int
    rules: Rules
    affinity_seconds: int
    health_port: int = 0
    slots: list[Slot] = []

    def server(self, number: int) -> str:
        """Return the runtime API's name of a slot."""
        return f"{self.name}/s{number}"

    def assign(self, backends: Iterable[Backend], check_seconds: float) -> Assignment:
        """Assign a slot to each backend; remaining backends keep theirs."""
        wanted = set(backends)
        commands: list[str] = []
        drained: list[int] = []
        for number, slot in enumerate(self.slots):
            if slot.backend is None:
                continue
            if slot.backend in wanted:
                wanted.discard(slot.backend)
                if slot.draining:
                    slot.draining = False
                    commands.append(f"set server {self.server(number)} state ready")
            elif not slot.draining:
                slot.draining = True
                drained.append(number)
                commands.append(f"set server {self.server(number)} state maint")
        free = [number for number, slot in enumerate(self.slots) if slot.backend is None]
        for backend in sorted(wanted):
            if free:
                number = free.pop(0)
            else:
                number = len(self.slots)
                self.slots.append(Slot())
                commands += self._added(number, backend, check_seconds)
            self.slots[number].backend = backend
            server = self.server(number)
            commands += [
                f"set server {server} addr {backend.host} port {backend.port}",
                f"set server {server} state ready",
            ]
        return Assignment(commands, drained)

    def _added(self, number: int, backend: Backend, check_seconds: float) -> Iterable[str]:
        """Yield the commands for a slot that the configuration in force lacks."""
        server = self.server(number)
        # `add server` ignores the configuration's default-server.
        options = f"{self._options(number, check_seconds)} {_CHECKS}"
        yield f"add server {server} {_place(backend)} {options}"
        yield f"enable health {server}"

    def _options(self, number: int, check_seconds: float) -> str:
        # Affinity and consistent hashes go by ID, so it must not depend on how the slot was added.
        options = f"id {number + 1} check inter {max(1, round(check_seconds * 1000))}ms"
        if self.health_port:
            options += f" port {self.health_port}"
        return options + _SEND_PROXY[self.rules.proxy_protocol]

    def render(self, check_seconds: float) -> Iterable[str]:
        """Yield the lines of the configuration."""
        yield f"frontend {self.name}"
        for address in self.addresses:
            yield f"    bind {_place(Backend(address, self.port))}"
        ranges = [str(network) for network in self.rules.source_ranges]
        for start in range(0, len(ranges), _WORDS):
            yield f"    acl allowed src {' '.join(ranges[start : start + _WORDS])}"
        if ranges:
            yield "    tcp-request connection reject unless allowed"
        if most := self.rules.max_connections:
            yield f"    tcp-request connection reject if {{ fe_conn gt {most} }}"
        idle = round(self.rules.idle_seconds * 1000)
        if idle:
            yield f"    timeout client {idle}ms"
        yield f"    default_backend {self.name}"
        yield f"backend {self.name}"
        if self.affinity_seconds:
            # A client that the next process does not know yet gets the same backend.
            yield "    balance source"
            yield "    hash-type consistent sdbm avalanche"
        else:
            yield f"    balance {'leastconn' if self.rules.least_connections else 'roundrobin'}"
        if idle:
            yield f"    timeout server {idle}ms"
        if self.health_port:
            yield "    option httpchk GET /healthz"
            yield "    http-check expect status 200"
        elif self.rules.health_path:
            yield f"    option httpchk GET {self.rules.health_path}"
            yield "    http-check expect status 200-399"
        if self.affinity_seconds:
            table = f"    stick-table type ipv6 size 100k expire {self.affinity_seconds}s"
            yield f"{table} peers {PEER}"
            yield "    stick on src"
        for number, slot in enumerate(self.slots):
            place = "127.0.0.1:1" if slot.backend is None else _place(slot.backend)
            state = " disabled" if slot.backend is None or slot.draining else ""
            yield f"    server s{number} {place} {self._options(number, check_seconds)}{state}"


class Settings(msgspec.Struct, frozen=True):
    """Settings of the whole process.

    Attributes:
        runtime_socket: path of the runtime API's socket.
        generation: distinguishes this configuration from others.
        check_seconds: interval between checks of a backend.
        peers_socket: path of the socket through which a new process gets affinities from the old
            one.
        state_file: path of the file with the health of backends, for a new process.
        old_worker_seconds: maximum life of an old process after a reload.
    """

    runtime_socket: str
    generation: int
    check_seconds: float
    peers_socket: str
    state_file: str
    old_worker_seconds: float


def render(settings: Settings, frontends: Iterable[Frontend]) -> str:
    """Return the whole configuration."""
    lines = [
        "global",
        f"    stats socket {settings.runtime_socket} mode 600 level admin expose-fd listeners",
        f"    description {settings.generation}",
        f"    server-state-file {settings.state_file}",
        # Not the drain time: connections to remaining backends outlive reloads.
        f"    hard-stop-after {max(1, round(settings.old_worker_seconds * 1000))}ms",
        f"    mworker-max-reloads {_MOST_OLD_WORKERS}",
        f"peers {PEER}",
        f"    bind unix@{settings.peers_socket} mode 600",
        f"    server {PEER}",
        "defaults",
        "    load-server-state-from-file global",
        "    mode tcp",
        "    timeout connect 5s",
        # Clients and backends manage their idle connections themselves.
        "    timeout client 24d",
        "    timeout server 24d",
        "    option clitcpka",
        "    option srvtcpka",
        "    option redispatch 1",
        "    retries 3",
        f"    default-server {_CHECKS} init-addr none",
    ]
    for frontend in sorted(frontends, key=lambda one: one.name):
        lines += frontend.render(settings.check_seconds)
    return "\n".join(lines) + "\n"


def _place(backend: Backend) -> str:
    return (
        f"[{backend.host}]:{backend.port}" if ":" in backend.host else ":".join(map(str, backend))
    )
