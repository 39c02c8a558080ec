"""`listwatch build-controllers` with an API server, and builds as a custom resource."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from controllers.build_cluster import build, build_pod
from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.errors import NotFoundError, UnknownResourceError
from listwatch.testing.waiting import eventually
from processes import api_server, listwatch, running

BUILDS = "builds.build.openshift.io"


def definition(*, status: bool) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
    }
    if status:
        version["subresources"] = {"status": {}}
    return {
        "kind": "CustomResourceDefinition",
        "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": BUILDS},
        "spec": {
            "group": "build.openshift.io",
            "scope": "Namespaced",
            "names": {"plural": "builds", "singular": "build", "kind": "Build"},
            "versions": [version],
        },
    }


async def make(client: Client, name: str, *, pod: bool) -> None:
    value = build(name)
    del value["metadata"]["uid"], value["metadata"]["creationTimestamp"]
    made = await client.create(value, resource=BUILDS)
    resource = await client.discovery.find(BUILDS)
    if "status" in resource.subresources:
        await client.patch(
            BUILDS, name, {"status": {"phase": "Running"}}, "ci", subresource="status"
        )
    if pod:
        value = build_pod(name, owner=made.uid)
        del value["metadata"]["uid"], value["metadata"]["creationTimestamp"]
        value["spec"] = {"containers": [{"name": "c", "image": "i"}]}
        await client.create(value)


@pytest.mark.parametrize("status", [False, True], ids=["whole", "status subresource"])
async def test_deletions_before_and_during_its_run_are_handled(
    tmp_path: Path, status: bool
) -> None:
    with api_server(tmp_path, "--no-controllers") as kubeconfig:
        async with Client.from_config(load_config(kubeconfig)) as client:
            await client.create(definition(status=status))
            await client.create(
                {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "ci"}}
            )

            async def served() -> bool:
                try:
                    await client.list(BUILDS, "ci")
                except (UnknownResourceError, NotFoundError):
                    return False
                return True

            await eventually(served)
            await make(client, "lost-its-pod", pod=False)
            await make(client, "runs", pod=True)
            await make(client, "goes", pod=True)

            async def phase(name: str) -> str:
                return str((await client.get(BUILDS, name, "ci"))["status"]["phase"])

            async def lost() -> bool:
                return await phase("lost-its-pod") == "Error"

            async def failed() -> bool:
                return await phase("runs") == "Error"

            async def pod_is_gone() -> bool:
                try:
                    pod = await client.get("pods", "goes-build", "ci")
                except NotFoundError:
                    return True
                return pod.meta.deletion_timestamp is not None

            async def event_is_there() -> bool:
                events = await client.list("events.v1.", "ci")
                return any(event["reason"] == "BuildFailed" for event in events.items)

            with running(
                "build-controllers", "--kubeconfig", str(kubeconfig), "--no-leader-elect"
            ) as program:
                await eventually(lost, seconds=45)
                await client.delete("pods", "runs-build", "ci", grace_period_seconds=0)
                await eventually(failed, seconds=45)
                await client.delete(BUILDS, "goes", "ci")
                await eventually(pod_is_gone, seconds=45)
                await eventually(event_is_there, seconds=45)
                program.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(program.wait) == 0, program.err


def test_a_kubeconfig_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = listwatch("build-controllers", "--kubeconfig", str(tmp_path / "missing"))
    assert result.returncode == 3
    assert len(result.stderr.splitlines()) == 1
