"""An answer, however it was asked for, and the limits of what asks."""

from typing import Final, Protocol

from multidict import MultiMapping

#: Seconds in which the status line and headers must have come: a server ends a request after 60.
HEADERS_TIMEOUT: Final = 75.0
#: Seconds in which a connection, TLS included, must stand.
CONNECT_TIMEOUT: Final = 30.0
#: Characters of foreign words that become part of a message.
MAX_WORDS: Final = 300


class Response(Protocol):
    """An answer whose head has come."""

    @property
    def status(self) -> int:
        """The code; a redirect is an answer like any other."""

    @property
    def reason(self) -> str:
        """The words beside it."""

    @property
    def headers(self) -> MultiMapping[str]:
        """By their names in any case."""

    async def read_pieces(self) -> list[bytes]:
        """Return what has come of the body, one or more pieces; none at its orderly end.

        Raises:
            DisconnectedError: the connection broke.
            FrameError: what came is no HTTP, or can't be decompressed.
        """
