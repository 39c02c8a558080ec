"""The server of webhooks: TLS, connections, and peers that misbehave."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator

import msgspec
import pytest

from listwatch.clock import Clock, FakeClock
from listwatch.webhooks.certificates import make_certificate
from listwatch.webhooks.dispatch import Dispatcher
from listwatch.webhooks.server import FIRST_REQUEST, NEXT_REQUEST, ReviewServer, ServingContext
from webhooks.test_dispatch import REVIEW, Hook, allow

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BODY = msgspec.json.encode(REVIEW)


class Peer:
    """A server with one hook, and connections to it."""

    def __init__(self, server: ReviewServer, trust: ssl.SSLContext, clock: FakeClock) -> None:
        self.port = server.port
        self.clock = clock
        self._trust = trust

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Streams]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._trust)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, head: bytes, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request of its own connection; return status and body."""
        async with self.connected() as (reader, writer):
            writer.write(head.replace(b"\n", b"\r\n") + b"\r\n" + body)
            return await answer(reader)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    clock, context = FakeClock(), ServingContext()
    made = make_certificate(["127.0.0.1"], Clock().time())
    context.use(made.certificate, made.key)
    trust = ssl.create_default_context(cadata=made.authority.pem.decode())
    dispatcher = Dispatcher([Hook(allow)], clock=clock)
    async with ReviewServer(dispatcher, context, host="127.0.0.1", port=0, clock=clock) as server:
        yield Peer(server, trust, clock)


def post(length: int = len(BODY), path: str = "/hook?timeout=10s", more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\nHost: x\nContent-Length: {length}\n{more}".encode()


async def test_a_review_is_answered_and_its_connection_kept(peer: Peer) -> None:
    async with peer.connected() as (reader, writer):
        for _ in range(2):
            writer.write(post().replace(b"\n", b"\r\n") + b"\r\n" + BODY)
            status, body = await answer(reader)
            assert status == 200
            assert msgspec.json.decode(body)["response"] == {"allowed": True, "uid": "u1"}


@pytest.mark.parametrize(
    ("head", "body", "status", "words"),
    [
        (b"GET /hook HTTP/1.1\nHost: x\n", b"", 405, b"webhooks take POST"),
        (post(path="/other"), BODY, 404, b"no webhook at /other"),
        (post(more="Content-Encoding: gzip\n"), BODY, 415, b"webhooks take no compressed reviews"),
        (post(201), b" " * 201, 413, b"the review has more than 200 bytes"),
        (post(4), b"null", 400, b"the body is no review"),
        (
            b"POST /hook HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n",
            b"zz\r\n",
            400,
            b"",
        ),
        (b"nonsense\n", b"", 400, b""),
    ],
)
async def test_a_request_that_is_no_review_gets_a_status_and_words(
    head: bytes, body: bytes, status: int, words: bytes, peer: Peer
) -> None:
    found, text = await peer.ask(head, body)
    assert found == status
    assert words in text


async def test_a_peer_that_leaves_amid_its_body_is_no_error_of_ours(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with peer.connected() as (_, writer):
            writer.write(post(100).replace(b"\n", b"\r\n") + b"\r\n{")
            await writer.drain()
        assert (await peer.ask(post(), BODY))[0] == 200
    assert caplog.messages == []


@pytest.mark.parametrize("sent", [b"", b"POST /hook HTTP/1.1\r\n"])
async def test_a_connection_on_which_no_request_comes_is_closed(sent: bytes, peer: Peer) -> None:
    async with peer.connected() as (reader, writer):
        writer.write(sent)
        await writer.drain()
        # The server's side of the handshake has ended once another request is answered.
        await peer.ask(post(), BODY)
        await peer.clock.advance(FIRST_REQUEST + 1)
        async with asyncio.timeout(10):
            assert await reader.read() == b""


async def test_a_connection_without_a_next_request_is_closed(peer: Peer) -> None:
    async with peer.connected() as (reader, writer):
        writer.write(post().replace(b"\n", b"\r\n") + b"\r\n" + BODY)
        assert (await answer(reader))[0] == 200
        await peer.clock.advance(FIRST_REQUEST + 1)
        assert not reader.at_eof()
        await peer.clock.advance(NEXT_REQUEST)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
