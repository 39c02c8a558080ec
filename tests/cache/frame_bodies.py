"""Chunked bodies of lists and watches for the tests of frames."""

from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

from listwatch.cache.frames import ListFrames, WatchFrames
from listwatch.cache.list_watch import ObjectList, WatchEvent
from listwatch.objects import decode_object

ANY_CUT = [1, 2, 3, 5, 7, 11, 64, 1 << 30]


def chunks(body: bytes, size: int) -> Iterator[bytes]:
    """Cut a body into chunks."""
    return (body[at : at + size] for at in range(0, len(body), size))


def read_list(body: bytes, size: int = 1 << 30, **options: Any) -> ObjectList:
    """Read a list in chunks of the given size."""
    reader = ListFrames(options.pop("decode", decode_object), **options)
    for chunk in chunks(body, size):
        reader.feed(chunk)
    return reader.finish()


def read_watch(pieces: Iterable[bytes], **options: Any) -> list[WatchEvent]:
    """Read a watch in the given pieces."""
    reader = WatchFrames(options.pop("decode", decode_object), **options)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.finish()


json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8) | st.just('},{"metadata"'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
name = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), min_size=1, max_size=8
).map(lambda text: text.replace(".", "-"))
item = st.builds(
    lambda before, text, after: {**before, "metadata": {"name": text}, **after},
    st.dictionaries(st.sampled_from(["a", "items", "spec"]), json_value, max_size=2),
    name,
    st.dictionaries(st.sampled_from(["z", "items", "spec"]), json_value, max_size=2),
)
