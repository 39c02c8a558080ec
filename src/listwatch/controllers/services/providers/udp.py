"""Forwards UDP datagrams from one listening port to backends, and the answers back."""

import asyncio
import logging
import resource
import socket
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, cast

from listwatch.accepting import ShortageLog
from listwatch.backoff import DATAGRAM
from listwatch.clock import Clock, Timer
from listwatch.controllers.services.figures import Traffic
from listwatch.controllers.services.providers.balancing import Backend, Balancer
from listwatch.controllers.services.providers.listening import (
    Rules,
    bind,
    is_shortage,
)

_logger = logging.getLogger(__name__)

#: Seconds after which a silent client is forgotten.
IDLE_SECONDS: Final = 60.0
#: Maximum clients served at once; to make room, the client that was silent longest is dropped.
FLOW_LIMIT: Final = 10_000
# Share of this process's file limit; other parts need files too.
_SHARE_OF_FILES: Final = 4
_DATAGRAM: Final = 65_535
# Datagrams read at once, so that a flood does not starve other tasks.
_BURST: Final = 64


def flow_limit() -> int:
    """Return how many clients one port serves at once, each with its own socket."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return FLOW_LIMIT
    return min(FLOW_LIMIT, max(1, files // _SHARE_OF_FILES))


class _Flow:
    """One client and its socket to the backend."""

    def __init__(self, listener: "UDPListener", client: tuple[str, int], backend: Backend) -> None:
        self._listener = listener
        self._client = client
        self.backend = backend
        self.used = listener.clock.now()
        family = socket.AF_INET6 if ":" in backend.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect((backend.host, backend.port))
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket, self._receive)
        except OSError:
            self._socket.close()
            raise

    def send(self, data: bytes) -> None:
        """Send a datagram to the backend; a failed one is lost, as usual with UDP."""
        self.used = self._listener.clock.now()
        try:
            self._socket.send(data)
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)

    def _receive(self) -> None:
        for _ in range(_BURST):
            try:
                data = self._socket.recv(_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:
                self._fail(error)
                return
            self.used = self._listener.clock.now()
            self._listener.answer(data, self._client, self.backend)

    def _fail(self, error: OSError) -> None:
        # Nothing listens at the backend: the client's next datagram goes to another one.
        self._listener.refused_by(self.backend, error)
        self._listener.forget(self._client)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()


class UDPListener:
    """Listens on one address and port; each active client has one backend for its datagrams.

    Args:
        address: the address to listen on.
        port: the port to listen on.
        balancer: chooses backends.
        rules: who may send. There is no PROXY protocol for UDP here.
        clock: the time.
        drain_seconds: how long a client keeps a removed backend.
        shortages: called when this process can open no more files.
    """

    def __init__(
        self,
        address: str,
        port: int,
        balancer: Balancer,
        rules: Rules,
        *,
        clock: Clock,
        drain_seconds: float,
        shortages: ShortageLog | None = None,
    ) -> None:
        self._shortages = shortages or ShortageLog(clock)
        self.address = address
        self.port = port
        self.balancer = balancer
        self.rules = rules
        self.clock = clock
        self._drain_seconds = drain_seconds
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limit = flow_limit()
        self._sweeper: Timer | None = None
        self._timers: set[Timer] = set()
        # For backends that refused: failures in a row, and the time of the next try.
        self._failures: dict[Backend, int] = {}
        self._retries: dict[Backend, Timer] = {}
        # Ordered by last datagram from the client.
        self._flows: OrderedDict[tuple[str, int], _Flow] = OrderedDict()
        self._accepted = self._refused = self._failed = self._bytes_in = self._bytes_out = 0

    async def open(self) -> None:
        """Start to listen; returns without waiting.

        Raises:
            ProviderError: the address is unavailable.
        """
        self._socket = bind(socket.SOCK_DGRAM, self.address, self.port)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._receive)
        self._sweep()

    def _receive(self) -> None:
        for _ in range(_BURST):
            if self._socket is None:
                return
            try:
                data, source = self._socket.recvfrom(_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:  # reports an undeliverable answer
                _logger.debug("UDP %s port %d: %s", self.address, self.port, error)
                return
            self._forward(data, cast("tuple[str, int]", source[:2]))

    def _forward(self, data: bytes, client: tuple[str, int]) -> None:
        if not self.rules.allow(client[0]):
            self._refused += 1
            return
        flow = self._flows.get(client)
        if flow is None:
            flow = self._begin(client)
            if flow is None:
                self._failed += 1
                return
        self._flows.move_to_end(client)
        self._bytes_in += len(data)
        flow.send(data)

    def _begin(self, client: tuple[str, int]) -> _Flow | None:
        backend = self.balancer.choose(client[0])
        if backend is None:
            return None
        if len(self._flows) >= self._limit:
            self.forget(next(iter(self._flows)))
        try:
            flow = self._open(client, backend)
        except OSError as error:
            if is_shortage(error):
                self._shortages.tell(f"no socket to backend {backend.host}:{backend.port}", error)
            else:
                self.refused_by(backend, error)
            return None
        self._accepted += 1
        self.balancer.began(backend)
        self._flows[client] = flow
        return flow

    def _open(self, client: tuple[str, int], backend: Backend) -> _Flow:
        try:
            return _Flow(self, client, backend)
        except OSError as error:
            if not is_shortage(error) or not self._flows:
                raise
        # Here, too, the client that was silent longest makes room.
        self.forget(next(iter(self._flows)))
        return _Flow(self, client, backend)

    def refused_by(self, backend: Backend, error: OSError) -> None:
        """Skip a backend that refused a datagram until it is time to retry."""
        if not self.balancer.report(backend, well=False):
            return
        failures = self._failures.get(backend, 0)
        self._failures[backend] = failures + 1
        self._cancel_retry(backend)  # a health check may have found it well before that
        delay = DATAGRAM.delay(failures)
        _logger.warning(
            "backend %s:%d does not answer (%s), next try in %g s", *backend, error, delay
        )
        self._retries[backend] = self.clock.call_later(delay, self._try_again, backend)

    def _try_again(self, backend: Backend) -> None:
        self._retries.pop(backend, None)
        self.balancer.report(backend, well=True)

    def _cancel_retry(self, backend: Backend) -> None:
        if (timer := self._retries.pop(backend, None)) is not None:
            timer.cancel()

    def _answered_by(self, backend: Backend) -> None:
        del self._failures[backend]
        self._cancel_retry(backend)
        self.balancer.report(backend, well=True)

    def answer(self, data: bytes, client: tuple[str, int], backend: Backend) -> None:
        """Send a backend's datagram to its client, from the address that the client used."""
        if backend in self._failures:
            self._answered_by(backend)
        if self._socket is None:
            return
        self._bytes_out += len(data)
        try:
            self._socket.sendto(data, client)
        except OSError as error:  # lost, as usual with UDP
            _logger.debug("UDP answer to %s:%d: %s", *client, error)

    def forget(self, client: tuple[str, int]) -> None:
        """End a client's flow; its next datagram starts another."""
        if (flow := self._flows.pop(client, None)) is not None:
            self.balancer.ended(flow.backend)
            flow.close()

    @property
    def _idle_seconds(self) -> float:
        return self.rules.idle_seconds or IDLE_SECONDS

    def _sweep(self) -> None:
        now = self.clock.now()
        for client, flow in list(self._flows.items()):
            if now - flow.used >= self._idle_seconds:
                self.forget(client)
        self._sweeper = self.clock.call_later(self._idle_seconds / 4, self._sweep)

    def set_backends(self, backends: Iterable[Backend]) -> None:
        """Use these backends for new clients; others change within the drain time."""
        gone = self.balancer.set_backends(backends)
        for backend in gone:
            self._failures.pop(backend, None)
            self._cancel_retry(backend)
        leaving = {client for client, flow in self._flows.items() if flow.backend in gone}
        if not leaving:
            return

        def end() -> None:
            self._timers.discard(timer)
            for client in leaving:
                flow = self._flows.get(client)
                if flow is not None and flow.backend not in self.balancer.backends:
                    self.forget(client)

        timer = self.clock.call_later(self._drain_seconds, end)
        self._timers.add(timer)

    def close(self, *, drain: bool) -> None:  # noqa: ARG002 - without the socket nothing can drain
        """Stop listening; answers still to come are lost."""
        for timer in (*self._timers, *self._retries.values()):
            timer.cancel()
        self._timers.clear()
        self._retries.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for client in list(self._flows):
            self.forget(client)
        if self._socket is not None and self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    @property
    def is_paused(self) -> bool:
        """Never: new clients make room."""
        return False

    def statistics(self) -> Traffic:
        """Return current statistics."""
        return Traffic(
            len(self._flows),
            self._accepted,
            self._refused,
            self._failed,
            self._bytes_in,
            self._bytes_out,
        )
