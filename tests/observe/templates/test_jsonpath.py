"""JSONPath templates, compared with kubectl's results."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.objects import Object
from listwatch.observe.templates.jsonpath import JSONPathTemplate
from listwatch.observe.templates.template import TemplateError, TemplateSyntaxError

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data/observe/templates.json").read_text(encoding="utf-8")
)
#: Left out: kubectl renders these wrongly, or in random order.
UNFIT = {"{.}", "{..name}", "{range .spec.ports[*]}{.name} strict"}


def _cases(output: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{case['template']}{' strict' if case['strict'] else ''}")
        for case in RECORDED["cases"]
        if case["output"] == output
        and not {case["template"], f"{case['template']}{' strict' * case['strict']}"} & UNFIT
    ]


def _render(case: dict[str, Any]) -> str:
    template = JSONPathTemplate(
        case["template"],
        allow_missing_keys=not case["strict"],
        as_json=case["output"] == "jsonpath-as-json",
    )
    return template.render(Object.from_dict(RECORDED["object"]))


@pytest.mark.parametrize("case", [*_cases("jsonpath"), *_cases("jsonpath-as-json")])
def test_a_template_renders_as_kubectl_renders_it(case: dict[str, Any]) -> None:
    if "text" in case:
        assert _render(case) == case["text"]
        return
    kind = TemplateSyntaxError if "error parsing" in case["error"] else TemplateError
    with pytest.raises((kind, TemplateSyntaxError)) as caught:
        _render(case)
    words = case["error"].rpartition(": ")[2]
    if isinstance(caught.value, TemplateError) and "array or slice" not in words:
        assert words.split(",")[0] in str(caught.value)


OBJECT = {
    "kind": "Pod",
    "metadata": {"name": "a", "labels": {"example.net/app": "x", "y,z": "comma"}},
    "spec": {"list": [{"id": 1, "v": "one"}, {"id": "1", "v": "text"}, {"id": 1.0, "v": "float"}]},
    "nest": {"one": {"name": "n1"}, "two": [{"name": "n2"}]},
    "want": 1,
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.}", json.dumps(OBJECT, sort_keys=True, separators=(",", ":")).replace("1.0", "1")),
        ("{.metadata.labels['example.net/app']}", "x"),
        ('{.metadata.labels["y,z"]}', "comma"),
        ("{.spec.list[?(@.id==$.want)].v}", "one float"),
        ('{.spec.list[?(@.id=="1")].v}', "text"),
        ("{range .spec.list[*]}{$.metadata.name}{.v} {end}", "aone atext afloat "),
        ("{..name}", "a n1 n2"),
        ("{.spec.list[?( @.id != 1 )].v}", "text"),
        ('{.spec.list[?(@.v>="one")].v}', "one text"),
    ],
)
def test_what_kubectl_gets_wrong_is_right(template: str, text: str) -> None:
    assert JSONPathTemplate(template).render_value(OBJECT) == text


@pytest.mark.parametrize("text", ["{.a[", "{.a[?(", "{.a[?(@.b==", "{range", "{'", '{"\\u12"}'])
def test_a_broken_template_is_one_clear_line(text: str) -> None:
    with pytest.raises(TemplateSyntaxError) as caught:
        JSONPathTemplate(text)
    assert str(caught.value).startswith(f"error parsing jsonpath {text}")
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="{}[]()?@.$*'\"\\ a1:,=-", max_size=30))
def test_any_text_is_a_template_or_a_clear_error(text: str) -> None:
    try:
        template = JSONPathTemplate(text)
    except TemplateSyntaxError:
        return
    with suppress(TemplateError):
        assert isinstance(template.render_value(OBJECT), str)


@pytest.mark.parametrize(
    "text",
    [
        "{range .l[*]}" * 5000,
        "{.l[?(@" + "[?(@" * 5000,
        "{.l[" + "9" * 5000 + "]}",
        "{" + "9" * 5000 + "}",
        "{1e999}",
        "{-1e400}",
        '{"\\ud800"}',
    ],
)
def test_a_template_beyond_reason_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(TemplateSyntaxError):
        JSONPathTemplate(text)


@pytest.mark.parametrize(
    "text",
    [
        "{range $.l[*]}" * 5 + "x" + "{end}" * 5,
        "{range $.l[*]}" * 5 + "{end}" * 5,
        "{$.l[*]}{range $.l[*]}{range $.l[*]}{range $.l[*]}{$.l}{end}{end}{end}",
        "{" + "." * 2000 + "}",
        "{.m" + "[0,0]" * 40 + "}",
    ],
)
def test_a_template_that_would_never_end_is_an_error(text: str) -> None:
    nested: list[Any] = [1]
    for _ in range(60):
        nested = [nested]
    value = {"l": list(range(100)), "m": nested}
    with pytest.raises(TemplateError, match="too many steps"):
        JSONPathTemplate(text).render_value(value)


def test_an_object_that_is_nested_too_deeply_is_an_error() -> None:
    value: Any = 1
    for _ in range(3000):
        value = [value]
    with pytest.raises(TemplateError, match="nested too deeply"):
        JSONPathTemplate("{..}").render_value(value)
