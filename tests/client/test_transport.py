"""The transport with scripted servers, recordings of a real one, and randomly cut bytes."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.transport_server import (
    CAPTURES,
    CHUNKED,
    OK,
    WIRE,
    Run,
    Server,
    answering,
    by_hand,
    feed_by_hand,
    get,
    holding,
    oracle,
    read_all,
    receive,
    serving,
)
from listwatch.client.transport import Response, stream
from listwatch.client.transport_connection import MAX_WAITING_BYTES
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError, FrameError
from listwatch.testing import eventually

ANSWERED = [name for name, entry in CAPTURES.items() if entry["bytes"]]


@pytest.mark.parametrize("name", ANSWERED)
async def test_reads_a_recording_as_the_standard_library_does(name: str) -> None:
    data = (WIRE / f"{name}.response").read_bytes()
    sizes = [size for _, size in CAPTURES[name]["reads"]]
    ends = list(itertools.accumulate(sizes))
    assert ends[-1] == len(data)
    parts = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    status, reason, headers, body, is_whole = oracle(data)
    if name == "keep-alive":  # two responses; tests of the pool read the second
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
    """Return the streams that the recording client left before their end."""
    return {
        name
        for name in ANSWERED
        if b"Transfer-Encoding: chunked" in (data := (WIRE / f"{name}.response").read_bytes())
        and not data.endswith(b"0\r\n\r\n")
    }


@given(
    name=st.sampled_from([n for n in ANSWERED if n != "keep-alive"]),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    one_by_one=st.integers(0, 900),
)
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
    receive(connection, CHUNKED)
    await connection.read_head()
    response = Response(connection)
    receive(connection, framed[0] + framed[1] + framed[2][:10])
    assert await anext(response) == [*lines[:2], lines[2][:6]]
    receive(connection, framed[2][10:] + framed[3])
    assert await anext(response) == [lines[2][6:], lines[3]]
    receive(connection, b"0\r\n\r\n")
    with pytest.raises(StopAsyncIteration):
        await anext(response)
    with pytest.raises(StopAsyncIteration):
        await anext(response)


async def test_pieces_that_came_before_a_cut_are_given_before_the_error() -> None:
    connection, _ = by_hand()
    receive(connection, CHUNKED + b"3\r\nabc\r\n5\r\nde")
    connection.connection_lost(ConnectionResetError(104, "reset"))
    response = Response(connection)
    assert await anext(response) == [b"abc", b"de"]
    for _ in range(2):
        with pytest.raises(
            DisconnectedError, match="http://h:1: the connection broke within a response"
        ) as caught:
            await anext(response)
        assert isinstance(caught.value.__cause__, ConnectionResetError)
        assert not caught.value.refused


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with serving(answering(OK + b"Connection: close\r\n\r\n", b"abc", b"def")) as server:
        assert await get(server) == (200, b"abcdef")


async def test_a_body_without_a_length_is_cut_by_a_reset() -> None:
    connection, _ = by_hand()
    receive(connection, OK + b"\r\nabc")
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
    receive(connection, OK + b"Warning: 299 - a\r\nwarning: \xc3\xa9\xff \r\nA:\r\n\r\n")
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
        ("ftp://h/", {}, "must start with http:// or https://"),
        ("http:///path", {}, "and a host"),
        ("http://user:secret@h/", {}, "without a user"),
        ("https://h/", {}, "an https URL needs an SSLContext"),
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


# Bytes that are no valid response.


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"garbage\r\n\r\n", "sent an invalid HTTP/1.1 response"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "sent an invalid HTTP/1.1 response"),
        (OK + b"X: " + b"y" * 70_000, "sent headers over 65536 B"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 4000, "sent headers over 65536 B"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nraw",
            "switched protocols",
        ),
        (
            OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "sent an invalid HTTP/1.1 response",
        ),
        (OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "sent an invalid HTTP/1.1"),
        (
            OK + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
            "Content-Encoding that was not requested",
        ),
        (OK + b"Content-Encoding: gzip, gzip\r\n\r\nx", "Content-Encoding that was not requested"),
    ],
)
async def test_what_is_no_answer_is_refused(data: bytes, words: str) -> None:
    async with serving(holding(data)) as server:
        with pytest.raises(FrameError, match=words):
            await get(server)
        await server.ended.wait()


async def test_a_chunk_size_that_is_none_ends_the_body_with_an_error() -> None:
    connection, wire = by_hand()
    receive(connection, CHUNKED + b"2\r\nab\r\nxyz\r\n")
    response = Response(connection)
    assert await anext(response) == [b"ab"]
    with pytest.raises(FrameError, match=r"sent an invalid HTTP/1\.1 response"):
        await anext(response)
    assert wire.aborted


@pytest.mark.parametrize("start", [b"0\r\nTrailer: ", b"1;extension="])
async def test_trailers_and_extensions_without_an_end_are_given_up(start: bytes) -> None:
    connection, wire = by_hand()
    receive(connection, CHUNKED + b"1\r\na\r\n" + start)
    fed = 0
    while not wire.aborted:
        receive(connection, b"x" * 1000)
        fed += 1
    assert 60 < fed < 70
    response = Response(connection)
    assert await anext(response) == [b"a"]
    with pytest.raises(FrameError, match="65536 B of trailers"):
        await anext(response)


async def test_trailers_are_not_headers() -> None:
    connection, _ = by_hand()
    receive(connection, CHUNKED + b"1\r\na\r\n0\r\nContent-Encoding: br\r\n\r\n")
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
        receive(connection, data)
    assert wire.aborted
    assert not connection.is_idle
    assert await read_all(Response(connection)) == (b"a", True)


# A slow reader, and the end of a stream.


async def test_reading_pauses_while_the_reader_is_slow_and_goes_on_after() -> None:
    connection, wire = by_hand()
    receive(connection, OK + b"\r\n")
    response = Response(connection)
    piece = b"x" * (MAX_WAITING_BYTES // 4)
    for n in range(4):
        assert not wire.paused, n
        receive(connection, piece)
    assert vars(wire)["paused"]  # vars(), because mypy would narrow the attribute
    assert await anext(response) == [piece] * 4
    assert not wire.paused
    receive(connection, piece)
    assert not wire.paused


async def test_tiny_chunks_are_read_in_smaller_parts_and_few_of_them_wait() -> None:
    """Two megabytes take long to parse, and the pieces take more memory than the bytes."""
    connection, wire = by_hand()
    receive(connection, OK + b"Transfer-Encoding: chunked\r\n\r\n")
    response = Response(connection)
    whole = len(connection.get_buffer(-1))
    number = 0
    while not wire.paused:
        assert number < 100_000
        receive(connection, b"1\r\nx\r\n" * 20_000)
        number += 20_000
        assert len(connection.get_buffer(-1)) < whole // 8
        connection._read_bytes = whole  # makes room for the next part
    assert await anext(response) == [b"x"] * number
    receive(connection, b"1\r\nx\r\n" * 20_000)
    room = len(connection.get_buffer(-1))
    assert room < whole
    head = b"%x\r\n" % whole
    receive(connection, head + b"y" * (room - len(head)))
    assert len(connection.get_buffer(-1)) == whole


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
            connection = response._connection  # the flow control has no public face
            await eventually(lambda: connection._paused)  # the flow control has no public face
            for _ in range(200):
                await asyncio.sleep(0)
            waiting = connection._waiting_bytes
            # One read may exceed the bound, and is no larger than the bound.
            bound = MAX_WAITING_BYTES
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


async def test_a_reader_that_was_cancelled_may_go_on() -> None:
    connection, _ = by_hand()
    receive(connection, CHUNKED)
    response = Response(connection)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(response.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        receive(connection, b"1\r\nx\r\n")
        await asyncio.wait([task])
        assert task.cancelled()
    assert await anext(response) == [b"x"]


async def test_an_answer_has_one_reader() -> None:
    connection, _ = by_hand()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(connection.read_head())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="a response can be read only once"):
            await connection.read_head()
        receive(connection, CHUNKED)
        await task
