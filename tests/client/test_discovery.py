"""Words mean the same resources as for kubectl."""

import json
from pathlib import Path
from typing import Any

import pytest

from listwatch.client.client import Client
from listwatch.client.discovery import Resource
from listwatch.errors import FrameError, ServiceUnavailableError, UnknownResourceError
from listwatch.testing.scripted_server import ScriptedServer, respond

SCHEMA = Path(__file__).parents[1] / "data" / "conformance" / "schema"
SERVED: list[dict[str, Any]] = json.loads((SCHEMA / "resources.json").read_bytes())
CUSTOM: list[dict[str, Any]] = [
    {"group": group, "version": version, "resource": plural, "kind": kind, "scope": "Namespaced",
     "singular": kind.lower(), "verbs": ["list"], "short_names": short, "categories": [],
     "subresources": []}
    for group, version, plural, kind, short in (
        ("example.com", "v1", "widgets", "Widget", ["wi"]),
        ("example.com", "v1beta1", "widgets", "Widget", ["wi"]),
        ("istio.io", "v1", "gateways", "Gateway", ["gw"]),
        ("gateway.networking.k8s.io", "v1", "gateways", "Gateway", ["gtw"]),
        ("serving.knative.dev", "v1", "services", "Service", ["ksvc"]),
    )
]  # fmt: skip


def by_group(items: list[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for item in items:
        groups.setdefault(item["group"], {}).setdefault(item["version"], []).append(item)
    return groups


def aggregated(items: list[dict[str, Any]], stale: str = "none") -> bytes:
    body = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Stale" if group == stale else "Current",
                        "resources": [
                            {
                                "resource": item["resource"],
                                "responseKind": {"kind": item["kind"]},
                                "scope": item["scope"],
                                "singularResource": item["singular"],
                                "verbs": item["verbs"],
                                "shortNames": item["short_names"] or None,
                                "categories": item["categories"],
                                "subresources": [
                                    {"subresource": sub["name"] if isinstance(sub, dict) else sub}
                                    for sub in item["subresources"]
                                ],
                            }
                            for item in listed
                        ],
                    }
                    for version, listed in versions.items()
                ],
            }
            for group, versions in by_group(items).items()
        ],
    }
    return respond(body)


def serve_aggregated(
    server: ScriptedServer, items: list[dict[str, Any]], stale: str = "none"
) -> None:
    server.answers["/api"] = aggregated([item for item in items if not item["group"]])
    server.answers["/apis"] = aggregated([item for item in items if item["group"]], stale)


def serve_plain(server: ScriptedServer, items: list[dict[str, Any]]) -> None:
    groups = by_group(items)
    server.answers["/api"] = {"kind": "APIVersions", "versions": list(groups[""])}
    server.answers["/apis"] = {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": group,
                "versions": [
                    {"groupVersion": f"{group}/{v}", "version": v} for v in reversed(versions)
                ],
                "preferredVersion": {
                    "groupVersion": f"{group}/{next(iter(versions))}",
                    "version": next(iter(versions)),
                },
            }
            for group, versions in groups.items()
            if group
        ],
    }
    for group, versions in groups.items():
        for version, listed in versions.items():
            path = f"/apis/{group}/{version}" if group else f"/api/{version}"
            server.answers[path] = {
                "kind": "APIResourceList",
                "resources": [
                    {
                        "name": f"{item['resource']}{sub}",
                        "singularName": item["singular"],
                        "namespaced": item["scope"] == "Namespaced",
                        "kind": item["kind"],
                        "verbs": item["verbs"],
                        "shortNames": item["short_names"],
                        "categories": item["categories"],
                    }
                    for item in listed
                    for sub in (
                        "",
                        *(
                            f"/{s['name'] if isinstance(s, dict) else s}"
                            for s in item["subresources"]
                        ),
                    )
                ],
            }


WORDS = {
    "pods": "pods.v1.",
    "po": "pods.v1.",
    "Pod": "pods.v1.",
    "pod": "pods.v1.",
    "PODS": "pods.v1.",
    "pods.v1.": "pods.v1.",
    "deployments": "deployments.v1.apps",
    "deployment": "deployments.v1.apps",
    "deploy": "deployments.v1.apps",
    "deployments.apps": "deployments.v1.apps",
    "deploy.apps": "deployments.v1.apps",
    "deployments.v1.apps": "deployments.v1.apps",
    "Deployment.v1.apps": "deployments.v1.apps",
    "deployments.app": "deployments.v1.apps",
    "events": "events.v1.",
    "events.events.k8s.io": "events.v1.events.k8s.io",
    "ev": "events.v1.",
    "services": "services.v1.",
    "svc": "services.v1.",
    "ksvc": "services.v1.serving.knative.dev",
    "services.serving.knative.dev": "services.v1.serving.knative.dev",
    "wi": "widgets.v1.example.com",
    "widgets.v1beta1.example.com": "widgets.v1beta1.example.com",
    "widgets.example.com": "widgets.v1.example.com",
    "gw": "gateways.v1.istio.io",
    "crd": "customresourcedefinitions.v1.apiextensions.k8s.io",
    "ns": "namespaces.v1.",
}


