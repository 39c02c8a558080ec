import copy
import dataclasses
import gc
import json
import pickle
import zlib
from typing import Any, ClassVar, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.objects import (
    Object,
    ObjectDecodeError,
    ObjectDecoder,
    decode_object,
)

POD: dict[str, Any] = {
    "metadata": {
        "name": "web-0.a",
        "namespace": "shop",
        "uid": "u-1",
        "resourceVersion": "41",
        "generation": 3,
        "labels": {"app": "wéb"},
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "ReplicaSet",
                "name": "web",
                "uid": "o",
                "controller": True,
            }
        ],
        "finalizers": ["example.com/a"],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {"nodeName": "node-1", "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]},
}


def raw(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def test_the_typed_metadata_is_decoded() -> None:
    meta = decode_object(raw(POD), "Pod", "v1").meta
    assert (meta.namespace, meta.name, meta.uid) == ("shop", "web-0.a", "u-1")
    assert (meta.resource_version, meta.generation) == ("41", 3)
    assert meta.labels == {"app": "wéb"}
    assert meta.owner_references[0].kind == "ReplicaSet"
    assert meta.owner_references[0].controller is True
    assert meta.finalizers == ("example.com/a",)
    assert meta.deletion_timestamp == "2026-01-01T00:00:00Z"


def test_kind_and_api_version_are_there_in_every_form_though_the_bytes_lack_them() -> None:
    obj = decode_object(raw(POD), "Pod", "v1")
    assert (obj.kind, obj["kind"], obj["apiVersion"]) == ("Pod", "Pod", "v1")
    assert "kind" in obj
    assert (obj.to_dict()["kind"], json.loads(obj.json())["apiVersion"]) == ("Pod", "v1")
    assert b"kind" not in obj.raw.split(b"spec")[1]


def test_own_kind_and_api_version_win_over_the_lists() -> None:
    obj = decode_object(raw({"kind": "Widget", "apiVersion": "a/v1", **POD}), "Pod", "v1")
    assert (obj.kind, obj.api_version) == ("Widget", "a/v1")
    assert obj.json() == obj.raw


def test_a_missing_half_of_the_type_is_filled_in() -> None:
    obj = decode_object(raw({**POD, "kind": "Pod"}), "Other", "v1")
    assert (obj.to_dict()["kind"], obj.to_dict()["apiVersion"]) == ("Pod", "v1")


def test_an_object_and_its_meta_are_frozen() -> None:
    obj = decode_object(raw(POD), "Pod", "v1")
    with pytest.raises(AttributeError):
        obj.kind = "x"  # type: ignore[misc]  # the point of the test
    with pytest.raises(AttributeError):
        obj.meta.name = "x"  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError):
        obj.labels["app"] = "x"  # type: ignore[index]  # the point of the test
    with pytest.raises(TypeError):
        obj["spec"] = {}  # type: ignore[index]  # the point of the test
    with pytest.raises(TypeError, match="to_dict"):
        obj["spec"]["nodeName"] = "x"
    with pytest.raises(TypeError):
        obj["spec"]["containers"][0]["name"] = "x"
    with pytest.raises(TypeError):
        del obj["spec"]["containers"][0]
    assert obj["spec"]["containers"][0]["name"] == "c"


def test_a_dict_of_an_object_is_the_callers_own() -> None:
    obj = decode_object(raw(POD), "Pod", "v1")
    mine = obj.to_dict()
    mine["spec"]["nodeName"] = "other"
    assert obj["spec"]["nodeName"] == "node-1"
    assert obj["spec"] == POD["spec"]


class _Zlib:
    """A codec instance that the garbage collector tracks, like anything that refers to it."""

    def __init__(self) -> None:
        self.level = [1]

    def pack(self, raw: bytes) -> bytes:
        return zlib.compress(raw, self.level[0])

    def unpack(self, packed: bytes) -> bytes:
        return zlib.decompress(packed)


@pytest.mark.parametrize("codec", [None, _Zlib()], ids=["plain", "packed"])
def test_cached_objects_are_no_work_for_the_garbage_collector(codec: _Zlib | None) -> None:
    """1,000 held objects add none that the collector tracks."""

    class Spec(msgspec.Struct, frozen=True, gc=False):
        nodeName: str = ""

    class Fields(msgspec.Struct, frozen=True, gc=False):
        spec: Spec = Spec()

    decode = ObjectDecoder(fields=Fields, codec=codec)
    bytes_ = raw(POD)
    decode(bytes_)
    gc.collect()
    before = len(gc.get_objects())
    held = [decode(bytes_, "Pod", "v1") for _ in range(1000)]
    gc.collect()
    assert len(gc.get_objects()) - before < 20
    assert not gc.is_tracked(held[0])
    assert not gc.is_tracked(held[0].meta)
    assert not gc.is_tracked(held[0].fields)


