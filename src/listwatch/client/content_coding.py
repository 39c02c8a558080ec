"""Decompresses a body while it arrives (RFC 9110, 8.4)."""

import zlib
from collections import deque
from typing import Final

from listwatch.errors import FrameError

#: Maximum bytes that one step of decompression returns.
MAX_DECODED_BYTES: Final = 1024 * 1024


class ContentDecoder:
    """Decompresses a body in bounded steps, so that memory is bounded.

    For one task; nothing here waits.

    Args:
        coding: "gzip" or "deflate".
    """

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._waiting: deque[bytes] = deque()
        self._inflate: zlib._Decompress | None = None

    @property
    def is_behind(self) -> bool:
        """Whether another step returns more without new input."""
        return bool(self._waiting)

    def feed(self, pieces: list[bytes]) -> None:
        """Take the next bytes of the body."""
        self._waiting.extend(pieces)

    def decode(self) -> list[bytes]:
        """Return the decoded bytes of the input so far, at most `MAX_DECODED_BYTES`.

        Raises:
            FrameError: the input is not of this coding.
        """
        decoded: list[bytes] = []
        room = MAX_DECODED_BYTES
        while self._waiting and room:
            piece = self._waiting.popleft()
            if self._inflate is None:
                self._inflate = zlib.decompressobj(self._window_bits(piece))
            try:
                data = self._inflate.decompress(piece, room)
            except zlib.error as error:
                raise FrameError(f"a body that is not valid {self._coding}: {error}") from error
            if data:
                decoded.append(data)
                room -= len(data)
            rest = self._inflate.unconsumed_tail
            if self._inflate.eof:  # another member may follow: RFC 1952, 2.2
                rest = self._inflate.unused_data
                self._inflate = None
            if rest:
                self._waiting.appendleft(rest)
        return decoded

    def _window_bits(self, piece: bytes) -> int:
        if self._coding == "gzip":
            return zlib.MAX_WBITS | 16
        # "deflate" should be zlib's format, yet some send it bare: RFC 9110, 8.4.1.2.
        return zlib.MAX_WBITS if piece[0] & 0x0F == 8 else -zlib.MAX_WBITS

    def finish(self) -> None:
        """Mark the end of the body.

        Raises:
            FrameError: it is truncated.
        """
        if self._inflate is not None:
            raise FrameError(f"a {self._coding} body that is truncated")
