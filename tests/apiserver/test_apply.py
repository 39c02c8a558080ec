"""Server-side apply: the order of merged lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.api.apply import merge_applied
from listwatch.schema.facts import Form, Schema

SET = Schema(Form.LIST)
SET.item = Schema(Form.STRING)
SET.list_type = "set"
KEYS = st.lists(st.sampled_from("abcdef"), unique=True)


@pytest.mark.parametrize(
    ("live", "wanted", "merged"),
    [
        ("", "ab", "ab"),
        ("ab", "", "ab"),
        ("ab", "ca", "cab"),
        ("abc", "cb", "acb"),
        ("abcd", "db", "acdb"),
        ("abc", "xb", "axbc"),
        ("bd", "abcd", "abcd"),
    ],
)
def test_what_is_wanted_comes_in_its_order_and_the_rest_stays_before_what_followed(
    live: str, wanted: str, merged: str
) -> None:
    assert "".join(merge_applied(list(live), list(wanted), SET)) == merged


@given(KEYS, KEYS)
def test_a_merged_list_has_each_item_once_and_keeps_the_order_of_those_applied(
    live: list[str], wanted: list[str]
) -> None:
    merged = merge_applied(live, wanted, SET)
    assert sorted(merged) == sorted({*live, *wanted})
    assert [each for each in merged if each in wanted] == wanted
    rest = [each for each in live if each not in wanted]
    assert [each for each in merged if each not in wanted] == rest
