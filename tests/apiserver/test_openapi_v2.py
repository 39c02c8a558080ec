"""The OpenAPI v2 document: the same in JSON and in protobuf."""

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.api.openapi_v2 import custom_schema_v2, encode_document

_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: numbers as int, the rest as bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
            continue
        size = 8 if tag & 7 == 1 else number()
        yield tag >> 3, data[at : at + size]
        at += size


def named(data: bytes, number: int) -> dict[str, bytes]:
    """Return the entries of field `number` by name; each entry is a pair of name and value."""
    entries = [dict(fields(each)) for found, each in fields(data) if found == number]
    return {entry[1].decode(): entry[2] for entry in entries}


async def test_both_forms_have_the_same_types_and_paths() -> None:
    async with EmbeddedAPIServer() as server, aiohttp.ClientSession(server.url) as session:
        async with session.get("/openapi/v2") as answer:
            document = await answer.json()
        async with session.get("/openapi/v2", headers={"Accept": _PROTOBUF}) as answer:
            kind = answer.headers["Content-Type"]
            assert kind == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
            parts = dict(fields(await answer.read()))
    assert parts[1] == b"2.0"
    assert set(named(parts[8], 2)) == set(document["paths"])
    types = named(parts[9], 1)
    assert set(types) == set(document["definitions"])
    pod = dict(fields(types["io.k8s.api.core.v1.Pod"]))
    properties = named(pod[25], 1)
    assert dict(fields(properties["spec"]))[1] == b"#/definitions/io.k8s.api.core.v1.PodSpec"
    kinds = named(types["io.k8s.api.core.v1.Pod"], 31)["x-kubernetes-group-version-kind"]
    assert dict(fields(kinds))[2] == b'[{"group":"","kind":"Pod","version":"v1"}]'


def test_every_word_of_a_schema_is_written_under_its_number() -> None:
    schema = {
        "type": "object",
        "required": ["a", "b"],
        "minimum": 1.5,
        "maxItems": 300,
        "uniqueItems": True,
        "additionalProperties": {"type": "string"},
        "items": {"format": "int32"},
        "enum": ["x"],
        "x-y": {"z": 1},
    }
    document = {
        "swagger": "2.0",
        "info": {"title": "T", "version": "V"},
        "paths": {},
        "definitions": {"D": schema},
    }
    written = named(dict(fields(encode_document(document)))[9], 1)["D"]
    assert list(fields(written)) == [
        (22, b"\n\x06object"),
        (19, b"a"),
        (19, b"b"),
        (9, b"\0\0\0\0\0\0\xf8\x3f"),
        (14, 300),
        (16, 1),
        (21, b"\n\x0b\xb2\x01\x08\n\x06string"),
        (23, b"\n\x07\x12\x05int32"),
        (20, b'\x12\x03"x"'),
        (31, b'\n\x03x-y\x12\x09\x12\x07{"z":1}'),
    ]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "nullable": True}, {}),
        (
            {"type": "object", "properties": {"a": {"type": "array", "items": {"oneOf": []}}}},
            {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
        ),
        (
            {"type": "object", "properties": {}, "x-kubernetes-preserve-unknown-fields": True},
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ),
    ],
)
def test_what_version_2_can_not_say_is_left_out(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert custom_schema_v2(schema) == expected
