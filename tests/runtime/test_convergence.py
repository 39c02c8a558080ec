"""The example controller on a server that fails many requests."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from listwatch.client.client import Client
from listwatch.runtime import load_app
from listwatch.testing import APIServer, Fault, eventually

WEBSITE = Path(__file__).parent.parent.parent / "examples/website"

FAULTS = [
    Fault(user_agent="faulty*", verb="patch", status=500, times=0, probability=0.05),
    Fault(user_agent="faulty*", verb="patch", status=409, times=0, probability=0.05),
    Fault(user_agent="faulty*", verb="patch", drop=True, times=0, probability=0.05),
    Fault(user_agent="faulty*", verb="patch", cut=20, times=0, probability=0.05),
    Fault(user_agent="faulty*", verb="watch", after=5, cut_event=True, times=0, probability=0.2),
    Fault(user_agent="faulty*", verb="watch", after=5, error_event=410, times=0, probability=0.1),
    Fault(user_agent="faulty*", verb="create", status=503, times=0, probability=0.1),
]


def website(name: str, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "nginx:1", "replicas": replicas},
    }


async def deployments(client: Client) -> dict[str, int]:
    found = (await client.list("deployments.apps", "default")).items
    return {obj.name: obj["spec"]["replicas"] for obj in found}


async def until_equal(client: Client, wanted: dict[str, int]) -> None:
    async def is_equal() -> bool:
        return await deployments(client) == wanted

    await eventually(is_equal, seconds=90)


@pytest.mark.timeout(280)
async def test_a_controller_converges_although_many_requests_go_wrong() -> None:
    """Writes fail before or after they take effect; watches break and expire."""
    async with APIServer(seed=7) as apiserver, apiserver.client() as client:
        await _converge(apiserver, client)


async def _converge(apiserver: APIServer, client: Client) -> None:
    _ = await client.create(yaml.safe_load((WEBSITE / "deploy/crds.yaml").read_text()))
    apiserver.add_faults(*FAULTS)
    config = msgspec.structs.replace(apiserver.config, user_agent="faulty")
    app = load_app(WEBSITE / "controller.py", config=config, leader_election="")
    wanted: dict[str, int] = {}
    async with app:
        for number in range(30):
            name = f"site-{number}"
            wanted[name] = number % 5
            _ = await client.create(website(name, number % 5))
        await until_equal(client, wanted)
        for number in range(0, 30, 2):
            wanted[f"site-{number}"] = 7
            patch = {"spec": {"replicas": 7}}
            _ = await client.patch("websites.example.com", f"site-{number}", patch, "default")
        await until_equal(client, wanted)
        for number in range(0, 30, 3):
            del wanted[f"site-{number}"]
            _ = await client.delete("websites.example.com", f"site-{number}", "default")
        await until_equal(client, wanted)
        statistics = app.reconcilers[0].statistics()
    assert apiserver.fault_hits > 20
    assert statistics.errors > 0
    # No hot loop: failures were retried after a delay.
    assert statistics.duration.count < 3000
