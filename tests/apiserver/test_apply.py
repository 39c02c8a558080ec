"""Server-side apply: the order of merged lists, and who owns what."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.api.apply import merge_applied
from listwatch.apiserver.storage.managed_fields import Managed, Owner, created_fields
from listwatch.schema.facts import Form, Schema, facts

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


POD: dict[str, Any] = {
    "metadata": {"name": "a"},
    "spec": {"containers": [{"name": "c", "resources": {}}], "imagePullSecrets": [{"name": "p"}]},
}


def test_a_new_item_owns_all_that_it_has_even_what_is_empty() -> None:
    schema = facts().schema("", "v1", "Pod")
    owned = created_fields(POD, schema)["f:spec"]
    assert owned["f:containers"]['k:{"name":"c"}'] == {".": {}, "f:name": {}, "f:resources": {}}
    managed = Managed()
    owner = Owner("Update", "m", "v1")
    managed.update(owner, {"metadata": {}, "spec": {"containers": []}}, POD, schema, now="now")
    (entry,) = managed.write()
    item = entry["fieldsV1"]["f:spec"]["f:containers"]['k:{"name":"c"}']
    assert item == {".": {}, "f:name": {}, "f:resources": {}}


def test_an_item_that_has_one_owner_as_a_whole_is_a_leaf() -> None:
    owned = created_fields(POD, facts().schema("", "v1", "Pod"))["f:spec"]
    assert owned["f:imagePullSecrets"] == {".": {}, 'k:{"name":"p"}': {}}


def test_nobody_owns_what_go_writes_as_null() -> None:
    role = {"metadata": {"name": "a"}, "rules": None}
    schema = facts().schema("rbac.authorization.k8s.io", "v1", "Role")
    assert created_fields(role, schema) == {}
    managed = Managed()
    managed.update(Owner("Update", "m", "v1"), None, role, schema, now="now")
    assert managed.write() == []


@pytest.mark.parametrize(
    "entry",
    [
        {"operation": "Spin", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}},
        {"operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {}},
        {"operation": "Update", "apiVersion": "v1", "fieldsV1": {}},
        {"operation": "Update", "apiVersion": "v1", "fieldsType": "F2", "fieldsV1": {}},
        {
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"z": {}},
        },
    ],
)
def test_owners_that_say_nothing_sound_are_not_read(entry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Managed.read([{"manager": "m", **entry}])


def test_owners_that_come_with_a_new_object_keep_what_it_has_not() -> None:
    entry = {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    managed = Managed.read([{**entry, "fieldsV1": {"f:data": {"f:a": {}, "f:q": {}}}}])
    fields: dict[str, Any] = {"f:data": {".": {}, "f:a": {}}}
    entries = managed.with_creator(Owner("Update", "m", "v1"), fields, now="now")
    assert {each["manager"]: each["fieldsV1"] for each in entries} == {
        "x": {"f:data": {"f:q": {}}},
        "m": fields,
    }
