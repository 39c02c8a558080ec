"""The real helm installs, upgrades, rolls back and uninstalls a release on the server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import components

pytestmark = [pytest.mark.proof, pytest.mark.needs("helm", "kubectl-1.34")]

_CHART = """
apiVersion: v2
name: web
version: 1.0.0
"""
_VALUES = """
replicas: 2
colour: red
"""
_TEMPLATES = {
    "deployment.yaml": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ .Release.Name }}"}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: "{{ .Release.Name }}"}}
  template:
    metadata: {labels: {app: "{{ .Release.Name }}"}}
    spec:
      containers:
      - {name: web, image: "registry.example/web:1"}
""",
    "service.yaml": """
apiVersion: v1
kind: Service
metadata: {name: "{{ .Release.Name }}"}
spec:
  selector: {app: "{{ .Release.Name }}"}
  ports: [{port: 80}]
""",
    "settings.yaml": """
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-settings"}
data: {colour: "{{ .Values.colour }}"}
""",
    "optional.yaml": """
{{- if eq .Values.colour "red" }}
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-red"}
{{- end }}
""",
    "hook.yaml": """
apiVersion: v1
kind: ConfigMap
metadata:
  name: "{{ .Release.Name }}-before"
  annotations: {helm.sh/hook: pre-install}
""",
}
_WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""


class Helm:
    """Run helm on one chart and one server, with its own home directory."""

    def __init__(self, home: Path, kubeconfig: Path) -> None:
        self.chart = home / "web"
        (self.chart / "templates").mkdir(parents=True)
        (self.chart / "crds").mkdir()
        (self.chart / "Chart.yaml").write_text(_CHART)
        (self.chart / "values.yaml").write_text(_VALUES)
        (self.chart / "crds" / "widgets.yaml").write_text(_WIDGETS)
        for name, text in _TEMPLATES.items():
            (self.chart / "templates" / name).write_text(text)
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
        }

    def __call__(self, line: str, code: int = 0) -> str:
        """Run a command, in which `@` is the chart, and return its output."""
        arguments = [str(self.chart) if word == "@" else word for word in line.split()]
        return self._run("helm", *arguments, code=code)

    def kubectl(self, line: str, code: int = 0) -> str:
        return self._run("kubectl-1.34", *line.split(), code=code)

    def _run(self, program: str, *arguments: str, code: int) -> str:
        done = subprocess.run(
            [components.path(program), *arguments],
            env=self._env, text=True, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stdout + done.stderr

    def colour(self, release: str) -> str:
        return self.kubectl(f"get configmap {release}-settings -o jsonpath={{.data.colour}}")

    def releases(self, line: str = "list -o json") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self(line))
        return found


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    home = tmp_path_factory.mktemp("helm")
    config = home / "kubeconfig"
    with subprocess.Popen(
        [sys.executable, "-m", "listwatch.cli", "apiserver", "--kubeconfig", str(config)],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("listening on ")
        yield Helm(home, config)
        server.terminate()
        assert server.wait(50) == 0


def test_a_release_is_installed_with_its_definitions_and_hooks(helm: Helm) -> None:
    assert "STATUS: deployed" in helm("install first @")
    assert helm.kubectl("get deployment first -o jsonpath={.spec.replicas}") == "2"
    assert helm.colour("first") == "red"
    assert helm.kubectl("get configmap first-before -o name") == "configmap/first-before\n"
    assert helm.kubectl("get widgets") == ""
    (release,) = [each for each in helm.releases() if each["name"] == "first"]
    assert (release["status"], release["revision"]) == ("deployed", "1")
    assert "cannot reuse a name" in helm("install first @", code=1)


def test_an_upgrade_changes_what_differs_and_removes_what_is_gone(helm: Helm) -> None:
    helm("install second @")
    helm("upgrade second @ --set colour=blue --set replicas=5")
    assert helm.colour("second") == "blue"
    assert helm.kubectl("get deployment second -o jsonpath={.spec.replicas}") == "5"
    assert "NotFound" in helm.kubectl("get configmap second-red", code=1)
    assert "colour: blue" in helm("get values second")


def test_a_rollback_restores_what_an_earlier_revision_had(helm: Helm) -> None:
    helm("install third @")
    helm("upgrade third @ --set colour=blue")
    helm("rollback third 1")
    assert helm.colour("third") == "red"
    assert helm.kubectl("get configmap third-red -o name") == "configmap/third-red\n"
    history = helm.releases("history third -o json")
    assert [each["status"] for each in history] == ["superseded", "superseded", "deployed"]


def test_what_was_changed_by_hand_is_put_right_by_an_upgrade(helm: Helm) -> None:
    helm("install fourth @")
    helm.kubectl("scale deployment fourth --replicas=9")
    helm("upgrade fourth @ --force-conflicts")
    assert helm.kubectl("get deployment fourth -o jsonpath={.spec.replicas}") == "2"


def test_a_dry_run_on_the_server_changes_nothing(helm: Helm) -> None:
    assert "replicas: 7" in helm("install fifth @ --dry-run=server --set replicas=7")
    assert "NotFound" in helm.kubectl("get deployment fifth", code=1)
    assert [each for each in helm.releases() if each["name"] == "fifth"] == []


def test_what_the_server_refuses_is_told_and_fails_the_release(helm: Helm) -> None:
    refused = helm("install sixth @ --set replicas=-1", code=1)
    assert "spec.replicas" in refused
    assert "must be greater than or equal to 0" in refused


def test_an_uninstalled_release_leaves_nothing_but_its_definitions(helm: Helm) -> None:
    helm("install seventh @")
    helm("uninstall seventh --wait")
    for kind in ("deployment/seventh", "service/seventh", "configmap/seventh-settings"):
        assert "NotFound" in helm.kubectl(f"get {kind}", code=1)
    assert helm.kubectl("get crd widgets.example.com -o name").strip().endswith("example.com")
    assert [each for each in helm.releases() if each["name"] == "seventh"] == []
