"""Watches are split correctly, whatever their format and chunks."""

import itertools
import json
import random
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.frame_bodies import ANY_CUT, chunks, item, json_value, read_list, read_watch
from listwatch.cache.frames import WatchFrames
from listwatch.cache.kinds import ExpectedKind
from listwatch.cache.list_watch import BOOKMARK, ERROR, WatchEvent
from listwatch.errors import FrameError, InternalServerError
from listwatch.objects import ObjectDecodeError, ObjectDecoder, decode_object, json_values
from listwatch.objects.json_values import ValueEnd


def line(kind: str, value: object, **more: object) -> bytes:
    return (
        json.dumps({"type": kind, "object": value, **more}, separators=(",", ":")).encode() + b"\n"
    )


def pod(name: str, version: str = "1", **more: object) -> dict[str, Any]:
    meta = {"name": name, "resourceVersion": version}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, **more}


Told = tuple[str, str | None, str, str | None, bool]


def told(event: WatchEvent) -> Told:
    """Return an event's content in comparable form."""
    error = None if event.error is None else type(event.error).__name__
    key = event.object.key if event.object is not None else None
    return event.type, key, event.resource_version, error, event.initial_events_end


@pytest.mark.parametrize("size", ANY_CUT)
def test_a_watch_is_the_same_however_it_is_chunked(size: int) -> None:
    end = {
        "kind": "Pod",
        "metadata": {"resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": "true"}},
    }
    status = {"kind": "Status", "reason": "Expired", "code": 410, "message": "too old"}
    body = (
        line("ADDED", pod("ä→😀", "1"))
        + b"\r\n\n"
        + line("MODIFIED", pod("b", "2")).replace(b"\n", b"\r\n")
        + b' { "object" : {"metadata":{"name":"c","resourceVersion":"3"}} ,\t"more":[1,{}],'
        + b' "type" : "DELETED" } \n'
        + line("ADDED", pod("d", "4"), type2="x")
        + line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "7"}})
        + line("BOOKMARK", end)
        + b'{"ty\\u0070e":"ADD\\u0045D","object":{"metadata":{"name":"e","resourceVersion":"9"}}}\n'
        + b'{"type":"ADDED","object":{"metadata":{"name":"f"}},"type":"DELETED"}\n'
        + line("FUTURE", pod("g", "10"))
        + line("ADDED", {"metadata": {"resourceVersion": "11"}})
        + line("MODIFIED", {"metadata": {"name": 5, "resourceVersion": "12"}})
        + line("DELETED", None)
        + b"garbage\n"
        + b'{"type":"ADDED","object":{"metadata":{"name":"x"}}]\n'
        + b'{"typo":"ADDED","object":{"metadata":{"name":"x"}}}\n'
        + b'{"type":"ADDED","objekt":{"metadata":{"name":"x"}}}\n'
        + b'{"type":"ADDED","obj\n'
        + b"[]\n"
        + b'{"kind":"PodList","items":[]}\n'
        + line("BOOKMARK", {})
        + line("ERROR", status)
        + line("ERROR", "nonsense")
        + json.dumps(status).encode()
        + b"\n"
        + line("ADDED", pod("last", "13"))[:-1]
    )
    events = read_watch(chunks(body, size))
    assert [told(event) for event in events] == [
        ("ADDED", "ä→😀", "1", None, False),
        ("MODIFIED", "b", "2", None, False),
        ("DELETED", "c", "3", None, False),
        ("ADDED", "d", "4", None, False),
        (BOOKMARK, None, "7", None, False),
        (BOOKMARK, None, "8", None, True),
        ("ADDED", "e", "9", None, False),
        ("DELETED", "f", "", None, False),
        ("FUTURE", None, "10", None, False),
        ("ADDED", None, "11", "ObjectDecodeError", False),
        ("MODIFIED", None, "12", "ObjectDecodeError", False),
        ("DELETED", None, "", "ObjectDecodeError", False),
        *[("", None, "", "FrameError", False)] * 7,
        (BOOKMARK, None, "", "FrameError", False),
        (ERROR, None, "", "ExpiredError", False),
        (ERROR, None, "", "StatusError", False),
        (ERROR, None, "", "ExpiredError", False),
        ("ADDED", "last", "13", None, False),
    ]
    assert json.loads(events[0].object.raw) == pod("ä→😀", "1") if events[0].object else False


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
            item,
            st.dictionaries(st.sampled_from(["x", 'a","object":', "z"]), json_value, max_size=2),
            st.booleans(),
            st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_any_legal_event_is_read_whatever_its_spelling(
    cases: list[tuple[str, dict[str, Any], dict[str, Any], bool, tuple[str, str], bool]],
    rng: random.Random,
) -> None:
    body, expected = b"", []
    for kind, value, more, more_first, separators, ascii_only in cases:
        fields = [("type", kind), ("object", value), *more.items()]
        if more_first:
            rng.shuffle(fields)
        text = json.dumps(dict(fields), separators=separators, ensure_ascii=ascii_only)
        body += text.encode(errors="surrogatepass") + b"\n"
        expected.append((kind, value))
    pieces = []
    at = 0
    while at < len(body):
        step = rng.choice([1, 3, 40, 300])
        pieces.append(body[at : at + step])
        at += step
    events = read_watch(pieces)
    assert [(e.type, json.loads(e.object.raw)) for e in events if e.object] == expected
    assert len(events) == len(expected)


