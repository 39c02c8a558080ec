"""A TCP proxy on loopback that does to a client what networks and servers do on a bad day."""

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

__all__ = ["FaultProxy", "FaultProxyStatistics", "Place", "Side"]

_READ_BYTES: Final = 64 * 1024


class Side(StrEnum):
    """One of the two that the proxy stands between."""

    CLIENT = "client"
    SERVER = "server"


class FaultProxyStatistics(msgspec.Struct, frozen=True):
    """What has passed through a `FaultProxy` since it was made.

    Attributes:
        connections: accepted, those that were reset at once included.
        open_connections: now.
        requests: whose heads have come, those answered by the proxy included.
        watches: those of the requests that were watches.
        answered: requests that the proxy answered in the server's place.
        cut: connections ended by `cut`.
        dropped: connections ended by `drop` or reset by `refuse`.
        bytes_to_server: forwarded.
        bytes_to_client: forwarded, and sent as answers of the proxy's own.
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
    """A cut that waits for its place."""

    after: int
    place: Place
    reset: bool
    times: int


class _Canned(msgspec.Struct, eq=False):
    """An answer in the server's place."""

    answer: bytes
    times: int
    path: str
    watch: bool | None

    def fits(self, request: Request) -> bool:
        return request.path.startswith(self.path) and self.watch in {None, request.is_watch}


