"""A server whose responses a test writes byte by byte, and requests to it."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any

import pytest

from listwatch.client.config import Config
from listwatch.client.connections import CONNECT_TIMEOUT, PROMPT_TIMEOUT
from listwatch.client.http import HTTP
from listwatch.clock import FakeClock

#: Seconds that a busy machine may need for what is done at once, fewer than any time-out.
SOON = min(CONNECT_TIMEOUT, PROMPT_TIMEOUT) - 5

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(
    handle: Handle, host: str = "127.0.0.1", *, path: Path | None = None, **options: Any
) -> AsyncIterator[str]:
    """Handle connections until the body ends, and yield the URL.

    A connection ends with its handler, and a handler at the latest with the body. A handler that
    raises fails the test, unless its client has gone away.
    """
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_run(handle, reader, writer))
        tasks.add(task)
        # Also if the task was cancelled before it ran, or while the client read nothing.
        task.add_done_callback(lambda _: writer.transport.abort())

    if path is None:
        server = await asyncio.start_server(connected, host, 0, **options)
        port = server.sockets[0].getsockname()[1]
        scheme = "https" if options.get("ssl") else "http"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    else:
        server = await asyncio.start_unix_server(connected, path, **options)
        url = f"unix://{path}"
    try:
        yield url
    finally:
        for _ in range(5):  # asyncio loses a connection that comes in as the listener closes
            await asyncio.sleep(0)
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _run(handle: Handle, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
        await handle(reader, writer)
        writer.close()
        await writer.wait_closed()


def raw_server(
    pieces: list[bytes], *, close: bool = False, received: asyncio.Event | None = None
) -> AbstractAsyncContextManager[str]:
    """Answer the first request of a connection with the pieces, then close it or stay silent.

    Sets `received` when a request is there.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
        if received is not None:
            received.set()
        if not close:
            await reader.read()

    return serving(answer)


async def get(url: str, clock: FakeClock | None = None, **config: Any) -> bytes:
    async with HTTP(Config(server=url, **config), clock=clock) as http:
        return (await http.request("GET", "/x")).body


async def soon(event: asyncio.Event) -> None:
    """Wait for an event; fail if it comes no earlier than by a time-out of the client."""
    async with asyncio.timeout(SOON):
        await event.wait()


def know_no_host(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the running event loop find no host; return the names that it looks up."""
    names: list[str] = []

    async def look_up(host: str, *_args: object, **_options: object) -> list[object]:
        names.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    return names


@contextmanager
def refusing(
    host: str = "127.0.0.1", family: socket.AddressFamily = socket.AF_INET
) -> Iterator[int]:
    """Reserve a port without listening on it, so that nobody else does."""
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        yield sock.getsockname()[1]
