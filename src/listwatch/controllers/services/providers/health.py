"""Checks the health of backends."""

import asyncio
from collections.abc import Iterable
from typing import Final

from listwatch.clock import Clock
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.listening import is_shortage

#: Seconds within which a backend must respond.
CHECK_SECONDS: Final = 2.0
#: Maximum backends of a port checked at once.
CHECKS_AT_ONCE: Final = 20
_ANSWER_LIMIT: Final = 1024


async def accepts_connections(backend: Backend, clock: Clock) -> bool:
    """Return whether a backend accepts a TCP connection in time; closes it at once."""
    return await _ask(backend, clock, b"") is not None


async def serves_healthz(host: str, port: int, clock: Clock) -> bool:
    """Return whether a node's health port responds with 200 in time."""
    question = f"GET /healthz HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()
    answer = await _ask(Backend(host, port), clock, question)
    return answer is not None and answer.split(b" ")[1:2] == [b"200"]


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
                # Nothing more is expected: don't wait for the peer to close.
                writer.transport.abort()
    except OSError as error:
        if is_shortage(error):
            raise
        return None


async def failing(backends: Iterable[Backend], health_port: int, clock: Clock) -> set[Backend]:
    """Return the unhealthy backends.

    Args:
        backends: the backends to check.
        health_port: 0 to check the backends themselves; otherwise the port on their hosts that
            serves /healthz.
        clock: the time.

    Raises:
        OSError: this machine lacks resources for the check.
    """
    slots = asyncio.Semaphore(CHECKS_AT_ONCE)
    shortages: list[OSError] = []
    failed: set[Backend] = set()

    async def check(backend: Backend) -> None:
        async with slots:
            try:
                if health_port:
                    well = await serves_healthz(backend.host, health_port, clock)
                else:
                    well = await accepts_connections(backend, clock)
            except OSError as error:
                shortages.append(error)
                return
        if not well:
            failed.add(backend)

    async with asyncio.TaskGroup() as group:
        for backend in backends:
            group.create_task(check(backend))
    if shortages:
        raise shortages[0]
    return failed
