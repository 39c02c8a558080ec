"""A client reads and writes objects of types, and what a type does not have is not lost."""

from collections.abc import AsyncIterator
from typing import Any, assert_type

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.client import Client, Config
from listwatch.client.typed_objects import with_changes
from listwatch.objects import Object, ObjectDecodeError
from listwatch.resources import ObjectMeta, definition, resource
from listwatch.testing import APIServer


class Part(msgspec.Struct):
    name: str
    size: int = 1


class Spec(msgspec.Struct):
    parts: list[Part] = []
    colour: str = "red"


class Status(msgspec.Struct):
    ready: int = 0


@resource("example.com", "v1", storage=True)
class Widget(msgspec.Struct):
    metadata: ObjectMeta
    spec: Spec
    status: Status | None = None


def served() -> dict[str, Any]:
    """Return a definition that has more fields than the type: that of a newer version."""
    manifest = definition(Widget)
    spec = manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-preserve-unknown-fields"] = True
    part = spec["properties"]["parts"]["items"]
    part["x-kubernetes-preserve-unknown-fields"] = True
    return manifest


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with (
        APIServer() as server,
        Client.from_config(Config(server=server.url, namespace="default")) as made,
    ):
        await made.create(served())
        await made.wait_for("crds", "widgets.example.com", "Established", seconds=20)
        yield made


def widget(name: str = "w", *parts: str) -> Widget:
    return Widget(ObjectMeta(name=name), Spec([Part(part) for part in parts]))


async def test_every_verb_takes_the_type(client: Client) -> None:
    made = await client.create(widget("w", "a"))
    assert_type(made, Widget)
    assert made.metadata.uid
    assert made.spec.parts == [Part("a")]
    read = await client.get(Widget, "w")
    assert_type(read, Widget)
    assert read == made
    applied = await client.apply(widget("other"), field_manager="me")
    assert_type(applied, Widget)
    assert applied.metadata.name == "other"
    assert [obj.name for obj in (await client.list(Widget)).items] == ["other", "w"]
    await client.patch(Widget, "w", {"spec": {"colour": "blue"}})
    found = await client.wait_for(Widget, "w", lambda obj: obj["spec"]["colour"] == "blue")
    assert_type(found, Object)
    await client.delete(Widget, "w")
    await client.wait_for_deletion(Widget, "w", seconds=20)


async def test_a_change_keeps_what_the_type_does_not_have(client: Client) -> None:
    raw = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w", "annotations": {"a": "b"}, "finalizers": ["example.com/f"]},
        "spec": {"parts": [{"name": "a", "new": 1}, {"name": "b", "new": 2}], "newer": {"x": [1]}},
    }
    await client.create(raw)

    def change(obj: Widget) -> None:
        obj.spec.parts[1].size = 5
        obj.spec.parts.insert(0, Part("c"))
        obj.metadata.labels["l"] = "m"

    changed = await client.update_existing(Widget, "w", change)
    assert_type(changed, Widget)
    stored = await client.get("widgets", "w")
    assert stored["spec"]["newer"] == {"x": [1]}
    assert stored["spec"]["parts"] == [
        {"name": "c", "size": 1},
        {"name": "a", "new": 1, "size": 1},
        {"name": "b", "new": 2, "size": 5},
    ]
    assert stored["metadata"]["annotations"] == {"a": "b"}
    assert stored.meta.labels == {"l": "m"}
    assert stored.meta.finalizers == ("example.com/f",)
    await client.update_existing(
        Widget,
        "w",
        lambda obj: msgspec.structs.replace(obj, status=Status(3)),
        subresource="status",
    )
    assert (await client.get(Widget, "w")).status == Status(3)


async def test_an_object_that_does_not_fit_the_type_says_so(client: Client) -> None:
    @resource("example.com", "v1", kind="Widget")
    class Other(msgspec.Struct):
        metadata: ObjectMeta
        spec: int

    await client.create(widget())
    with pytest.raises(ObjectDecodeError, match="Widget default/w is no Other"):
        await client.get(Other, "w")


async def test_a_type_that_is_no_resource_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="Part is no resource: decorate it with"):
        await client.get(Part, "w")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


@given(before=JSON, after=JSON)
def test_without_unknown_parts_the_change_is_the_whole(before: Any, after: Any) -> None:
    assert with_changes(before, before, after) == after


@given(
    value=st.dictionaries(st.sampled_from("abc"), JSON),
    after=st.dictionaries(st.sampled_from("abc"), JSON),
)
def test_unknown_fields_stay_whatever_changes(value: dict[str, Any], after: dict[str, Any]) -> None:
    raw = {**value, "unknown": [1]}
    assert with_changes(raw, value, after) == {**after, "unknown": [1]}
