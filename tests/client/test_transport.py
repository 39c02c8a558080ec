"""The transport against scripted servers, recordings of a real one, and bytes cut at random."""

import asyncio
import contextlib
import gzip
import http.client
import io
import itertools
import json
import socket
import ssl
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from listwatch.client import transport
from listwatch.client.transport import ConnectionPool, PoolStatistics, Response, stream
from listwatch.clock import Clock, FakeClock
from listwatch.errors import DisconnectedError, FrameError, TooManyRequestsError
from listwatch.testing.fault_proxy import FaultProxy, Place

WIRE = Path(__file__).parents[1] / "data/conformance/wire"
CAPTURES = {entry["name"]: entry for entry in json.loads((WIRE / "index.json").read_text())}
ANSWERED = [name for name, entry in CAPTURES.items() if entry["bytes"]]

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

Run = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Script = Callable[["Server"], Run]


class Server:
    """A server of which each connection runs a script, and is then closed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended = asyncio.Event()
        self.url = ""
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.script(self)(reader, writer)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        request = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(request)
        return request


@contextlib.asynccontextmanager
async def serving(script: Script, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Server]:
    server = Server(script)
    listener = await asyncio.start_server(server.handle, host, 0, **options)
    server.port = listener.sockets[0].getsockname()[1]
    authority = f"[{host}]" if ":" in host else host
    scheme = "https" if options.get("ssl") else "http"
    server.url = f"{scheme}://{authority}:{server.port}"
    with_listener = open_files()
    async with listener:
        yield server
        for _ in range(10):  # asyncio loses a connection whose listener closes as it comes in
            await asyncio.sleep(0)
    await until(lambda: open_files() < with_listener)  # else something is left open


def open_files() -> int:
    """Return how many files the event loop looks at."""
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined] # of every selector loop


async def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20  # a test that hangs here would never be ended
    while not condition():
        assert time.monotonic() < limit, "it never became true"
        await asyncio.sleep(0)


def answering(*parts: bytes) -> Script:
    """Answer each request of a connection with these parts, a turn apart, then close."""

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)

        return run

    return script


def holding(*parts: bytes) -> Script:
    """Answer with these parts and keep the connection until the client closes it."""

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            for part in parts:
                writer.write(part)
            await reader.read()

        return run

    return script


async def get(server: Server, path: str = "/", **options: Any) -> tuple[int, bytes]:
    options.setdefault("clock", Clock())
    async with stream(server.url + path, {}, **options) as response:
        return response.status, await response.read(2**24)


async def failure(request: Awaitable[object]) -> Exception:
    """Return what a request raises, for tasks whose failure is awaited."""
    try:
        await request
    except (DisconnectedError, TimeoutError) as error:
        return error
    raise AssertionError("nothing was raised")


class Wire(asyncio.Transport):
    """The other end of a connection that is fed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.aborted = False

    def write(self, data: "bytes | bytearray | memoryview[int]") -> None:
        assert bytes(data) == b"request"

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


def by_hand() -> tuple[transport._Connection, Wire]:
    connection = transport._Connection(transport.Target("h", 1, "h:1", None, None, None))
    wire = Wire()
    connection.connection_made(wire)
    connection.send(b"request")
    return connection, wire


class OracleSocket:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def oracle(data: bytes) -> tuple[int, str, list[tuple[str, str]], bytes, bool]:
    """Return what the standard library reads: status, reason, headers, body, is whole."""
    answer = http.client.HTTPResponse(OracleSocket(data))  # type: ignore[arg-type] # all it uses
    answer.begin()
    try:
        body, is_whole = answer.read(), True
    except http.client.IncompleteRead:
        head, _, _ = data.partition(b"\r\n\r\n")
        body, is_whole = dechunk(data[len(head) + 4 :]), False
    if answer.headers.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    return answer.status, answer.reason, answer.getheaders(), body, is_whole


