"""A client reads and writes typed objects, and keeps the fields that a type lacks."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict, assert_type

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.client import Client, Config
from listwatch.client.typed_objects import is_same, with_changes
from listwatch.objects import Object, ObjectDecodeError
from listwatch.resources import ListMap, ObjectMeta, definition, resource
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
    """Return the definition of a newer version, with more fields than the type."""
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
    with pytest.raises(ObjectDecodeError, match="Widget default/w does not fit Other"):
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
    assert is_same(with_changes(before, before, after), after)


@given(
    value=st.dictionaries(st.sampled_from("abc"), JSON),
    after=st.dictionaries(st.sampled_from("abc"), JSON),
)
def test_unknown_fields_stay_whatever_changes(value: dict[str, Any], after: dict[str, Any]) -> None:
    raw = {**value, "unknown": [1]}
    assert is_same(with_changes(raw, value, after), {**after, "unknown": [1]})


# A value read as a set has any order: it depends on the hash seed.
@given(
    raw=st.lists(st.sampled_from("abcde"), unique=True).flatmap(
        lambda items: st.tuples(st.just(items), st.permutations(items))
    ),
    after=st.lists(st.sampled_from("abcdef"), unique=True),
)
def test_a_set_becomes_what_it_was_changed_to(
    raw: tuple[list[str], list[str]], after: list[str]
) -> None:
    schema = {"type": "array", "x-kubernetes-list-type": "set"}
    stored, read = raw
    assert sorted(with_changes(stored, read, after, schema)) == sorted(after)


def test_items_of_a_set_keep_what_the_type_does_not_have() -> None:
    schema = {"type": "array", "x-kubernetes-list-type": "set"}
    raw = [{"a": 1, "new": 1}, {"a": 2, "new": 2}]
    assert with_changes(raw, [{"a": 2}, {"a": 1}], [{"a": 1}], schema) == [{"a": 1, "new": 1}]


def test_an_item_is_recognised_by_the_keys_of_its_list() -> None:
    class Port(msgspec.Struct):
        port: int
        size: int = 1

    class PortSpec(msgspec.Struct):
        ports: Annotated[list[Port], ListMap("port")] = []

    @resource("example.com", "v1")
    class Service(msgspec.Struct):
        metadata: ObjectMeta
        spec: PortSpec

    version = definition(Service)["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["ports"]
    raw = [{"port": 1, "new": 1}, {"port": 2, "new": 2}]
    before = [{"port": 1}, {"port": 2}]
    assert with_changes(raw, before, [{"port": 2, "size": 3}], schema) == [
        {"port": 2, "size": 3, "new": 2}
    ]
    assert with_changes(raw, before, [{"port": 1}, {"port": 3}], schema) == [
        {"port": 1, "new": 1},
        {"port": 3},
    ]


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0), ([1], [True])])
def test_true_is_not_one(before: Any, after: Any) -> None:
    changed = with_changes({"a": before}, {"a": before}, {"a": after})
    assert repr(changed) == repr({"a": after})


async def test_another_object_replaces_only_the_state_that_was_read(client: Client) -> None:
    await client.create(widget("w", "a"))
    changed = await client.update_existing(Widget, "w", lambda _obj: widget("w", "b"))
    assert changed.spec.parts == [Part("b")]
    bare = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    made = await client.create(bare)
    tries: list[str] = []

    class Meddled(Client):
        async def get(self, *args: Any, **options: Any) -> Any:
            found = await client.get(*args, **options)
            tries.append(found.resource_version)
            if len(tries) == 1:  # somebody writes between the read and the write
                await client.patch("configmaps", "c", {"data": {"b": "2"}})
            return found

    async with Meddled(client.config) as meddled:
        await meddled.update_existing("configmaps", "c", lambda _obj: {**bare, "data": {"a": "3"}})
    assert tries[0] == made.resource_version
    assert len(tries) == 2


async def test_a_typed_dict_is_changed_as_any_other_type(client: Client) -> None:
    class Colour(TypedDict):
        colour: str

    @resource("example.com", "v1", kind="Widget")
    class Dict(TypedDict):
        metadata: dict[str, Any]
        spec: Colour

    await client.create(widget("w", "a"))

    def change(obj: Dict) -> None:
        obj["spec"]["colour"] = "blue"

    changed = await client.update_existing(Dict, "w", change)
    assert changed["spec"]["colour"] == "blue"
    assert (await client.get(Widget, "w")).spec == Spec([Part("a")], "blue")


async def test_an_object_of_another_class_is_refused_by_name(client: Client) -> None:
    class Special(Widget):
        pass

    with pytest.raises(TypeError, match="Special is not a resource: decorate its class"):
        await client.create(Special(ObjectMeta(name="w"), Spec()))
