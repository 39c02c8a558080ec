"""Lists are split correctly, whatever their format and chunks."""

import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cache.frame_bodies import ANY_CUT, chunks, item, json_value, read_list
from listwatch.cache import frames
from listwatch.cache.frames import ListFrames
from listwatch.cache.kinds import ExpectedKind
from listwatch.cache.list_watch import ObjectList
from listwatch.errors import ExpiredError, FrameError, StatusError
from listwatch.objects import Object, ObjectDecodeError, decode_object, json_values

A = b'{"metadata":{"name":"a"}}'
B = b'{"metadata":{"name":"b"}}'


def names(answer: ObjectList) -> list[str]:
    return [obj.name for obj in answer.items]


WHOLE = {
    "no items": b'{"kind":"L","items":[]}',
    "no items, with space": b'{"items" : [ \n ] }',
    "null": b'{"kind":"PodList","items":null}',
    "absent": b'{"kind":"PodList"}',
    "metadata after the items": b'{"items":['
    + A
    + b","
    + B
    + b'],"metadata":{"resourceVersion":"1"}}',
    "more objects after the items": b'{"items":[' + A + b'],"z":[' + B + b"," + B + b"]}",
    "a key that ends like the head": b'{"x\\"items":[' + B + b'],"items":[' + A + b"]}",
    "nested items": b'{"m":{"items":[' + B + b"," + B + b']},"items":[' + B + b"," + A + b"]}",
    "escaped items": b'{"\\u0069tems":[' + A + b"," + B + b"]}",
    "escaped items, then a decoy": b'{"\\u0069tems":[],"x\\"items":[' + A + b"," + B + b"]}",
    "twelve decoys": b"{"
    + b"".join(b'"m%d":{"items":[]},' % i for i in range(12))
    + b'"items":['
    + A
    + b"]}",
    "items within the items": b'{"items":['
    + b",".join(
        b'{"metadata":{"name":"n%d"},"v":{"items":[{"metadata":{"name":"x"}},{"metadata":{"name":"y"}}]}}'
        % i
        for i in range(12)
    )
    + b"]}",
    "the separator within strings": b'{"items":['
    + b",".join(
        b'{"metadata":{"name":"n%d"},"s":"},{\\"metadata\\":{\\"name\\":\\"","e":"},{"}' % i
        for i in range(30)
    )
    + b"]}",
    "unlike beginnings": b'{"items":['
    + b",".join(
        b'{"%s":1,"metadata":{"name":"n%d"}}' % (b"abc"[i % 3 : i % 3 + 1], i) for i in range(40)
    )
    + b"]}",
    "unlike separators": b'{"items":['
    + A
    + b" ,"
    + B
    + b",\n"
    + A
    + b","
    + B
    + b"\t,  "
    + A
    + b" ]}",
    "pretty": json.dumps(
        {"kind": "PodList", "items": [{"metadata": {"name": f"n{i}"}} for i in range(9)]}, indent=4
    ).encode(),
    "ends with space": b'{"items":[' + A + b"]}\r\n \t",
    "multibyte": '{"items":[{"metadata":{"name":"ä→😀"}},{"metadata":{"name":"ß"}}]}'.encode(),
}