@pytest.mark.parametrize("form", ["aggregated", "plain"])
async def test_words_mean_what_kubectl_takes_them_for(
    server: ScriptedServer, client: Client, form: str
) -> None:
    serve = serve_aggregated if form == "aggregated" else serve_plain
    serve(server, SERVED + CUSTOM)
    for word, meant in WORDS.items():
        assert (await client.discovery.find(word)).full_name == meant, word
    # One discovery serves all words; an aggregated one takes two requests.
    if form == "aggregated":
        assert len(server.targets) == 2
    else:
        versions = {(item["group"], item["version"]) for item in SERVED + CUSTOM}
        assert len(server.targets) == 2 + len(versions)


@pytest.mark.parametrize("form", ["aggregated", "plain"])
async def test_a_resource_has_what_discovery_tells(
    server: ScriptedServer, client: Client, form: str
) -> None:
    (serve_aggregated if form == "aggregated" else serve_plain)(server, SERVED)
    deployment = await client.discovery.find("deploy")
    assert deployment.kind == "Deployment"
    assert deployment.api_version == "apps/v1"
    assert deployment.namespaced
    assert {"list", "watch"} <= set(deployment.verbs)
    assert set(deployment.subresources) == {"scale", "status"}
    assert not (await client.discovery.find("nodes")).namespaced


@pytest.mark.parametrize("form", ["aggregated", "plain"])
async def test_a_category_has_each_of_its_resources_once(
    server: ScriptedServer, client: Client, form: str
) -> None:
    other = [{**item, "version": "v2"} for item in SERVED if item["resource"] == "deployments"]
    (serve_aggregated if form == "aggregated" else serve_plain)(server, SERVED + other)
    names = [resource.full_name for resource in await client.discovery.category("all")]
    assert "pods.v1." in names
    assert "deployments.v1.apps" in names
    assert "deployments.v2.apps" not in names
    assert "secrets.v1." not in names
    assert len(names) == len(set(names)) >= 9


async def test_an_unknown_resource_is_named(server: ScriptedServer, client: Client) -> None:
    serve_aggregated(server, SERVED)
    with pytest.raises(UnknownResourceError, match=r"has no resource 'gadgets'$"):
        await client.discovery.find("gadgets")


async def test_an_ambiguous_word_lists_what_it_may_mean(
    server: ScriptedServer, client: Client
) -> None:
    serve_aggregated(server, SERVED + CUSTOM)
    with pytest.raises(UnknownResourceError) as caught:
        await client.discovery.find("gateways")
    assert caught.value.candidates == (
        "gateways.gateway.networking.k8s.io",
        "gateways.istio.io",
    )
    for candidate in caught.value.candidates:
        assert candidate in str(caught.value)
        assert str(await client.discovery.find(candidate)) == candidate


async def test_a_resource_that_came_later_is_found_by_asking_again(
    server: ScriptedServer, client: Client
) -> None:
    serve_aggregated(server, SERVED)
    await client.discovery.find("pods")
    serve_aggregated(server, SERVED + CUSTOM)
    assert (await client.discovery.find("widgets")).group == "example.com"
    assert len(server.targets) == 4


async def test_an_unavailable_group_does_not_hide_the_others(
    server: ScriptedServer, client: Client
) -> None:
    serve_plain(server, SERVED + CUSTOM)
    server.answers["/apis/example.com/v1"] = respond(b"down", code=503, type_="text/plain")
    assert (await client.discovery.find("pods")).plural == "pods"
    with pytest.raises(UnknownResourceError, match=r"did not say what example.com/v1 serves"):
        await client.discovery.find("gadgets")


async def test_a_stale_group_is_told_when_something_is_missing(
    server: ScriptedServer, client: Client
) -> None:
    serve_aggregated(server, SERVED + CUSTOM, stale="istio.io")
    with pytest.raises(UnknownResourceError, match=r"did not say what istio.io/v1 serves"):
        await client.discovery.find("gadgets")


async def test_a_refused_discovery_is_the_servers_error(
    server: ScriptedServer, client: Client
) -> None:
    server.answers["/api"] = respond(b"starting", code=503, type_="text/plain")
    with pytest.raises(ServiceUnavailableError, match="starting"):
        await client.discovery.find("pods")


async def test_an_answer_that_is_no_discovery_is_told(
    server: ScriptedServer, client: Client
) -> None:
    server.answers["/api"] = respond(b"<html>", type_="text/html")
    with pytest.raises(FrameError, match="is not an object but a web page"):
        await client.discovery.find("pods")


def test_paths_are_quoted_and_names_can_not_leave_their_place() -> None:
    role = Resource(group="rbac.authorization.k8s.io", version="v1", plural="roles", kind="Role")
    assert role.path("ns", "system:a b%?", "status") == (
        "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles/system:a%20b%25%3F/status"
    )
    node = Resource(version="v1", plural="nodes", kind="Node", namespaced=False)
    assert node.path(name="n1") == "/api/v1/nodes/n1"
    with pytest.raises(ValueError, match="nodes have no namespace"):
        node.path("ns")
    for name in ("..", ".", "a/b"):
        with pytest.raises(ValueError, match="is not a valid object name"):
            role.path("ns", name)
        with pytest.raises(ValueError, match="is not a valid object name"):
            role.path(name)
