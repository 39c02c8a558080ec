"""Proxies are chosen as by Go programs, and see no credentials that TLS can hide."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import pytest
import trustme

from listwatch.client.config import Config
from listwatch.client.http import HTTP
from listwatch.client.proxy import proxy_for
from listwatch.errors import ConfigError, DisconnectedError
from listwatch.testing.scripted_server import ScriptedServer, respond

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "environ", "expected"),
    [
        ("https://api", {}, ""),
        ("https://api", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api", {"https_proxy": "proxy:3128"}, PROXY),
        ("https://api", {"HTTP_PROXY": PROXY}, ""),
        ("http://api", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://api", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, ""),
        ("https://localhost", {"HTTPS_PROXY": PROXY}, ""),
        ("https://127.0.0.9", {"HTTPS_PROXY": PROXY}, ""),
        ("https://[::1]", {"HTTPS_PROXY": PROXY}, ""),
        ("https://10.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://11.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8,x"}, PROXY),
        ("https://10.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.1.2.3"}, ""),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "fd00::/8"}, ""),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "[fd00::1]:6443"}, ""),
        ("https://api.corp.com", {"HTTPS_PROXY": PROXY, "no_proxy": "a, corp.com"}, ""),
        ("https://corp.com", {"HTTPS_PROXY": PROXY, "NO_PROXY": "corp.com"}, ""),
        ("https://corp.com", {"HTTPS_PROXY": PROXY, "NO_PROXY": ".corp.com"}, PROXY),
        ("https://api.corp.com", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*.corp.com"}, ""),
        ("https://xcorp.com", {"HTTPS_PROXY": PROXY, "NO_PROXY": "corp.com"}, PROXY),
        ("https://API.corp.com:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "api.corp.com:6443"}, ""),
        ("https://api.corp.com:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "corp.com:443"}, PROXY),
    ],
)
def test_the_environments_proxy_is_chosen_as_in_go(
    server: str, environ: Mapping[str, str], expected: str
) -> None:
    assert proxy_for(Config(server=server), server, environ) == expected


def test_the_configured_proxy_comes_first() -> None:
    config = Config(server="https://localhost", proxy_url="socks5://own:1080")
    proxied = proxy_for(config, config.server, {"HTTPS_PROXY": PROXY})
    assert proxied == "socks5://own:1080"


@pytest.mark.parametrize("url", ["ftp://u:s3cret@x", "http://", "http://u:s3cret@x:port", "x"])
def test_a_proxy_that_is_no_url_is_told_without_its_password(url: str) -> None:
    config = Config(server="https://x", proxy_url=url, source="FILE")
    with pytest.raises(ConfigError, match=r"^FILE: proxy-url is not a URL of the form") as caught:
        HTTP(config)
    assert "s3cret" not in str(caught.value)


class Proxy:
    """An HTTP and SOCKS5 proxy that records requests."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.refuses = False
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def url(self, scheme: str = "http", user: str = "") -> str:
        assert self._server is not None
        return f"{scheme}://{user}127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            first = await reader.readexactly(1)
            if first == b"\x05":
                await self._socks(reader, writer)
            else:
                await self._http(first, reader, writer)
        writer.close()

    async def _http(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = first + await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if self.refuses:
            writer.write(respond(b"", code=403))
            return
        if head.startswith(b"CONNECT"):
            host, _, port = head.split()[1].decode().partition(":")
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._join(host, int(port), reader, writer, b"")
            return
        host, _, port = head.split()[1].decode().split("/")[2].partition(":")
        await self._join(host, int(port), reader, writer, head)

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x05\x00")
        kind = (await reader.readexactly(4))[3]
        raw = await reader.readexactly((await reader.readexactly(1))[0] if kind == 3 else 4)
        host = raw.decode() if kind == 3 else ".".join(map(str, raw))
        port = int.from_bytes(await reader.readexactly(2))
        self.heads.append(f"SOCKS {host}:{port}".encode())
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        await self._join(host, port, reader, writer, b"")

    @staticmethod
    async def _join(
        host: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        already: bytes,
    ) -> None:
        there, back = await asyncio.open_connection(host, port)
        back.write(already)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await source.read(2**16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(reader, back))
            tasks.create_task(pump(there, writer))


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
def tls() -> tuple[ssl.SSLContext, bytes]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context, authority.cert_pem.bytes()


@pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])
async def test_tls_goes_through_a_proxy_that_sees_no_credentials(
    proxy: Proxy, tls: tuple[ssl.SSLContext, bytes], scheme: str
) -> None:
    context, authority = tls
    user = "u:p@" if scheme == "http" else ""
    async with ScriptedServer(ssl=context) as server:
        server.answers["/x"] = {"ok": 1}
        config = Config(
            server=server.url,
            certificate_authority_data=authority,
            token="s3cret",
            proxy_url=proxy.url(scheme, user),
        )
        async with HTTP(config) as http:
            assert (await http.request("GET", "/x")).body == b'{"ok": 1}'
            async with http.stream("/x", watch=True) as body:
                assert await body.read() == b'{"ok": 1}'
        assert server.header("authorization") == "Bearer s3cret"
        assert server.header("proxy-authorization") is None
        target = server.url.removeprefix("https://").encode()
    assert proxy.heads
    for head in proxy.heads:
        assert target in head
        assert b"s3cret" not in head
        if scheme == "http":
            assert b"Proxy-Authorization: Basic " + base64.b64encode(b"u:p") in head


async def test_plain_http_goes_through_a_proxy(proxy: Proxy, server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    server.answers[f"{server.url}/x"] = {"ok": 1}
    async with HTTP(Config(server=server.url, proxy_url=proxy.url())) as http:
        assert (await http.request("GET", "/x")).body == b'{"ok": 1}'
    assert proxy.heads[0].startswith(f"GET {server.url}/x HTTP/1.1\r\n".encode())


async def test_a_proxy_that_refuses_or_is_away_is_told(
    proxy: Proxy, tls: tuple[ssl.SSLContext, bytes]
) -> None:
    context, authority = tls
    proxy.refuses = True
    async with ScriptedServer(ssl=context) as server:
        for scheme, url, words in (
            ("http", proxy.url(user="u:s3cret@"), r"the proxy refuses \(403\)"),
            ("http", "http://u:s3cret@127.0.0.1:1", "no connection to the proxy: Conn.* refused"),
            ("socks5", "socks5://u:s3cret@127.0.0.1:1", "proxy"),
        ):
            config = Config(server=server.url, certificate_authority_data=authority, proxy_url=url)
            async with HTTP(config) as http:
                with pytest.raises(DisconnectedError, match=words) as caught:
                    await http.request("GET", "/x")
            assert "s3cret" not in str(caught.value), scheme
        assert server.requests == []


async def test_a_socks_proxy_without_its_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiohttp_socks", None)
    async with HTTP(Config(server="https://x", proxy_url="socks5://x:1")) as http:
        with pytest.raises(ConfigError, match=r"pip install 'listwatch\[socks\]'"):
            await http.request("GET", "/x")
