"""Forwards TCP connections from one listening port to backends."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, cast

from listwatch.accepting import Acceptor, ShortageLog, is_out_of_files
from listwatch.clock import Clock, Timer
from listwatch.controllers.services.figures import Traffic
from listwatch.controllers.services.providers.balancing import Backend, Balancer
from listwatch.controllers.services.providers.listening import (
    Rules,
    bind,
    is_shortage,
)
from listwatch.controllers.services.providers.proxy_protocol import header
from listwatch.controllers.services.providers.transport import Poller, SocketTransport

_logger = logging.getLogger(__name__)

#: Seconds within which a backend must accept a connection.
CONNECT_SECONDS: Final = 5.0

# Where the system allows it, detect a silent dead peer within two minutes.
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))

# Searches for idle connections within the idle time-out: one is closed at most an eighth too late.
_SWEEPS: Final = 8

#: Runs a coroutine in a task that its owner ends.
Spawn = Callable[[Coroutine[object, object, None]], "asyncio.Task[None]"]


class _End:
    """One end of a connection: forwards what it receives."""

    __slots__ = (
        "_connection",
        "_early",
        "_transport",
        "has_ended",
        "peer",
    )

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._transport: SocketTransport | None = None
        self.peer: _End | None = None
        self._early: list[bytes] = []
        self.has_ended = False

    @property
    def transport(self) -> SocketTransport:
        assert self._transport is not None  # noqa: S101 - set before anything else is called
        return self._transport

    def connection_made(self, transport: SocketTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    @property
    def received(self) -> int:
        """Number of received bytes."""
        return 0 if self._transport is None else self._transport.received

    def join(self, peer: "_End", first: bytes = b"") -> None:
        """Forward everything to a peer from now on, starting with what has arrived so far."""
        self.peer = peer
        self.transport.forward_to(peer.transport)
        if first or self._early:
            peer.transport.write(b"".join((first, *self._early)))
        self._early.clear()
        if self.has_ended:
            peer.transport.write_eof()

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.transport.resume_reading()

    def eof_received(self) -> None:
        self.has_ended = True
        if self.peer is not None:
            if self.peer.has_ended:
                self._connection.close()
            else:
                self.peer.transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.lost(exc)


class _Connection:
    """A client's connection and, once there is one, the backend's."""

    def __init__(self, listener: "TCPListener") -> None:
        self._listener = listener
        self.client = _End(self)
        self._server: _End | None = None
        self.backend: Backend | None = None
        self._connecting: asyncio.Task[None] | None = None
        #: The bytes when they were last seen to differ, and the time of that.
        self.seen = (0, 0)
        self.used = listener.clock.now()

    def begin(self, sock: socket.socket) -> None:
        """Start: find a backend for the client.

        Raises:
            OSError: the client has gone, or too many files are open. Its socket is not closed.
        """
        listener = self._listener
        source = cast("tuple[str, int]", sock.getpeername()[:2])
        if not listener.admits(source[0]):
            listener.refused += 1
            sock.close()
            return
        _prepare(sock)
        self.client.connection_made(SocketTransport(sock, self.client, listener.poller))
        listener.accepted += 1
        listener.connections.add(self)
        self._connecting = listener.spawn(self._connect(source))

    async def _connect(self, source: tuple[str, int]) -> None:
        try:
            await self._find_backend(source)
        except Exception:
            # Any error affects only this connection.
            _logger.exception("connection from %s:%d failed", *source)
            self.abort()

    async def _find_backend(self, source: tuple[str, int]) -> None:
        listener = self._listener
        tried: set[Backend] = set()
        while (backend := listener.balancer.choose(source[0], tried)) is not None:
            # Set before the first await, so the connection is drained, too.
            self._use(backend)
            try:
                server = await self._open(backend)
            except OSError as error:
                if is_shortage(error):
                    listener.lacks(f"no connection to backend {backend.host}:{backend.port}", error)
                    break
                tried.add(backend)
                if listener.balancer.report(backend, well=False):
                    _logger.warning("backend %s:%d does not answer: %s", *backend, error)
                continue
            if self.client.transport.is_closing():
                server.transport.abort()
                return
            self._server = server
            destination = (listener.address, listener.port)
            first = header(listener.rules.proxy_protocol, source, destination)
            server.join(self.client)
            self.client.join(server, first)
            server.transport.resume_reading()
            self.client.transport.resume_reading()
            return
        listener.failed += 1
        self.abort()

    async def _open(self, backend: Backend) -> _End:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            family = socket.AF_INET6 if ":" in backend.host else socket.AF_INET
            sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            async with self._listener.clock.timeout(CONNECT_SECONDS):
                await loop.sock_connect(sock, backend)
            _prepare(sock)
            server = _End(self)
            server.connection_made(SocketTransport(sock, server, self._listener.poller))
            undo.pop_all()
        return server

    def _use(self, backend: Backend | None) -> None:
        balancer = self._listener.balancer
        if self.backend is not None:
            balancer.ended(self.backend)
        if backend is not None:
            balancer.began(backend)
        self.backend = backend

    def moved(self) -> tuple[int, int]:
        """Return the bytes received from the client and from the backend."""
        return self.client.received, 0 if self._server is None else self._server.received

    def close(self) -> None:
        """Close both sides once pending data is sent."""
        for end in (self.client, self._server):
            if end is not None:
                end.transport.close()

    def abort(self) -> None:
        """Close both sides at once."""
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self._server):
            if end is not None:
                end.transport.abort()
        self._is_over()

    def lost(self, error: Exception | None) -> None:
        """Handle the end of one side: end the other, with a reset if it was reset."""
        if self._connecting is not None and self._server is None:
            self._connecting.cancel()
        if error is not None:
            self.abort()
            return
        self.close()
        self._is_over()

    def _is_over(self) -> None:
        connections = self._listener.connections
        if self in connections:
            connections.remove(self)
            self._listener.add(self.moved())
            self._use(None)


def _prepare(sock: socket.socket) -> None:
    """Send at once, and let the kernel detect a dead peer, whose connection would stay for ever."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class TCPListener:
    """Listens on one address and port and forwards each connection to a backend.

    Half-closed connections stay half-closed. If one side sends faster than the other reads, it is
    slowed down. If a backend refuses a connection, the next one is tried, until all were.

    Args:
        address: the address to listen on.
        port: the port to listen on.
        balancer: chooses backends.
        rules: who may connect, and the header for backends.
        spawn: runs the connection attempts.
        clock: the time.
        drain_seconds: how long connections to a removed backend continue.
        shortages: called when this process can open no more files.
        poller: waits for the connections; None for one of its own.
    """

    def __init__(
        self,
        address: str,
        port: int,
        balancer: Balancer,
        rules: Rules,
        *,
        spawn: Spawn,
        clock: Clock,
        drain_seconds: float,
        shortages: ShortageLog | None = None,
        poller: Poller | None = None,
    ) -> None:
        self.address = address
        self.port = port
        self.balancer = balancer
        self.spawn = spawn
        self.clock = clock
        self._drain_seconds = drain_seconds
        self._shortages = shortages or ShortageLog(clock)
        self.poller = poller or Poller()
        self._acceptor: Acceptor | None = None
        self._timers: set[Timer] = set()
        self._sweeper: Timer | None = None
        self.rules = rules
        self.connections: set[_Connection] = set()
        self.accepted = self.refused = self.failed = 0
        # Of connections that have ended.
        self._bytes_in = self._bytes_out = 0

    async def open(self) -> None:
        """Start to listen; returns without waiting.

        Raises:
            ProviderError: the address is unavailable.
        """
        self._acceptor = Acceptor(
            bind(socket.SOCK_STREAM, self.address, self.port),
            None,
            shortages=self._shortages,
            clock=self.clock,
            take=self._take,
        )

    def _take(self, sock: socket.socket) -> None:
        try:
            _Connection(self).begin(sock)
        except OSError as error:
            sock.close()
            if is_shortage(error):
                self.lacks("a connection was not served", error)

    @property
    def rules(self) -> Rules:
        """The rules for connections."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._rules = rules
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if rules.idle_seconds:
            self._sweeper = self.clock.call_later(rules.idle_seconds / _SWEEPS, self._sweep)

    def admits(self, client: str) -> bool:
        """Return whether a client may connect now."""
        most = self._rules.max_connections
        return self._rules.allow(client) and not (most and len(self.connections) >= most)

    def _sweep(self) -> None:
        limit = self._rules.idle_seconds
        now = self.clock.now()
        for connection in list(self.connections):
            moved = connection.moved()
            if moved != connection.seen:
                connection.seen, connection.used = moved, now
            elif connection.used <= now - limit:
                connection.abort()
        self._sweeper = self.clock.call_later(limit / _SWEEPS, self._sweep)

    def add(self, moved: tuple[int, int]) -> None:
        """Add the bytes of a connection that has ended."""
        self._bytes_in += moved[0]
        self._bytes_out += moved[1]

    def lacks(self, what: str, error: OSError) -> None:
        """Note a failure for lack of files, ports or memory."""
        if self._acceptor is not None and is_out_of_files(error):
            self._acceptor.pause(error)  # a connection accepted now could not be served
        else:
            self._shortages.tell(what, error)

    def set_backends(self, backends: Iterable[Backend]) -> None:
        """Use these backends for new connections; others end within the drain time."""
        gone = self.balancer.set_backends(backends)
        leaving = [c for c in self.connections if c.backend in gone]
        if leaving:
            self._end_later(leaving)

    def _end_later(self, leaving: Iterable[_Connection]) -> None:
        def end() -> None:
            self._timers.discard(timer)
            for connection in leaving:
                # A backend that has returned keeps its connections.
                if self._acceptor is None or connection.backend not in self.balancer.backends:
                    connection.abort()

        timer = self.clock.call_later(self._drain_seconds, end)
        self._timers.add(timer)

    def close(self, *, drain: bool) -> None:
        """Stop listening; let connections continue for the drain time, or end them at once."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        if self._sweeper is not None and not (drain and self.connections):
            self._sweeper.cancel()
            self._sweeper = None
        if drain and self._drain_seconds > 0:
            if self.connections:
                self._end_later(list(self.connections))
            return
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for connection in list(self.connections):
            connection.abort()

    @property
    def is_paused(self) -> bool:
        """Whether it is paused because this process can open no more files."""
        return self._acceptor is not None and self._acceptor.is_paused

    def statistics(self) -> Traffic:
        """Return current statistics."""
        moved = [connection.moved() for connection in self.connections]
        return Traffic(
            len(self.connections),
            self.accepted,
            self.refused,
            self.failed,
            self._bytes_in + sum(one for one, _ in moved),
            self._bytes_out + sum(one for _, one in moved),
        )
