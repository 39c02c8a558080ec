"""Validation of the schemas in custom resource definitions."""

from typing import Any

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.kinds.definition_rules import scale_causes, schema_causes
from listwatch.apiserver.kinds.definitions import KINDS, validate_definition

WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"

GOOD: list[dict[str, Any]] = [
    {"type": "object", "additionalProperties": False},
    {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
    {
        "x-kubernetes-int-or-string": True,
        "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "x"}],
    },
    {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"properties": {"b": {"minLength": 1}}}],
    },
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


_IN_MAP = "this property is in x-kubernetes-list-map-keys, so it"
_KEYED = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}


def _items(**key: Any) -> dict[str, Any]:
    return {"type": "object", "required": ["k"], "properties": {"k": key} if key else {}}


BAD: list[tuple[dict[str, Any], str, str]] = [
    (
        {"type": "string", "anyOf": [{"type": "string"}]},
        "anyOf[0].type",
        "Forbidden: must be empty to be structural",
    ),
    (
        {"type": "string", "not": {"default": ""}},
        "not.default",
        "Forbidden: must be undefined to be structural",
    ),
    (
        {"type": "string", "allOf": [{"nullable": True}]},
        "allOf[0].nullable",
        "Forbidden: must be false to be structural",
    ),
    (
        {"type": "string", "oneOf": [{"x-kubernetes-validations": [{"rule": "true"}]}]},
        "oneOf[0].x-kubernetes-validations",
        "Forbidden: must be empty to be structural",
    ),
    (
        {"type": "object", "anyOf": [{"properties": {"a": {"minLength": 1}}}]},
        "properties[a]",
        "Required value: because it is defined in s.properties[spec].anyOf[0].properties[a]",
    ),
    (
        {"type": "string", "pattern": "(["},
        "pattern",
        (
            'Invalid value: "([": must be a valid regular expression, but isn\'t: error parsing '
            "regexp: missing ]: ["
        ),
    ),
    (
        {"type": "string", "x-kubernetes-embedded-resource": True},
        "type",
        'Invalid value: "string": must be object if x-kubernetes-embedded-resource is true',
    ),
    ({"$ref": "#/x"}, "$ref", "Forbidden: $ref is not supported"),
    (
        {"type": "object", "x-kubernetes-map-type": "odd"},
        "x-kubernetes-map-type",
        'Unsupported value: "odd": supported values: "atomic", "granular"',
    ),
    (
        {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"},
        "items.x-kubernetes-map-type",
        ("Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set"),
    ),
    (
        {**_KEYED, "items": _items(type="string", nullable=True)},
        "items.properties[k].nullable",
        f"Forbidden: {_IN_MAP} cannot be nullable",
    ),
    (
        {**_KEYED, "items": _items(type="object")},
        "items.properties[k].type",
        (
            'Invalid value: "object": must be a scalar type if parent array\'s '
            "x-kubernetes-list-type is map"
        ),
    ),
    (
        {**_KEYED, "items": _items()},
        "x-kubernetes-list-map-keys",
        'Invalid value: ["k"]: entries must all be names of item properties',
    ),
    (
        {"type": "object", "default": {"z": 1}},
        "default",
        'Invalid value: {"z":1}: must not have unknown fields',
    ),
    (
        {"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 5"}]},
        "default",
        "Invalid value: 1: failed rule: self > 5",
    ),
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
    async with EmbeddedAPIServer() as server, Client(server) as client:
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


def definition(**spec: Any) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    }
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "listKind": "WidgetList"}
            | {"singular": "widget"},
            "versions": [version],
            **spec,
        },
    }


def _version(**fields: Any) -> dict[str, Any]:
    return {"versions": [{**definition()["spec"]["versions"][0], **fields}]}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, []),
        (_version(name="V_1"), ["spec.versions[0].name", "spec.version"]),
        (_version(deprecationWarning="x"), ["spec.versions[0].deprecationWarning"]),
        (_version(deprecated=True, deprecationWarning=""), ["spec.versions[0].deprecationWarning"]),
        (
            _version(additionalPrinterColumns=[{"name": "a", "type": "string", "jsonPath": "x["}]),
            ["spec.additionalPrinterColumns[0].JSONPath"],
        ),
        (_version(selectableFields=[{"jsonPath": ".x"}]), ["spec.selectableFields[0].jsonPath"]),
        (
            {
                "names": {
                    "plural": "Widgets",
                    "singular": "w",
                    "kind": "Widget",
                    "listKind": "Widget",
                }
            },
            ["metadata.name", "spec.names.plural", "spec.names.listKind"],
        ),
        (
            {"conversion": {"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"]}}},
            ["spec.conversion.conversionReviewVersions"],
        ),
        (
            {"versions": definition()["spec"]["versions"] * 2},
            ["spec.versions", "spec.versions"],
        ),
        ({"group": "a_b.c"}, ["metadata.name", "spec.group"]),
    ],
    ids=str,
)
def test_what_a_definition_may_not_say_is_named(spec: dict[str, Any], fields: list[str]) -> None:
    assert [cause.field for cause in validate_definition(definition(**spec))] == fields


def test_what_objects_are_stored_by_stays_once_they_may_be_there() -> None:
    change = KINDS["apiextensions.k8s.io/customresourcedefinitions"].update_rule
    assert change is not None
    old = definition()
    new = definition(scope="Cluster", names={**old["spec"]["names"], "kind": "Gadget"})
    assert change(new, old) == []
    old["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    assert [cause.field for cause in change(new, old)] == ["spec.scope", "spec.names.kind"]
    new = {**definition(), "status": {"storedVersions": ["v1", "v0"]}}
    assert [cause.field for cause in change(new, old)] == ["status.storedVersions[1]"]


def test_a_new_storage_version_is_noted_beside_the_old() -> None:
    carry = KINDS["apiextensions.k8s.io/customresourcedefinitions"].carry
    assert carry is not None
    new = {**definition(**_version(name="v2")), "status": {"storedVersions": ["v1"]}}
    carry(new, new)
    assert new["status"]["storedVersions"] == ["v1", "v2"]
