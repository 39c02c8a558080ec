"""`listwatch manifests`: what it prints and writes, and what it refuses."""

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from listwatch.client.client import Client
from listwatch.errors import ConfigError
from listwatch.runtime.packaging.commands import manifests_command, rbac_command
from listwatch.runtime.packaging.files import write_generated
from runtime.packaging.packaged_program import make, write_program


def objects(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def of_kind(text: str, kind: str) -> dict[str, Any]:
    (found,) = [obj for obj in objects(text) if obj["kind"] == kind]
    return found


def files(directory: Path) -> dict[str, bytes]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


async def test_a_server_accepts_every_object_strictly_and_in_order(
    client: Client, tmp_path: Path
) -> None:
    done = await asyncio.to_thread(make, write_program(tmp_path))
    made = objects(done.stdout)
    kinds = [obj["kind"] for obj in made]
    assert kinds[0] == "Namespace"
    assert kinds[-4:] == [
        "Service",
        "Deployment",
        "PodDisruptionBudget",
        "ValidatingWebhookConfiguration",
    ]
    settings = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "settings"}}
    for obj in [settings, *made]:
        resource = await client.discovery.for_kind(obj["apiVersion"], obj["kind"])
        path = resource.path(obj["metadata"].get("namespace", "") if resource.namespaced else "")
        query = [("fieldValidation", "Strict")]
        await client.http.request("POST", path, query, body=msgspec.json.encode(obj))
    for obj in made:
        assert obj["metadata"]["labels"]["app.kubernetes.io/name"] == "web"


