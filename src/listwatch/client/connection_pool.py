"""Connections for `transport`: idle ones, and new ones."""

import asyncio
import os
import socket
import tempfile
from functools import partial
from ssl import SSLError
from typing import Final

import msgspec

from listwatch.client.tls import handshake_failure
from listwatch.client.transport_connection import (
    MAX_READ_BYTES,
    MAX_TLS_BYTES,
    Connection,
    Target,
)
from listwatch.clock import Clock, Timeout, Timer
from listwatch.errors import DisconnectedError

try:
    import aiofastnet
except ImportError:  # the extra `fast` is not installed
    _HAS_AIOFASTNET = False
else:
    _HAS_AIOFASTNET = True

# Maximum bytes of a certificate in PEM.
_LARGEST_CERTIFICATE: Final = 16 * 1024
#: `connect_timeout`, on the injected clock, limits a TLS handshake, not asyncio's timer.
_NO_TIMEOUT: Final = 7 * 24 * 3600.0


class PoolStatistics(msgspec.Struct, frozen=True):
    """The connections of a `ConnectionPool`: idle ones, and those in use."""

    idle: int
    used: int


class ConnectionPool:
    """The connections to a client's servers: those in use, and idle ones for the next list.

    For one event loop.

    Args:
        clock: measures the idle time.
        max_idle: maximum idle connections; further ones are closed.
        idle_seconds: how long one stays idle; less than servers and load balancers allow.
    """

    def __init__(self, clock: Clock, *, max_idle: int = 4, idle_seconds: float = 30.0) -> None:
        self._clock = clock
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._idle: dict[Connection, Timer] = {}
        self._used: set[Connection] = set()
        #: The time limits of tasks that wait for a new connection.
        self.connecting: set[Timeout] = set()
        self.is_closed = False
        self._buffer: memoryview | None = None

    @property
    def buffer(self) -> memoryview:
        """The buffer that the connections read into; created on first use."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(MAX_READ_BYTES))
        return self._buffer

    def statistics(self) -> PoolStatistics:
        """Return the number of connections."""
        return PoolStatistics(idle=len(self._idle), used=len(self._used))

    def find(self, target: Target) -> Connection | None:
        """Return the most recently used idle connection; `use` it at once."""
        for connection in reversed(self._idle):
            if connection.target == target and connection.is_idle:
                return connection
        return None

    def use(self, connection: Connection) -> None:
        """Count a connection as in use, until it is given back."""
        if self.is_closed:
            connection.abort()
            raise DisconnectedError(f"{connection.target}: the client is closed")
        if (timer := self._idle.pop(connection, None)) is not None:
            timer.cancel()
        self._used.add(connection)

    def give(self, connection: Connection, *, keep: bool) -> None:
        """Take a connection back: keep it for the next request, or close it."""
        self._used.discard(connection)
        if not keep or self.is_closed or not (connection.complete and connection.is_idle):
            connection.abort()
            return
        if len(self._idle) >= self._max_idle:
            self._expire(next(iter(self._idle)))
        connection.rest()
        timer = self._clock.call_later(self._idle_seconds, self._expire, connection)
        self._idle[connection] = timer

    def _expire(self, connection: Connection) -> None:
        self._idle.pop(connection).cancel()
        connection.abort()

    def close(self) -> None:
        """Close every connection: tasks that read or wait for one get a `DisconnectedError`."""
        self.is_closed = True
        for limit in self.connecting:
            limit.postpone(0)
        for connection in [*self._idle]:
            self._expire(connection)
        for connection in self._used:
            connection.disconnect()


async def connect(
    target: Target, clock: Clock, connect_timeout: float | None, pool: ConnectionPool
) -> Connection:
    """Return a new connection.

    Args:
        target: where to.
        clock: measures the time limit.
        connect_timeout: seconds; None for no limit.
        pool: ends the wait when it is closed.

    Raises:
        DisconnectedError: no connection in time, or none at all, or the pool was closed.
    """
    if pool.is_closed:
        raise DisconnectedError(f"{target}: the client is closed")
    try:
        async with clock.timeout(connect_timeout) as limit:
            pool.connecting.add(limit)
            try:
                if target.unix_socket is not None:
                    return await _open(target, None, pool.buffer)
                return await _connect_to_any(target, pool.buffer)
            finally:
                pool.connecting.discard(limit)
    except TimeoutError as error:
        if pool.is_closed:
            raise DisconnectedError(f"{target}: the client is closed") from None
        raise DisconnectedError(f"{target}: no connection within {connect_timeout:g} s") from error


async def _connect_to_any(target: Target, buffer: memoryview) -> Connection:
    """Try the addresses in turn; asyncio's version reports only as text whether all refused."""
    errors: list[DisconnectedError] = []
    for address in await _look_up(target):
        try:
            return await _open(target, address, buffer)
        except DisconnectedError as error:
            errors.append(error)
    for failure in errors:
        if not failure.refused:
            raise failure
    raise errors[0]


