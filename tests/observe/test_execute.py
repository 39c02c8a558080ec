# ruff: noqa: ASYNC240 - polls other processes, which send no events
import asyncio
import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from listwatch.clock import Clock, FakeClock
from listwatch.observe.execute import (
    KILL_AFTER,
    LONGEST_STRING,
    Executor,
    Outcome,
    StartError,
)
from listwatch.testing.waiting import eventually


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


def _is_over(pid: int) -> bool:
    """Return whether a process has ended, waited for or not."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_a_command_that_ignores_sigterm_is_killed_with_its_group(tmp_path: Path) -> None:
    clock, pid_file = FakeClock(), tmp_path / "pid"
    script = f"trap '' TERM; (trap '' TERM; sleep 600) & echo $! > {pid_file}; wait; sleep 600"
    task = asyncio.ensure_future(Executor(clock, timeout=10).run(_sh(script), Captured().sink))
    await eventually(lambda: pid_file.exists() and pid_file.read_text().strip())
    await clock.advance(10)
    assert not task.done()
    await clock.advance(KILL_AFTER)
    outcome = await task
    assert outcome.timed_out
    assert outcome.signal == signal.SIGKILL
    assert outcome.seconds == 10 + KILL_AFTER
    await eventually(lambda: _is_over(int(pid_file.read_text())))


async def test_a_timeout_ends_gently_where_the_command_lets_it() -> None:
    clock, captured = FakeClock(), Captured()
    script = "trap 'echo bye; exit 7' TERM; echo ready; sleep 600 & wait"
    task = asyncio.ensure_future(Executor(clock, timeout=10).run(_sh(script), captured.sink))
    await eventually(lambda: captured.out == b"ready\n")
    await clock.advance(10)
    outcome = await task
    assert outcome.timed_out
    assert outcome.exit_code == 7
    assert captured.out == b"ready\nbye\n"


async def test_a_daemon_that_keeps_the_pipes_open_does_not_hang_the_caller() -> None:
    outcome, captured = await _run(_sh("setsid sleep 600 & echo $!"))
    daemon = int(captured.out)
    try:
        assert outcome.exit_code == 0
        assert not _is_over(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


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
    await eventually(lambda: taken)
    assert taken <= 64 * 1024
    held.set()
    assert (await task).exit_code == 0
    assert taken == 5_000_000


async def test_cancelling_ends_the_command_before_it_goes_on(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    task = asyncio.ensure_future(
        Executor(Clock()).run(_sh(f"echo $$ > {pid_file}; exec sleep 600"), Captured().sink)
    )
    await eventually(lambda: pid_file.exists() and pid_file.read_text().strip())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


async def test_nothing_is_left_open_after_many_commands() -> None:
    executor = Executor(Clock())
    captured = Captured()
    await executor.run(["/bin/true"], captured.sink)
    gc.collect()  # other tests' garbage may hold files
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(30):
        await executor.run(["/bin/true"], captured.sink, stdin=b"x")
        await executor.run(["/no/such"], captured.sink)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


REAPER = """
import asyncio, ctypes, os, pathlib
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come here, as to PID 1
from listwatch.clock import Clock, FakeClock
from listwatch.observe.execute import Executor
from listwatch.runtime.reaper import Reaper

async def sink(fd, data): pass

async def main():
    executor = Executor(Clock())
    reaping = asyncio.create_task(Reaper(patience=0.05, ours=executor.children).reap_forever())
    runs = [executor.run(["/bin/sh", "-c", f"(sleep 0.0{n} &) ; sleep 0.0{n}; exit {n}"], sink)
            for n in range(1, 9)]
    codes = [outcome.exit_code for outcome in await asyncio.gather(*runs)]
    for _ in range(100):
        await executor.run(["/bin/true"], sink)
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not children:
            break
        await asyncio.sleep(0.02)
    print(codes, children)

asyncio.run(main())
"""


def test_a_reaper_beside_it_takes_orphans_and_leaves_its_exit_codes_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REAPER], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == "[1, 2, 3, 4, 5, 6, 7, 8] []\n"


class Shortage:
    """A start that fails `times` times for lack of resources."""

    def __init__(self, times: int, code: int = errno.EMFILE) -> None:
        self.left = times
        self._code = code
        self.tried_at: list[float] = []
        self.warnings: list[str] = []
        self.clock = FakeClock()
        self.executor = Executor(self.clock, warn=self._warn)

    async def _warn(self, words: str) -> None:
        self.warnings.append(words)

    def __call__(self) -> str:
        self.tried_at.append(self.clock.now())
        self.left -= 1
        if self.left >= 0:
            raise OSError(self._code, os.strerror(self._code))
        return "started"

    async def start(self) -> str:
        task = asyncio.ensure_future(self.executor.start(self, 'command "x"'))
        await eventually(task.done, clock=self.clock, seconds=60)
        return task.result()


async def test_what_there_is_no_room_for_is_tried_again_after_growing_waits() -> None:
    shortage = Shortage(3)
    begun = shortage.clock.now()
    assert await shortage.start() == "started"
    assert [at - begun for at in shortage.tried_at] == [0, 0.5, 1.5, 3.5]
    assert shortage.warnings == [
        f'unable to start command "x": Too many open files (next try in {delay}s)'
        for delay in ("0.5", "1", "2")
    ]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EMFILE, r"Too many open files \(6 tries\); raise the limit of open files"),
        (errno.EAGAIN, r"unavailable \(6 tries\); raise the limit of processes"),
        (errno.ENOMEM, r"\(6 tries\); there is not enough memory"),
        (errno.ENOSPC, r"\(6 tries\); make room"),
    ],
)
async def test_what_there_is_no_room_for_is_an_error_of_its_own_in_the_end(
    code: int, words: str
) -> None:
    shortage = Shortage(100, code)
    with pytest.raises(StartError, match=words):
        await shortage.start()
    assert len(shortage.tried_at) == 6


async def test_it_is_not_given_up_while_other_commands_may_make_room() -> None:
    shortage = Shortage(30)
    sleeping = asyncio.ensure_future(shortage.executor.run(_sh("sleep 600"), _ignore))
    await asyncio.sleep(0)
    assert await shortage.start() == "started"
    assert len(shortage.tried_at) == 31
    sleeping.cancel()
    await asyncio.wait({sleeping})


async def test_another_error_of_the_system_is_told_at_once() -> None:
    shortage = Shortage(1, errno.EACCES)
    with pytest.raises(PermissionError):
        await shortage.start()


async def _ignore(_fd: int, _data: bytes) -> None:
    """Do nothing."""


@pytest.mark.parametrize("stdin", [None, b"object"])
async def test_at_the_limit_of_open_files_no_command_runs_halfway_and_none_is_lost(
    tmp_path: Path, stdin: bytes | None
) -> None:
    clock = FakeClock()
    executor = Executor(clock)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ran = tmp_path / "ran"
    gc.collect()  # other tests' garbage may hold files
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    free = os.dup(1)
    os.close(free)
    task = None
    try:
        for room in range(12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, hard))
            task = asyncio.ensure_future(
                executor.run(_sh(f"echo ran >> {ran}"), _ignore, stdin=stdin)
            )
            await asyncio.sleep(0)
            if clock.next_timer is None:
                break
            task.cancel()
            await asyncio.wait({task})
            assert not ran.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert task is not None
    assert (await task).exit_code == 0
    assert ran.read_text() == "ran\n"
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