def test_fields_are_decoded_in_the_same_pass_and_kept() -> None:
    class Spec(msgspec.Struct, frozen=True, gc=False):
        node_name: str = msgspec.field(default="", name="nodeName")

    class Fields(msgspec.Struct, frozen=True, gc=False):
        spec: Spec = Spec()

    obj = ObjectDecoder(fields=Fields)(raw(POD), "Pod", "v1")
    assert isinstance(obj.fields, Fields)
    assert obj.fields.spec.node_name == "node-1"


def test_fields_may_name_the_metadata_too() -> None:
    class Meta(msgspec.Struct, gc=False):
        generation: int = 0

    class Fields(msgspec.Struct, gc=False):
        metadata: Meta

    obj = ObjectDecoder(fields=Fields)(raw(POD), "Pod", "v1")
    assert obj.fields.metadata.generation == 3
    assert obj.name == "web-0.a"


def test_fields_of_the_wrong_type_make_a_poison_object_with_its_key() -> None:
    class Spec(msgspec.Struct, gc=False):
        nodeName: int = 0

    class Fields(msgspec.Struct, gc=False):
        spec: Spec

    with pytest.raises(ObjectDecodeError) as caught:
        ObjectDecoder(fields=Fields)(raw(POD), "Pod", "v1")
    assert caught.value.key == "shop/web-0.a"


@pytest.mark.parametrize(
    ("bytes_", "key"),
    [
        (b"null", None),
        (b"5", None),
        (b'"x"', None),
        (b"[]", None),
        (b"{", None),
        (b"", None),
        (b"{}", None),
        (b'{"metadata":null}', None),
        (b'{"metadata":{}}', None),
        (b'{"metadata":{"name":""}}', None),
        (b'{"metadata":{"name":5}}', None),
        (b'{"metadata":{"name":"a","labels":[]}}', "a"),
        (b'{"metadata":{"namespace":"n","name":"a","resourceVersion":5}}', "n/a"),
        (b'{"metadata":{"name":"a/b"}}', "a%2Fb"),
        (b'{"metadata":{"name":"..","namespace":"n"}}', "n/.."),
        (b'{"metadata":{"name":"a","namespace":"n/m"}}', "n%2Fm/a"),
        (b'{"metadata":{"name":"a"},"x":"\x00"}', "a"),
    ],
)
def test_what_is_no_object_is_refused_with_its_key_where_one_can_be_told(
    bytes_: bytes, key: str | None
) -> None:
    with pytest.raises(ObjectDecodeError) as caught:
        decode_object(bytes_)
    assert caught.value.key == key


def test_null_stands_for_an_absent_field() -> None:
    meta = dict.fromkeys(("labels", "finalizers", "ownerReferences", "generation", "uid"))
    obj = decode_object(raw({"kind": None, "metadata": {"name": "a", **meta}}), "Pod", "v1")
    assert (obj.kind, obj.labels, obj.meta.finalizers, obj.uid) == ("Pod", {}, (), "")


def test_large_and_non_ascii_objects_work() -> None:
    value = {"metadata": {"name": "big"}, "data": {"k": 'é\U0001f600\\"' * 150_000}}
    obj = decode_object(raw(value), "ConfigMap", "v1")
    assert len(obj.raw) > 1_500_000
    assert obj["data"]["k"] == value["data"]["k"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    managed=st.lists(json_values, max_size=2),
    before=st.dictionaries(st.sampled_from(["uid", "a", "managed"]), st.text(max_size=4)),
    after=st.dictionaries(st.sampled_from(["resourceVersion", "z"]), st.text(max_size=4)),
    style=st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}]),
    decoys=st.permutations(["spec", "metadata"]),
    inner_decoy=st.sampled_from([{}, {"annotations": {"a": "}{"}}, {"annotations": {"a": "}"}}]),
)
def test_managed_fields_and_nothing_else_are_cut_wherever_they_stand(
    managed: list[Any],
    before: dict[str, str],
    after: dict[str, str],
    style: dict[str, Any],
    decoys: list[str],
    inner_decoy: dict[str, Any],
) -> None:
    owner = {"inner": {"managedFields": managed}} if inner_decoy else {}
    parts: dict[str, dict[str, Any]] = {
        "spec": {"template": {"metadata": {"managedFields": managed, "x": 1}}},
        "metadata": {**before, **inner_decoy, **owner, "managedFields": managed, "name": "a"},
    }
    parts["metadata"].update(after)
    value = {name: parts[name] for name in decoys}
    obj = decode_object(json.dumps(value, **style).encode())
    del value["metadata"]["managedFields"]
    assert json.loads(obj.raw) == value


