"""The client against the embedded API server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.cache.list_watch import WatchOptions
from listwatch.client.client import Client, PatchType
from listwatch.client.kubeconfig import load_config
from listwatch.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
)


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server:
        kubeconfig = tmp_path / "config"
        kubeconfig.write_text(server.kubeconfig())
        async with Client.from_config(load_config(kubeconfig)) as client:
            yield client


def config_map(name: str, **data: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "labels": {"app": "x"}}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": data}


async def test_the_life_of_an_object(real: Client) -> None:
    made = await real.create(config_map("a", k="1"))
    with pytest.raises(AlreadyExistsError):
        await real.create(config_map("a"))
    changed = made.to_dict() | {"data": {"k": "2"}}
    updated = await real.update(changed)
    assert updated.uid == made.uid
    with pytest.raises(ConflictError):
        await real.update(changed)
    patched = await real.patch("cm", "a", {"data": {"m": "3"}})
    assert patched["data"] == {"k": "2", "m": "3"}
    operations = [{"op": "remove", "path": "/data/k"}]
    patched = await real.patch("cm", "a", operations, type=PatchType.JSON)
    assert patched["data"] == {"m": "3"}
    applied = await real.patch(
        "cm", "a", config_map("a", k="4"), type=PatchType.APPLY, field_manager="me", force=True
    )
    assert applied["data"] == {"k": "4", "m": "3"}
    assert (await real.get("configmap", "a")).resource_version == applied.resource_version
    with pytest.raises(ConflictError):
        await real.delete("cm", "a", uid="another")
    await real.delete("cm", "a", uid=made.uid)
    with pytest.raises(NotFoundError):
        await real.get("cm", "a")


async def test_an_object_that_breaks_a_rule_is_told_with_its_causes(real: Client) -> None:
    with pytest.raises(InvalidError) as caught:
        await real.create(config_map("Not_A_Name"))
    assert caught.value.causes[0]["field"] == "metadata.name"


async def test_a_list_in_pages_and_the_watch_that_follows_it(real: Client) -> None:
    for number in range(7):
        await real.create(config_map(f"c{number}"))
    whole = await real.list("cm", "default", label_selector="app=x", page_size=3)
    assert [obj.name for obj in whole.items] == [f"c{number}" for number in range(7)]
    source = real.list_watch("cm", "default", label_selector="app=x")
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        options = WatchOptions(resource_version=whole.resource_version)
        async with source.watch(options) as stream:
            async for batch in stream:
                seen.extend((e.type, e.object.name) for e in batch if e.object)
                if len(seen) == 3:
                    return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        await real.create(config_map("new"))
        await real.patch("cm", "c1", {"metadata": {"labels": {"app": "other"}}})
        await real.delete("cm", "c2")
    assert seen == [("ADDED", "new"), ("DELETED", "c1"), ("DELETED", "c2")]


async def test_a_watch_list_begins_with_the_present_state(real: Client) -> None:
    await real.create(config_map("a"))
    source = real.list_watch("cm", "default")
    options = WatchOptions(send_initial_events=True, resource_version_match="NotOlderThan")
    names: list[str] = []
    async with source.watch(options) as stream:
        async for batch in stream:
            names += [event.object.name for event in batch if event.object]
            if any(event.initial_events_end for event in batch):
                break
    assert "a" in names


async def test_changes_at_the_same_time_all_count(real: Client) -> None:
    await real.create(config_map("a", count="0"))

    def count(value: dict[str, Any]) -> None:
        value["data"]["count"] = str(int(value["data"]["count"]) + 1)

    async with asyncio.TaskGroup() as tasks:
        # With the two finalizers, six changes: each of them meets five conflicts at most.
        for _ in range(4):
            tasks.create_task(real.update_existing("cm", "a", count))
        for name in ("example.com/x", "example.com/y", "example.com/x"):
            tasks.create_task(real.add_finalizer("cm", "a", name))
    obj = await real.get("cm", "a")
    assert obj["data"]["count"] == "4"
    assert sorted(obj.meta.finalizers) == ["example.com/x", "example.com/y"]
    await real.delete("cm", "a")
    left = await real.remove_finalizer("cm", "a", "example.com/x")
    assert left is not None
    assert left.meta.finalizers == ("example.com/y",)
    await real.remove_finalizer("cm", "a", "example.com/y")
    assert await real.remove_finalizer("cm", "a", "example.com/y") is None


async def test_custom_resources_are_found_once_they_are_there(real: Client) -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wi"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
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
    await real.get("ns", "default")
    await real.create(definition)
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    async with asyncio.timeout(40):
        while True:
            try:
                await real.create({**widget, "spec": {"size": 1}})
            except NotFoundError:  # served a moment after its definition was created
                continue
            break
    whole = await real.list("wi")
    assert [(obj.kind, obj.key) for obj in whole.items] == [("Widget", "default/w")]


def deployment() -> dict[str, Any]:
    labels = {"app": "web"}
    return {
        "kind": "Deployment",
        "apiVersion": "apps/v1",
        "metadata": {"name": "web", "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "a", "image": "a:1"}]},
            },
        },
    }


async def test_subresources_are_read_and_written_apart(real: Client) -> None:
    made = await real.create(deployment())
    scale = await real.get("deploy", "web", subresource="scale")
    assert (scale.kind, scale["spec"]["replicas"]) == ("Scale", 1)
    await real.patch("deploy", "web", {"spec": {"replicas": 2}}, subresource="scale")

    def grow(value: dict[str, Any]) -> None:
        value["spec"]["replicas"] += 1

    grown = await real.update_existing("deploy", "web", grow, subresource="scale")
    assert (grown.kind, grown["spec"]["replicas"]) == ("Scale", 3)

    def tell(value: dict[str, Any]) -> None:
        value["status"] = {"replicas": 3}
        value["spec"]["replicas"] = 9  # not part of the status

    told = await real.update_existing("deploy", "web", tell, subresource="status")
    assert (told["status"]["replicas"], told["spec"]["replicas"]) == (3, 3)
    with pytest.raises(ConflictError):
        await real.update({**made.to_dict(), "status": {"replicas": 1}}, subresource="status")


async def test_a_strategic_patch_merges_lists_by_their_keys(real: Client) -> None:
    await real.create(deployment())
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:1"}]}}}}
    strategic = await real.patch("deploy", "web", patch, type=PatchType.STRATEGIC)
    containers = strategic["spec"]["template"]["spec"]["containers"]
    assert sorted(container["name"] for container in containers) == ["a", "b"]
    merged = await real.patch("deploy", "web", patch)
    assert [c["name"] for c in merged["spec"]["template"]["spec"]["containers"]] == ["b"]


async def test_an_apply_conflicts_with_other_owners_unless_it_is_forced(real: Client) -> None:
    value = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}}
    for owner, colour, force in (("a", "red", False), ("b", "blue", True)):
        body = {**value, "data": {"colour": colour}}
        applied = await real.patch(
            "cm", "c", body, type=PatchType.APPLY, field_manager=owner, force=force
        )
        assert applied["data"] == {"colour": colour}
    body = {**value, "data": {"colour": "green"}}
    with pytest.raises(ConflictError, match="colour"):
        await real.patch("cm", "c", body, type=PatchType.APPLY, field_manager="a")


async def test_a_dry_run_changes_nothing(real: Client) -> None:
    tried = await real.create({**deployment(), "kind": "Deployment"}, dry_run=True)
    assert tried.name == "web"
    with pytest.raises(NotFoundError):
        await real.get("deploy", "web")
    made = await real.create(deployment())
    changed = await real.patch("deploy", "web", {"spec": {"replicas": 5}}, dry_run=True)
    assert changed["spec"]["replicas"] == 5
    scaled = {**made.to_dict(), "spec": {**made.to_dict()["spec"], "replicas": 4}}
    assert (await real.update(scaled, dry_run=True))["spec"]["replicas"] == 4
    await real.delete("deploy", "web", dry_run=True)
    await real.delete_collection("deploy", dry_run=True)
    assert (await real.get("deploy", "web"))["spec"]["replicas"] == 1


async def test_a_deletion_has_preconditions(real: Client) -> None:
    made = await real.create(deployment())
    with pytest.raises(ConflictError):
        await real.delete("deploy", "web", uid="another")
    with pytest.raises(ConflictError):
        await real.delete("deploy", "web", resource_version="1")
    await real.delete("deploy", "web", uid=made.uid, resource_version=made.resource_version)
    with pytest.raises(NotFoundError):
        await real.get("deploy", "web")


async def test_a_collection_is_deleted_as_far_as_its_selector_matches(real: Client) -> None:
    for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
        meta = {"name": name, "labels": {"colour": colour}}
        await real.create({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta})
    await real.delete_collection("cm", label_selector="colour=red")
    left = await real.list("cm", real.config.namespace)
    assert [obj.name for obj in left.items if obj.meta.labels.get("colour")] == ["b"]


async def test_finalizers_come_and_go_and_hold_a_deletion_up(real: Client) -> None:
    await real.create({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}})
    async with asyncio.TaskGroup() as tasks:
        for name in ("a.example/x", "b.example/x", "a.example/x", "c.example/x"):
            tasks.create_task(real.add_finalizer("cm", "c", name))
    held = await real.delete("cm", "c")
    assert held is not None
    assert sorted(held.meta.finalizers) == ["a.example/x", "b.example/x", "c.example/x"]
    async with asyncio.TaskGroup() as tasks:
        for name in ("a.example/x", "b.example/x"):
            tasks.create_task(real.remove_finalizer("cm", "c", name))
    assert (await real.get("cm", "c")).meta.finalizers == ("c.example/x",)
    await real.remove_finalizer("cm", "c", "c.example/x")
    assert await real.remove_finalizer("cm", "c", "c.example/x") is None