BROKEN = {
    "a comma too many": b'{"items":[' + A + b",]}",
    "a comma too many after twenty": b'{"items":[' + b",".join([A, B] * 20) + b",]}",
    "two commas": b'{"items":[' + A + b",," + B + b"]}",
    "a comma before the first": b'{"items":[,' + A + b"]}",
    "no comma": b'{"items":[' + A + B + b"]}",
    "a brace for the bracket": b'{"items":[' + A + b"}",
    "two items": b'{"items":[' + A + b'],"items":[' + B + b"]}",
    "two items, alike": b'{"items":[' + A + b'],"items":[' + A + b"]}",
    "two items, the second forged": b'{"items":[' + A + b"," + B + b'],"items":[0,' + B + b"]}",
    "two items, forged to match": b'{"items":['
    + A
    + b","
    + A
    + b","
    + B
    + b'],"items":[0,'
    + B
    + b'],"z":1}',
    "two items, the first escaped": b'{"\\u0069tems":[' + A + b'],"items":[' + B + b"]}",
    "two items, the second escaped": b'{"items":[' + A + b'],"\\u0069tems":[' + B + b"]}",
    "an object for the array": b'{"kind":"PodList","items":{"a":1}}',
    "a string for the array": b'{"kind":"PodList","items":"x"}',
    "an array for the list": b"[1]",
    "nothing": b"",
    "only space": b"  \n",
    "garbage at the end": b'{"items":[' + A + b"]}}",
    "another list at the end": b'{"items":[' + A + b"]}" + b'{"items":[]}',
    "no comma between two items": b'{"items":[' + A + b";" + B + b"]}",
    "half of the head": b'{"kind":"PodList","it',
    "no list": b'{"message":"welcome to the proxy"}',
    "an object": b'{"kind":"Pod","metadata":{"name":"a"}}',
    "HTML": b"<html><body>Bad gateway</body></html>",
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("size", ANY_CUT)
def test_a_whole_list_gives_what_json_loads_gives(body: bytes, size: int) -> None:
    expected = json.loads(body)
    answer = read_list(body, size)
    assert names(answer) == [item["metadata"]["name"] for item in expected.get("items") or []]
    assert [json.loads(obj.raw) for obj in answer.items] == (expected.get("items") or [])
    assert answer.undecodable == []
    assert answer.resource_version == expected.get("metadata", {}).get("resourceVersion", "")


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("size", ANY_CUT)
def test_a_broken_list_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(FrameError):
        read_list(body, size)


@pytest.mark.parametrize("size", [1, 7, 1 << 30])
def test_a_list_that_is_cut_short_anywhere_is_refused(size: int) -> None:
    body = b'{"kind":"PodList","items":[' + A + b", " + B + b'],"metadata":{"resourceVersion":"7"}}'
    for end in range(len(body)):
        with pytest.raises(FrameError):
            read_list(body[:end], size)
    assert names(read_list(body, size)) == ["a", "b"]


@pytest.mark.parametrize("size", ANY_CUT)
def test_poison_items_are_told_and_cost_no_others(size: int) -> None:
    poison = [
        b"null",
        b"12",
        b'"},{"',
        b"-3.5e1",
        b"[]",
        b"[{}]",
        b"true",
        b"{}",
        b'{"metadata":{"name":7}}',
        b'{"metadata":{"name":"p","namespace":"n","labels":[1]}}',
    ]
    items = [A, B, A, B]
    for bad in poison:
        items += [bad, A, B]
    answer = read_list(b'{"items":[' + b",".join(items) + b"]}", size)
    assert names(answer) == ["a", "b"] * (2 + len(poison))
    assert len(answer.undecodable) == len(poison)
    assert answer.undecodable[-1].key == "n/p"
    assert all(error.__traceback__ is None for error in answer.undecodable)
    assert all(error.__context__ is None for error in answer.undecodable)


@pytest.mark.parametrize("size", ANY_CUT)
def test_a_zero_in_an_escaped_array_does_not_make_a_decoy_the_head(size: int) -> None:
    answer = read_list(b'{"\\u0069tems":[0],"x\\"items":[' + A + b"]}", size)
    assert (names(answer), len(answer.undecodable)) == ([], 1)


@pytest.mark.parametrize("size", [1, 16, 1 << 30])
def test_items_get_their_kind_from_the_list(size: int) -> None:
    body = (
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5","continue":"c","remainingItemCount":3},"items":['
        + A
        + b"]}"
    )
    answer = read_list(body, size)
    assert [(obj.kind, obj.api_version) for obj in answer.items] == [("Pod", "v1")]
    assert (answer.resource_version, answer.continue_token, answer.remaining) == ("5", "c", 3)
    late = b'{"items":[' + A + b'],"kind":"PodList","apiVersion":"v1"}'
    given = read_list(late, size, kind="Given", api_version="g/v1")
    assert [(obj.kind, obj.api_version) for obj in given.items] == [("Given", "g/v1")]


def test_custom_resources_keep_their_own_kind() -> None:
    item = b'{"apiVersion":"e.com/v1","kind":"Widget","metadata":{"name":"w"}}'
    body = (
        b'{"apiVersion":"e.com/v1","items":['
        + item
        + b'],"kind":"WidgetList","metadata":{"resourceVersion":"9"}}'
    )
    answer = read_list(body, 10, kind="Other")
    assert (answer.items[0].kind, answer.items[0].api_version) == ("Widget", "e.com/v1")
    assert answer.resource_version == "9"


def test_a_status_in_place_of_a_list_is_its_error() -> None:
    status = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}
    with pytest.raises(ExpiredError):
        read_list(json.dumps(status).encode(), 9)


def test_metadata_of_the_wrong_types_is_refused() -> None:
    with pytest.raises(FrameError):
        read_list(b'{"items":[],"metadata":{"resourceVersion":7}}')


