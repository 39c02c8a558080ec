"""Accepts connections, also when this process can open no more files.

asyncio's servers log each connection that they can't accept, up to the backlog at once, with a
traceback, and retry as often: megabytes within seconds.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from listwatch.clock import Clock, Timer
from listwatch.errors import ConfigError

_logger = logging.getLogger(__name__)

#: Maximum connections waiting to be accepted.
BACKLOG: Final = 1024
#: Seconds without accepting after a failure.
PAUSE_SECONDS: Final = 1.0
#: Seconds between two warnings.
WARNING_SECONDS: Final = 60.0
# Some containers have a limit of a billion, which makes programs prepare for too many files.
_MOST_FILES: Final = 1_048_576
# Connections accepted at once, so that a flood does not starve other tasks.
_BURST: Final = 64
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def is_out_of_files(error: OSError) -> bool:
    """Return whether this process or machine can open no more files or sockets for now."""
    return error.errno in _SHORTAGES


def raise_file_limit() -> int:
    """Raise this process's limit of open files to the maximum, and return the limit.

    Raises the soft limit to the hard one. For a program, which owns its process.
    """
    import resource  # noqa: PLC0415 - not on Windows, which has no such limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class ShortageLog:
    """Warns of shortages, at most once a minute for all of them.

    Attributes:
        count: number of shortages.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.now()
        self.count = 0

    def tell(self, what: str, error: OSError) -> None:
        """Count a shortage, and log it unless another was logged within a minute.

        Args:
            what: what failed because of it.
            error: the reason.
        """
        self.warn(
            f"{what}: {error.strerror or error}; continuing when there is room "
            "(raise the limit of open files, ulimit -n)"
        )

    def warn(self, message: str) -> None:
        """Count a shortage, and log a message unless another was logged within a minute."""
        self.count += 1
        now = self._clock.now()
        if now >= self._next:
            self._next = now + WARNING_SECONDS
            _logger.warning("%s", message)


class ConnectionLimit:
    """Limits the open connections of acceptors, which share it. For one event loop.

    Attributes:
        most: maximum number of open connections.
        count: number of open connections, TLS handshakes included.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self._waiting: dict[Acceptor, None] = {}

    @property
    def is_reached(self) -> bool:
        """Whether there is no room for another connection."""
        return self.count >= self.most

    def take(self) -> None:
        """Count a connection that was accepted."""
        self.count += 1

    def release(self) -> None:
        """Forget a connection that has ended; the acceptors that wait for room continue."""
        self.count -= 1
        waiting, self._waiting = self._waiting, {}
        for acceptor in waiting:
            acceptor.resume()

    def wait(self, acceptor: "Acceptor") -> None:
        """Call an acceptor's `resume` when there is room."""
        self._waiting[acceptor] = None

    def forget(self, acceptor: "Acceptor") -> None:
        """Stop waiting for room. Harmless if it does not wait."""
        self._waiting.pop(acceptor, None)


