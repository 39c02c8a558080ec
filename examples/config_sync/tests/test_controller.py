"""The controller against an API server in this process."""

from pathlib import Path
from typing import Any

import pytest

from listwatch import Client, NotFoundError
from listwatch.runtime import Manager, load_app
from listwatch.testing import APIServer, eventually

pytestmark = pytest.mark.asyncio

LABEL = {"sync.example.com/everywhere": ""}


def app_for(apiserver: APIServer) -> Manager:
    path = Path(__file__).parent.parent / "controller.py"
    return load_app(path, config=apiserver.config)


def source(value: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "ca", "namespace": "default", "labels": LABEL},
        "data": {"ca": value},
    }


async def values(client: Client) -> dict[str, str]:
    found = (await client.list("configmaps", field_selector="metadata.name=ca")).items
    return {obj.namespace: obj["data"]["ca"] for obj in found}


async def has_everywhere(client: Client, value: str, count: int) -> bool:
    found = await values(client)
    return len(found) == count and set(found.values()) == {value}


async def test_a_source_is_copied_to_old_and_new_namespaces_and_follows_its_changes(
    apiserver: APIServer, client: Client
) -> None:
    present = len((await client.list("namespaces")).items)
    _ = await client.create(source("1"))
    async with app_for(apiserver):
        await eventually(lambda: has_everywhere(client, "1", present))
        new = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}}
        _ = await client.create(new)
        await eventually(lambda: has_everywhere(client, "1", present + 1))
        _ = await client.patch("configmaps", "ca", {"data": {"ca": "2"}}, "default")
        await eventually(lambda: has_everywhere(client, "2", present + 1))


async def test_a_copy_that_is_changed_or_deleted_is_made_anew(
    apiserver: APIServer, client: Client
) -> None:
    present = len((await client.list("namespaces")).items)
    _ = await client.create(source("1"))
    async with app_for(apiserver):
        await eventually(lambda: has_everywhere(client, "1", present))
        _ = await client.patch("configmaps", "ca", {"data": {"ca": "x"}}, "kube-public")
        _ = await client.delete("configmaps", "ca", "kube-system")
        await eventually(lambda: has_everywhere(client, "1", present))


async def test_copies_go_with_their_source_also_after_a_restart(
    apiserver: APIServer, client: Client
) -> None:
    present = len((await client.list("namespaces")).items)
    _ = await client.create(source("1"))
    async with app_for(apiserver):
        await eventually(lambda: has_everywhere(client, "1", present))
    _ = await client.delete("configmaps", "ca", "default")
    assert len(await values(client)) == present  # nothing runs to finalize it
    async with app_for(apiserver):

        async def all_gone() -> bool:
            return not await values(client)

        await eventually(all_gone)


async def test_copies_go_with_the_sources_label_and_the_source_can_be_deleted_then(
    apiserver: APIServer, client: Client
) -> None:
    present = len((await client.list("namespaces")).items)
    _ = await client.create(source("1"))
    async with app_for(apiserver):
        await eventually(lambda: has_everywhere(client, "1", present))
        unlabelled = {"metadata": {"labels": dict.fromkeys(LABEL)}}
        _ = await client.patch("configmaps", "ca", unlabelled, "default")

        async def only_the_source() -> bool:
            return await values(client) == {"default": "1"}

        await eventually(only_the_source)
        _ = await client.delete("configmaps", "ca", "default")

        async def all_gone() -> bool:
            return not await values(client)

        await eventually(all_gone)


async def test_a_config_map_that_is_no_copy_is_left_alone_and_the_source_is_told(
    apiserver: APIServer, client: Client
) -> None:
    present = len((await client.list("namespaces")).items)
    theirs = source("theirs")
    theirs["metadata"] = {"name": "ca", "namespace": "kube-public"}
    _ = await client.create(theirs)
    _ = await client.create(source("1"))
    async with app_for(apiserver):

        async def told() -> bool:
            events = (await client.list("events", "default")).items
            return any(event.to_dict().get("reason") == "NotCopied" for event in events)

        await eventually(told)

        async def all_others_have_it() -> bool:
            return list((await values(client)).values()).count("1") == present - 1

        await eventually(all_others_have_it)
        assert (await values(client))["kube-public"] == "theirs"
        _ = await client.delete("configmaps", "ca", "default")

        async def only_theirs() -> bool:
            return await values(client) == {"kube-public": "theirs"}

        await eventually(only_theirs)


async def test_a_copy_has_the_data_and_nothing_else_of_its_source(
    apiserver: APIServer, client: Client
) -> None:
    whole = source("1") | {"binaryData": {"key": "AAE="}}
    whole["metadata"] = whole["metadata"] | {"annotations": {"mine": "x"}}
    _ = await client.create(whole)
    async with app_for(apiserver):

        async def is_there() -> bool:
            return bool(await client.get("configmaps", "ca", "kube-public"))

        await eventually(is_there, ignoring=NotFoundError)
        copy = (await client.get("configmaps", "ca", "kube-public")).to_dict()
    assert (copy["data"], copy["binaryData"]) == ({"ca": "1"}, {"key": "AAE="})
    assert copy["metadata"]["labels"] == {"sync.example.com/source": "default_ca"}
    assert "annotations" not in copy["metadata"]
    assert "finalizers" not in copy["metadata"]