outer = st.dictionaries(
    st.sampled_from(["a", 'x"items', "it\\ems", "m", "ü"]),
    json_value | st.builds(lambda v: {"items": v}, st.lists(item, max_size=2)),
    max_size=3,
)


@st.composite
def list_bodies(draw: st.DrawFn) -> bytes:
    value = {**draw(outer), "items": draw(st.lists(item, max_size=6)), **draw(outer)}
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, 1, "\t"])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", " :\t")])),
    )
    if draw(st.integers(0, 4)) == 0:
        text = text.replace('"items"', '"\\u0069tems"', draw(st.integers(1, 3)))
    return text.encode(errors="surrogatepass")


@given(list_bodies(), st.randoms(use_true_random=False))
def test_any_list_in_any_chunks_is_what_json_loads_says(body: bytes, rng: random.Random) -> None:
    expected = json.loads(body)["items"]
    reader = ListFrames(decode_object)
    at = 0
    while at < len(body):
        step = rng.choice([1, 2, 9, 60, 400])
        reader.feed(body[at : at + step])
        at += step
    answer = reader.finish()
    assert [json.loads(obj.raw) for obj in answer.items] == expected
    assert answer.undecodable == []


@given(list_bodies(), st.data())
def test_a_damaged_list_is_never_taken_for_another(body: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(body) - 1))
    damage = data.draw(st.sampled_from([b"", b",", b"}", b"]", b"{", b'"', b"\\", b"0"]))
    damaged = body[:at] + damage + body[at + data.draw(st.integers(0, 1)) :]
    assume(damaged.decode(errors="ignore").encode() == damaged)
    size = data.draw(st.sampled_from(ANY_CUT))
    try:
        answer = read_list(damaged, size)
    except (FrameError, StatusError):
        return
    expected = json.loads(damaged)["items"] or []  # accepted items must be valid JSON
    good = []
    for value in expected:
        try:
            good.append(json.loads(decode_object(json.dumps(value).encode()).raw))
        except ObjectDecodeError:
            continue
    assert [json.loads(obj.raw) for obj in answer.items] == good
    assert len(good) + len(answer.undecodable) == len(expected)