def dechunk(data: bytes) -> bytes:
    """Return what a chunked body that is cut anywhere had before the cut."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size or b"0", 16)]
        data = data[int(size or b"0", 16) + 2 :]
    return body


async def read_all(response: Response) -> tuple[bytes, bool]:
    body = b""
    try:
        async for pieces in response:
            assert pieces
            assert all(pieces)
            body += b"".join(pieces)
    except DisconnectedError as error:
        return body, "the connection broke within an answer" not in str(error)
    return body, True


@pytest.mark.parametrize("name", ANSWERED)
async def test_reads_a_recording_as_the_standard_library_does(name: str) -> None:
    data = (WIRE / f"{name}.response").read_bytes()
    sizes = [size for _, size in CAPTURES[name]["reads"]]
    ends = list(itertools.accumulate(sizes))
    assert ends[-1] == len(data)
    parts = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    status, reason, headers, body, is_whole = oracle(data)
    if name == "keep-alive":  # two answers; the second has the pool's tests
        data, parts = data[: sizes[0]], parts[:1]
    async with (
        serving(answering(*parts)) as server,
        stream(server.url, {"X": "y"}, clock=Clock()) as response,
    ):
        assert (response.status, response.reason) == (status, reason)
        assert list(response.headers.items()) == headers
        assert await read_all(response) == (body, is_whole)
    assert is_whole == (name not in {"watch-kill", *unfinished()})


def unfinished() -> set[str]:
    """Streams that the recording client left."""
    return {
        name
        for name in ANSWERED
        if b"Transfer-Encoding: chunked" in (data := (WIRE / f"{name}.response").read_bytes())
        and not data.endswith(b"0\r\n\r\n")
    }


async def feed_by_hand(chunks: Iterable[bytes]) -> tuple[int, bytes, bool]:
    connection, _ = by_hand()
    for chunk in chunks:
        connection.data_received(chunk)
    connection.connection_lost(None)
    await connection.read_head()
    return connection.status, *(await read_all(Response(connection)))


@given(
    name=st.sampled_from([n for n in ANSWERED if n != "keep-alive"]),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    one_by_one=st.integers(0, 900),
)
@settings(max_examples=150, deadline=None)
def test_where_the_network_cuts_changes_nothing(
    name: str, cuts: list[float], one_by_one: int
) -> None:
    data = (WIRE / f"{name}.response").read_bytes()
    status, _, _, body, is_whole = oracle(data)
    places = sorted({int(cut * len(data)) for cut in cuts} | set(range(1, one_by_one)))
    places = [place for place in places if 0 < place < len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]
    assert asyncio.run(feed_by_hand(chunks)) == (status, body, is_whole)


@given(name=st.sampled_from(["list-pods", "watch-pods", "get-404"]), where=st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_a_cut_anywhere_is_told_from_the_end(name: str, where: float) -> None:
    data = (WIRE / f"{name}.response").read_bytes()
    head_end = data.index(b"\r\n\r\n") + 4
    cut = data[: min(int(where * len(data)), len(data) - 1)]

    async def run() -> None:
        if len(cut) < head_end:
            with pytest.raises(DisconnectedError, match=r"the server closed|broke within"):
                await feed_by_hand([cut] if cut else [])
        else:
            _, body, is_whole = await feed_by_hand([cut])
            assert not is_whole
            assert oracle(data)[3].startswith(body)

    asyncio.run(run())


async def test_a_chunk_is_a_piece_and_what_one_read_brought_is_a_batch() -> None:
    connection, _ = by_hand()
    lines = [b'{"type":"ADDED","n":%d}\n' % n for n in range(4)]
    framed = [b"%x\r\n%s\r\n" % (len(line), line) for line in lines]
    connection.data_received(CHUNKED)
    await connection.read_head()
    response = Response(connection)
    connection.data_received(framed[0] + framed[1] + framed[2][:10])
    assert await anext(response) == [*lines[:2], lines[2][:6]]
    connection.data_received(framed[2][10:] + framed[3])
    assert await anext(response) == [lines[2][6:], lines[3]]
    connection.data_received(b"0\r\n\r\n")
    with pytest.raises(StopAsyncIteration):
        await anext(response)
    with pytest.raises(StopAsyncIteration):
        await anext(response)


async def test_pieces_that_came_before_a_cut_are_given_before_the_error() -> None:
    connection, _ = by_hand()
    connection.data_received(CHUNKED + b"3\r\nabc\r\n5\r\nde")
    connection.connection_lost(ConnectionResetError(104, "reset"))
    response = Response(connection)
    assert await anext(response) == [b"abc", b"de"]
    for _ in range(2):
        with pytest.raises(
            DisconnectedError, match="http://h:1: the connection broke within an answer"
        ) as caught:
            await anext(response)
        assert isinstance(caught.value.__cause__, ConnectionResetError)
        assert not caught.value.refused


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with serving(answering(OK + b"Connection: close\r\n\r\n", b"abc", b"def")) as server:
        assert await get(server) == (200, b"abcdef")


async def test_a_body_without_a_length_is_cut_by_a_reset() -> None:
    connection, _ = by_hand()
    connection.data_received(OK + b"\r\nabc")
    connection.connection_lost(ConnectionResetError())
    assert await read_all(Response(connection)) == (b"abc", False)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_that_never_have_a_body_are_whole_without_one(status: bytes) -> None:
    async with serving(holding(b"HTTP/1.1 " + status + b"\r\n\r\n")) as server:
        assert await get(server) == (int(status[:3]), b"")


async def test_interim_answers_are_skipped_with_their_headers() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n"
    final = b"HTTP/1.1 404 Gone Fishing\r\nX-Late: 2\r\nContent-Length: 2\r\n\r\nno"
    async with (
        serving(holding(b"HTTP/1.1 100 Continue\r\n\r\n" + early, final)) as server,
        stream(server.url, {}, clock=Clock()) as response,
    ):
        assert (response.status, response.reason) == (404, "Gone Fishing")
        assert dict(response.headers) == {"X-Late": "2", "Content-Length": "2"}
        assert response.headers["x-late"] == "2"
        assert await response.read(2) == b"no"


async def test_a_redirect_is_an_answer_like_any_other() -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"
    async with serving(answering(answer)) as server:
        assert await get(server) == (302, b"")
        assert server.connections == 1


async def test_repeated_headers_and_unusual_bytes_in_them_are_kept() -> None:
    connection, _ = by_hand()
    connection.data_received(OK + b"Warning: 299 - a\r\nwarning: \xc3\xa9\xff \r\nA:\r\n\r\n")
    response = Response(connection)
    assert response.headers.getall("WARNING") == ["299 - a", "é\udcff"]
    assert response.headers["a"] == ""


async def test_a_body_over_the_readers_limit_is_refused() -> None:
    async with serving(answering(OK + b"Content-Length: 4\r\n\r\nabcd")) as server:
        with pytest.raises(FrameError, match="a body of over 3 B"):
            async with stream(server.url, {}, clock=Clock()) as response:
                await response.read(3)


# Requests.


async def test_the_request_has_the_callers_headers_after_the_host() -> None:
    async with serving(answering(OK + b"Content-Length: 0\r\n\r\n")) as server:
        url = f"{server.url}/api/v1/pods?watch=1&labelSelector=a%3Db#fragment"
        async with stream(url, {"Accept": "application/json", "X-E": "é€"}, clock=Clock()):
            pass
        assert server.requests == [
            b"GET /api/v1/pods?watch=1&labelSelector=a%%3Db HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
            b"Accept: application/json\r\nX-E: \xc3\xa9\xe2\x82\xac\r\n\r\n" % server.port
        ]
        async with stream(server.url, [("hOST", "other"), ("G", "1"), ("G", "2")], clock=Clock()):
            pass
        assert server.requests[1] == b"GET / HTTP/1.1\r\nhOST: other\r\nG: 1\r\nG: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("url", "headers", "words"),
    [
        ("http://h/a b", {}, "percent-encode"),
        ("http://h/é", {}, "percent-encode"),
        ("http://h/\r\nX: y", {}, "percent-encode"),
        ("ftp://h/", {}, "begins with http:// or https://"),
        ("http:///path", {}, "and a host"),
        ("http://user:secret@h/", {}, "without a user"),
        ("https://h/", {}, "https needs an SSLContext"),
        ("http://h/", {"A": "b\r\nC: d"}, "the header 'A' has characters"),
        ("http://h/", {"A b": "c"}, "the header 'A b' has characters"),
        ("http://h/", {"A": "\udc80"}, "the header 'A' has characters"),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_connecting(
    url: str, headers: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        async with stream(url, headers, clock=Clock()):
            pytest.fail("connected")
    assert "secret" not in str(caught.value)


# Connecting.


@contextlib.contextmanager
def refusing(family: socket.AddressFamily, host: str) -> Iterator[int]:
    """Hold a port on which nobody listens, so that nobody else does meanwhile."""
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
async def test_a_refused_connection_says_so(family: socket.AddressFamily, host: str) -> None:
    with refusing(family, host) as port:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with pytest.raises(DisconnectedError) as caught:
            async with stream(f"http://{authority}/", {}, clock=Clock()):
                pytest.fail("connected")
    assert str(caught.value) == f"http://{authority}: no connection: Connection refused"
    assert caught.value.refused


async def test_a_missing_unix_socket_counts_as_refused(tmp_path: Path) -> None:
    with pytest.raises(DisconnectedError, match="no connection: No such file") as caught:
        async with stream("http://h/", {}, clock=Clock(), unix_socket=str(tmp_path / "none")):
            pytest.fail("connected")
    assert caught.value.refused


async def test_a_name_with_several_addresses_is_refused_only_if_all_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look_up(_target: transport.Target) -> list[str]:
        return ["::1", "127.0.0.1"]

    monkeypatch.setattr(transport, "_look_up", look_up)
    async with serving(answering(OK + b"Content-Length: 1\r\n\r\nx")) as server:
        assert await get(server) == (200, b"x")
    with refusing(socket.AF_INET, "127.0.0.1") as server.port:
        server.url = f"http://127.0.0.1:{server.port}"
        with pytest.raises(DisconnectedError) as caught:
            await get(server)
        assert caught.value.refused


async def test_an_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(*_args: object, **_options: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    with pytest.raises(
        DisconnectedError, match="http://nowhere:80: the host is unknown: Name"
    ) as caught:
        async with stream("http://nowhere:80/", {}, clock=Clock()):
            pytest.fail("connected")
    assert not caught.value.refused


async def test_speaks_to_an_ipv6_address() -> None:
    async with serving(answering(OK + b"Content-Length: 1\r\n\r\nx"), "::1") as server:
        assert await get(server) == (200, b"x")
        assert b"\r\nHost: [::1]:%d\r\n" % server.port in server.requests[0]


async def test_speaks_through_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    server = Server(answering(OK + b"\r\nx"))
    async with await asyncio.start_unix_server(server.handle, path):
        server.url = "http://kubernetes.local"
        assert await get(server, unix_socket=path) == (200, b"x")
        assert b"\r\nHost: kubernetes.local\r\n" in server.requests[0]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_speaks_tls_and_reads_a_large_body(authority: trustme.CA) -> None:
    body = bytes(range(256)) * 8192
    script = answering(OK + b"Content-Length: %d\r\n\r\n" % len(body), body)
    async with serving(script, ssl=server_context(authority)) as server:
        assert await get(server, ssl=client_context(authority)) == (200, body)


async def test_the_certificate_may_have_another_name(authority: trustme.CA) -> None:
    script = answering(OK + b"Content-Length: 1\r\n\r\nx")
    async with serving(script, ssl=server_context(authority, "api.example")) as server:
        context = client_context(authority)
        with pytest.raises(DisconnectedError, match="certificate is not trusted: IP address mism"):
            await get(server, ssl=context)
        assert await get(server, ssl=context, server_hostname="api.example") == (200, b"x")


async def test_an_unknown_authority_is_not_trusted(authority: trustme.CA) -> None:
    async with serving(answering(), ssl=server_context(authority)) as server:
        with pytest.raises(DisconnectedError, match="not trusted: unable to get local") as caught:
            await get(server, ssl=ssl.create_default_context())
        assert not caught.value.refused


async def test_plain_text_in_place_of_tls_is_no_tls(authority: trustme.CA) -> None:
    def script(_server: Server) -> Run:
        async def run(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            await writer.drain()

        return run

    async with serving(script) as server:
        server.url = server.url.replace("http", "https")
        with pytest.raises(DisconnectedError, match="no TLS"):
            await get(server, ssl=client_context(authority))


def silent(_server: Server) -> Run:
    async def run(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    return run


async def test_a_connection_that_is_not_made_in_time_is_given_up(authority: trustme.CA) -> None:
    clock = FakeClock()
    before = open_files()
    async with serving(silent) as server, asyncio.TaskGroup() as group:
        server.url = server.url.replace("http", "https")
        request = get(server, ssl=client_context(authority), clock=clock, connect_timeout=7)
        task = group.create_task(failure(request))
        await until(lambda: open_files() == before + 3)  # the listener and both ends
        await clock.advance(6.9)
        assert not task.done()
        await clock.advance(0.2)
        error = await task
        assert isinstance(error, DisconnectedError)
        assert str(error) == f"{server.url}: no connection within 7 s"
        assert not error.refused


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nX: y\r\n"])
async def test_headers_that_do_not_come_in_time_are_given_up(part: bytes) -> None:
    clock = FakeClock()
    async with serving(holding(part)) as server, asyncio.TaskGroup() as group:
        task = group.create_task(failure(get(server, clock=clock, headers_timeout=75)))
        await until(lambda: len(server.requests) == 1)
        await clock.advance(74.9)
        assert not task.done()
        await clock.advance(0.2)
        error = await task
        assert isinstance(error, TimeoutError)
        assert str(error) == f"{server.url} sent no answer within 75 s"
        await server.ended.wait()
    assert clock.next_timer is None


async def test_nothing_limits_the_time_of_a_body() -> None:
    clock = FakeClock()
    async with serving(holding(CHUNKED + b"1\r\nx\r\n")) as server:
        async with stream(server.url, {}, clock=clock) as response:
            assert await anext(response) == [b"x"]
            assert clock.next_timer is None
        await server.ended.wait()


async def test_a_server_that_closes_at_once_gave_no_answer() -> None:
    async with serving(answering()) as server:
        with pytest.raises(DisconnectedError, match="the server closed the connection") as caught:
            await get(server)
        assert not caught.value.refused


async def test_the_kernel_looks_for_dead_hosts() -> None:
    async with (
        serving(holding(CHUNKED)) as server,
        stream(server.url, {}, clock=Clock()) as response,
    ):
        network = response._connection._transport
        assert network is not None
        sock: socket.socket = network.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        tcp = socket.IPPROTO_TCP
        first = sock.getsockopt(tcp, socket.TCP_KEEPIDLE)
        others = sock.getsockopt(tcp, socket.TCP_KEEPINTVL) * sock.getsockopt(
            tcp, socket.TCP_KEEPCNT
        )
        assert first + others <= 60
        assert sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 60_000


# Bytes that are no answer.


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"garbage\r\n\r\n", "sent no valid HTTP/1.1 answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "sent no valid HTTP/1.1 answer"),
        (OK + b"X: " + b"y" * 70_000, "sent headers over 65536 B"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 4000, "sent headers over 65536 B"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nraw",
            "switched protocols",
        ),
        (
            OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "sent no valid HTTP/1.1 answer",
        ),
        (OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "sent no valid HTTP/1.1"),
        (
            OK + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
            "Content-Encoding that was not asked for",
        ),
        (OK + b"Content-Encoding: gzip, gzip\r\n\r\nx", "Content-Encoding that was not asked for"),
    ],
)
async def test_what_is_no_answer_is_refused(data: bytes, words: str) -> None:
    async with serving(holding(data)) as server:
        with pytest.raises(FrameError, match=words):
            await get(server)
        await server.ended.wait()


async def test_a_chunk_size_that_is_none_ends_the_body_with_an_error() -> None:
    connection, wire = by_hand()
    connection.data_received(CHUNKED + b"2\r\nab\r\nxyz\r\n")
    response = Response(connection)
    assert await anext(response) == [b"ab"]
    with pytest.raises(FrameError, match=r"sent no valid HTTP/1\.1 answer"):
        await anext(response)
    assert wire.aborted


@pytest.mark.parametrize("start", [b"0\r\nTrailer: ", b"1;extension="])
async def test_trailers_and_extensions_without_an_end_are_given_up(start: bytes) -> None:
    connection, wire = by_hand()
    connection.data_received(CHUNKED + b"1\r\na\r\n" + start)
    fed = 0
    while not wire.aborted:
        connection.data_received(b"x" * 1000)
        fed += 1
    assert 60 < fed < 70
    response = Response(connection)
    assert await anext(response) == [b"a"]
    with pytest.raises(FrameError, match="65536 B of trailers"):
        await anext(response)


async def test_trailers_are_not_headers() -> None:
    connection, _ = by_hand()
    connection.data_received(CHUNKED + b"1\r\na\r\n0\r\nContent-Encoding: br\r\n\r\n")
    response = Response(connection)
    assert list(response.headers) == ["Transfer-Encoding"]
    assert await read_all(response) == (b"a", True)


@pytest.mark.parametrize("extra", [OK + b"Content-Length: 0\r\n\r\n", b"garbage"])
@pytest.mark.parametrize("is_later", [False, True])
async def test_bytes_after_an_answer_end_the_connection_not_the_answer(
    extra: bytes, is_later: bool
) -> None:
    connection, wire = by_hand()
    answer = OK + b"Content-Length: 1\r\n\r\na"
    for data in [answer, extra] if is_later else [answer + extra]:
        connection.data_received(data)
    assert wire.aborted
    assert not connection.is_idle
    assert await read_all(Response(connection)) == (b"a", True)


# Compression.


def bare_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


BODY = json.dumps({"items": [{"name": f"pod-{n}", "uid": n * 7919} for n in range(3000)]}).encode()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(BODY)),
        (b"GZIP", gzip.compress(BODY)),
        (b"x-gzip", gzip.compress(BODY)),
        (b"gzip", gzip.compress(BODY[:5000]) + gzip.compress(BODY[5000:])),
        (b"deflate", zlib.compress(BODY)),
        (b"deflate", bare_deflate(BODY)),
        (b"identity", BODY),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10**9])
async def test_takes_the_compression_off(coding: bytes, body: bytes, size: int) -> None:
    connection, _ = by_hand()
    connection.data_received(OK + b"Content-Encoding: " + coding + b"\r\n\r\n")
    response = Response(connection)
    for n in range(0, len(body), size):
        connection.data_received(body[n : n + size])
    connection.connection_lost(None)
    assert await read_all(response) == (BODY, True)


async def test_a_compressed_event_is_given_when_it_is_flushed() -> None:
    connection, _ = by_hand()
    connection.data_received(OK + b"Content-Encoding: gzip\r\n\r\n")
    response = Response(connection)
    deflate = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    for n in range(3):
        line = b'{"type":"ADDED","n":%d}\n' % n
        data = deflate.compress(line) + deflate.flush(zlib.Z_SYNC_FLUSH)
        connection.data_received(data)
        assert await anext(response) == [line]


@pytest.mark.parametrize(
    ("coding", "body", "words"),
    [
        ("gzip", gzip.compress(BODY)[:-1], "a gzip body that ends in the middle"),
        ("gzip", b"plain text", "a body that is no gzip"),
        ("gzip", gzip.compress(BODY) + b"more", "a body that is no gzip"),
        ("deflate", zlib.compress(BODY)[:-5], "a deflate body that ends in the middle"),
        ("deflate", b"\xff\xff", "a body that is no deflate"),
    ],
)
async def test_wrong_compression_is_an_error(coding: str, body: bytes, words: str) -> None:
    head = OK + f"Content-Encoding: {coding}\r\n\r\n".encode()
    with pytest.raises(FrameError, match=words):
        await feed_by_hand([head, body])


async def test_an_empty_body_needs_no_compression() -> None:
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
    assert await feed_by_hand([head]) == (200, b"", True)


async def test_a_small_body_that_is_huge_when_decoded_comes_in_bounded_steps() -> None:
    connection, _ = by_hand()
    connection.data_received(OK + b"Content-Encoding: gzip\r\n\r\n")
    response = Response(connection)
    size = 40 * transport.MAX_DECODED_BYTES
    connection.data_received(gzip.compress(bytes(size)))
    connection.connection_lost(None)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    is_over = False
    async with asyncio.TaskGroup() as group:
        group.create_task(count_turns())
        steps = [sum(map(len, pieces)) async for pieces in response]
        is_over = True
    assert sum(steps) == size
    assert max(steps) <= transport.MAX_DECODED_BYTES
    assert turns >= 38


# A slow reader, and the end of a stream.


async def test_reading_pauses_while_the_reader_is_slow_and_goes_on_after() -> None:
    connection, wire = by_hand()
    connection.data_received(OK + b"\r\n")
    response = Response(connection)
    piece = b"x" * (transport.MAX_WAITING_BYTES // 4)
    for n in range(4):
        assert not wire.paused, n
        connection.data_received(piece)
    assert vars(wire)["paused"]  # in a way that mypy does not narrow
    assert await anext(response) == [piece] * 4
    assert not wire.paused
    connection.data_received(piece)
    assert not wire.paused


async def test_what_waits_for_a_slow_reader_is_bounded() -> None:
    total = 32 * 2**20
    sent = 0

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await server.request(reader)
            writer.write(OK + b"Content-Length: %d\r\n\r\n" % total)
            piece = b"x" * 65536
            for _ in range(total // len(piece)):
                writer.write(piece)
                await writer.drain()
                sent += len(piece)

        return run

    async with serving(script) as server:
        async with stream(server.url, {}, clock=Clock()) as response:
            connection = response._connection
            await until(lambda: connection._paused)
            for _ in range(200):
                await asyncio.sleep(0)
            waiting = connection._waiting_bytes
            # Beyond the bound goes one reading, which is no larger.
            bound = transport.MAX_WAITING_BYTES
            assert bound <= waiting < 2 * bound
            assert sent < total
            assert len(await response.read(total)) == total
        await server.ended.wait()


async def test_a_cancelled_reader_closes_the_connection_in_the_same_turn() -> None:
    async with serving(holding(CHUNKED + b"1\r\nx\r\n")) as server:
        networks: list[asyncio.Transport | None] = []
        is_reading = asyncio.Event()

        async def read() -> None:
            async with stream(server.url, {}, clock=Clock()) as response:
                networks.append(response._connection._transport)
                async for _ in response:
                    is_reading.set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(read())
            await is_reading.wait()
            await asyncio.sleep(0)
            task.cancel()
            network = networks[0]
            assert network is not None
            assert not network.is_closing()
            await asyncio.sleep(0)
            assert network.is_closing()
            with pytest.raises(asyncio.CancelledError):
                await task
        await server.ended.wait()


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("is_secure", [False, True])
async def test_a_cancel_at_any_time_leaves_nothing(
    turns: int, is_secure: bool, authority: trustme.CA
) -> None:
    context = server_context(authority) if is_secure else None
    trust = client_context(authority) if is_secure else None
    async with (
        serving(holding(CHUNKED + b"1\r\nx\r\n"), ssl=context) as server,
        asyncio.TaskGroup() as group,
    ):
        task = group.create_task(get(server, ssl=trust))
        for _ in range(2**turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_reader_that_was_cancelled_may_go_on() -> None:
    connection, _ = by_hand()
    connection.data_received(CHUNKED)
    response = Response(connection)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(response.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        connection.data_received(b"1\r\nx\r\n")
        await asyncio.wait([task])
        assert task.cancelled()
    assert await anext(response) == [b"x"]


async def test_an_answer_has_one_reader() -> None:
    connection, _ = by_hand()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(connection.read_head())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="an answer has one reader"):
            await connection.read_head()
        connection.data_received(CHUNKED)
        await task


# The pool.


def keeping_alive(server: Server) -> Run:
    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                path = (await server.request(reader)).split(b" ")[1]
                writer.write(OK + b"Content-Length: %d\r\n\r\n%s" % (len(path), path))
                if path == b"/close":
                    return

    return run


async def test_a_pool_gives_the_next_request_the_same_connection() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as server:
        for path in ("/a", "/bcd", "/e"):
            assert await get(server, path, pool=pool) == (200, path.encode())
        assert server.connections == 1
        assert pool.statistics().idle == 1
        pool.close()
        await server.ended.wait()


async def test_the_recorded_pair_of_answers_is_read_from_one_connection() -> None:
    data = (WIRE / "keep-alive.response").read_bytes()
    size = CAPTURES["keep-alive"]["reads"][0][1]

    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in (data[:size], data[size:]):
                await server.request(reader)
                writer.write(answer)

        return run

    pool = ConnectionPool(Clock())
    async with serving(script) as server:
        first, second = await get(server, pool=pool), await get(server, pool=pool)
        assert (first[0], second[0]) == (200, 404)
        assert first[1] == oracle(data[:size])[3]
        assert second[1] == oracle(data[size:])[3]
        assert server.connections == 1
        pool.close()


async def test_a_connection_that_the_server_closed_meanwhile_costs_one_more() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as server:
        assert await get(server, "/close", pool=pool) == (200, b"/close")
        assert pool.statistics().idle == 1
        assert await get(server, "/b", pool=pool) == (200, b"/b")
        assert server.connections == 2
        pool.close()


async def test_a_request_is_sent_again_only_if_a_waiting_connection_gave_no_byte() -> None:
    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(OK + b"Content-Length: 0\r\n\r\n")
            await server.request(reader)
            if b"/some" in server.requests[-1]:
                writer.write(b"HTTP/1.1 2")
            writer.close()

        return run

    pool = ConnectionPool(Clock())
    async with serving(script) as server:
        assert await get(server, pool=pool) == (200, b"")
        assert await get(server, "/none", pool=pool) == (200, b"")
        assert [request.split(b" ")[1] for request in server.requests] == [b"/", *[b"/none"] * 2]
        assert server.connections == 2
        with pytest.raises(DisconnectedError, match="broke within an answer"):
            await get(server, "/some", pool=pool)
        assert server.connections == 2
        assert pool.statistics().idle == 0


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        OK + b"Content-Length: 1\r\n\r\nxy",
    ],
)
async def test_a_connection_that_ends_with_its_answer_is_not_kept(answer: bytes) -> None:
    pool = ConnectionPool(Clock())
    async with serving(holding(answer)) as server:
        assert await get(server, pool=pool) == (200, b"x")
        assert pool.statistics().idle == 0
        await server.ended.wait()


async def test_an_answer_that_was_not_read_to_its_end_is_not_kept() -> None:
    pool = ConnectionPool(Clock())
    async with serving(holding(CHUNKED + b"1\r\nx\r\n")) as server:
        async with stream(server.url, {}, clock=Clock(), pool=pool) as response:
            await anext(response)
        assert pool.statistics().idle == 0
        await server.ended.wait()


async def test_idle_connections_are_closed_after_their_time() -> None:
    clock = FakeClock()
    pool = ConnectionPool(clock, idle_seconds=30)
    async with serving(keeping_alive) as server:
        await get(server, clock=clock, pool=pool)
        await clock.advance(29)
        assert pool.statistics().idle == 1
        await clock.advance(2)
        assert pool.statistics().idle == 0
        await server.ended.wait()
        assert clock.next_timer is None


async def test_a_pool_keeps_no_more_than_its_limit() -> None:
    pool = ConnectionPool(Clock(), max_idle=1)
    async with serving(keeping_alive) as server:
        async with stream(server.url, {}, clock=Clock(), pool=pool) as one:
            await get(server, pool=pool)
            assert pool.statistics() == PoolStatistics(idle=1, used=1)
            await one.read(10)
        assert server.connections == 2
        assert pool.statistics() == PoolStatistics(idle=1, used=0)
        pool.close()


async def test_a_watchs_connection_is_neither_kept_nor_a_kept_one() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as server:
        await get(server, pool=pool)
        assert await get(server, "/?watch=1", pool=pool, keep=False) == (200, b"/?watch=1")
        assert server.connections == 2
        assert pool.statistics() == PoolStatistics(idle=1, used=0)
        pool.close()


async def test_closing_a_pool_ends_what_is_in_use_and_what_begins() -> None:
    pool = ConnectionPool(Clock())
    async with serving(holding(CHUNKED + b"1\r\nx\r\n")) as server:
        async with stream(server.url, {}, clock=Clock(), pool=pool, keep=False) as response:
            assert await anext(response) == [b"x"]
            pool.close()
            with pytest.raises(DisconnectedError, match="the client is closed"):
                await anext(response)
        assert pool.statistics() == PoolStatistics(idle=0, used=0)
        with pytest.raises(DisconnectedError, match="the client is closed"):
            await get(server, pool=pool)


async def test_targets_do_not_share_connections() -> None:
    pool = ConnectionPool(Clock())
    async with serving(keeping_alive) as one, serving(keeping_alive) as other:
        await get(one, pool=pool)
        await get(other, pool=pool)
        assert (one.connections, other.connections, pool.statistics().idle) == (1, 1, 2)
        pool.close()
        await one.ended.wait()
        await other.ended.wait()


async def test_a_server_that_resets_the_connection_cuts_the_answer() -> None:
    def script(server: Server) -> Run:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(CHUNKED)
            await writer.drain()
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        return run

    async with serving(script) as server:
        with pytest.raises(DisconnectedError, match="the connection broke within an answer"):
            await get(server)


async def test_faults_on_the_way_are_told_apart() -> None:
    line = '{"type":"ADDED","object":"Größe"}\n'.encode()
    chunk = b"%x\r\n%s\r\n" % (len(line), line)
    async with (
        serving(holding(CHUNKED + chunk * 2)) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
    ):
        url = f"{proxy.url}/?watch=1"
        proxy.cut(len(CHUNKED + chunk), place=Place.CHARACTER)
        async with stream(url, {}, clock=Clock()) as response:
            body, is_whole = await read_all(response)
            assert body.startswith(line)
            assert body[len(line) :] == b'{"type":"ADDED","object":"Gr' + b"\xc3"
            assert not is_whole
        proxy.answer(TooManyRequestsError("wait", retry_after=1), watch=True)
        async with stream(url, {}, clock=Clock()) as response:
            assert (response.status, response.headers["retry-after"]) == (429, "1")
        proxy.refuse()
        with pytest.raises(DisconnectedError) as refused:
            await get_through(proxy)
        assert refused.value.refused
        proxy.refuse(reset=True)
        with pytest.raises(DisconnectedError) as reset:
            await get_through(proxy)
        assert not reset.value.refused


async def get_through(proxy: FaultProxy) -> None:
    async with stream(proxy.url, {}, clock=Clock()):
        pass
