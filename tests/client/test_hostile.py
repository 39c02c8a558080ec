"""Hostile servers, proxies and issuers cause an error within bounds that shows no secret."""

import asyncio
import base64
import logging
import ssl
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from client.raw_server import serving
from listwatch.client.client import Client
from listwatch.client.config import Config, ExecConfig, OIDCConfig
from listwatch.client.http import HTTP
from listwatch.errors import ConfigError, FrameError, InternalServerError, ListWatchError
from listwatch.testing.scripted_server import ScriptedServer, respond

pytestmark = pytest.mark.usefixtures("transport")

SECRET = "sw0rdfish-planted"
OK = b"HTTP/1.1 200 OK\r\n"
LIST = b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":['


@asynccontextmanager
async def endless(start: bytes, piece: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """Send the piece endlessly in response to each request, and count the bytes."""
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        while True:
            writer.write(piece)
            await writer.drain()
            sent.append(len(piece))

    async with serving(serve) as url:
        yield url, sent


async def request(client: Client) -> None:
    await client.http.request("GET", "/x")


async def stream(client: Client) -> None:
    async with client.http.stream("/x") as body:
        while await body.read():
            pass


async def list_(client: Client) -> None:
    await client.list(await client.discovery.find("configmaps"))


BODY = OK + b"Content-Length: 10737418240\r\n\r\n"
ITEM = b'{"metadata":{"name":"a","namespace":"b"}},'
FLOODS: dict[str, tuple[Callable[[Client], Awaitable[None]], bytes, bytes]] = {
    "headers": (request, OK, b"X-A: y\r\n" * 5000),
    "a header": (request, OK + b"X: ", b"y" * 2**16),
    "headers of a stream": (stream, OK, b"X-A: y\r\n" * 5000),
    "a header of a stream": (stream, OK + b"X: ", b"y" * 2**16),
    "a body of 10 GB": (request, BODY, b"y" * 2**16),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_what_never_ends_is_refused_after_a_bound(
    flood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("listwatch.client.http.MAX_BODY_BYTES", 2**20)
    send, start, piece = FLOODS[flood]
    async with endless(start, piece) as (url, sent):
        async with Client(Config(server=url)) as client, asyncio.timeout(20):
            with pytest.raises(FrameError):
                await send(client)
        assert sum(sent) < 20 * 2**20  # no more than the sockets buffer


@pytest.mark.parametrize(("item", "limit"), [(ITEM, "MAX_LIST_BYTES"), (b"y" * 2**16, "max_item")])
async def test_a_list_that_never_ends_is_refused_after_a_bound(
    monkeypatch: pytest.MonkeyPatch, item: bytes, limit: str
) -> None:
    start = BODY + LIST
    if limit == "MAX_LIST_BYTES":
        monkeypatch.setattr(f"listwatch.client.list_watch.{limit}", 2**20)
    else:
        start += b'{"metadata":{"name":"'
    async with endless(start, item * (2**16 // len(item))) as (url, sent), ScriptedServer() as api:
        api.answers["/api/v1"] = {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [{"name": "configmaps", "namespaced": True, "kind": "ConfigMap"}],
        }
        api.answers["/api"] = {"kind": "APIVersions", "versions": ["v1"]}
        api.answers["/apis"] = {"kind": "APIGroupList", "groups": []}
        async with Client(Config(server=api.url)) as client:
            configmaps = await client.discovery.find("configmaps")
        async with Client(Config(server=url)) as client, asyncio.timeout(30):
            with pytest.raises(FrameError, match=r"more than \d+ bytes"):
                await client.list(configmaps)
        assert sum(sent) < 100 * 2**20


async def test_an_error_that_never_ends_is_told_by_its_status() -> None:
    start = b"HTTP/1.1 500 Oops\r\nContent-Length: 10737418240\r\n\r\n"
    async with endless(start, b"y" * 2**16) as (url, sent):
        async with HTTP(Config(server=url)) as http, asyncio.timeout(20):
            with pytest.raises(InternalServerError, match="HTTP status 500 Oops"):
                await http.request("GET", "/x")
        assert sum(sent) < 20 * 2**20


# --- Secrets -------------------------------------------------------------------------------------


def chain(error: BaseException) -> str:
    """Return everything of the error that a log may show."""
    details = getattr(error, "details", "")
    return "".join(traceback.format_exception(error)) + repr(error) + repr(details)


BASIC = base64.b64encode(f"u:{SECRET}".encode()).decode()
ECHOES: dict[str, bytes] = {
    "words": respond(f"you sent {SECRET} {BASIC}".encode(), code=403, type_="text/plain"),
    "a status": respond(
        {"kind": "Status", "message": SECRET, "details": {"name": f"{SECRET} {BASIC}"}}, code=409
    ),
    "no authorization": respond(f"{SECRET} {BASIC}".encode(), code=401, type_="text/plain"),
    "a location": respond(b"", code=302, more=f"Location: /{SECRET}/{BASIC}\r\n"),
    "a user in a location": respond(b"", code=302, more=f"Location: //{SECRET}:{SECRET}@h/\r\n"),
    "a query in a location": respond(b"", code=302, more=f"Location: //h/?{SECRET}{BASIC}\r\n"),
    "a reason": f"HTTP/1.1 500 {SECRET} {BASIC}\r\nContent-Length: 0\r\n\r\n".encode(),
    "a warning": respond({}, more=f'Warning: 299 - "{SECRET} {BASIC}"\r\n'),
    "no status line": f"HTTP/1.1 {SECRET}{BASIC} OK\r\n\r\n".encode(),
    "no header": f"HTTP/1.1 200 OK\r\n{SECRET} {BASIC}: x\r\n\r\n".encode(),
    "a long header": OK + f"X: {SECRET}{BASIC}".encode() * 5000 + b"\r\n\r\n",
    "no length": OK + f"Content-Length: {SECRET}{BASIC}\r\n\r\n".encode(),
    "no chunk": OK + f"Transfer-Encoding: chunked\r\n\r\n{SECRET}{BASIC}\r\n".encode(),
    "an unknown coding": respond(b"x", more=f"Content-Encoding: {SECRET}{BASIC}\r\n"),
    "no gzip": respond(f"{SECRET}{BASIC}".encode(), more="Content-Encoding: gzip\r\n"),
    "no list": respond(f'{{"kind":"{SECRET}{BASIC}"'.encode()),
}


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("who", ["token", "token_file", "password"])
async def test_what_a_server_sends_back_of_the_credentials_is_not_shown(
    server: ScriptedServer,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    echo: str,
    who: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    server.answers["/x"] = ECHOES[echo]
    (tmp_path / "token").write_text(SECRET)
    settings: dict[str, Any] = {
        "token": {"token": SECRET},
        "token_file": {"token_file": str(tmp_path / "token")},
        "password": {"username": "u", "password": SECRET},
    }[who]
    shown = ""
    async with Client(Config(server=server.url, **settings)) as client:
        for send in (request, stream):
            try:
                await send(client)
            except ListWatchError as error:
                shown += chain(error)
    shown += "".join(record.getMessage() + str(record.exc_text) for record in caplog.records)
    assert len(server.requests) >= 2
    assert SECRET not in shown
    assert BASIC not in shown or who != "password"


@pytest.mark.parametrize(
    ("scheme", "is_there"), [("http", True), ("http", False), ("https", False), ("socks5", False)]
)
async def test_a_proxys_password_is_not_shown_when_it_refuses(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture, scheme: str, *, is_there: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    host = server.url.removeprefix("http://") if is_there else "127.0.0.1:1"
    proxy = f"{scheme}://u:{SECRET}@{host}"
    for target in ("https://api.invalid", "http://api.invalid"):
        async with HTTP(Config(server=target, proxy_url=proxy, token=SECRET)) as http:
            with pytest.raises(ListWatchError) as caught:
                await http.request("GET", "/x")
        assert SECRET not in chain(caught.value)
    assert SECRET not in caplog.text


async def test_an_issuers_words_show_no_secret(server: ScriptedServer) -> None:
    configuration = "/.well-known/openid-configuration"
    server.answers[configuration] = {"token_endpoint": f"{server.url}/token"}
    words = {"error_description": f"no {SECRET}-1\n{SECRET}-2 {SECRET}-3"}
    server.answers["/token"] = respond(words, code=403)
    oidc = OIDCConfig(
        issuer_url=server.url,
        client_id="c",
        client_secret=f"{SECRET}-1",
        id_token=f"a.eyJleHAiOjF9.{SECRET}-3",
        refresh_token=f"{SECRET}-2",
    )
    async with HTTP(Config(server="http://127.0.0.1:1", oidc=oidc)) as http:
        with pytest.raises(ConfigError, match=r"refuses \(403\): no <hidden> <hidden>") as caught:
            await http.request("GET", "/x")
    assert f"{SECRET}-1" not in chain(caught.value)
    assert f"{SECRET}-2" not in chain(caught.value)


async def test_a_redirect_to_another_host_carries_no_credentials(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    (tmp_path / "ca").write_bytes(authority.cert_pem.bytes())
    async with ScriptedServer(ssl=context) as server, ScriptedServer(ssl=context) as other:
        for code in (301, 302, 303, 307, 308):
            location = f"Location: {other.url}/x\r\n"
            server.answers["/x"] = respond(b"", code=code, more=location)
            config = Config(
                server=server.url, token=SECRET, certificate_authority=str(tmp_path / "ca")
            )
            async with Client(config) as client:
                for send in (request, stream):
                    with pytest.raises(ListWatchError, match="redirects a GET to https://127"):
                        await send(client)
        assert other.connections == 0


async def test_a_plugins_credentials_are_nowhere_but_in_the_request(
    server: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import sys\n"
        f"print('warning: token {SECRET}', file=sys.stderr)\n"
        'print(\'{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",\''
        f'  \' "status": {{"token": "{SECRET}"}}}}\')\n'
    )
    exec_ = ExecConfig(command=sys.executable, args=(str(plugin),), interactive_mode="Never")
    server.answers["/x"] = respond(f"no {SECRET}".encode(), code=403, type_="text/plain")
    async with HTTP(Config(server=server.url, exec=exec_)) as http:
        with pytest.raises(ListWatchError) as caught:
            await http.request("GET", "/x")
        assert SECRET not in repr(http.__dict__)
    assert server.header("authorization") == f"Bearer {SECRET}"
    assert SECRET not in chain(caught.value) + caplog.text
