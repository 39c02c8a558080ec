"""The OpenAPI v2 document in JSON and in protobuf, the form that old kubectls request.

The messages are those of gnostic's OpenAPIv2.proto (`google/gnostic`), limited to the fields that
the document uses, and written as data: the path to a value's message is a few numbers.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from listwatch.apiserver.http.protobuf import put_bytes, put_number

Object = dict[str, Any]

PROTOBUF_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_OPERATIONS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
#: Keywords of a custom resource's schema that version 2 lacks.
_NOT_IN_V2 = ("anyOf", "oneOf", "not", "nullable", "allOf", "x-kubernetes-validations")


def wants_protobuf(accept: str) -> bool:
    """Return whether this Accept header prefers the protobuf form."""
    return accept.lstrip().startswith("application/com.github.proto-openapi.spec.v2")


def custom_schema_v2(schema: Any) -> Any:
    """Return a custom resource's schema without what version 2 can't express.

    Like apiextensions' `ToStructuralOpenAPIV2`: a value that version 2 can't describe stays
    undescribed, so clients leave its check to the server.
    """
    if not isinstance(schema, dict):
        return schema
    made: Object = {key: value for key, value in schema.items() if key not in _NOT_IN_V2}
    if schema.get("nullable") or schema.get("x-kubernetes-int-or-string"):
        for word in ("type", "items", "properties", "additionalProperties"):
            made.pop(word, None)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        for word in ("items", "properties"):
            made.pop(word, None)
    properties = made.get("properties")
    if isinstance(properties, dict):
        made["properties"] = {name: custom_schema_v2(each) for name, each in properties.items()}
    for word in ("items", "additionalProperties"):
        if isinstance(made.get(word), dict):
            made[word] = custom_schema_v2(made[word])
    return made


def path_item_v2(item: Mapping[str, Any]) -> Object:
    """Return a path's operations of version 3 in the form of version 2."""
    made: Object = {}
    for method, operation in item.items():
        kept = dict(operation)
        kept["parameters"] = [
            {"name": each["name"], "in": each["in"], **each["schema"]}
            for each in operation.get("parameters", ())
        ]
        made[method] = kept
    return made


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Return an OpenAPI v2 document as gnostic's message `Document`."""
    info = document["info"]
    parts = [
        _text(1, document["swagger"]),
        put_bytes(2, _text(1, info["title"]) + _text(2, info["version"])),
        put_bytes(
            8, b"".join(_named(2, path, _path(item)) for path, item in document["paths"].items())
        ),
        put_bytes(9, _named_schemas(document["definitions"])),
    ]
    return b"".join(parts)


def _text(number: int, value: str) -> bytes:
    return put_bytes(number, value.encode())


def _any(value: Any) -> bytes:
    """Return the message `Any`: it contains YAML, and JSON is YAML."""
    return put_bytes(2, msgspec.json.encode(value))


def _named(number: int, name: str, value: bytes) -> bytes:
    return put_bytes(number, _text(1, name) + put_bytes(2, value))


def _path(item: Mapping[str, Any]) -> bytes:
    return b"".join(
        put_bytes(_OPERATIONS[method], _operation(operation)) for method, operation in item.items()
    )


def _operation(operation: Mapping[str, Any]) -> bytes:
    parts = []
    for parameter in operation["parameters"]:
        query = _text(2, parameter["in"]) + _text(4, parameter["name"])
        query += _text(6, parameter["type"])
        # ParametersItem.parameter, Parameter.non_body_parameter, .query_parameter_sub_schema
        parts.append(put_bytes(8, put_bytes(1, put_bytes(2, put_bytes(3, query)))))
    return b"".join(parts) + _extensions(13, operation)


def _extensions(number: int, value: Mapping[str, Any]) -> bytes:
    return b"".join(
        _named(number, name, _any(each)) for name, each in value.items() if name.startswith("x-")
    )


def _named_schemas(schemas: Mapping[str, Any]) -> bytes:
    return b"".join(_named(1, name, _schema(each)) for name, each in schemas.items())


def _additional(number: int, value: Any) -> bytes:
    if isinstance(value, bool):
        return put_bytes(number, put_number(2, value))
    return put_bytes(number, put_bytes(1, _schema(value)))


def _double(number: int, value: float) -> bytes:
    # only fields with numbers below 16 are doubles, so the tag is one byte
    return bytes((number << 3 | 1,)) + struct.pack("<d", value)


def _texts(number: int, values: list[str]) -> bytes:
    return b"".join(_text(number, each) for each in values)


#: The fields of the message `Schema`: their numbers and encoders.
_SCHEMA: Mapping[str, tuple[int, Callable[[int, Any], bytes]]] = {
    "$ref": (1, _text),
    "format": (2, _text),
    "title": (3, _text),
    "description": (4, _text),
    "default": (5, lambda number, value: put_bytes(number, _any(value))),
    "multipleOf": (6, _double),
    "maximum": (7, _double),
    "exclusiveMaximum": (8, put_number),
    "minimum": (9, _double),
    "exclusiveMinimum": (10, put_number),
    "maxLength": (11, put_number),
    "minLength": (12, put_number),
    "pattern": (13, _text),
    "maxItems": (14, put_number),
    "minItems": (15, put_number),
    "uniqueItems": (16, put_number),
    "maxProperties": (17, put_number),
    "minProperties": (18, put_number),
    "required": (19, _texts),
    "enum": (
        20,
        lambda number, values: b"".join(put_bytes(number, _any(each)) for each in values),
    ),
    "additionalProperties": (21, _additional),
    "type": (22, lambda number, value: put_bytes(number, _text(1, value))),
    "items": (23, lambda number, value: put_bytes(number, put_bytes(1, _schema(value)))),
    "properties": (25, lambda number, value: put_bytes(number, _named_schemas(value))),
    "example": (30, lambda number, value: put_bytes(number, _any(value))),
}


def _schema(schema: Mapping[str, Any]) -> bytes:
    parts = []
    for word, value in schema.items():
        field = _SCHEMA.get(word)
        if field is not None:
            number, write = field
            parts.append(write(number, value))
    return b"".join(parts) + _extensions(31, schema)