class Acceptor:
    """Accepts the connections of a listening socket, for one event loop.

    While no more files can be opened, or the limit is reached, connections wait in the backlog.

    Args:
        sock: listens, without blocking; closed by `close`.
        protocol_factory: creates the protocol of each connection; None with `take`.
        shortages: receives failures to accept connections.
        clock: the time.
        ssl_context: for TLS connections.
        limit: of open connections; the protocols must call its `release` when they end. None for
            no limit.
        take: owns each connection from then on, as a socket without a protocol; must not raise.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol_factory: Callable[[], asyncio.BaseProtocol] | None,
        *,
        shortages: ShortageLog,
        clock: Clock,
        ssl_context: ssl.SSLContext | None = None,
        limit: ConnectionLimit | None = None,
        take: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self._socket = sock
        self._name = "port {1} of {0}".format(*sock.getsockname()[:2])
        self._protocol_factory = protocol_factory
        self._shortages = shortages
        self._clock = clock
        self._ssl = ssl_context
        self._limit = limit
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._timer: Timer | None = None
        #: the tasks that start connections, and the sockets of those not started yet
        self._starting: set[asyncio.Task[None]] = set()
        self._taken: set[socket.socket] = set()
        self._loop.add_reader(sock, self._accept)

    @property
    def is_paused(self) -> bool:
        """Whether it is paused and accepts no connections."""
        return self._timer is not None

    def pause(self, error: OSError) -> None:
        """Accept no connection for a moment, because of a shortage."""
        self._shortages.tell(f"{self._name} accepts no connections", error)
        if self._timer is None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._timer = self._clock.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_BURST):
            if self._limit is not None and self._limit.is_reached:
                self._wait_for_room(self._limit)
                return
            try:
                connection, _peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Whatever the reason: the socket stays readable, and accepting again at once would
                # spin.
                self.pause(error)
                return
            connection.setblocking(False)
            if self._limit is not None:
                self._limit.take()
            if self._protocol_factory is not None:
                self._start_later(connection, self._protocol_factory)
            elif self._take is not None:
                self._take(connection)
                if self.is_paused:
                    return

    def _start_later(
        self, connection: socket.socket, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._taken.add(connection)
        task = self._loop.create_task(self._start(connection, factory))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(
        self, connection: socket.socket, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._taken.discard(connection)
        try:
            _ = await self._loop.connect_accepted_socket(factory, connection, ssl=self._ssl)
        except OSError as error:  # the peer has gone, or does not speak TLS
            connection.close()
            if self._limit is not None:
                self._limit.release()
            _logger.debug("%s: a connection did not start: %s", self._name, error)

    def _wait_for_room(self, limit: ConnectionLimit) -> None:
        self._loop.remove_reader(self._socket)
        limit.wait(self)
        self._shortages.warn(
            f"{self._name} accepts no connections: {limit.most} are open, which is the limit; "
            "continuing when one ends"
        )

    def resume(self) -> None:
        """Accept connections again after a connection limit was reached."""
        if self._timer is None and self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accept no more connections; accepted ones continue. Calling it again is harmless."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._limit is not None:
            self._limit.forget(self)
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def aclose(self) -> None:
        """Accept no more connections, and end those without a protocol, such as TLS handshakes.

        Calling it again is harmless.
        """
        self.close()
        starting = list(self._starting)
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        for connection in self._taken:  # their tasks were cancelled before they started
            connection.close()
        self._taken.clear()


@contextlib.asynccontextmanager
async def accepting_at(
    host: str,
    port: int,
    protocol: Callable[[], asyncio.BaseProtocol],
    *,
    clock: Clock,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Accept connections on all addresses of a host within the block; provide the port.

    Args:
        host: a name or address; empty for all interfaces.
        port: 0 for a free port.
        protocol: creates the protocol of a connection.
        clock: the time.
        ssl_context: for TLS.

    Raises:
        OSError: an address is unavailable.
    """
    sockets = await listening_sockets(host or None, port)
    bound: int = sockets[0].getsockname()[1]
    shortages = ShortageLog(clock)
    acceptors = [
        Acceptor(each, protocol, shortages=shortages, clock=clock, ssl_context=ssl_context)
        for each in sockets
    ]
    try:
        yield bound
    finally:
        for acceptor in acceptors:
            await acceptor.aclose()


def unavailable(what: str, host: str, port: int, error: OSError) -> ConfigError:
    """Return the error for a user whose chosen address is unavailable.

    Args:
        what: would be served there.
        host: as for `accepting_at`.
        port: as there.
        error: the reason.
    """
    return ConfigError(
        f"cannot serve {what} on {host}:{port}: {error.strerror or error}; "
        "choose another port, or 0 for a free one"
    )


@contextlib.contextmanager
def kept_from_others(host: str, port: int) -> Iterator[None]:
    """Let no other program get a port within the block; connections to it are refused.

    Has no effect if the port can't be bound.

    Args:
        host: an address.
        port: the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        # Connections of the former listener may still be closing.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            sock.bind((host, port))
        yield


async def listening_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host.

    Args:
        host: a name or address; None for all interfaces.
        port: 0 for a free port.

    Raises:
        OSError: an address is unavailable.
    """
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    with contextlib.ExitStack() as undo:
        undo.callback(server.close)
        found = [socket.socket(fileno=os.dup(sock.fileno())) for sock in server.sockets]
        for sock in found:
            sock.setblocking(False)
            sock.listen(BACKLOG)
    return found