class _Connection:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, sock: socket.socket, chance: random.Random) -> None:
        self.sock = sock
        self.chance = chance
        self.writers: dict[Side, asyncio.StreamWriter] = {}
        self.task: asyncio.Task[None] | None = None
        self.answers = Answers()
        self.deaf: set[Side] = set()  # who has got the end of what is sent to it
        self.is_muted = False
        self.is_closed = False
        self.is_answered = False  # by the proxy: the rest of the request is dropped

    def end(self, side: Side) -> None:
        """Tell one side that nothing more comes."""
        writer = self.writers.get(side)
        if writer is not None and side not in self.deaf:
            self.deaf.add(side)
            if not writer.transport.is_closing():
                writer.write_eof()

    def close(self, *, reset: bool) -> None:
        """Close both ends: in order, after what was written, or at once by a reset."""
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
        # Closing with a linger time of none sends RST: socket(7).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class FaultProxy:
    """Stands between a client and a server: `async with FaultProxy(host, port) as proxy`.

    A client that is pointed at `proxy.url` reaches the server through it. Without further calls
    bytes pass as they are, with the ends of each direction. The methods bring faults, alone or
    together, until `heal` takes all of them away. A fault that begins says nothing to the server
    or the client but what its description says.

    Requests are found by reading HTTP/1.1 as it passes; TLS passes unread, so that `answer` and
    the counts of requests have no effect there. Belongs to one event loop, whose tasks may call
    every method at any time; leaving the context closes all connections and ends all tasks.

    Args:
        upstream_host: of the server.
        upstream_port: of the server.
        clock: measures delays and intervals; give a `FakeClock` for faults at exact times.
        seed: decides all that is left to chance. Each connection has its own chance, by the
            order of its coming, so that one connection's course doesn't change another's.
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
        #: The port listened on, the same after `refuse` and `accept`; 0 before entering.
        self.port = 0
        #: The last request lines, "GET /api/v1/pods?watch=true HTTP/1.1", the oldest first.
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
        # From Python 3.12 on a gather of tasks that are done doesn't wait for their callbacks.
        await asyncio.sleep(0)

    def statistics(self) -> FaultProxyStatistics:
        """Return what has passed so far."""
        return FaultProxyStatistics(**{**self._counts, "open_connections": len(self._connections)})

    # The faults.

    def heal(self) -> None:
        """Take all faults away: listen, forward at once, answer and cut nothing."""
        self.delay()
        self.throttle()
        self._cut = None
        self._canned.clear()
        self.resume()
        self.accept()

    def refuse(self, *, reset: bool = False) -> None:
        """Let no new connection in; those that are open stay.

        Args:
            reset: accept and reset at once, as a balancer without servers does. Otherwise
                nobody listens and a connection is refused.
        """
        if reset:
            self.accept()
            self._resets_new = True
        else:
            self._close_listener()

    def accept(self) -> None:
        """Let new connections in again, on the same port.

        Raises:
            OSError: another program has taken the port meanwhile.
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
            reset: by RST, which may overtake bytes on their way, in place of FIN.
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

        It takes the place of an earlier cut that still waits.

        Args:
            after: bytes, heads included, that the client still gets through a connection that
                is open or new; None leaves it to chance, at most 65535.
            place: where exactly.
            reset: by RST in place of FIN.
            times: how many connections, one after another.

        Returns:
            `after`, or what chance made it.
        """
        if after is None:
            after = self._chance.randrange(2**16)
        for connection in self._connections:
            connection.answers.passed = 0
        self._cut = _Cut(after, place, reset, times)
        return after

    def delay(self, *, to_client: float = 0.0, to_server: float = 0.0, jitter: float = 0.0) -> None:
        """Let all that is read from now on wait before it is sent on; in order, as ever.

        Args:
            to_client: seconds for each read of up to 64 KiB from the server.
            to_server: the same for the other direction.
            jitter: seconds, of which chance adds a part to each wait.
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
        """Send on in small pieces.

        Args:
            to_client: bytes in a piece; None does not cut. With 1 each byte comes alone.
            to_server: the same for the other direction.
            interval: seconds between two pieces; 0 is a turn of the event loop, which may not
                keep them apart on their way.
        """
        for size in (to_client, to_server):
            if size is not None and size < 1:
                raise ValueError("a piece has at least one byte")
        self._sizes = {Side.CLIENT: to_client, Side.SERVER: to_server}
        self._interval = interval

    def silence(self, seconds: float | None = None, *, only_new: bool = False) -> None:
        """Keep the connections and forward nothing, neither bytes nor ends, until `resume`.

        New connections are accepted and hear nothing. What comes meanwhile is kept (up to about
        192 KiB a direction, then the sender has to wait) and sent on afterwards.

        Args:
            seconds: after which `resume` is called; None leaves that to you.
            only_new: connections that are open go on.
        """
        self._forget_silence()
        self._is_silent_to_new = True
        self._is_silent = not only_new
        self._speech.set()  # for those that may speak now, after a silence of all
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
        """Tell one side of each open connection that the other has nothing more to say.

        What the other side still sends is dropped; the opposite direction goes on.

        Returns:
            How many connections there were.
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
        """Answer the next requests that fit in the server's place; it never sees them.

        Of several that were set the first that fits counts.

        Args:
            answer: an error, such as `TooManyRequestsError("wait", retry_after=1)`, that is sent
                as a `Status` with its code, and Retry-After if it has one; or a whole HTTP
                answer, byte by byte.
            times: how many requests.
            path: how the path of a request begins.
            watch: only watches, or only other requests; None is both.
        """
        data = answer if isinstance(answer, bytes) else _answer_of(answer)
        self._canned.append(_Canned(data, times, path, watch))

    def strike(self) -> str:
        """Bring one passing fault that chance chooses; return its description.

        Connections are dropped or cut, a request is refused, or all is silent for up to five
        seconds. The same seed and the same calls bring the same faults.
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

    # The way of the bytes.

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self.port), family=family)
        if listener.getsockname()[1] == self._upstream[1]:
            with listener:  # the port of a server that is down: the proxy would call itself
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
        # Not asyncio's server, which loses connections that come while it closes.
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
            # Owned by the proxy, which ends it and waits for it in `__aexit__`.
            connection.task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._tasks[connection.task] = connection
            connection.task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        connection = self._tasks.pop(task)
        self._connections.pop(connection, None)
        connection.sock.close()  # a task that was cancelled before it began has not
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
        """Carry bytes to one side until they end."""
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
        except OSError:  # the other end went away, so this one does
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
