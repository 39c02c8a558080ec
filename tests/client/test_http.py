"""Broken connections, refusals and silence become the right errors in time."""

import asyncio
import gzip
import logging
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.raw_server import get, know_no_host, raw_server, refusing, serving, soon
from listwatch.client import aiohttp_requests
from listwatch.client.config import Config, OIDCConfig
from listwatch.client.connections import CONNECT_TIMEOUT, HEADERS_TIMEOUT
from listwatch.client.http import HTTP, SILENCE_TIMEOUT, Request
from listwatch.clock import FakeClock
from listwatch.errors import (
    BadRequestError,
    ConfigError,
    DisconnectedError,
    FrameError,
    InternalServerError,
    ListWatchError,
    StatusError,
    TooManyRequestsError,
    UnauthorizedError,
)
from listwatch.testing import eventually
from listwatch.testing.scripted_server import ScriptedServer, respond

pytestmark = pytest.mark.usefixtures("transport")


# --- Connections ---------------------------------------------------------------------------------


async def test_a_refused_connection_says_so() -> None:
    with (
        refusing() as port,
        pytest.raises(
            DisconnectedError, match=rf"http://127.0.0.1:{port}: no connection: .*refused"
        ) as e,
    ):
        await get(f"http://127.0.0.1:{port}")
    assert e.value.refused


async def test_an_unknown_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    know_no_host(monkeypatch)
    with pytest.raises(
        DisconnectedError, match=r"http://no.such.host.invalid:1: the host is unkn"
    ) as e:
        await get("http://no.such.host.invalid:1")
    assert not e.value.refused


async def test_a_connection_that_closes_without_an_answer_is_broken() -> None:
    async with raw_server([], close=True) as url:
        with pytest.raises(DisconnectedError, match="closed the connection"):
            await get(url)


async def test_a_body_that_is_cut_short_is_a_broken_connection() -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"half"]
    async with raw_server(pieces, close=True) as url:
        with pytest.raises(DisconnectedError, match="broke within a response"):
            await get(url)


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
    ],
)
async def test_what_is_no_http_is_an_error_in_one_line(answer: bytes) -> None:
    async with raw_server([answer], close=True) as url:
        with pytest.raises((FrameError, DisconnectedError)) as caught:
            await get(url)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


async def test_an_answer_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("listwatch.client.http.MAX_BODY_BYTES", 1000)
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000
    async with raw_server([endless]) as url:
        with pytest.raises(FrameError, match="more than 1000 bytes"):
            await get(url)


async def test_an_answer_of_64_mib_is_read_whole_and_one_byte_more_is_refused() -> None:
    size = 64 * 2**20
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"
    async with raw_server([head.encode(), bytes(size)]) as url:
        assert len(await get(url)) == size
    size += 1
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"
    async with raw_server([head.encode(), bytes(size)]) as url:
        with pytest.raises(FrameError, match="more than 67108864 bytes"):
            await get(url)


async def test_a_bomb_of_compressed_zeros_is_refused_before_it_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("listwatch.client.http.MAX_BODY_BYTES", 2**20)
    bomb = gzip.compress(bytes(2**26))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    async with raw_server([head.encode() + bomb]) as url:
        with pytest.raises(FrameError, match="more than 1048576 bytes"):
            await get(url)


# --- Time ----------------------------------------------------------------------------------------


async def fails_after(
    clock: FakeClock,
    url: str,
    kind: type[Exception] = TimeoutError,
    method: str = "GET",
    received: asyncio.Event | None = None,
) -> float:
    """Return the seconds after which a request fails with such an error.

    The clock stands until the server has `received` the request: connecting takes real time.
    """
    begin = clock.now()
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(_time_out(clock, url, kind, method))
        if received is not None:
            await received.wait()
        while not reading.done():
            await asyncio.sleep(0)
            await clock.advance(1)
    assert "Bearer" not in reading.result()
    return clock.now() - begin


async def _time_out(clock: FakeClock, url: str, kind: type[Exception], method: str) -> str:
    with pytest.raises(kind) as caught:
        async with HTTP(Config(server=url, token="t"), clock=clock) as http:
            await http.request(method, "/x")
    assert "http://127.0.0.1" in str(caught.value)
    return str(caught.value)


async def test_headers_that_do_not_come_are_given_up() -> None:
    received = asyncio.Event()
    async with raw_server([], received=received) as url:
        seconds = await fails_after(FakeClock(), url, received=received)
        assert seconds == pytest.approx(HEADERS_TIMEOUT, abs=10)


