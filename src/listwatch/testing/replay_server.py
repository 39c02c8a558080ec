"""A server that sends recorded bytes, in the recorded pieces."""

import asyncio
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Final, Self

import msgspec

from listwatch.clock import Clock

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
# asyncio loses a connection whose listener closes within this many turns of its arrival.
_TURNS: Final = 5


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """What a server once sent on one connection.

    Attributes:
        name: of the recording.
        response: every byte, including the status line and chunk framing.
        reads: time of each piece, in seconds since the connection opened, and its size.
        end: "open", "closed by server", or how the connection broke.
        request: the request.
    """

    name: str
    response: bytes
    reads: tuple[tuple[float, int], ...] = ()
    end: str = "open"
    request: bytes = b""

    @staticmethod
    def load(directory: Path, name: str) -> "Capture":
        """Read a recording: `NAME.response`, `NAME.request` and the entry of `index.json`.

        Raises:
            KeyError: the index has no such name.
        """
        index = msgspec.json.decode((directory / "index.json").read_bytes())
        entry = {entry["name"]: entry for entry in index}[name]
        return Capture(
            name=name,
            response=(directory / f"{name}.response").read_bytes(),
            reads=tuple((float(at), int(size)) for at, size in entry["reads"]),
            end=entry["end"],
            request=(directory / f"{name}.request").read_bytes(),
        )

    def pieces(self) -> list[tuple[float, bytes]]:
        """Return the recorded pieces, each with its time."""
        pieces = []
        position = 0
        for at, size in self.reads:
            pieces.append((at, self.response[position : position + size]))
            position += size
        if position < len(self.response):
            pieces.append((pieces[-1][0] if pieces else 0.0, self.response[position:]))
        return pieces

    def body(self) -> bytes:
        """Return the body without its framing (RFC 9112), still compressed if it is."""
        head, _, rest = self.response.partition(_HEAD_END)
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        body = bytearray()
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            if not length:
                break
            body += rest[:length]
            rest = rest[length + 2 :]
        return bytes(body)

    def recut(self, sizes: Iterable[int]) -> "Capture":
        """Return the same bytes in pieces of other sizes; the last piece has the rest."""
        reads = []
        left = len(self.response)
        for size in sizes:
            if left <= 0:
                break
            reads.append((0.0, min(size, left)))
            left -= size
        return msgspec.structs.replace(self, reads=tuple(reads))


class ReplayServer:
    """Serves recordings on a loopback port: `async with ReplayServer([...]) as server`.

    Each request gets the next recording, or the one that `choose` returns; without one, the
    connection closes without a response. After a recording whose end is "open" the connection waits
    for the next request; after any other it closes. Nothing is checked; `requests` has the requests
    received. For one event loop.

    Args:
        captures: in the order of the requests.
        choose: chooses by the bytes of the request instead.
        clock: keeps the recorded pauses between the pieces; without it there are none.
        ssl: serve TLS.
    """

    def __init__(
        self,
        captures: Iterable[Capture] = (),
        *,
        choose: Callable[[bytes], Capture | None] | None = None,
        clock: Clock | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._captures = list(captures)
        self._choose = choose
        self._clock = clock
        self._ssl = ssl
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: The requests so far, headers and bodies.
        self.requests: list[bytes] = []
        #: Number of connections opened.
        self.connections = 0
        #: "http://127.0.0.1:PORT", or https.
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._ssl)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"{'http' if self._ssl is None else 'https'}://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _next(self, request: bytes) -> Capture | None:
        if self._choose is not None:
            return self._choose(request)
        return self._captures.pop(0) if self._captures else None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # Still open if the task was cancelled, even before it started.
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # clients go away
            await self._answer_all(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readuntil(_HEAD_END)
            if length := _LENGTH.search(request):
                request += await reader.readexactly(int(length[1]))
            self.requests.append(request)
            capture = self._next(request)
            if capture is None:
                return
            await self._send(capture, writer)
            if capture.end != "open":
                return

    async def _send(self, capture: Capture, writer: asyncio.StreamWriter) -> None:
        passed = 0.0
        for at, piece in capture.pieces():
            if self._clock is not None:
                await self._clock.sleep(at - passed)
                passed = at
            writer.write(piece)
            await writer.drain()
            # The reader's turn, so that pieces do not merge on the way.
            for _ in range(3):
                await asyncio.sleep(0)
