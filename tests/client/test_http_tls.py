"""TLS: trusted authorities, and client certificates and keys."""

import asyncio
import gc
import os
import ssl
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import trustme

from client.raw_server import get, serving, soon
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.http import HTTP
from listwatch.errors import (
    ConfigError,
    DisconnectedError,
)
from listwatch.testing.scripted_server import ScriptedServer

pytestmark = pytest.mark.usefixtures("transport")


class Authority:
    """A private certificate authority, and servers with certificates signed by it."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.pem = self.ca.cert_pem.bytes()
        self.file = directory / "ca.pem"
        self.file.write_bytes(self.pem)

    def server_context(self, *names: str, client_ca: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names).configure_cert(context)
        if client_ca is not None:
            client_ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("how", ["data", "file", "insecure"])
async def test_a_trusted_server_is_spoken_to(authority: Authority, how: str) -> None:
    async with ScriptedServer(ssl=authority.server_context("127.0.0.1")) as server:
        server.answers["/x"] = {}
        trust: dict[str, dict[str, Any]] = {
            "data": {"certificate_authority_data": authority.pem},
            "file": {"certificate_authority": str(authority.file)},
            "insecure": {"insecure_skip_tls_verify": True},
        }
        assert await get(server.url, **trust[how]) == b"{}"


async def test_an_untrusted_server_gets_no_credentials(authority: Authority) -> None:
    async with ScriptedServer(ssl=authority.server_context("127.0.0.1")) as server:
        with pytest.raises(DisconnectedError, match=r"not trusted: .*check certificate-authority"):
            await get(server.url, token="s3cret")
        assert server.requests == []


async def test_the_servers_name_must_be_the_one_that_is_expected(authority: Authority) -> None:
    async with ScriptedServer(ssl=authority.server_context("api.internal")) as server:
        server.answers["/x"] = {}
        trust: dict[str, Any] = {"certificate_authority_data": authority.pem}
        with pytest.raises(DisconnectedError, match="not trusted: IP address mismatch"):
            await get(server.url, **trust)
        assert await get(server.url, tls_server_name="api.internal", **trust) == b"{}"
        with pytest.raises(DisconnectedError, match=r"not trusted: [Hh]ostname mismatch"):
            await get(server.url, tls_server_name="other.internal", **trust)


async def test_cancelling_closes_a_tls_connection_though_its_peer_says_nothing_more(
    authority: Authority,
) -> None:
    is_silent = False
    closed, gone = asyncio.Event(), asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(2**16):
                if not is_silent:
                    writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = int(server.url.rpartition(":")[2])
        upstream, there = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as pumps:
            back = pumps.create_task(pump(upstream, writer))
            await pump(reader, there)
            closed.set()
            back.cancel()
        for end in (writer, there):
            end.close()
            with suppress(ConnectionError):
                await end.wait_closed()
        gone.set()

    async with ScriptedServer(ssl=authority.server_context("127.0.0.1")) as server:
        server.answers["/x"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        async with (
            serving(relay) as between,
            HTTP(
                Config(
                    server=between.replace("http:", "https:"),
                    certificate_authority_data=authority.pem,
                )
            ) as http,
        ):
            opened = asyncio.Event()

            async def read() -> None:
                async with http.stream("/x", watch=True) as body:
                    await body.read()
                    opened.set()
                    await body.read()

            reading = asyncio.ensure_future(read())
            await opened.wait()
            is_silent = True
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await soon(closed)  # An orderly end of TLS would wait for 30 s.
            await gone.wait()


def write_pair(directory: Path, chain: bytes, key: bytes) -> dict[str, str]:
    (directory / "cert").write_bytes(chain)
    (directory / "key").write_bytes(key)
    return {
        "client_certificate": str(directory / "cert"),
        "client_key": str(directory / "key"),
    }


@pytest.mark.parametrize("how", ["data", "file"])
async def test_a_client_certificate_is_shown(
    authority: Authority, tmp_path: Path, how: str
) -> None:
    clients = trustme.CA()
    mine = clients.issue_cert("jane")
    chain, key = mine.cert_chain_pems[0].bytes(), mine.private_key_pem.bytes()
    certificate: dict[str, Any] = {"client_certificate_data": chain, "client_key_data": key}
    if how == "file":
        certificate = write_pair(tmp_path, chain, key)
    context = authority.server_context("127.0.0.1", client_ca=clients)
    async with ScriptedServer(ssl=context) as server:
        server.answers["/x"] = {}
        trust: dict[str, Any] = {"certificate_authority_data": authority.pem}
        assert await get(server.url, **trust, **certificate) == b"{}"
        with pytest.raises(DisconnectedError):
            await get(server.url, **trust)


async def test_a_client_certificate_that_is_rotated_is_shown_on_new_connections(
    authority: Authority, tmp_path: Path
) -> None:
    def rotate(name: str) -> dict[str, Any]:
        mine = authority.ca.issue_cert(name)
        return write_pair(tmp_path, mine.cert_chain_pems[0].bytes(), mine.private_key_pem.bytes())

    context = authority.server_context("127.0.0.1", client_ca=authority.ca)
    async with ScriptedServer(ssl=context) as server:
        server.answers["/x"] = {}
        config = Config(
            server=server.url, certificate_authority_data=authority.pem, **rotate("one.example")
        )
        async with HTTP(config) as http:
            for _ in range(2):
                await http.request("GET", "/x")
            assert server.connections == 1
            rotate("two.example")
            for _ in range(2):
                await http.request("GET", "/x")
            assert server.connections == 2


async def test_a_certificate_that_is_being_replaced_leaves_the_last_one_in_use(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def pair() -> tuple[bytes, bytes]:
        mine = authority.ca.issue_cert("one.example")
        return mine.cert_chain_pems[0].bytes(), mine.private_key_pem.bytes()

    chain, key = pair()
    context = authority.server_context("127.0.0.1", client_ca=authority.ca)
    async with ScriptedServer(ssl=context) as server:
        server.answers["/x"] = {}
        files: dict[str, Any] = write_pair(tmp_path, chain, key)
        config = Config(server=server.url, certificate_authority_data=authority.pem, **files)
        async with HTTP(config) as http:
            await http.request("GET", "/x")
            chain, key = pair()
            (tmp_path / "cert").write_bytes(chain)  # The key is still the old one.
            for _ in range(3):
                await http.request("GET", "/x")
            (tmp_path / "key").unlink()
            await http.request("GET", "/x")
            assert server.connections == 1
            assert len(caplog.records) == 2
            (tmp_path / "key").write_bytes(key)
            await http.request("GET", "/x")
            assert server.connections == 2


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def public_file(*args: Any, **options: Any) -> Any:
    """Create a temporary file that fails if a private key is written to it."""
    made: Any = NamedTemporaryFile(*args, **options)  # noqa: SIM115 - the caller closes it
    write = made.write

    def checked(content: str | bytes) -> int:
        assert "PRIVATE" not in str(content)
        return int(write(content))

    made.write = checked
    return made


async def test_no_key_is_left_in_a_file(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if hasattr(os, "memfd_create"):  # A key is not written to a file even for a moment.
        monkeypatch.setattr("tempfile.NamedTemporaryFile", public_file)
    mine = authority.ca.issue_cert("jane")
    before = files(tmp_path)
    async with ScriptedServer(ssl=authority.server_context("127.0.0.1")) as server:
        server.answers["/x"] = {}
        await get(
            server.url,
            certificate_authority_data=authority.pem,
            client_certificate_data=mine.cert_chain_pems[0].bytes(),
            client_key_data=mine.private_key_pem.bytes(),
        )
    assert files(tmp_path) == before


async def test_an_encrypted_key_is_told(authority: Authority) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    mine = authority.ca.issue_cert("jane")
    plain = load_pem_private_key(mine.private_key_pem.bytes(), None)
    key = plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pw"))
    with pytest.raises(ConfigError, match="the client key is encrypted; decrypt it"):
        await get(
            "https://127.0.0.1:1",
            client_certificate_data=mine.cert_chain_pems[0].bytes(),
            client_key_data=key,
        )


async def test_a_closed_client_refuses_and_leaves_nothing_open(authority: Authority) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with ScriptedServer(ssl=authority.server_context("127.0.0.1")) as server:
            server.answers["/x"] = {}
            config = Config(server=server.url, certificate_authority_data=authority.pem)
            async with Client.from_config(config) as client:
                await client.http.request("GET", "/x")
            with pytest.raises(DisconnectedError, match="the client is closed"):
                await client.http.request("GET", "/x")
        gc.collect()
