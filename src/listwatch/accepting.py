"""Taking connections, also where this process may open no more files.

asyncio's servers log each connection that they can't take, up to the backlog at once, with a
traceback, and come back as often: megabytes within seconds.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from listwatch.clock import Clock, Timer

_logger = logging.getLogger(__name__)

#: Connections that wait to be taken, at most.
BACKLOG: Final = 1024
#: Seconds without taking connections after one could not be taken.
PAUSE_SECONDS: Final = 1.0
#: Seconds between two warnings.
WARNING_SECONDS: Final = 60.0
# Connections taken in one go, so that a flood does not keep other tasks from running.
_BURST: Final = 64
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def is_out_of_files(error: OSError) -> bool:
    """Tell whether this process or machine can open no more files or sockets for now."""
    return error.errno in _SHORTAGES


class ShortageLog:
    """Warns of shortages, once a minute however many there are and wherever.

    Attributes:
        count: how many there were.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.now()
        self.count = 0

    def tell(self, what: str, error: OSError) -> None:
        """Count a shortage, and log it unless another was logged within a minute.

        Args:
            what: what was not done because of it.
            error: the reason.
        """
        self.count += 1
        now = self._clock.now()
        if now < self._next:
            return
        self._next = now + WARNING_SECONDS
        _logger.warning(
            "%s: %s; continuing when there is room (raise the limit of open files, ulimit -n)",
            what,
            error.strerror or error,
        )


class Acceptor:
    """Takes the connections of a listening socket, for one event loop.

    While no more files can be opened, connections wait in the backlog.

    Args:
        sock: listens, without blocking; closed by `close`.
        protocol_factory: makes the protocol of each connection.
        shortages: told of connections that can't be taken.
        clock: time.
        ssl_context: for connections by TLS.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        shortages: ShortageLog,
        clock: Clock,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = sock
        self._name = "port {1} of {0}".format(*sock.getsockname()[:2])
        self._protocol_factory = protocol_factory
        self._shortages = shortages
        self._clock = clock
        self._ssl = ssl_context
        self._loop = asyncio.get_running_loop()
        self._timer: Timer | None = None
        #: the tasks that start connections, and the sockets of those that have not begun to
        self._starting: set[asyncio.Task[None]] = set()
        self._taken: set[socket.socket] = set()
        self._loop.add_reader(sock, self._accept)

    def pause(self, error: OSError) -> None:
        """Take no connection for a moment, since there is a shortage."""
        self._shortages.tell(f"{self._name} takes no connections", error)
        if self._timer is None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._timer = self._clock.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_BURST):
            try:
                connection, _peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Whatever keeps it from taking connections: the socket stays readable, and asking
                # again at once would turn in a circle.
                self.pause(error)
                return
            connection.setblocking(False)
            self._taken.add(connection)
            task = self._loop.create_task(self._start(connection))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start(self, connection: socket.socket) -> None:
        self._taken.discard(connection)
        try:
            _ = await self._loop.connect_accepted_socket(
                self._protocol_factory, connection, ssl=self._ssl
            )
        except OSError as error:  # the peer has gone, or speaks no TLS
            connection.close()
            _logger.debug("%s: a connection has not begun: %s", self._name, error)

    def close(self) -> None:
        """Take no more connections; those that were taken go on. Harmless when called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def aclose(self) -> None:
        """Take no more connections, and end those that have no protocol yet.

        One in a TLS handshake, for instance. Harmless when called again.
        """
        self.close()
        starting = list(self._starting)
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        for connection in self._taken:  # their tasks were cancelled before they began
            connection.close()
        self._taken.clear()


async def listening_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host.

    Args:
        host: a name or address; None for all interfaces.
        port: 0 for a free one.

    Raises:
        OSError: an address can't be had.
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