async def _look_up(target: Target) -> list[str]:
    kind = socket.SOCK_STREAM
    try:
        try:
            found = socket.getaddrinfo(
                target.host, target.port, type=kind, flags=socket.AI_NUMERICHOST
            )
        except socket.gaierror:  # a name, whose look-up may take long
            found = await asyncio.get_running_loop().getaddrinfo(
                target.host, target.port, type=kind
            )
    except socket.gaierror as error:
        raise DisconnectedError(f"{target}: the host is unknown: {error.strerror}") from error
    return [str(address[4][0]) for address in found]


def _is_fast() -> bool:
    """Return whether connections are aiofastnet's, whose TLS keeps the interpreter lock.

    Python's own TLS releases it for each record of 16 KB (CPython#81536): next to a thread that
    computes, a TLS watch then gets 1 % of its rate. aiofastnet reads the peer's certificate through
    a temporary file; if none can be created, Python's own TLS is used.
    """
    return _HAS_AIOFASTNET and _has_temporary_files()


def _has_temporary_files() -> bool:
    # Check each time: since the start the directory may have become full or read-only, or be gone.
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(_LARGEST_CERTIFICATE))
            file.flush()
    except OSError:
        return False
    return True


async def _open(target: Target, address: str | None, buffer: memoryview) -> Connection:
    loop = asyncio.get_running_loop()
    connection = Connection(target, buffer)
    handshake_timeout = None if target.ssl is None else _NO_TIMEOUT
    try:
        if target.unix_socket is not None:
            await loop.create_unix_connection(
                lambda: connection,
                target.unix_socket,
                ssl=target.ssl,
                server_hostname=target.server_hostname,
                ssl_handshake_timeout=handshake_timeout,
            )
        else:
            create = loop.create_connection
            if _is_fast():  # its handshake never ends without room for a temporary file
                create = partial(
                    aiofastnet.create_connection,
                    loop,
                    ssl_incoming_bio_size=None if target.ssl is None else MAX_TLS_BYTES,
                )
            await create(
                lambda: connection,
                address or target.host,
                target.port,
                ssl=target.ssl,
                server_hostname=target.server_hostname,
                ssl_handshake_timeout=handshake_timeout,
            )
    except asyncio.CancelledError:
        connection.abort()  # asyncio's orderly close may take long with TLS
        raise
    except SSLError as error:
        raise DisconnectedError(f"{target}: {handshake_failure(error)}") from error
    except (ConnectionRefusedError, FileNotFoundError) as error:
        words = _reason(error)
        raise DisconnectedError(f"{target}: no connection: {words}", refused=True) from error
    except OSError as error:
        raise DisconnectedError(f"{target}: no connection: {_reason(error)}") from error
    return connection


def _reason(error: OSError) -> str:
    # The event loop's text for an error with a number only repeats the address.
    return os.strerror(error.errno) if error.errno else str(error)
