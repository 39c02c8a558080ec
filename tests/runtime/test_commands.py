import asyncio
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.apiserver.user import User
from listwatch.client.client import Client, PatchType
from listwatch.client.config import Config
from listwatch.errors import ConfigError, ForbiddenError
from listwatch.runtime import load_app
from listwatch.runtime.commands import (
    JsonFormatter,
    TextFormatter,
    new_command,
    run_command,
)
from listwatch.runtime.packaging.commands import manifests_command, rbac_command
from listwatch.runtime.scaffold import Names, write_project
from listwatch.testing.waiting import eventually
from listwatch.webhooks import WebhookOptions
from processes import listwatch

WEBSITE = Path(__file__).parent.parent.parent / "examples/website"
SERVICE_ACCOUNT = "system:serviceaccount:website-controller:website-controller"


def names(name: str, **options: Any) -> Names:
    return Names.of(name, **{"group": "example.com"} | options)


def test_the_example_is_what_new_writes(tmp_path: Path) -> None:
    for path in write_project(tmp_path, names("website")):
        example = WEBSITE / path.relative_to(tmp_path)
        assert path.read_text() == example.read_text(), example


def test_the_manifests_of_the_example_are_those_of_its_code(tmp_path: Path) -> None:
    image = "registry.example.com/website-controller:1"
    arguments = [str(WEBSITE / "controller.py"), "--image", image, "-o", str(tmp_path)]
    result = CliRunner().invoke(manifests_command, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    written = {path.name: path.read_text() for path in (WEBSITE / "deploy").iterdir()}
    assert written == {path.name: path.read_text() for path in tmp_path.iterdir()}


@pytest.mark.timeout(120)
@pytest.mark.proof
def test_a_new_project_passes_its_own_tests(tmp_path: Path) -> None:
    where = tmp_path / "gadget"
    result = CliRunner().invoke(
        new_command,
        ["gadget", "--group", "acme.io", "--plural", "gadgetry", "--directory", str(where)],
    )
    assert result.exit_code == 0, result.output
    assert "python -m pytest" in result.output
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "17 passed" in done.stdout
    made = listwatch("manifests", str(where / "controller.py"), "-o", str(where / "deploy"))
    assert (made.returncode, made.stderr) == (0, "")
    crd = yaml.safe_load((where / "deploy/crds.yaml").read_text())
    assert crd["metadata"]["name"] == "gadgetry.acme.io"
    assert crd["spec"]["names"]["kind"] == "Gadget"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"README\.md already exists: nothing was written"):
        write_project(tmp_path, names("website"))
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Web", {}, "'Web' is not a resource name"),
        ("web-site", {}, "'web-site' is not a resource name"),
        ("web", {"plural": "../x"}, "is not a resource name"),
        ("web", {"kind": "web"}, "'web' is not a kind"),
        ("web", {"group": "acme"}, "'acme' is not an API group"),
        ("web", {"group": "Acme.io"}, "'Acme.io' is not an API group"),
    ],
)
def test_names_that_no_resource_can_have_are_refused(
    name: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        names(name, **options)


async def test_the_example_works_in_a_cluster_that_has_its_manifests_and_no_other_rights() -> None:
    tokens = {
        "root": User("root", ("system:masters",)),
        "controller": User(
            SERVICE_ACCOUNT,
            ("system:serviceaccounts", "system:authenticated"),
        ),
    }
    async with (
        EmbeddedAPIServer(tokens=tokens) as server,
        Client(Config(server=server.url, token="root")) as root,
    ):
        kustomization = yaml.safe_load((WEBSITE / "deploy/kustomization.yaml").read_text())
        for name in kustomization["resources"]:
            for obj in yaml.safe_load_all((WEBSITE / "deploy" / name).read_text()):
                _ = await root.create(obj)
        config = Config(server=server.url, token="controller", namespace="website-controller")
        # As in a pod, but for the port.
        hooks = WebhookOptions(service="website-controller", host="127.0.0.1", port=0)
        app = load_app(WEBSITE / "controller.py", config=config, webhooks=hooks)
        website = {
            "apiVersion": "example.com/v1alpha1",
            "kind": "Website",
            "metadata": {"name": "shop", "namespace": "default"},
            "spec": {"image": "nginx", "count": 3},
        }
        async with app, asyncio.timeout(50):
            server.add_service(
                "website-controller/website-controller", "127.0.0.1", app.webhooks.port
            )
            _ = await root.create(website)

            async def conditions() -> object:
                found = await root.get("websites.v1.example.com", "shop", "default")
                assert found["spec"]["replicas"] == 3
                return found.get("status", {}).get("conditions")

            await eventually(conditions)
            with pytest.raises(ForbiddenError):
                await app.client.list("secrets")
            await root.delete("websites.example.com", "shop", "default")

            async def is_gone() -> bool:
                return not (await root.list("websites.example.com", "default")).items

            await eventually(is_gone)
            await app.recorder.flush()
        assert app.reconcilers[0].statistics().errors == 0
        assert app.recorder.statistics().failed == 0
        assert {hook.name: hook.errors for hook in app.webhooks.statistics()} == {
            "convert.websites.example.com": 0,
            "check-image": 0,
        }


async def test_the_manifests_can_be_applied(client: Client) -> None:
    for name in ("namespace.yaml", "deployment.yaml", "rbac.yaml"):
        for obj in yaml.safe_load_all((WEBSITE / "deploy" / name).read_text()):
            resource = await client.discovery.for_kind(obj["apiVersion"], obj["kind"])
            _ = await client.patch(
                resource,
                obj["metadata"]["name"],
                obj,
                obj["metadata"].get("namespace"),
                type=PatchType.APPLY,
                field_manager="test",
            )
    deployment = await client.get("deployments", "website-controller", "website-controller")
    (container,) = deployment.to_dict()["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


PROGRAM = """
from listwatch.runtime import Manager

app = Manager("test")
maps = app.reconciler("maps").for_({resource!r}, namespace="default")

@maps
async def reconcile(key):
    print("reconciled", key, flush=True)
"""


async def test_run_runs_a_file_until_it_is_stopped(
    server: EmbeddedAPIServer, client: Client, tmp_path: Path
) -> None:
    _ = await client.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "default"},
        }
    )
    kubeconfig, program = tmp_path / "kubeconfig", tmp_path / "program.py"
    kubeconfig.write_text(server.kubeconfig())
    program.write_text(PROGRAM.format(resource="configmaps"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "listwatch.cli", "run", program, "--kubeconfig", kubeconfig),
        *("--leader-election", "test", "--log-format", "json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(50):
            assert process.stdout is not None
            assert await process.stdout.readline() == b"reconciled default/a\n"
            process.send_signal(signal.SIGTERM)
            _, errors = await process.communicate()
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [json.loads(line) for line in errors.splitlines()]
    assert "SIGTERM: stopping" in {line["message"] for line in lines}
    # A machine that stands still in the middle of a step is told of too.
    told = [line for line in lines if "held the event loop" not in line["message"]]
    assert all(line["level"] == "info" for line in told), told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("", "no Manager among its global names"),
        ("def make_app(**o): return 1", "make_app returned a int, not a Manager"),
        (
            "from listwatch.runtime import Manager\na, b = Manager(), Manager()",
            "2 Managers among its global names",
        ),
    ],
)
def test_a_file_without_one_program_is_a_clear_error(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "program.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_app(path)


@pytest.mark.parametrize(
    ("text", "frames", "last"),
    [
        ("x =", 1, "SyntaxError: invalid syntax"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError: division by zero"),
        ("import nosuchmodule", 1, "ModuleNotFoundError: No module named 'nosuchmodule'"),
    ],
)
@pytest.mark.parametrize("command", ["run", "rbac"])
def test_a_program_that_fails_shows_the_traceback_of_its_own_code(
    tmp_path: Path, command: str, text: str, frames: int, last: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(text)
    done = listwatch(command, str(path), KUBECONFIG=str(_kubeconfig(tmp_path)))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert [line for line in lines if "File " in line] == [
        line for line in lines if f'File "{path}", line' in line
    ]
    assert sum("File " in line for line in lines) == frames
    assert lines[-1] == last


def _kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "{contexts: [{name: c, context: {cluster: c}}], current-context: c,"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]}"
    )
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "/no/such.py"), 2, "File '/no/such.py' does not exist"),
        (("rbac", "/no/such.py"), 2, "File '/no/such.py' does not exist"),
        (("new", "Bad Name"), 2, "error: 'Bad Name' is not a resource name"),
        (("new", "x", "--directory", "/proc/x"), 1, "'/proc/x'"),
    ],
)
def test_what_can_not_be_used_is_told_in_words(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = listwatch(*arguments)
    assert done.returncode == code
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_run_takes_an_election_or_none(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("")
    result = CliRunner().invoke(
        run_command, [str(path), "--leader-election", "a", "--no-leader-election"]
    )
    assert result.exit_code == 2
    assert "not both" in result.output


def test_a_resource_without_its_group_is_told(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(resource="deployments"))
    result = CliRunner().invoke(rbac_command, [str(path)])
    assert "'deployments' is not a resource of the core group" in str(result.exception)


def test_rbac_prints_what_a_program_needs(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(resource="jobs.v1.batch"))
    result = CliRunner().invoke(rbac_command, [str(path), "-n", "jobs"])
    objects = list(yaml.safe_load_all(result.output))
    assert [obj["kind"] for obj in objects] == ["ServiceAccount", "Role", "RoleBinding"]
    assert objects[1]["metadata"]["namespace"] == "default"
    assert objects[1]["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]


def test_a_line_of_the_json_log_is_one_object_with_its_traceback() -> None:
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "no %s", ("luck",), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["message"]) == ("error", "no luck")
    assert "ZeroDivisionError" in line["error"]


FORGED = "pod \x1b[2J\u202ea\n2026-01-01 12:00:00,000 INFO    x: forged\x85\u2028\x00"


@pytest.mark.parametrize("form", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_no_text_of_a_server_drives_a_terminal_or_forges_a_line_of_the_log(
    form: logging.Formatter,
) -> None:
    error = RuntimeError(FORGED)
    caught = (RuntimeError, error, None)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed: %s", (FORGED,), caught)
    first, *rest = form.format(record).splitlines()
    assert (first + "".join(rest)).isprintable()
    assert "failed: pod " in first
    assert all(line.startswith("    ") for line in rest)
    if isinstance(form, JsonFormatter):
        assert not rest
        assert "\n" not in json.loads(first)["message"]
