import os
import signal
import subprocess
import sys

import pytest

from listwatch.objects import Object
from listwatch.observe.templates import TemplateFormat, make_template, worker
from listwatch.observe.templates.template import (
    TemplateError,
    TemplateLimitError,
    TemplateSyntaxError,
)
from listwatch.observe.templates.worker import WorkerTemplate
from sampling import sampled

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
    sampled(
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
        every=3,
    ),
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


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("env", "{}"),
        ("$ENV", "{}"),
        ("env.SECRET, $ENV.SECRET", "null\nnull"),
        ('@text "\\(env)\\($ENV)"', "{}{}"),
        ("def f: env; f", "{}"),
        ("get_search_list", "[]"),
        ("get_jq_origin, get_prog_origin, input_filename", "null\nnull\nnull"),
        ("[inputs]", "[]"),
        ("[try input catch .]", '["there is one object alone"]'),
        ('[try ("a" | modulemeta) catch .]', '["modules can\'t be used"]'),
        (".kind # (", "Pod"),
        ("def f: .kind; f", "Pod"),
        (".kind as $k | $k | ., .", "Pod\nPod"),
    ],
)
def test_a_jq_program_sees_its_object_alone(
    text: str, rendered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    assert _render("jq", text) == rendered


@pytest.mark.parametrize(
    "text",
    [
        'import "a" as a; .',
        'import "a" as $a; $a',
        'import "passwd" as $p {search: "/etc"}; $p',
        'include "a"; .',
        'module {name: "a"}; .',
        ".) | ($ENV",
        "1; def g: 2",
        "$__prog_args",
        "$ARGS",
        "$named",
    ],
)
def test_a_jq_program_that_reaches_for_more_is_refused(text: str) -> None:
    with pytest.raises(TemplateSyntaxError, match="error parsing jq program"):
        _render("jq", text)


def test_the_process_of_a_template_forgets_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    monkeypatch.setenv("TZ", "UTC")
    program = "from listwatch.observe.templates import extras, worker; extras._HIDDEN = ''"
    monkeypatch.setattr(worker, "_PROGRAM", f"{program}; worker.main()")
    assert _render("jq", "env") == '{"TZ":"UTC"}'


@pytest.mark.parametrize(
    "text",
    [
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}{{ x }}",
        "{% extends '/etc/passwd' %}",
        "{{ lipsum.__globals__.os.environ }}",
        "{{ cycler.__init__.__globals__.os.environ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ object.__class__.__base__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(kind) }}",
    ],
)
def test_a_jinja2_template_sees_its_object_alone(text: str) -> None:
    with pytest.raises(TemplateError):
        _render("jinja2", text, allow_missing_keys=False)


