"""Findings of fuzzing and hostile requests, one test each."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, MAPS, PODS, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.controllers import definitions
from listwatch.apiserver.kinds.custom import resources_of
from listwatch.apiserver.user import User


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
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
    """The stored object's owners stay, as in `fieldmanager.Update` upstream."""
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
        ("spec.additionalPrinterColumns[0].type", "FieldValueInvalid"),
        ("spec.additionalPrinterColumns[0].JSONPath", "FieldValueRequired"),
    ]


_DIGITS = "9" * 5000


@pytest.mark.parametrize("query", ["limit", "timeoutSeconds", "resourceVersion"])
async def test_a_number_of_many_digits_in_a_query_is_refused(client: Client, query: str) -> None:
    """Python's int() refuses more than 4300 digits."""
    refused = await client.call("GET", f"{MAPS}?{query}={_DIGITS}", expect=400)
    assert refused["message"].endswith(f'parsing "{_DIGITS}": value out of range')


async def test_a_number_of_many_digits_in_a_body_is_refused(client: Client) -> None:
    await client.create(MAPS, "a", metadata={"finalizers": ["example.com/a"]})
    body = {"metadata": {"name": "a", "resourceVersion": _DIGITS}}
    refused = await client.call("PUT", f"{MAPS}/a", body, expect=500)
    assert refused["message"] == f'strconv.ParseUint: parsing "{_DIGITS}": value out of range'
    patch = [{"op": "add", "path": f"/metadata/finalizers/{_DIGITS}", "value": "example.com/b"}]
    form = {"Content-Type": "application/json-patch+json"}
    await client.call("PATCH", f"{MAPS}/a", patch, headers=form, expect=422)


@pytest.mark.parametrize("amount", ["9" * 1_000_000 + "Ki", "1e" + _DIGITS])
async def test_a_quantity_of_many_digits_is_refused_at_once(client: Client, amount: str) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"hard": {"pods": amount}}}
    await client.call("POST", f"{CORE}/resourcequotas", body, expect=400)


@pytest.mark.parametrize("text", ["\u00b2%", _DIGITS + "%"])
async def test_a_percentage_that_is_none_is_refused(client: Client, text: str) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"minAvailable": text, "selector": {}}}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    refused = await client.call("POST", path, body, expect=422)
    assert [cause["field"] for cause in refused["details"]["causes"]] == ["spec.minAvailable"]


@pytest.mark.parametrize("seconds", [9 * 10**18, -9 * 10**18])
@pytest.mark.parametrize("asked", [None, 0, 1, 9 * 10**18, -9 * 10**18])
async def test_any_grace_period_can_be_asked_for(
    client: Client, seconds: int, asked: int | None
) -> None:
    spec = {"nodeName": "n", "containers": [{"name": "a", "image": "b"}]}
    body = {"metadata": {"name": "p"}, "spec": spec | {"terminationGracePeriodSeconds": 10**18}}
    await client.call("POST", PODS, body, expect=201)
    await client.call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": seconds}, expect=200)
    options = {} if asked is None else {"gracePeriodSeconds": asked}
    await client.call("DELETE", f"{PODS}/p", options, expect=200)


@pytest.mark.parametrize(
    "made", ["[*a{n}, *a{n}]", "{{x: *a{n}, y: *a{n}}}", "{{<<: [*a{n}, *a{n}]}}"]
)
async def test_yaml_whose_aliases_stand_for_gigabytes_is_refused_at_once(
    client: Client, made: str
) -> None:
    lines = ["a0: &a0 {k: v}", *(f"a{n + 1}: &a{n + 1} {made.format(n=n)}" for n in range(40))]
    form = {"Content-Type": "application/yaml"}
    refused = await client.call("POST", MAPS, "\n".join(lines).encode(), headers=form, expect=400)
    assert "yaml: document contains excessive aliasing" in refused["message"]


