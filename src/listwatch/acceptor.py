"""Accepting connections, also where the process has no files left for them.

asyncio's own server logs each failed `accept` with a traceback, a thousand times a second at the
limit of open files (CPython 3.11 to 3.13), and uvloop's drops connections there.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from listwatch.clock import Clock, Timer

_log = logging.getLogger(__name__)

#: What says that the process or the system has no room for one more connection.
_LIMITS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
#: Seconds until the next try then, and between two lines of the log.
_PAUSE: Final = 1.0
_LOG_INTERVAL: Final = 60.0
#: So many connections are accepted before other work gets its turn.
_BATCH: Final = 100
#: How many connections wait in the system to be accepted.
_BACKLOG: Final = 1024


class Acceptor:
    """Listens on addresses and connects a protocol to each connection that comes.

    At the limit of open files it pauses, tries again each second, and says so in one line a
    minute; connections wait meanwhile in the system's queue. For one event loop, of any kind.

    Args:
        host: a name or an address, of which all addresses are listened on; "" means every one.
        port: 0 takes a free one, the same for each address.
        protocol: makes the protocol of a connection.
        clock: times the pauses.
        tls: encrypts the connections; None leaves them plain.
    """

    def __init__(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        clock: Clock,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._protocol = protocol
        self._clock = clock
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, Timer] = {}
        self._next_line = 0.0
        #: accepted sockets that no protocol has yet, and the tasks that connect one
        self._accepted: set[socket.socket] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that is listened on, after `start`."""
        return self._port

    async def start(self) -> None:
        """Begin to listen and to accept.

        Raises:
            OSError: an address can't be listened on; none is then.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, address in dict.fromkeys(
                (family, address) for family, *_, address in found
            ):
                self._listen(family, address)
        except BaseException:
            self._close_sockets()
            raise
        for listener in self._sockets:
            loop.add_reader(listener, self._accept, listener)

    def _listen(self, family: int, address: Sequence[object]) -> None:
        host, _, *rest = address
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(listener)
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, self._port, *rest))
        listener.listen(_BACKLOG)
        self._port = listener.getsockname()[1]

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _LIMITS:
                    raise
                self._pause(listener, error)
                return
            connection.setblocking(False)
            self._accepted.add(connection)
            task = asyncio.get_running_loop().create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        self._accepted.discard(connection)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except OSError as error:  # the client went away, or speaks no TLS
            _log.debug("a connection ended before it was one: %s", error)
            connection.close()

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def resume() -> None:
            del self._pauses[listener]
            loop.add_reader(listener, self._accept, listener)

        self._pauses[listener] = self._clock.call_later(_PAUSE, resume)
        now = self._clock.now()
        if now >= self._next_line:
            self._next_line = now + _LOG_INTERVAL
            _log.warning(
                "port %d accepts no connections: %s; trying again each second",
                self._port,
                os.strerror(error.errno or 0).lower(),
            )

    async def close(self) -> None:
        """Stop to listen; connections that have a protocol stay. Harmless when called twice."""
        self._close_sockets()
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        for connection in self._accepted:  # their tasks were cancelled before they began
            connection.close()
        self._accepted.clear()

    def _close_sockets(self) -> None:
        for timer in self._pauses.values():
            timer.cancel()
        self._pauses.clear()
        sockets, self._sockets = self._sockets, []
        for listener in sockets:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
