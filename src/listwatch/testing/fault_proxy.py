"""A TCP proxy on loopback that injects network and server faults."""

import asyncio
import random
import socket
import struct
from collections import deque
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

import msgspec

from listwatch.clock import Clock, Timer
from listwatch.errors import (
    ExpiredError,
    InternalServerError,
    ServiceUnavailableError,
    StatusError,
    TooManyRequestsError,
)
from listwatch.testing.passing_http import Answers, Place, Request, Requests
from listwatch.testing.ports import free_port

__all__ = ["FaultProxy", "FaultProxyStatistics", "Place", "Side"]

_READ_BYTES: Final = 64 * 1024


class Side(StrEnum):
    """One of the two sides that the proxy connects."""

    CLIENT = "client"
    SERVER = "server"


class FaultProxyStatistics(msgspec.Struct, frozen=True):
    """What has passed through a `FaultProxy` since it was created.

    Attributes:
        connections: accepted connections, including those reset at once.
        open_connections: currently open.
        requests: requests whose headers have arrived, including those answered by the proxy.
        watches: requests that were watches.
        answered: requests that the proxy answered itself.
        cut: connections ended by `cut`.
        dropped: connections ended by `drop` or reset by `refuse`.
        bytes_to_server: forwarded.
        bytes_to_client: forwarded, or sent as the proxy's own responses.
    """

    connections: int = 0
    open_connections: int = 0
    requests: int = 0
    watches: int = 0
    answered: int = 0
    cut: int = 0
    dropped: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0


class _Cut(msgspec.Struct):
    """A cut waiting for its position."""

    after: int
    place: Place
    reset: bool
    times: int


class _Canned(msgspec.Struct, eq=False):
    """A response that the proxy sends itself."""

    answer: bytes
    times: int
    path: str
    watch: bool | None

    def fits(self, request: Request) -> bool:
        return request.path.startswith(self.path) and self.watch in {None, request.is_watch}


class _Connection:
    """A client's connection, with the one to the server."""

    def __init__(self, sock: socket.socket, chance: random.Random) -> None:
        self.sock = sock
        self.chance = chance
        self.writers: dict[Side, asyncio.StreamWriter] = {}
        self.task: asyncio.Task[None] | None = None
        self.answers = Answers()
        self.deaf: set[Side] = set()  # sides that have received the end of their stream
        self.is_muted = False
        self.is_closed = False
        self.is_answered = False  # by the proxy: the rest of the request is dropped

    def end(self, side: Side) -> None:
        """Send one side the end of its stream."""
        writer = self.writers.get(side)
        if writer is not None and side not in self.deaf:
            self.deaf.add(side)
            if not writer.transport.is_closing():
                writer.write_eof()

    def close(self, *, reset: bool) -> None:
        """Close both sides: normally, after pending data, or at once with a reset."""
        self.is_closed = True
        for writer in self.writers.values():
            if reset:
                _reset_on_close(writer.get_extra_info("socket"))
                writer.transport.abort()
            else:
                writer.close()
        if not self.writers and reset:
            _reset_on_close(self.sock)
        if self.task is not None:
            self.task.cancel()


