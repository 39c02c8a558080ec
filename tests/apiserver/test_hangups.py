"""Clients that hang up or stop reading in the middle of a response: it ends and leaves nothing."""

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.http.tls import generated_tls
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry
from listwatch.clock import FakeClock
from listwatch.testing import eventually

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("LISTWATCH_TEST_LOOP")),
    reason="counts what asyncio's own selector looks at: run it without LISTWATCH_TEST_LOOP",
)

_PODS = "/api/v1/namespaces/default/pods"
_INITIAL = (
    f"{_PODS}?watch=1&sendInitialEvents=true&allowWatchBookmarks=true"
    "&resourceVersionMatch=NotOlderThan"
)
_COUNT = 8000
_PAYLOAD = "x" * 1000


def open_files() -> int:
    """Count the event loop's files: its own one, the listener, and connections."""
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined] # every selector loop has it


def pods_of(server: EmbeddedAPIServer) -> APIResource:
    resource = server.table.get("", "v1", "pods")
    assert resource is not None
    return resource


def fill(server: EmbeddedAPIServer, count: int = _COUNT) -> None:
    """Store `count` pods directly."""
    resource, store = pods_of(server), server.store
    bucket = server.registry.bucket(resource)
    for number in range(count):
        pod = {
            "metadata": {
                "name": f"p{number:05d}",
                "namespace": "default",
                "uid": f"u{number}",
                "annotations": {"note": _PAYLOAD},
            }
        }
        store.put(bucket, server.registry.entry(resource, pod, store.revision + 1))