def test_managed_fields_alone_in_the_metadata_are_cut() -> None:
    value = b'{"metadata":{"name":"a","managedFields":[]}}'
    assert decode_object(value).raw == b'{"metadata":{"name":"a"}}'
    assert ObjectDecoder(keep_managed_fields=True)(value).raw == value


def test_an_object_decodes_into_the_callers_types() -> None:
    class Spec(msgspec.Struct):
        nodeName: str

    class Pod(msgspec.Struct):
        kind: str
        spec: Spec

    @dataclasses.dataclass
    class Typed:
        apiVersion: str

    class Dict(TypedDict):
        kind: str

    class PydanticLike:
        @staticmethod
        def model_validate_json(json_: bytes) -> str:
            return str(json.loads(json_)["kind"])

    obj = decode_object(raw(POD), "Pod", "v1")
    assert obj.decode(Pod) == Pod("Pod", Spec("node-1"))
    assert obj.decode(Typed) == Typed("v1")
    assert obj.decode(Dict) == {"kind": "Pod"}
    assert obj.decode(lambda value: value["spec"]["nodeName"]) == "node-1"
    assert obj.decode(PydanticLike) == "Pod"  # type: ignore[comparison-overlap]  # duck-typed
    with pytest.raises(ObjectDecodeError, match=r"Pod shop/web-0\.a does not fit Spec"):
        obj.decode(Spec)


def test_whatever_a_callable_raises_says_why_the_object_does_not_fit() -> None:
    def node_number(value: dict[str, Any]) -> int:
        return int(value["spec"]["nodeName"])

    class MisfitError(ValueError):
        def errors(self, *, include_input: bool, **_: bool) -> list[dict[str, Any]]:
            return [{"loc": ("spec", 0), "msg": "s3cret" if include_input else "no number"}]

    class PydanticLike:
        @staticmethod
        def model_validate_json(_: bytes) -> None:
            raise MisfitError("input_value=s3cret")

    obj = decode_object(raw(POD), "Pod", "v1")
    with pytest.raises(
        ObjectDecodeError, match=r"Pod shop/web-0\.a does not fit .*node_number: "
    ) as told:
        obj.decode(node_number)
    assert told.value.key == obj.key
    assert isinstance(told.value.__cause__, ValueError)
    with pytest.raises(ObjectDecodeError, match=r"does not fit PydanticLike: spec\.0: no number$"):
        obj.decode(PydanticLike)


def test_a_generated_model_that_can_not_be_made_of_a_dict_is_refused() -> None:
    class V1Pod:
        openapi_types: ClassVar = {"metadata": "V1ObjectMeta"}

        def __init__(self, api_version: str | None = None) -> None:
            self.api_version = api_version

    with pytest.raises(TypeError, match=r"V1Pod cannot be built from a dict: .*deserialize"):
        decode_object(raw(POD), "Pod", "v1").decode(V1Pod)


def test_objects_compare_by_content_and_can_be_copied_and_pickled() -> None:
    obj = decode_object(raw(POD), "Pod", "v1")
    again = decode_object(raw(POD), "Pod", "v1")
    assert obj == again
    assert hash(obj) == hash(again)
    assert obj != decode_object(raw(POD), "Pod", "v2")
    assert copy.deepcopy(obj) == obj
    assert pickle.loads(pickle.dumps(obj)) == obj  # noqa: S301 - our own bytes
    assert repr(obj) == "<Pod shop/web-0.a rv=41>"
    assert Object.from_dict({"metadata": {"name": "a"}}).key == "a"


class NodeName(msgspec.Struct, frozen=True, gc=False):
    node_name: str = msgspec.field(name="nodeName", default="")


class OnlyNode(msgspec.Struct, frozen=True, gc=False):
    spec: NodeName = NodeName()


class OnlySpec(msgspec.Struct):
    spec: dict[str, Any] = {}