async def test_yaml_with_aliases_is_read(client: Client) -> None:
    lines = "metadata: {name: a}\ndata: {a: &a b, c: *a}"
    form = {"Content-Type": "application/yaml"}
    made = await client.call("POST", MAPS, lines.encode(), headers=form, expect=201)
    assert made["data"] == {"a": "b", "c": "b"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([b"Authorization: Bearer \xff\xfe"], 401),
        ([b"Authorization: Bearer t", b"Impersonate-User: \xff\xfe"], 403),
        ([b"Authorization: Bearer t", b"Impersonate-User: x", b"Impersonate-Group: \xff"], 403),
        ([b"Authorization: Bearer t", b"User-Agent: \xff\xfe"], 201),
    ],
)
async def test_headers_of_any_bytes_are_answered(
    headers: list[bytes], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedAPIServer(tokens={"t": User("u", ("system:masters",))}) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        head = [f"POST {MAPS} HTTP/1.1".encode(), b"Host: x", b"Connection: close", *headers]
        body = b'{"metadata":{"name":"a"},"data":{"k":"v"}}'
        head += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
        writer.write(b"\r\n".join([*head, b"", body]))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert int(answer[9:12]) == status, answer
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_copies_that_double_what_there_is_are_refused(client: Client) -> None:
    """Twenty such copies make a gigabyte of a kilobyte."""
    await client.create(MAPS, "a", data={"k": "x" * 1000})
    patch = [{"op": "copy", "from": "", "path": f"/x{number}"} for number in range(20)]
    form = {"Content-Type": "application/json-patch+json"}
    await client.call("PATCH", f"{MAPS}/a", patch, headers=form, expect=422)


async def test_long_lists_are_merged_in_a_time_that_grows_as_they_do(client: Client) -> None:
    """Comparing each item with each other one took a minute."""
    old, new = ([f"{letter}.com/{number}" for number in range(20_000)] for letter in "ab")
    await client.create(MAPS, "a", metadata={"finalizers": old})
    patch = {"metadata": {"finalizers": new}}
    form = {"Content-Type": "application/strategic-merge-patch+json"}
    before = time.process_time()
    made = await client.call("PATCH", f"{MAPS}/a", patch, headers=form, expect=200)
    assert time.process_time() - before < 10
    assert made["metadata"]["finalizers"] == new + old


@pytest.mark.parametrize("value", [1, None, [], "x"])
async def test_a_patch_that_leaves_no_object_of_a_scale_is_refused(
    client: Client, value: object
) -> None:
    pod = {"containers": [{"name": "a", "image": "b"}]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    body = {"metadata": {"name": "r"}, "spec": {"selector": {"a": "b"}, "template": template}}
    await client.call("POST", f"{CORE}/replicationcontrollers", body, expect=201)
    patch = [{"op": "replace", "path": "", "value": value}]
    form = {"Content-Type": "application/json-patch+json"}
    path = f"{CORE}/replicationcontrollers/r/scale"
    await client.call("PATCH", path, patch, headers=form, expect=422)


@pytest.mark.parametrize("key", ["metrics", "current-metrics", "behavior", "conditions"])
@pytest.mark.parametrize(
    "text", ["1", '["x"]', '[{"type":[]}]', '[{"type":"Resource","resource":"x"}]', "[" * 5000]
)
async def test_an_autoscalers_annotation_that_says_nothing_is_dropped(
    client: Client, key: str, text: str
) -> None:
    path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
    notes = {f"autoscaling.alpha.kubernetes.io/{key}": text}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
        "maxReplicas": 5,
    }
    body = {"metadata": {"name": "a", "annotations": notes}, "spec": spec}
    await client.call("POST", path, body, expect=201)
    await client.call("GET", path, expect=200)


def definition(plural: str, schema: dict[str, Any], **version: Any) -> dict[str, Any]:
    whole = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": plural.title()},
            "versions": [whole | version],
        },
    }


_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_EXAMPLES = "/apis/example.com/v1/namespaces/default"


async def test_a_selectable_field_without_a_path_is_refused(client: Client) -> None:
    body = definition("widgets", _ANYTHING, selectableFields=[{}])
    refused = await client.call("POST", _DEFINITIONS, body, expect=422)
    assert [cause["field"] for cause in refused["details"]["causes"]] == [
        "spec.selectableFields[0].jsonPath"
    ]


async def test_a_definition_that_can_not_be_served_does_not_end_the_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = resources_of

    def fail_for_bad(body: Any) -> Any:
        if body["spec"]["names"]["plural"] == "bads":
            raise KeyError("a rule that validation has not")
        return made(body)

    monkeypatch.setattr(definitions, "resources_of", fail_for_bad)
    for plural in ("bads", "goods"):
        await client.call("POST", _DEFINITIONS, definition(plural, _ANYTHING), expect=201)
    await client.call("GET", f"{_EXAMPLES}/goods", expect=200)
    assert {record.message for record in caplog.records} == {
        "the definition bads.example.com can't be served"
    }
    caplog.clear()


