import sys

import pytest

from listwatch.objects import Object
from listwatch.observe.templates import TemplateFormat, make_template
from listwatch.observe.templates.template import TemplateError, TemplateSyntaxError

POD = Object.from_dict(
    {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "a", "labels": {"app": "x & y"}},
        "spec": {"ports": [80, 443], "items": {"n": 1.0}},
    }
)


def _render(name: str, text: str, *, allow_missing_keys: bool = True) -> str:
    return make_template(TemplateFormat(name), text, allow_missing_keys=allow_missing_keys).render(
        POD
    )


@pytest.mark.parametrize(
    ("name", "text", "rendered"),
    [
        ("jinja2", "{{ metadata.name }}-{{ metadata.labels.app }}", "a-x & y"),
        ("jinja2", "{% for p in spec.ports %}{{ p }},{% endfor %}", "80,443,"),
        ("jinja2", "{{ object.kind }}{{ spec.none.deeper }}", "Pod"),
        ("jinja2", "{{ spec['items'].n | int }}", "1"),
        ("jq", ".metadata.name", "a"),
        ("jq", ".spec.ports[]", "80\n443"),
        ("jq", ".spec.ports", "[80,443]"),
        ("jq", '.metadata | "\\(.name)=\\(.labels.app)"', "a=x & y"),
        ("jq", ".none", "null"),
        ("jq", "empty", ""),
    ],
)
def test_the_extra_languages_render(name: str, text: str, rendered: str) -> None:
    assert _render(name, text) == rendered


@pytest.mark.parametrize(("name", "text"), [("jinja2", "{{ spec.none }}"), ("jq", ".none")])
def test_what_is_missing_is_an_error_where_asked_for(name: str, text: str) -> None:
    with pytest.raises(TemplateError):
        _render(name, text, allow_missing_keys=False)


@pytest.mark.parametrize(("name", "text"), [("jinja2", "{{ spec.ports + 1 }}"), ("jq", ".kind.x")])
def test_a_wrong_type_is_an_error(name: str, text: str) -> None:
    with pytest.raises(TemplateError, match=name):
        _render(name, text)


@pytest.mark.parametrize(("name", "text"), [("jinja2", "{% if %}"), ("jq", ".[")])
def test_what_is_no_template_is_named(name: str, text: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=f"error parsing {name}"):
        _render(name, text)


def test_a_template_cannot_reach_the_program() -> None:
    text = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(TemplateError):
        _render("jinja2", text)


@pytest.mark.parametrize("name", ["jinja2", "jq"])
def test_a_package_that_is_not_there_is_named_with_the_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TemplateSyntaxError, match=rf"pip install 'listwatch\[{name}\]'"):
        _render(name, "x")


@pytest.mark.parametrize(
    "text",
    ["{{ range(10**9) | list }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"],
)
def test_a_jinja2_template_without_end_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError, match="jinja2"):
        _render("jinja2", text)


@pytest.mark.parametrize("text", ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{{ 9**9999 }}"])
def test_a_jinja2_template_beyond_reason_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(TemplateSyntaxError, match="jinja2"):
        _render("jinja2", text)
