"""How far a proxy must understand the HTTP/1.1 that passes through it, without any I/O."""

from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl

import msgspec

_MAX_HEAD_BYTES: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"
#: So far into a line no chunk's size can stand: it has 16 digits at most.
_WITHIN_LINE: Final = 20


class Place(StrEnum):
    """Where within an answer a connection is cut.

    ANYWHERE is exactly after the given number of bytes. LINE is the next place after them that
    is within a line of a body, and so within a chunk where there are chunks. CHARACTER is the
    next place within a UTF-8 character of several bytes.
    """

    ANYWHERE = "anywhere"
    LINE = "line"
    CHARACTER = "character"


class Request(msgspec.Struct, frozen=True):
    """The head of a request, as far as it matters here."""

    line: str
    path: str
    is_watch: bool


class Requests:
    """Cuts what a client sends into heads and the bytes after them, without any I/O.

    What is no HTTP/1.1 (TLS, say), a body in chunks and whatever follows an upgrade passes to the
    end of the connection as it is.
    """

    def __init__(self) -> None:
        self._head = b""
        self._body_left = 0
        self._is_opaque = False

    def feed(self, data: bytes) -> list[tuple[Request | None, bytes]]:
        """Return the next bytes in order, each head with its request."""
        data, self._head = self._head + data, b""
        parts: list[tuple[Request | None, bytes]] = []
        while data:
            if not self._body_left and not self._is_opaque:
                end = data.find(_HEAD_END)
                if not data[:1].isupper() or max(end, 0) > _MAX_HEAD_BYTES:
                    self._is_opaque = True
                elif end < 0:
                    self._is_opaque = len(data) > _MAX_HEAD_BYTES
                    if not self._is_opaque:
                        self._head = data
                        break
                else:
                    head, data = data[: end + 4], data[end + 4 :]
                    parts.append((self._begin(head), head))
                    continue
            size = len(data) if self._is_opaque else min(self._body_left, len(data))
            parts.append((None, data[:size]))
            data = data[size:]
            self._body_left = max(0, self._body_left - size)
        return parts

    def finish(self) -> bytes:
        """Return half a head that is left."""
        return self._head

    def _begin(self, head: bytes) -> Request:
        line, *fields = head.decode("latin-1").split("\r\n")
        for field in fields:
            name, _, value = field.partition(":")
            match name.strip().lower(), value.strip():
                case "content-length", number if number.isdecimal():
                    self._body_left = int(number)
                case "transfer-encoding" | "upgrade", _:
                    self._is_opaque = True
        target = line.split(" ")[1] if line.count(" ") >= 2 else "/"
        path, _, query = target.partition("?")
        # As a server reads it: any value but these two is a watch, also none.
        is_watch = any(
            name == "watch" and value not in {"0", "false"}
            for name, value in parse_qsl(query, keep_blank_values=True)
        )
        return Request(line, path, is_watch)


class Answers:
    """Knows where in its answers a connection is, without any I/O."""

    def __init__(self) -> None:
        self.passed = 0  # bytes since the cut was set
        self._in_head = True
        self._end = b""  # the last bytes, in a head
        self._column = 0

    def begin(self) -> None:
        """Expect the head of an answer."""
        self._in_head, self._end, self._column = True, b"", 0

    def feed(self, data: bytes) -> None:
        """Pass over bytes that were sent."""
        self.passed += len(data)
        if self._in_head:
            seen = self._end + data
            end = seen.find(_HEAD_END)
            self._end = seen[-3:]
            if end < 0:
                return
            self._in_head = False
            data = seen[end + 4 :]
            self._column = 0
        newline = data.rfind(b"\n")
        self._column = self._column + len(data) if newline < 0 else len(data) - newline - 1

    def find(self, place: Place, after: int, data: bytes) -> int | None:
        """Return how many of these bytes may pass before the cut; None for all, and no cut."""
        start = max(0, after - self.passed)
        if start > len(data):
            return None
        match place:
            case Place.ANYWHERE:
                return start
            case Place.CHARACTER:
                places = (n for n in range(start, len(data)) if 0x80 <= data[n] < 0xC0)
                return next(places, None)
            case Place.LINE:
                return self._find_in_line(start, data)

    def _find_in_line(self, start: int, data: bytes) -> int | None:
        begin, column = 0, self._column
        if self._in_head:
            seen = self._end + data
            end = seen.find(_HEAD_END)
            if end < 0:
                return None
            begin, column = end + 4 - len(self._end), 0
        for n in range(begin, len(data)):
            if data[n] in b"\r\n":
                column = -1 if data[n] == 0x0A else 0
            elif n >= start and column >= _WITHIN_LINE:
                return n
            column += 1
        return None
