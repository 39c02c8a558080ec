"""The real helm and kubectl on what `listwatch manifests` writes."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import components
from processes import api_server
from runtime.packaging.packaged_program import make, write_program

pytestmark = [pytest.mark.proof, pytest.mark.needs("helm", "kubectl-1.34")]


def run(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [components.path(program), *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def by_name(text: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj
        for obj in yaml.safe_load_all(text)
        if obj is not None
    }


def test_a_chart_with_its_default_values_has_the_objects_of_the_base(tmp_path: Path) -> None:
    program, chart = write_program(tmp_path), tmp_path / "chart"
    make(program, "-o", str(chart), "--helm", "--image", "reg:5000/web:2")
    run("helm", "lint", "--strict", str(chart), HOME=str(tmp_path))
    shown = run("helm", "template", "x", str(chart), "--namespace", "web", HOME=str(tmp_path))
    found = by_name(shown)
    base = by_name(make(program, "--image", "reg:5000/web:2").stdout)
    for key, wanted in base.items():
        if key[0] in {"Namespace", "Role", "RoleBinding"}:
            continue
        obj = found[key]
        obj["metadata"].pop("annotations", None)
        for each in obj["spec"]["template"]["spec"]["containers"] if key[0] == "Deployment" else ():
            assert each.pop("imagePullPolicy") == "IfNotPresent"
        assert obj == wanted
    assert ("Role", "web", "web-own") in found
    assert ("Role", "settings", "web") in found


def test_the_values_of_a_chart_take_effect(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    make(write_program(tmp_path), "-o", str(chart), "--helm")
    values = (
        "namespace=other,watchNamespaces={a,b},replicas=1,image.tag=3,serviceMonitor.enabled=true,"
        "crds.install=false,resources.limits.memory=1Gi"
    )
    found = by_name(run("helm", "template", "x", str(chart), "--set", values, HOME=str(tmp_path)))
    (deployment,) = [obj for (kind, *_), obj in found.items() if kind == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["metadata"]["namespace"] == "other"
    assert container["image"] == "web:3"
    assert container["args"][-2:] == ["--namespace=a", "--namespace=b"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    kinds = {kind for kind, *_ in found}
    assert "ServiceMonitor" in kinds
    assert not kinds & {"CustomResourceDefinition", "PodDisruptionBudget"}
    watched = found["Role", "a", "web-watched"]["rules"]
    (everywhere,) = [obj["rules"] for (kind, *_), obj in found.items() if kind == "ClusterRole"]
    assert found["Role", "b", "web-watched"]["rules"] == watched
    assert {"nodes"} == {
        each for rule in everywhere if "" in rule["apiGroups"] for each in rule["resources"]
    }
    subject = found["RoleBinding", "a", "web-watched"]["subjects"][0]
    assert subject == {"kind": "ServiceAccount", "name": "web", "namespace": "other"}


def test_helm_and_kubectl_install_it_on_a_server_and_again_after_a_change(tmp_path: Path) -> None:
    program, chart, base = write_program(tmp_path), tmp_path / "chart", tmp_path / "base"
    make(program, "-o", str(chart), "--helm")
    make(program, "-o", str(base))
    with api_server(tmp_path) as kubeconfig:
        places = {"HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig)}
        run("kubectl-1.34", "create", "namespace", "settings", **places)
        install = ("web", str(chart), "--namespace", "prod", "--create-namespace")
        assert "STATUS: deployed" in run("helm", "install", *install, **places)
        run("helm", "upgrade", "web", str(chart), "-n", "prod", "--set", "replicas=3", **places)
        get = ("get", "deployment", "web", "-n", "prod", "-o", "jsonpath={.spec.replicas}")
        assert run("kubectl-1.34", *get, **places) == "3"
        run("helm", "uninstall", "web", "-n", "prod", **places)
        run("kubectl-1.34", "get", "crd", "websites.example.com", **places)  # it stays
        run("kubectl-1.34", "apply", "-k", str(base), **places)
        again = run("kubectl-1.34", "apply", "-k", str(base), **places).splitlines()
        # kubectl always replaces the selector of a budget, on real servers too.
        changed = {line.partition(" ")[0] for line in again if not line.endswith(" unchanged")}
        assert changed == {"poddisruptionbudget.policy/web"}
        run(
            "kubectl-1.34", "apply", "--server-side", "--force-conflicts", "-k", str(base), **places
        )
