"""`listwatch service-controller` as a process, and its page."""

import re
import signal
import urllib.request
from pathlib import Path

import click
import pytest

from listwatch.client.client import Client
from listwatch.client.connection_options import connection_options
from listwatch.client.kubeconfig import load_config
from listwatch.controllers.services.command import service_controller_command
from listwatch.controllers.services.providers import haproxy_process
from listwatch.controllers.services.providers.haproxy_process import HAProxyError
from listwatch.testing.ports import free_port
from processes import api_server, listwatch, running

ROOT = Path(__file__).parents[3]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """A kubeconfig of a server that does not exist."""
    path = tmp_path / "kubeconfig"
    path.write_text(
        "{contexts: [{name: c, context: {cluster: c}}], current-context: c,"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]}"
    )
    return path


def test_a_haproxy_that_is_not_installed_is_one_line_before_anything_starts(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy_process, "find_program", lambda _name: None)
    arguments = ["--provider", "haproxy", "--kubeconfig", str(kubeconfig)]
    with pytest.raises(HAProxyError, match=r"^haproxy is not installed: on Debian, apt-get "):
        service_controller_command.main(arguments, standalone_mode=False)


def test_options_of_haproxy_are_refused_for_the_local_provider(kubeconfig: Path) -> None:
    for option in (["--stop-with-controller"], ["--runtime-directory", "/run/lb"]):
        arguments = ["--kubeconfig", str(kubeconfig), *option]
        with pytest.raises(click.UsageError, match="are for --provider haproxy"):
            service_controller_command.main(arguments, standalone_mode=False)


def test_its_log_tells_where_health_and_metrics_are(tmp_path: Path) -> None:
    with (
        api_server(tmp_path) as kubeconfig,
        running("service-controller", "--kubeconfig", str(kubeconfig)) as program,
    ):
        program.until(lambda: any("health and metrics on http://" in line for line in program.err))
        assert program.stop(signal.SIGTERM) == 0, program.err
    assert all(" INFO " in line for line in program.err)


async def test_it_leads_serves_its_metrics_and_ends_in_order(tmp_path: Path) -> None:
    port = free_port()
    with api_server(tmp_path) as kubeconfig:
        async with Client.from_config(load_config(kubeconfig)) as client:
            await client.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}})
            meta = {"name": "web", "namespace": "default"}
            spec = {"type": "LoadBalancer", "ports": [{"port": free_port()}]}
            await client.create(
                {"kind": "Service", "apiVersion": "v1", "metadata": meta, "spec": spec}
            )
        with running(
            *("service-controller", "--kubeconfig", str(kubeconfig)),
            *("--health-port", str(port), "--address-pool", "127.81.0.0/16"),
        ) as program:

            def metrics() -> str:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                        return str(answer.read().decode())
                except OSError:
                    return ""

            # The service is counted as synchronised last, after its state and status.
            synced = re.compile(r"^service_controller_loadbalancer_sync_total [1-9]", re.MULTILINE)
            program.until(lambda: synced.search(metrics()) is not None)
            assert "service_controller_load_balancers 1.0" in metrics()
            status = listwatch(
                *("service-controller", "--kubeconfig", str(kubeconfig)),
                *("--status", "--health-port", str(port)),
            )
            assert status.stdout.split("\n")[0].split() == [
                *("SERVICE", "ADDRESS", "PORTS", "BACKENDS"),
                *("HEALTH", "OPEN", "ACCEPTED", "REFUSED"),
            ]
            row = status.stdout.split("\n")[1]
            assert re.match(r"default/web +127\.81\.\d+\.\d+ +\d+/TCP +0 +no backends", row), row
            assert program.stop(signal.SIGTERM) == 0, program.err
        plain = listwatch("service-controller", "--kubeconfig", str(kubeconfig), "--status")
        assert plain.stdout.split("\n")[0].split()[-1] == "BACKENDS"
        nobody = listwatch(
            *("service-controller", "--kubeconfig", str(kubeconfig)),
            *("--status", "--health-port", str(port)),
        )
        assert nobody.returncode != 0
        assert f"no metrics at http://127.0.0.1:{port}/metrics" in nobody.stderr
        assert "Traceback" not in nobody.stderr
        async with Client.from_config(load_config(kubeconfig)) as client:
            service = await client.get("services", "web", "default")
            assert service["status"]["loadBalancer"]["ingress"][0]["ip"].startswith("127.81.")
            lease = await client.get("leases", "service-controller", "default")
            assert not lease["spec"].get("holderIdentity"), "the lease was not given back"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--address-pool", "everywhere"), 2, "everywhere"),
        (("--provider", "cloud"), 2, "cloud"),
        (("--address-pool-file", "/nonexistent/file"), 2, "/nonexistent/file: No such file"),
        (("--address-pool-file", "f", "--address-pool", "::1"), 2, "not both"),
        (("--drain", "nan"), 2, "nan is not a finite number of seconds"),
        (("--health-check-period", "inf"), 2, "inf is not a finite number of seconds"),
        (("--service-sync-period", "0.5"), 2, "0.5 is not in the range"),
        (("--health-port", "65536"), 2, "65536 is not in the range"),
        (("--kubeconfig", "/nonexistent/file"), 3, "/nonexistent/file"),
    ],
)
def test_what_can_not_be_used_is_told_in_words(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = listwatch("service-controller", *arguments)
    assert result.returncode == code
    assert words in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_the_page_names_every_option_and_no_other() -> None:
    options = {name for option in service_controller_command.params for name in option.opts}
    shared = click.command(connection_options(lambda **_: None))
    options -= {name for option in shared.params for name in option.opts}
    options |= {"--kubeconfig", "--context"}  # docs/connecting.md documents the others
    page = (ROOT / "docs/load-balancers.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z-]+)", page))
    secondary = {n for option in service_controller_command.params for n in option.secondary_opts}
    assert named <= options | secondary
    assert options - named == {"--leader-elect"}