def test_an_event_in_a_chunk_of_its_own_and_many_in_one_are_alike() -> None:
    lines = [line("ADDED", pod(f"p{i}", str(i))) for i in range(50)]
    one_each = [told(event) for event in read_watch(lines)]
    assert one_each == [told(event) for event in read_watch([b"".join(lines)])]
    assert [event[2] for event in one_each] == [str(i) for i in range(50)]


def test_feed_returns_an_event_as_soon_as_it_is_whole() -> None:
    reader = WatchFrames(decode_object)
    whole = line("ADDED", pod("a"))
    assert reader.feed(whole[:-2]) == []
    assert [event.type for event in reader.feed(whole[-2:-1])] == ["ADDED"]
    assert reader.feed(b"\n" + whole[:5]) == []
    assert [event.type for event in reader.feed(whole[5:])] == ["ADDED"]
    assert reader.finish() == []


@pytest.mark.parametrize("body", [b'{"type":"ADDED","object":{"metadata":{"na', b"garb", b"{"])
def test_half_an_event_at_the_end_is_an_error(body: bytes) -> None:
    reader = WatchFrames(decode_object)
    assert reader.feed(body) == []
    with pytest.raises(FrameError, match="ended in the middle of an event"):
        reader.finish()


@pytest.mark.parametrize("size", [1, 100, 1 << 30])
def test_an_event_over_the_limit_is_told_once_and_the_next_are_read(size: int) -> None:
    large = line("ADDED", pod("large", "2", x="y" * 5000))
    body = line("ADDED", pod("a", "1")) + large + line("ADDED", pod("b", "3")) * 2
    events = read_watch(chunks(body, size), max_event_bytes=1000)
    assert [told(event)[1] for event in events] == ["a", None, "b", "b"]
    assert isinstance(events[1].error, FrameError)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(("over", "names"), [(0, ["a"]), (1, [None])])
def test_the_limit_is_one_to_the_byte_however_an_event_is_cut(
    end: bytes, over: int, names: list[str | None]
) -> None:
    event = line("ADDED", pod("a", "1")).rstrip()
    for size in range(1, len(event) + 3):
        events = read_watch(chunks(event + end, size), max_event_bytes=len(event) - over)
        assert [told(event)[1] for event in events] == names


def test_an_endless_line_is_never_held() -> None:
    reader = WatchFrames(decode_object, max_event_bytes=10_000)
    piece = bytes(1000)
    tracemalloc.start()
    events = [event for _ in range(2000) for event in reader.feed(bytes(bytearray(piece)))]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(events) == 1
    assert held < 20_000


def test_errors_of_a_watch_are_of_the_kind_that_the_server_named() -> None:
    status = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd"}
    (event,) = read_watch([line("ERROR", status)])
    assert isinstance(event.error, InternalServerError)
    assert str(event.error) == "etcd"


def test_deep_nesting_in_a_watch_is_an_error_of_that_event_alone() -> None:
    deep = (
        b'{"type":"ADDED","object":{"metadata":{"name":"d"},"x":'
        + b"[" * 99_999
        + b"]" * 99_999
        + b"}}\n"
    )
    events = read_watch([deep + line("ADDED", pod("a"))])
    assert [event.error is None for event in events] == [False, True]
    assert isinstance(events[0].error, ObjectDecodeError)
    assert events[0].error.key == "d"


def test_objects_of_a_watch_carry_the_given_kind_where_they_name_none() -> None:
    bare = {"metadata": {"name": "a"}}
    (event,) = read_watch([line("ADDED", bare)], kind="Pod", api_version="v1")
    assert event.object is not None
    assert (event.object.kind, event.object.api_version) == ("Pod", "v1")


