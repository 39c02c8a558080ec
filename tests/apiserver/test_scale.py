"""The managedFields of an object after writes to /scale by several managers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer

_APPS = "/apis/apps/v1/namespaces/default"
_TEMPLATE = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
_SPEC = {"selector": {"matchLabels": {"app": "a"}}, "template": _TEMPLATE}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


@pytest.fixture(params=["deployments", "replicasets", "statefulsets", "replicationcontrollers"])
async def path(client: Client, request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    core = kind == "replicationcontrollers"
    collection = f"{CORE if core else _APPS}/{kind}"
    spec = {"template": _TEMPLATE} if core else _SPEC
    await client.create(f"{collection}?fieldManager=maker", "a", spec={**spec, "replicas": 3})
    return f"{collection}/a"


async def _scale(client: Client, path: str, replicas: Any, manager: str, **how: Any) -> Any:
    headers = {"Content-Type": "application/merge-patch+json"}
    body = {"spec": {"replicas": replicas}}
    where = f"{path}/scale?fieldManager={manager}"
    return await client.call("PATCH", where, body, headers=headers, **how)


async def _apply(client: Client, path: str, replicas: int, manager: str, **how: Any) -> Any:
    body = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": "a"},
        "spec": {"replicas": replicas},
    }
    headers = {"Content-Type": "application/apply-patch+yaml"}
    where = f"{path}/scale?fieldManager={manager}"
    return await client.call("PATCH", where, body, headers=headers, **how)


async def _owners(client: Client, path: str) -> list[tuple[str, str, str, bool]]:
    """Return the owners of replicas: manager, operation, subresource, and if a time is set."""
    obj = await client.call("GET", path, expect=200)
    return [
        (each["manager"], each["operation"], each.get("subresource", ""), "time" in each)
        for each in obj["metadata"]["managedFields"]
        if "f:replicas" in each["fieldsV1"].get("f:spec", {})
    ]


async def test_who_scales_takes_the_replicas_and_leaves_no_time(client: Client, path: str) -> None:
    assert await _owners(client, path) == [("maker", "Update", "", True)]
    await _scale(client, path, 5, "hpa", expect=200)
    assert await _owners(client, path) == [("hpa", "Update", "scale", False)]


async def test_no_replicas_are_nobodys(client: Client, path: str) -> None:
    scale = await _scale(client, path, 0, "hpa", expect=200)
    assert scale["spec"] == {}
    assert await _owners(client, path) == []


async def test_a_scale_can_be_applied_where_nobody_else_owns_the_replicas(
    client: Client, path: str
) -> None:
    await _scale(client, path, 0, "hpa", expect=200)
    scale = await _apply(client, path, 4, "me", expect=200)
    assert scale["spec"] == {"replicas": 4}
    assert await _owners(client, path) == [("me", "Apply", "scale", False)]


async def test_an_applied_scale_conflicts_with_the_owner_unless_forced(
    client: Client, path: str
) -> None:
    refused = await _apply(client, path, 4, "me", expect=409)
    assert refused["details"]["causes"][0]["field"] == ".spec.replicas"
    await _apply(client, path, 4, "me&force=true", expect=200)
    assert await _owners(client, path) == [("me", "Apply", "scale", False)]


async def test_an_applied_scale_that_is_the_same_is_shared(client: Client, path: str) -> None:
    await _apply(client, path, 3, "me", expect=200)
    assert {owner[0] for owner in await _owners(client, path)} == {"me", "maker"}


@pytest.mark.parametrize(
    ("replicas", "code"), [("x", 422), (-1, 422), (1.5, 422), (1 << 31, 422), (None, 200)]
)
async def test_replicas_of_a_wrong_type_are_refused(
    client: Client, path: str, replicas: Any, code: int
) -> None:
    await _scale(client, path, replicas, "me", expect=code)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"resourceVersion": "1"}, 409),
        ({"uid": "00000000-0000-4000-8000-000000000000"}, 409),
        ({"name": "b"}, 400),
        ({}, 200),
    ],
)
async def test_a_put_is_for_one_object_and_version(
    client: Client, path: str, metadata: dict[str, str], code: int
) -> None:
    body = {"metadata": {"name": "a", **metadata}, "spec": {"replicas": 2}}
    await client.call("PUT", f"{path}/scale", body, expect=code)
