"""Running pods, in every form of the server in `listwatch.testing`."""

from typing import Any

import pytest

from listwatch import sync
from listwatch.errors import ConfigError
from listwatch.testing import APIServer, FakeClock, Workloads, eventually

DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "web:1"}]},
        },
    },
}


async def test_a_deployment_gets_ready_and_unready() -> None:
    async with APIServer(workloads=True) as server, server.client() as client:
        await client.create(DEPLOYMENT)

        async def ready() -> int:
            found = await client.get("deployments", "web", "default")
            return int(found["status"].get("readyReplicas", 0))

        async def all_ready() -> bool:
            return await ready() == 2

        async def none_ready() -> bool:
            return await ready() == 0

        await eventually(all_ready)
        server.fail_pods("CrashLoopBackOff", selector="app=web")
        await eventually(none_ready)


async def test_time_is_that_of_the_clock() -> None:
    clock = FakeClock()
    options = Workloads(start_seconds=3600)
    async with APIServer(workloads=options, clock=clock) as server, server.client() as client:
        await client.create(DEPLOYMENT)

        async def running() -> bool:
            pods = (await client.list("pods", "default")).items
            return [pod["status"]["phase"] for pod in pods] == ["Running"] * 2

        begun = clock.now()
        await clock.advance(3599)
        assert not await running()
        await eventually(running, clock=clock)
        assert clock.now() - begun == pytest.approx(3600, abs=0.1)


def test_in_a_process_of_its_own_pods_run_and_fail_too() -> None:
    options = Workloads(nodes=2, run_seconds=0.5)
    with APIServer(subprocess=True, workloads=options) as server:
        with sync.connect(server.config) as connection:
            nodes = connection.informer("nodes")
            nodes.wait_for_sync()
            assert sorted(node.name for node in nodes.lister.list()) == ["node-0", "node-1"]
        server.fail_pods("Evicted", namespace="default", times=1)
        server.heal_pods()
        server.lose_node("node-1")
        server.recover_node("node-1")
        with pytest.raises(ValueError, match="no such node: node-9"):
            server.lose_node("node-9")
        with pytest.raises(ValueError, match="no such failure: Tired"):
            server.fail_pods("Tired")


async def test_a_server_that_runs_no_pods_says_so() -> None:
    async with APIServer() as server:
        with pytest.raises(ValueError, match="make it with workloads=True"):
            server.fail_pods("Evicted")


def test_another_process_can_not_have_the_clock_of_this_one() -> None:
    with pytest.raises(ConfigError, match="uses that process's clock"):
        APIServer(subprocess=True, clock=FakeClock())


@pytest.mark.parametrize("name", ["nodes", "start_seconds", "back_off_seconds"])
def test_a_negative_option_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: -1 is negative$"):
        Workloads(**{name: -1})
