"""Both transports keep, share and close connections alike."""

import asyncio
from importlib.metadata import version

import pytest

from client.raw_server import SOON, know_no_host, serving
from listwatch.client.config import Config, Impersonation
from listwatch.client.http import HTTP
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError
from listwatch.testing.scripted_server import ScriptedServer, respond

pytestmark = pytest.mark.usefixtures("transport")


async def get(http: HTTP, path: str = "/x") -> bytes:
    return (await http.request("GET", path)).body


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_read_on_a_kept_connection_that_is_dead_is_asked_once_more(
    method: str,
) -> None:
    asked: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append([])
        for answer in (respond({"ok": len(asked)}), b""):
            asked[-1].append((await reader.readuntil(b"\r\n\r\n")).split()[0])
            writer.write(answer)

    async with serving(serve) as url, HTTP(Config(server=url)) as http:
        assert (await http.request(method, "/x")).body == b'{"ok": 1}'
        if method == "GET":
            assert (await http.request(method, "/x")).body == b'{"ok": 2}'
        else:  # The server may have carried it out.
            with pytest.raises(DisconnectedError, match="the server closed the connection"):
                await http.request(method, "/x")
    assert asked == ([[b"GET", b"GET"], [b"GET"]] if method == "GET" else [[b"POST", b"POST"]])


async def test_closing_ends_every_request_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("listwatch.client.connections.MAX_REQUESTS", 3)
    arrived = asyncio.Event()
    connections: list[bytes] = []
    served: set[bytes] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(path := (await reader.readuntil(b"\r\n\r\n")).split()[1])
        if path == b"/kept":
            writer.write(respond({}))
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        if path == b"/body":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nha")
        served.add(path)
        if served == {b"/on-kept", b"/body", b"/last"}:
            arrived.set()
        await reader.read()

    async with serving(serve) as url:
        http = HTTP(Config(server=url))
        await get(http, "/kept")
        asking = []
        for path in ("/on-kept", "/body", "/last", "/waits for a turn", "/and waits"):
            asking.append(asyncio.ensure_future(get(http, path.replace(" ", "-"))))
            await asyncio.sleep(0)
        await arrived.wait()
        await http.close()
        async with asyncio.timeout(SOON):
            for request in asking:
                with pytest.raises(DisconnectedError, match=r"closed|broke"):
                    await request
    assert sorted(connections) == [b"/body", b"/kept", b"/last"]


async def test_closing_ends_the_wait_for_a_connection() -> None:
    connected = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()  # without a TLS handshake

    async with serving(serve) as url:
        secure = url.replace("http:", "https:")
        http = HTTP(Config(server=secure, insecure_skip_tls_verify=True))
        asking = asyncio.ensure_future(get(http))
        await connected.wait()
        await http.close()
        async with asyncio.timeout(SOON):
            with pytest.raises(DisconnectedError, match="the client is closed"):
                await asking


async def test_so_many_requests_are_sent_at_once_and_the_others_in_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("listwatch.client.connections.MAX_REQUESTS", 2)
    running: set[bytes] = set()
    pair = asyncio.Barrier(2)
    peak = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal peak
        while head := await reader.readuntil(b"\r\n\r\n"):
            running.add(path := head.split()[1])
            peak = max(peak, len(running))
            await pair.wait()
            for _ in range(20):  # a third would have time to come
                await asyncio.sleep(0)
            running.remove(path)
            writer.write(respond({"path": path.decode()}))

    async with serving(serve) as url, HTTP(Config(server=url)) as http:
        async with asyncio.timeout(SOON), asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(get(http, f"/{n}")) for n in range(8)]
        assert [task.result() for task in asking] == [b'{"path": "/%d"}' % n for n in range(8)]
    assert peak == 2


async def test_a_request_whose_turn_does_not_come_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("listwatch.client.connections.MAX_REQUESTS", 1)
    clock = FakeClock()

    served: set[asyncio.StreamReader] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        served.add(reader)
        await reader.read()
        served.discard(reader)

    async def give_up(http: HTTP) -> None:
        with pytest.raises(TimeoutError, match=r"in time|sent nothing"):
            await get(http)

    async with (
        serving(serve) as url,
        HTTP(Config(server=url), clock=clock) as http,
        asyncio.TaskGroup() as tasks,
    ):
        asking = [tasks.create_task(give_up(http)) for _ in range(2)]
        while not all(task.done() for task in asking):
            await asyncio.sleep(0)
            if served:  # connecting takes real time, in which the clock stands
                await clock.advance(1)
    assert clock.now() < 1000 + 160  # no later than the other request ends by silence


