import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from listwatch.apiserver.command import write_private

_COMMAND = (
    sys.executable,
    "-c",
    "from listwatch.apiserver.command import apiserver_command as c; c()",
)


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*_COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("old")
    kubeconfig.chmod(0o644)
    process = start("--kubeconfig", str(kubeconfig))
    line = first_line(process)
    assert line.startswith("listening on http://127.0.0.1:")
    url = line.removeprefix("listening on ")
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    assert yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == url
    with urllib.request.urlopen(f"{url}/readyz", timeout=50) as answer:  # noqa: S310 - our server
        assert answer.read() == b"ok"
    process.send_signal(number)
    out, err = process.communicate(timeout=50)
    assert (process.returncode, out) == (0, "")
    assert err == (
        f"listwatch apiserver: {kubeconfig} had mode 0644, which let others read it; the mode is "
        "now 0600\n"
    )
    assert os.listdir(tmp_path) == ["kubeconfig"]  # noqa: PTH208 - only names


def test_an_open_watch_ends_with_its_last_chunk_when_the_server_is_stopped() -> None:
    process = start()
    port = int(first_line(process).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=50) as connection:
        connection.sendall(
            b"GET /api/v1/pods?watch=1&resourceVersion=1 HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        received = connection.recv(65536)
        process.send_signal(signal.SIGTERM)
        while part := connection.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert received.endswith(b"\r\n\r\n0\r\n\r\n")
    process.communicate(timeout=50)
    assert process.returncode == 0


def test_a_used_port_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        out, err = process.communicate(timeout=50)
    assert (process.returncode, out) == (1, "")
    assert err == (
        f"listwatch apiserver: cannot listen on 127.0.0.1:{port}: address already in use; choose "
        "another port, or 0 for a free one\n"
    )


def test_a_kubeconfig_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing/kubeconfig"
    process = start("--kubeconfig", str(path))
    _, err = process.communicate(timeout=50)
    assert process.returncode == 1
    assert err == f"listwatch apiserver: cannot write {path}: No such file or directory\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("token,user\n", "line 1: a line of a token file is token,user,uid"),
        ("t,a,1\nt,b,2\n", "line 2: this token was given to another user above"),
        ("\n", "no tokens in this file"),
    ],
)
def test_a_broken_token_file_is_one_clear_line(content: str, words: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(content)
    process = start("--token-auth-file", str(tokens))
    _, err = process.communicate(timeout=50)
    assert process.returncode == 1
    assert words in err
    assert err.count("\n") == 1


def test_a_token_file_is_obeyed(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text('secret,root,1,"system:masters"\n')
    kubeconfig = tmp_path / "kubeconfig"
    process = start("--token-auth-file", str(tokens), "--kubeconfig", str(kubeconfig))
    url = first_line(process).removeprefix("listening on ")
    config = yaml.safe_load(kubeconfig.read_text())
    assert config["users"][0]["user"] == {"token": "secret"}
    request = urllib.request.Request(  # noqa: S310 - the server of this test
        f"{url}/api/v1/pods", headers={"Authorization": "Bearer secret"}
    )
    with urllib.request.urlopen(request, timeout=50) as answer:  # noqa: S310 - as above
        assert answer.status == 200
    with pytest.raises(OSError, match="HTTP Error 403"):
        urllib.request.urlopen(f"{url}/api/v1/pods", timeout=50)  # noqa: S310 - our server
    process.terminate()
    process.communicate(timeout=50)


def test_a_kubeconfig_is_its_owners_alone_and_a_wider_one_is_tightened(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("old")
    kubeconfig.chmod(0o644)
    before = os.umask(0)
    try:
        warning = write_private(kubeconfig, "new")
        again = write_private(kubeconfig, "newer")
    finally:
        os.umask(before)
    assert f"{kubeconfig} had mode 0644" in warning
    assert again == ""
    assert kubeconfig.read_text() == "newer"
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [kubeconfig]


def beside(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=50
    )


READ = "import os, urllib.request, yaml; k = os.environ['KUBECONFIG']; \
c = yaml.safe_load(open(k))['clusters'][0]['cluster']['server']; \
print(k, urllib.request.urlopen(c + '/readyz').read().decode())"


@pytest.mark.parametrize("named", [True, False])
def test_a_command_runs_beside_it_and_the_kubeconfig_goes_with_both(
    tmp_path: Path, *, named: bool
) -> None:
    chosen = ["--kubeconfig", str(tmp_path / "mine")] if named else []
    done = beside(*chosen, "--", sys.executable, "-c", READ)
    assert (done.returncode, done.stderr) == (0, "")
    path, answer = done.stdout.split()
    assert answer == "ok"
    assert named == (path == str(tmp_path / "mine"))
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["sh", "-c", "exit 7"], 7, ""),
        (["sh", "-c", "kill -TERM $$"], 143, ""),
        (["no-such-command"], 127, "listwatch apiserver: no-such-command: no such command\n"),
        (["/etc/passwd"], 126, "listwatch apiserver: /etc/passwd: Permission denied\n"),
    ],
)
def test_it_returns_what_the_command_does(command: list[str], code: int, words: str) -> None:
    done = beside("--", *command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_then_the_server(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo caught; exit 3' {name}; echo on; for i in $(seq 400); do sleep 0.05; done"
    with subprocess.Popen(
        [*_COMMAND, "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # detached from any terminal of the tests
    ) as process:
        assert first_line(process) == "on"
        process.send_signal(number)
        assert first_line(process) == "caught"
        assert process.wait(50) == 3
