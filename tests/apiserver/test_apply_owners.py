"""Owners of applied fields: in typed objects, and after client-side apply."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.storage.field_sets import applied_fields, to_fields_v1
from listwatch.schema.structural import build_root

_LAST = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


@pytest.mark.parametrize(
    ("schema", "value", "fields"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "object"}}},
            {"a": {}},
            {"f:a": {}},
        ),
        (
            {"type": "object", "properties": {"a": {"properties": {"b": {"type": "integer"}}}}},
            {"a": {"b": 1}},
            {"f:a": {"f:b": {}}},
        ),
        (
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            {"a": {"b": {"c": 1}}, "l": [1]},
            {"f:a": {".": {}, "f:b": {".": {}, "f:c": {}}}, "f:l": {}},
        ),
        (
            {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}},
            },
            {"a": {"b": 1}, "z": {"b": 1}},
            {"f:a": {"f:b": {}}, "f:z": {".": {}, "f:b": {}}},
        ),
        (
            {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "properties": {"b": {"type": "integer"}},
                },
            },
            {"k": {"b": 1}, "l": {}},
            {"f:k": {".": {}, "f:b": {}}, "f:l": {}},
        ),
    ],
)
def test_what_a_type_does_not_name_is_a_member_itself(
    schema: dict[str, Any], value: dict[str, Any], fields: dict[str, Any]
) -> None:
    root = {"type": "object", "properties": {"spec": schema}}
    found = to_fields_v1(applied_fields({"spec": value}, build_root(root)))
    assert found == {"f:spec": fields}


def _map(data: dict[str, str], **annotations: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "a"}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def _made_by_client(client: Client, data: dict[str, str], said: dict[str, str]) -> None:
    """Create a ConfigMap as client-side `kubectl apply` does; `said` is the last-applied state."""
    body = _map(data, **{_LAST: json.dumps(_map(said))})
    path = f"{CORE}/configmaps?fieldManager=kubectl-client-side-apply"
    await client.call("POST", path, body, expect=201)


async def _apply(client: Client, data: dict[str, str], manager: str, code: int) -> Any:
    path = f"{CORE}/configmaps/a?fieldManager={manager}"
    headers = {"Content-Type": "application/apply-patch+yaml"}
    return await client.call("PATCH", path, _map(data), headers=headers, expect=code)


@pytest.mark.parametrize(
    ("data", "said", "manager", "code"),
    [
        ({"k": "1"}, {"k": "1"}, "kubectl", 200),
        ({"k": "1"}, {"k": "1"}, "other", 409),
        # changed since the last apply
        ({"k": "1"}, {"k": "0"}, "kubectl", 409),
        ({"k": "1"}, {}, "kubectl", 409),
    ],
)
async def test_kubectl_takes_over_what_its_annotation_says(
    client: Client, data: dict[str, str], said: dict[str, str], manager: str, code: int
) -> None:
    await _made_by_client(client, data, said)
    await _apply(client, {"k": "2"}, manager, code)


async def test_only_the_other_conflicts_are_told(client: Client) -> None:
    await _made_by_client(client, {"k": "1", "l": "1"}, {"k": "1"})
    refused = await _apply(client, {"k": "2", "l": "2"}, "kubectl", 409)
    assert [cause["field"] for cause in refused["details"]["causes"]] == [".data.l"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"apiVersion":"v2","data":{"k":"1"}}'])
async def test_an_annotation_that_says_nothing_counts_for_nothing(
    client: Client, text: str
) -> None:
    body = _map({"k": "1"}, **{_LAST: text})
    await client.call("POST", f"{CORE}/configmaps?fieldManager=x", body, expect=201)
    await _apply(client, {"k": "2"}, "kubectl", 409)


async def test_the_annotation_is_written_anew_where_there_is_one(client: Client) -> None:
    await _made_by_client(client, {"k": "1"}, {"k": "1"})
    made = await _apply(client, {"k": "2"}, "kubectl", 200)
    assert made["metadata"]["annotations"][_LAST].endswith("}\n")
    assert json.loads(made["metadata"]["annotations"][_LAST]) == _map({"k": "2"})


async def test_no_annotation_is_made(client: Client) -> None:
    made = await _apply(client, {"k": "2"}, "kubectl", 201)
    assert "annotations" not in made["metadata"]


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (
            f"{CORE}/events",
            {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}},
            {"f:involvedObject": {}},
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            {
                "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
                "eventTime": "2024-01-01T00:00:00.000000Z",
                "reportingController": "c.example.com/x",
                "reportingInstance": "i",
                "action": "A",
                "reason": "R",
                "note": "text",
                "type": "Normal",
            },
            {
                f"f:{name}": {}
                for name in (
                    "action",
                    "eventTime",
                    "note",
                    "reason",
                    "regarding",
                    "reportingController",
                    "reportingInstance",
                    "type",
                )
            },
        ),
    ],
)
async def test_fields_are_owned_by_the_names_of_their_version(
    client: Client, path: str, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    made = await client.create(path, "a", **body)
    (entry,) = made["metadata"]["managedFields"]
    assert entry["fieldsV1"] == fields
    changed = await client.merge(f"{path}/a", {"metadata": {"labels": {"a": "b"}}})
    (entry,) = changed["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {**fields, "f:metadata": {"f:labels": {".": {}, "f:a": {}}}}


async def test_an_apply_that_names_the_uid_of_what_is_gone_makes_nothing(client: Client) -> None:
    body = {**_map({}), "metadata": {"name": "a", "uid": "00000000-0000-4000-8000-000000000000"}}
    headers = {"Content-Type": "application/apply-patch+yaml"}
    path = f"{CORE}/configmaps/a"
    await client.call("PATCH", f"{path}?fieldManager=m", body, headers=headers, expect=409)
    await client.call("GET", path, expect=404)
