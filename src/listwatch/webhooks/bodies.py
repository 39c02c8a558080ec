"""Bounds the memory of all bodies that are read and answered at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Bytes of all bodies together. A conversion review may have 64 MiB.
BODIES_BYTES: Final = 128 * 2**20


class Bodies:
    """Gives room to the bodies of requests, first come, first served. For one event loop.

    Slow senders hold only the bytes that they have sent, and nobody waits for their number. When
    the room is used up, the oldest body alone may still grow, so that one is always completed: the
    bytes held are at most `room` and one body. Who waits is held back by its connection, and ends
    at its time limit.

    Args:
        room: bytes of all bodies together.
    """

    def __init__(self, room: int = BODIES_BYTES) -> None:
        self._room = room
        self._bodies: dict[Body, None] = {}  # the oldest first
        self._changed = asyncio.Event()
        #: Bytes held now.
        self.held = 0

    @contextmanager
    def body(self) -> Iterator["Body"]:
        """Provide a body; its bytes are held until the end of the block."""
        body = Body(self)
        self._bodies[body] = None
        try:
            yield body
        finally:
            del self._bodies[body]
            self.held -= len(body.data)
            self._changed.set()
            self._changed = asyncio.Event()

    async def make_room(self, body: "Body", size: int) -> None:
        """Return when the body may grow by so many bytes, which then count as held."""
        while self.held + size > self._room and next(iter(self._bodies)) is not body:
            await self._changed.wait()
        self.held += size


class Body:
    """The body of a request, as far as it has arrived.

    Attributes:
        data: its bytes.
    """

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.data = bytearray()

    async def add(self, piece: bytes) -> None:
        """Append bytes, once there is room for them."""
        await self._bodies.make_room(self, len(piece))
        self.data += piece
