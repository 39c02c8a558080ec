"""Fields that a write to a subresource changes, and those that it keeps."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer

_MERGE = {"Content-Type": "application/strategic-merge-patch+json"}
_POD: dict[str, Any] = {
    "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]
}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


async def test_a_resize_changes_resources_alone(client: Client) -> None:
    await client.create(f"{CORE}/pods", "a", spec=_POD)
    wanted = {"name": "c", "image": "z", "resources": {"requests": {"cpu": "200m"}}}
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [wanted]}}
    path = f"{CORE}/pods/a/resize"
    pod = await client.call("PATCH", path, patch, headers=_MERGE, expect=200)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "i"
    assert container["resources"] == {"requests": {"cpu": "200m"}}
    assert "labels" not in pod["metadata"]
    assert pod["metadata"]["generation"] == 2
    patch = {"spec": {"containers": [{"name": "c", "image": "z"}]}}
    pod = await client.call("PATCH", path, patch, headers=_MERGE, expect=200)
    assert pod["metadata"]["generation"] == 2


async def test_ephemeral_containers_are_added_alone(client: Client) -> None:
    await client.create(f"{CORE}/pods", "a", spec=_POD)
    patch = {
        "spec": {
            "ephemeralContainers": [{"name": "e", "image": "busybox"}],
            "containers": [{"name": "c", "image": "z"}],
        }
    }
    path = f"{CORE}/pods/a/ephemeralcontainers"
    pod = await client.call("PATCH", path, patch, headers=_MERGE, expect=200)
    assert pod["spec"]["containers"][0]["image"] == "i"
    assert pod["spec"]["ephemeralContainers"][0]["name"] == "e"


async def test_a_finalize_writes_the_whole_namespace_but_its_status(client: Client) -> None:
    await client.create("/api/v1/namespaces", "n", metadata={"labels": {"a": "b"}})
    body = {"metadata": {"name": "n"}, "spec": {"finalizers": ["x.y/z"]}, "status": {"phase": "?"}}
    made = await client.call("PUT", "/api/v1/namespaces/n/finalize", body, expect=200)
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    assert made["spec"] == {"finalizers": ["x.y/z"]}
    assert made["status"] == {"phase": "Active"}


async def test_a_pod_gets_its_tolerations_back(client: Client) -> None:
    await client.create(f"{CORE}/pods", "a", spec=_POD)
    patch = {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}
    pod = await client.call("PATCH", f"{CORE}/pods/a", patch, headers=_MERGE, expect=200)
    keys = [each["key"] for each in pod["spec"]["tolerations"]]
    assert keys == ["k", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


@pytest.mark.parametrize(
    ("path", "spec", "patch", "generations"),
    [
        ("scheduling.k8s.io/v1/priorityclasses", {"value": 1}, {"description": "d"}, (1, 1)),
        (
            "storage.k8s.io/v1/csidrivers",
            {"spec": {}},
            {"spec": {"podInfoOnMount": True}},
            (None, 1),
        ),
        (
            "networking.k8s.io/v1/ingressclasses",
            {"spec": {"controller": "x.y/z"}},
            {"metadata": {"labels": {"a": "b"}}},
            (1, 1),
        ),
    ],
)
async def test_generation_counts_what_the_kind_counts(
    client: Client,
    path: str,
    spec: dict[str, Any],
    patch: dict[str, Any],
    generations: tuple[int | None, int],
) -> None:
    made = await client.create(f"/apis/{path}", "a", **spec)
    changed = await client.merge(f"/apis/{path}/a", patch)
    assert made["metadata"].get("generation") == generations[0]
    assert changed["metadata"].get("generation") == generations[1]


async def test_metadata_alone_lacks_what_the_version_of_a_daemon_set_adds(client: Client) -> None:
    path = "/apis/apps/v1/namespaces/default/daemonsets"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": _POD}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = await client.create(path, "a", spec=spec, metadata={"annotations": {"k": "v"}})
    assert made["metadata"]["annotations"].keys() == {
        "k",
        "deprecated.daemonset.template.generation",
    }
    form = "application/json;as={};g=meta.k8s.io;v=v1"
    alone = await client.call(
        "GET", f"{path}/a", headers={"Accept": form.format("PartialObjectMetadata")}
    )
    table = await client.call("GET", path, headers={"Accept": form.format("Table")})
    for shown in (alone, table["rows"][0]["object"]):
        assert shown["metadata"]["annotations"] == {"k": "v"}


@pytest.mark.parametrize(
    ("path", "spec", "count"),
    [
        (f"{CORE}/configmaps", {}, 4),
        (f"{CORE}/pods", _POD, 3),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases", {}, 3),
    ],
)
async def test_what_is_wrong_with_labels_is_said_as_often_as_it_is_asked(
    client: Client, path: str, spec: dict[str, Any], count: int
) -> None:
    await client.create(path, "a", **({"spec": spec} if spec else {}))
    headers = {"Content-Type": "application/merge-patch+json"}
    patch = {"metadata": {"labels": {"a": "-"}}}
    refused = await client.call("PATCH", f"{path}/a", patch, headers=headers, expect=422)
    fields = [cause["field"] for cause in refused["details"]["causes"]]
    assert fields == ["metadata.labels"] * count


@pytest.mark.parametrize(
    ("given", "stored"), [(1 << 32, None), ((1 << 32) + 7, 7), (1 << 31, -(1 << 31))]
)
async def test_a_number_that_is_too_long_loses_digits_in_a_strategic_merge(
    client: Client, given: int, stored: int | None
) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    await client.create(f"{CORE}/events", "a", involvedObject=about, count=3)
    path = f"{CORE}/events/a"
    changed = await client.call("PATCH", path, {"count": given}, headers=_MERGE, expect=200)
    assert changed.get("count") == stored
    headers = {"Content-Type": "application/merge-patch+json"}
    await client.call("PATCH", path, {"count": given}, headers=headers, expect=422)
