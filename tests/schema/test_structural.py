"""The schema of a custom resource prunes, defaults and refuses values."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.schema.structural import (
    apply_schema_defaults,
    build,
    build_root,
    embedded,
    prune,
    validate,
)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[[:alpha:]_]+$", "a_b", "a1"),
        (r"^\d\z", "1", "\u0661"),
        ("^[^[:space:]]+$", "ab", "a b"),
        (r"^\p{L}$", "\u00e9", None),
    ],
)
def test_a_pattern_of_go_is_understood_or_lets_all_pass(
    pattern: str, good: str, bad: str | None
) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert validate(good, schema) == []
    assert bad is None or len(validate(bad, schema)) == 1


_NONE = "must validate one and only one schema (oneOf). Found none valid"


@pytest.mark.parametrize(
    ("schema", "value", "causes"),
    [
        ({"type": "integer"}, 1.5, {("f", "type"), ("<nil>", "(default format) in f")}),
        ({"type": "integer", "format": "int32"}, 1 << 31, {("<nil>", "format int32 in f")}),
        (
            {"type": "integer", "format": "int64"},
            1e30,
            {("f", "type"), ("<nil>", "format int64 in f")},
        ),
        ({"allOf": [{"minimum": 2}]}, 1, {("f", "to 2"), ("<nil>", "all the schemas (allOf)")}),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            {("<nil>", _NONE), ("f.a", "Required value")},
        ),
        ({"not": {"enum": ["x"]}}, "x", {("<nil>", "must not validate the schema (not)")}),
        ({"format": "hostname"}, "a.b", {("f", "hostname")}),
        ({"format": "hostname"}, "a.bc", set()),
        ({"format": "uri"}, "x", {("f", "uri")}),
        ({"format": "uri"}, "mailto:x", set()),
    ],
    # the order of a set differs between the test processes
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_value_that_breaks_its_schema_is_told_where_the_reference_tells_it(
    schema: dict[str, Any], value: Any, causes: set[tuple[str, str]]
) -> None:
    found = validate(value, schema, "f")
    assert {cause.field for cause in found} == {field for field, _ in causes}
    for field, words in causes:
        assert any(cause.field == field and words in cause.message for cause in found), found


@pytest.mark.parametrize(
    ("schema", "value", "pruned"),
    [
        ({"type": "object", "additionalProperties": True}, {"x": {"y": [1]}}, {"x": {}}),
        ({"type": "array", "items": {"type": "integer"}}, {"a": 1}, {}),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, {"a": 1}, {"a": 1}),
    ],
)
def test_what_a_schema_does_not_describe_is_cut(
    schema: dict[str, Any], value: dict[str, Any], pruned: dict[str, Any]
) -> None:
    prune(value, build(schema), "f", [])
    assert value == pruned


SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "default": 1},
        "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
        "note": {"type": "string", "nullable": True},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "weight": {"type": "number", "default": 0.5},
                },
            },
        },
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}
SCALARS = st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["fast", "slow", "x"])
PARTS = st.lists(
    st.fixed_dictionaries({}, optional={"name": SCALARS, "weight": SCALARS, "other": SCALARS}),
    max_size=3,
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "size": SCALARS,
        "mode": SCALARS,
        "note": SCALARS,
        "parts": PARTS | SCALARS,
        "limits": st.dictionaries(st.sampled_from("ab"), SCALARS) | SCALARS,
        "other": SCALARS | PARTS,
    },
)


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        ({}, {"size": 1, "mode": "fast"}),
        ({"size": None, "note": None}, {"size": 1, "mode": "fast", "note": None}),
        ({"size": 2, "mode": "slow"}, {"size": 2, "mode": "slow"}),
        (
            {"parts": [{"name": "a"}, {"name": "b", "weight": 2}]},
            {
                "size": 1,
                "mode": "fast",
                "parts": [{"name": "a", "weight": 0.5}, {"name": "b", "weight": 2}],
            },
        ),
        ({"limits": None}, {"size": 1, "mode": "fast"}),
    ],
)
def test_what_is_missing_gets_its_default_and_a_null_that_may_not_be_is_cut(
    value: dict[str, Any], whole: dict[str, Any]
) -> None:
    apply_schema_defaults(value, build(SCHEMA))
    assert value == whole


def test_defaults_of_two_objects_are_not_the_same_object() -> None:
    schema = build({"type": "object", "properties": {"a": {"type": "object", "default": {"b": 1}}}})
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    apply_schema_defaults(first, schema)
    first["a"]["b"] = 2
    apply_schema_defaults(second, schema)
    assert second == {"a": {"b": 1}}


@given(VALUES)
def test_what_was_cut_and_completed_once_stays_as_it_is(value: dict[str, Any]) -> None:
    schema = build(SCHEMA)
    prune(value, schema, "", [])
    apply_schema_defaults(value, schema)
    once = copy.deepcopy(value)
    problems: list[str] = []
    prune(value, schema, "", problems)
    apply_schema_defaults(value, schema)
    assert value == once
    assert problems == []


@given(VALUES)
def test_a_field_is_cut_exactly_where_it_is_named(value: dict[str, Any]) -> None:
    parts = value.get("parts")
    expected = {'unknown field "other"'} if "other" in value else set()
    if isinstance(parts, list):
        expected |= {
            f'unknown field "parts[{index}].other"'
            for index, part in enumerate(parts)
            if "other" in part
        }
    problems: list[str] = []
    prune(value, build(SCHEMA), "", problems)
    assert set(problems) == expected
    assert "other" not in value


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ({"size": 1}, set()),
        ({}, {"size"}),
        ({"size": 0}, {"size"}),
        ({"size": 1, "mode": "medium"}, {"mode"}),
        ({"size": 1, "parts": [{"name": "a"}, {"name": "a"}]}, {"parts[1]"}),
        ({"size": 1, "parts": [{}]}, {"parts[0].name"}),
        ({"size": 1, "limits": {"a": "x"}}, {"limits.a"}),
    ],
)
def test_what_a_value_breaks_is_named_by_its_field(value: dict[str, Any], fields: set[str]) -> None:
    assert {cause.field for cause in validate(value, SCHEMA)} - {"<nil>"} == fields


def test_objects_within_an_object_are_found_with_their_places() -> None:
    inner = {"type": "object", "x-kubernetes-embedded-resource": True}
    schema = build_root(
        {
            "type": "object",
            "properties": {"one": inner, "many": {"type": "array", "items": inner}},
        }
    )
    one, two = {"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}
    value = {"metadata": {"name": "outer"}, "one": one, "many": [{}, two]}
    assert list(embedded(value, schema)) == [("one", one), ("many[1]", two)]
