"""The controller in simulated worlds, in which replies are lost, watches lag and processes die."""

from collections.abc import Callable
from pathlib import Path

import pytest

from listwatch.resources import ObjectMeta, definition, manifest_of
from listwatch.simulation import World
from website_types import Website, WebsiteSpec

CONTROLLER = Path(__file__).parent.parent / "controller.py"


async def scenario(world: World) -> None:
    """Do what a user of the controller does."""
    await world.create(definition(Website))
    website = Website(ObjectMeta(name="shop", namespace="default"), WebsiteSpec("nginx:1"))
    await world.create(manifest_of(website))
    await world.settle()
    await world.change("websites.example.com", "shop", {"spec": {"replicas": 3}})
    await world.settle()
    await world.delete("websites.example.com", "shop")
    await world.settle()


@pytest.mark.simulation(worlds=25)
def test_faults_leave_nothing_wrong(simulate: Callable[..., object]) -> None:
    simulate(f"{CONTROLLER}:without_webhooks", scenario)