def _reset_on_close(sock: socket.socket) -> None:
    if sock.fileno() >= 0:
        # Closing with a linger time of zero sends RST: socket(7).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class FaultProxy:
    """Sits between a client and a server: `async with FaultProxy(host, port) as proxy`.

    A client connects to `proxy.url` to reach the server. Without faults, bytes and the ends of each
    direction pass unchanged. The methods add faults, alone or combined, until `heal` removes them
    all. A fault shows the server and the client only what its description says.

    The proxy finds requests by reading HTTP/1.1 as it passes. TLS passes unread, so `answer` and
    the request counts have no effect there. For one event loop, whose tasks may call every method
    at any time. Leaving the context closes all connections and ends all tasks.

    Args:
        upstream_host: of the server.
        upstream_port: of the server.
        clock: measures delays and intervals; use a `FakeClock` for faults at exact times.
        seed: determines everything random. Each connection has its own generator, by order of
            arrival, so that one connection does not affect another's faults.
        host: the loopback address to listen on.
    """

    def __init__(
        self,
        upstream_host: str,
        upstream_port: int,
        *,
        clock: Clock | None = None,
        seed: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._upstream = upstream_host, upstream_port
        self._clock = Clock() if clock is None else clock
        self._seed = seed
        self._chance = random.Random(seed)  # noqa: S311 - faults, not cryptography
        self._host = host
        self._listener: socket.socket | None = None
        self._tasks: dict[asyncio.Task[None], _Connection] = {}
        self._connections: dict[_Connection, None] = {}
        self._counts: dict[str, int] = dict.fromkeys(FaultProxyStatistics.__struct_fields__, 0)
        #: The port, the same after `refuse` and `accept`; 0 before entering.
        self.port = 0
        #: The last request lines, "GET /api/v1/pods?watch=true HTTP/1.1", oldest first.
        self.request_lines: deque[str] = deque(maxlen=1000)
        self._resets_new = False
        self._is_silent = self._is_silent_to_new = False
        self._speech = asyncio.Event()
        self._speech.set()
        self._silence_timer: Timer | None = None
        self._delays = {Side.CLIENT: 0.0, Side.SERVER: 0.0}
        self._jitter = 0.0
        self._sizes: dict[Side, int | None] = {Side.CLIENT: None, Side.SERVER: None}
        self._interval = 0.0
        self._cut: _Cut | None = None
        self._canned: list[_Canned] = []

    @property
    def url(self) -> str:
        """The proxy as a base URL, "http://127.0.0.1:PORT"."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close_listener()
        self._forget_silence()
        tasks = list(self._tasks)
        for connection in list(self._connections):
            connection.close(reset=True)
        for task in tasks:  # also those that only wait for a slow client
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # From Python 3.12 on, gathering finished tasks does not wait for their callbacks.
        await asyncio.sleep(0)

    def statistics(self) -> FaultProxyStatistics:
        """Return statistics so far."""
        return FaultProxyStatistics(**{**self._counts, "open_connections": len(self._connections)})

    # The faults.

    def heal(self) -> None:
        """Remove all faults: listen, forward at once, answer and cut nothing."""
        self.delay()
        self.throttle()
        self._cut = None
        self._canned.clear()
        self.resume()
        self.accept()

    def refuse(self, *, reset: bool = False) -> None:
        """Accept no new connections; open ones stay.

        Args:
            reset: accept and reset at once, like a load balancer without backends. Otherwise
                nothing listens and connections are refused.
        """
        if reset:
            self.accept()
            self._resets_new = True
        else:
            self._close_listener()

    def accept(self) -> None:
        """Accept new connections again, on the same port.

        Raises:
            OSError: another program has taken the port.
        """
        self._resets_new = False
        if self._listener is None:
            self._listener = self._listen()
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(
                self._listener.fileno(), self._accept_waiting, self._listener
            )

    def drop(self, *, reset: bool = False) -> int:
        """Close all connections now; return how many there were.

        Args:
            reset: with RST, which may overtake bytes in flight, instead of FIN.
        """
        connections = [each for each in self._connections if not each.is_closed]
        for connection in connections:
            self._close(connection, "dropped", reset=reset)
        return len(connections)

    def cut(
        self,
        after: int | None = None,
        *,
        place: Place = Place.ANYWHERE,
        reset: bool = False,
        times: int = 1,
    ) -> int:
        """Close a connection in the middle of what the server sends.

        Replaces an earlier cut that is still waiting.

        Args:
            after: bytes, headers included, that the client still receives on an open or new
                connection; None for a random number, at most 65535.
            place: where exactly.
            reset: with RST instead of FIN.
            times: number of connections, one after another.

        Returns:
            `after`, or the random number.
        """
        if after is None:
            after = self._chance.randrange(2**16)
        for connection in self._connections:
            connection.answers.passed = 0
        self._cut = _Cut(after, place, reset, times)
        return after

    def delay(self, *, to_client: float = 0.0, to_server: float = 0.0, jitter: float = 0.0) -> None:
        """Delay everything read from now on; the order stays.

        Args:
            to_client: seconds for each read of up to 64 KiB from the server.
            to_server: the same for the other direction.
            jitter: seconds, a random fraction of which is added to each delay.
        """
        self._delays = {Side.CLIENT: to_client, Side.SERVER: to_server}
        self._jitter = jitter

    def throttle(
        self,
        *,
        to_client: int | None = None,
        to_server: int | None = None,
        interval: float = 0.0,
    ) -> None:
        """Forward in small pieces.

        Args:
            to_client: bytes per piece; None for no limit. With 1 each byte arrives alone.
            to_server: the same for the other direction.
            interval: seconds between two pieces; 0 is one turn of the event loop, after which
                pieces may still merge in transit.
        """
        for size in (to_client, to_server):
            if size is not None and size < 1:
                raise ValueError("a piece has at least one byte")
        self._sizes = {Side.CLIENT: to_client, Side.SERVER: to_server}
        self._interval = interval

    def silence(self, seconds: float | None = None, *, only_new: bool = False) -> None:
        """Keep the connections and forward nothing, neither bytes nor ends, until `resume`.

        New connections are accepted and receive nothing. Incoming data is kept (up to about 192 KiB
        per direction, then the sender must wait) and forwarded afterwards.

        Args:
            seconds: after which `resume` is called; None to call it yourself.
            only_new: open connections continue.
        """
        self._forget_silence()
        self._is_silent_to_new = True
        self._is_silent = not only_new
        self._speech.set()  # for connections allowed to continue, after a silence of all
        self._speech.clear()
        if seconds is not None:
            self._silence_timer = self._clock.call_later(seconds, self.resume)

    def resume(self) -> None:
        """End a silence."""
        self._forget_silence()
        self._is_silent = self._is_silent_to_new = False
        for connection in self._connections:
            connection.is_muted = False
        self._speech.set()

    def half_close(self, side: Side = Side.CLIENT) -> int:
        """Send one side of each open connection the end of the other side's stream.

        What the other side still sends is dropped; the opposite direction continues.

        Returns:
            The number of connections.
        """
        for connection in self._connections:
            connection.end(side)
        return len(self._connections)

    def answer(
        self,
        answer: StatusError | bytes,
        *,
        times: int = 1,
        path: str = "/",
        watch: bool | None = None,
    ) -> None:
        """Answer the next matching requests instead of the server, which never sees them.

        If several answers match, the first one set applies.

        Args:
            answer: an error, such as `TooManyRequestsError("wait", retry_after=1)`, sent as a
                `Status` with its code, and Retry-After if it has one; or a complete HTTP response
                as bytes.
            times: number of requests.
            path: prefix of the request's path.
            watch: only watches, or only other requests; None for both.
        """
        data = answer if isinstance(answer, bytes) else _answer_of(answer)
        self._canned.append(_Canned(data, times, path, watch))

    def strike(self) -> str:
        """Cause one random passing fault; return its description.

        Connections are dropped or cut, a request is refused, or everything is silent for up to five
        seconds. The same seed and the same calls cause the same faults.
        """
        chance = self._chance
        reset = chance.random() < 0.5
        match chance.choice(("drop", "cut", "answer", "silence")):
            case "drop":
                return f"dropped {self.drop(reset=reset)} connections, reset={reset}"
            case "cut":
                place = chance.choice(list(Place))
                return f"cut after {self.cut(place=place, reset=reset)} B, {place}, reset={reset}"
            case "answer":
                error: StatusError = chance.choice(
                    (
                        TooManyRequestsError("too many requests", retry_after=1.0),
                        InternalServerError("the proxy's fault"),
                        ServiceUnavailableError("the proxy's fault"),
                        ExpiredError("the proxy's fault"),
                    )
                )
                self.answer(error)
                return f"answer {error.code} to the next request"
            case _:
                seconds = chance.uniform(0.0, 5.0)
                self.silence(seconds)
                return f"silence of {seconds:.2f} s"

    # Forwarding.

    def _listen(self) -> socket.socket:
        is_ipv6 = ":" in self._host
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        # Between `refuse` and `accept`, the system must not give the port to another program.
        port = self.port or (0 if is_ipv6 else free_port())
        listener = socket.create_server((self._host, port), family=family)
        if listener.getsockname()[1] == self._upstream[1]:
            with listener:  # the port of a server that is down: the proxy would connect to itself
                return socket.create_server((self._host, 0), family=family)
        return listener

    def _close_listener(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _forget_silence(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None

    def _close(self, connection: _Connection, count: str, *, reset: bool) -> None:
        if not connection.is_closed:
            self._counts[count] += 1
            connection.close(reset=reset)

    def _accept_waiting(self, listener: socket.socket) -> None:
        # Not asyncio's server, which loses connections that arrive while it closes.
        while True:
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            self._counts["connections"] += 1
            if self._resets_new:
                self._counts["dropped"] += 1
                _reset_on_close(sock)
                sock.close()
                continue
            sock.setblocking(False)
            seed = f"{self._seed}/{self._counts['connections']}"
            connection = _Connection(sock, random.Random(seed))  # noqa: S311 - faults
            connection.is_muted = self._is_silent_to_new
            self._connections[connection] = None
            # Owned by the proxy, which ends and awaits it in `__aexit__`.
            connection.task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._tasks[connection.task] = connection
            connection.task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        connection = self._tasks.pop(task)
        self._connections.pop(connection, None)
        connection.sock.close()  # a task cancelled before it started has not closed it
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _serve(self, connection: _Connection) -> None:
        try:
            requests, connection.writers[Side.CLIENT] = await asyncio.open_connection(
                sock=connection.sock, limit=_READ_BYTES
            )
            await self._until_speech(connection)
            answers, connection.writers[Side.SERVER] = await asyncio.open_connection(
                *self._upstream, limit=_READ_BYTES
            )
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(answers, connection, Side.CLIENT, None))
                pumps.create_task(self._pump(requests, connection, Side.SERVER, Requests()))
        except OSError:
            connection.close(reset=True)  # there is no server
        except asyncio.CancelledError:
            if not connection.is_closed:
                raise
        finally:
            self._connections.pop(connection, None)
            for writer in connection.writers.values():
                writer.close()
                try:
                    await writer.wait_closed()
                except (OSError, asyncio.CancelledError):
                    writer.transport.abort()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        connection: _Connection,
        side: Side,
        requests: Requests | None,
    ) -> None:
        """Forward bytes to one side until they end."""
        try:
            while data := await source.read(_READ_BYTES):
                if wait := self._delays[side] + connection.chance.uniform(0.0, self._jitter):
                    await self._clock.sleep(wait)
                await self._until_speech(connection)
                if requests is None:
                    await self._send(connection, side, data)
                    continue
                for request, part in requests.feed(data):
                    await self._send_request(connection, request, part)
            await self._until_speech(connection)
            if requests is not None and (rest := requests.finish()):
                await self._send(connection, side, rest)
            connection.end(side)
        except OSError:  # the other side is gone, so close this one
            connection.close(reset=True)

    async def _until_speech(self, connection: _Connection) -> None:
        while (self._is_silent or connection.is_muted) and not connection.is_closed:
            await self._speech.wait()

    async def _send_request(
        self, connection: _Connection, request: Request | None, part: bytes
    ) -> None:
        if request is not None:
            connection.is_answered = False
            self._counts["requests"] += 1
            self._counts["watches"] += request.is_watch
            self.request_lines.append(request.line)
            connection.answers.begin()
            for canned in self._canned:
                if canned.fits(request):
                    canned.times -= 1
                    if not canned.times:
                        self._canned.remove(canned)
                    self._counts["answered"] += 1
                    connection.is_answered = True
                    await self._send(connection, Side.CLIENT, canned.answer)
                    break
        if not connection.is_answered:
            await self._send(connection, Side.SERVER, part)

    async def _send(self, connection: _Connection, side: Side, data: bytes) -> None:
        size = self._sizes[side] or len(data)
        for begin in range(0, len(data), size):
            if begin:
                await self._clock.sleep(self._interval)
                await self._until_speech(connection)
            piece = data[begin : begin + size]
            place = None
            if side is Side.CLIENT:
                if self._cut is not None:
                    place = connection.answers.find(self._cut.place, self._cut.after, piece)
                piece = piece[:place]
                connection.answers.feed(piece)
            if connection.is_closed or side in connection.deaf:
                return
            writer = connection.writers[side]
            self._counts[f"bytes_to_{side}"] += len(piece)
            writer.write(piece)
            await writer.drain()
            if place is not None:
                self._finish_cut(connection)
                return

    def _finish_cut(self, connection: _Connection) -> None:
        cut = self._cut
        if cut is None:
            return
        cut.times -= 1
        if not cut.times:
            self._cut = None
        self._close(connection, "cut", reset=cut.reset)


def _answer_of(error: StatusError) -> bytes:
    body = msgspec.json.encode(error.to_status())
    lines = [f"HTTP/1.1 {error.code} {error.reason or 'Error'}", "Content-Type: application/json"]
    if error.retry_after is not None:
        lines.append(f"Retry-After: {error.retry_after:.0f}")
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace") + body