def change(server: EmbeddedAPIServer, count: int) -> None:
    """Make `count` changes without yielding to the event loop."""
    store, bucket = server.store, server.registry.bucket(pods_of(server))
    for entry in bucket.current()[:count]:
        store.put(bucket, entry.at_revision(store.revision + 1))


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Peer:
    """A client on a bare socket."""

    def __init__(self, server: EmbeddedAPIServer) -> None:
        self._address = server.host, server.port
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)

    async def send(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, self._address)
        await loop.sock_sendall(self.socket, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def ask(self, path: str) -> None:
        """Send a request and read the beginning of the response."""
        loop = asyncio.get_running_loop()
        await self.send(path)
        assert (await loop.sock_recv(self.socket, 1000)).startswith(b"HTTP/1.1 200 OK\r\n")

    async def read(self) -> bytes:
        """Read up to 64 KiB."""
        return await asyncio.get_running_loop().sock_recv(self.socket, 65536)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        reset(self.socket)


Going = Callable[[Peer], None]
GOING = pytest.mark.parametrize("go", [Peer.close, Peer.reset])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def server(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[EmbeddedAPIServer]:
    """Serve pods; afterwards check that nothing was logged and that no task is left."""
    server = EmbeddedAPIServer(controllers=False, clock=clock)
    fill(server)
    async with server:
        yield server
    assert asyncio.all_tasks() == {asyncio.current_task()}
    logged = caplog.get_records("call") + caplog.get_records("teardown")
    assert [each.getMessage() for each in logged if each.levelno >= logging.WARNING] == []


class Frames:
    """Count encoded events, and run `then` while the `at`-th one is encoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.at = 0
        self.then: Callable[[], None] = lambda: None
        frames = Reader._frames  # The tests promise a cost, so count the work.

        def counted(reader: Reader, *form: Any) -> Any:
            make, *others = frames(reader, *form)

            def make_and_count(kind: str, entry: Entry) -> bytes:
                self.made += 1
                if self.made == self.at:
                    self.then()
                return make(kind, entry)

            return make_and_count, *others

        monkeypatch.setattr(Reader, "_frames", counted)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Frames:
    return Frames(monkeypatch)


@GOING
@pytest.mark.parametrize("path", [_INITIAL, f"{_PODS}?watch=1&resourceVersion=1"])
async def test_a_watch_that_waits_for_its_client_ends_when_that_goes(
    server: EmbeddedAPIServer, path: str, go: Going
) -> None:
    with Peer(server) as peer:
        await peer.ask(path)
        assert server.statistics().watchers == 1
        go(peer)
        await eventually(lambda: server.statistics().watchers == 0)


@pytest.mark.parametrize("path", [_INITIAL, f"{_PODS}?watch=1&resourceVersion=1"])
async def test_nothing_is_written_to_a_client_that_has_gone_in_the_middle(
    server: EmbeddedAPIServer, frames: Frames, path: str
) -> None:
    """Neither initial events nor replayed history are written."""
    with Peer(server) as peer:
        frames.at, frames.then = 5, peer.reset
        await peer.send(path)
        await eventually(lambda: frames.made >= 5)
        await eventually(lambda: server.statistics().watchers == 0)
    assert frames.made < 100


async def test_nothing_is_written_to_an_encrypted_connection_that_has_gone(
    frames: Frames, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A TLS transport learns of its end only in the next turn of the event loop."""
    tls = generated_tls("127.0.0.1")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    files[0].write_text(tls.client_certificate)
    files[1].write_text(tls.client_key)
    context = ssl.create_default_context(cadata=tls.authority)
    context.load_cert_chain(*files)
    server = EmbeddedAPIServer(controllers=False, tls=tls)
    fill(server)
    async with server:
        address = server.host, server.port

        def connect() -> ssl.SSLSocket:
            return context.wrap_socket(
                socket.create_connection(address), server_hostname="localhost"
            )

        with await asyncio.to_thread(connect) as peer:
            frames.at, frames.then = 5, lambda: reset(peer)
            peer.sendall(f"GET {_INITIAL} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await eventually(lambda: frames.made >= 5)
            await eventually(lambda: server.statistics().watchers == 0)
    assert frames.made < 200
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_changes_are_not_written_to_a_client_that_has_gone(
    server: EmbeddedAPIServer, frames: Frames
) -> None:
    with Peer(server) as peer:
        await peer.ask(f"{_PODS}?watch=1&resourceVersion={server.store.revision}")
        peer.reset()
        change(server, 100)
        assert frames.made <= 2
        await eventually(lambda: server.statistics().watchers == 0)


async def test_what_has_waited_is_not_written_to_a_client_that_has_gone(
    server: EmbeddedAPIServer, frames: Frames
) -> None:
    with Peer(server) as peer:
        await peer.ask(f"{_PODS}?watch=1&resourceVersion={server.store.revision}")
        server.stale_replica()
        change(server, 1000)
        frames.at, frames.then = 5, peer.reset
        server.stale_replica(False)
        await eventually(lambda: server.statistics().watchers == 0)
    assert frames.made < 100


_ANSWERS = pytest.mark.parametrize("path", [_PODS, f"{_PODS}?pretty=1", _INITIAL])


@GOING
@_ANSWERS
async def test_nothing_is_left_of_a_client_that_goes_in_the_middle(
    server: EmbeddedAPIServer, path: str, go: Going
) -> None:
    with Peer(server) as peer:
        await peer.ask(path)
        assert (len(asyncio.all_tasks()), open_files()) > (1, 2)
        go(peer)
        await eventually(lambda: (len(asyncio.all_tasks()), open_files()) == (1, 2))


@_ANSWERS
async def test_a_client_that_takes_nothing_for_five_minutes_is_cut_off(
    server: EmbeddedAPIServer, clock: FakeClock, path: str
) -> None:
    with Peer(server) as peer:
        await peer.ask(path)
        await clock.advance(299.0)
        assert open_files() == 3
        await clock.advance(1.0)
        await eventually(lambda: (len(asyncio.all_tasks()), open_files()) == (1, 2))


@_ANSWERS
async def test_a_client_that_reads_slowly_gets_all_of_it(
    server: EmbeddedAPIServer, clock: FakeClock, path: str
) -> None:
    last = f'"name":"p{_COUNT - 1:05d}"'.encode()
    with Peer(server) as peer:
        await peer.ask(path)
        read, times = b"", 0
        while last not in read.replace(b" ", b""):
            piece = await peer.read()
            assert piece
            read = read[-1000:] + piece
            times += 1
            if times % 100 == 0:
                await clock.advance(30.0)
        assert times > 1100  # longer in total than the server waits for a client that reads nothing


@_ANSWERS
async def test_the_end_of_the_server_waits_for_no_client(
    server: EmbeddedAPIServer, path: str
) -> None:
    with Peer(server) as peer:
        await peer.ask(path)
        await server.stop()
        assert open_files() == 1


async def test_what_fails_in_the_middle_of_an_answer_breaks_it_off(
    server: EmbeddedAPIServer, frames: Frames, caplog: pytest.LogCaptureFixture
) -> None:
    """The client would take an error response for a part of the body."""

    def fail() -> None:
        raise ValueError("no such luck")

    frames.at, frames.then = 500, fail
    with Peer(server) as peer:
        await peer.ask(_INITIAL)
        read = b""
        with suppress(ConnectionResetError):
            while piece := await peer.read():
                read += piece
    assert b"HTTP/1.1" not in read
    assert [record.getMessage() for record in caplog.records] == [f"GET {_PODS} failed"]
    assert not server.statistics().watchers
    caplog.clear()
