import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.shard_range import ShardRange, uid_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)],
)
def test_the_hash_is_fnv_1a_of_64_bits(text: str, value: int) -> None:
    assert uid_hash(text) == value


@given(st.text(), st.integers(1, 9))
def test_each_uid_is_in_one_of_the_equal_parts(uid: str, count: int) -> None:
    parts = [ShardRange.of(index, count) for index in range(count)]
    assert [part.contains(uid) for part in parts].count(True) == 1


def test_the_first_half_is_named_as_the_server_names_it_and_read_back() -> None:
    half = ShardRange.of(0, 2)
    assert half.selector == "shardRange(object.metadata.uid,'0x0','0x8000000000000000')"
    assert ShardRange.parse(half.selector.replace(",", ", ")) == half


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shardRange(object.metadata.name,'0x0','0x1')",
        "shardRange(object.metadata.uid,'0x0')",
        "shardRange(object.metadata.uid,'0x0','1')",
        "shardRange(object.metadata.uid,'0x0','0xg')",
        "shardRange(object.metadata.uid,'0x2','0x1')",
        "shardRange(object.metadata.uid,'0x0','0x10000000000000001')",
        "shardRange(object.metadata.uid,'0x0','0x1'",
    ],
)
def test_what_is_no_range_of_uids_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ShardRange.parse(text)


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_there_is_no_part_beyond_the_last(index: int, count: int) -> None:
    with pytest.raises(ValueError, match="there is no shard"):
        ShardRange.of(index, count)
