"""Field ownership."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.storage.field_sets import (
    created_fields,
    from_fields_v1,
    intersection,
    minus,
    to_fields_v1,
    union,
)
from listwatch.apiserver.storage.managed_fields import Managed, Owner
from listwatch.schema.facts import facts

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
ME = Owner("Update", "me", "v1")
CONFIG_MAP = facts().schema("", "v1", "ConfigMap")
#: Field sets in wire format.
TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.just({}),
    lambda below: st.dictionaries(
        st.sampled_from(["f:a", "f:b", 'k:{"name":"c"}', 'v:"d"', "i:0"]), below, max_size=3
    ).flatmap(lambda tree: st.sampled_from([tree, {".": {}, **tree}] if tree else [tree])),
    max_leaves=12,
)


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


@pytest.mark.parametrize("given", [None, [], [{}], [{"manager": "m", "operation": "Other"}]])
def test_owners_that_come_with_a_new_object_and_say_nothing_sound_change_nothing(
    given: list[dict[str, Any]] | None,
) -> None:
    (entry,) = Managed.entries_of_new(given, ME, {"f:data": {}}, now=NOW)
    assert (entry["manager"], entry["time"], entry["fieldsV1"]) == ("me", NOW, {"f:data": {}})
    assert Managed.entries_of_new(given, ME, {}, now=NOW) == []


def test_owners_that_come_with_a_new_object_keep_what_it_has_not() -> None:
    entry = {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    given = [{**entry, "fieldsV1": {"f:data": {"f:a": {}, "f:q": {}}}}]
    fields: dict[str, Any] = {"f:data": {".": {}, "f:a": {}}}
    entries = Managed.entries_of_new(given, Owner("Update", "m", "v1"), fields, now="now")
    assert {each["manager"]: each["fieldsV1"] for each in entries} == {
        "x": {"f:data": {"f:q": {}}},
        "m": fields,
    }


def paths(fields: dict[str, Any], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the members of a field set as paths."""
    found = {
        path for key, below in fields.items() if key != "." for path in paths(below, (*above, key))
    }
    return found | ({above} if "." in fields else set())


@given(TREES, TREES)
def test_sets_of_fields_are_sets_of_paths(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = from_fields_v1({"f:x": one}), from_fields_v1({"f:x": two})
    assert paths(union(first, second)) == paths(first) | paths(second)
    assert paths(minus(first, second)) == paths(first) - paths(second)
    assert paths(intersection(first, second)) == paths(first) & paths(second)


@given(TREES)
def test_a_set_is_written_as_it_was_read(tree: dict[str, Any]) -> None:
    fields = from_fields_v1({"f:x": tree})
    assert from_fields_v1(to_fields_v1(fields)) == fields


@given(TREES, st.lists(TREES, max_size=2), st.booleans())
def test_a_creator_takes_from_those_that_came_with_the_object_as_any_writer_would(
    fields: dict[str, Any], others: list[dict[str, Any]], is_known: bool
) -> None:
    entry = {"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": NOW}
    given_entries = [
        {"manager": f"m{number}", **entry, "fieldsV1": {"f:x": tree}}
        for number, tree in enumerate(others)
    ]
    if is_known:
        given_entries.append({"manager": "me", **entry, "fieldsV1": {"f:y": {}}})
    written = {"f:x": fields}
    model = Managed.read(given_entries)
    model.take(ME, from_fields_v1(written), now=LATER)
    made = Managed.entries_of_new(given_entries, ME, written, now=LATER)
    assert Managed.read(made).sets == model.sets
    assert {(each["manager"], each["time"]) for each in made} == {
        (owner.manager, model.times[owner]) for owner in model.sets
    }


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")).filter(bool))
def test_a_create_in_one_pass_gives_what_a_difference_from_nothing_gives(
    data: dict[str, str],
) -> None:
    value = {"metadata": {"name": "n", "labels": {"l": "1"}}, "data": data}
    managed = Managed()
    managed.update(ME, None, value, CONFIG_MAP, now=NOW)
    assert managed.write()[0]["fieldsV1"] == created_fields(value, CONFIG_MAP)


def test_what_changes_hands_leaves_its_last_owner_and_he_goes_with_his_last_field() -> None:
    old: dict[str, Any] = {"metadata": {"name": "n"}, "data": {"a": "1"}}
    new: dict[str, Any] = {"metadata": {"name": "n"}, "data": {"a": "2"}}
    managed = Managed()
    managed.update(Owner("Update", "you", "v1"), None, old, CONFIG_MAP, now=NOW)
    managed.update(ME, old, new, CONFIG_MAP, now=LATER)
    assert {each["manager"]: each["fieldsV1"] for each in managed.write()} == {
        "you": {"f:data": {}},
        "me": {"f:data": {"f:a": {}}},
    }
    managed.update(ME, new, {"metadata": {"name": "n"}}, CONFIG_MAP, now=LATER)
    assert managed.write() == []
