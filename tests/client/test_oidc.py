"""An OIDC user's ID token is renewed with the refresh token, once for all requests, and saved."""

import asyncio
import base64
import json
import stat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from client.raw_server import know_no_host, serving
from listwatch.client.config import Config, OIDCConfig
from listwatch.client.http import HTTP
from listwatch.client.kubeconfig import load_config, save_tokens
from listwatch.client.oidc import OIDCAuthenticator
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError, UnauthorizedError
from listwatch.testing.scripted_server import ScriptedServer, respond

pytestmark = pytest.mark.usefixtures("transport")

NOW = 1_700_000_000.0


def jwt(name: str, seconds: float | None) -> str:
    claims: dict[str, object] = {"sub": name}
    if seconds is not None:
        claims["exp"] = NOW + seconds
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{part}.signature"


class Issuer:
    """An identity provider that issues the given tokens."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.tokens: dict[str, object] = {"id_token": jwt("new", 3600)}
        self.takes_basic = True
        server.answers["/idp/.well-known/openid-configuration"] = {
            "token_endpoint": f"{server.url}/token"
        }
        server.answers["/token"] = self.answer

    def answer(self, request: bytes) -> object:
        if not self.takes_basic and b"\r\nAuthorization: Basic" in request:
            return respond({"error": "invalid_client"}, code=401)
        return self.tokens

    @property
    def asked(self) -> list[bytes]:
        return [r for r in self.server.requests if r.startswith(b"POST /token")]

    def form(self) -> dict[str, list[str]]:
        return parse_qs(self.asked[-1].split(b"\r\n\r\n", 1)[1].decode())

    def config(self, id_token: str, *, renewable: bool = True, **more: Any) -> Config:
        oidc = OIDCConfig(
            issuer_url=f"{self.server.url}/idp/",
            client_id="kube:ctl",
            client_secret="s/1",
            id_token=id_token,
            refresh_token="r1" if renewable else "",
            **more,
        )
        return Config(server=self.server.url, oidc=oidc, source="FILE")


@pytest.fixture
def issuer(server: ScriptedServer) -> Issuer:
    return Issuer(server)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(time=NOW)


async def test_a_good_id_token_is_sent_as_it_is(issuer: Issuer, clock: FakeClock) -> None:
    for token in (jwt("a", 11), jwt("b", None), "opaque"):
        source = OIDCAuthenticator(issuer.config(token), clock)
        assert (await source.credentials()).authorization == f"Bearer {token}"
    assert issuer.server.requests == []


@pytest.mark.parametrize("old", [jwt("old", 9), jwt("old", -100), ""])
async def test_an_id_token_near_its_end_is_renewed_once_for_all(
    issuer: Issuer, clock: FakeClock, old: str
) -> None:
    source = OIDCAuthenticator(issuer.config(old), clock)
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(source.credentials()) for _ in range(10)]
    assert {task.result().authorization for task in asking} == {f"Bearer {jwt('new', 3600)}"}
    assert len(issuer.asked) == 1
    assert issuer.form() == {"grant_type": ["refresh_token"], "refresh_token": ["r1"]}
    header = issuer.server.header("authorization") or ""
    assert base64.b64decode(header.removeprefix("Basic ")) == b"kube%3Actl:s%2F1"


async def test_an_issuer_that_takes_the_secret_in_the_body_gets_it_there(
    issuer: Issuer, clock: FakeClock
) -> None:
    issuer.takes_basic = False
    await OIDCAuthenticator(issuer.config(""), clock).credentials()
    assert issuer.form()["client_secret"] == ["s/1"]
    assert issuer.form()["client_id"] == ["kube:ctl"]


async def test_a_refresh_token_that_is_used_once_is_replaced(
    issuer: Issuer, clock: FakeClock
) -> None:
    issuer.tokens = {"id_token": jwt("one", 100), "refresh_token": "r2"}
    source = OIDCAuthenticator(issuer.config(""), clock)
    await source.credentials()
    clock.set_time(NOW + 95)
    await source.credentials()
    assert issuer.form()["refresh_token"] == ["r2"]


async def test_a_refused_id_token_is_renewed(issuer: Issuer, clock: FakeClock) -> None:
    new = jwt("new", 3600)
    issuer.server.answers["/x"] = lambda request: (
        {} if new.encode() in request else respond(b"", code=401)
    )
    async with HTTP(issuer.config(jwt("old", 3600)), clock=clock) as http:
        await http.request("GET", "/x")
    async with HTTP(issuer.config(jwt("old", 3600), renewable=False), clock=clock) as http:
        with pytest.raises(UnauthorizedError):
            await http.request("GET", "/x")


async def test_an_expired_token_without_a_way_to_renew_it_is_told(
    issuer: Issuer, clock: FakeClock
) -> None:
    source = OIDCAuthenticator(issuer.config(jwt("old", -1), renewable=False), clock)
    with pytest.raises(ConfigError, match=r"^FILE: the id token has expired.*log in again"):
        await source.credentials()


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        (
            "/token",
            respond({"error": "invalid_grant"}, code=400),
            r"refuses \(400\): invalid_grant",
        ),
        ("/token", {"access_token": "x"}, "returned no id_token"),
        ("/token", respond(b"<html>", code=500), r"refuses \(500\): without a reason"),
        ("/idp/.well-known/openid-configuration", {}, "names no token_endpoint"),
        (
            "/idp/.well-known/openid-configuration",
            {"token_endpoint": "file:///etc/passwd"},
            "names no token_endpoint",
        ),
        ("/idp/.well-known/openid-configuration", respond(b"", code=302), r"refuses \(302\)"),
    ],
)
async def test_an_issuer_that_refuses_is_told(
    issuer: Issuer, clock: FakeClock, path: str, answer: object, words: str
) -> None:
    issuer.server.answers[path] = answer
    with pytest.raises(ConfigError, match=words) as caught:
        await OIDCAuthenticator(issuer.config(""), clock).credentials()
    assert "r1" not in str(caught.value)
    assert "s/1" not in str(caught.value)


async def test_an_issuer_that_is_away_is_told(clock: FakeClock) -> None:
    oidc = OIDCConfig(issuer_url="http://127.0.0.1:1", refresh_token="r")
    source = OIDCAuthenticator(Config(server="http://x", oidc=oidc), clock)
    with pytest.raises(
        ConfigError,
        match=r"http://127.0.0.1:1 does not answer: .*: no connection: Conn.* refused",
    ):
        await source.credentials()


async def test_the_issuer_is_asked_through_the_environments_proxy(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 502 no\r\nContent-Length: 0\r\n\r\n")

    async with serving(refuse) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        oidc = OIDCConfig(issuer_url="https://issuer.invalid/idp", refresh_token="r")
        config = Config(server="https://x", proxy_url="http://another.invalid", oidc=oidc)
        with pytest.raises(ConfigError, match=r"does not answer: .*the proxy refuses \(502\)"):
            await OIDCAuthenticator(config, clock).credentials()
        monkeypatch.setenv("NO_PROXY", "issuer.invalid")
        know_no_host(monkeypatch)
        with pytest.raises(ConfigError, match="the host is unknown"):
            await OIDCAuthenticator(config, clock).credentials()
    assert asked == [b"CONNECT issuer.invalid:443 HTTP/1.1\r\n"]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write(path: Path) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "jane"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://x"}}],
                "users": [
                    {"name": "joe", "user": {"token": "keep"}},
                    {
                        "name": "jane",
                        "user": {
                            "auth-provider": {
                                "name": "oidc",
                                "config": {"idp-issuer-url": "https://idp", "id-token": "old"},
                            }
                        },
                    },
                ],
            }
        )
    )
    path.chmod(0o600)
    return path


async def test_renewed_tokens_are_saved_as_kubectl_saves_them(
    issuer: Issuer, clock: FakeClock, tmp_path: Path
) -> None:
    file = write(tmp_path / "config")
    link = tmp_path / "link"
    link.symlink_to(file)
    issuer.tokens = {"id_token": jwt("new", 3600), "refresh_token": "r2"}
    config = issuer.config("", kubeconfig=str(link), user="jane")
    await OIDCAuthenticator(config, clock).credentials()
    saved = load_config(file).oidc
    assert saved is not None
    assert (saved.id_token, saved.refresh_token) == (jwt("new", 3600), "r2")
    assert load_config(file, user="joe").token == "keep"
    assert (stat.S_IMODE(file.stat().st_mode), link.is_symlink()) == (0o600, True)
    assert names(tmp_path) == ["config", "link"]


async def test_tokens_that_can_not_be_saved_are_used_all_the_same(
    issuer: Issuer, clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = issuer.config("", kubeconfig=str(tmp_path / "no" / "config"), user="jane")
    credentials = await OIDCAuthenticator(config, clock).credentials()
    assert credentials.authorization == f"Bearer {jwt('new', 3600)}"
    assert "the renewed tokens are not saved" in caplog.text
    assert jwt("new", 3600) not in caplog.text


def test_a_file_that_somebody_else_writes_is_left_alone(tmp_path: Path) -> None:
    file = write(tmp_path / "config")
    before = file.read_text()
    (tmp_path / "config.lock").touch()
    with pytest.raises(ConfigError, match=r"config\.lock cannot be created: File exists"):
        save_tokens(file, "jane", id_token="a", refresh_token="b")
    (tmp_path / "config.lock").unlink()
    with pytest.raises(ConfigError, match="user 'jim' no longer exists"):
        save_tokens(file, "jim", id_token="a", refresh_token="b")
    with pytest.raises(ConfigError, match="user 'joe' has changed"):
        save_tokens(file, "joe", id_token="a", refresh_token="b")
    assert file.read_text() == before
    assert names(tmp_path) == ["config"]
