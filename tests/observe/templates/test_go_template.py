"""Go templates, compared with kubectl's results."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.objects import Object
from listwatch.observe.templates.go_functions import FUNCTIONS
from listwatch.observe.templates.go_template import GoTemplate
from listwatch.observe.templates.template import TemplateError, TemplateSyntaxError

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data/observe/templates.json").read_text(encoding="utf-8")
)
#: Constructs that errors name as unsupported.
REFUSED = {
    "{{call .metadata.name}}": 'function "call" not defined',
}
#: Go refuses to compare integers with floats; here both are numbers.
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{{template "t" .a}}{{define "t"}}[{{.}}]{{end}}', "[1]"),
        ('{{template "t"}}{{define "t"}}[{{.}}]{{end}}', "[<no value>]"),
        ('{{block "b" .a}}({{.}}){{end}}{{template "b" 2}}', "(1)(2)"),
        ('{{define "t"}}{{$}}{{end}}{{with 3}}{{template "t" .}}{{end}}', "3"),
        ('{{define `t`}}{{range .}}{{break}}{{end}}x{{end}}{{template "t" .l}}', "x"),
        (
            '{{define "n"}}{{.v}}{{with .next}}{{template "n" .}}{{end}}{{end}}{{template "n" .c}}',
            "12",
        ),
        ("{{js \"<a href='x'>\\n\"}}", "\\u003Ca href\\u003D\\'x\\'\\u003E\\u000A"),
    ],
)
def test_templates_may_define_others(text: str, shown: str) -> None:
    value = {"a": 1, "l": [1], "c": {"v": 1, "next": {"v": 2}}}
    assert GoTemplate(text).render_value(value) == shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{{if 1}}{{define "t"}}{{end}}{{end}}', "unexpected {{define}}"),
        ('{{define "t"}}', "unexpected EOF"),
        ("{{define t}}{{end}}", "unexpected 't' in define clause"),
        ('{{$x := 1}}{{define "t"}}{{$x}}{{end}}', 'undefined variable "$x"'),
        ('{{range .l}}{{block "b" .}}{{break}}{{end}}{{end}}', "{{break}} outside {{range}}"),
        ('{{block "b"}}{{end}}', "missing value for block"),
    ],
)
def test_a_broken_definition_is_refused(text: str, words: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=re.escape(words)):
        GoTemplate(text)


def test_a_template_that_is_not_defined_or_never_ends_is_an_error_of_the_object() -> None:
    with pytest.raises(TemplateError, match='template "x" not defined'):
        GoTemplate('{{template "x"}}').render_value({})
    with pytest.raises(TemplateError, match="nested too deeply"):
        GoTemplate('{{define "t"}}{{template "t"}}{{end}}{{template "t"}}').render_value({})


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
                "define",
                "block",
                "template",
                '"t"',
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


@pytest.mark.parametrize(
    "text",
    [
        "{{if true}}" * 5000 + "{{end}}" * 5000,
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{{1e400}}",
        "{{" + "9" * 5000 + "}}",
        '{{"\\Uffffffff"}}',
        '{{"\\ud800"}}',
        "{{'ab'}}",
        "{{09}}",
        "{{0_8}}",
    ],
)
def test_a_template_beyond_reason_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(TemplateSyntaxError) as caught:
        GoTemplate(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{range $.l}}" * 5 + "x" + "{{end}}" * 5,
        "{{range $.l}}" * 5 + "{{end}}" * 5,
        '{{$x := "aa"}}{{range .l}}{{$x = print $x $x}}{{end}}',
        '{{$x := "aa"}}{{range .l}}{{$x = (print $x $x | printf "%s%s" $x)}}{{end}}',
    ],
)
def test_a_template_that_would_never_end_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError, match="too many steps"):
        GoTemplate(text).render_value({"l": list(range(100))})


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ('{{printf "%999999999d" 1}}', "%!(BADWIDTH)1"),
        ('{{printf "%.999999999f" 1.5}}', "%!(BADPREC)1.500000"),
        ('{{printf "%c" -1}}', "\ufffd"),
        ('{{printf "%c" 55296}}', "\ufffd"),
    ],
)
def test_printf_has_the_limits_of_go(text: str, rendered: str) -> None:
    assert GoTemplate(text).render_value({}) == rendered


@pytest.mark.parametrize("text", ["{{and}}", "{{or}}", '{{printf "%f" .big}}'])
def test_what_a_function_cannot_take_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError):
        GoTemplate(text).render_value({"big": 10**400})


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
_VALUES = (
    _SCALARS
    | st.lists(_SCALARS, max_size=3)
    | st.dictionaries(st.text(max_size=3), _SCALARS, max_size=3)
)
_CONSTANTS = st.sampled_from(
    [".v", ".v.a", "$", "nil", "-1", "0", "3", "1.5", '"a"', '"%d"', '"%08.3f|%-5s|%q|%x|%c|%U|%e"']
)


@given(
    _VALUES,
    st.sampled_from(sorted(FUNCTIONS)),
    st.lists(_CONSTANTS, max_size=3),
    st.sampled_from(sorted(FUNCTIONS)),
)
def test_any_value_in_any_function_is_text_or_a_clear_error(
    value: Any, function: str, arguments: list[str], then: str
) -> None:
    template = GoTemplate(f"{{{{{function} {' '.join(arguments)} | {then}}}}}")
    with suppress(TemplateError):
        assert isinstance(template.render_value({"v": value}), str)
