"""A pydantic model defines a custom resource as a Struct does."""

from typing import Annotated, Any

import pytest

pydantic = pytest.importorskip("pydantic", reason="pip install pydantic")

from listwatch.resources import (  # noqa: E402 - after the check for pydantic
    Conditions,
    ListMap,
    Quantity,
    Rule,
    check,
    definition,
    manifest_of,
    resource,
    rules,
)


class Port(pydantic.BaseModel):  # type: ignore[name-defined,misc,unused-ignore] # found at run time
    """A port."""

    name: str
    number: int = pydantic.Field(ge=1, lt=65536, alias="portNumber")


@rules(Rule("self.low <= self.high"))
class Range(pydantic.BaseModel):  # type: ignore[name-defined,misc,unused-ignore] # as above
    low: int = 1
    high: int = 2


class Spec(pydantic.BaseModel):  # type: ignore[name-defined,misc,unused-ignore] # as above
    ports: Annotated[list[Port], ListMap("name")]
    size: Quantity | None = None
    bounds: Range = pydantic.Field(default_factory=Range)
    conditions: Conditions = pydantic.Field(default_factory=list)


@resource("example.com", "v1")
class Website(pydantic.BaseModel):  # type: ignore[name-defined,misc,unused-ignore] # as above
    """A website."""

    metadata: dict[str, Any]
    spec: Spec


def test_a_model_has_the_schema_of_a_struct() -> None:
    (version,) = definition(Website)["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["description"] == "A website."
    spec = schema["properties"]["spec"]["properties"]
    assert spec["ports"] == {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "description": "A port.",
            "required": ["name", "portNumber"],
            "properties": {
                "name": {"type": "string"},
                "portNumber": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 65536,
                    "exclusiveMaximum": True,
                },
            },
        },
    }
    assert spec["size"]["nullable"] is True
    assert spec["size"]["x-kubernetes-int-or-string"] is True
    assert spec["bounds"]["default"] == {"low": 1, "high": 2}
    assert spec["bounds"]["x-kubernetes-validations"] == [{"rule": "self.low <= self.high"}]
    assert spec["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_an_object_of_a_model_is_checked() -> None:
    port = {"name": "a", "portNumber": 80}
    obj = Website.model_validate({"metadata": {"name": "w"}, "spec": {"ports": [port, port]}})
    assert manifest_of(obj)["spec"]["ports"] == [port, port]
    assert [str(one) for one in check(obj)] == ['spec.ports[1]: Duplicate value: {"name":"a"}']