def test_fields_are_decoded_in_the_same_pass() -> None:
    class Spec(msgspec.Struct, gc=False):
        spec: dict[str, str] = {}

    decode = ObjectDecoder(fields=Spec)
    body = b'{"items":[{"metadata":{"name":"a"},"spec":{"nodeName":"n"}}]}'
    assert read_list(body, decode=decode).items[0].fields.spec == {"nodeName": "n"}


@pytest.mark.parametrize(("mark", "ends"), [("true", True), ("false", False), ("", False)])
def test_only_the_word_true_ends_the_initial_events(mark: str, *, ends: bool) -> None:
    meta = {"resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": mark}}
    (event,) = WatchFrames(decode_object).feed(line("BOOKMARK", {"kind": "Pod", "metadata": meta}))
    assert (event.resource_version, event.initial_events_end) == ("8", ends)


# --- A stream of values, not of lines ------------------------------------------------------------

between = st.sampled_from(
    [b"", b"\n", b"\r\n", b" ", b"\n\n\t", b"\xef\xbb\xbf", b"\n\xef\xbb\xbf "]
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """Return the bytes of a watch with random spacing, and its events."""
    events = draw(
        st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), item), max_size=6)
    )
    body = draw(between)
    for kind, value in events:
        text = json.dumps(
            {"type": kind, "object": value},
            indent=draw(st.sampled_from([None, None, 0, 2, "\t"])),
            separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
            ensure_ascii=draw(st.booleans()),
        )
        body += text.encode(errors="surrogatepass") + draw(between)
    return body, events


@given(streams(), st.data())
def test_events_are_values_however_they_are_indented_joined_and_cut(
    stream: tuple[bytes, list[tuple[str, Any]]], data: st.DataObject
) -> None:
    body, expected = stream
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=12)))
    pieces = [body[a:b] for a, b in itertools.pairwise([0, *cuts, len(body)])]
    events = read_watch(pieces)
    assert [(e.type, json.loads(e.object.raw)) for e in events if e.object] == expected
    assert len(events) == len(expected)


@pytest.mark.parametrize("size", ANY_CUT)
@pytest.mark.parametrize(
    "damage",
    [
        b'{"type":"ADDED","object":{"metadata":{"name":"cut"\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"cut\n',
        b'{\n  "type": "ADDED",\n  "object": {\n    "metadata": {\n',
        b'{\n  "type": "ADDED",\n  "object": {\n    "meta\n',
        b"<html>\n<body>\n",
    ],
)
def test_after_bytes_that_are_no_json_the_next_lines_are_read(size: int, damage: bytes) -> None:
    good = line("ADDED", pod("a", "1")) + line("MODIFIED", pod("a", "2"))
    body = good + damage + good
    events = read_watch(chunks(body, size))
    assert [told(e)[1] for e in events if e.object] == ["a"] * 4
    assert {type(e.error) for e in events if not e.object} == {FrameError}
    # Events that follow are not held back.
    reader = WatchFrames(decode_object)
    found = [e for piece in chunks(damage + good, size) for e in reader.feed(piece)]
    assert len([e for e in found if e.object]) == 2


@pytest.mark.parametrize("spec", [rb'"\ud83d"', b'"\xff"', rb'{"\ud83d":1}', rb'"\ud83d\ud83d"'])
def test_broken_text_is_read_as_go_reads_it(spec: bytes) -> None:
    body = b'{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":%b}}\n' % spec
    (event,) = read_watch([body])
    assert event.object is not None
    value = event.object.to_dict()
    assert "\ufffd" in json.dumps(value, ensure_ascii=False)
    assert event.object["spec"] == value["spec"] == event.object.decode(dict)["spec"]
    json.loads(event.object.json().decode())


@pytest.mark.parametrize(
    "spec",
    [b"[" * 50_000 + b"]" * 50_000, b"[" * 100_000 + b"]" * 100_000, b'"\x00"', b"01", b'"\\x"'],
)
@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize("size", [1 << 10, 1 << 30])
def test_what_cannot_be_decoded_is_told_with_its_key_and_version(
    spec: bytes, kind: str, size: int
) -> None:
    meta = b'"metadata":{"name":"a","namespace":"n","resourceVersion":"7"}'
    body = b'{"type":"%b","object":{"spec":%b,%b}}\n' % (kind.encode(), spec, meta)
    (event, last) = read_watch(chunks(body + line("ADDED", pod("b")), size))
    assert told(event) == (kind, None, "7", "ObjectDecodeError", False)
    assert isinstance(event.error, ObjectDecodeError)
    assert event.error.key == "n/a"
    assert last.object is not None


def test_a_stream_that_is_slow_to_cut_is_cut_in_steps() -> None:
    reader = WatchFrames(decode_object)
    events = reader.feed(b"{}" * 5000)
    assert 0 < len(events) <= 1000
    while len(events) < 5000:
        assert reader.is_behind
        events += reader.feed()
    assert reader.finish() == []


