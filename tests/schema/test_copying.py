"""Copies of JSON values."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from listwatch.schema.copying import copy_of

_KEYS = st.text("abc", max_size=2)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
)


def _containers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [id(value), *(each for item in value.values() for each in _containers(item))]
    if isinstance(value, list):
        return [id(value), *(each for item in value for each in _containers(item))]
    return []


@given(_VALUES)
def test_a_copy_is_equal_and_shares_nothing_that_can_change(obj: Any) -> None:
    copied = copy_of(obj)
    assert copied == obj
    assert repr(copied) == repr(obj)  # members in the same order
    assert not set(_containers(copied)) & set(_containers(obj))


def test_what_stands_twice_in_an_object_is_copied_twice() -> None:
    part: dict[str, Any] = {"a": [{"b": 1}]}
    copied = copy_of({"one": part, "two": part})
    copied["one"]["a"][0]["b"] = 2
    assert copied["two"] == {"a": [{"b": 1}]}
    assert part == {"a": [{"b": 1}]}
