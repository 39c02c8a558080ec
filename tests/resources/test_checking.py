"""Errors that a server would report are found without one, with the same messages."""

import copy
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from listwatch.resources import (
    ObjectMeta,
    Problem,
    Rule,
    UnknownVersionError,
    check,
    check_definition,
    check_manifest,
    definition,
    resource,
)
from listwatch.resources.command import check_command


class Spec(msgspec.Struct):
    replicas: Annotated[int, msgspec.Meta(ge=0), Rule("self < 10", message="too many")] = 1
    name: Annotated[str, Rule("self == oldSelf", message="is immutable")] = "x"


@resource("example.com", "v1")
class Widget(msgspec.Struct):
    metadata: ObjectMeta
    spec: Spec


def widget(name: str = "w", **spec: Any) -> Widget:
    return Widget(ObjectMeta(name=name), Spec(**spec))


def test_a_good_object_has_no_problems() -> None:
    assert check(widget()) == []
    assert check(widget(replicas=2), widget()) == []


@pytest.mark.parametrize(
    ("obj", "old", "problems"),
    [
        (widget(replicas=-1), None, ["spec.replicas: Invalid value: -1: spec.replicas in body "]),
        (widget(replicas=10), None, ["spec.replicas: Invalid value: 10: too many"]),
        (widget(name="A_b"), None, ['metadata.name: Invalid value: "A_b": a lowercase RFC 1123']),
        (widget(), widget(replicas=3), []),
    ],
)
def test_problems_have_the_servers_fields_and_words(
    obj: Widget, old: Widget | None, problems: list[str]
) -> None:
    found = [str(one) for one in check(obj, old)]
    assert len(found) == len(problems)
    assert all(one.startswith(words) for one, words in zip(found, problems, strict=True))


def test_transitions_are_checked_against_the_old_object() -> None:
    new = msgspec.structs.replace(widget(), spec=Spec(name="y"))
    assert check(new) == []
    assert check(new, widget()) == [
        Problem("spec.name", 'Invalid value: "y": is immutable', "FieldValueInvalid")
    ]


def test_what_is_broken_and_did_not_change_is_accepted_as_a_server_does() -> None:
    old = widget(replicas=20)
    assert check(msgspec.structs.replace(old, spec=Spec(replicas=20)), old) == []


def test_unknown_fields_and_versions_are_named() -> None:
    manifest = definition(Widget)
    obj = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    assert check_manifest(manifest, {**obj, "spec": {"replicsa": 1}}) == [
        Problem("spec.replicsa", 'unknown field "spec.replicsa"', "FieldUnknown")
    ]
    with pytest.raises(UnknownVersionError, match=r"which has example\.com/v1 Widget"):
        check_manifest(manifest, {**obj, "apiVersion": "example.com/v2"})


def test_arguments_stay_as_they_were() -> None:
    manifest = definition(Widget)
    obj: dict[str, Any] = {"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"x": 1}}
    before = copy.deepcopy((manifest, obj))
    check_manifest(manifest, obj, obj)
    check_definition(manifest)
    assert (manifest, obj) == before


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(check_command, arguments)
    return done.exit_code, done.stdout, done.stderr


MANIFESTS = """
# nothing but a comment
---
apiVersion: v1
kind: List
items:
- {apiVersion: example.com/v1, kind: Widget, metadata: {name: a}, spec: {replicas: 99}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
---
{apiVersion: example.com/v1, kind: Widget, metadata: {name: "b\\e[2J"}, spec: {}}
"""


def test_the_command_lists_every_problem_and_what_it_did_not_check(tmp_path: Path) -> None:
    (tmp_path / "crd.yaml").write_text(yaml.safe_dump(definition(Widget)))
    (tmp_path / "m.yml").write_text(MANIFESTS)
    code, out, err = run(str(tmp_path))
    first, second = out.splitlines()
    assert code == 1
    assert first == f"{tmp_path}/m.yml: Widget a: spec.replicas: Invalid value: 99: too many"
    assert second.startswith(f"{tmp_path}/m.yml: Widget b\\x1b[2J: metadata.name: Invalid value")
    assert err.splitlines() == [
        f"{tmp_path}/m.yml: Deployment d: not checked, since no file defines it",
        "3 checked, 2 problems, 1 not checked",
    ]


def test_the_command_is_silent_about_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "crd.yaml").write_text(yaml.safe_dump(definition(Widget)))
    assert run(str(tmp_path / "crd.yaml")) == (0, "", "1 checked, 0 problems, 0 not checked\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not YAML: error converting YAML to JSON: yaml: line 1"),
        (b"\xff", "is not YAML"),
        (b"- a", "a manifest must be an object with metadata"),
        (b"{metadata: 1}", "a manifest must be an object with metadata"),
        (b"{a: &a [*a]}", "is not YAML"),
    ],
    ids=repr,
)
def test_a_file_that_is_no_manifest_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    code, out, err = run(str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_broken_definition_is_refused_and_its_objects_are_not_checked(tmp_path: Path) -> None:
    broken = definition(Widget)
    broken["spec"]["scope"] = "Everywhere"
    path = tmp_path / "all.yaml"
    obj = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    path.write_text(yaml.safe_dump_all([broken, obj]))
    code, out, err = run(str(path))
    assert code == 1
    assert 'spec.scope: Unsupported value: "Everywhere"' in out
    assert "Widget w: not checked" in err


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"name": "w", "labels": 3}, "metadata: json: cannot unmarshal number"),
        ({"name": ["w"]}, "metadata: json: cannot unmarshal array"),
        ({"name": "w", "finalizers": {"a": 1}}, "metadata: json: cannot unmarshal object"),
        ({"name": "w", "ownerReferences": [3]}, "metadata: json: cannot unmarshal number"),
    ],
)
def test_metadata_of_the_wrong_type_are_a_problem(meta: dict[str, Any], words: str) -> None:
    obj = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta, "spec": {}}
    (problem,) = check_manifest(definition(Widget), obj)
    assert str(problem).startswith(words)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": 3},
        {"spec": {"names": {"kind": [3]}}},
        {"spec": {"versions": [3]}},
        {"spec": {"versions": [{"name": {}}]}},
        {"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": [3]}}}]}},
        {"metadata": {"name": [3]}},
    ],
    ids=str,
)
def test_a_definition_of_the_wrong_types_is_a_problem(change: dict[str, Any]) -> None:
    (problem,) = check_definition({**definition(Widget), **change})
    assert str(problem).startswith("the definition: json: cannot unmarshal")
