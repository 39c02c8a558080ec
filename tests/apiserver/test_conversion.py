"""Custom resources with several versions: storage, reads and conversion."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from listwatch import Client, SharedInformer
from listwatch.errors import StatusError
from listwatch.testing import APIServer, WebhookServer

Object = dict[str, Any]
_FIELDS = {"v1": "a", "v2": "b"}


def _convert(request: Object) -> Object:
    """Rename the spec's field to its name in the desired version."""
    target = request["desiredAPIVersion"]
    converted = []
    for obj in request["objects"]:
        source, spec = obj["apiVersion"], dict(obj.get("spec") or {})
        value = spec.pop(_FIELDS[source.rpartition("/")[2]], None)
        spec[_FIELDS[target.rpartition("/")[2]]] = value
        converted.append({**obj, "apiVersion": target, "spec": spec})
    return {"convertedObjects": converted}


def _version(name: str, *, storage: bool, **fields: Object) -> Object:
    properties = {"spec": {"type": "object", "properties": {_FIELDS[name]: _TEXT, **fields}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    return {"name": name, "served": True, "storage": storage, "schema": schema}


_TEXT: Object = {"type": "string"}


def _definition(versions: list[Object], conversion: Object | None = None) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": versions,
            **({} if conversion is None else {"conversion": conversion}),
        },
    }


def _webhook(hooks: WebhookServer) -> Object:
    config = hooks.client_config("/convert")
    webhook = {"clientConfig": config, "conversionReviewVersions": ["v1"]}
    return {"strategy": "Webhook", "webhook": webhook}


def _widget(version: str, name: str, value: str) -> Object:
    return {
        "apiVersion": f"example.com/{version}",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {_FIELDS[version]: value},
    }


@pytest_asyncio.fixture
async def hooks() -> AsyncIterator[WebhookServer]:
    async with WebhookServer() as server:
        server.on("/convert", _convert)
        yield server


@pytest_asyncio.fixture
async def server() -> AsyncIterator[APIServer]:
    async with APIServer() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: APIServer) -> AsyncIterator[Client]:
    async with server.client() as made:
        yield made


_BOTH = [_version("v1", storage=True), _version("v2", storage=False)]


async def _define(client: Client, definition: Object) -> None:
    await client.create(definition)
    name = definition["metadata"]["name"]
    await client.wait_for("customresourcedefinitions", name, "Established", seconds=40)


async def test_each_version_shows_an_object_in_its_own_form(
    hooks: WebhookServer, client: Client
) -> None:
    await _define(client, _definition(_BOTH, _webhook(hooks)))
    made = await client.create(_widget("v2", "w", "x"))
    assert made["spec"] == {"b": "x"}
    shown = await client.get("widgets.v1.example.com", "w")
    assert (shown.api_version, shown["spec"]) == ("example.com/v1", {"a": "x"})


async def test_an_object_is_stored_in_the_storage_version(
    hooks: WebhookServer, server: APIServer, client: Client
) -> None:
    await _define(client, _definition(_BOTH, _webhook(hooks)))
    await client.create(_widget("v2", "w", "x"))
    entry = server.embedded.store.bucket("example.com/widgets").entries["w"]
    stored = server.embedded.registry.decode(entry)
    assert (stored["apiVersion"], stored["spec"]) == ("example.com/v1", {"a": "x"})


async def test_a_write_in_another_version_is_stored_once_although_it_begins_again(
    hooks: WebhookServer, server: APIServer, client: Client
) -> None:
    await _define(client, _definition(_BOTH, _webhook(hooks)))
    before = server.embedded.store.revision
    await client.create(_widget("v2", "w", "x"))
    assert server.embedded.store.revision == before + 1


async def test_lists_survive_a_webhook_that_breaks_after_the_objects_were_written(
    hooks: WebhookServer, client: Client
) -> None:
    await _define(client, _definition(_BOTH, _webhook(hooks)))
    await client.create(_widget("v1", "w", "x"))
    assert [obj["spec"] for obj in (await client.list("widgets.v2.example.com")).items] == [
        {"b": "x"}
    ]
    await hooks.fail("garbage")
    found = await client.list("widgets.v2.example.com")
    assert [obj["spec"] for obj in found.items] == [{"b": "x"}]
    with pytest.raises(StatusError, match=r"conversion webhook for example\.com/v1, Kind=Widget"):
        await client.get("widgets.v2.example.com", "w")


async def _reviews(hooks: WebhookServer, client: Client, number: int) -> list[int]:
    """Create objects of a converted resource; return a list of the sizes of its reviews."""
    sizes: list[int] = []

    def convert(request: Object) -> Object:
        sizes.append(len(request["objects"]))
        return _convert(request)

    hooks.on("/convert", convert)
    await _define(client, _definition([_version("v1", storage=True)]))
    for count in range(number):
        await client.create(_widget("v1", f"w{count:03}", "x"))
    await client.patch(
        "customresourcedefinitions", "widgets.example.com", _definition(_BOTH, _webhook(hooks))
    )
    return sizes


async def test_a_list_asks_its_webhook_about_many_objects_at_once(
    hooks: WebhookServer, client: Client
) -> None:
    sizes = await _reviews(hooks, client, 120)
    found = await client.list("widgets.v2.example.com")
    assert [obj["spec"] for obj in found.items] == [{"b": "x"}] * 120
    assert sizes == [100, 20]


async def test_a_watch_list_asks_its_webhook_about_many_objects_at_once(
    hooks: WebhookServer, client: Client
) -> None:
    sizes = await _reviews(hooks, client, 20)
    async with SharedInformer(client.list_watch("widgets.v2.example.com")) as informer:
        await informer.wait_for_sync()
        assert {obj["spec"]["b"] for obj in informer.lister.list()} == {"x"}
    assert sizes == [20]


async def test_deleting_a_collection_asks_its_webhook_about_many_objects_at_once(
    hooks: WebhookServer, client: Client
) -> None:
    sizes = await _reviews(hooks, client, 20)
    await client.delete_collection("widgets.v2.example.com")
    assert (await client.list("widgets.v2.example.com")).items == []
    assert sizes == [20, 20]


async def test_without_a_webhook_a_version_shows_only_the_fields_of_its_schema(
    client: Client,
) -> None:
    await _define(client, _definition(_BOTH))
    await client.create(_widget("v1", "w", "x"))
    shown = await client.get("widgets.v2.example.com", "w")
    assert shown["spec"] == {}


async def test_the_server_itself_deletes_objects_without_asking_webhooks(
    hooks: WebhookServer, client: Client
) -> None:
    await _define(client, _definition(_BOTH, _webhook(hooks)))
    await client.create(_widget("v2", "w", "x"))
    await hooks.fail("refusing")
    await client.delete("customresourcedefinitions", "widgets.example.com")
    await client.wait_for_deletion("customresourcedefinitions", "widgets.example.com")


async def test_objects_keep_their_version_in_a_data_file(
    hooks: WebhookServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    async with APIServer(data=data) as server, server.client() as client:
        await _define(client, _definition([_version("v1", storage=True)]))
        await client.create(_widget("v1", "old", "1"))
        changed = _definition(
            [_version("v1", storage=False), _version("v2", storage=True)], _webhook(hooks)
        )
        await client.patch("customresourcedefinitions", "widgets.example.com", changed)
        await client.create(_widget("v1", "new", "2"))
    async with APIServer(data=data) as server, server.client() as client:
        found = await client.list("widgets.v2.example.com")
        assert {obj.name: obj["spec"] for obj in found.items} == {
            "old": {"b": "1"},
            "new": {"b": "2"},
        }
