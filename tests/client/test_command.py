"""`listwatch config` prints the configuration without secrets and checks the server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from listwatch.cli import main
from listwatch.client.command import wait_for_server
from listwatch.client.config import Config
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError
from listwatch.testing import eventually
from listwatch.testing.scripted_server import ScriptedServer, respond

SECRET = "sw0rdfish"


@pytest.fixture
def kubeconfig(tmp_path: Path, server: ScriptedServer) -> Path:
    path = tmp_path / "config"
    value: dict[str, Any] = {
        "current-context": "demo",
        "contexts": [
            {"name": "demo", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}
        ],
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": SECRET, "as": "jane", "as-groups": ["devs"]}}],
    }
    path.write_text(yaml.safe_dump(value))
    return path


async def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(main, ["config", *arguments])
    code = ended.value.code
    return code if isinstance(code, int) else 0


async def test_it_prints_the_configuration_and_asks_the_server(
    server: ScriptedServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["/version"] = {"gitVersion": "v1.36.2"}
    server.answers["/apis/authentication.k8s.io/v1/selfsubjectreviews"] = {
        "status": {"userInfo": {"username": "jane", "groups": ["devs", "system:authenticated"]}}
    }
    assert await run("--kubeconfig", str(kubeconfig)) == 0
    output = capsys.readouterr().out
    shown = yaml.safe_load(output)
    assert shown["server"] == server.url
    assert shown["namespace"] == "shop"
    assert shown["token"] == "<hidden>"
    assert shown["impersonate"]["user"] == "jane"
    assert shown["server version"] == "v1.36.2"
    assert (shown["user"], shown["groups"]) == ("jane", "devs, system:authenticated")
    assert SECRET not in output


async def test_an_old_server_can_not_tell_the_user(
    server: ScriptedServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["/version"] = {"gitVersion": "v1.20.0"}
    assert await run("--kubeconfig", str(kubeconfig), "-n", "other") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["namespace"], shown["server version"]) == ("other", "v1.20.0")
    assert "user" not in shown


@pytest.mark.parametrize(
    ("answer", "words", "code"),
    [
        (respond(b"who are you?", code=401, type_="text/plain"), "error: who are you?", 5),
        (respond(b"not you", code=403, type_="text/plain"), "error: not you", 6),
        (respond(b"<html>"), "error: the response is not from an API server", 1),
    ],
)
async def test_a_server_that_refuses_is_one_line_and_an_exit_code(
    server: ScriptedServer,
    kubeconfig: Path,
    capsys: pytest.CaptureFixture[str],
    answer: bytes,
    words: str,
    code: int,
) -> None:
    server.answers["/version"] = answer
    assert await run("--kubeconfig", str(kubeconfig)) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(words)
    assert captured.err.count("\n") == 1
    assert SECRET not in captured.out + captured.err


async def test_a_server_that_is_away_is_one_line_and_an_exit_code(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = read(kubeconfig)
    value["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    rewrite(kubeconfig, value)
    assert await run("--kubeconfig", str(kubeconfig)) == 4
    assert capsys.readouterr().err == (
        "error: http://127.0.0.1:1: no connection: Connection refused\n"
    )


def read(kubeconfig: Path) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    return value


def rewrite(kubeconfig: Path, value: object) -> None:
    kubeconfig.write_text(yaml.safe_dump(value))


async def test_no_check_asks_nothing(server: ScriptedServer, kubeconfig: Path) -> None:
    assert await run("--kubeconfig", str(kubeconfig), "--no-check") == 0
    assert server.requests == []


async def test_a_broken_configuration_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("--kubeconfig", str(tmp_path / "missing")) == 3
    assert capsys.readouterr().err == f"error: {tmp_path / 'missing'} does not exist\n"


def with_plugin(kubeconfig: Path) -> str:
    value = yaml.safe_load(kubeconfig.read_text())
    value["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "interactiveMode": "Never",
            "command": "login",
            "args": [SECRET],
            "env": [{"name": "K", "value": SECRET}],
        }
    }
    kubeconfig.write_text(yaml.safe_dump(value))
    return str(kubeconfig)


async def test_a_plugins_secrets_are_not_shown(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("--kubeconfig", with_plugin(kubeconfig), "--no-check") == 0
    output = capsys.readouterr().out
    assert "login" in output
    assert SECRET not in output


async def test_what_a_server_says_can_not_drive_the_terminal(
    server: ScriptedServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["/version"] = {"gitVersion": "v1\x1b[2J\nuser: admin"}
    server.answers["/apis/authentication.k8s.io/v1/selfsubjectreviews"] = respond(
        {"kind": "Status", "message": "no\x1b]0;x\x07\nerror: all is well"}, code=403
    )
    assert await run("--kubeconfig", str(kubeconfig)) == 6
    assert capsys.readouterr().err == "error: no\\x1b]0;x\\x07 error: all is well\n"
    server.answers["/apis/authentication.k8s.io/v1/selfsubjectreviews"] = {}
    assert await run("--kubeconfig", str(kubeconfig)) == 0
    assert "server version: v1\\x1b[2J\\nuser: admin\n" in capsys.readouterr().out


async def test_waiting_for_a_server_ends_when_it_answers(server: ScriptedServer) -> None:
    server.answers["/version"] = {"gitVersion": "v1.20.0"}
    clock = FakeClock()
    tries: list[float] = []

    def load() -> Config:
        tries.append(clock.now())
        if len(tries) == 1:
            raise ConfigError("no kubeconfig")
        if len(tries) == 2:
            return Config(server="http://127.0.0.1:9")
        return Config(server=server.url, token="right")

    waiting = asyncio.ensure_future(wait_for_server(load, 30, clock=clock))
    for number in (1, 2):
        await eventually(lambda: clock.next_timer is not None)  # the connections are real
        assert len(tries) == number
        await clock.advance(clock.next_timer or 0)
    await waiting
    assert len(tries) == 3


async def test_waiting_in_vain_tells_the_last_reason() -> None:
    clock = FakeClock()

    def load() -> Config:
        raise ConfigError("no kubeconfig")

    waiting = asyncio.ensure_future(wait_for_server(load, 1.0, clock=clock))
    await clock.advance(0.9)
    assert not waiting.done()
    await clock.advance(0.2)
    with pytest.raises(ConfigError, match="no kubeconfig"):
        await waiting
