"""Watches are cut right whatever their form and their chunks."""

import json
import random
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.frame_bodies import ANY_CUT, chunks, item, json_value, read_list, read_watch
from listwatch.cache.frames import WatchFrames
from listwatch.cache.list_watch import BOOKMARK, ERROR, WatchEvent
from listwatch.errors import FrameError, InternalServerError
from listwatch.objects import ObjectDecoder, decode_object


def line(kind: str, value: object, **more: object) -> bytes:
    return (
        json.dumps({"type": kind, "object": value, **more}, separators=(",", ":")).encode() + b"\n"
    )


def pod(name: str, version: str = "1", **more: object) -> dict[str, Any]:
    meta = {"name": name, "resourceVersion": version}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, **more}


Told = tuple[str, str | None, str, str | None, bool]


def told(event: WatchEvent) -> Told:
    """Return what an event says, in comparable form."""
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


def test_feed_returns_an_event_as_soon_as_its_line_is_whole() -> None:
    reader = WatchFrames(decode_object)
    whole = line("ADDED", pod("a"))
    assert reader.feed(whole[:-1]) == []
    assert [event.type for event in reader.feed(b"\n" + whole[:5])] == ["ADDED"]
    assert [event.type for event in reader.feed(whole[5:])] == ["ADDED"]
    assert reader.finish() == []


@pytest.mark.parametrize("body", [b'{"type":"ADDED","object":{"metadata":{"na', b"garb", b"{"])
def test_half_an_event_at_the_end_is_an_error(body: bytes) -> None:
    reader = WatchFrames(decode_object)
    assert reader.feed(body) == []
    with pytest.raises(FrameError, match="ended within an event"):
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
