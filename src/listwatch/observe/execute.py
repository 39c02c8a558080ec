"""Runs commands as child processes: without a shell, with limits, never blocking the caller."""

import asyncio
import errno
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Final, TypeVar

import msgspec

from listwatch.backoff import COMMAND_START
from listwatch.clock import Clock
from listwatch.errors import ListWatchError

T = TypeVar("T")

#: Receives a command's output: the descriptor (1 or 2) and the bytes.
Sink = Callable[[int, bytes], Awaitable[None]]

#: The longest argument or environment string that Linux accepts, with its terminating zero.
LONGEST_STRING = 128 * 1024
_CHUNK = 64 * 1024
#: Seconds between SIGTERM and SIGKILL for a command's process group.
KILL_AFTER = 2.0

_REMEDIES: Final = {
    errno.EMFILE: "raise the limit of open files (ulimit -n) or lower --parallel",
    errno.ENFILE: "the whole system has too many open files",
    errno.EAGAIN: "raise the limit of processes (ulimit -u) or lower --parallel",
    errno.ENOMEM: "there is not enough memory",
    errno.ENOSPC: "make room in the directory of temporary files",
    errno.EDQUOT: "make room in the directory of temporary files",
}


class StartError(ListWatchError):
    """The system lacks resources to start a command: an external error, not a failed run."""


def is_shortage(error: BaseException) -> bool:
    """Return whether an error means that files, processes, memory or disk space ran out."""
    return isinstance(error, OSError) and error.errno in _REMEDIES


