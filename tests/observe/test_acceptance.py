"""The acceptance tests of the original command (origin's `test/cmd/observe.sh`), case by case."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml

from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from processes import LISTWATCH, api_server, listwatch, running
from sampling import sampled

SERVICE = """
kind: Service
apiVersion: v1
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.3.0.1, ports: [{port: 443}]}
"""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with api_server(tmp_path_factory.mktemp("server")) as path:
        _create_service(path)
        yield path


def _create_service(path: Path) -> None:
    async def create() -> None:
        async with Client.from_config(load_config(path)) as client:
            await client.delete("services", "kubernetes")  # its address differs
            await client.create(yaml.safe_load(SERVICE))

    asyncio.run(create())


def _sh(script: str) -> list[str]:
    return ["--", "/bin/sh", "-c", script]


ALL = ["services", "--all-namespaces"]
BAD = "bad{ .missingkey }key"


@pytest.mark.parametrize(
    ("arguments", "text"),
    sampled([
        (["services", "--once"], "Sync ended"),
        (["daemonsets", "--once"], "Nothing to sync, exiting immediately"),
        ([*ALL, "--once"], "default kubernetes"),
        ([*ALL, "--once", "--print-metrics-on-exit"], 'observe_counts{type="Sync"}'),
        (["services", "--exit-after=1s"], "Shutting down after 1s ..."),
        ([*ALL, "--exit-after=3s", "--print-metrics-on-exit"], 'observe_counts{type="Sync"}'),
        (
            [*ALL, "--once", "--names", "echo", "--names", "default/notfound",
             "--delete", "echo", "--delete", "remove"],
            "remove default notfound",
        ),
        ([*ALL, "--once", "-a", "{ .spec.clusterIP }"], "10.3.0.1"),
        ([*ALL, "--once", "-a", "{{ .spec.clusterIP }}", "--output=gotemplate"], "10.3.0.1"),
        ([*ALL, "--once", "-a", BAD], "badkey"),
        ([*ALL, "--once", "-a", "{{ .unknown }}", "--output=gotemplate"], '"<no value>"'),
        (
            [*ALL, "--once", "-a", 'bad{{ or (.unknown) "" }}key', "--output=gotemplate"],
            "badkey",
        ),
        (
            [*ALL, "--once", "--type-env-var=EVENT", *_sh("echo $EVENT $MYENV")],
            "Sync should_be_passed",
        ),
        ([*ALL, "--once", "-o", "jsonpath={.spec.clusterIP}"], "10.3.0.1"),
    ], every=3),
)  # fmt: skip
def test_it_succeeds_and_prints(kubeconfig: Path, arguments: list[str], text: str) -> None:
    done = listwatch("observe", *arguments, KUBECONFIG=str(kubeconfig), MYENV="should_be_passed")
    assert done.returncode == 0, done.stderr
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    sampled([
        ([], "you must specify at least one argument containing the resource to observe"),
        (["services", "--once", "--names", "echo"], "--delete and --names must both be specified"),
        (
            [*ALL, "--exit-after=1m", "--maximum-errors=1", *_sh("exit 1")],
            "reached maximum error limit of 1, exiting",
        ),
        (
            [*ALL, "--exit-after=1m", "--retry-on-exit-code=2", "--retry-delay=10ms",
             "--maximum-errors=1", *_sh("exit 2")],
            "retrying command: exit status 2",
        ),
        ([*ALL, "--once", "-a", BAD, "--strict-templates"], "missingkey is not found"),
        (
            [*ALL, "--once", "--template", BAD, "--allow-missing-template-keys=false"],
            "missingkey is not found",
        ),
    ], every=2),
)  # fmt: skip
def test_it_fails_and_says_why(kubeconfig: Path, arguments: list[str], text: str) -> None:
    done = listwatch("observe", *arguments, KUBECONFIG=str(kubeconfig))
    assert done.returncode in {1, 2}
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def _get(address: str, path: str) -> str:
    connection = HTTPConnection(address, timeout=45)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_metrics_and_health_are_served_where_it_says(kubeconfig: Path) -> None:
    with running("observe", *ALL, KUBECONFIG=str(kubeconfig)) as observe:
        observe.until(lambda: bool(observe.err) and "Sync ended" in "".join(observe.out))
        address = observe.err[0].rpartition("//")[2]
        assert 'observe_counts{type="Sync"} 1.0' in _get(address, "/metrics")
        # It is ready right after it has printed so.
        observe.until(lambda: _get(address, "/readyz") == "ok")
        for path in ("/healthz", "/readyz", "/healthz/ready"):
            assert _get(address, path) == "ok"
        assert observe.stop() == 0


def test_a_taken_address_is_named_with_the_remedy(kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = listwatch("observe", *ALL, "--listen-addr", address, KUBECONFIG=str(kubeconfig))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: unable to listen on '{address}'")
    assert "choose another --listen-addr" in done.stderr


@pytest.mark.parametrize(
    ("output", "template", "text"),
    [
        ("jsonpath-file", "{.spec.clusterIP}", "10.3.0.1"),
        ("go-template-file", "{{.spec.clusterIP}}", "10.3.0.1"),
        ("templatefile", "{{len .spec.ports}}", "kubernetes 1"),
    ],
)
def test_a_template_can_be_read_from_a_file(
    kubeconfig: Path, tmp_path: Path, output: str, template: str, text: str
) -> None:
    file = tmp_path / "template"
    file.write_text(template)
    done = listwatch(
        "observe", *ALL, "--once", "-o", output, "--template", str(file),
        KUBECONFIG=str(kubeconfig),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert text in done.stdout


def test_the_page_is_served_and_its_address_told(kubeconfig: Path) -> None:
    with running("observe", *ALL, "--ui", KUBECONFIG=str(kubeconfig)) as observe:
        observe.until(lambda: bool(observe.err))
        assert observe.err[0].startswith("page, metrics and health on http://127.0.0.1:")
        address = observe.err[0].rpartition("//")[2]
        assert "<h1>services</h1>" in _get(address, "/")
        assert observe.stop() == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_nothing(kubeconfig: Path, tmp_path: Path, closed: str) -> None:
    told = tmp_path / "told"
    script = f'exec "$@" {closed}'
    command = ["--", "/bin/sh", "-c", f"echo out; echo err >&2; echo $1 >> {told}"]
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *LISTWATCH, "observe", *ALL, "--once", *command],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert told.read_text() == "kubernetes\n"


def test_a_resource_that_cannot_be_watched_is_named(kubeconfig: Path) -> None:
    done = listwatch("observe", "bindings", "--once", KUBECONFIG=str(kubeconfig))
    assert done.returncode == 2
    assert done.stderr == "error: bindings can't be listed; its verbs are: create\n"


def test_a_selector_that_the_server_refuses_ends_it_at_once(kubeconfig: Path) -> None:
    done = listwatch(
        "observe", "pods", "--once", "--field-selector", "no.such=field", KUBECONFIG=str(kubeconfig)
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: field label not supported: no.such"
