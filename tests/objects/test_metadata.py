"""Labels and owners are read only from their own place in an object's bytes."""

import json
import pickle
import sys
import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.objects import Object, ObjectDecodeError, ObjectDecoder, OwnerReference, select
from listwatch.selector import (
    LabelRequirement,
    LabelSelector,
    Operator,
    parse_label_selector,
)

# Few, for selectors to match labels; some need escapes, some look like JSON.
WORDS = st.one_of(
    st.sampled_from(["a", "b", "1", "2", '"', "\\", '":', '"a":"b"', "ü", "a b", ""]),
    st.text(max_size=6),
)
REQUIREMENTS = st.builds(
    LabelRequirement, WORDS, st.sampled_from(list(Operator)), st.tuples(WORDS, WORDS)
) | st.builds(LabelRequirement, WORDS, st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]))
LABELS = st.one_of(st.none(), st.dictionaries(WORDS, st.one_of(st.none(), WORDS), max_size=4))
OWNER = st.fixed_dictionaries(
    {"uid": WORDS, "name": WORDS}, optional={"controller": st.sampled_from([None, True])}
)
OWNERS = st.one_of(st.none(), st.lists(OWNER, max_size=2))


class Zlib:
    """A minimal codec."""

    def pack(self, raw: bytes) -> bytes:
        return zlib.compress(raw)

    def unpack(self, packed: bytes) -> bytes:
        return zlib.decompress(packed)


@st.composite
def objects(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """Return an object with parts that look like its labels and owners, and its bytes."""
    labels, owners = draw(LABELS), draw(OWNERS)
    meta: dict[str, Any] = {"name": "a", "namespace": draw(st.sampled_from(["", "n"]))}
    if draw(st.booleans()):
        meta["labels"] = labels
    if draw(st.booleans()):
        meta["ownerReferences"] = owners
    if draw(st.booleans()):
        meta["managedFields"] = [{"labels": labels}, {"ownerReferences": owners}]
    decoy = {"labels": draw(LABELS), "ownerReferences": draw(OWNERS), "managedFields": [1]}
    meta["annotations"] = {"a": json.dumps(decoy, separators=(",", ":"))}
    parts = {"metadata": draw(st.permutations(list(meta.items()))), "spec": decoy}
    value = {
        key: dict(part) if isinstance(part, list) else part
        for key, part in draw(st.permutations(list(parts.items())))
    }
    separators = draw(st.sampled_from([(",", ":"), (",", ": "), (", ", ": "), (" ,", " :")]))
    ascii_only = draw(st.booleans())
    return value, json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode()


def expected(value: dict[str, Any]) -> tuple[dict[str, str], tuple[OwnerReference, ...]]:
    meta = value["metadata"]
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if v is not None}
    owners = [
        OwnerReference(name=o["name"], uid=o["uid"], controller=o.get("controller"))
        for o in meta.get("ownerReferences") or ()
    ]
    return labels, tuple(owners)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("codec", [None, Zlib()], ids=["plain", "packed"])
@given(made=objects())
def test_labels_and_owners_are_those_of_the_metadata_however_it_is_written(
    made: tuple[dict[str, Any], bytes], codec: Zlib | None, keep: bool
) -> None:
    value, raw = made
    obj = ObjectDecoder(codec=codec, keep_managed_fields=keep)(raw, "Pod", "v1")
    assert (dict(obj.labels), obj.meta.owner_references) == expected(value)
    assert obj.meta.name == "a"
    kept = obj.to_dict()
    if not keep:
        value["metadata"].pop("managedFields", None)
        kept["metadata"].pop("managedFields", None)  # kept if written in an unusual way
    assert kept == {**value, "kind": "Pod", "apiVersion": "v1"}


