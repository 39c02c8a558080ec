"""A server accepts a type's definition, and stores the type's objects unchanged."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Annotated, Any, Generic, NotRequired, Required, TypedDict, TypeVar

import msgspec
import pytest

from listwatch.client import Client, Config
from listwatch.errors import InvalidError
from listwatch.objects.resource_types import plural_of
from listwatch.resources import (
    Column,
    ListMap,
    ObjectMeta,
    ResourceTypeError,
    Rule,
    Scale,
    custom_resource_of,
    definition,
    manifest_of,
    resource,
)
from listwatch.testing import APIServer
from resources.shapes import SHAPES, Port, Range, spec_of


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with (
        APIServer() as server,
        Client.from_config(Config(server=server.url)) as made,
    ):
        yield made


def kind_of(hint: Any, **options: Any) -> type:
    """Return a resource whose `spec.value` has this type."""
    base = msgspec.defstruct("Widget", [("metadata", ObjectMeta), ("spec", spec_of(hint))])
    return resource("example.com", "v1", **options)(base)


#: A value of each shape, as JSON.
VALUES: dict[str, Any] = {
    "text": "ä",
    "number": -5,
    "fraction": 0.5,
    "flag": True,
    "optional": None,
    "enum": "red",
    "enum of numbers": 2,
    "literal": "b",
    "literal of numbers": 1,
    "literal or nothing": None,
    "bounds": 9,
    "open bounds": 0.25,
    "multiples": 10,
    "length": "123456789",
    "pattern": "abc",
    "time": "2030-01-31T12:00:00Z",
    "day": "2030-01-31",
    "time as text": "2030-01-31T12:00:00Z",
    "duration": "1h30m",
    "uuid": "12345678-1234-4234-8234-123456789012",
    "bytes": "YWJj",
    "int or text": "25%",
    "int or text by name": 80,
    "quantity": "500m",
    "optional quantity": 2,
    "list": [1, 2],
    "list of lists": [["a"], []],
    "bounded list": ["a"],
    "set": ["a", "b"],
    "python set": ["a"],
    "tuple of one type": [1, 2],
    "atomic list": ["a"],
    "keyed list": [{"name": "a", "containerPort": 1}],
    "list of two keys": [{"name": "a", "containerPort": 1}],
    "map": {"a": "b"},
    "map of lists": {"a": [1]},
    "map of objects": {"a": {"name": "a", "containerPort": 1}},
    "atomic map": {"a": "b"},
    "object": {"name": "a", "containerPort": 1},
    "optional object": None,
    "objects in objects": {"inner": {"inner": {"value": 5}}},
    "rules": {"low": 1, "high": 1},
    "rule of a field": "abc",
    "transition": "x",
    "dataclass": {"a": 1, "b": "y", "c": ["z"]},
    "typed dict": {"a": 1, "b": "y"},
    "generic": {"content": 7},
    "anything": [1, {"a": None}],
    "any object": {"a": {"b": [1]}},
    "free form": {"name": "a", "containerPort": 1},
    "embedded": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {}},
    "pod template": {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "i",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                }
            ]
        },
    },
    "container": {"name": "c", "image": "i"},
    "requirements": {"limits": {"cpu": "1"}},
    "secret key": {"name": "s", "key": "k"},
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "R",
            "message": "",
            "lastTransitionTime": "2030-01-31T12:00:00Z",
        }
    ],
    "keyword": "10.0.0.1",
}


def test_every_shape_has_a_value() -> None:
    assert VALUES.keys() == SHAPES.keys()
    assert len(SHAPES) >= 40


async def test_a_server_accepts_every_shape_and_keeps_its_values(client: Client) -> None:
    differing = {}
    for number, (name, hint) in enumerate(SHAPES.items()):
        cls = kind_of(hint, plural=f"widgets{number}", kind=f"Widget{number}")
        await client.create(definition(cls))
        raw = {"metadata": {"name": "w"}, "spec": {"value": VALUES[name]}}
        sent: Any = msgspec.convert(raw, cls, strict=False)
        known = custom_resource_of(cls).resource
        await client.wait_for("crds", f"{known.plural}.example.com", "Established", seconds=20)
        stored = await client.create(manifest_of(sent), resource=known, namespace="default")
        back: Any = stored.decode(cls)
        if stored["spec"]["value"] != VALUES[name] or back.spec != sent.spec:
            differing[name] = stored["spec"]["value"]
    assert differing == {}


def test_a_definition_says_what_the_type_says() -> None:
    class Spec(msgspec.Struct, rename="camel"):
        """What is wanted."""

        ports: Annotated[list[Port], ListMap("name")]
        max_size: Annotated[int, Rule("self != 13", reason="FieldValueForbidden")] = 5
        bounds: Range = msgspec.field(default_factory=Range)

    class Status(msgspec.Struct):
        replicas: int = 0

    @resource(
        "example.com",
        "v1beta1",
        short_names=["ws"],
        categories=["all"],
        columns=[Column(name="Max", json_path=".spec.maxSize", type="integer", priority=1)],
        scale=Scale(spec=".spec.maxSize", selector=".status.selector"),
        selectable_fields=[".spec.maxSize"],
        deprecated=True,
        deprecation_warning="use v1",
        rules=[Rule("has(self.spec)")],
    )
    class Website(msgspec.Struct):
        """A website."""

        metadata: ObjectMeta
        spec: Spec
        status: Status | None = None

    assert definition(Website) == {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "websites.example.com"},
        "spec": {
            "group": "example.com",
            "names": {
                "kind": "Website",
                "listKind": "WebsiteList",
                "plural": "websites",
                "singular": "website",
                "shortNames": ["ws"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": True,
                    "deprecated": True,
                    "deprecationWarning": "use v1",
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A website.",
                            "required": ["spec"],
                            "x-kubernetes-validations": [{"rule": "has(self.spec)"}],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": {
                                    "type": "object",
                                    "description": "What is wanted.",
                                    "required": ["ports"],
                                    "properties": {
                                        "ports": {
                                            "type": "array",
                                            "x-kubernetes-list-type": "map",
                                            "x-kubernetes-list-map-keys": ["name"],
                                            "items": {
                                                "type": "object",
                                                "description": "A port.",
                                                "required": ["name", "containerPort"],
                                                "properties": {
                                                    "name": {"type": "string", "maxLength": 15},
                                                    "containerPort": {
                                                        "type": "integer",
                                                        "minimum": 1,
                                                        "maximum": 65535,
                                                    },
                                                },
                                            },
                                        },
                                        "maxSize": {
                                            "type": "integer",
                                            "default": 5,
                                            "x-kubernetes-validations": [
                                                {
                                                    "rule": "self != 13",
                                                    "reason": "FieldValueForbidden",
                                                }
                                            ],
                                        },
                                        "bounds": {
                                            "type": "object",
                                            "default": {"low": 1, "high": 9},
                                            "x-kubernetes-validations": [
                                                {
                                                    "rule": "self.low <= self.high",
                                                    "message": "low must not exceed high",
                                                    "fieldPath": ".low",
                                                }
                                            ],
                                            "properties": {
                                                "low": {"type": "integer", "default": 1},
                                                "high": {"type": "integer", "default": 9},
                                            },
                                        },
                                    },
                                },
                                "status": {
                                    "type": "object",
                                    "nullable": True,
                                    "properties": {"replicas": {"type": "integer", "default": 0}},
                                },
                            },
                        }
                    },
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.maxSize",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {
                            "name": "Max",
                            "type": "integer",
                            "jsonPath": ".spec.maxSize",
                            "priority": 1,
                        }
                    ],
                    "selectableFields": [{"jsonPath": ".spec.maxSize"}],
                }
            ],
        },
    }


async def test_rules_and_defaults_of_a_type_hold_on_a_server(client: Client) -> None:
    cls = kind_of(Range)
    await client.create(definition(cls))
    await client.wait_for("crds", "widgets.example.com", "Established", seconds=20)
    made = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    stored = await client.create({**made, "spec": {"value": {"high": 5}}}, namespace="default")
    assert stored["spec"] == {"value": {"low": 1, "high": 5}}
    with pytest.raises(InvalidError, match="low must not exceed high"):
        await client.create({**made, "spec": {"value": {"low": 10}}}, namespace="default")


class Node(msgspec.Struct):
    children: list["Node"] = []


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Port | Range, r"Widget: type .*Port | .*Range.* is not supported: write .* AnyObject"),
        (int | bool, r"Widget.spec.value: a union \(integer | boolean\)"),
        (Node, r"Widget.spec.value.children\[\*\]: contains itself, .* AnyObject"),
        (tuple[int, str], r"Widget.spec.value: a tuple of several types .* a type with fields"),
        (
            Annotated[str, msgspec.Meta(pattern="a(?=b)")],
            r"Widget.spec.value: the pattern 'a\(\?=b\)' is not RE2",
        ),
        (Annotated[list[Port], ListMap("nme")], r"Widget.spec.value: ListMap names 'nme'"),
        (Annotated[int, Rule("self > 'a'")], r"Widget: spec.value.*no matching overload"),
        (Annotated[int, Rule("self >")], r"Widget: spec.value.*Syntax error"),
        (Annotated[str, Rule("self.a")], r"Widget: spec.value.*does not support field selection"),
        (object, "Widget: type <class 'object'> is not supported: write"),
        (dt.timedelta, "Widget.spec.value: Kubernetes writes durations as Go does"),
        (complex, r"Widget: .*complex"),
    ],
    ids=str,
)
def test_what_a_definition_cannot_say_names_the_field_and_the_remedy(hint: Any, words: str) -> None:
    with pytest.raises(ResourceTypeError, match=words):
        kind_of(hint)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "website"}, "'website' can't be a kind: write letters and digits, first a cap"),
        ({"kind": "WebsiteList"}, "choose one that does not end with List"),
        ({"plural": "Web_Sites"}, "spec.names.plural"),
        ({"short_names": ["A"]}, "spec.names.shortNames"),
        ({"columns": [Column(name="x", json_path="spec")]}, "additionalPrinterColumns"),
        ({"scale": Scale(spec=".metadata.x")}, "specReplicasPath"),
        ({"selectable_fields": [".spec.none"]}, "selectableFields"),
        ({"deprecation_warning": "x"}, "deprecationWarning"),
        ({"rules": [Rule("self.nothing")]}, "undefined field 'nothing'"),
    ],
    ids=str,
)
def test_names_and_options_that_a_server_refuses_are_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ResourceTypeError, match=words):
        kind_of(int, **options)


def test_versions_of_a_kind_make_one_definition_that_stores_the_newest() -> None:
    old = kind_of(int)
    new = msgspec.defstruct("Widget", [("metadata", ObjectMeta), ("spec", spec_of(str))])
    for version, storage in (("v1beta1", "v1"), ("v2", "v2"), ("v1alpha1", "v1")):
        other = resource("example.com", version)(new)
        versions = definition(old, other)["spec"]["versions"]
        assert [one["name"] for one in versions if one["storage"]] == [storage]
        assert versions[0]["name"] == storage
    with pytest.raises(ResourceTypeError, match="no versions of one resource: their group"):
        definition(old, resource("other.com", "v2")(new))
    with pytest.raises(ResourceTypeError, match="only one version can be stored, not v2 and v1"):
        definition(
            resource("example.com", "v1", storage=True)(old),
            resource("example.com", "v2", storage=True)(new),
        )


def test_a_type_that_is_no_resource_says_how_to_make_it_one() -> None:
    with pytest.raises(
        ResourceTypeError, match=r"Port is not a resource: decorate it with @resource"
    ):
        definition(Port)
    with pytest.raises(ResourceTypeError, match="needs a type"):
        definition()


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Website", "websites"),
        ("Proxy", "proxies"),
        ("Gateway", "gateways"),
        ("Box", "boxes"),
        ("Batch", "batches"),
        ("Status", "statuses"),
        ("Y", "ys"),
    ],
)
def test_plurals_are_the_usual_ones(kind: str, plural: str) -> None:
    assert plural_of(kind) == plural


# --- Markers and defaults in any place ------------------------------------------------------------

T = TypeVar("T")
RULE = Rule("self > 0")


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the schema of a field of this type."""
    made = msgspec.defstruct("Made", [("metadata", ObjectMeta), ("spec", hint)])
    version = definition(resource("example.com", "v1")(made))["spec"]["versions"][0]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


