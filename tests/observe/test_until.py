"""Ending when something holds: --until and --for-condition."""

import re
from pathlib import Path
from typing import Any

import pytest

from listwatch.objects import Object
from listwatch.observe.options import ObserveOptions, UsageError
from listwatch.observe.until import NotMetError, Until
from listwatch.testing.fake_controller_source import FakeControllerSource, pod
from observe.observing import observing


def _running(name: str, phase: str = "Running", ready: str = "True") -> dict[str, Any]:
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
    return {**pod(name, "ns"), "status": status}


def _until(expression: str, *objects: dict[str, Any]) -> Until:
    until = Until(expression)
    for value in objects:
        obj = Object.from_dict(value)
        until.update("pods", obj.key, obj)
    return until


@pytest.mark.parametrize(
    ("objects", "met"),
    [
        ([], False),
        ([_running("a")], True),
        ([_running("a"), _running("b", "Pending")], False),
        ([_running("a", "Pending"), _running("a")], True),
        ([_running("a"), _running("a", "Pending")], False),
        ([pod("a", "ns")], False),
    ],
)
def test_a_condition_is_met_if_there_are_objects_and_it_holds_for_all(
    objects: list[dict[str, Any]], *, met: bool
) -> None:
    assert _until("object.status.phase == 'Running'", *objects).is_met() == met


def test_an_object_that_is_gone_counts_no_more() -> None:
    until = _until("object.status.phase == 'Running'", _running("a"), _running("b", "Pending"))
    until.update("pods", "ns/b", None)
    assert until.is_met()


def test_every_named_object_must_be_there() -> None:
    until = _until("true", _running("a"))
    assert until.is_met(["a"])
    assert not until.is_met(["a", "b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": "object.status."}, "--until: ERROR: <input>:1:15: Syntax error"),
        ({"until": "1 + 1"}, "'1 + 1' is of type int; write a condition such as"),
        ({"until": "objekt.x"}, "undeclared reference to 'objekt'"),
        ({"for_conditions": ("=True",)}, "--for-condition: '=True' has no condition type"),
        ({"exec_batch": 2}, "--exec-batch needs a command"),
        (
            {"exec_batch": 2, "command": ("/bin/cat",), "type_env_var": "T"},
            "--type-env-var is for one change",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        ObserveOptions(resources=("pods",), **options).check()


async def test_observing_ends_when_the_last_object_meets_the_condition(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(_running("a"))
    source.add(_running("b", ready="False"))
    async with observing(
        tmp_path, source, for_conditions=("Ready",), command=("/bin/echo", "ran")
    ) as state:
        await state.until(lambda: "Sync ended" in state.out)
        assert not state.task.done()
        source.modify(_running("b"))
        await state.task
    assert state.out.splitlines()[-1] == "ran ns b"


async def test_an_end_without_the_condition_names_the_objects(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(_running("a"))
    source.add(_running("b", ready="False"))
    words = (
        "--for-condition Ready did not hold for 1 of 2 objects:"
        " pods ns/b (its conditions are Ready=False)"
    )
    with pytest.raises(NotMetError, match=re.escape(words)):
        async with observing(tmp_path, source, for_conditions=("Ready",), once=True) as state:
            await state.task
    with pytest.raises(NotMetError, match="did not hold: no such object"):
        async with observing(tmp_path, until="true", once=True) as state:
            await state.task


async def test_a_condition_that_holds_at_the_start_ends_observing_after_the_list(
    tmp_path: Path,
) -> None:
    source = FakeControllerSource()
    for number in range(3):
        source.add(_running(f"p{number}"))
    async with observing(
        tmp_path, source, until="object.status.phase == 'Running'", names=("p0", "p2")
    ) as state:
        await state.task
    assert [line.split("\t")[1] for line in state.headers if "\t" in line] == ["ns p0", "ns p2"]
