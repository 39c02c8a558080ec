"""HAProxy's master process, started by this program or by the one before it."""

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Python ignores these signals, and a child would inherit that.
_IGNORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class Master:
    """A process that may be a child of another process. For one event loop.

    Args:
        pid: its process ID.

    Raises:
        ProcessLookupError: there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        #: Its exit code; None while it runs. -1 if it was not a child of this process.
        self.returncode: int | None = None
        # Refers to this very process: its ID may be given to another one.
        self._descriptor = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        self.returncode = _exit_code(self._descriptor)
        self._ended.set()
        self.release()

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        await self._ended.wait()
        return -1 if self.returncode is None else self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def release(self) -> None:
        """Stop watching it; it continues."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


def _exit_code(descriptor: int) -> int:
    try:
        result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return -1  # a child of another process
    if result is None:
        return -1
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


class RunningLock:
    """A file that all processes of one HAProxy keep locked.

    They inherit the open file, and with it the lock: it is free once all of them have ended. So a
    successor knows whether HAProxy runs and which processes belong to it, although a process ID
    may have been given to another process.

    Args:
        path: the file, in a directory that nobody else can change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> int | None:
        """Return a descriptor of the locked file for `spawn`; None if HAProxy runs."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @property
    def is_held(self) -> bool:
        """Whether a process of HAProxy runs."""
        descriptor = self.take()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def kill_holders(self) -> None:
        """Kill the processes of HAProxy that still run."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    if self._is_open_in(entry):
                        os.kill(int(entry.name), signal.SIGKILL)

    def _is_open_in(self, process: Path) -> bool:
        own = self._path.stat()
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.path.samestat(link.stat(), own):
                    return True
        return False


def spawn(arguments: list[str], environment: Mapping[str, str], lock: int) -> int:
    """Start a program that outlives this one; return its process ID.

    A terminal's Ctrl-C does not reach it, and its standard streams are closed.

    Args:
        arguments: the program's path, and its arguments.
        environment: its environment.
        lock: a descriptor that it inherits.
    """
    null = os.devnull
    return os.posix_spawn(
        arguments[0],
        arguments,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, null, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, null, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, lock, lock),  # makes it inheritable
        ],
        setsid=True,
        setsigdef=_IGNORED,
    )
