"""Connecting alone shows when a server is back, without a request."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from client.raw_server import refusing, serving
from listwatch.client.config import Config
from listwatch.client.http import HTTP
from listwatch.client.prober import Prober, try_to_connect
from listwatch.clock import Clock, FakeClock
from listwatch.errors import DisconnectedError
from listwatch.testing.fault_proxy import FaultProxy


class Server:
    """A server that is away, there, or silent."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.away = True
        self.silent = False
        self.times: list[float] = []
        self.now = 0
        self.most = 0

    async def connect(self) -> None:
        self.times.append(self.clock.now())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.silent:
                await asyncio.Event().wait()
            if self.away:
                raise DisconnectedError("refused", refused=True)
        finally:
            self.now -= 1

    def prober(self) -> Prober:
        return Prober(self.connect, self.clock, random.Random(1))


async def test_a_server_that_is_there_is_reported_at_once() -> None:
    server = Server(FakeClock())
    server.away = False
    assert await server.prober().wait() is False
    assert len(server.times) == 1


async def test_one_task_connects_for_all_who_wait_and_all_are_told() -> None:
    server = Server(clock := FakeClock())
    prober = server.prober()
    waiting = [asyncio.ensure_future(prober.wait()) for _ in range(50)]
    await clock.advance(100)
    gaps = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert server.most == 1
    assert all(1.0 <= gap <= 3.0 for gap in gaps)
    assert len(set(gaps)) > 10
    server.away = False
    await clock.advance(3)
    assert [task.result() for task in waiting] == [True] * 50
    assert await prober.wait() is False


async def test_another_goes_on_when_the_one_that_connects_is_cancelled() -> None:
    server = Server(clock := FakeClock())
    prober = server.prober()
    first, second = (asyncio.ensure_future(prober.wait()) for _ in range(2))
    await clock.advance(10)
    first.cancel()
    server.away = False
    await clock.advance(3)
    assert first.cancelled()
    assert second.result() is True


async def test_a_try_that_hangs_is_given_up_and_given_more_time_the_next_time() -> None:
    server = Server(clock := FakeClock())
    server.silent = True
    waiting = asyncio.ensure_future(server.prober().wait())
    await clock.advance(150)
    gaps = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    limits = [low for low, gap in zip((5, 10, 20, 30), gaps, strict=False) if low <= gap <= low + 3]
    assert limits == [5, 10, 20, 30]
    server.silent = server.away = False
    await clock.advance(33)
    assert waiting.result() is True


# --- With real sockets ---------------------------------------------------------------------------


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del writer
    assert await reader.read() == b""  # no request was sent


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader, writer


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_a_connection_that_stays_is_enough() -> None:
    async with serving(hold) as url:
        await try_to_connect("127.0.0.1", port_of(url), clock=Clock())


async def test_one_that_is_closed_at_once_is_none() -> None:
    async with serving(close) as url:
        # A busy machine may need longer to close it than the moment to wait for that.
        with pytest.raises(DisconnectedError, match="closes connections immediately"):
            await try_to_connect("127.0.0.1", port_of(url), clock=FakeClock())


async def test_a_socket_that_nobody_listens_at_is_none(tmp_path: Path) -> None:
    with refusing() as port, pytest.raises(DisconnectedError, match="no connection"):
        await try_to_connect("127.0.0.1", port, clock=Clock())
    with pytest.raises(DisconnectedError, match="no connection"):
        await try_to_connect("", 0, clock=Clock(), unix_socket=str(tmp_path / "none"))


async def test_a_unix_socket_is_connected_to(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with serving(hold, path=path):
        await try_to_connect("localhost", 80, clock=Clock(), unix_socket=str(path))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize("refuse", [lambda p: p.refuse(), lambda p: p.refuse(reset=True)])
@pytest.mark.usefixtures("transport")
async def test_a_client_tells_when_its_server_is_back(
    refuse: Callable[[FaultProxy], None],
) -> None:
    async with (
        serving(answer) as url,
        FaultProxy("127.0.0.1", port_of(url)) as proxy,
        HTTP(Config(server=proxy.url)) as http,
    ):
        assert await http.wait_until_reachable() is False  # no request yet
        await http.request("GET", "/x")
        assert await http.wait_until_reachable() is False
        proxy.drop()
        refuse(proxy)
        waiting = asyncio.ensure_future(http.wait_until_reachable())
        with pytest.raises(DisconnectedError):
            await http.request("GET", "/x")
        before = proxy.statistics().requests
        proxy.accept()
        assert await asyncio.wait_for(waiting, 20) is True
        assert proxy.statistics().requests == before


@pytest.mark.usefixtures("transport")
async def test_what_is_behind_a_proxy_can_not_be_told() -> None:
    async with serving(answer) as url, HTTP(Config(server="http://x", proxy_url=url)) as http:
        await http.request("GET", "/x")
        assert await http.wait_until_reachable() is False
