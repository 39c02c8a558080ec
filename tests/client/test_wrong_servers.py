"""Errors name what answers instead of an API server: plain HTTP, TLS, a proxy, a login page."""

import asyncio
import ssl

import pytest
import trustme

from client.raw_server import know_no_host, raw_server, serving
from listwatch.client.config import Config
from listwatch.client.http import HTTP
from listwatch.errors import BadRequestError, DisconnectedError, FrameError, StatusError
from listwatch.testing.scripted_server import ScriptedServer, respond

pytestmark = pytest.mark.usefixtures("transport")

PAGE = b"<!DOCTYPE html><html><head><title lang=en>\n Sign  in &amp; go\x1b[2J </title></head>x"

NGINX = b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head>"


async def failure(config: Config, method: str = "GET", path: str = "/x") -> Exception:
    async with HTTP(config) as http:
        with pytest.raises((StatusError, DisconnectedError, FrameError)) as caught:
            await http.request(method, path)
    return caught.value


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_tls_to_a_port_without_it(method: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(refuse) as plain:
        url = plain.replace("http", "https")
        error = await failure(Config(server=url, insecure_skip_tls_verify=True), method)
    assert type(error) is DisconnectedError
    assert str(error) == (f"{url}: the server at this port does not speak TLS; is the URL http://?")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_plain_http_to_a_port_with_tls(method: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with serving(never, ssl=context) as url:
        error = await failure(Config(server=url.replace("https", "http")), method)
    assert type(error) is DisconnectedError
    assert str(error).endswith("without an answer; if it speaks TLS, its URL begins with https://")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n" + NGINX,
    ],
    ids=["Go", "nginx"],
)
async def test_a_server_that_asks_for_tls_in_words(answer: bytes) -> None:
    async with raw_server([answer], close=True) as url:
        error = await failure(Config(server=url))
    assert type(error) is BadRequestError
    assert "HTTPS" in str(error)
    assert str(error).endswith("; is the URL https://?")


async def test_an_alert_of_tls_is_named(transport: str) -> None:
    if transport == "aiohttp":
        pytest.skip("aiohttp hands on none of the bytes")
    async with raw_server([b"\x15\x03\x01\x00\x02\x02\x0a"], close=True) as url:
        error = await failure(Config(server=url))
    assert str(error) == f"{url} responds in TLS; is the URL https://?"


@pytest.mark.parametrize("proxy", ["http://u:s3cret@127.0.0.1:1", "http://u:s3cret@no.invalid:1"])
@pytest.mark.parametrize("server_url", ["http://api.invalid", "https://api.invalid"])
async def test_a_proxy_that_is_away_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, server_url: str, proxy: str
) -> None:
    know_no_host(monkeypatch)
    error = await failure(Config(server=server_url, proxy_url=proxy))
    assert type(error) is DisconnectedError
    shown = proxy.replace("u:s3cret", "<hidden>")
    assert str(error).startswith(f"{server_url}: no connection to the proxy: ")
    assert str(error).endswith(f" ({shown})")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_login_page_is_named_with_its_title(server: ScriptedServer, method: str) -> None:
    server.answers["/x"] = respond(PAGE, type_="text/html; charset=utf-8")
    error = await failure(Config(server=server.url, token="a-long-token"), method)
    assert type(error) is FrameError
    assert f"{server.url}: the response to {method} /x is not an object but a web page " in str(
        error
    )
    assert "Sign in & go\\x1b[2J)" in str(error)


async def test_the_page_of_a_pod_behind_the_server_is_an_answer(server: ScriptedServer) -> None:
    path = "/api/v1/namespaces/x/pods/p/proxy/"
    server.answers[path] = respond(PAGE, type_="text/html")
    async with HTTP(Config(server=server.url)) as http:
        assert (await http.request("GET", path)).body == PAGE


async def test_the_title_of_a_proxys_page_goes_with_its_refusal(server: ScriptedServer) -> None:
    server.answers["/x"] = respond(PAGE, code=502, type_="text/html")
    error = await failure(Config(server=server.url))
    assert "502" in str(error)
    assert str(error).endswith("Sign in & go\\x1b[2J")
