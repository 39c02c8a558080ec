"""Validation rules of a schema: which ones a definition may have, and their results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cel.recordings import RECORDED
from listwatch.cel import RuleFinding, Rules, rule_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = sorted(path.name for path in RECORDED.glob("*.yaml"))


def definitions(file: str) -> Iterator[tuple[str, dict[str, Any], list[dict[str, str]]]]:
    """Yield the definitions in a file whose answer depends only on their rules."""
    loaded = yaml.load((RECORDED / file).read_text(), Loader=yaml.CSafeLoader)
    for scenario in loaded["scenarios"]:
        for step in scenario["steps"]:
            body = step.get("request", {}).get("body")
            expected = step.get("expect", {})
            if not isinstance(body, dict) or body.get("kind") != "CustomResourceDefinition":
                continue
            details = (expected.get("body") or {}).get("details") or {}
            causes = details.get("causes") or []
            about_rules = all(
                "x-kubernetes-validations" in one["field"] + one["message"] for one in causes
            )
            if expected.get("status") in {200, 201, 422} and about_rules:
                yield scenario["id"], body["spec"], causes


def findings(spec: dict[str, Any]) -> Iterator[RuleFinding]:
    versions = spec["versions"]
    for number, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        path = "spec.validation" if len(versions) == 1 else f"spec.versions[{number}].schema"
        if schema is not None:
            yield from rule_problems(schema, f"{path}.openAPIV3Schema")


def comparable(field: str, message: str) -> tuple[str, str]:
    """Remove the parts that differ between servers: generated names and parser messages."""
    message = re.sub(r"selfType(<int>|\d*)", "selfType", message)
    message = re.sub(r"ERROR: <input>:\d+:\d+: Syntax error.*", "syntax", message, flags=re.DOTALL)
    return field, re.sub(r"error parsing regexp: .*", "pattern", message)


# The rules of structural schemas refuse junctors.
OTHER_RULES = {"not-in-junctors"}


@pytest.mark.parametrize("file", FILES)
def test_the_rules_of_a_definition_are_refused_for_the_servers_reasons(file: str) -> None:
    different = []
    for name, spec, causes in definitions(file):
        expected = {comparable(one["field"], one["message"]) for one in causes}
        found = {comparable(one.field, one.message) for one in findings(spec)}
        if expected != found and name not in OTHER_RULES:
            different.append((name, expected - found, found - expected))
    assert different == []


NUMBER = {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]}


def in_object(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}


def errors(schema: dict[str, object], value: object, old: object = None) -> list[tuple[str, str]]:
    return [(one.field, one.message) for one in Rules(schema).validate(value, old).errors]


def test_a_broken_rule_names_field_value_and_rule() -> None:
    assert errors(in_object(n=NUMBER), {"spec": {"n": -1}}) == [
        ("spec.n", "Invalid value: -1: failed rule: self > 0")
    ]


def test_a_rule_with_message_reason_and_path_tells_it_as_they_say() -> None:
    rule = {
        "rule": "self.a < self.b",
        "messageExpression": "'a is ' + string(self.a)",
        "reason": "FieldValueForbidden",
        "fieldPath": ".a",
    }
    inner = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": inner, "x-kubernetes-validations": [rule]}
    result = Rules({"type": "object", "properties": {"spec": schema}}).validate(
        {"spec": {"a": 2, "b": 1}}
    )
    assert result.errors == [RuleFinding("spec.a", "FieldValueForbidden", "Forbidden: a is 2")]


def test_a_value_that_breaks_a_rule_and_did_not_change_is_a_warning() -> None:
    result = Rules(in_object(n=NUMBER)).validate({"spec": {"n": -1}}, {"spec": {"n": -1}})
    assert result.errors == []
    assert [one.field for one in result.warnings] == ["spec.n"]


def test_a_transition_rule_needs_an_old_state_and_is_never_ratcheted() -> None:
    rule = {"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf"}]}
    assert errors(in_object(n=rule), {"spec": {"n": 1}}) == []
    assert len(errors(in_object(n=rule), {"spec": {"n": 1}}, {"spec": {"n": 1}})) == 1


def test_an_optional_old_self_is_there_on_creation_too() -> None:
    rule = {"rule": "oldSelf.hasValue() || self == 1", "optionalOldSelf": True}
    number = {"type": "integer", "x-kubernetes-validations": [rule]}
    assert len(errors(in_object(n=number), {"spec": {"n": 2}})) == 1
    assert errors(in_object(n=number), {"spec": {"n": 2}}, {"spec": {"n": 5}}) == []


def test_items_of_a_list_of_type_map_are_compared_with_those_of_their_key() -> None:
    item = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.n >= oldSelf.n"}],
    }
    ports = {
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    old = {"spec": {"l": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}}
    new = {"spec": {"l": [{"name": "b", "n": 1}, {"name": "c", "n": 0}]}}
    assert [field for field, _ in errors(in_object(l=ports), new, old)] == ["spec.l[0]"]


def test_a_rule_at_the_root_reads_the_name_and_never_passes_because_nothing_changed() -> None:
    rule = {"rule": "self.metadata.name.startsWith('w-') && self.spec.n > 0"}
    inner = in_object(n={"type": "integer"})
    rules = Rules({**inner, "x-kubernetes-validations": [rule]})
    held = {"metadata": {"name": "w-1"}, "spec": {"n": 0}}
    assert [one.field for one in rules.validate(held, held).errors] == ["<nil>"]
    assert rules.validate({"metadata": {"name": "w-1"}, "spec": {"n": 1}}).errors == []


def test_keys_of_a_map_stand_in_brackets() -> None:
    schema = in_object(m={"type": "object", "additionalProperties": NUMBER})
    assert [field for field, _ in errors(schema, {"spec": {"m": {"k": 0}}})] == ["spec.m[k]"]


def test_rules_in_all_of_hold_too() -> None:
    branch = {"x-kubernetes-validations": [{"rule": "self > 0"}]}
    schema = in_object(n={"type": "integer", "allOf": [branch]})
    assert len(errors(schema, {"spec": {"n": 0}})) == 1


def test_a_rule_that_costs_too_much_ends_all_rules_of_the_object() -> None:
    loop = [{"rule": "self.all(x, self.all(y, x + y >= 0))"}]
    numbers = {"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": loop}
    found = errors(in_object(a=numbers, b=numbers), {"spec": {"a": [1] * 3000, "b": [1] * 3000}})
    assert [field for field, _ in found] == ["spec.a"]
    assert "call cost exceeds limit" in found[0][1]


def test_an_error_in_a_rule_refuses_the_object() -> None:
    rules = [{"rule": "self['k'] == 'v'"}]
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    assert errors(
        in_object(m={**schema, "x-kubernetes-validations": rules}), {"spec": {"m": {}}}
    ) == [("spec.m", "Invalid value: \"object\": no such key: k evaluating rule: self['k'] == 'v'")]
