"""Two replicas of the controller against an API server in this process."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from listwatch import Client, Object
from listwatch.runtime import Manager, load_app
from listwatch.testing import APIServer, eventually

pytestmark = pytest.mark.asyncio


def app_for(apiserver: APIServer) -> Manager:
    path = Path(__file__).parent.parent / "controller.py"
    return load_app(path, config=apiserver.config)


def config_map(name: str, seconds: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"example.com/expire-after": seconds},
        },
    }


async def names(client: Client) -> set[str]:
    found = await client.list("configmaps", "default")
    return {obj.name for obj in found.items if "expire-after" in str(obj["metadata"])}


async def test_replicas_delete_what_has_expired_each_its_own_share(
    apiserver: APIServer, client: Client
) -> None:
    for number in range(20):
        _ = await client.create(config_map(f"soon-{number}", "0"))
    _ = await client.create(config_map("later", "3600"))
    _ = await client.create(config_map("wrong", "soon"))
    async with app_for(apiserver) as first, app_for(apiserver) as second:

        async def only_two_left() -> bool:
            return await names(client) == {"later", "wrong"}

        await eventually(only_two_left)

        async def both_share() -> bool:
            return all(len(app.members) == 2 for app in (first, second))

        await eventually(both_share)
        for number in range(20):
            _ = await client.create(config_map(f"more-{number}", "0"))
        await eventually(only_two_left)
        # A success counts after the deletion's response has arrived.
        apps = (first, second)
        await eventually(lambda: all(app.reconcilers[0].statistics().successes for app in apps))


async def test_nothing_is_deleted_before_its_time_and_everything_soon_after(
    apiserver: APIServer, client: Client
) -> None:
    made = (await client.create(config_map("brief", "2"))).to_dict()
    begin = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    async with app_for(apiserver):

        async def is_gone() -> bool:
            return not await names(client)

        await eventually(is_gone)
        lived = (datetime.now(UTC) - begin).total_seconds()
        assert lived >= 2

        async def is_told() -> bool:
            events = (await client.list("events", "default")).items
            told = [event.to_dict() for event in events if event["reason"] == "Expired"]
            about = [(event["involvedObject"]["name"], event["message"]) for event in told]
            return about == [("brief", "deleted after 2 s")]

        await eventually(is_told)


async def annotate(client: Client, name: str, seconds: str | None) -> None:
    changed = {"metadata": {"annotations": {"example.com/expire-after": seconds}}}
    _ = await client.patch("configmaps", name, changed, "default")


def two_seconds_from_now(obj: Object) -> str:
    """Return an annotation, counted from the creation, however long ago that is."""
    made = datetime.fromisoformat(obj["metadata"]["creationTimestamp"])
    return str(int((datetime.now(UTC) - made).total_seconds()) + 2)


async def test_the_annotation_of_the_moment_counts(apiserver: APIServer, client: Client) -> None:
    made = {
        name: await client.create(config_map(name, seconds))
        for name, seconds in (("sooner", "3600"), ("corrected", "soon"), ("never", "3600"))
    }
    async with app_for(apiserver) as app:
        await annotate(client, "never", two_seconds_from_now(made["never"]))
        for name, now in (("never", None), ("sooner", "0"), ("corrected", "0")):
            await annotate(client, name, now)
        _ = await client.create(config_map("last", "3"))

        async def the_last_is_gone() -> bool:
            return not await names(client)

        await eventually(the_last_is_gone)
        kept = await client.get("configmaps", "never", "default")
        assert kept.meta.deletion_timestamp is None
        # The value that is no number may have been read before it was corrected.
        assert app.reconcilers[0].statistics().errors in (0, 1)


async def test_a_successor_of_the_same_name_has_its_own_time(
    apiserver: APIServer, client: Client
) -> None:
    first = await client.create(config_map("again", "3600"))
    async with app_for(apiserver):
        await annotate(client, "again", two_seconds_from_now(first))
        _ = await client.delete("configmaps", "again", "default")
        second = await client.create(config_map("again", "3600"))
        _ = await client.create(config_map("last", "3"))

        async def the_last_is_gone() -> bool:
            return await names(client) == {"again"}

        await eventually(the_last_is_gone)
        assert (await client.get("configmaps", "again", "default")).uid == second.uid != first.uid
