"""Values, identities and text are read from undecodable JSON as a decoder would read them."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from listwatch.objects.json_values import (
    BROKEN,
    Identity,
    UTF8Check,
    ValueEnd,
    identity,
    is_utf8,
    members,
    mend,
    text,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
    | st.sampled_from(['"', "\\", '}{"', "\x00\n", "é→😀"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
words = st.text(max_size=6)


def dumps(value: object, draw: st.DataObject) -> bytes:
    """Return a value as JSON, in any spelling."""
    written = json.dumps(
        value,
        ensure_ascii=draw.draw(st.booleans()),
        indent=draw.draw(st.sampled_from([None, 0, 1, "\t"])),
        separators=draw.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", " :\t")])),
    )
    return written.encode()


@given(st.dictionaries(words, json_values) | st.lists(json_values), st.binary(), st.data())
def test_a_value_ends_where_a_decoder_says_however_it_is_cut(
    value: object, after: bytes, data: st.DataObject
) -> None:
    whole = dumps(value, data)
    body, scan, ends = whole + after, ValueEnd(), []
    for cut in sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=6)) | {len(body)}):
        ends.append(scan.find(body[:cut]))
        if ends[-1] >= 0:
            break
        assert cut < len(whole)
    assert ends[-1] == len(whole)


@pytest.mark.parametrize("head", [b'{"a', b'{"a":"b\\', b'{"', b'["x","y'])
def test_a_line_break_within_a_string_breaks_a_value_that_is_read_by_lines(head: bytes) -> None:
    for cut in range(1, len(head) + 1):
        scan = ValueEnd(in_lines=True)
        assert scan.find(head[:cut]) == -1
        assert scan.find(head + b'\n"}') == BROKEN
        assert scan.position == len(head)
    assert ValueEnd().find(head + b'\n"}') == len(head) + 3


@given(st.lists(st.tuples(words, json_values)), st.data())
def test_members_are_those_of_a_decoder_in_their_order(
    pairs: list[tuple[str, Any]], data: st.DataObject
) -> None:
    inner = ",".join(f"{json.dumps(key)} : {dumps(v, data).decode()}" for key, v in pairs)
    body = f" {{{inner}\n}}".encode()
    found = [(key, json.loads(body[at:end])) for key, at, end in members(body)]
    assert found == pairs


def model(value: dict[str, Any]) -> Identity:
    """Return the identity of a decoded object."""

    def word(of: object, key: str) -> str:
        found = of.get(key) if isinstance(of, dict) else None
        return found if isinstance(found, str) else ""

    meta = value.get("metadata")
    if isinstance(meta, dict) and not isinstance(meta.get("namespace"), str | None):
        meta = {key: value for key, value in meta.items() if key != "name"}
    return Identity(
        kind=word(value, "kind"),
        api_version=word(value, "apiVersion"),
        namespace=word(meta, "namespace"),
        name=word(meta, "name"),
        uid=word(meta, "uid"),
        resource_version=word(meta, "resourceVersion"),
    )


metadata = st.dictionaries(
    st.sampled_from(["name", "namespace", "uid", "resourceVersion", "x"]), words | json_values
)
objects = st.dictionaries(
    st.sampled_from(["kind", "apiVersion", "metadata", "spec"]), words | metadata | json_values
)


@given(objects, st.data())
def test_an_identity_is_what_json_loads_finds(value: dict[str, Any], data: st.DataObject) -> None:
    assert identity(dumps(value, data)) == model(value)


@given(objects, objects)
def test_of_equal_keys_the_last_counts(one: dict[str, Any], other: dict[str, Any]) -> None:
    parts = [json.dumps(part)[1:-1] for part in (one, other) if part]
    body = "{" + ",".join(parts) + "}"
    assert identity(body.encode()) == model(json.loads(body))


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_an_identity_needs_no_recursion(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    meta = b'{"labels":%b,"name":"a","uid":"u"}' % (b'{"a":' * depth + b"1" + b"}" * depth)
    found = identity(b'{"spec":%b,"kind":"Pod","metadata":%b}' % (deep, meta))
    assert (found.kind, found.name, found.uid) == ("Pod", "a", "u")


@pytest.mark.parametrize(
    "spec",
    [
        rb'"\ud83d"',
        rb'{"\udc00":"\ud83d\ud83d"}',
        b'"\xff\xfe"',
        b'"\x00\n"',
        b"1e999999",
        b"9" * 10_000,
        b"01",
        b'"\\x"',
        b"tru",
    ],
)
def test_an_identity_is_found_beside_what_is_no_json(spec: bytes) -> None:
    body = b'{"spec":%b,"metadata":{"x":%b,"name":"a","namespace":"n"}}' % (spec, spec)
    assert identity(body).key == "n/a"


@given(st.binary())
def test_anything_has_an_identity_without_an_error(data: bytes) -> None:
    assert isinstance(identity(data), Identity)
    assert isinstance(identity(b'{"metadata":{"name":"' + data), Identity)


@pytest.mark.parametrize("namespace", [b"5", b"[]", b'{"a":"n"}', b"true"])
def test_a_name_beside_a_namespace_that_is_none_has_no_key(namespace: bytes) -> None:
    assert identity(b'{"metadata":{"name":"a","namespace":%b}}' % namespace).key is None
    assert identity(b'{"metadata":{"name":"a","namespace":null}}').key == "a"


def test_what_takes_long_to_look_into_has_no_identity() -> None:
    meta = b'"metadata":{"name":"a"}'
    few, many = (b'"x":1,' * (number - 1) for number in (1_000, 1_001))
    assert identity(b"{%b%b}" % (few, meta)).key == "a"
    assert identity(b"{%b%b}" % (many, meta)) == Identity()
    assert identity(b"{%b,%b}" % (meta, many)) == Identity()
    assert identity(b'{"metadata":{"name":"a",%b"y":1}}' % many) == Identity()
    assert identity(b'{%b,"x":"%b"}' % (meta, b"x" * 2**21)) == Identity()


@pytest.mark.parametrize(
    ("namespace", "name", "key"),
    [("n", "a", "n/a"), ("", "a", "a"), ("", "n/a", "n%2Fa"), ("n/m", "a", "n%2Fm/a")],
)
def test_no_two_objects_have_one_key(namespace: str, name: str, key: str) -> None:
    assert Identity(namespace=namespace, name=name).key == key


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\ud83d\ud83d\ude00x\uDE00"', "\ufffd😀x\ufffd"),
        (rb'"\\ud83d"', "\\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (b'"a\xffb"', "a\ufffdb"),
        (b'"\xe2\x82"', "\ufffd\ufffd"),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
        (b'"\x00"', "\x00"),
        (rb'"\x"', "\\x"),
    ],
)
def test_text_is_read_as_go_reads_it(written: bytes, read: str) -> None:
    assert text(written) == read


@given(json_values, st.booleans())
def test_sound_json_is_not_mended(value: object, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert mend(body) is body


@given(st.lists(st.sampled_from([rb"\ud83d", rb"\ude00", b"\xff", b"\\\\", b"u", b"\xc3\xa9"])))
def test_what_was_mended_is_json(parts: list[bytes]) -> None:
    json.loads(mend(b'"' + b"".join(parts) + b'"')).encode()


texts = st.lists(
    st.sampled_from([b"a" * 300, b"a" * 511, "é→😀".encode(), b"\xc3", b"\xe2\x86", b"\x80"])
    | st.binary(max_size=5),
    max_size=12,
).map(b"".join)


@given(texts)
@example(b"a" * 1023 + b"\xc3" + b"a" * 1024)  # cut within a character
@example(b"a" * 1023 + "é".encode() + b"a" * 1023)
def test_bytes_are_utf8_exactly_if_they_can_be_decoded(data: bytes) -> None:
    """Wherever the non-ASCII characters are, whole or cut in half."""
    assert is_utf8(data) is _can_be_decoded(data)


@given(st.lists(texts, max_size=5))
@example([b"a" * 600 + "é".encode() + b"a" * 600, b"\xc3" + b"a" * 600 + "é".encode()])
@example([b"a" * 600 + "é".encode(), b"a" * 700 + b"\xe2\x86", b"a" * 699 + b"\xe2\x86"])
def test_a_check_of_several_bytes_says_the_same(several: list[bytes]) -> None:
    check = UTF8Check()
    assert [check(data) for data in several] == [_can_be_decoded(data) for data in several]


def _can_be_decoded(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
