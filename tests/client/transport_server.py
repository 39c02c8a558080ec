"""Scripted servers, requests to them, and reading responses without the transport."""

import asyncio
import contextlib
import gzip
import http.client
import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from listwatch.client.transport import Response, stream
from listwatch.client.transport_connection import MAX_READ_BYTES, Connection, Target
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError
from listwatch.testing import eventually

if TYPE_CHECKING:
    import socket

WIRE = Path(__file__).parents[1] / "data/conformance/wire"
CAPTURES = {entry["name"]: entry for entry in json.loads((WIRE / "index.json").read_text())}


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

Run = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Script = Callable[["Server"], Run]


class Server:
    """A server that runs a script for each connection and then closes it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended = asyncio.Event()
        self.url = ""
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.script(self)(reader, writer)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        request = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(request)
        return request


@contextlib.asynccontextmanager
async def serving(script: Script, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Server]:
    server = Server(script)
    listener = await asyncio.start_server(server.handle, host, 0, **options)
    server.port = listener.sockets[0].getsockname()[1]
    authority = f"[{host}]" if ":" in host else host
    scheme = "https" if options.get("ssl") else "http"
    server.url = f"{scheme}://{authority}:{server.port}"
    with_listener = open_files()
    async with listener:
        yield server
        for _ in range(10):  # asyncio loses a connection that comes in as the listener closes
            await asyncio.sleep(0)
    await eventually(lambda: open_files() < with_listener)  # Everything must be closed.


def open_files() -> int:
    """Count the open files of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def answering(*parts: bytes) -> Script:
    """Answer a connection's request with these parts, a turn of the loop apart, then close."""

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)

        return run

    return script


def holding(*parts: bytes) -> Script:
    """Answer with these parts, and keep the connection until the client closes it."""

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            for part in parts:
                writer.write(part)
            await reader.read()

        return run

    return script


async def get(server: Server, path: str = "/", **options: Any) -> tuple[int, bytes]:
    options.setdefault("clock", Clock())
    async with stream(server.url + path, {}, **options) as response:
        return response.status, await response.read(2**24)


async def failure(request: Awaitable[object]) -> Exception:
    """Return the exception that a request raises."""
    try:
        await request
    except (DisconnectedError, TimeoutError) as error:
        return error
    raise AssertionError("nothing was raised")


class Wire(asyncio.Transport):
    """The network side of a connection that the test feeds by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.aborted = False
        self.socket: socket.socket | None = None

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.socket if name == "socket" else default

    def write(self, data: "bytes | bytearray | memoryview[int]") -> None:
        assert bytes(data) == b"request"

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


def receive(connection: Connection, data: bytes) -> None:
    """Let a connection read bytes, then overwrite the buffer as another connection would."""
    buffer = connection.get_buffer(-1)
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))
    buffer[: len(data)] = b"?" * len(data)


def by_hand(context: ssl.SSLContext | None = None) -> tuple[Connection, Wire]:
    buffer = memoryview(bytearray(MAX_READ_BYTES))
    connection = Connection(Target("h", 1, "h:1", context, None, None), buffer)
    wire = Wire()
    connection.connection_made(wire)
    connection.send(b"request")
    return connection, wire


class OracleSocket:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def oracle(data: bytes) -> tuple[int, str, list[tuple[str, str]], bytes, bool]:
    """Read with the standard library; return status, reason, headers, body, and if it is whole."""
    answer = http.client.HTTPResponse(OracleSocket(data))  # type: ignore[arg-type] # all it uses
    answer.begin()
    try:
        body, is_whole = answer.read(), True
    except http.client.IncompleteRead:
        head, _, _ = data.partition(b"\r\n\r\n")
        body, is_whole = dechunk(data[len(head) + 4 :]), False
    if answer.headers.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    return answer.status, answer.reason, answer.getheaders(), body, is_whole


def dechunk(data: bytes) -> bytes:
    """Return the content of a chunked body that is cut anywhere."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size or b"0", 16)]
        data = data[int(size or b"0", 16) + 2 :]
    return body


async def read_all(response: Response) -> tuple[bytes, bool]:
    body = b""
    try:
        async for pieces in response:
            assert pieces
            assert all(pieces)
            body += b"".join(pieces)
    except DisconnectedError as error:
        return body, "the connection broke within a response" not in str(error)
    return body, True


async def feed_by_hand(chunks: Iterable[bytes]) -> tuple[int, bytes, bool]:
    connection, _ = by_hand()
    for chunk in chunks:
        receive(connection, chunk)
    connection.connection_lost(None)
    await connection.read_head()
    return connection.status, *(await read_all(Response(connection)))
