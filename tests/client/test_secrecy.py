"""Credentials are not sent over connections that others can read."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from listwatch.client.auth import Credentials
from listwatch.client.config import Config
from listwatch.client.http import HTTP
from listwatch.client.kubeconfig import load_config
from listwatch.errors import ConfigError
from listwatch.testing.scripted_server import ScriptedServer

USERS: dict[str, dict[str, Any]] = {
    "token": {"token": "t0ken"},
    "token file": {"tokenFile": "token"},
    "password": {"username": "jane", "password": "p"},
    "plugin": {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./never-run",
            "interactiveMode": "Never",
        }
    },
    "OIDC": {"auth-provider": {"name": "oidc", "config": {"id-token": "a.b.c"}}},
    "certificate": {"client-certificate": "missing", "client-key": "missing"},
}


@pytest.mark.parametrize("kind", USERS)
async def test_what_a_kubeconfig_says_is_not_sent_over_http(
    kind: str, server: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("t0ken")
    path = tmp_path / "config"
    value = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {**USERS[kind], "as": "jane"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(value))
    server.answers["/x"] = {}
    async with HTTP(load_config(path)) as http:
        await http.request("GET", "/x")
        await http.request("POST", "/x")
    assert server.header("authorization") is None
    assert server.header("impersonate-user") == "jane"  # as kubectl does
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path}, context 'x': the server is http, so the user's")


async def test_a_kubeconfigs_credentials_do_not_follow_to_an_http_server(
    server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(
        "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
        "clusters: [{name: c, cluster: {server: 'api.example'}}],"
        "users: [{name: u, user: {token: t}}]}"
    )
    server.answers["/x"] = {}
    config = msgspec.structs.replace(load_config(path), server=server.url)
    async with HTTP(config) as http:
        await http.request("GET", "/x")
    assert server.header("authorization") is None


async def test_a_programs_own_token_is_sent_on_loopback(server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    async with HTTP(Config(server=server.url, token="t")) as http:
        await http.request("GET", "/x")
    assert server.header("authorization") == "Bearer t"


class Always:
    """A program's own authenticator."""

    async def credentials(self) -> Credentials:
        return Credentials("Bearer t")

    async def renew(self, refused: Credentials) -> bool:
        return bool(refused is None)


@pytest.mark.parametrize("host", ["http://api.example", "api.example:8080", "http://10.0.0.1:80"])
@pytest.mark.parametrize("kind", ["token", "password", "own authenticator"])
async def test_credentials_never_go_to_another_host_in_clear(host: str, kind: str) -> None:
    who: dict[str, Any] = {"token": {"token": "t"}, "password": {"username": "u"}}.get(kind, {})
    own = Always() if kind == "own authenticator" else None
    async with HTTP(Config(server=host, **who), authenticator=own) as http:
        with pytest.raises(ConfigError, match="not sent over plain HTTP to another host; set the"):
            await http.request("GET", "/x")
