"""An odd object affects only itself, and its text is escaped for the terminal."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache.list_watch import WatchEvent
from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.names import NamesError
from listwatch.observe.options import shown_command
from listwatch.observe.printing import Format, Printer
from listwatch.observe.templates import TemplateFormat, make_template
from listwatch.testing.fake_controller_source import FakeControllerSource, pod
from observe.observing import observing

ECHO = ("/bin/echo", "got")
#: Terminal sequences, forged lines, bidirectional marks, other control characters.
NASTY = "\x1b]0;title\x07\x1b[2J\nerror: forged\r\x85\x9b31m\x7f\u202eabc\u2066\u2028"
ODD_NAMES = ["tab\t", NASTY, "nul\0", "line\nerror: forged"]


def _words(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# ")]


@pytest.mark.parametrize("options", [{}, {"state": True}, {"debounce": 0.001}, {"parallel": 3}])
async def test_names_that_are_no_names_cost_only_their_objects(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    state_file = tmp_path / "state" if options.pop("state", False) else None
    options |= {"command": ECHO, "delete_command": ("/bin/echo", "gone"), "state_file": state_file}
    source = FakeControllerSource()
    source.add(pod(ODD_NAMES[0], "ns"))
    source.add(pod("a", "ns"))
    async with observing(tmp_path, source, **options) as state:
        await state.until(lambda: state.observer.synced)
        for name in ODD_NAMES[1:]:
            source.add(pod(name, "ns"))
        for name in ODD_NAMES:
            source.modify(pod(name, "ns", image="x"))
            source.delete(f"ns/{name}")
        source.add(pod("b", "ns"))
        await state.until(lambda: "got ns b" in state.out)
        assert state.observer.statistics().errors == 0
    assert _words(state.out) == ["got ns a", "got ns b"]
    told = state.err.split("\n")
    assert told.pop() == ""
    assert told
    for line in told:
        assert re.fullmatch(r"error: ns/.*: no command is run for it: its name .*", line)
        assert line.isprintable()
    assert told[0] == (
        "error: ns/tab\\t: no command is run for it: its name has control characters"
    )
    if state_file is not None:  # The next run works as well.
        source.add(pod("c", "ns"))
        async with observing(tmp_path, source, **options) as state:
            await state.until(lambda: "got ns c" in state.out)


@pytest.mark.parametrize("name", ["a/b", "../../etc", "..", ".", "/"])
async def test_no_command_takes_a_name_for_a_path(tmp_path: Path, name: str) -> None:
    good = Object.from_dict(pod("a", "ns"))
    meta = Object.from_dict(pod("b", "ns")).meta
    meta = msgspec.structs.replace(meta, _key=f"ns/{name}")  # no decoder returns such a key
    odd = msgspec.structs.replace(good, key=f"ns/{name}", meta=meta)
    async with observing(tmp_path, command=ECHO) as state:
        for obj in (odd, good):
            state.observer.dispatcher.submit(
                Observation(ObservationType.ADDED, obj.key, obj, resource="pods")
            )
        await state.until(lambda: "got ns a" in state.out)
    assert state.err == (
        f"error: ns/{name}: no command is run for it: its name can't be part of a path\n"
    )


async def test_versions_that_are_no_numbers_cost_only_the_memory_of_their_objects(
    tmp_path: Path,
) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    options: dict[str, Any] = {"command": ECHO, "state_file": tmp_path / "state"}
    odd = Object.from_dict(pod("odd", "ns", uid="u"))
    versions = ["", "abc", "-1", "²", "9" * 5000, str(2**63), "1\n2"]
    async with observing(tmp_path, source, **options) as state:
        await state.until(lambda: state.observer.synced)
        for version in versions:
            meta = msgspec.structs.replace(odd.meta, resource_version=version)
            source.send(WatchEvent("MODIFIED", msgspec.structs.replace(odd, meta=meta)))
        source.add(pod("b", "ns"))
        await state.until(lambda: "got ns b" in state.out)
    assert _words(state.out)[-1] == "got ns b"
    assert state.err == ""
    source.add(pod("c", "ns"))
    async with observing(tmp_path, source, **options) as state:
        await state.until(lambda: "got ns c" in state.out)


async def test_lines_of_a_names_command_that_are_no_names_are_left_alone(tmp_path: Path) -> None:
    printf = ("/bin/sh", "-c", r"printf 'ns/a\nns/gone\n/\na/b/c\nplain\nns/x\033[2J\n'")
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(
        tmp_path, source, command=ECHO, delete_command=("/bin/echo", "gone"), names_command=printf
    ) as state:
        await state.until(lambda: state.observer.synced)
    assert _words(state.out) == ["got ns a", "gone ns gone"]
    assert len(state.err.splitlines()) == 4
    assert "warning: --names: 'plain' lacks a namespace; print namespace/name" in state.err
    assert state.err.replace("\n", "").isprintable()


async def test_a_names_command_that_prints_no_name_at_all_ends_it(tmp_path: Path) -> None:
    with pytest.raises(NamesError, match="unable to list known keys: 'plain' lacks a namespace"):
        async with observing(
            tmp_path, delete_command=ECHO, names_command=("/bin/echo", "plain")
        ) as state:
            await state.task


@pytest.mark.parametrize(
    "make",
    [
        lambda: TemplateFormat.JSONPATH,
        lambda: TemplateFormat.GO_TEMPLATE,
        lambda: TemplateFormat.JINJA2,
        lambda: TemplateFormat.JQ,
    ],
)
async def test_an_object_on_which_a_template_fails_costs_only_itself(
    tmp_path: Path, make: Callable[[], TemplateFormat]
) -> None:
    language = make()
    text = {
        TemplateFormat.JSONPATH: "{.spec.list[0]}",
        TemplateFormat.GO_TEMPLATE: "{{index .spec.list 0}}",
        TemplateFormat.JINJA2: "{{ spec.list[0] + 0 }}",
        TemplateFormat.JQ: ".spec.list[0] + 0",
    }[language]
    template = make_template(language, text, allow_missing_keys=False)
    source = FakeControllerSource()
    odd: list[Any] = ["text", 5, {"a": 1}, [NASTY], [[]], [{}]]
    for place, value in enumerate(odd):
        source.add(pod(f"odd{place}", "ns", list=value))
    source.add(pod("a", "ns", list=[7]))
    async with observing(tmp_path, source, command=ECHO, template=template) as state:
        await state.until(lambda: state.observer.synced)
    assert "got ns a 7" in _words(state.out)
    for line in state.err.splitlines():
        assert re.match(r"error: ns/odd\d: unable to write arguments: ", line)


@pytest.mark.parametrize("printer_format", list(Format))
async def test_what_can_be_in_an_object_forges_no_line_and_moves_no_terminal(
    tmp_path: Path, printer_format: Format
) -> None:
    source = FakeControllerSource()
    source.add(pod(NASTY, "ns", words="before"))
    async with observing(tmp_path, source, printer_format=printer_format) as state:
        await state.until(lambda: state.observer.synced)
        source.modify({**pod(NASTY, "ns", words=NASTY), NASTY: {NASTY: [NASTY]}})
        await state.until(lambda: state.metrics.text().count("observe_counts{") == 2)
        source.delete(f"ns/{NASTY}")
        source.add(pod("last", "ns"))
        await state.until(lambda: "last" in state.out)
    assert state.err == ""
    assert state.out.replace("\n", "").replace("\t", "").isprintable()
    assert not any(line.startswith("error: ") for line in state.out.split("\n"))


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"])) | st.sampled_from([NASTY, ""])


def _change(text: str) -> Observation:
    obj = Object.from_dict({**pod("a", "ns", words=text), f"x{text}": [text]})
    return Observation(ObservationType.ADDED, obj.key, obj, resource="pods")


@given(TEXTS)
def test_json_lines_mean_the_same_and_are_one_line(text: str) -> None:
    change = _change(text)
    line = Printer(Format.JSON).text(change, "Added", "")
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert change.object is not None
    assert json.loads(line)["object"] == change.object.to_dict()


def test_an_object_that_arrived_in_several_lines_is_printed_in_one() -> None:
    obj = Object.from_dict(pod("a", "ns", words=NASTY))
    indented = msgspec.structs.replace(obj, _packed=json.dumps(obj.to_dict(), indent=1).encode())
    line = Printer(Format.JSON).text(
        Observation(ObservationType.ADDED, obj.key, indented, resource="pods"), "Added", ""
    )
    assert line.count("\n") == 1
    assert json.loads(line)["object"] == obj.to_dict()


@given(TEXTS)
def test_yaml_means_the_same_and_is_printable(text: str) -> None:
    change = _change(text)
    shown = Printer(Format.YAML).text(change, "Added", "")
    assert shown.replace("\n", "").isprintable()
    assert change.object is not None
    assert yaml.safe_load(shown.removesuffix("---\n")) == change.object.to_dict()


@given(st.lists(st.text()))
def test_a_shown_command_is_one_printable_line(words: list[str]) -> None:
    assert shown_command(words).isprintable()


async def test_an_object_that_breaks_what_reads_it_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    text = Printer.text

    def broken(self: Printer, change: Observation, kind: str, header: str) -> str:
        if change.name == "odd":
            raise ValueError(f"what is {NASTY}")
        return text(self, change, kind, header)

    monkeypatch.setattr(Printer, "text", broken)
    async with observing(tmp_path, source) as state:
        await state.until(lambda: state.observer.synced)
        source.add(pod("odd", "ns"))
        source.add(pod("b", "ns"))
        await state.until(lambda: "ns b" in state.out)
        await asyncio.sleep(0)
    assert state.err.startswith("error: ns/odd: unable to render it: ValueError: what is \\x1b]0")
    assert state.err.count("\n") == 1
