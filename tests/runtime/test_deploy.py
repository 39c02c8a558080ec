"""The manifests that the project ships, on the embedded API server."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from listwatch.apiserver.call import User
from listwatch.apiserver.server import APIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.errors import BadRequestError

ROOT = Path(__file__).parent.parent.parent
KUSTOMIZATIONS = sorted(
    [*ROOT.glob("deploy/*/kustomization.yaml"), *ROOT.glob("examples/*/deploy/kustomization.yaml")]
)


def objects(kustomization: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization, in the order of its resources."""
    names = yaml.safe_load(kustomization.read_text())["resources"]
    return [
        obj
        for name in names
        for obj in yaml.safe_load_all((kustomization.parent / name).read_text())
    ]


async def create_strictly(client: Client, obj: dict[str, Any]) -> None:
    """Create an object, with an error for every field that its type does not have."""
    resource = await client.discovery.for_kind(obj["apiVersion"], obj["kind"])
    path = resource.path(obj["metadata"].get("namespace", "") if resource.namespaced else "")
    query = [("fieldValidation", "Strict")]
    _ = await client.http.request("POST", path, query, body=msgspec.json.encode(obj))


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
        APIServer(tokens=tokens) as server,
        Client(Config(server=server.url, token="root")) as root,
    ):
        for obj in objects(ROOT / "deploy/observe/kustomization.yaml"):
            await create_strictly(root, obj)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())  # of the first token
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "listwatch.cli", "observe", "services", "--all-namespaces"),
            *("--kubeconfig", kubeconfig, "--once", f"--state={tmp_path / 'state'}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(20):
            output, _ = await process.communicate()
        assert process.returncode == 0, output