class Work:
    """Counts the bytes that are decoded, searched and skipped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        # to count the work
        monkeypatch.setattr(json_values, "_raw", self._counting(json_values._raw))
        # to count the work
        monkeypatch.setattr(frames, "_top", self._counting(frames._top))
        past_space = frames._past_space  # to count the work

        def counting(data: bytearray, position: int) -> int:
            after = past_space(data, position)
            self.bytes += after - position
            return after

        monkeypatch.setattr(frames, "_past_space", counting)

    def _counting(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(data: bytes) -> Any:
            try:
                value = function(data)
            except msgspec.DecodeError as error:
                hint = json_values._TRAILING(str(error))
                self.bytes += int(hint[1]) if hint else len(data)
                raise
            self.bytes += len(data)
            return value

        return call

    def decode(self, raw: bytes, kind: str = "", api_version: str = "") -> Object:
        self.bytes += len(raw)
        return decode_object(raw, kind, api_version)

    def reader(self) -> ListFrames:
        work = self

        class Searched(bytearray):
            def find(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
                found = super().find(sub, start, end)
                work.bytes += (len(self) if found < 0 else found) - start
                return found

        reader = ListFrames(self.decode)
        reader._pending = Searched()  # to count the work
        return reader


def hostile(size: int) -> dict[str, bytes]:
    separator = b'},{"metadata":{"name":"'
    decoys = json.dumps(separator.decode())[1:-1].encode()
    return {
        "an item full of separators": b'{"items":['
        + A
        + b","
        + B
        + b',{"metadata":{"name":"c"},"x":['
        + b",".join([A] * (size // 26))
        + b"]},"
        + A
        + b"]}",
        "a string full of separators": b'{"items":['
        + A
        + b","
        + B
        + b',{"metadata":{"name":"c"},"s":"'
        + decoys * (size // len(decoys))
        + b'"},'
        + A
        + b"]}",
        "tiny items": b'{"items":[' + b",".join([A] * (size // 26)) + b"]}",
        "scalars": b'{"items":[' + b",".join([b"1"] * (size // 20)) + b"]}",
        "changing beginnings": b'{"items":['
        + b",".join(
            b'{"%d":0,"metadata":{"name":"a"}}' % (i * 7919 % 1000) for i in range(size // 33)
        )
        + b"]}",
        "one huge item": b'{"items":['
        + A
        + b',{"metadata":{"name":"c"},"s":"'
        + b"x" * size
        + b'"}]}',
        "space": b'{"items":[' + A + b" " * size + b"," + b" " * size + B + b"]}",
        "changing separators": b'{"items":['
        + b"".join(A + b"," + b" " * i for i in range(int((2 * size) ** 0.5)))
        + B
        + b"]}",
        "alternating separators": b'{"items":['
        + b",\n".join(A + b"," + B for _ in range(size // 52))
        + b"]}",
        "a head without end": b'{"m":"'
        + b'\\"items\\":[' * (size // 13)
        + b'","items":['
        + A
        + b"]}",
        "heads without end": b'{"m":['
        + b",".join([b'{"items":[]}'] * (size // 13))
        + b'],"items":['
        + A
        + b"]}",
    }


@pytest.mark.parametrize("name", hostile(0))
@pytest.mark.parametrize("chunk", [200, 4_000, 1 << 30])
def test_the_work_grows_with_the_size_of_the_body_only(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = []
    for size in (40_000, 160_000):
        with monkeypatch.context() as patch:
            work = Work(patch)
            body = hostile(size)[name]
            reader = work.reader()
            for piece in chunks(body, chunk):
                reader.feed(piece)
            reader.finish()
            spent.append(work.bytes / len(body))
    assert spent[1] < 40
    assert spent[1] < 1.5 * spent[0] + 1


def test_a_separator_that_stands_within_the_items_is_given_up() -> None:
    """Each wrong guess decodes a whole object in vain."""
    decoded = 0

    def decode(raw: bytes, kind: str, api_version: str) -> Object:
        nonlocal decoded
        decoded += 1
        return decode_object(raw, kind, api_version)

    part = b'{"metadata":{"name":"no"},"x":"' + b"y" * 1000 + b'"}'
    items = [b'{"metadata":{"name":"n%d"},"parts":[%b,%b]}' % (i, part, part) for i in range(400)]
    answer = read_list(b'{"items":[' + b",".join(items) + b"]}", 1 << 16, decode=decode)
    assert len(answer.items) == 400
    assert decoded < 600


def test_an_item_over_the_limit_is_refused_within_bounded_memory() -> None:
    reader = ListFrames(decode_object, max_item_bytes=10_000)
    reader.feed(b'{"items":[' + A + b',{"metadata":{"name":"c"},"s":"')
    for _ in range(9):
        reader.feed(b"x" * 1001)
    with pytest.raises(FrameError, match="10000 bytes"):
        reader.feed(b"x" * 1001)


def test_a_body_that_is_no_list_is_not_held_beyond_the_limit() -> None:
    reader = ListFrames(decode_object, max_item_bytes=10_000)
    for _ in range(9):
        reader.feed(b"x" * 1001)
    with pytest.raises(FrameError, match="10000 bytes"):
        reader.feed(b"x" * 1001)


def test_a_list_far_over_the_limit_of_an_item_is_no_problem() -> None:
    body = b'{"items":[' + b",".join([A] * 5000) + b"]}"
    assert len(read_list(body, 1000, max_item_bytes=2000).items) == 5000


def test_a_list_of_nothing_but_poison_is_no_list() -> None:
    many = frames._MAX_POISON
    head = b'{"items":['
    assert len(read_list(head + b",".join([b"1"] * many) + b"]}").undecodable) == many
    reader = ListFrames(decode_object)
    reader.feed(head + b",".join([b"1"] * (many + 2)))
    assert reader.is_behind  # such a list can't block the event loop
    with pytest.raises(FrameError, match="more than 10000 items"):
        reader.finish()


@pytest.mark.parametrize("depth", [50_000, 100_000])
@pytest.mark.parametrize("size", [1 << 10, 1 << 30])
def test_a_deeply_nested_item_is_reported_by_its_key_and_costs_no_other(
    depth: int, size: int
) -> None:
    deep = b'{"x":' + b"[" * depth + b"]" * depth + b',"metadata":{"name":"d","namespace":"n"}}'
    for items in ([A, deep, B], [deep], [A, B, deep]):
        answer = read_list(b'{"items":[' + b",".join(items) + b"]}", size)
        assert [obj.name for obj in answer.items] == ["a", "b"][: len(items) - 1]
        assert [error.key for error in answer.undecodable] == ["n/d"]


def test_memory_is_that_of_the_objects_kept() -> None:
    """No slice keeps its chunk alive, and the whole body is never held."""
    item = b'{"metadata":{"name":"a","managedFields":[]},"x":"' + b"y" * 3000 + b'"}'
    body = b'{"items":[' + b",".join([item] * 1000) + b"]}"
    read_list(body, 1 << 16)
    tracemalloc.start()
    reader = ListFrames(decode_object)
    for at in range(0, len(body), 1 << 16):
        reader.feed(bytes(bytearray(body[at : at + (1 << 16)])))
    answer = reader.finish()
    del reader
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(answer.items) == 1000
    assert kept < 1.15 * len(body)
    assert peak < 1.15 * len(body) + (1 << 19)


@pytest.mark.parametrize("size", ANY_CUT)
@pytest.mark.parametrize(
    ("spec", "is_read"),
    [
        (rb'"\ud83d"', True),
        (rb'{"\ud83d":"\udc00\ud83d"}', True),
        (b'"\xff\xe2\x82"', True),
        (b'"\x00"', False),
        (b'"\n\x1f"', False),
        (b"9" * 5_000, True),
        (b"1e999", True),
    ],
)
def test_odd_text_and_numbers_cost_their_item_at_most(
    spec: bytes, is_read: bool, size: int
) -> None:
    odd = b'{"spec":%b,"metadata":{"name":"odd","namespace":"n"}}' % spec
    for items in ([A, odd, B], [odd], [odd, A, B], [A, B, odd]):
        answer = read_list(b'{"items":[' + b",\n".join(items) + b"]}", size)
        names = sorted(obj.name for obj in answer.items if obj.name != "odd")
        assert names == ["a", "b"][: len(items) - 1]
        assert [error.key for error in answer.undecodable] == ([] if is_read else ["n/odd"])
        assert [obj.key for obj in answer.items if obj.name == "odd"] == ["n/odd"] * is_read


# --- The kind of the list ------------------------------------------------------------------------

PODS = ExpectedKind("Pod", "v1")


def body_of(kind: str, *items: dict[str, Any], api_version: str = "v1") -> bytes:
    head = {"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": "9"}}
    return json.dumps({**(head if kind else {}), "items": list(items)}).encode()


@pytest.mark.parametrize(
    "body",
    [
        body_of("ConfigMapList"),
        body_of("ConfigMapList", {"metadata": {"name": "a"}}),
        body_of("PodList", {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "a"}}),
        body_of("PodList", {"kind": "Pod", "apiVersion": "v2", "metadata": {"name": "a"}}),
        body_of("List", {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "a"}}),
        body_of("PartialObjectMetadataList", api_version="meta.k8s.io/v1"),
        body_of("Pod"),
        body_of("PodTemplateList"),
    ],
)
def test_a_list_of_another_kind_is_refused_whole(body: bytes) -> None:
    with pytest.raises(FrameError, match=r"the server sent .* where Pod \(v1\) was asked for"):
        read_list(body, kind="Pod", api_version="v1", expected=PODS)


@pytest.mark.parametrize(
    "body",
    [
        body_of("PodList"),
        body_of(""),
        body_of("List"),
        body_of("PodList", {"metadata": {"name": "a"}}),
        body_of("List", {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}),
        body_of("", {"metadata": {"name": "a"}}),
    ],
)
def test_a_list_of_the_kind_expected_is_taken_in_all_its_forms(body: bytes) -> None:
    answer = read_list(body, kind="Pod", api_version="v1", expected=PODS)
    assert {(obj.kind, obj.api_version) for obj in answer.items} <= {("Pod", "v1")}


def test_metadata_only_may_come_in_its_own_kind_or_whole() -> None:
    expected = ExpectedKind("Pod", "v1", metadata_only=True)
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    item = {**partial, "metadata": {"name": "a"}}
    options: dict[str, Any] = {"kind": "Pod", "api_version": "v1", "expected": expected}
    kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
    assert read_list(body_of(kind, item, api_version=version), **options).items[0].name == "a"
    assert read_list(body_of(kind, api_version=version), **options).items == []
    assert read_list(body_of("PodList", {"metadata": {"name": "b"}}), **options).items != []


def test_the_first_list_of_a_custom_resource_decides_what_its_lists_are_called() -> None:
    expected = ExpectedKind("Mouse", "e.com/v1")
    options: dict[str, Any] = {"kind": "Mouse", "api_version": "e.com/v1", "expected": expected}
    item = {"kind": "Mouse", "apiVersion": "e.com/v1", "metadata": {"name": "a"}}
    mice = body_of("Mice", item, api_version="e.com/v1")
    assert [obj.name for obj in read_list(mice, **options).items] == ["a"]
    assert read_list(body_of("MouseList", api_version="e.com/v1"), **options).items == []
    with pytest.raises(FrameError, match="RatList"):
        read_list(body_of("RatList", api_version="e.com/v1"), **options)
    assert read_list(body_of("Mice", api_version="e.com/v1"), **options).items == []
