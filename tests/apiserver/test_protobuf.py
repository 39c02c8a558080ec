"""The protobuf form: every known field of a kind survives a round trip."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.http.protobuf import decode_object, encode_json
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.schema.facts import Form, Schema, facts

_PROTOBUF = "application/vnd.kubernetes.protobuf"
_SAMPLES: dict[Form, Any] = {
    Form.STRING: "text",
    Form.INTEGER: 7,
    Form.NUMBER: 1.5,
    Form.BOOLEAN: True,
    Form.INT_OR_STRING: "http",
    Form.QUANTITY: "100m",
    Form.TIME: "2024-01-02T03:04:05Z",
    Form.MICRO_TIME: "2024-01-02T03:04:05.123456Z",
    Form.BYTES: "eA==",
    Form.ANY: {"type": "text"},  # also valid where a schema is expected
}
#: Alpha fields that later releases rename.
_RENAMED = frozenset(
    ("Device.nodeAllocatableResourceMappings", "NodeAllocatableResourceClaimStatus.resources")
)
#: An object without fields; the schema facts lack its type.
_EMPTY = ("CustomResourceSubresources", "status")
_KINDS = {f"{each.api_version}/{each.kind}": each for each in ResourceTable(facts())}


def full(schema: Schema, depth: int = 0) -> Any:
    """Return a value with every field set."""
    if schema.form is Form.LIST and schema.item is not None:
        return [full(schema.item, depth)]
    if schema.form is Form.MAP and schema.item is not None:
        return {"k": full(schema.item, depth)}
    if schema.form is not Form.STRUCT:
        return _SAMPLES[schema.form]
    if depth > 7:
        return {}
    fields = schema.fields.items()
    skipped = {"kind", "apiVersion"} if "metadata" in schema.fields else set()
    return {
        name: {} if (schema.go_name, name) == _EMPTY else full(field, depth + 1)
        for name, field in fields
        if name not in skipped and f"{schema.go_name}.{name}" not in _RENAMED
    }


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


@pytest.mark.parametrize("resource", _KINDS.values(), ids=list(_KINDS))
def test_every_field_of_a_kind_survives(resource: APIResource) -> None:
    given = {"apiVersion": resource.api_version, "kind": resource.kind, **full(resource.schema)}
    back = decode_object(encode_json(msgspec.json.encode(given)), resource)
    assert back == given


async def test_what_came_in_protobuf_can_be_put_back_in_it(client: Client) -> None:
    await client.create(f"{CORE}/pods", "a", spec={"containers": [{"name": "c", "image": "i"}]})
    path = f"{client.server.url}{CORE}/pods/a"
    async with aiohttp.ClientSession() as session:
        async with session.get(path, headers={"Accept": _PROTOBUF}) as answer:
            body = await answer.read()
        headers = {"Content-Type": _PROTOBUF}
        async with session.put(path, data=body, headers=headers) as answer:
            stored = await answer.json()
    assert answer.status == 200, stored
    assert stored["metadata"]["managedFields"][0]["manager"].startswith("Python")
    assert stored["spec"]["containers"][0]["image"] == "i"
