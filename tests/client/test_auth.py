"""Every request carries the current credentials."""

import base64
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from listwatch.client.auth import (
    Certificate,
    ConfiguredAuthenticator,
    Credentials,
    impersonation_headers,
    make_authenticator,
)
from listwatch.client.client import Client
from listwatch.client.config import Config, ExecConfig, Impersonation, OIDCConfig
from listwatch.client.discovery import Resource
from listwatch.client.exec_plugin import ExecAuthenticator
from listwatch.client.http import HTTP
from listwatch.client.kubeconfig import load_config
from listwatch.client.oidc import OIDCAuthenticator
from listwatch.clock import Clock
from listwatch.errors import ConfigError, UnauthorizedError
from listwatch.testing.scripted_server import ScriptedServer, respond


def rewrite(path: Path, content: str, *, same_time: bool = False) -> None:
    """Replace a file by another one, as the kubelet does."""
    new = path.with_name("new")
    new.write_text(content)
    if same_time:
        stat = path.stat()
        os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.rename(path)


async def test_a_token_file_is_read_again_when_it_changes(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.answers["/x"] = {}
    file = tmp_path / "token"
    file.write_text("one\n")
    async with HTTP(Config(server=server.url, token_file=str(file))) as http:
        await http.request("GET", "/x")
        assert server.header("authorization") == "Bearer one"
        rewrite(file, "two\n", same_time=True)
        await http.request("GET", "/x")
        assert server.header("authorization") == "Bearer two"


@pytest.mark.parametrize("content", [None, b"", b" \n", "ä".encode()])
async def test_a_token_file_that_vanishes_or_breaks_leaves_the_last_token_in_use(
    server: ScriptedServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
) -> None:
    server.answers["/x"] = {}
    file = tmp_path / "token"
    file.write_text("one")

    def damage() -> None:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)

    async with HTTP(Config(server=server.url, token_file=str(file))) as http:
        await http.request("GET", "/x")
        damage()
        for _ in range(3):
            await http.request("GET", "/x")
            assert server.header("authorization") == "Bearer one"
        assert len([r for r in caplog.records if "the last token is used" in r.message]) == 1
        file.write_text("two")
        await http.request("GET", "/x")
        assert server.header("authorization") == "Bearer two"
    damage()
    async with HTTP(Config(server=server.url, token_file=str(file))) as http:
        with pytest.raises(ConfigError, match="token"):  # rather than send an anonymous request
            await http.request("GET", "/x")
    assert len(server.requests) == 5


async def test_a_token_file_wins_over_a_token_while_it_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    config = Config(server="http://x", token="static", token_file=str(file))
    source = ConfiguredAuthenticator(config)
    assert (await source.credentials()).authorization == "Bearer static"
    file.write_text("rotated")
    assert (await source.credentials()).authorization == "Bearer rotated"


async def test_in_a_pod_the_rotating_token_is_sent_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "namespace").write_text("shop\n")
    monkeypatch.setattr("listwatch.client.kubeconfig.SERVICE_ACCOUNT", tmp_path)
    async with ScriptedServer(ssl=context) as server:
        server.answers["/api/v1/namespaces/shop/pods/p"] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "p", "namespace": "shop"},
        }
        environ = {
            "HOME": str(tmp_path),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": server.url.rpartition(":")[2],
        }
        (tmp_path / "token").write_text("first\n")
        config = load_config(environ=environ)
        pods = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)
        async with Client.from_config(config) as client:
            for token in ("first", "second", "third"):
                rewrite(tmp_path / "token", token)
                assert (await client.get(pods, "p")).key == "shop/p"
                assert server.header("authorization") == f"Bearer {token}"


