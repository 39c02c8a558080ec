"""The fault proxy's view of HTTP, fed in pieces of any size."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.testing.passing_http import Answers, Place, Request, Requests

POST = b"POST /api/v1/pods HTTP/1.1\r\nHost: x\r\nContent-LENGTH:  11\r\n\r\nGET / HTTP/1"
GET = b"GET /api/v1/pods?watch=true&x=y HTTP/1.1\r\nHost: x\r\n\r\n"


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut for cut in cuts if 0 < cut < len(data)})
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]


@given(st.lists(st.integers(0, 300)), st.sampled_from(["", "half", "opaque"]))
def test_requests_are_found_however_they_are_cut(cuts: list[int], end: str) -> None:
    post = POST[:-1]
    rest = {"": b"", "half": b"GET /ha", "opaque": b"\x16\x03\x01" + GET}[end]
    data = post + GET + post + rest
    requests = Requests()
    parts = [part for piece in pieces_of(data, cuts) for part in requests.feed(piece)]
    assert b"".join(data for _, data in parts) + requests.finish() == data
    assert requests.finish() == (rest if end == "half" else b"")
    one = Request("POST /api/v1/pods HTTP/1.1", "/api/v1/pods", is_watch=False)
    other = Request("GET /api/v1/pods?watch=true&x=y HTTP/1.1", "/api/v1/pods", is_watch=True)
    assert [request for request, _ in parts if request is not None] == [one, other, one]
    heads = [data for request, data in parts if request is not None]
    assert heads == [post[:-11], GET, post[:-11]]


@pytest.mark.parametrize(
    ("query", "is_watch"),
    [
        ("", False),
        ("?watch=1", True),
        ("?limit=5&watch=maybe", True),
        ("?watch", True),
        ("?watch=", True),
        ("?watch=0", False),
        ("?watch=false", False),
        ("?labelSelector=watch%3Dtrue", False),
    ],
)
def test_a_watch_is_what_a_server_takes_for_one(query: str, is_watch: bool) -> None:
    [(request, _)] = Requests().feed(b"GET /x%s HTTP/1.1\r\n\r\n" % query.encode())
    assert request == Request(f"GET /x{query} HTTP/1.1", "/x", is_watch)


@pytest.mark.parametrize(
    "start",
    [
        b"\x16\x03\x01\x02\x00",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
        b"GET /" + b"x" * 70_000,
    ],
)
def test_what_cannot_be_followed_passes_unread(start: bytes) -> None:
    requests = Requests()
    parts = requests.feed(start) + requests.feed(GET) + requests.feed(GET)
    assert b"".join(data for _, data in parts) == start + GET + GET
    assert len([request for request, _ in parts if request]) == (
        start[0] in b"PG" and len(start) < 70_000
    )


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked; with=a very long line\r\n\r\n"
LINES = ["Größe und Zweck: bedient die Kundschaft ☕", "kurz", "x" * 30, "ä" * 25]
BODY = b"".join(b"%x\r\n%s\r\n" % (len(line.encode()) + 1, line.encode() + b"\n") for line in LINES)


def cut(data: bytes, place: Place, after: int, cuts: list[int]) -> bytes | None:
    """Return the bytes before the cut, or None if there is no cut."""
    answers = Answers()
    passed = b""
    for piece in pieces_of(data, cuts):
        end = answers.find(place, after, piece)
        passed += piece[:end]
        if end is not None:
            return passed
        answers.feed(piece)
    return None


@given(after=st.integers(0, 400), cuts=st.lists(st.integers(0, 400)))
def test_a_cut_is_at_its_place_however_the_bytes_come(after: int, cuts: list[int]) -> None:
    data = HEAD + BODY
    anywhere = cut(data, Place.ANYWHERE, after, cuts)
    assert anywhere == (data[:after] if after <= len(data) else None)

    character = cut(data, Place.CHARACTER, after, cuts)
    places = [n for n in range(after, len(data)) if data[n] & 0xC0 == 0x80]
    assert character == (data[: places[0]] if places else None)
    if character is not None:
        with pytest.raises(UnicodeDecodeError, match="unexpected end"):
            character.decode()

    line = cut(data, Place.LINE, after, cuts)
    assert line == cut(data, Place.LINE, after, [])
    if line is not None:
        assert len(line) >= max(after, len(HEAD))
        begun = line[len(HEAD) :].rpartition(b"\n")[2]
        assert len(begun) >= 20
        assert any(text.encode().startswith(begun) for text in LINES)
        assert data[len(line)] not in b"\r\n"
    else:
        assert after > data.rindex(b"\n\r\n") - 2


def test_a_line_of_a_head_is_no_place_for_a_cut_in_a_line() -> None:
    answers = Answers()
    answers.feed(HEAD + BODY)
    answers.begin()
    assert answers.find(Place.LINE, 0, HEAD) is None