@pytest.mark.parametrize("name", ["jinja2", "jq"])
def test_a_package_that_is_not_there_is_named_with_the_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TemplateSyntaxError, match=rf"pip install 'listwatch\[{name}\]'"):
        _render(name, "x")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "jinja2",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        ),
        ("jq", "def f: f; f"),
    ],
)
def test_a_template_that_does_not_end_is_an_error_of_each_object(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SECONDS", 0.2)
    template = make_template(TemplateFormat(name), text, allow_missing_keys=True)
    for _ in range(2):
        with pytest.raises(TemplateLimitError, match=r"^it takes longer than 0\.2 s$"):
            template.render(POD)


def test_a_template_that_takes_all_memory_for_one_object_renders_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MEMORY", 2**28)
    template = make_template(
        TemplateFormat.JQ,
        'if .metadata.name == "endless" then .kind * 1e8 else .kind end',
        allow_missing_keys=True,
    )
    endless = Object.from_dict({"kind": "Pod", "metadata": {"name": "endless"}})
    assert template.render(POD) == "Pod"
    with pytest.raises(TemplateLimitError, match="which may have 256 MiB of memory, ended"):
        template.render(endless)
    assert template.render(POD) == "Pod"


def test_a_jinja2_template_that_asks_for_more_memory_than_there_is_fails_for_this_object() -> None:
    text = "{% if metadata.name == 'a' %}{{ 'x' * (kind | length * 2**40) }}{% endif %}ok"
    template = make_template(TemplateFormat.JINJA2, text, allow_missing_keys=True)
    with pytest.raises(TemplateLimitError, match=r"^it takes more than 1024 MiB of memory$"):
        template.render(POD)
    other = Object.from_dict({"kind": "Pod", "metadata": {"name": "b"}})
    assert template.render(other) == "ok"


def test_a_jinja2_template_whose_constants_take_too_much_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MEMORY", 2**28)
    with pytest.raises(
        TemplateSyntaxError, match=r"error parsing jinja2 .*: it takes more than 256 MiB of memory"
    ):
        _render("jinja2", "{{ 'x' * 10**8 }}")


@pytest.mark.parametrize(
    ("name", "text"), [("jinja2", "{{ kind * (3 * 10**6) }}"), ("jq", ".kind * 3e6")]
)
def test_a_text_that_is_too_long_fails_for_this_object(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SECONDS", 20.0)
    template = make_template(TemplateFormat(name), text, allow_missing_keys=True)
    wordy = Object.from_dict({"kind": "Wordy" * 5, "metadata": {"name": "a"}})
    with pytest.raises(TemplateLimitError, match=r"^it makes too long a text$"):
        template.render(wordy)


def test_a_text_with_half_a_character_is_an_error() -> None:
    with pytest.raises(TemplateError, match=r"^jinja2: '\\ud800' is half a character$"):
        _render("jinja2", r'{{ "\ud800" }}')


@pytest.mark.parametrize("name", ["jsonpath", "go-template", "jinja2", "jq"])
def test_a_template_that_is_not_utf_8_is_refused(name: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=r"^the template '\\udcff' is not UTF-8$"):
        _render(name, "\udcff")


def test_the_worker_of_a_program_that_has_less_memory_keeps_to_that() -> None:
    program = (
        "from listwatch.observe.templates.worker import WorkerTemplate as W\n"
        "from listwatch.objects import Object\n"
        "obj = Object.from_dict({'kind': 'Pod', 'metadata': {'name': 'a'}})\n"
        "print(W('jinja2', '{{ kind }}').render(obj))\n"
        "try: W('jinja2', '{{ kind * 2**40 }}').render(obj)\n"
        "except Exception as error: print(error)\n"
    )
    limit = 800 << 20
    done = subprocess.run(
        ["prlimit", f"--as={limit}:{limit}", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Pod\nit takes more than 800 MiB of memory\n"


def test_a_worker_that_ends_by_itself_tells_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_PROGRAM", "raise SystemExit(7)")
    with pytest.raises(TemplateSyntaxError, match=r"ended with code 7$"):
        _render("jq", ".")


def test_a_template_whose_constants_take_too_long_is_refused_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "SECONDS", 0.5)
    with pytest.raises(
        TemplateSyntaxError, match=r"error parsing jinja2 template .*: it takes longer than 0\.5 s"
    ):
        _render("jinja2", "{{ 7 ** 9999999 ** 2 % 10 }}")


def test_a_worker_that_is_killed_between_two_objects_costs_neither_of_them() -> None:
    template = make_template(TemplateFormat.JQ, ".kind", allow_missing_keys=True)
    assert isinstance(template, WorkerTemplate)
    for _ in range(2):
        assert template.render(POD) == "Pod"
        killed = template._process.pid  # private; the test needs the process
        os.kill(killed, signal.SIGKILL)
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert template.render(POD) == "Pod"


def test_the_process_of_a_template_ends_with_it() -> None:
    template = make_template(TemplateFormat.JQ, ".", allow_missing_keys=True)
    assert isinstance(template, WorkerTemplate)
    process = template._process  # private; the test needs the process
    assert process.poll() is None
    del template
    assert process.poll() is not None


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_does_not_end_the_worker() -> None:
    program = (
        "import os, sys\n"
        "from listwatch.observe.templates.worker import WorkerTemplate\n"
        "template = WorkerTemplate('jinja2', '{{ kind }}')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(template._process.poll())\n"  # `render` would replace a dead process
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert ended.stdout.split() == ["3", "None"]
