"""What the schema of a custom resource definition may say."""

from typing import Any

import pytest

from api_client import Client
from listwatch.apiserver import APIServer
from listwatch.apiserver.kinds.definition_rules import scale_causes, schema_causes
from listwatch.schema import structural

WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"

GOOD: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
    {"x-kubernetes-int-or-string": True, "default": "5%"},
    {"x-kubernetes-preserve-unknown-fields": True},
    {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
    {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name", "port"],
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "port": {"type": "integer", "default": 1}},
        },
    },
    {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    },
    {"type": "string", "nullable": True, "pattern": r"^\p{L}+\z"},
]


@pytest.mark.parametrize("schema", GOOD, ids=str)
def test_a_structural_schema_is_taken(schema: dict[str, Any]) -> None:
    assert schema_causes({"type": "object", "properties": {"spec": schema}}, "s") == []


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "type", "Required value: must not be empty for specified object fields"),
    ({"type": "array"}, "items", "Required value: must be specified"),
    (
        {"type": "text"},
        "type",
        (
            'Unsupported value: "text": supported values: "array", "boolean", "integer", "number", '
            '"object", "string"'
        ),
    ),
    (
        {"type": "null"},
        "type",
        "Forbidden: type cannot be set to null, use nullable as an alternative",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {}},
        "additionalProperties",
        "Forbidden: additionalProperties and properties are mutual exclusive",
    ),
    (
        {"type": "object", "additionalProperties": False},
        "additionalProperties",
        "Forbidden: additionalProperties cannot be set to false",
    ),
    (
        {"type": "string", "default": 1},
        "default",
        (
            'Invalid value: "integer": s.properties[spec].default in body must be of type string: '
            '"integer"'
        ),
    ),
    (
        {"type": "object", "x-kubernetes-list-type": "map"},
        "type",
        'Invalid value: "object": must be array if x-kubernetes-list-type is specified',
    ),
    (
        {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
        "x-kubernetes-list-map-keys",
        "Required value: must not be empty if x-kubernetes-list-type is map",
    ),
    (
        {
            "type": "array",
            "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
        },
        "items.properties[k].default",
        (
            "Required value: this property is in x-kubernetes-list-map-keys, so it must have a "
            "default or be a required property"
        ),
    ),
    (
        {"type": "object", "x-kubernetes-embedded-resource": True},
        "properties",
        (
            "Required value: must not be empty if x-kubernetes-embedded-resource is true without "
            "x-kubernetes-preserve-unknown-fields"
        ),
    ),
]


@pytest.mark.parametrize(("schema", "field", "message"), BAD, ids=str)
def test_what_a_schema_may_not_say_is_named(
    schema: dict[str, Any], field: str, message: str
) -> None:
    causes = schema_causes({"type": "object", "properties": {"spec": schema}}, "s")
    assert (f"s.properties[spec].{field}", message) in [(c.field, c.message) for c in causes]


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[[:alpha:]_]+$", "a_b", "a1"),
        (r"^\d\z", "1", "\u0661"),
        ("^[^[:space:]]+$", "ab", "a b"),
        (r"^\p{L}$", "\u00e9", None),
    ],
)
def test_a_pattern_of_go_is_understood_or_lets_all_pass(
    pattern: str, good: str, bad: str | None
) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert structural.validate(good, schema) == []
    assert bad is None or len(structural.validate(bad, schema)) == 1


def test_the_paths_of_a_scale_are_within_spec_and_status() -> None:
    good = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert scale_causes(good, "s") == []
    bad = {"specReplicasPath": ".replicas", "labelSelectorPath": ".metadata.labels"}
    assert [(cause.field, cause.message) for cause in scale_causes(bad, "s")] == [
        ("s.specReplicasPath", 'Invalid value: ".replicas": should be a json path under .spec'),
        ("s.statusReplicasPath", "Required value"),
        (
            "s.labelSelectorPath",
            (
                'Invalid value: ".metadata.labels": should be a json path under either .spec or '
                ".status"
            ),
        ),
    ]


async def test_an_object_within_an_object_says_what_it_is() -> None:
    template = {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    schema = {"type": "object", "properties": {"template": template}}
    names = {"plural": "widgets", "kind": "Widget"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": names,
        "versions": [version],
    }
    definition = {"metadata": {"name": "widgets.example.com"}, "spec": spec}
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with APIServer() as server, Client(server) as client:
        await client.call("POST", path, definition, expect=201)
        widget = {
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "metadata": {"name": "w"},
            "template": {"kind": ""},
        }
        refused = await client.call("POST", WIDGETS, widget, expect=422)
        assert {each["field"]: each["message"] for each in refused["details"]["causes"]} == {
            "template.apiVersion": "Required value: must not be empty",
            "template.kind": 'Invalid value: "": must not be empty',
        }
        widget["template"] = {"apiVersion": "v1", "kind": "Pod", "spec": {"x": 1}}
        made = await client.call("POST", WIDGETS, widget, expect=201)
        assert made["template"] == widget["template"]