def test_the_same_program_makes_the_same_bytes_and_printing_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = write_program(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    first = make(program)
    assert make(program).stdout == first.stdout
    assert "its own output" in first.stderr
    assert {name for name in files(tmp_path) if "__pycache__" not in name} == set(before)
    for form in ((), ("--helm",)):
        make(program, "-o", "one", *form)
        make(program, "-o", "two", *form)
        assert files(tmp_path / "one") == files(tmp_path / "two")


def test_what_is_printed_and_what_is_written_are_the_same_objects(tmp_path: Path) -> None:
    program = write_program(tmp_path)
    where = tmp_path / "deploy"
    written = make(program, "-o", str(where)).stdout.split()
    kustomization = yaml.safe_load((where / "kustomization.yaml").read_text())
    assert written == [f"{where}/{name}" for name in files_in_order(kustomization)]
    found = [
        obj for name in kustomization["resources"] for obj in objects((where / name).read_text())
    ]
    assert found == objects(make(program).stdout)


def files_in_order(kustomization: dict[str, Any]) -> list[str]:
    return [*kustomization["resources"], "kustomization.yaml"]


def test_options_set_what_differs_between_clusters(tmp_path: Path) -> None:
    options = "-n prod --image reg/web:2 --replicas 3 --leader-election x --service-monitor"
    text = make(write_program(tmp_path), *options.split(), "--watch-namespace", "a").stdout
    assert of_kind(text, "Namespace")["metadata"]["name"] == "prod"
    spec = of_kind(text, "Deployment")["spec"]
    assert spec["replicas"] == 3
    (container,) = spec["template"]["spec"]["containers"]
    assert container["image"] == "reg/web:2"
    assert container["command"] == ["listwatch", "run", "/app/controller.py"]
    assert container["args"][-2:] == ["--leader-election=x", "--namespace=a"]
    assert of_kind(text, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "metrics"
    roles = {obj["metadata"]["namespace"] for obj in objects(text) if obj["kind"] == "Role"}
    assert roles == {"prod", "a", "settings"}


def test_webhooks_get_a_port_a_service_and_configurations_that_the_program_does_not_own(
    tmp_path: Path,
) -> None:
    text = make(write_program(tmp_path), "-n", "prod").stdout
    configuration = of_kind(text, "ValidatingWebhookConfiguration")
    assert configuration["metadata"]["labels"] == {"app.kubernetes.io/name": "web"}
    (hook,) = configuration["webhooks"]
    assert hook["clientConfig"]["service"] == {
        "namespace": "prod",
        "name": "web",
        "path": "/validate/check",
        "port": 443,
    }
    (excluded,) = hook["namespaceSelector"]["matchExpressions"]
    assert (excluded["operator"], excluded["values"]) == ("NotIn", ["prod"])
    ports = {each["name"]: each for each in of_kind(text, "Service")["spec"]["ports"]}
    assert (ports["webhooks"]["port"], ports["webhooks"]["targetPort"]) == (443, "webhooks")
    (role,) = [obj for obj in objects(text) if obj["kind"] == "ClusterRole"]
    rules = [rule for rule in role["rules"] if "admissionregistration.k8s.io" in rule["apiGroups"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "update"}


def test_a_program_without_an_election_runs_once(tmp_path: Path) -> None:
    program = write_program(tmp_path, election="")
    spec = of_kind(make(program).stdout, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    done = make(program, "--replicas", "2", code=2)
    assert "2 pods of a program without leader election would work at the same time" in done.stderr
    elected = make(program, "--leader-election", "web").stdout
    assert of_kind(elected, "Deployment")["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--helm",), "--helm writes several files: give -o DIR"),
        (("--helm", "-o", "x", "-n", "y"), "are values of a chart"),
        (("--leader-election", "a", "--no-leader-election"), "not both"),
        (("--replicas", "-1"), "Invalid value for '--replicas'"),
    ],
)
def test_options_that_can_not_take_effect_are_told(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    assert words in make(write_program(tmp_path), *options, code=2).stderr


@pytest.mark.parametrize("namespace", ["Prod", "a.b", "a" * 64])
def test_a_namespace_that_no_server_accepts_is_told(tmp_path: Path, namespace: str) -> None:
    done = make(write_program(tmp_path), "-n", namespace, code=1)
    assert f"the namespace {namespace!r} can't be used: " in str(done.exception)


@pytest.mark.parametrize("name", ["shop.v2", "2shop", "a" * 64])
def test_a_name_of_which_a_server_refuses_a_service_is_told(tmp_path: Path, name: str) -> None:
    path = write_program(tmp_path)
    path.write_text(path.read_text().replace('"web"', f'"{name}"'))
    done = make(path, "-n", "prod", code=1)
    assert f"the Manager's name {name!r} can't name a Service: " in str(done.exception)


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_a_namespace_of_the_cluster_itself_stays_as_it_is(tmp_path: Path, namespace: str) -> None:
    made = make(write_program(tmp_path), "-n", namespace).stdout
    assert "Namespace" not in [obj["kind"] for obj in objects(made)]


@pytest.mark.parametrize("version", ["1", "1.2", "v1.2.3", "1.2.3 b", "01.2.3", ""])
def test_a_version_that_no_chart_can_have_is_told(tmp_path: Path, version: str) -> None:
    done = make(
        write_program(tmp_path),
        *("--helm", "-o", str(tmp_path / "chart"), "--chart-version", version),
        code=1,
    )
    assert f"{version!r} can't be the version of a chart" in str(done.exception)
    assert not (tmp_path / "chart").exists()


def test_a_description_with_a_word_that_stands_for_a_value_is_told(tmp_path: Path) -> None:
    path = write_program(tmp_path)
    path.write_text(path.read_text().replace("{{ braces }}", "a listwatch-value-image"))
    done = make(path, "--helm", "-o", str(tmp_path / "chart"), code=1)
    assert "change that description or default" in str(done.exception)


# --- Files ---


@pytest.mark.parametrize("change", ["replace", "edit"])
def test_files_of_others_stay_unless_asked(tmp_path: Path, change: str) -> None:
    write_generated(tmp_path, {"a.yaml": "a: 1\n", "b.yaml": "b: 1\n"})
    path = tmp_path / "b.yaml"
    path.write_text("mine\n" if change == "replace" else path.read_text() + "b: 2\n")
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=r"b\.yaml was not made by .*nothing was written"):
        write_generated(tmp_path, {"a.yaml": "a: 2\n", "b.yaml": "b: 3\n"})
    assert files(tmp_path) == before
    write_generated(tmp_path, {"a.yaml": "a: 2\n", "b.yaml": "b: 3\n"}, force=True)
    assert path.read_text().endswith("b: 3\n")


def test_own_files_are_made_anew_and_those_no_longer_made_go(tmp_path: Path) -> None:
    write_generated(tmp_path, {"t/a.yaml": "a: 1\n", "t/b.yaml": "b: 1\n", "t/c.yaml": "c: 1\n"})
    (tmp_path / "t/c.yaml").write_text("mine\n")
    write_generated(tmp_path, {"t/a.yaml": "a: 2\n"})
    assert sorted(files(tmp_path)) == ["t/a.yaml", "t/c.yaml"]
    assert (tmp_path / "t/a.yaml").read_text().endswith("a: 2\n")


def test_a_directory_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    done = make(write_program(tmp_path), "-o", "/proc/x", code=1)
    assert "/proc/x" in done.stderr


# --- Documentation ---


def test_every_option_that_the_page_names_exists_and_every_value_of_a_chart_is_named(
    tmp_path: Path,
) -> None:
    page = (Path(__file__).parents[3] / "docs/packaging.md").read_text(encoding="utf-8")
    options = {
        name
        for command in (manifests_command, rbac_command)
        for option in command.params
        for name in option.opts
    }
    elsewhere = {"--record-rbac", "--create-namespace", "--group"}
    assert set(re.findall(r"--[a-z][a-z-]+", page)) <= options | elsewhere
    make(write_program(tmp_path), "-o", str(tmp_path / "chart"), "--helm")
    values = yaml.safe_load((tmp_path / "chart/values.yaml").read_text())
    for name, value in values.items():
        inner = [name] if name == "resources" or not isinstance(value, dict) else []
        for path in inner or [f"{name}.{key}" for key in value]:
            assert f"`{path}`" in page
