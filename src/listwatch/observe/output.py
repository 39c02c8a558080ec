"""Writes to standard output and error from many commands at once, line by line."""

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from listwatch.errors import ListWatchError

_PIECE = 4096  # what a pipe that polls as writable accepts without blocking (PIPE_BUF)
_LONGEST_LINE = 64 * 1024


class OutputError(ListWatchError):
    """The output can't be written, for example because the disk is full."""


class OutputStream:
    """A file descriptor that many tasks write to, each write complete and in turn.

    Writing never blocks the event loop: if the reader is slow, the writer waits. Leaves the
    descriptor's flags alone, because other processes may share it.

    Args:
        fd: an open descriptor; not closed here.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._turn = asyncio.Lock()
        self._cut_short = False
        mode = os.fstat(fd).st_mode
        self._can_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    async def write(self, data: bytes | str) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: nobody reads any more.
            OutputError: the disk is full, or writing failed otherwise.
        """
        async with self._turn:
            await self._write(data)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator["_Turn"]:
        """Hold the stream for several writes without others in between."""
        async with self._turn:
            yield _Turn(self)

    async def _write(self, data: bytes | str) -> None:
        rest = memoryview(data.encode() if isinstance(data, str) else data)
        if self._cut_short:
            rest = memoryview(b"\n" + rest)
        ends_line = bytes(rest[-1:]) == b"\n"
        while rest:
            if self._can_wait and not self._poll.poll(0):
                await self._writable()
            try:
                written = os.write(self.fd, rest[:_PIECE] if self._can_wait else rest)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputError(f"unable to write the output: {error.strerror}") from error
            rest = rest[written:]
            # A write cancelled here must not run into the next one's line.
            self._cut_short = bool(rest) and ends_line

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_writer(self.fd, _resolve, ready)
        except PermissionError:  # such as /dev/null, which is always writable
            self._can_wait = False
            return
        try:
            await ready
        finally:
            loop.remove_writer(self.fd)


class _Turn:
    """The right to write to a stream, from `OutputStream.turn`."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    async def write(self, data: bytes | str) -> None:
        """Write all of it; raises as `OutputStream.write`."""
        await self._stream._write(data)  # noqa: SLF001 - a part of OutputStream


class LineCutter:
    """Splits a command's output into complete lines.

    Passes a line over 64 KB on in pieces of that size, each ended as a line. So a flood without a
    newline costs no memory and can't run into another command's line.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are now complete."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > _LONGEST_LINE:
            piece, self._rest = self._rest, b""
            return data[:end] + piece + b"\n"
        return data[:end]

    def finish(self) -> bytes:
        """Return the rest, with the missing newline."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