@given(made=objects(), before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_a_part_of_larger_bytes_is_decoded_as_if_it_were_alone_and_keeps_nothing_of_them(
    made: tuple[dict[str, Any], bytes], before: bytes, after: bytes
) -> None:
    value, raw = made
    decode = ObjectDecoder()
    data = bytearray(before + raw + after)
    obj = decode.decode_part(data, len(before), len(before) + len(raw))
    data[:] = b"x" * 9  # fails if anything still refers to the buffer
    assert obj == decode(raw)
    assert (dict(obj.labels), obj.meta.owner_references) == expected(value)
    assert obj.meta == decode(raw).meta


class Spec(msgspec.Struct):
    """A type with a field that is a slice of the decoded bytes."""

    spec: list[msgspec.Raw] | None = None


class Nested(msgspec.Struct):
    """The same, nested more deeply."""

    spec: dict[str, tuple[int, Spec] | None] | None = None


@pytest.mark.parametrize("fields", [Spec, Nested])
def test_raw_fields_outlive_the_bytes_that_they_were_in(fields: type[msgspec.Struct]) -> None:
    spec = b'[{"a":1}]' if fields is Spec else b'{"s":[7,{"spec":[{"a":1}]}]}'
    data = bytearray(b'##{"metadata":{"name":"a"},"spec":%b}##' % spec)
    obj = ObjectDecoder(fields=fields).decode_part(data, 2, len(data) - 2)
    data[:] = b""
    found = obj.fields.spec if fields is Spec else obj.fields.spec["s"][1].spec
    assert bytes(found[0]) == b'{"a":1}'


def test_raw_fields_keep_nothing_alive_but_the_stored_bytes() -> None:
    managed = b'[{"manager":"%b"}]' % (b"m" * 9000)
    raw = b'{"metadata":{"name":"a","managedFields":%b},"spec":[%b]}' % (managed, b"1")
    decode = ObjectDecoder(fields=Spec)
    decode(raw)
    tracemalloc.start()
    kept = [decode(raw) for _ in range(20)]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stored = sum(obj.stored_bytes for obj in kept)
    assert held < stored + len(kept) * 2000


def test_slices_that_msgspec_can_not_decode_are_refused_at_once() -> None:
    class Optional(msgspec.Struct):
        spec: dict[str, msgspec.Raw | None] = {}

    with pytest.raises(TypeError, match=r"Optional'> has a msgspec.Raw or something else: give a"):
        ObjectDecoder(fields=Optional)


@pytest.mark.parametrize("spec", [b"null", None])
def test_raw_fields_that_are_null_are_absent(spec: bytes | None) -> None:
    class Status(msgspec.Struct):
        status: msgspec.Raw
        spec: dict[str, int] = {}

    body = b"" if spec is None else b',"spec":%b' % spec
    obj = ObjectDecoder(fields=Status)(b'{"metadata":{"name":"a"},"status":7%b}' % body)
    assert (bytes(obj.fields.status), obj.fields.spec) == (b"7", {})


@pytest.mark.parametrize(
    "part", [b'"labels":{"a":1}', b'"labels":[]', b'"ownerReferences":[{"uid":1}]']
)
def test_labels_and_owners_of_the_wrong_types_are_refused_when_they_arrive(part: bytes) -> None:
    with pytest.raises(ObjectDecodeError, match="not a Kubernetes object") as caught:
        ObjectDecoder()(b'{"metadata":{"name":"a","namespace":"n",%b}}' % part)
    assert caught.value.key == "n/a"


def test_metadata_compare_by_what_they_say_and_not_by_the_rest_of_the_object() -> None:
    def meta(rest: str, label: str = "x") -> Any:
        text = '{"metadata":{"name":"a","uid":"u","labels":{"l":"%s"}},%s}'
        return ObjectDecoder()((text % (label, rest)).encode()).meta

    one, other = meta('"spec":1'), meta('"spec":2')
    assert one == other
    assert hash(one) == hash(other)
    assert one != meta('"spec":1', label="y")
    assert one != "a"
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own
    assert repr(one) == "<metadata of a uid=u rv=>"


def test_labels_can_not_be_changed() -> None:
    obj: Object = ObjectDecoder()(b'{"metadata":{"name":"a","labels":{"l":"x"}}}')
    with pytest.raises(TypeError):
        obj.labels["l"] = "y"  # type: ignore[index]  # what is refused
    assert obj.labels == {"l": "x"}


@given(
    made=st.lists(objects(), max_size=3),
    requirements=st.lists(REQUIREMENTS, max_size=3),
    nothing=st.booleans(),
)
def test_selecting_finds_what_a_look_at_the_labels_finds(
    made: list[tuple[dict[str, Any], bytes]], requirements: list[LabelRequirement], nothing: bool
) -> None:
    found = [ObjectDecoder()(raw) for _, raw in made]
    selector = LabelSelector(tuple(requirements), nothing)
    assert select(found, selector) == [obj for obj in found if selector.matches(obj.labels)]


@pytest.mark.parametrize(
    ("text", "names"),
    [("app=a", "0"), ("app!=a", "1234"), ("app in (a,b)", "01"), ("app", "0123"), ("!app", "4")],
)
def test_selecting_needs_no_decoding_for_labels_as_servers_write_them(
    text: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ['{"app":"a"}', '{"x":"app","app":"b"}', '{"app":"ab"}', '{"app":""}', '{"xapp":"a"}']
    found = [
        ObjectDecoder()(b'{"metadata":{"name":"%d","labels":%b}}' % (number, part.encode()))
        for number, part in enumerate(labels)
    ]
    # would make decoding labels fail
    monkeypatch.delattr("listwatch.objects.metadata._decode_labels")
    selected = select(found, parse_label_selector(text))
    assert [obj.name for obj in selected] == list(names)


@pytest.mark.parametrize(
    "labels",
    [
        '{"app": "a"}',
        '{"app" :"a"}',
        '{ "app":"a"}',
        '{"app":"a"\n}',
        '{"\\u0061pp":"a"}',
        '{"app":"\\u0061"}',
        '{"app":"b","app":"a"}',
        '{"none":null,"app":"a"}',
    ],
)
@pytest.mark.parametrize(
    ("text", "matches"), [("app=a", True), ("app!=b", True), ("!none", True), ("app!=a", False)]
)
def test_selecting_knows_labels_however_they_are_written(
    labels: str, text: str, matches: bool
) -> None:
    obj = ObjectDecoder()(b'{"metadata":{"name":"n","labels":%b}}' % labels.encode())
    assert bool(select([obj], parse_label_selector(text))) is matches


def test_a_packed_object_keeps_nothing_of_the_bytes_it_was_packed_from() -> None:
    raw = b'{"metadata":{"name":"n","labels":{"app":"a"},"ownerReferences":[{"uid":"u"}]}}'
    before = sys.getrefcount(raw)
    obj = ObjectDecoder(codec=Zlib())(raw)
    assert sys.getrefcount(raw) == before
    assert (dict(obj.labels), obj.meta.owner_references[0].uid) == ({"app": "a"}, "u")