def test_fields_are_equal_when_all_that_their_type_names_is() -> None:
    decode = ObjectDecoder(fields=OnlyNode)
    pods = [
        decode(
            raw({"metadata": {"name": "a", "resourceVersion": version}, "spec": {"nodeName": node}})
        )
        for version, node in (("1", "x"), ("2", "x"), ("3", "y"))
    ]
    first, same, other = (pod.fields for pod in pods)
    assert first == same == OnlyNode(NodeName("x"))
    assert hash(first) == hash(same) == hash(OnlyNode(NodeName("x")))
    assert first != other
    assert first != "x"
    mutable = ObjectDecoder(fields=OnlySpec)(pods[0].raw).fields
    assert mutable == OnlySpec({"nodeName": "x"})
    with pytest.raises(TypeError, match="unhashable"):
        hash(mutable)


def test_objects_with_fields_can_be_copied_and_pickled() -> None:
    obj = ObjectDecoder(fields=OnlyNode)(
        raw({"metadata": {"name": "a"}, "spec": {"nodeName": "x"}})
    )
    for again in (copy.copy(obj), copy.deepcopy(obj), pickle.loads(pickle.dumps(obj))):  # noqa: S301 - our own bytes
        assert (again, again.fields) == (obj, OnlyNode(NodeName("x")))


def test_absent_fields_are_a_key_error_or_the_default() -> None:
    obj = decode_object(raw(POD))
    with pytest.raises(KeyError, match="status"):
        obj["status"]
    assert obj.get("status", 5) == 5
    assert "status" not in obj


def test_an_object_nested_too_deeply_is_no_object() -> None:
    # Above the C recursion limit of every version: 3.12 and later allow more than Python's own.
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    with pytest.raises(ObjectDecodeError, match="nested too deeply"):
        decode_object(b'{"kind":"X","metadata":{"name":"a"},"spec":' + deep + b"}")


@pytest.mark.parametrize(
    "spec",
    [rb'"\ud83d"', rb'{"\udc00":"\ud83d\ud83d"}', b'"\xff"', b'["\xe2\x82","\xed\xa0\x80"]'],
)
def test_text_that_is_no_unicode_is_read_in_every_way_as_go_reads_it(spec: bytes) -> None:
    obj = decode_object(b'{"kind":"X","spec":%b,"metadata":{"name":"a"}}' % spec)
    value = obj.to_dict()
    assert "\ufffd" in str(value["spec"])
    assert obj["spec"] == obj.get("spec") == obj.decode(dict)["spec"] == value["spec"]
    assert "spec" in obj
    assert json.loads(obj.json().decode()) == value
    assert Object.from_dict(value).to_dict() == value


@pytest.mark.parametrize("part", [b'"labels":{"a":%b}', b'"name":%b', b'"annotations":{"a":%b}'])
def test_metadata_with_half_a_character_are_read(part: bytes) -> None:
    meta = b'{"name":"x",%b}' % (part % rb'"a\ud83d"')
    obj = decode_object(b'{"metadata":%b}' % meta)
    assert obj.to_dict()["metadata"] == {
        "name": "x",
        **json.loads(meta.replace(rb"\ud83d", b"\\ufffd")),
    }
    assert obj.name in {"x", "a\ufffd"}
    assert set(obj.labels.values()) <= {"a\ufffd"}


@pytest.mark.parametrize("spec", [b"1e999", b"9" * 5000])
def test_a_number_that_is_too_large_is_an_error_of_the_object_that_names_it(spec: bytes) -> None:
    body = (
        b'{"kind":"X","apiVersion":"v1","metadata":{"name":"a","namespace":"n"},"spec":%b}' % spec
    )
    obj = decode_object(body)
    for read in (lambda: obj["spec"], lambda: obj.get("spec"), obj.to_dict):
        with pytest.raises(ObjectDecodeError, match="X n/a can't be decoded") as caught:
            read()
        assert caught.value.key == "n/a"
    with pytest.raises(ObjectDecodeError):
        obj.decode(dict)
    with pytest.raises(ObjectDecodeError):  # the missing version has to be inserted
        decode_object(body.replace(b'"apiVersion":"v1",', b""))


def test_an_object_is_decoded_on_a_deep_stack_or_the_error_is_ours() -> None:
    deep = b"[" * 900 + b"]" * 900
    obj = decode_object(b'{"kind":"X","metadata":{"name":"a"},"spec":%b}' % deep)

    def read(depth: int) -> bool:
        if depth:
            return read(depth - 1)
        try:
            return obj["spec"] is not None and obj.to_dict() is not None
        except ObjectDecodeError as error:
            return error.key == "a"

    assert read(200)