async def test_a_refused_token_is_read_again_and_tried_once_more(
    server: ScriptedServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def answer(request: bytes) -> object:
        if b"Bearer new" in request:
            return {"ok": True}
        file.write_text("new")  # in place, at the same time, with the same size
        return respond(b"who?", code=401, type_="text/plain")

    server.answers["/x"] = answer
    async with HTTP(Config(server=server.url, token_file=str(file))) as http:
        assert (await http.request("POST", "/x", body=b"{}")).status == 200
    assert [request.startswith(b"POST") for request in server.requests] == [True, True]


async def test_a_watch_is_tried_again_with_another_token_too(
    server: ScriptedServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def answer(request: bytes) -> object:
        if b"Bearer new" in request:
            return {}
        file.write_text("new")
        return respond(b"who?", code=401, type_="text/plain")

    server.answers["/x"] = answer
    async with (
        HTTP(Config(server=server.url, token_file=str(file))) as http,
        http.stream("/x", watch=True) as body,
    ):
        assert await body.read() == b"{}"


async def test_basic_authentication(server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    config = Config(server=server.url, username="jane", password="pä:ss")
    async with HTTP(config) as http:
        await http.request("GET", "/x")
    header = server.header("authorization") or ""
    assert base64.b64decode(header.removeprefix("Basic ")).decode() == "jane:pä:ss"


async def test_impersonation_is_sent_with_every_request(server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    who = Impersonation(
        user="jane", uid="7", groups=("devs", "admins"), extra={"Example.com/Scope s": ("a", "b")}
    )
    async with Client.from_config(Config(server=server.url, impersonate=who)) as client:
        await client.http.request("GET", "/x")
    sent = [
        line
        for line in server.requests[-1].decode().split("\r\n")
        if line.startswith("Impersonate")
    ]
    assert sent == [
        "Impersonate-User: jane",
        "Impersonate-Uid: 7",
        "Impersonate-Group: devs",
        "Impersonate-Group: admins",
        "Impersonate-Extra-example.com%2Fscope%20s: a",
        "Impersonate-Extra-example.com%2Fscope%20s: b",
    ]


def test_impersonation_needs_a_user() -> None:
    assert impersonation_headers(Impersonation()) == []
    with pytest.raises(ConfigError, match="set the user too"):
        impersonation_headers(Impersonation(groups=("g",)))


def test_what_stands_in_the_configuration_comes_before_a_plugin() -> None:
    plugin = ExecConfig(command="x")
    clock = Clock()
    kinds = [
        type(make_authenticator(Config(server="http://x", **settings), clock))
        for settings in (
            {"token": "t", "exec": plugin},
            {"exec": plugin, "oidc": OIDCConfig()},
            {"oidc": OIDCConfig()},
            {},
        )
    ]
    assert kinds == [
        ConfiguredAuthenticator,
        ExecAuthenticator,
        OIDCAuthenticator,
        ConfiguredAuthenticator,
    ]


async def test_an_authenticator_of_ones_own_is_asked_for_each_request(
    server: ScriptedServer,
) -> None:
    class Counting:
        asked = 0

        async def credentials(self) -> Credentials:
            self.asked += 1
            return Credentials(f"Custom {self.asked}")

        async def renew(self, refused: Credentials) -> bool:
            return refused.authorization == "Custom 3"

    server.answers["/x"] = {}
    async with Client(Config(server=server.url), authenticator=Counting()) as client:
        for number in (1, 2):
            await client.http.request("GET", "/x")
            assert server.header("authorization") == f"Custom {number}"
        server.answers["/x"] = respond(b"", code=401)
        with pytest.raises(UnauthorizedError):
            await client.http.request("GET", "/x")
        assert server.header("authorization") == "Custom 4"
        assert len(server.requests) == 4


async def test_a_request_that_is_refused_again_is_not_sent_a_third_time(
    server: ScriptedServer,
) -> None:
    class Hopeful:
        async def credentials(self) -> Credentials:
            return Credentials("Custom")

        async def renew(self, refused: Credentials) -> bool:
            del refused
            return True

    server.answers["/x"] = respond(b"", code=401)
    async with HTTP(Config(server=server.url), authenticator=Hopeful()) as http:
        with pytest.raises(UnauthorizedError):
            await http.request("GET", "/x")
    assert len(server.requests) == 2


SETTINGS: list[dict[str, Any]] = [
    {"token": "sw0rd\nfish"},
    {"token": "sw0rd\r\nX-Fish: 1"},
    {"token": "sw0rdfish\0"},
    {"token": "sw0rdfish\ud800"},
    {"user_agent": "sw0rd\nfish"},
    {"impersonate": Impersonation(user="sw0rd\nfish")},
    {"impersonate": Impersonation(user="u", groups=("g\r",))},
    {"impersonate": Impersonation(user="u", extra={"k": ("v\n",)})},
]


@pytest.mark.parametrize("setting", SETTINGS)
async def test_what_would_break_out_of_a_header_is_refused_in_one_line(
    server: ScriptedServer, setting: dict[str, Any]
) -> None:
    async def send(*, stream: bool) -> None:
        async with HTTP(Config(server=server.url, source="FILE", **setting)) as http:
            if stream:
                async with http.stream("/x"):
                    pass
            else:
                await http.request("GET", "/x")

    for stream in (True, False):
        with pytest.raises(ConfigError, match=r"^FILE: the value of header .* line break") as e:
            await send(stream=stream)
        assert "sw0rd" not in str(e.value)
        assert "\n" not in str(e.value)
    assert server.requests == []


async def test_a_token_file_of_two_lines_is_refused(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\ntwo\n")
    async with HTTP(Config(server=server.url, token_file=str(tmp_path / "token"))) as http:
        with pytest.raises(ConfigError, match="header Authorization has a line break"):
            await http.request("GET", "/x")
    assert server.requests == []


def test_credentials_show_no_secret() -> None:
    shown = repr(Credentials("Bearer s3cret", Certificate(b"chain", b"s3cret key")))
    assert "s3cret" not in shown
