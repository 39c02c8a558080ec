"""Rules for the tests themselves: which run when, and that none is retried."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import components
from sampling import sampled

ROOT = Path(__file__).parents[1]


def test_no_test_says_how_many_examples_it_takes() -> None:
    """The profile in conftest.py does: few in `make test`, many in `make proof`."""
    word = "max_" + "examples"
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if f"{word}=" in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_ci_runs_no_failed_test_again() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert not re.search(r"--(last-failed|lf|reruns|failed-first)", script)


def test_a_sample_has_every_so_many_th_case_and_marks_the_others() -> None:
    cases = sampled([("a", 1), ("b", 2), ("c", 3), ("d", 4)], every=3)
    assert [case.values for case in cases] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert [bool(case.marks) for case in cases] == [False, True, True, False]


def test_every_component_is_known_and_an_unknown_one_is_named() -> None:
    for name in components.REMEDIES:
        components.find(name)
    with pytest.raises(ValueError, match="no component is called 'nothing': haproxy, "):
        components.find("nothing")


@pytest.mark.proof
@pytest.mark.parametrize(
    ("arguments", "long_ones"),
    [
        (["tests/guards", "tests/observe"], False),
        (["tests/observe/test_thirty_days.py"], True),
        (["tests/observe", "-m", "proof"], True),
    ],
)
def test_long_tests_are_left_out_unless_they_are_asked_for(
    arguments: list[str], long_ones: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("test_thirty_days_of_churn_leave_memory_flat" in done.stdout) is long_ones


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_a_test_without_its_program_is_skipped_but_fails_in_ci(
    tmp_path: Path, ci: str, outcome: str
) -> None:
    (tmp_path / "test_it.py").write_text(
        'import pytest\n@pytest.mark.needs("helm")\ndef test_a(): ...\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(ROOT), "-c",
         str(ROOT / "pyproject.toml"), "-p", "conftest", str(tmp_path / "test_it.py")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={
            "PATH": "",
            "CI": ci,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "LISTWATCH_GO_CLIENTS": str(tmp_path),
        },
    )  # fmt: skip
    assert outcome in done.stdout, done.stdout + done.stderr


def test_every_planted_defect_still_has_its_place() -> None:
    """`make proof` plants them; this test finds moved code earlier."""
    module = runpy.run_path(str(ROOT / "tools" / "plant_defects.py"))
    moved = [
        each.name
        for each in module["DEFECTS"]
        if (ROOT / "src" / "listwatch" / each.file).read_text(encoding="utf-8").count(each.old) != 1
    ]
    assert moved == []


def test_a_test_that_hangs_in_another_event_loop_ends() -> None:
    """Under uvloop, what pytest-timeout raises in a signal handler is lost and the test hangs."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    others = [line for line in lines if "LISTWATCH_TEST_LOOP=" in line]
    assert others
    assert all("--timeout-method thread" in line for line in others)
