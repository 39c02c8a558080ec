"""Requests that a real server treats specially: methods, YAML, time-outs, names."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from yarl import URL

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import Rule
from listwatch.apiserver.http.request_info import check_timeout, parse_request
from listwatch.errors import BadRequestError
from listwatch.schema.parsing import parse_yaml

CONFIG_MAPS = f"{CORE}/configmaps"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


@pytest.mark.parametrize("text", ["10s", "1m30s", "1.5h", "0", "-3ms"])
def test_a_duration_of_go_is_a_time_out(text: str) -> None:
    check_timeout({"timeout": [text]})


@pytest.mark.parametrize(("text", "why"), [("x", "invalid duration"), ("5", "missing unit")])
def test_what_is_no_duration_is_no_time_out(text: str, why: str) -> None:
    with pytest.raises(BadRequestError, match=why):
        check_timeout({"timeout": [text]})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: y", {"a": True}),
        ("a: N", {"a": False}),
        ("a: 'y'", {"a": "y"}),
        ("on: 1", {"true": 1}),
        ("1: a", {"1": "a"}),
        ("a: 1\n---\nb: 2\n", {"a": 1}),
    ],
)
def test_yaml_is_read_by_the_rules_of_go(text: str, value: object) -> None:
    assert parse_yaml(text.encode()) == value


@pytest.mark.parametrize(
    ("query", "allowed"),
    [
        ({}, False),
        ({"fieldSelector": ["metadata.name=a"]}, True),
        ({"fieldSelector": ["metadata.name=b"]}, False),
        ({"fieldSelector": ["metadata.name!=a"]}, False),
        ({"watch": ["1"], "fieldSelector": ["metadata.name=a"]}, True),
        ({"fieldSelector": ["=="]}, False),
    ],
)
def test_a_list_of_one_name_needs_the_right_to_that_name_alone(
    query: dict[str, list[str]], allowed: bool
) -> None:
    rule = Rule(("list", "watch"), ("",), ("configmaps",), ("a",))
    info = parse_request("GET", "/api/v1/namespaces/n/configmaps", query)
    assert rule.allows(info) is allowed


@pytest.mark.parametrize("method", ["PUT", "POST", "OPTIONS"])
async def test_the_version_is_only_read(client: Client, method: str) -> None:
    await client.call(method, "/version", expect=405)


@pytest.mark.parametrize("path", [CONFIG_MAPS, "/api/v1", "/version"])
async def test_what_is_no_object_has_no_head(path: str) -> None:
    async with (
        EmbeddedAPIServer() as server,
        aiohttp.ClientSession() as session,
        session.head(server.url + path) as response,
    ):
        assert response.status == 405


async def test_no_object_is_named_like_a_folder() -> None:
    async with EmbeddedAPIServer() as server, aiohttp.ClientSession() as session:
        url = URL(f"{server.url}{CONFIG_MAPS}/%2E%2E", encoded=True)
        async with session.get(url) as response:
            assert response.status == 400


async def test_a_cluster_wide_kind_is_in_no_namespace(client: Client) -> None:
    await client.call("GET", "/api/v1/namespaces/default", expect=200)
    await client.call("GET", "/api/v1/namespaces/default/namespaces", expect=404)
    await client.call("GET", "/api/v1/namespaces/default/nodes", expect=404)


@pytest.mark.parametrize("header", ["Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-K"])
async def test_all_else_is_impersonated_with_a_user_only(client: Client, header: str) -> None:
    await client.call("GET", CONFIG_MAPS, headers={header: "g"}, expect=400)
    headers = {header: "g", "Impersonate-User": "u"}
    await client.call("GET", CONFIG_MAPS, headers=headers, expect=200)


async def test_a_document_of_another_hash_is_looked_for_at_its_own(client: Client) -> None:
    index = await client.call("GET", "/openapi/v3", expect=200)
    place = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
    async with aiohttp.ClientSession() as session:
        url = client.server.url + place
        async with session.get(url) as response:
            assert response.status == 200
            assert response.headers["Cache-Control"] == "public, immutable"
            tag = response.headers["ETag"]
        async with session.get(url, headers={"If-None-Match": tag}) as response:
            assert response.status == 304
        stale = url.partition("=")[0] + "=stale"
        async with session.get(stale, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (301, place)


async def test_no_watch_is_written_in_yaml(client: Client) -> None:
    headers = {"Accept": "application/yaml"}
    await client.call("GET", f"{CONFIG_MAPS}?watch=1", headers=headers, expect=406)


_GADGETS = {
    "metadata": {"name": "gadgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "gadgets", "kind": "Gadget"},
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


@pytest.mark.parametrize(
    ("method", "path", "code", "details"),
    [
        ("GET", "namespaces/default/gadgets/a/log", 404, {"name": "a"}),
        ("GET", "namespaces/default/gadgets/a/status", 404, {"name": "a"}),
        ("OPTIONS", "namespaces/default/gadgets", 405, {}),
        ("PUT", "namespaces/default/gadgets", 400, None),
        ("PATCH", "namespaces/default/gadgets", 400, None),
        ("DELETE", "gadgets", 404, None),
        ("DELETE", "gadgets/a", 404, None),
        ("POST", "gadgets", 404, None),
        ("GET", "gadgets", 200, None),
    ],
)
async def test_custom_resources_have_verbs_and_no_routes(
    client: Client, method: str, path: str, code: int, details: dict[str, str] | None
) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client.call("POST", definitions, _GADGETS, expect=201)
    answer = await client.call(method, f"/apis/example.com/v1/{path}", {}, expect=code)
    if details is not None:
        kind = {"group": "example.com", "kind": "gadgets"}
        assert answer["details"] == {**details, **kind}
