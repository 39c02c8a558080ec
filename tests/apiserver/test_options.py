"""Options that may stand in the query or in the body: which of them counts."""

from collections.abc import AsyncIterator

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer

MAPS = f"{CORE}/configmaps"
PODS = f"{CORE}/pods"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


async def is_there(client: Client, path: str) -> bool:
    answer = await client.call("GET", path)
    return bool(answer["kind"] != "Status")


@pytest.mark.parametrize("many", [False, True])
async def test_a_dry_run_in_the_body_deletes_nothing(client: Client, *, many: bool) -> None:
    await client.create(MAPS, "a")
    path = MAPS if many else f"{MAPS}/a"
    await client.call("DELETE", path, {"dryRun": ["All"]}, expect=200)
    assert await is_there(client, f"{MAPS}/a")


@pytest.mark.parametrize("many", [False, True])
async def test_a_dry_run_in_the_query_deletes_nothing_without_a_body(
    client: Client, *, many: bool
) -> None:
    await client.create(MAPS, "a")
    path = MAPS if many else f"{MAPS}/a"
    await client.call("DELETE", f"{path}?dryRun=All", expect=200)
    assert await is_there(client, f"{MAPS}/a")


@pytest.mark.parametrize(
    "query",
    [
        "dryRun=All",
        "dryRun=x",
        "propagationPolicy=Foreground",
        "propagationPolicy=Nope",
        "orphanDependents=true",
        "gracePeriodSeconds=x",
        "uid=another",
        "resourceVersion=1",
    ],
)
@pytest.mark.parametrize("body", [{}, {"kind": "DeleteOptions", "apiVersion": "v1"}])
async def test_a_body_hides_the_options_in_the_query(
    client: Client, query: str, body: dict[str, str]
) -> None:
    await client.create(MAPS, "a")
    await client.call("DELETE", f"{MAPS}/a?{query}", body, expect=200)
    assert not await is_there(client, f"{MAPS}/a")


async def test_the_options_of_a_list_stand_in_the_query_whatever_the_body_says(
    client: Client,
) -> None:
    await client.create(MAPS, "a", metadata={"labels": {"x": "1"}})
    await client.create(MAPS, "b")
    await client.call("DELETE", f"{MAPS}?labelSelector=x", {"propagationPolicy": "Background"})
    assert not await is_there(client, f"{MAPS}/a")
    assert await is_there(client, f"{MAPS}/b")


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("query", ["uid=another", "resourceVersion=1"])
async def test_conditions_of_a_delete_may_stand_in_the_query(
    client: Client, query: str, *, many: bool
) -> None:
    await client.create(MAPS, "a")
    path = MAPS if many else f"{MAPS}/a"
    refused = await client.call("DELETE", f"{path}?{query}", expect=409)
    assert "in the precondition" in refused["message"]
    assert await is_there(client, f"{MAPS}/a")


@pytest.mark.parametrize(
    ("query", "options"), [("?dryRun=All", {}), ("", {"deleteOptions": {"dryRun": ["All"]}})]
)
async def test_a_dry_run_of_an_eviction_may_stand_in_either_place(
    client: Client, query: str, options: dict[str, object]
) -> None:
    await client.create(PODS, "a", spec={"containers": [{"name": "c", "image": "i"}]})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    await client.call("POST", f"{PODS}/a/eviction{query}", eviction | options, expect=201)
    assert await is_there(client, f"{PODS}/a")
    await client.call("POST", f"{PODS}/a/eviction", eviction, expect=201)
    assert not await is_there(client, f"{PODS}/a")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v1/configmaps", 405),
        ("/apis/apps/v1/deployments", 405),
        # The handler of custom resources does not know this path.
        ("/apis/example.com/v1/widgets", 404),
    ],
)
async def test_a_namespaced_kind_is_not_deleted_in_all_namespaces_at_once(
    client: Client, path: str, code: int
) -> None:
    await client.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", WIDGETS)
    await client.create(MAPS, "a")
    await client.call("DELETE", path, expect=code)
    assert await is_there(client, f"{MAPS}/a")


WIDGETS = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}
