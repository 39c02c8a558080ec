# ruff: noqa: ASYNC110, ASYNC240 - polls what another process does, which no event tells
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from listwatch.clock import Clock
from listwatch.observe.execute import LONGEST_STRING, Executor, Outcome


class Captured:
    def __init__(self) -> None:
        self.out = b""
        self.err = b""

    async def sink(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self.out += data
        else:
            self.err += data


async def _run(
    argv: Sequence[str],
    *,
    limit: float | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> tuple[Outcome, Captured]:
    captured = Captured()
    outcome = await Executor(Clock(), timeout=limit).run(argv, captured.sink, env=env, stdin=stdin)
    return outcome, captured


def _sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script, "sh"]


async def test_arguments_reach_the_command_as_they_are_without_a_shell() -> None:
    words = ["a b", "", "$HOME", "`id`", "*", "é", "\\", '"']
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    outcome, captured = await _run([sys.executable, "-c", program, *words])
    assert outcome.exit_code == 0
    assert outcome.succeeded
    assert json.loads(captured.out) == words


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
async def test_the_exit_code_is_the_commands_own(code: int) -> None:
    outcome, _ = await _run(_sh(f"exit {code}"))
    assert (outcome.exit_code, outcome.failure) == (code, "")


async def test_a_signal_is_told_as_such_and_as_minus_one() -> None:
    outcome, _ = await _run(_sh("kill -USR1 $$"))
    assert (outcome.exit_code, outcome.signal) == (-1, signal.SIGUSR1)
    assert outcome.failure == "ended by SIGUSR1"


async def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no program")
    for argv, words in (
        ([str(tmp_path / "nowhere")], "no such command"),
        ([str(script)], "not an executable file"),
        (["/bin/true", "x" * LONGEST_STRING], "use --stdin"),
        (["/bin/true", "zero\0byte"], "null byte"),
    ):
        outcome, _ = await _run(argv)
        assert outcome.exit_code == -1
        assert not outcome.succeeded
        assert words in outcome.failure


async def test_output_and_error_arrive_apart_and_whole() -> None:
    outcome, captured = await _run(_sh("seq 1 100000; echo oops >&2; printf tail"))
    assert outcome.exit_code == 0
    assert captured.out.split() == [b"%d" % n for n in range(1, 100001)] + [b"tail"]
    assert captured.err == b"oops\n"


async def test_a_command_that_reads_finds_nothing_or_what_it_was_given() -> None:
    assert (await _run(["/bin/cat"]))[1].out == b""
    data = b"x" * 3_000_000
    outcome, captured = await _run(["/bin/cat"], stdin=data)
    assert captured.out == data
    outcome, _ = await _run(["/bin/true"], stdin=data)
    assert outcome.exit_code == 0


async def test_the_environment_is_handed_on_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN", "yes")
    assert (await _run(_sh("echo $SEEN")))[1].out == b"yes\n"
    assert (await _run(_sh("echo $SEEN$MORE"), env={"MORE": "m"}))[1].out == b"m\n"


async def test_a_command_that_ignores_sigterm_is_killed_with_its_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"trap '' TERM; (trap '' TERM; sleep 600) & echo $! > {pid_file}; wait; sleep 600"
    started = time.monotonic()
    outcome, _ = await _run(_sh(script), limit=0.3)
    assert outcome.timed_out
    assert outcome.signal == signal.SIGKILL
    assert time.monotonic() - started < 5
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if ") Z " in Path(f"/proc/{child}/stat").read_text():
            break
        await asyncio.sleep(0.01)
    else:
        assert not Path(f"/proc/{child}").exists()


async def test_a_timeout_ends_gently_where_the_command_lets_it() -> None:
    outcome, captured = await _run(_sh("trap 'echo bye; exit 7' TERM; sleep 600 & wait"), limit=0.3)
    assert outcome.timed_out
    assert outcome.exit_code == 7
    assert captured.out == b"bye\n"


async def test_a_daemon_that_keeps_the_pipes_open_does_not_hang_the_caller() -> None:
    started = time.monotonic()
    outcome, captured = await _run(_sh("setsid sleep 5 & echo done"))
    assert outcome.exit_code == 0
    assert captured.out == b"done\n"
    assert time.monotonic() - started < 3


async def test_a_command_that_closes_its_output_is_waited_for() -> None:
    outcome, _ = await _run(_sh("exec >&- 2>&-; sleep 0.2; exit 4"))
    assert outcome.exit_code == 4
    assert outcome.seconds >= 0.15


async def test_a_slow_sink_holds_a_flood_back() -> None:
    held = asyncio.Event()
    taken = 0

    async def sink(_fd: int, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        await held.wait()

    task = asyncio.ensure_future(Executor(Clock()).run(_sh("yes | head -c 5000000"), sink))
    while not taken:
        await asyncio.sleep(0.01)
    assert taken <= 64 * 1024
    held.set()
    assert (await task).exit_code == 0
    assert taken == 5_000_000


async def test_cancelling_ends_the_command_before_it_goes_on(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    task = asyncio.ensure_future(
        Executor(Clock()).run(_sh(f"echo $$ > {pid_file}; exec sleep 600"), Captured().sink)
    )
    while not (pid_file.exists() and pid_file.read_text().strip()):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


async def test_nothing_is_left_open_after_many_commands() -> None:
    executor = Executor(Clock())
    captured = Captured()
    await executor.run(["/bin/true"], captured.sink)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(30):
        await executor.run(["/bin/true"], captured.sink, stdin=b"x")
        await executor.run(["/no/such"], captured.sink)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


REAPER = """
import asyncio, ctypes, os, pathlib
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come here, as to PID 1
os.getpid, own = (lambda: 1), os.getpid()
from listwatch.clock import Clock
from listwatch.observe.execute import Executor

async def sink(fd, data): pass

async def main():
    executor = Executor(Clock())
    runs = [executor.run(["/bin/sh", "-c", f"(sleep 0.0{n} &) ; sleep 0.0{n}; exit {n}"], sink)
            for n in range(1, 9)]
    codes = [outcome.exit_code for outcome in await asyncio.gather(*runs)]
    for _ in range(100):
        await executor.run(["/bin/true"], sink)
        children = pathlib.Path(f"/proc/self/task/{own}/children").read_text().split()
        if not children:
            break
        await asyncio.sleep(0.02)
    print(codes, children)

asyncio.run(main())
"""


def test_as_pid_1_it_reaps_orphans_and_leaves_its_own_exit_codes_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REAPER], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[1, 2, 3, 4, 5, 6, 7, 8] []\n"