class Checked(msgspec.Struct):
    size: Annotated[int, RULE] = 1


class Box(msgspec.Struct, Generic[T]):
    one: T
    all: list[T]
    named: dict[str, T | None]


class Boxes(Box[Checked]):
    """Names the type in its base."""


class Partly(TypedDict, total=False):
    one: Required[Checked]
    all: NotRequired[list[Checked]]
    named: NotRequired[dict[str, Checked]]


@pytest.mark.parametrize("hint", [Box[Checked], Boxes, Partly])
def test_rules_hold_within_generic_classes_and_typed_dicts(hint: Any) -> None:
    schema = schema_of(hint)["properties"]
    nodes = [schema["one"], schema["all"]["items"], schema["named"]["additionalProperties"]]
    assert [node["properties"]["size"].get("x-kubernetes-validations") for node in nodes] == [
        [RULE.schema()]
    ] * 3


class Sets(msgspec.Struct):
    texts: frozenset[str] = frozenset("zyxabc")
    numbers: frozenset[int] = frozenset({3, 1, 2})


def test_the_default_of_a_set_has_one_order() -> None:
    fields = schema_of(Sets)["properties"]
    assert fields["texts"]["default"] == list("abcxyz")
    assert fields["numbers"]["default"] == [1, 2, 3]


def test_a_datetime_has_its_format() -> None:
    class Times(msgspec.Struct):
        at: dt.datetime
        until: dt.datetime | None = None

    fields = schema_of(Times)["properties"]
    assert [fields[name]["format"] for name in ("at", "until")] == ["date-time", "date-time"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    made = msgspec.defstruct("Numbers", [("ratio", float, number)])
    with pytest.raises(ResourceTypeError, match=r"ratio: its default is not a finite number"):
        schema_of(made)
