"""Go templates, against what kubectl made of the same ones."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.objects import Object
from listwatch.observe.templates.go_template import GoTemplate
from listwatch.observe.templates.template import TemplateError, TemplateSyntaxError

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data/observe/templates.json").read_text(encoding="utf-8")
)
#: Constructs that are refused by name.
REFUSED = {
    '{{define "t"}}T{{.}}{{end}}{{template "t" .metadata.name}}': "{{define}} is not supported",
    '{{block "b" .metadata.name}}B{{.}}{{end}}': "{{block}} is not supported",
    "{{call .metadata.name}}": 'function "call" not defined',
    '{{html "<a>"}} {{js "a\'b"}} {{urlquery "a b&c"}}': 'function "js" not defined',
}
#: Go compares whole numbers with others as incompatible; here they are numbers.
UNFIT = {"{{eq .spec.big 12345678901234.0}} {{eq 1 1.0}}"}

CASES = [
    pytest.param(case, id=f"{case['template']}{' strict' if case['strict'] else ''}")
    for case in RECORDED["cases"]
    if case["output"] == "go-template" and case["template"] not in {*REFUSED, *UNFIT}
]


def _render(case: dict[str, Any]) -> str:
    template = GoTemplate(case["template"], allow_missing_keys=not case["strict"])
    return template.render(Object.from_dict(RECORDED["object"]))


@pytest.mark.parametrize("case", CASES)
def test_a_template_renders_as_kubectl_renders_it(case: dict[str, Any]) -> None:
    if "text" in case:
        assert _render(case) == case["text"]
        return
    kind = TemplateSyntaxError if "error parsing" in case["error"] else TemplateError
    with pytest.raises(kind):
        _render(case)


@pytest.mark.parametrize(("text", "words"), REFUSED.items())
def test_what_is_not_supported_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=words.replace("{", r"\{")):
        GoTemplate(text)


def test_whole_numbers_compare_with_others() -> None:
    assert GoTemplate("{{eq .a 1.0}} {{lt .a 1.5}}").render_value({"a": 1}) == "true true"


@given(
    st.lists(
        st.sampled_from(
            [
                "{{",
                "}}",
                "{{-",
                "-}}",
                "if",
                "range",
                "end",
                "else",
                ".a",
                "$",
                "$x",
                ":=",
                "|",
                "(",
                ")",
                '"',
                "index",
                "eq",
                "printf",
                "1",
                " ",
                "text",
                "'c'",
                "`",
                ",",
                "%d",
                ".",
            ]
        ),
        max_size=14,
    )
)
def test_any_text_is_a_template_or_a_clear_error(pieces: list[str]) -> None:
    try:
        template = GoTemplate("".join(pieces))
    except TemplateSyntaxError:
        return
    with suppress(TemplateError):
        assert isinstance(template.render_value({"a": [1, {"b": None}]}), str)