async def test_names_that_are_not_ascii_are_sent_as_utf_8(server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    config = Config(server=server.url, impersonate=Impersonation(user="Jürgen", groups=("日本",)))
    async with HTTP(config) as http:
        await get(http)
        async with http.stream("/x") as body:
            await body.read()
    for request in server.requests:
        assert "\r\nImpersonate-User: Jürgen\r\nImpersonate-Group: 日本\r\n" in request.decode()


async def test_a_servers_name_that_is_not_ascii_is_looked_up_by_its_ascii_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = know_no_host(monkeypatch)
    async with HTTP(Config(server="http://jürgen.invalid:1")) as http:
        with pytest.raises(DisconnectedError, match=r"xn--jrgen-kva\.invalid:1: the host is unkn"):
            await get(http)
        with pytest.raises(DisconnectedError, match=r"xn--jrgen-kva\.invalid:1: the host is unkn"):
            async with http.stream("/x"):
                pytest.fail("there is no such host")
    assert set(names) == {"xn--jrgen-kva.invalid"}


async def test_the_user_agent_tells_the_installed_version(server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    async with HTTP(Config(server=server.url)) as http:
        await get(http)
    assert (server.header("user-agent") or "").split()[0] == f"listwatch/{version('listwatch')}"


async def test_a_client_of_another_event_loop_says_so_and_goes_on_in_its_own(
    server: ScriptedServer,
) -> None:
    """It would wait for data that arrives in the first loop. A forked process has its own loop."""
    server.answers["/x"] = {}
    async with HTTP(Config(server=server.url)) as http:
        await get(http)
        with pytest.raises(RuntimeError, match=r"another event loop.*create a client in each"):
            await asyncio.to_thread(asyncio.run, get(http))
        assert await get(http) == b"{}"


@pytest.mark.parametrize("watch", [False, True])
async def test_what_begins_at_once_is_asked_for_once_more_on_a_new_connection(watch: bool) -> None:
    """A dead connection gives no sign; after 30 s, the request is repeated on a new one."""
    clock = FakeClock()
    asked = asyncio.Event()
    connections: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        connections.append(requests)
        while True:
            requests.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
            if requests == [b"/kept"] or asked.is_set():
                writer.write(respond({}))
            else:
                asked.set()

    async with serving(serve) as url, HTTP(Config(server=url), clock=clock) as http:
        await http.request("GET", "/kept")
        streaming = asyncio.ensure_future(_body(http, watch=watch))
        await asked.wait()
        await clock.advance(29)
        assert not streaming.done()
        await clock.advance(1)
        assert await streaming == b"{}"
    if watch:  # A watch never uses a kept connection.
        assert connections == [[b"/kept"], [b"/long"], [b"/long"]]
    else:
        assert connections == [[b"/kept", b"/long"], [b"/long"]]


async def test_two_silences_are_an_error_and_what_takes_long_is_waited_for() -> None:
    clock = FakeClock()
    asked: list[bytes] = []
    waiting: set[bytes] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        request = await reader.readuntil(b"\r\n\r\n") + b"%d" % len(asked)
        asked.append(request)
        waiting.add(request)
        await reader.read()
        waiting.discard(request)

    async def given_up(http: HTTP, *, prompt: bool) -> tuple[float, int]:
        began, before = clock.now(), len(asked)
        reading = asyncio.ensure_future(_body(http, watch=False, prompt=prompt))
        while not reading.done():
            await asyncio.sleep(0)
            # Connecting takes real time, in which the clock stands.
            if waiting:
                await clock.advance(1)
        with pytest.raises(TimeoutError):
            await reading
        return clock.now() - began, len(asked) - before

    async with serving(serve) as url, HTTP(Config(server=url), clock=clock) as http:
        seconds, requests = await given_up(http, prompt=True)
        assert (requests, 60 <= seconds < 65) == (2, True)
        seconds, requests = await given_up(http, prompt=False)
        assert (requests, 75 <= seconds < 80) == (1, True)


async def _body(http: HTTP, *, watch: bool, prompt: bool = True) -> bytes:
    async with http.stream("/long", watch=watch, prompt=prompt) as body:
        return await body.read()