async def test_a_new_definition_costs_nothing_for_the_others(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.call("POST", _DEFINITIONS, definition("olds", _ANYTHING), expect=201)
    await client.call("GET", f"{_EXAMPLES}/olds", expect=200)
    looked_at: list[str] = []
    made = resources_of

    def noted(body: Any) -> Any:
        looked_at.append(body["spec"]["names"]["plural"])
        return made(body)

    monkeypatch.setattr(definitions, "resources_of", noted)
    await client.call("POST", _DEFINITIONS, definition("news", _ANYTHING), expect=201)
    await client.call("GET", f"{_EXAMPLES}/news", expect=200)
    assert set(looked_at) == {"news"}
    await client.merge(f"{_DEFINITIONS}/olds.example.com", {"metadata": {"labels": {"a": "b"}}})
    await client.call("GET", f"{_EXAMPLES}/olds", expect=200)
    assert looked_at[-1] == "olds"


async def test_a_column_of_an_index_beyond_all_lists_is_empty(client: Client) -> None:
    column = {"name": "x", "type": "string", "jsonPath": f".spec.a[{_DIGITS}]"}
    body = definition("widgets", _ANYTHING, additionalPrinterColumns=[column])
    await client.call("POST", _DEFINITIONS, body, expect=201)
    kind = {"apiVersion": "example.com/v1", "kind": "Widgets", "metadata": {"name": "w"}}
    await client.call("POST", f"{_EXAMPLES}/widgets", kind | {"spec": {"a": [1]}}, expect=201)
    form = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = await client.call("GET", f"{_EXAMPLES}/widgets", headers=form, expect=200)
    assert table["rows"][0]["cells"] == ["w", None]


async def test_version_2_describes_a_resource_that_may_be_anything(client: Client) -> None:
    await client.call("POST", _DEFINITIONS, definition("widgets", _ANYTHING), expect=201)
    await client.call("GET", f"{_EXAMPLES}/widgets", expect=200)
    document = await client.call("GET", "/openapi/v2", expect=200)
    kind = {"group": "example.com", "version": "v1", "kind": "Widgets"}
    assert document["definitions"]["com.example.v1.Widgets"] == _ANYTHING | {
        "x-kubernetes-group-version-kind": [kind]
    }


async def test_a_long_set_is_looked_through_once(client: Client) -> None:
    items = {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}}
    schema = {"type": "object", "properties": {"l": items}}
    await client.call("POST", _DEFINITIONS, definition("sets", schema), expect=201)
    await client.call("GET", f"{_EXAMPLES}/sets", expect=200)
    body = {"apiVersion": "example.com/v1", "kind": "Sets", "metadata": {"name": "a"}}
    numbers = [*range(60_000), 7]
    before = time.process_time()
    refused = await client.call("POST", f"{_EXAMPLES}/sets", body | {"l": numbers}, expect=422)
    assert time.process_time() - before < 10
    assert [cause["field"] for cause in refused["details"]["causes"]] == ["l[60000]"]


@pytest.mark.parametrize(("levels", "status"), [(100, 201), (101, 422), (180, 422)])
async def test_a_schema_may_be_a_hundred_levels_deep(
    client: Client, levels: int, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenAPI can describe every schema that is stored."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    await client.call("POST", _DEFINITIONS, definition("widgets", schema), expect=status)
    for version in ("v2", "v3", "v3/api/v1"):
        await client.call("GET", f"/openapi/{version}", expect=200)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"a\ud800b", "a\ufffdb"),
        (r"\udc00", "\ufffd"),
        (r"\uD800\ud800\udc00", "\ufffd\U00010000"),
        (r"\\ud800", r"\ud800"),
        (r"\ud83d\ude00", "\U0001f600"),
    ],
)
async def test_half_a_surrogate_pair_is_replaced_as_by_go(
    client: Client, text: str, read: str
) -> None:
    body = b'{"metadata":{"name":"a"},"data":{"k":"%b"}}' % text.encode()
    made = await client.call("POST", MAPS, body, expect=201)
    assert made["data"] == {"k": read}


async def test_a_name_of_half_a_surrogate_pair_is_refused(client: Client) -> None:
    body = b'{"metadata":{"name":"a\\ud800"}}'
    refused = await client.call("POST", MAPS, body, expect=422)
    assert refused["details"]["name"] == "a\ufffd"


@pytest.mark.parametrize("earlier", [0, 30])
async def test_times_of_the_first_years_are_kept_with_four_digits(
    client: Client, earlier: int
) -> None:
    """Go's zero time counts as unset, on the exact and the fast path of decoding."""
    path = f"{CORE}/events"

    def event(name: str, time: str) -> dict[str, Any]:
        about = {"namespace": "default"}
        return {"metadata": {"name": name}, "involvedObject": about, "lastTimestamp": time}

    for number in range(earlier):
        body = event(f"e{number}", "2026-01-01T00:00:00Z")
        await client.call("POST", path, body, expect=201)
    old = await client.call("POST", path, event("old", "0987-01-01T00:00:00Z"), expect=201)
    assert old["lastTimestamp"] == "0987-01-01T00:00:00Z"
    none = await client.call("POST", path, event("none", "0001-01-01T00:00:00Z"), expect=201)
    assert none.get("lastTimestamp") is None
    form = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = await client.call("GET", path, headers=form, expect=200)
    assert len(table["rows"]) == earlier + 2


@pytest.mark.parametrize("name", [{}, [], None, 1, ["add"]])
async def test_a_patch_whose_operation_is_no_word_is_refused(name: object, client: Client) -> None:
    await client.create(MAPS, "a")
    patch = [{"op": name, "path": "/data", "value": {}}]
    headers = {"Content-Type": "application/json-patch+json"}
    await client.call("PATCH", f"{MAPS}/a", patch, headers=headers, expect=422)
