"""The cost of a message that the local provider forwards between two connections."""

import socket
from collections.abc import Mapping

from guards.counting import calls, guard
from listwatch.controllers.services.providers.transport import Poller, SocketTransport


class _Ignores:
    """The receiver of a transport that forwards."""

    def data_received(self, data: bytes) -> None:
        raise AssertionError(data)

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


async def test_a_forwarded_message_costs_one_call_beside_the_polling() -> None:
    async def work(items: int) -> Mapping[str, int]:
        source, inside = socket.socketpair()
        target, outside = socket.socketpair()
        poller = Poller()
        with source, target:
            for sock in (source, inside, target, outside):
                sock.setblocking(False)
            inward, outward = (
                SocketTransport(one, _Ignores(), poller) for one in (inside, outside)
            )
            inward.forward_to(outward)
            inward.resume_reading()
            with calls() as counted:
                for _ in range(items):
                    source.send(b"message")
                    poller.poll()
                    assert target.recv(100) == b"message"
            assert inward.received == 7 * items
            inward.abort()
            outward.abort()
        return counted

    await guard("forwarded-message", work)
