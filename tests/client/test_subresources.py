"""Creation of objects that are not stored, such as reviews, and of subresources."""

from typing import Any

import pytest

from listwatch.client.client import Client
from listwatch.client.discovery import UnknownResourceError
from listwatch.errors import FrameError, TooManyRequestsError
from listwatch.testing.scripted_server import ScriptedServer, respond


def served(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespaced": True, "kind": kind, "verbs": ["get", "create"], **more}


REVIEW = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": {}}
SCALE_TYPE = {"group": "autoscaling", "version": "v1"}
PODS = "/api/v1/namespaces/shop/pods"


@pytest.fixture(autouse=True)
def discovery(server: ScriptedServer) -> None:
    groups = ("apps", "authorization.k8s.io")
    server.answers["/api"] = {"versions": ["v1"]}
    server.answers["/apis"] = {
        "groups": [{"name": name, "versions": [{"version": "v1"}]} for name in groups]
    }
    server.answers["/api/v1"] = {
        "resources": [
            served("bindings", "Binding"),
            served("pods", "Pod"),
            served("pods/binding", "Binding"),
            served("pods/eviction", "Eviction", group="policy", version="v1"),
            served("serviceaccounts", "ServiceAccount"),
            served(
                "serviceaccounts/token",
                "TokenRequest",
                group="authentication.k8s.io",
                version="v1",
            ),
        ]
    }
    server.answers["/apis/apps/v1"] = {
        "resources": [
            served("deployments", "Deployment"),
            served("deployments/scale", "Scale", **SCALE_TYPE),
            served("statefulsets", "StatefulSet"),
            served("statefulsets/scale", "Scale", **SCALE_TYPE),
        ]
    }
    review = served("subjectaccessreviews", "SubjectAccessReview", namespaced=False)
    server.answers["/apis/authorization.k8s.io/v1"] = {
        "resources": [{**review, "verbs": ["create"]}]
    }


@pytest.mark.parametrize("metadata", [None, {}, {"creationTimestamp": None}])
async def test_a_review_is_answered_without_a_name(
    server: ScriptedServer, client: Client, metadata: dict[str, Any] | None
) -> None:
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = {**REVIEW, "metadata": metadata, "status": {"allowed": True}}
    server.answers[path] = respond(answer, code=201)
    review = await client.create(REVIEW if metadata is None else {**REVIEW, "metadata": metadata})
    assert server.targets[-1] == f"POST {path}"
    assert (review.kind, review.api_version, review.name) == (
        "SubjectAccessReview",
        "authorization.k8s.io/v1",
        "",
    )
    assert review["status"]["allowed"] is True
    assert review.to_dict() == answer


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"kind": "X"}', b"[" * 10_000])
async def test_an_answer_without_name_and_type_is_none(
    server: ScriptedServer, client: Client, body: bytes
) -> None:
    server.answers["/apis/authorization.k8s.io/v1/subjectaccessreviews"] = respond(body)
    with pytest.raises(FrameError, match=r"the response to POST .* is not an object"):
        await client.create(REVIEW)


@pytest.mark.parametrize(
    ("obj", "options", "path"),
    [
        (
            {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "web-1"}},
            {"subresource": "eviction", "dry_run": True},
            f"{PODS}/web-1/eviction?dryRun=All",
        ),
        (
            {"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "web-1"}, "target": {}},
            {"subresource": "binding", "field_manager": "me"},
            f"{PODS}/web-1/binding?fieldManager=me",
        ),
        (
            {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"},
            {"subresource": "token", "name": "default", "namespace": "other"},
            "/api/v1/namespaces/other/serviceaccounts/default/token",
        ),
    ],
    ids=["eviction", "binding", "token"],
)
async def test_an_object_of_a_subresource_is_created_at_its_object(
    server: ScriptedServer,
    client: Client,
    obj: dict[str, Any],
    options: dict[str, Any],
    path: str,
) -> None:
    server.answers[path.partition("?")[0]] = {"kind": "Status", "apiVersion": "v1", "code": 201}
    assert (await client.create(obj, **options)).kind == "Status"
    assert server.targets[-1] == f"POST {path}"
    assert server.body() == obj


async def test_an_eviction_that_a_budget_forbids_is_the_servers_refusal(
    server: ScriptedServer, client: Client
) -> None:
    server.answers[f"{PODS}/p/eviction"] = respond({"kind": "Status", "code": 429}, code=429)
    eviction = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}}
    with pytest.raises(TooManyRequestsError):
        await client.create(eviction, subresource="eviction")
    assert server.targets.count(f"POST {PODS}/p/eviction") == 1


async def test_a_subresource_needs_the_name_of_its_object(client: Client) -> None:
    token = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
    with pytest.raises(ValueError, match="token needs the object's name"):
        await client.create(token, subresource="token")


def scale(uid: str) -> dict[str, Any]:
    meta = {"name": "web", "namespace": "shop", "uid": uid, "resourceVersion": "7"}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": {}}


async def test_a_scale_goes_to_the_object_of_its_uid(
    server: ScriptedServer, client: Client
) -> None:
    apps = "/apis/apps/v1/namespaces/shop"
    for plural, uid in (("deployments", "u1"), ("statefulsets", "u2")):
        meta = {"name": "web", "namespace": "shop", "uid": uid}
        server.answers[f"{apps}/{plural}/web"] = {"metadata": meta}
        server.answers[f"{apps}/{plural}/web/scale"] = scale(uid)
    await client.update(scale("u2"), subresource="scale")
    assert server.targets[-1] == f"PUT {apps}/statefulsets/web/scale"
    await client.update(scale("u1"), subresource="scale")
    assert server.targets[-1] == f"PUT {apps}/deployments/web/scale"
    read = await client.get("statefulsets", "web", subresource="scale")
    await client.update(read, subresource="scale")
    assert server.targets[-1] == f"PUT {apps}/statefulsets/web/scale"
    for unknown in (scale("u3"), scale("")):
        with pytest.raises(UnknownResourceError, match=r"deployments\.apps, statefulsets\.apps"):
            await client.update(unknown, subresource="scale")
    await client.update(scale(""), resource="deployments", subresource="scale")
    assert server.targets[-1] == f"PUT {apps}/deployments/web/scale"
