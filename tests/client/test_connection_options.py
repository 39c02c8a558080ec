"""kubectl's global flags, applied to a kubeconfig."""

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from listwatch import cli
from listwatch.client.config import Config, Impersonation
from listwatch.client.connection_options import ConnectionOptions, connection_options
from listwatch.client.http import HTTP
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A kubeconfig with two clusters and users, one of them with every credential."""
    data = base64.b64encode(b"pem").decode()
    path = tmp_path / "config"
    path.write_text(
        json.dumps(
            {
                "clusters": [
                    {"name": "one", "cluster": {"server": "https://one:6443",
                     "certificate-authority-data": data}},
                    {"name": "two", "cluster": {"server": "https://two:6443"}},
                ],
                "users": [
                    {"name": "all", "user": {"token": "old", "client-certificate-data": data,
                     "client-key-data": data}},
                    {"name": "exec", "user": {"exec": {"command": "plugin",
                     "apiVersion": "client.authentication.k8s.io/v1",
                     "interactiveMode": "Never"}}},
                ],
                "contexts": [{"name": "c", "context": {"cluster": "one", "user": "all",
                              "namespace": "ns"}}],
                "current-context": "c",
            }
        )
    )  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(path))
    return iter([path])


def _config(*arguments: str) -> Config:
    found: list[Config] = []

    @click.command()
    @connection_options
    def command(*, connection: ConnectionOptions) -> None:
        found.append(connection.config())

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.usefixtures("kubeconfig")
def test_without_flags_it_is_the_kubeconfigs() -> None:
    config = _config()
    assert (config.server, config.namespace, config.token) == ("https://one:6443", "ns", "old")
    assert config.certificate_authority_data == b"pem"
    assert not ConnectionOptions().is_given


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--cluster", "two"], "server", "https://two:6443"),
        (["-s", "https://other:1"], "server", "https://other:1"),
        (["--server=https://other:1"], "server", "https://other:1"),
        (["--tls-server-name", "name"], "tls_server_name", "name"),
        (["--as", "jane"], "impersonate", Impersonation(user="jane")),
        (
            ["--as", "jane", "--as-group", "a", "--as-group", "b", "--as-uid", "7"],
            "impersonate",
            Impersonation(user="jane", groups=("a", "b"), uid="7"),
        ),
        (["--token", "new"], "token", "new"),
        (["--request-timeout", "1m30s"], "request_timeout", 90.0),
        (["--request-timeout", "0"], "request_timeout", 0.0),
    ],
)
def test_a_flag_goes_before_the_kubeconfig(arguments: list[str], name: str, value: object) -> None:
    assert getattr(_config(*arguments), name) == value


@pytest.mark.usefixtures("kubeconfig")
def test_a_file_of_ones_own_takes_the_place_of_the_kubeconfigs_data(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.touch()
    config = _config(
        "--certificate-authority", str(file), "--client-certificate", str(file),
        "--client-key", str(file),
    )  # fmt: skip
    assert config.certificate_authority == config.client_certificate == str(file)
    assert config.client_key == str(file)
    assert config.certificate_authority_data == config.client_certificate_data == b""
    assert config.client_key_data == b""


@pytest.mark.usefixtures("kubeconfig")
def test_trusting_any_server_needs_no_authority() -> None:
    config = _config("--insecure-skip-tls-verify")
    assert config.insecure_skip_tls_verify
    assert config.certificate_authority_data == b""


@pytest.mark.usefixtures("kubeconfig")
def test_a_token_is_the_only_way_to_be_somebody() -> None:
    assert _config("--user", "exec").exec is not None
    config = _config("--user", "exec", "--token", "new")
    assert (config.exec, config.token) == (None, "new")


def test_a_server_needs_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    config = _config("--server", "https://other:1", "--token", "t")
    assert (config.server, config.namespace, config.token) == ("https://other:1", "default", "t")
    with pytest.raises(ConfigError, match="no kubeconfig"):
        _config("--token", "t")
    with pytest.raises(ConfigError, match="none"):
        _config("--server", "https://other:1", "--kubeconfig", str(tmp_path / "none"))


@pytest.mark.usefixtures("kubeconfig")
def test_a_group_without_a_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="--as-group and --as-uid need --as"):
        _config("--as-group", "a")


def test_no_flag_shows_a_token() -> None:
    assert "secret" not in repr(ConnectionOptions(token="secret"))


@pytest.mark.parametrize(
    "command", ["observe", "config", "run", "service-controller", "build-controllers"]
)
def test_every_command_that_asks_a_server_has_them(command: str) -> None:
    text = CliRunner().invoke(cli.cli, [command, "--help"]).output
    for flag in (
        "--as ", "--as-group", "--as-uid", "--token", "-s, --server", "--cluster", "--user",
        "--certificate-authority", "--client-certificate", "--client-key",
        "--insecure-skip-tls-verify", "--tls-server-name", "--request-timeout", "-v, --v",
        "--kubeconfig", "--context",
    ):  # fmt: skip
        assert flag in text


async def test_a_request_that_takes_longer_is_given_up_in_words() -> None:
    clock = FakeClock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with HTTP(Config(server=server, request_timeout=2.0), clock=clock) as http:
            request = asyncio.ensure_future(http.request("GET", "/version"))
            await clock.advance(1.9)
            assert not request.done()
            await clock.advance(0.2)
            with pytest.raises(TimeoutError, match="GET /version: no response within 2 s"):
                await request
