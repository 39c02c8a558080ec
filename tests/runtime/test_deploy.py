"""The manifests that the project ships, on the embedded API server."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import components
from kubeconfigs import write_bearer
from listwatch.apiserver.http.tls import generated_tls
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.apiserver.user import User
from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.errors import BadRequestError
from listwatch.testing.waiting import eventually
from listwatch.version import __version__

ROOT = Path(__file__).parent.parent.parent
IMAGE = ROOT / "deploy/image/kustomization.yaml"
OURS = sorted({*ROOT.glob("deploy/*/kustomization.yaml")} - {IMAGE})
KUSTOMIZATIONS = sorted([*OURS, *ROOT.glob("examples/*/deploy/kustomization.yaml")])


def objects(kustomization: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization, in the order of its resources."""
    names = yaml.safe_load(kustomization.read_text())["resources"]
    return [
        obj
        for name in names
        for obj in yaml.safe_load_all((kustomization.parent / name).read_text())
    ]


async def create_strictly(client: Client, obj: dict[str, Any]) -> None:
    """Create an object; unknown fields are errors."""
    resource = await client.discovery.for_kind(obj["apiVersion"], obj["kind"])
    path = resource.path(obj["metadata"].get("namespace", "") if resource.namespaced else "")
    query = [("fieldValidation", "Strict")]
    _ = await client.http.request("POST", path, query, body=msgspec.json.encode(obj))


