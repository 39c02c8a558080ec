"""A manager converts objects between versions, called by the embedded server over TLS."""

from collections.abc import AsyncIterator
from itertools import permutations
from typing import Any

import pytest
import pytest_asyncio

from listwatch import Client
from listwatch.errors import ConfigError, StatusError
from listwatch.resources import ConversionError, Conversions, ObjectMeta, definition
from listwatch.runtime import Manager
from listwatch.testing import APIServer
from resources.site_versions import (
    NewSpec,
    OldSpec,
    SiteV1,
    SiteV1Alpha1,
    conversions,
)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[APIServer]:
    async with APIServer() as running, running.client() as client:
        await client.create(definition(*conversions(keep_lost=True).types))
        yield running


@pytest_asyncio.fixture
async def client(server: APIServer) -> AsyncIterator[Client]:
    async with server.client() as made:
        yield made


async def test_the_running_manager_converts_what_clients_read_and_write(
    server: APIServer, client: Client
) -> None:
    app = Manager("sites", config=server.config)
    app.convert(conversions(keep_lost=True))
    async with app:
        made = await client.create(SiteV1Alpha1(ObjectMeta(name="shop"), OldSpec("a", "gold")))
        assert made.spec == OldSpec("a", "gold")
        stored = await client.get(SiteV1, "shop")
        assert stored.spec == NewSpec(["a"])
        assert stored.metadata.uid == made.metadata.uid

        def rename(site: SiteV1) -> None:
            site.spec.hosts = ["b"]

        await client.update_existing(SiteV1, "shop", rename)
        assert (await client.get(SiteV1Alpha1, "shop")).spec == OldSpec("b", "gold")
        listed = await client.list(SiteV1Alpha1)
        assert [one["spec"]["host"] for one in listed.items] == ["b"]
        crd = await client.get("crds", "sites.example.com")
        assert crd["spec"]["conversion"]["strategy"] == "Webhook"
        [statistics] = app.webhooks.statistics()
        assert statistics.name == "convert.sites.example.com"
        assert statistics.errors == statistics.denied == 0


def refuse(_obj: Any) -> Any:
    raise ConversionError("sites rest today")


async def test_a_conversion_that_refuses_says_why_to_the_client(
    server: APIServer, client: Client
) -> None:
    app = Manager("sites", config=server.config)
    sites = conversions(keep_lost=False)
    refusing = Conversions(*sites.types)
    for old, new in permutations(sites.types, 2):
        refusing.convert(old, new)(refuse)

    app.convert(refusing)
    async with app:
        with pytest.raises(StatusError, match="sites rest today"):
            await client.create(SiteV1Alpha1(ObjectMeta(name="shop"), OldSpec("a")))
    assert (await client.list(SiteV1)).items == []


def test_a_definition_has_one_set_of_conversions_and_a_complete_one() -> None:
    app = Manager("sites")
    app.convert(conversions(keep_lost=True))
    with pytest.raises(ConfigError, match=r"convert\.sites\.example\.com already exists"):
        app.convert(conversions(keep_lost=True))
