import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, MAPS, PODS, Client, is_gone, names
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.clock import FakeClock
from listwatch.testing import eventually

POD = {"containers": [{"name": "c", "image": "i:1"}]}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


def owned_by(owner: Any, *, block: bool = False) -> dict[str, Any]:
    return {
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": block,
            }
        ]
    }


async def family(client: Client, *, block: bool = False) -> None:
    """Create an owner, its child and its grandchild."""
    owner = await client.create(MAPS, "owner")
    child = await client.create(MAPS, "child", metadata=owned_by(owner, block=block))
    await client.create(MAPS, "grandchild", metadata=owned_by(child, block=block))


async def left(client: Client) -> list[str]:
    return names(await client.call("GET", MAPS))


async def test_in_the_background_dependents_go_after_their_owner(client: Client) -> None:
    await family(client)
    await client.call("DELETE", f"{MAPS}/owner", {"propagationPolicy": "Background"}, expect=200)

    async def all_gone() -> bool:
        return await left(client) == []

    await eventually(all_gone)


async def test_in_the_foreground_the_owner_goes_last(client: Client) -> None:
    await family(client, block=True)
    await client.merge(f"{MAPS}/child", {"metadata": {"finalizers": ["example.com/hold"]}})
    await client.call("DELETE", f"{MAPS}/owner", {"propagationPolicy": "Foreground"}, expect=200)

    async def child_is_dying() -> bool:
        child = await client.call("GET", f"{MAPS}/child")
        return "deletionTimestamp" in child["metadata"]

    await eventually(child_is_dying)
    assert "owner" in await left(client)
    await client.merge(f"{MAPS}/child", {"metadata": {"finalizers": None}})

    async def all_gone() -> bool:
        return await left(client) == []

    await eventually(all_gone)


async def test_orphans_stay_without_their_reference(client: Client) -> None:
    await family(client)
    await client.call("DELETE", f"{MAPS}/owner", {"propagationPolicy": "Orphan"}, expect=200)

    async def owner_gone() -> bool:
        return await left(client) == ["child", "grandchild"]

    await eventually(owner_gone)
    child = await client.call("GET", f"{MAPS}/child")
    assert "ownerReferences" not in child["metadata"]


async def test_one_living_owner_is_enough(client: Client) -> None:
    first = await client.create(MAPS, "first")
    second = await client.create(MAPS, "second")
    references = owned_by(first)["ownerReferences"] + owned_by(second)["ownerReferences"]
    references[1]["controller"] = False
    await client.create(MAPS, "shared", metadata={"ownerReferences": references})
    await client.call("DELETE", f"{MAPS}/first", expect=200)

    async def reference_dropped() -> bool:
        shared = await client.call("GET", f"{MAPS}/shared")
        found = shared["metadata"].get("ownerReferences", [])
        return [each["name"] for each in found] == ["second"]

    await eventually(reference_dropped)


async def test_owners_of_a_kind_that_is_not_served_count_as_alive(client: Client) -> None:
    stranger = {"metadata": {"name": "s", "uid": "12345678-1234-1234-1234-123456789012"}}
    metadata = owned_by(stranger)
    metadata["ownerReferences"][0] |= {"apiVersion": "example.com/v1", "kind": "Stranger"}
    await client.create(MAPS, "guest", metadata=metadata)
    await client.create(MAPS, "ghost", metadata=owned_by(stranger))

    async def only_the_guest() -> bool:
        return await left(client) == ["guest"]

    await eventually(only_the_guest)


async def test_a_deleted_namespace_goes_when_it_is_empty(client: Client) -> None:
    await client.create("/api/v1/namespaces", "n")
    maps = "/api/v1/namespaces/n/configmaps"
    await client.create(maps, "a")
    await client.create(maps, "held", metadata={"finalizers": ["example.com/hold"]})
    await client.call("DELETE", "/api/v1/namespaces/n", expect=200)

    async def only_held() -> bool:
        return names(await client.call("GET", maps)) == ["held"]

    await eventually(only_held)
    assert (await client.call("GET", "/api/v1/namespaces/n"))["status"]["phase"] == "Terminating"
    await client.merge(f"{maps}/held", {"metadata": {"finalizers": None}})

    async def gone() -> bool:
        return is_gone(await client.call("GET", "/api/v1/namespaces/n"))

    await eventually(gone)


async def test_a_bound_pod_goes_when_its_grace_is_over() -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        await client.create(PODS, "p", spec={**POD, "nodeName": "n1"})
        await client.call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 20}, expect=200)
        await clock.advance(19.0)
        assert not is_gone(await client.call("GET", f"{PODS}/p"))
        await clock.advance(1.0)
        assert is_gone(await client.call("GET", f"{PODS}/p"))


async def test_without_controllers_a_namespace_stays_until_it_is_finalized() -> None:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        await client.create("/api/v1/namespaces", "n")
        await client.call("DELETE", "/api/v1/namespaces/n", expect=200)
        await client.call("GET", "/api/v1/namespaces/n", expect=200)
        body = {"metadata": {"name": "n"}, "spec": {"finalizers": []}}
        await client.call("PUT", "/api/v1/namespaces/n/finalize", body, expect=200)
        await client.call("GET", "/api/v1/namespaces/n", expect=404)


async def test_what_was_orphaned_by_a_restart_is_collected_after_it() -> None:
    server = EmbeddedAPIServer(controllers=True)
    async with Client(server) as client:
        await server.start()
        owner = await client.create(MAPS, "owner")
        await client.create(MAPS, "child", metadata=owned_by(owner))
        await server.restart()
        await client.call("DELETE", f"{MAPS}/owner", expect=200)

        async def all_gone() -> bool:
            return await left(client) == []

        await eventually(all_gone)
        await server.stop()
    assert server.statistics().objects > 0, CORE


async def test_a_namespace_of_many_objects_is_emptied_between_other_requests(
    client: Client,
) -> None:
    """It is emptied in slices, and many deletions together plan only one further slice."""
    server = client.server
    await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": "full"}}, expect=201)
    resource = server.table.get("", "v1", "configmaps")
    assert resource is not None
    bucket = server.registry.bucket(resource)
    for number in range(1000):
        metadata = {"name": f"m{number}", "namespace": "full", "uid": f"u{number}"}
        entry = server.registry.entry(resource, {"metadata": metadata}, server.store.revision + 1)
        server.store.put(bucket, entry)
    await client.call("DELETE", "/api/v1/namespaces/full", expect=200)
    seen = set()

    async def is_empty() -> bool:
        answer = await client.call("GET", "/api/v1/namespaces/full")
        return is_gone(answer)

    async with asyncio.timeout(40):
        while left := len(bucket.current("full")):
            seen.add(left)
            await asyncio.sleep(0)
    assert len(seen) >= 8
    await eventually(is_empty)
