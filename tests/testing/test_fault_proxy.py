"""The fault proxy between a raw server and raw clients: each fault, and recovery."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from listwatch.clock import FakeClock
from listwatch.errors import StatusError, TooManyRequestsError
from listwatch.testing.fault_proxy import FaultProxy, Place, Side
from listwatch.testing.waiting import eventually

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LIST = b"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n\r\n"
WATCH = b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """Record what clients send; tests write the responses."""

    def __init__(self) -> None:
        self.received = [b""]
        self.writers: list[asyncio.StreamWriter] = []
        self.ends: list[str] = []
        self.port = 0
        self.is_over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.writers)
        self.writers.append(writer)
        self.received[number:] = [b"", b""]
        self.ends.append("")
        try:
            while data := await reader.read(65536):
                self.received[number] += data
            self.ends[number] = "end"
            await self.is_over.wait()  # the other direction stays open
        except ConnectionError:
            self.ends[number] = "reset"
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def open_files() -> int:
    """Count the event loop's files."""
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined] # every selector loop has it


async def some_turns() -> None:
    """Give unwanted effects time to happen."""
    for _ in range(100):
        await asyncio.sleep(0)


@asynccontextmanager
async def proxied(**options: Any) -> AsyncIterator[tuple[Server, FaultProxy]]:
    """Run a server and a proxy; check that the closed proxy leaves nothing."""
    server = Server()
    before = open_files()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        async with FaultProxy("127.0.0.1", server.port, **options) as proxy:
            yield server, proxy
        assert not proxy._tasks  # No public attribute shows leftovers.
        assert proxy.statistics().open_connections == 0
    finally:
        await some_turns()
        server.is_over.set()
        listener.close()
        await eventually(lambda: open_files() <= before)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received = b""

    async def read(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    async def rest(self) -> bytes | str:
        """Return the bytes up to the end, or "reset"."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return "reset"


@asynccontextmanager
async def client_of(proxy: FaultProxy, request: bytes = b"") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_without_faults_bytes_and_ends_pass_as_they_are() -> None:
    async with proxied() as (server, proxy):
        assert proxy.url == f"http://127.0.0.1:{proxy.port}"
        async with client_of(proxy, LIST) as client:
            await eventually(lambda: server.received[0] == LIST)
            body = bytes(range(256)) * 4096
            server.writers[0].write(body)
            assert await client.read(len(body)) == body
            client.writer.write_eof()
            await eventually(lambda: server.ends == ["end"])
            server.writers[0].write(b"more")
            server.writers[0].close()
            assert await client.rest() == b"more"
        await eventually(lambda: proxy.statistics().open_connections == 0)
        statistics = proxy.statistics()
        assert statistics.connections == 1
        assert statistics.bytes_to_server == len(LIST)
        assert statistics.bytes_to_client == len(body) + 4


async def test_counts_requests_and_watches_on_kept_connections() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST + WATCH + LIST):
        await eventually(lambda: server.received[0] == LIST + WATCH + LIST)
        statistics = proxy.statistics()
        assert (statistics.connections, statistics.open_connections) == (1, 1)
        assert (statistics.requests, statistics.watches) == (3, 1)
        assert list(proxy.request_lines)[1] == "GET /api/v1/pods?watch=1 HTTP/1.1"


async def test_refuses_connections_and_accepts_again_on_the_same_port() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as old:
        await eventually(lambda: len(server.writers) == 1)
        port = proxy.port
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        server.writers[0].write(b"still here")
        assert await old.read(10) == b"still here"
        proxy.accept()
        assert proxy.port == port
        async with client_of(proxy, LIST):
            await eventually(lambda: server.received[1] == LIST)


async def test_resets_connections_as_they_come() -> None:
    async with proxied() as (server, proxy):
        proxy.refuse()
        proxy.refuse(reset=True)
        for _ in range(2):
            with pytest.raises(ConnectionResetError):  # while or after it connects
                async with client_of(proxy) as client:
                    await client.reader.read()
        assert not server.writers
        assert proxy.statistics().dropped == proxy.statistics().connections == 2
        proxy.heal()
        async with client_of(proxy, LIST):
            await eventually(lambda: server.received[0] == LIST)


@pytest.mark.parametrize(("reset", "end"), [(False, b""), (True, "reset")])
async def test_drops_all_connections(reset: bool, end: bytes | str) -> None:
    async with (
        proxied() as (server, proxy),
        client_of(proxy, LIST) as one,
        client_of(proxy, LIST) as other,
    ):
        await eventually(lambda: len(server.writers) == 2 and all(server.received[:2]))
        assert proxy.drop(reset=reset) == 2
        assert proxy.drop() == 0
        assert await one.rest() == await other.rest() == end
        await eventually(lambda: all(server.ends))
        assert proxy.statistics().dropped == 2
        async with client_of(proxy, LIST):
            await eventually(lambda: server.received[2] == LIST)


async def test_a_drop_reaches_connections_that_have_no_server_yet() -> None:
    async with proxied() as (server, proxy):
        proxy.silence()
        async with client_of(proxy, LIST) as client:
            await eventually(lambda: proxy.statistics().connections == 1)
            await some_turns()
            assert proxy.drop(reset=True) == 1
            assert await client.rest() == "reset"
        assert not server.writers


@pytest.mark.parametrize("reset", [False, True])
async def test_cuts_after_so_many_bytes_and_only_so_often(reset: bool) -> None:
    async with proxied() as (server, proxy):
        assert proxy.cut(10, reset=reset, times=2) == 10
        for number in range(3):
            async with client_of(proxy, LIST) as client:
                await eventually(lambda: server.received[number] == LIST)  # noqa: B023 - at once
                server.writers[number].write(b"0123456")
                assert await client.read(7) == b"0123456"
                server.writers[number].write(b"789abc")
                if number < 2:
                    assert await client.read(3) == b"789"
                    assert await client.rest() == ("reset" if reset else b"")
                else:
                    assert await client.read(6) == b"789abc"
        assert proxy.statistics().cut == 2


async def test_a_cut_counts_from_when_it_was_set() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as client:
        await eventually(lambda: server.received[0] == LIST)
        server.writers[0].write(b"x" * 1000)
        await client.read(1000)
        proxy.cut(5)
        server.writers[0].write(b"0123456789")
        assert await client.rest() == b"01234"


@pytest.mark.parametrize(
    ("place", "passed"),
    [
        (Place.ANYWHERE, b""),
        (Place.LINE, b'{"type":"ADDED","obj'),
        (Place.CHARACTER, b'{"type":"ADDED","object":"Gr\xc3'),
    ],
)
async def test_cuts_within_a_line_or_a_character(place: Place, passed: bytes) -> None:
    line = '{"type":"ADDED","object":"Größe"}\n'.encode()
    chunk = b"%x\r\n" % len(line)
    async with proxied() as (server, proxy), client_of(proxy, WATCH) as client:
        await eventually(lambda: server.received[0] == WATCH)
        proxy.cut(len(HEAD + chunk), place=place)
        server.writers[0].write(HEAD + chunk + line + b"\r\n")
        assert await client.rest() == HEAD + chunk + passed


async def test_a_cut_left_to_chance_is_the_same_for_the_same_seed() -> None:
    places = [FaultProxy("h", 1, seed=seed).cut() for seed in (7, 7, 8)]
    assert places[0] == places[1] != places[2]
    assert all(0 <= place < 2**16 for place in places)


async def test_keeps_silent_and_goes_on_afterwards() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as client:
        await eventually(lambda: server.received[0] == LIST)
        proxy.silence()
        server.writers[0].write(b"answer")
        client.writer.write(WATCH)
        async with client_of(proxy, LIST) as new:
            await eventually(lambda: proxy.statistics().connections == 2)
            await some_turns()
            assert server.received == [LIST, b""]
            assert len(server.writers) == 1
            assert proxy.statistics().bytes_to_client == 0
            proxy.resume()
            assert await client.read(6) == b"answer"
            await eventually(lambda: server.received[:2] == [LIST + WATCH, LIST])
            server.writers[1].write(b"x")
            assert await new.read(1) == b"x"


async def test_keeps_silent_to_new_connections_alone() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as old:
        await eventually(lambda: server.received[0] == LIST)
        proxy.silence()
        server.writers[0].write(b"a")
        await some_turns()
        proxy.silence(only_new=True)
        assert await old.read(1) == b"a"
        async with client_of(proxy, LIST):
            await eventually(lambda: proxy.statistics().connections == 2)
            server.writers[0].write(b"b")
            assert await old.read(1) == b"b"
            assert len(server.writers) == 1
            proxy.resume()
            await eventually(lambda: server.received[1:2] == [LIST])


async def test_a_silence_ends_by_itself() -> None:
    clock = FakeClock()
    async with proxied(clock=clock) as (server, proxy), client_of(proxy, LIST) as client:
        await eventually(lambda: server.received[0] == LIST)
        proxy.silence(60)
        server.writers[0].write(b"answer")
        await some_turns()
        await clock.advance(59)
        assert proxy.statistics().bytes_to_client == 0
        await clock.advance(2)
        assert await client.read(6) == b"answer"
        proxy.silence(60)
        proxy.resume()
        assert clock.next_timer is None


async def test_a_client_that_ends_in_a_silence_is_forgotten_by_the_close() -> None:
    async with proxied() as (server, proxy):
        async with client_of(proxy, LIST):
            await eventually(lambda: server.received[0] == LIST)
            proxy.silence()
        await some_turns()
        assert server.ends == [""]


async def test_delays_each_direction_by_its_own_time() -> None:
    clock = FakeClock()
    async with proxied(clock=clock) as (server, proxy):
        proxy.delay(to_server=2, to_client=5)
        async with client_of(proxy, LIST) as client:
            await eventually(lambda: clock.next_timer == 2)
            await clock.advance(1.9)
            assert not server.received[0]
            await clock.advance(0.2)
            await eventually(lambda: server.received[0] == LIST)
            server.writers[0].write(b"answer")
            await eventually(lambda: clock.next_timer == 5)
            await clock.advance(5)
            assert await client.read(6) == b"answer"
            proxy.delay(to_client=1, jitter=1)
            server.writers[0].write(b"x")
            await eventually(lambda: clock.next_timer is not None)
            assert clock.next_timer is not None
            assert 1 < clock.next_timer < 2
            await clock.advance(2)
            assert await client.read(1) == b"x"


async def test_throttles_to_small_pieces() -> None:
    clock = FakeClock()
    async with proxied(clock=clock) as (server, proxy), client_of(proxy, LIST) as client:
        await eventually(lambda: server.received[0] == LIST)
        proxy.throttle(to_client=3, interval=1)
        server.writers[0].write(b"0123456789")
        assert await client.reader.read(100) == b"012"
        for piece in (b"345", b"678", b"9"):
            await eventually(lambda: clock.next_timer == 1)
            await clock.advance(1)
            assert await client.reader.read(100) == piece
        proxy.throttle(to_server=1)
        client.writer.write(WATCH)
        await eventually(lambda: server.received[0] == LIST + WATCH)
        with pytest.raises(ValueError, match="at least one byte"):
            proxy.throttle(to_client=0)


async def test_half_closes_towards_the_client() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as client:
        await eventually(lambda: server.received[0] == LIST)
        assert proxy.half_close() == 1
        assert await client.rest() == b""
        client.writer.write(WATCH)
        await eventually(lambda: server.received[0] == LIST + WATCH)
        server.writers[0].write(b"never seen")
        await some_turns()
        assert proxy.statistics().bytes_to_client == 0


async def test_half_closes_towards_the_server() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as client:
        await eventually(lambda: server.received[0] == LIST)
        proxy.half_close(Side.SERVER)
        await eventually(lambda: server.ends == ["end"])
        server.writers[0].write(b"seen")
        assert await client.read(4) == b"seen"


async def answer_to(client: Client) -> tuple[int, dict[str, str], bytes]:
    head = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    line, *fields = head.strip().split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    body = await client.read(int(headers["Content-Length"]))
    return int(line.split()[1]), headers, body


async def test_answers_requests_in_the_servers_place() -> None:
    async with proxied() as (server, proxy), client_of(proxy) as client:
        proxy.answer(
            TooManyRequestsError("slow down", retry_after=3), times=2, path="/api/v1/po", watch=True
        )
        proxy.answer(StatusError(code=410, message="old", reason="Expired"))
        for _ in range(2):
            client.writer.write(WATCH)
            status, headers, body = await answer_to(client)
            assert (status, headers["Retry-After"]) == (429, "3")
            assert json.loads(body)["message"] == "slow down"
        client.writer.write(WATCH)
        status, headers, body = await answer_to(client)
        assert (status, json.loads(body)["reason"]) == (410, "Expired")
        assert "Retry-After" not in headers
        await some_turns()
        assert server.received == [b"", b""]
        client.writer.write(LIST)
        await eventually(lambda: server.received[0] == LIST)
        statistics = proxy.statistics()
        assert (statistics.requests, statistics.answered) == (4, 3)


async def test_an_answered_requests_body_never_reaches_the_server() -> None:
    async with proxied() as (server, proxy), client_of(proxy) as client:
        proxy.answer(b"HTTP/1.1 503 No\r\nContent-Length: 1\r\n\r\nx", path="/a")
        client.writer.write(b"POST /a HTTP/1.1\r\nContent-Length: 6\r\n\r\nabc")
        assert (await answer_to(client))[::2] == (503, b"x")
        client.writer.write(b"def" + LIST)
        await eventually(lambda: server.received[0] == LIST)


async def test_answers_only_what_fits() -> None:
    async with proxied() as (server, proxy), client_of(proxy) as client:
        proxy.answer(b"HTTP/1.1 503 No\r\n\r\n", path="/apis/")
        proxy.answer(b"HTTP/1.1 503 No\r\n\r\n", watch=False)
        client.writer.write(WATCH)
        await eventually(lambda: server.received[0] == WATCH)
        proxy.heal()
        client.writer.write(LIST)
        await eventually(lambda: server.received[0] == WATCH + LIST)


async def test_without_a_server_a_connection_is_reset() -> None:
    with socket.socket() as held:  # Nobody listens there, or can start to.
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        async with FaultProxy("127.0.0.1", port) as proxy, client_of(proxy, LIST) as client:
            assert await client.rest() == "reset"
            await eventually(lambda: proxy.statistics().open_connections == 0)


async def test_never_listens_on_the_port_of_a_server_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def create_server(address: tuple[str, int], **options: Any) -> socket.socket:
        listener = real(address, **options)
        made.append(listener.getsockname()[1])
        proxy._upstream = "127.0.0.1", made[0]  # moves the server to the proxy's port
        return listener

    real = socket.create_server
    monkeypatch.setattr(socket, "create_server", create_server)
    proxy = FaultProxy("127.0.0.1", 1)
    async with proxy:
        assert proxy.port == made[1] != made[0]


async def test_a_side_that_goes_away_takes_the_other_with_it() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as client:
        await eventually(lambda: server.received[0] == LIST)
        server.writers[0].transport.abort()
        assert await client.rest() in {b"", "reset"}
        client.writer.transport.abort()
        await eventually(lambda: proxy.statistics().open_connections == 0)


@pytest.mark.parametrize("size", [None, 1])
@pytest.mark.parametrize("goes", [Side.CLIENT, Side.SERVER])
async def test_nothing_is_written_to_a_side_that_has_gone_in_the_middle(
    goes: Side, size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Both connections end, however much the other side has sent."""
    async with proxied() as (server, proxy), client_of(proxy, LIST) as client:
        proxy.throttle(to_client=size, to_server=size)
        await eventually(lambda: server.received[0] == LIST)
        ends = {Side.CLIENT: client.writer, Side.SERVER: server.writers[0]}
        going = ends.pop(goes)
        (staying,) = ends.values()
        going.transport.pause_reading()  # type: ignore[attr-defined] # it also reads
        staying.write(b"POST / HTTP/1.1\r\nContent-Length: 10000000\r\n\r\n" + bytes(10_000_000))
        await some_turns()
        going.transport.abort()
        await eventually(lambda: proxy.statistics().open_connections == 0)
        await eventually(staying.transport.is_closing)
    assert [record.getMessage() for record in caplog.records] == []


async def test_closing_ends_every_connection_even_to_a_client_that_never_reads() -> None:
    async with proxied() as (server, proxy), client_of(proxy, LIST) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined] # makes it slow
        await eventually(lambda: server.received[0] == LIST)
        server.writers[0].write(b"x" * 2**24)
        await some_turns()
        proxy.drop()
        await some_turns()
        proxy.silence(5)
        async with client_of(proxy, LIST) as other:
            await eventually(lambda: proxy.statistics().connections == 2)
            await proxy.__aexit__(None, None, None)
            assert await other.rest() == "reset"


async def test_strikes_are_the_same_for_the_same_seed_and_of_every_kind() -> None:
    def strikes(seed: int) -> list[str]:
        proxy = FaultProxy("h", 1, seed=seed, clock=FakeClock())
        return [proxy.strike() for _ in range(40)]

    assert strikes(3) == strikes(3) != strikes(4)
    kinds = {strike.split(" ")[0] for strike in strikes(3)}
    assert kinds == {"dropped", "cut", "answer", "silence"}


async def test_connections_opened_while_it_closes_leave_nothing() -> None:
    for turns in range(6):
        async with proxied() as (_, proxy):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            for _ in range(turns):
                await asyncio.sleep(0)
        assert await Client(reader, writer).rest() in {b"", "reset"}
        writer.close()
        await asyncio.sleep(0)
