"""Checks the health of backends."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from listwatch.clock import Clock
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.listening import is_shortage

#: Seconds within which a backend must respond.
CHECK_SECONDS: Final = 2.0
#: Maximum backends of a port checked at once.
CHECKS_AT_ONCE: Final = 20
_ANSWER_LIMIT: Final = 1024
_OK, _FIRST_ERROR = 200, 400
# The number of endpoints of a node, as kube-proxy reports it on a healthCheckNodePort.
_WEIGHT_HEADER: Final = b"x-load-balancing-endpoint-weight"
_MOST_WEIGHT: Final = 10_000


async def accepts_connections(backend: Backend, clock: Clock) -> bool:
    """Return whether a backend accepts a TCP connection in time; closes it at once."""
    return await _ask(backend, clock, b"") is not None


class HealthProbe(msgspec.Struct, frozen=True):
    """How to check backends; by default, whether they accept a connection.

    Attributes:
        node_port: port on the backends' hosts that serves /healthz like kube-proxy; 0 for none.
        path: path that a backend itself answers with 2xx or 3xx; empty for none.
    """

    node_port: int = 0
    path: str = ""


class Finding(msgspec.Struct, frozen=True):
    """The health of backends.

    Attributes:
        failed: the unhealthy ones.
        weights: numbers of endpoints behind the backends that reported them.
    """

    failed: frozenset[Backend]
    weights: Mapping[Backend, int]


async def answer_of(at: Backend, path: str, clock: Clock) -> tuple[int, int]:
    """Return status and weight of an HTTP response; the weight is 1 by default.

    The status is 0 without a response in time.
    """
    host = f"[{at.host}]" if ":" in at.host else at.host
    question = f"GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    head, *headers = ((await _ask(at, clock, question)) or b"").split(b"\r\n")
    parts = head.split(b" ")
    if not (parts[0].startswith(b"HTTP/") and len(parts) > 1 and parts[1].isdigit()):
        return 0, 1
    for header in headers:
        name, _, value = header.partition(b":")
        if name.lower() == _WEIGHT_HEADER and value.strip().isdigit():
            return int(parts[1]), min(int(value.strip()[:9]), _MOST_WEIGHT)
    return int(parts[1]), 1


async def _ask(backend: Backend, clock: Clock, question: bytes) -> bytes | None:
    try:
        async with clock.timeout(CHECK_SECONDS):
            reader, writer = await asyncio.open_connection(backend.host, backend.port)
            try:
                if not question:
                    return b""
                writer.write(question)
                return await reader.read(_ANSWER_LIMIT)
            finally:
                # No more data is expected: don't wait for the peer to close.
                writer.transport.abort()
    except OSError as error:
        if is_shortage(error):
            raise
        return None


async def check(backends: Iterable[Backend], probe: HealthProbe, clock: Clock) -> Finding:
    """Return the health of backends.

    Args:
        backends: the backends to check.
        probe: the kind of check.
        clock: the time.

    Raises:
        OSError: this machine lacks resources for the check.
    """
    slots = asyncio.Semaphore(CHECKS_AT_ONCE)
    shortages: list[OSError] = []
    failed: set[Backend] = set()
    weights: dict[Backend, int] = {}

    async def check_one(backend: Backend) -> None:
        async with slots:
            try:
                if probe.node_port:
                    at = Backend(backend.host, probe.node_port)
                    status, weights[backend] = await answer_of(at, "/healthz", clock)
                    is_well = status == _OK
                elif probe.path:
                    status, _ = await answer_of(backend, probe.path, clock)
                    is_well = _OK <= status < _FIRST_ERROR
                else:
                    is_well = await accepts_connections(backend, clock)
            except OSError as error:
                shortages.append(error)
                return
        if not is_well:
            failed.add(backend)

    async with asyncio.TaskGroup() as group:
        for backend in backends:
            group.create_task(check_one(backend))
    if shortages:
        raise shortages[0]
    return Finding(frozenset(failed), weights)
