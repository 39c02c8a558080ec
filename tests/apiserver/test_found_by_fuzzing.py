"""What fuzzing has found, each as a test of its own."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import MAPS, Client
from listwatch.apiserver import APIServer


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with APIServer() as server, Client(server) as client:
        yield client


@pytest.mark.parametrize(
    "entry",
    [
        {"fieldsV1": "no object"},
        {"fieldsV1": [None]},
        {"fieldsV1": {"f:data": 1}},
        {"fieldsV1": {"junk": {}}},
        {"fieldsV1": {"f:data": {"k:nonsense": {}}}},
        {"fieldsType": "FieldsV9", "fieldsV1": {}},
    ],
)
async def test_managed_fields_that_can_not_be_read_change_nothing(
    entry: dict[str, Any], client: Client
) -> None:
    """The owners stay those of the stored object, as in `fieldmanager.Update` upstream."""
    url = f"{MAPS}?fieldManager=first"
    metadata = {"name": "a"}
    made = await client.call("POST", url, {"metadata": metadata, "data": {"k": "v"}}, expect=201)
    (owner,) = made["metadata"]["managedFields"]
    metadata["managedFields"] = [
        {"manager": "m", "operation": "Update", "apiVersion": "v1"} | entry
    ]  # type: ignore[assignment]  # a body
    body = {"metadata": metadata, "data": {"k": "v"}}
    put = await client.call("PUT", f"{MAPS}/a?fieldManager=first", body, expect=200)
    (kept,) = put["metadata"]["managedFields"]
    assert (kept["manager"], kept["fieldsV1"]) == (owner["manager"], owner["fieldsV1"])


_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def test_versions_and_columns_without_names_are_refused(client: Client) -> None:
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"served": True, "storage": True, "schema": schema}
    body = {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version | {"additionalPrinterColumns": [{"type": "x"}]}],
        },
    }
    refused = await client.call("POST", _DEFINITIONS, body, expect=422)
    assert [(cause["field"], cause["reason"]) for cause in refused["details"]["causes"]] == [
        ("spec.versions[0].name", "FieldValueInvalid"),
        ("spec.additionalPrinterColumns[0].name", "FieldValueRequired"),
        ("spec.additionalPrinterColumns[0].type", "FieldValueNotSupported"),
        ("spec.additionalPrinterColumns[0].JSONPath", "FieldValueRequired"),
    ]