class Outcome(msgspec.Struct, frozen=True):
    """How a command ended.

    Attributes:
        exit_code: its exit code; -1 if a signal ended it or it could not start.
        signal: the signal that ended it, otherwise 0.
        seconds: how long it ran.
        failure: why there is no exit code; empty if there is one.
        timed_out: it was ended by its time limit.
    """

    exit_code: int
    signal: int = 0
    seconds: float = 0.0
    failure: str = ""
    timed_out: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether its exit code was 0."""
        return self.exit_code == 0 and not self.failure


class Executor:
    """Runs commands, each in its own session with empty standard input.

    For one event loop. The caller limits the number of commands at a time. Cancelling `run` ends
    the command and its process group first.

    Args:
        clock: measures and limits the commands' time.
        timeout: seconds that a command may run; None for no limit.
        warn: called with one line before each retry if the system lacks resources.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        timeout: float | None = None,
        warn: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        if not hasattr(os, "pidfd_open"):
            raise ListWatchError("running commands needs Linux 5.3 or newer (pidfd_open)")
        self._clock = clock
        self._timeout = timeout
        self._warn = warn
        self._running = self._ended = 0
        #: The PIDs of the processes that it waits for.
        self.children: set[int] = set()

    async def start(self, attempt: Callable[[], T], what: str) -> T:
        """Call what starts or opens something, and retry while the system lacks resources.

        Gives up after some 15 seconds in which no command here ran or ended, because only that
        would free resources.

        Args:
            attempt: may raise `OSError`; must undo what it has done before it raises.
            what: its name in messages.

        Raises:
            StartError: all tries failed.
            OSError: `attempt` failed for another reason than a shortage.
        """
        failed, ended = 0, self._ended
        while True:
            try:
                return attempt()
            except OSError as error:
                if not is_shortage(error):
                    raise
                if self._running or self._ended != ended:
                    failed, ended = 0, self._ended
                words = f"unable to start {what}: {error.strerror}"
                if failed + 1 == COMMAND_START.tries:
                    remedy = _REMEDIES[error.errno or 0]
                    raise StartError(f"{words} ({failed + 1} tries); {remedy}") from error
                delay = COMMAND_START.delay(failed)
            failed += 1
            if self._warn is not None:
                await self._warn(f"{words} (next try in {delay:g}s)")
            await self._clock.sleep(delay)

    async def run(
        self,
        argv: Sequence[str],
        sink: Sink,
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Outcome:
        """Run a command to its end.

        Args:
            argv: the command and its arguments, passed to the kernel unchanged.
            sink: receives its output; awaiting it slows the command down.
            env: its complete environment; None passes on this process's.
            stdin: its standard input, provided as a file, so it need not be read; None for empty.

        Returns:
            How it ended. A missing or non-executable command is an outcome too.

        Raises:
            StartError: the system lacks resources, see `start`.
        """
        try:
            child = await self.start(lambda: _Child(argv, env, stdin), f'command "{argv[0]}"')
        except (OSError, ValueError) as error:
            return Outcome(-1, failure=_startup_failure(argv, env, error))
        started = self._clock.now()
        self._running += 1
        try:
            return await self._watch(child, sink, started)
        finally:
            self._running -= 1
            self._ended += 1

    async def _watch(self, child: "_Child", sink: Sink, started: float) -> Outcome:
        with child.stack:
            self.children.add(child.pid)
            limit = self._clock.timeout(self._timeout)
            try:
                async with limit:
                    await child.finish(sink)
            except TimeoutError:
                if not limit.expired:
                    raise
                await self._end(child, sink)
            except BaseException:
                await self._end(child, _discard)
                raise
            finally:
                self.children.discard(child.pid)
        seconds = self._clock.now() - started
        return child.outcome(seconds, timed_out=limit.expired)

    async def _end(self, child: "_Child", sink: Sink) -> None:
        """End a command and its process group, gently at first."""
        child.kill_group(signal.SIGTERM)
        try:
            async with self._clock.timeout(KILL_AFTER):
                await child.finish(sink)
        except TimeoutError:
            child.kill_group(signal.SIGKILL)
            await child.exited()
        finally:
            child.kill_group(signal.SIGKILL)


async def _discard(_fd: int, _data: bytes) -> None:
    """Discard a command's output."""


class _Child:
    """One child process with its pipes; its stack closes what it holds.

    Raises:
        OSError: it can't start, and nothing of it is left.
        ValueError: its arguments are invalid.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None, stdin: bytes | None
    ) -> None:
        with ExitStack() as stack:
            self._start(stack, argv, env, stdin)
            self.stack = stack.pop_all()

    def _start(
        self,
        stack: ExitStack,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        stdin: bytes | None,
    ) -> None:
        source: int | IO[bytes] = subprocess.DEVNULL
        if stdin is not None:
            # A file instead of a pipe: a command that does not read it can't block us.
            source = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the stack closes it
            stack.callback(source.close)
            source.write(stdin)
            source.seek(0)
        # Reserves a descriptor for the pidfd: a started command must not be ended for lack of one.
        spare = os.open(os.devnull, os.O_RDONLY)
        place = stack.enter_context(ExitStack())
        place.callback(os.close, spare)
        self._process = subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
            argv,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self._process.pid
        self._status: os.waitid_result | None = None
        self._lost = False
        self._pipes: dict[int, int] = {}
        for number, pipe in ((1, self._process.stdout), (2, self._process.stderr)):
            assert pipe is not None  # noqa: S101 - for the type checker
            stack.callback(pipe.close)
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe.fileno()] = number
        place.close()
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        stack.callback(os.close, self._pidfd)

    async def finish(self, sink: Sink) -> None:
        """Forward its output until it has ended; do not wait for others that hold its pipes."""
        while self._status is None and not self._lost:
            await _readable(self._pidfd, *self._pipes)
            for fd, number in list(self._pipes.items()):
                data = _read_now(fd)
                if data:
                    await sink(number, data)
                elif data is not None:
                    del self._pipes[fd]
            self._collect()
        for fd, number in self._pipes.items():
            # What is in the pipe now was written before the end, except by a process that the
            # command left behind, which must not keep us busy for ever.
            budget = 16
            while budget and (data := _read_now(fd)):
                budget -= 1
                await sink(number, data)

    async def exited(self) -> None:
        """Wait only for its end."""
        while self._status is None and not self._lost:
            await _readable(self._pidfd)
            self._collect()

    def _collect(self) -> None:
        try:
            self._status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            self._lost = True
        if self._status is not None or self._lost:
            self._process.returncode = self._status.si_status if self._status else -1

    def kill_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def outcome(self, seconds: float, *, timed_out: bool) -> Outcome:
        status = self._status
        if status is None:
            return Outcome(
                -1, seconds=seconds, failure="other code reaped it, so its exit code is lost"
            )
        if status.si_code == os.CLD_EXITED:
            return Outcome(status.si_status, seconds=seconds, timed_out=timed_out)
        name = signal.Signals(status.si_status).name
        return Outcome(
            -1,
            signal=status.si_status,
            seconds=seconds,
            failure=f"ended by {name}",
            timed_out=timed_out,
        )


def _startup_failure(
    argv: Sequence[str], env: Mapping[str, str] | None, error: OSError | ValueError
) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such command"
    if isinstance(error, PermissionError):
        return "not an executable file"
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        size = max(len(os.fsencode(word)) for word in argv)
        size = max([size, *(len(os.fsencode(v)) for v in (env or {}).values())])
        return f"its arguments or environment are too long ({size} bytes in one); use --stdin"
    return str(error)


async def _readable(*fds: int) -> None:
    """Wait until one of them is readable."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    for fd in fds:
        loop.add_reader(fd, _resolve, ready)
    try:
        await ready
    finally:
        for fd in fds:
            loop.remove_reader(fd)


def _read_now(fd: int) -> bytes | None:
    """Return what is readable now: b"" at the end, None if there is nothing yet."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
