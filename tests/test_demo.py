"""The demo, smaller than in `make run`, as a separate process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def _figure(output: str, label: str) -> int:
    (line,) = (line for line in output.splitlines() if label in line)
    return int(line.split("│")[2])


@pytest.mark.proof
def test_every_change_is_delivered_through_a_restart_and_a_compaction() -> None:
    done = _demo("--pods", "30", "--changes", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every change was delivered: none lost, none invented." in done.stdout
    assert _figure(done.stdout, "│ mistakes") == 0
    writes = sum(_figure(done.stdout, f"made: {kind}") for kind in ("additions", "updates", "del"))
    assert writes == 230
    assert "its history compacted" in done.stdout
    assert "too old resource version" in done.stdout
    assert done.stderr == ""


@pytest.mark.proof
def test_a_difference_is_shown_and_ends_with_another_exit_code() -> None:
    done = _demo("--pods", "20", "--changes", "60", "--forgetful")
    assert done.returncode == 1
    assert "The delivered changes differ from those made." in done.stdout
    assert _figure(done.stdout, "│ mistakes") > 0
    assert "was never delivered" in done.stdout


@pytest.mark.proof
def test_live_goes_on_until_ctrl_c_and_then_compares() -> None:
    with subprocess.Popen(
        [sys.executable, str(DEMO), "--live", "--pods", "10", "--changes", "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "--- live" in line:
                    break
            else:
                pytest.fail("it never went live")
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            output, complaints = process.communicate(timeout=40)
        finally:
            process.kill()
    assert process.returncode == 0, output + complaints
    assert "Every change was delivered" in output
    assert complaints == ""


def test_ctrl_c_before_the_end_is_one_line_and_leaves_no_process() -> None:
    with subprocess.Popen(
        [sys.executable, str(DEMO), "--pods", "30", "--changes", "5000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "LISTWATCH_TEST_MARK": (mark := f"demo-{os.getpid()}")},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()  # observe's first line
            os.killpg(process.pid, signal.SIGINT)
            output, complaints = process.communicate(timeout=40)
        finally:
            process.kill()
    assert process.returncode == 130, output + complaints
    assert output.endswith("Stopped before there was anything to compare.\n")
    assert complaints == ""
    assert [pid for pid in _pids() if mark in _environment(pid)] == []


def _pids() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _environment(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # it has ended, or belongs to another user