@pytest.mark.proof
@pytest.mark.needs("kubectl-1.34")
@pytest.mark.parametrize("kustomization", OURS, ids=lambda path: path.parent.name)
def test_one_file_sets_the_image_of_all_programs(kustomization: Path) -> None:
    done = subprocess.run(
        [components.path("kubectl-1.34"), "kustomize", str(kustomization.parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    images = [
        container["image"]
        for obj in yaml.safe_load_all(done.stdout)
        if obj["kind"] == "Deployment"
        for container in obj["spec"]["template"]["spec"]["containers"]
    ]
    assert images == [f"listwatch:{__version__}"]


@pytest.mark.parametrize(
    "kustomization", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(ROOT))
)
async def test_every_manifest_is_what_a_server_takes(client: Client, kustomization: Path) -> None:
    for obj in objects(kustomization):
        await create_strictly(client, obj)
    (deployment,) = [obj for obj in objects(kustomization) if obj["kind"] == "Deployment"]
    template = deployment["spec"]["template"]["spec"]
    assert template["securityContext"]["runAsNonRoot"] is True
    accounts = [obj for obj in objects(kustomization) if obj["kind"] == "ServiceAccount"]
    assert [account["metadata"]["name"] for account in accounts] == [template["serviceAccountName"]]
    for container in template["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


async def test_a_field_that_is_misspelt_would_be_found(client: Client) -> None:
    wrong = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "default"},
        "dta": {},
    }
    with pytest.raises(BadRequestError, match="dta"):
        await create_strictly(client, wrong)


async def test_observe_runs_with_the_rights_of_its_manifest(tmp_path: Path) -> None:
    account = "system:serviceaccount:listwatch-observe:observe"
    tokens = {
        "observe": User(account, ("system:serviceaccounts", "system:authenticated")),
        "root": User("root", ("system:masters",)),
    }
    async with (
        EmbeddedAPIServer(tokens=tokens, tls=generated_tls("127.0.0.1")) as server,
        Client(load_config(write_bearer(tmp_path / "root", server.kubeconfig(), "root"))) as root,
    ):
        for obj in objects(ROOT / "deploy/observe/kustomization.yaml"):
            await create_strictly(root, obj)
        kubeconfig = write_bearer(tmp_path / "kubeconfig", server.kubeconfig(), next(iter(tokens)))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "listwatch.cli", "observe", "services", "--all-namespaces"),
            *("--kubeconfig", kubeconfig, "--once", f"--state={tmp_path / 'state'}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(50):
            output, _ = await process.communicate()
        assert process.returncode == 0, output


BUILDS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "builds.build.openshift.io"},
    "spec": {
        "group": "build.openshift.io",
        "scope": "Namespaced",
        "names": {"kind": "Build", "plural": "builds", "singular": "build"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.mark.parametrize("name", ["build-controllers", "service-controller"])
async def test_a_controller_runs_with_the_rights_of_its_manifest(name: str, tmp_path: Path) -> None:
    """It leads and works, and the server refuses nothing."""
    tokens = {
        "controller": User(
            f"system:serviceaccount:listwatch-{name}:{name}",
            ("system:serviceaccounts", "system:authenticated"),
        ),
        "root": User("root", ("system:masters",)),
    }
    async with (
        EmbeddedAPIServer(tokens=tokens, tls=generated_tls("127.0.0.1")) as server,
        Client(load_config(write_bearer(tmp_path / "root", server.kubeconfig(), "root"))) as root,
    ):
        await create_strictly(root, BUILDS)
        for obj in objects(ROOT / f"deploy/{name}/kustomization.yaml"):
            await create_strictly(root, obj)
        (deployment,) = [
            obj
            for obj in objects(ROOT / f"deploy/{name}/kustomization.yaml")
            if obj["kind"] == "Deployment"
        ]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        arguments = [
            argument.replace("$(HOST_IP)", "127.0.77.1").replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - the pod's own option
            for argument in container["args"]
            if not argument.startswith("--health-port")
        ]
        kubeconfig = write_bearer(tmp_path / "kubeconfig", server.kubeconfig(), next(iter(tokens)))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "listwatch.cli", *arguments, "--kubeconfig", kubeconfig),
            *("--lease-namespace", f"listwatch-{name}"),
            *MORE_ARGUMENTS[name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(50):
                await WORK[name](root)
        finally:
            process.terminate()
            output, _ = await process.communicate()
        assert b"forbidden" not in output.lower(), output
        assert process.returncode == 0, output


async def _end_a_build(root: Client) -> None:
    """Check that a build ends without its pod, and that a pod goes with its build."""
    meta = {"name": "b", "namespace": "default"}
    build = {
        "apiVersion": "build.openshift.io/v1",
        "kind": "Build",
        "metadata": meta,
        "status": {"phase": "Running"},
    }
    _ = await root.create(build)
    _ = await root.patch(
        "builds", "b", {"status": {"phase": "Running"}}, "default", subresource="status"
    )
    labels = {"openshift.io/build.name": "b"}
    pod_meta = {
        "name": "b-build",
        "namespace": "default",
        "labels": labels,
        "annotations": {"openshift.io/build.name": "b"},
    }
    spec = {"containers": [{"name": "c", "image": "i"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": spec}
    _ = await root.create(pod)
    _ = await root.delete("pods", "b-build", "default", grace_period_seconds=0)

    async def has_ended() -> bool:
        status = (await root.get("builds", "b", "default")).to_dict()["status"]
        return bool(status["phase"] == "Error")

    await eventually(has_ended, seconds=45)


async def _balance_a_load(root: Client) -> None:
    """Check that a LoadBalancer service gets an address, and goes when it is deleted."""
    spec = {"type": "LoadBalancer", "ports": [{"port": 18480}], "selector": {"app": "x"}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": spec,
    }
    _ = await root.create(service)

    async def has_address() -> bool:
        status = (await root.get("services", "s", "default")).to_dict()["status"]
        return bool(status.get("loadBalancer"))

    async def is_gone() -> bool:
        found = (await root.list("services", "default")).items
        return "s" not in {obj.name for obj in found}

    await eventually(has_address, seconds=45)
    _ = await root.delete("services", "s", "default")
    await eventually(is_gone, seconds=45)


# A later list finds deletions before the first one.
MORE_ARGUMENTS = {"build-controllers": ["--relist-period", "1"], "service-controller": []}
WORK = {"build-controllers": _end_a_build, "service-controller": _balance_a_load}
