"""Keys of objects and tombstones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.objects import (
    DeletedFinalStateUnknown,
    KeyFunctionError,
    Object,
    ObjectKey,
    deletion_handling_meta_namespace_key,
    meta_namespace_key,
    object_key,
    split_key,
)


def test_keys_of_objects_mappings_and_tombstones() -> None:
    value = {"metadata": {"namespace": "shop", "name": "web-0.a"}}
    pod = Object.from_dict(value)
    tombstone = DeletedFinalStateUnknown("shop/gone", pod)
    assert meta_namespace_key(pod) == "shop/web-0.a"
    assert meta_namespace_key({"metadata": {"name": "node.1"}}) == "node.1"
    assert object_key(value) == ObjectKey("shop", "web-0.a")
    assert str(ObjectKey("", "n")) == "n"
    assert deletion_handling_meta_namespace_key(tombstone) == "shop/gone"
    assert deletion_handling_meta_namespace_key(pod) == "shop/web-0.a"


@pytest.mark.parametrize(
    "item", [DeletedFinalStateUnknown("a"), None, 5, [], {}, {"metadata": {"name": ""}}]
)
def test_what_has_no_key_is_an_error(item: object) -> None:
    with pytest.raises(KeyFunctionError):
        meta_namespace_key(item)


@given(namespace=st.text("abc.-é", max_size=5), name=st.text("abc.-é", min_size=1, max_size=5))
def test_splitting_a_key_is_the_inverse_of_making_it(namespace: str, name: str) -> None:
    assert split_key(str(ObjectKey(namespace, name))) == (namespace, name)


@pytest.mark.parametrize("key", ["", "a/b/c", "a/", "/b", "/"])
def test_what_is_no_key_does_not_split(key: str) -> None:
    with pytest.raises(KeyFunctionError, match="unexpected key"):
        split_key(key)
