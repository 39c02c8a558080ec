import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.api.patch import (
    PatchContentError,
    PatchError,
    PatchFormatError,
    json_patch,
    merge_patch,
    strategic_merge,
)
from listwatch.schema.facts import facts

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", max_size=2), inner, max_size=3)
    ),
    max_leaves=10,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return value


@given(JSON, JSON)
def test_a_merge_patch_leaves_what_the_rfc_says(document: Any, patch: Any) -> None:
    """It is idempotent and keeps its input; a patch that is no object replaces the document."""
    before = copy.deepcopy(document)
    once = merge_patch(document, patch)
    assert document == before
    assert merge_patch(once, patch) == once
    if not isinstance(patch, dict):
        assert once == patch


def test_json_patch_moves_copies_and_tests() -> None:
    document = {"a": {"b": 1}, "l": [1, 2]}
    patched = json_patch(
        document,
        [
            {"op": "test", "path": "/a/b", "value": 1},
            {"op": "copy", "from": "/a", "path": "/c"},
            {"op": "move", "from": "/l/0", "path": "/l/-"},
            {"op": "add", "path": "/l/1", "value": 9},
            {"op": "replace", "path": "/a/b", "value": 2},
        ],
    )
    assert patched == {"a": {"b": 2}, "c": {"b": 1}, "l": [2, 9, 1]}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": True},
        {"op": "add", "path": "/x/y", "value": 1},
        {"op": "add", "path": "a", "value": 1},
        {"op": "remove", "path": "/l/7"},
        {"op": "add", "path": "/l/01x", "value": 1},
        {"op": "move", "path": "/a", "from": "/nope"},
        {"op": "spin", "path": "/a"},
        {"path": "/a"},
        {"op": "add", "path": "", "value": {}},
        {"op": "replace", "path": "", "value": 1},
        {"op": "remove", "path": ""},
        "text",
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(operation: Any) -> None:
    with pytest.raises(PatchError):
        json_patch({"a": 1, "l": [1]}, [operation])


POD = {
    "spec": {
        "containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}],
        "tolerations": [{"key": "x"}],
    },
    "metadata": {"finalizers": ["one", "two"], "labels": {"l": "1"}},
}


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        (
            {"spec": {"containers": [{"name": "b", "image": "b:2"}]}},
            ("spec", "containers"),
            [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}],
        ),
        (
            {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
            ("spec", "containers"),
            [{"name": "b", "image": "b:1"}],
        ),
        (
            {"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}},
            ("spec", "containers"),
            [{"name": "c"}],
        ),
        (
            {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
            ("spec", "containers"),
            [{"name": "b", "image": "b:1"}, {"name": "a", "image": "a:1"}],
        ),
        (
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["one"]}},
            ("metadata", "finalizers"),
            ["two"],
        ),
        (
            {"metadata": {"labels": {"$patch": "replace", "m": "2"}}},
            ("metadata", "labels"),
            {"m": "2"},
        ),
        (
            {"metadata": {"annotations": {"$patch": "replace", "m": "2"}, "labels": {"m": "2"}}},
            ("metadata", "labels"),
            {"l": "1", "m": "2"},
        ),
        ({"metadata": {"labels": {"$patch": "delete"}}}, ("metadata", "labels"), {}),
        (
            {"metadata": {"$retainKeys": ["labels"], "labels": {"m": "2"}}},
            ("metadata", "labels"),
            {"l": "1", "m": "2"},
        ),
        ({"spec": {"tolerations": [{"key": "y"}]}}, ("spec", "tolerations"), [{"key": "y"}]),
    ],
)
def test_a_strategic_merge_patch_follows_its_directives(
    patch: dict[str, Any], path: tuple[str, str], expected: Any
) -> None:
    before = copy.deepcopy(POD)
    merged = strategic_merge(POD, patch, facts().schema("", "v1", "Pod"))
    assert merged[path[0]][path[1]] == expected
    assert before == POD


def test_an_item_without_its_merge_key_is_refused() -> None:
    with pytest.raises(PatchError, match="does not contain declared merge key: name"):
        strategic_merge(
            POD, {"spec": {"containers": [{"image": "x"}]}}, facts().schema("", "v1", "Pod")
        )


@pytest.mark.parametrize(
    ("patch", "kind"),
    [
        ({"spec": {"$patch": "spin", "hostname": "h"}}, PatchError),
        ({"spec": {"$patch": "merge", "hostname": "h"}}, PatchError),
        ({"spec": {"containers": [{"$patch": "merge", "name": "a"}]}}, PatchError),
        ({"spec": {"containers": [{"$patch": "spin", "name": "a"}]}}, PatchError),
        ({"metadata": {"$retainKeys": "labels"}}, PatchFormatError),
        ({"metadata": {"$retainKeys": ["labels"], "annotations": {}}}, PatchContentError),
        ({"spec": {"$setElementOrder/containers": {"name": "a"}}}, PatchFormatError),
        (
            {
                "spec": {
                    "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                    "containers": [{"name": "b"}, {"name": "a"}],
                }
            },
            PatchError,
        ),
    ],
)
def test_a_directive_that_contradicts_itself_is_refused(
    patch: dict[str, Any], kind: type[PatchError]
) -> None:
    with pytest.raises(PatchError) as refused:
        strategic_merge(POD, patch, facts().schema("", "v1", "Pod"))
    assert type(refused.value) is kind


def test_a_directive_for_what_is_not_there_adds_nothing() -> None:
    patch = {"metadata": {"annotations": {"$patch": "replace", "m": "2"}}}
    merged = strategic_merge(POD, patch, facts().schema("", "v1", "Pod"))
    assert merged == POD


def test_one_field_may_merge_otherwise_than_its_type() -> None:
    schema = facts().schema("policy", "v1", "PodDisruptionBudget")
    document = {"spec": {"selector": {"matchLabels": {"a": "1"}}}}
    merged = strategic_merge(document, {"spec": {"selector": {"matchExpressions": []}}}, schema)
    assert merged == {"spec": {"selector": {"matchExpressions": []}}}
    assert (
        facts().schema("", "v1", "PersistentVolume").fields["spec"].fields["claimRef"].atomic
        is False
    )
    assert facts().schema("", "v1", "Event").fields["involvedObject"].atomic is True
