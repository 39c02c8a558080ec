"""A response from any transport, and the limits of requests."""

from typing import Final, Protocol

from multidict import MultiMapping

#: Seconds within which the status line and headers must arrive: a server ends a request after 60.
HEADERS_TIMEOUT: Final = 75.0
#: Seconds within which a connection, TLS included, must be established.
CONNECT_TIMEOUT: Final = 30.0
#: Maximum characters of foreign text in a message.
MAX_WORDS: Final = 300


class Response(Protocol):
    """A response whose headers have arrived."""

    @property
    def status(self) -> int:
        """The status code; redirects are not followed."""

    @property
    def reason(self) -> str:
        """The reason phrase."""

    @property
    def headers(self) -> MultiMapping[str]:
        """The headers; names are case-insensitive."""

    async def read_pieces(self) -> list[bytes]:
        """Return the pieces of the body that have arrived; none at its normal end.

        Raises:
            DisconnectedError: the connection broke.
            FrameError: the bytes are not HTTP, or can't be decompressed.
        """