async def test_a_head_that_never_ends_is_given_up() -> None:
    received = asyncio.Event()
    async with raw_server([b"HTTP/1.1 200 OK\r\nX: y\r\n"], received=received) as url:
        seconds = await fails_after(FakeClock(), url, received=received)
        assert seconds == pytest.approx(HEADERS_TIMEOUT, abs=10)


async def test_silence_within_an_answer_is_given_up() -> None:
    received = asyncio.Event()
    async with raw_server(
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nha"], received=received
    ) as url:
        seconds = await fails_after(FakeClock(), url, received=received)
        assert seconds == pytest.approx(SILENCE_TIMEOUT, abs=10)


async def test_an_answer_that_takes_long_and_is_never_silent_for_long_is_read() -> None:
    clock = FakeClock()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
        for byte in (b"s", b"l", b"o", b"w"):
            writer.write(byte)
            for _ in range(100):  # until the client has read it
                await asyncio.sleep(0)
            await clock.advance(SILENCE_TIMEOUT - 1)

    async with serving(serve) as url:
        assert await get(url, clock) == b"slow"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_connection_that_does_not_stand_is_given_up_earlier(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    # where the two transports open connections
    monkeypatch.setattr("aiohttp.connector.TCPConnector._wrap_create_connection", never)
    monkeypatch.setattr("listwatch.client.connection_pool._open", never)
    url = "http://127.0.0.1:1"
    passed = await fails_after(FakeClock(), url, DisconnectedError, method)
    assert passed == pytest.approx(CONNECT_TIMEOUT, abs=10)
    assert CONNECT_TIMEOUT < HEADERS_TIMEOUT


async def test_cancelling_closes_the_connection_at_once() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await reader.read() == b""
        closed.set()

    async with serving(serve) as url, HTTP(Config(server=url)) as http:
        opened = asyncio.Event()

        async def read() -> None:
            async with http.stream("/x", watch=True) as body:
                opened.set()
                await body.read()

        reading = asyncio.ensure_future(read())
        await opened.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await soon(closed)


# --- Refusals ------------------------------------------------------------------------------------


async def test_a_page_of_a_proxy_is_not_repeated(server: ScriptedServer) -> None:
    server.answers["/x"] = respond(b"<html>Bad <b>gateway</b></html>", code=502, type_="text/html")
    with pytest.raises(StatusError, match=r"^HTTP status 502 Word$") as caught:
        await get(server.url)
    assert caught.value.code == 502


async def test_long_words_are_cut(server: ScriptedServer) -> None:
    server.answers["/x"] = respond(b"no! " * 1000, code=500, type_="text/plain")
    with pytest.raises(InternalServerError, match=r"^no! no! ") as caught:
        await get(server.url)
    assert len(str(caught.value)) < 400


async def test_a_status_that_is_no_status_is_an_error_without_words(server: ScriptedServer) -> None:
    server.answers["/x"] = respond({"kind": "Status", "code": "x", "details": 7}, code=400)
    with pytest.raises(BadRequestError):
        await get(server.url)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("Wed, 15 Nov 2023 00:00:10 GMT", 10.0),
        ("Wed, 01 Nov 2023 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
async def test_retry_after_is_a_number_or_a_date(
    server: ScriptedServer, header: str, seconds: float | None
) -> None:
    server.answers["/x"] = respond(
        b"", code=429, type_="text/plain", more=f"Retry-After: {header}\r\n"
    )
    clock = FakeClock(time=1_700_006_400.0)  # Wed, 15 Nov 2023 00:00:00 GMT
    with pytest.raises(TooManyRequestsError) as caught:
        await get(server.url, clock)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_is_told_and_not_followed(server: ScriptedServer, code: int) -> None:
    async with ScriptedServer() as elsewhere:
        to = elsewhere.url.replace("http://", "http://user:pw@")
        server.answers["/x"] = respond(b"", code=code, more=f"Location: {to}/x\r\n")
        with pytest.raises(StatusError, match="redirects a GET to http://127") as caught:
            await get(server.url, token="s3cret")
        assert "pw" not in str(caught.value)
        assert elsewhere.requests == []


async def test_warnings_of_the_server_are_logged_once(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    more = 'Warning: 299 - "use \\"v2\\", not v1"\r\nWarning: 199 - "ignored"\r\nWarning: x\r\n'
    server.answers["/x"] = respond({}, more=more)
    async with HTTP(Config(server=server.url)) as http:
        for _ in range(3):
            await http.request("GET", "/x")
    assert [record.getMessage() for record in caplog.records] == [f'{server.url}: use "v2", not v1']


async def test_a_warning_can_not_drive_the_terminal(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers["/x"] = respond({}, more='Warning: 299 - "no \u202e\u009b2J"\r\n')
    await get(server.url)
    assert caplog.records[0].getMessage() == f"{server.url}: no \\u202e\\x9b2J"


# --- Requests ------------------------------------------------------------------------------------


async def test_a_request_says_who_sends_it_and_what_it_takes(server: ScriptedServer) -> None:
    server.answers["/base/x"] = {}
    config = Config(server=f"{server.url}/base/", token="t", user_agent="demo/1")
    async with HTTP(config) as http:
        await http.request("POST", "/x", [("a", "b c"), ("l", "x=1,y in (2)")], body=b"{}")
    assert server.targets == ["POST /base/x?a=b+c&l=x%3D1%2Cy+in+%282%29"]
    assert server.header("authorization") == "Bearer t"
    agent = server.header("user-agent")
    assert agent is not None
    assert agent.startswith("demo/1 listwatch/")
    assert server.header("accept") == "application/json"
    assert server.header("content-type") == "application/json"
    assert server.header("accept-encoding") == "identity"  # gzip gains nothing over loopback


async def test_gzip_is_asked_for_and_read_but_for_watches_and_where_it_is_disabled(
    server: ScriptedServer,
) -> None:
    more = "Content-Encoding: gzip\r\n"
    server.answers["http://api.invalid/x"] = respond(gzip.compress(b'{"a": 1}'), more=more)
    config = Config(server="http://api.invalid", proxy_url=server.url)
    async with HTTP(config) as http:
        assert (await http.request("GET", "/x")).body == b'{"a": 1}'
        assert server.header("accept-encoding") == "gzip"
        async with http.stream("/x", watch=True) as body:
            await body.read()
        assert server.header("accept-encoding") == "identity"
    async with HTTP(msgspec.structs.replace(config, disable_compression=True)) as http:
        await http.request("GET", "/x")
    assert server.header("accept-encoding") == "identity"


async def test_cookies_are_not_kept(server: ScriptedServer) -> None:
    server.answers["/x"] = respond({}, more="Set-Cookie: a=b\r\n")
    async with HTTP(Config(server=server.url)) as http:
        await http.request("GET", "/x")
        await http.request("GET", "/x")
    assert server.header("cookie") is None


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_watches_never_make_a_request_wait(server: ScriptedServer) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.answers["/watch"] = head
    server.answers["/x"] = {"ok": True}
    async with HTTP(Config(server=server.url)) as http, asyncio.TaskGroup() as tasks:
        opened = 0
        finished = asyncio.Event()
        threads = set(threading.enumerate())

        async def watch() -> None:
            nonlocal opened
            async with http.stream("/watch", watch=True):
                opened += 1
                await finished.wait()

        for _ in range(500):
            tasks.create_task(watch())
        await eventually(lambda: opened == 500)
        assert (await http.request("GET", "/x")).body == b'{"ok": true}'
        assert set(threading.enumerate()) <= threads
        finished.set()


async def test_hooks_see_each_request_and_may_add_headers(server: ScriptedServer) -> None:
    server.answers["/x"] = respond(b"no", code=500, type_="text/plain")
    seen: list[object] = []

    @contextmanager
    def hook(request: Request) -> Iterator[None]:
        request.headers.append(("traceparent", "00-1"))
        seen.append((request.method, request.path, request.status))
        try:
            yield
        finally:
            seen.append(request.status)

    async with HTTP(Config(server=server.url, token="s3cret"), hooks=[hook]) as http:
        with pytest.raises(InternalServerError):
            await http.request("GET", "/x", [("a", "b")])
    assert seen == [("GET", "/x", None), 500]
    assert server.header("traceparent") == "00-1"


async def test_the_rate_limit_is_kept_on_the_clock(server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    clock = FakeClock()
    begin = clock.now()
    async with HTTP(Config(server=server.url, qps=2, burst=3), clock=clock) as http:

        async def send() -> float:
            await http.request("GET", "/x")
            return clock.now() - begin

        async with asyncio.TaskGroup() as tasks:
            sending = [tasks.create_task(send()) for _ in range(6)]
            while not all(task.done() for task in sending):
                await asyncio.sleep(0)
                await clock.advance(0.01)
    times = sorted(task.result() for task in sending)
    assert times[2] < 0.4
    assert times[3:] == pytest.approx([0.5, 1.0, 1.5], abs=0.2)


async def test_a_host_that_is_gone_is_noticed_by_tcp(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []
    make = aiohttp_requests._make_socket  # to collect its sockets

    def keep(info: tuple[Any, ...]) -> socket.socket:
        made.append(make(info))
        return made[-1]

    monkeypatch.setattr(aiohttp_requests, "_make_socket", keep)
    server.answers["/x"] = {}
    async with HTTP(Config(server=server.url)) as http:
        await http.request("POST", "/x", body=b"{}")
        used = made[0]
        probes = used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        idle = used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        interval = used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert idle + probes * interval <= 60
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


async def test_ipv6_is_spoken() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"\r\nHost: [::1]:" in await reader.readuntil(b"\r\n\r\n")
        writer.write(respond({"ok": 1}))

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with serving(serve, "::1") as url:
        assert await get(url) == b'{"ok": 1}'


async def test_a_unix_socket_is_spoken_to(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(
            b"GET /x HTTP/1.1\r\nHost: localhost"
        )
        writer.write(respond({"ok": 1}))

    async with serving(serve, path=tmp_path / "api.sock") as url:
        assert await get(url) == b'{"ok": 1}'
    with pytest.raises(DisconnectedError, match="no connection"):
        await get(f"unix://{tmp_path}/none")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"certificate_authority_data": b"x"}, "certificate-authority-data is not a PEM"),
        ({"certificate_authority": "/no/ca"}, "certificate-authority /no/ca can't be read"),
        ({"client_certificate_data": b"x", "client_key_data": b"y"}, "are not PEM or do not match"),
        ({"client_certificate_data": b"x"}, "client certificate lacks its key"),
        ({"client_key": "k"}, "client certificate lacks its certificate"),
        ({"client_certificate": "/no/c", "client_key": "/no/k"}, "/no/c: the client certificate"),
        ({"token_file": "/no/token"}, "/no/token: the token can't be read"),
        ({"token": "t", "username": "u"}, "both a token and a username; remove one"),
    ],
)
async def test_what_can_not_be_used_is_told(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await get("https://127.0.0.1:1", source="FILE", **settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "server", ["ftp://u:pw@x", "https://", "https://u:pw@[::1", "http://u:pw@x", "x y"]
)
def test_a_server_that_is_no_url_is_told(server: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HTTP(Config(server=server, source="FILE"))
    assert str(caught.value).startswith("FILE")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"server": "h:1"}, "http://h:1"),
        ({"server": "h:1", "insecure_skip_tls_verify": True}, "https://h:1"),
        ({"server": "https://[::1]:6443/a/"}, "https://[::1]:6443/a"),
    ],
)
def test_the_servers_url_is_completed_as_kubectl_does(settings: dict[str, Any], url: str) -> None:
    assert HTTP(Config(**settings))._base == url  # the prefix of every request's URL


# --- Ends ----------------------------------------------------------------------------------------


async def test_no_error_shows_a_secret(server: ScriptedServer) -> None:
    secret = "sw0rdfish"
    server.answers["/x"] = respond(b"go away", code=401, type_="text/plain")
    texts = []
    for url in (server.url, "http://127.0.0.1:1", "https://127.0.0.1:1"):
        with pytest.raises(ListWatchError) as caught:
            await get(url, token=secret)
        error: BaseException | None = caught.value
        while error is not None:
            texts += [str(error), repr(error)]
            error = error.__cause__ or error.__context__
    assert len(texts) >= 6
    assert not [text for text in texts if secret in text]


@pytest.mark.parametrize("answer", [200, 302, 401, 429, 500])
async def test_no_log_shows_a_secret(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture, tmp_path: Path, answer: int
) -> None:
    secret = "sw0rdfish"
    (tmp_path / "token").write_text(secret)
    more = f'Warning: 299 - "w"\r\nLocation: http://{secret}@x/\r\n'
    server.answers["/x"] = respond(b"no", code=answer, type_="text/plain", more=more)
    caplog.set_level(logging.DEBUG)
    settings: list[dict[str, Any]] = [
        {"token": secret},
        {"token_file": str(tmp_path / "token")},
        {"username": "u", "password": secret},
        {"oidc": OIDCConfig(id_token=secret, refresh_token=secret, client_secret=secret)},
    ]
    for setting in settings:
        for method in ("GET", "POST"):
            async with HTTP(Config(server=server.url, **setting)) as http:
                with suppress(ListWatchError):
                    await http.request(method, "/x", body=b"{}")
                with suppress(ListWatchError):
                    async with http.stream("/x") as body:
                        await body.read()
    assert len(server.requests) >= 12
    assert not [record for record in caplog.records if secret in record.getMessage()]


async def test_unauthorized_is_told_as_it_is(server: ScriptedServer) -> None:
    server.answers["/x"] = respond(b"go away", code=401, type_="text/plain")
    with pytest.raises(UnauthorizedError, match="go away"):
        await get(server.url, token="t")
    assert len(server.requests) == 1  # no other token to try
