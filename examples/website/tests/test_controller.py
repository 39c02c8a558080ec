"""The controller against an API server in this process."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from listwatch import (
    AlreadyExistsError,
    Client,
    ConflictError,
    DisconnectedError,
    InvalidError,
    Manager,
    NotFoundError,
    Object,
)
from listwatch.resources import definition
from listwatch.runtime import ManagerError, load_app
from listwatch.testing import APIServer, eventually
from website_types import Website, WebsiteV1Alpha1

CONTROLLER = Path(__file__).parent.parent / "controller.py"
T = TypeVar("T")

# The controller has only the rights that it declares; a missing one fails the test.
pytestmark = pytest.mark.apiserver(rbac=CONTROLLER)


def app_for(server: APIServer) -> Manager:
    return load_app(CONTROLLER, config=server.config)


@pytest.fixture
async def server(apiserver: APIServer, client: Client) -> APIServer:
    _ = await client.create(definition(Website, WebsiteV1Alpha1))
    return apiserver


def website(name: str = "shop", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "nginx:1", **spec},
    }


async def until(condition: Callable[[], Awaitable[T]]) -> T:
    """Return the first true result, while objects may be missing and the server may restart."""
    return await eventually(condition, ignoring=(NotFoundError, DisconnectedError))


async def deployment(client: Client, name: str = "shop") -> Object:
    return await client.get("deployments.apps", name, "default")


async def condition(client: Client, name: str = "shop") -> tuple[str, str] | None:
    found = (await client.get("websites.example.com", name, "default")).to_dict()
    conditions = found.get("status", {}).get("conditions", [])
    return (conditions[0]["status"], conditions[0]["message"]) if conditions else None


async def test_a_website_becomes_a_deployment_and_its_status_follows(
    server: APIServer, client: Client
) -> None:
    async with app_for(server):
        owner = await client.create(website(replicas=2))
        made = await until(lambda: deployment(client))
        assert made["spec"]["replicas"] == 2
        assert [ref.uid for ref in made.meta.owner_references] == [owner.uid]
        await until(lambda: condition(client))
        assert await condition(client) == ("False", "0 of 2 replicas are ready")

        await client.patch(
            "deployments.apps",
            "shop",
            {"status": {"replicas": 2, "readyReplicas": 2}},
            "default",
            subresource="status",
        )

        async def is_ready() -> bool:
            return await condition(client) == ("True", "2 of 2 replicas are ready")

        await until(is_ready)


async def test_a_change_or_a_deletion_of_the_deployment_is_undone(
    server: APIServer, client: Client
) -> None:
    async with app_for(server):
        await client.create(website(replicas=2))
        first = await until(lambda: deployment(client))
        await client.patch("deployments.apps", "shop", {"spec": {"replicas": 7}}, "default")

        async def is_two() -> bool:
            return bool((await deployment(client))["spec"]["replicas"] == 2)

        await until(is_two)
        await client.delete("deployments.apps", "shop", "default")

        async def is_new() -> bool:
            return bool((await deployment(client)).uid != first.uid)

        await until(is_new)


async def test_what_changed_while_the_controller_was_away_is_done_when_it_is_back(
    server: APIServer, client: Client
) -> None:
    async with app_for(server):
        await client.create(website())
        await until(lambda: deployment(client))
    await client.patch("websites.example.com", "shop", {"spec": {"replicas": 5}}, "default")
    await client.create(website("blog"))
    async with app_for(server):

        async def is_five() -> bool:
            return bool((await deployment(client))["spec"]["replicas"] == 5)

        await until(is_five)
        await until(lambda: deployment(client, "blog"))


async def test_a_restart_of_the_server_is_survived(server: APIServer, client: Client) -> None:
    async with app_for(server):
        await client.create(website())
        await until(lambda: deployment(client))
        server.restart(downtime=0.2)

        async def is_created() -> bool:
            with contextlib.suppress(AlreadyExistsError):  # the response was lost
                await client.create(website("blog"))
            return True

        await until(is_created)
        await until(lambda: deployment(client, "blog"))


async def test_conflicts_are_got_over(server: APIServer, client: Client) -> None:
    async with app_for(server):
        await client.create(website(replicas=1))
        written = 1
        for replicas in range(2, 12):
            # Another client writes the object at the same time, and may come first again and again.
            with contextlib.suppress(ConflictError):
                await client.patch(
                    "websites.example.com",
                    "shop",
                    {
                        "metadata": {"annotations": {"n": str(replicas)}},
                        "spec": {"replicas": replicas},
                    },
                    "default",
                )
                written = replicas

        async def is_done() -> bool:
            return await condition(client) == ("False", f"0 of {written} replicas are ready")

        await until(is_done)


async def test_a_deleted_website_is_cleaned_up_and_goes_with_its_deployment(
    server: APIServer, client: Client
) -> None:
    async with app_for(server):
        await client.create(website())
        await until(lambda: condition(client))
        made = await client.get("websites.example.com", "shop", "default")
        assert made.meta.finalizers == ("example.com/website",)
        await client.delete("websites.example.com", "shop", "default")

        async def is_gone() -> bool:
            found = await client.list("websites.example.com", "default")
            left = await client.list("deployments.apps", "default")
            return not found.items and not left.items

        await until(is_gone)

        async def reasons() -> bool:
            events = (await client.list("events.events.k8s.io", "default")).items
            return "CleanedUp" in {event["reason"] for event in events}

        await until(reasons)


@pytest.mark.usefixtures("server")
async def test_a_website_that_can_not_be_is_refused_by_the_server(client: Client) -> None:
    with pytest.raises(InvalidError, match=r"spec\.replicas"):
        await client.create(website(replicas=-1))


async def test_a_controller_that_loses_its_lease_stops_and_another_goes_on(
    server: APIServer, client: Client
) -> None:
    async def lose() -> None:
        async with app_for(server):
            await client.create(website())
            await until(lambda: deployment(client))
            # Another process takes the lease, as if this one had failed to renew it.
            await client.patch(
                "leases.coordination.k8s.io",
                "website-controller",
                {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 1}},
                "website-controller",
            )
            await asyncio.Event().wait()

    with pytest.raises(ManagerError, match="leadership failed"):
        await lose()
    async with app_for(server):
        await client.create(website("blog"))
        await until(lambda: deployment(client, "blog"))
