"""Parses the HTTP/1.1 that passes through a proxy as far as needed, without I/O."""

from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl

import msgspec

_MAX_HEAD_BYTES: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"
#: No chunk size can be this far into a line: it has at most 16 digits.
_WITHIN_LINE: Final = 20


class Place(StrEnum):
    """Where in a response a connection is cut.

    ANYWHERE is exactly after the given number of bytes. LINE is the next position after them within
    a line of the body, and so within a chunk if there are chunks. CHARACTER is the next position
    within a multi-byte UTF-8 character.
    """

    ANYWHERE = "anywhere"
    LINE = "line"
    CHARACTER = "character"


class Request(msgspec.Struct, frozen=True):
    """The headers of a request, as far as needed here."""

    line: str
    path: str
    is_watch: bool


class Requests:
    """Splits what a client sends into headers and the bytes after them, without I/O.

    Anything that is not HTTP/1.1 (such as TLS), a chunked body, and everything after an upgrade
    pass unchanged to the end of the connection.
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
        """Return an incomplete head, if any."""
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
        # As a server parses it: any value but these two is a watch, even none.
        is_watch = any(
            name == "watch" and value not in {"0", "false"}
            for name, value in parse_qsl(query, keep_blank_values=True)
        )
        return Request(line, path, is_watch)


class Answers:
    """Tracks the position in a connection's responses, without I/O."""

    def __init__(self) -> None:
        self.passed = 0  # bytes since the cut was set
        self._in_head = True
        self._end = b""  # the last bytes, within headers
        self._column = 0

    def begin(self) -> None:
        """Expect the headers of a response."""
        self._in_head, self._end, self._column = True, b"", 0

    def feed(self, data: bytes) -> None:
        """Advance over bytes that were sent."""
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
        """Return how many of these bytes may pass before the cut; None for all, without a cut."""
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