@pytest.mark.parametrize(
    "unit",
    [
        b'{\n{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n',
        b"{\n",
        b'{"\n',
        b"[\n",
        b"{}",
        b'"}',
        b"}",
        b'{"type":"ADDED","object":{"x":\n',
        b'{"type":"X","object":{}}',
        b"\n",
    ],
)
def test_the_work_grows_with_the_bytes_only(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the bytes searched for the end of a value, or decoded."""
    work = 0
    find, raw = ValueEnd.find, json_values._raw  # to count the work

    def counting(scan: ValueEnd, data: bytes, limit: int | None = None) -> int:
        nonlocal work
        before = scan.position
        end = find(scan, data, limit)
        work += (end if end >= 0 else scan.position) - before
        return end

    def decoding(data: bytes) -> object:
        nonlocal work
        try:
            value = raw(data)
        except msgspec.DecodeError as error:
            hint = json_values._TRAILING(str(error))
            work += int(hint[1]) if hint else len(data)
            raise
        work += len(data)
        return value

    monkeypatch.setattr(ValueEnd, "find", counting)
    monkeypatch.setattr(json_values, "_raw", decoding)
    for size in (200, 1 << 14):
        body = unit * (30_000 // len(unit))
        work = 0
        reader = WatchFrames(decode_object)
        for piece in chunks(body, size):
            reader.feed(piece)
            while reader.is_behind:
                reader.feed()
        assert work < 6 * len(body)


LONG = 2**21 + 2**16


@pytest.mark.parametrize(
    "inside",
    [
        b'"metadata":{"name":5},' + b'"a":1,' * (LONG // 6),
        b'"metadata":{"name":5,%b"a":1},' % (b'"a":1,' * (LONG // 6)),
        b'"metadata":{"name":5},' + b'"\\u0061":1,' * (LONG // 11),
        b'"metadata":{"name":5},"y":"\\ud83d","x":[%b{}],' % (b"{}," * (LONG // 3)),
        b'"metadata":{"name":"a"},"x":%b1%b,' % (b'{"a":' * (LONG // 6), b"}" * (LONG // 6)),
    ],
    ids=["members", "metadata", "escapes", "half", "deep"],
)
@pytest.mark.parametrize(
    "form", [b'{"type":"ADDED","object":{%b"z":1}}\n', b'{%b"type":"ADDED"}\n']
)
def test_one_long_event_that_is_no_object_is_not_looked_into_for_long(
    form: bytes, inside: bytes
) -> None:
    """Counts the calls made in one turn of the event loop."""
    reader, calls, most, events = WatchFrames(decode_object), 0, 0, 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    for piece in chunks(form % inside, 2**16):
        calls = 0
        sys.setprofile(count)
        events += len(reader.feed(piece))
        sys.setprofile(None)
        most = max(most, calls)
    assert events == 1
    assert most < 100_000


# --- The kind of the events ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])
@pytest.mark.parametrize(
    ("named", "version"), [("Service", "v1"), ("Pod", "v2"), ("PartialObjectMetadata", "v1")]
)
def test_an_event_of_another_kind_is_refused_without_key_and_position(
    kind: str, named: str, version: str
) -> None:
    expected = ExpectedKind("Pod", "v1")
    value = {**pod("a", "9"), "kind": named, "apiVersion": version}
    (event, own) = read_watch(
        [line(kind, value), line("ADDED", pod("b", "2"))],
        kind="Pod",
        api_version="v1",
        expected=expected,
    )
    assert told(event) == ("", None, "", "FrameError", False)
    assert own.object is not None


def test_an_event_of_another_kind_that_cannot_be_decoded_is_refused_without_its_key() -> None:
    value = {"kind": "Service", "metadata": {"name": "a", "labels": {"a": 5}}}
    options: dict[str, Any] = {
        "kind": "Pod",
        "api_version": "v1",
        "expected": ExpectedKind("Pod", "v1"),
    }
    (event,) = read_watch([line("DELETED", value)], **options)
    assert told(event) == ("", None, "", "FrameError", False)


def test_events_that_name_no_kind_or_metadata_only_are_of_the_kind_expected() -> None:
    meta = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    body = line("ADDED", {"metadata": {"name": "a"}}) + line("ADDED", {**pod("b"), **meta})
    expected = ExpectedKind("Pod", "v1", metadata_only=True)
    events = read_watch([body], kind="Pod", api_version="v1", expected=expected)
    assert [event.object is not None for event in events] == [True, True]
