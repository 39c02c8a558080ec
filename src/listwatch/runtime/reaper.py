"""Reaps orphans if this process is PID 1, as a container's first process is.

The kernel hands orphaned children to PID 1, which must wait for them or they stay as zombies.
Waiting for *any* child would take the exit codes of the program's own children from the code that
waits for them (OpenShift's `proc.StartReaper` does, and `subprocess` then reports success). So this
reaps only what no other code waits for: a child that has been dead for a while and was not
registered in `ours`.
"""

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from listwatch.clock import Clock

_logger = logging.getLogger(__name__)


class Reaper:
    """Reaps orphans; for the main thread's event loop.

    Args:
        patience: seconds for which a dead child is left to other code that may wait for it.
        ours: process IDs of the program's own children, which it waits for itself; may change at
            any time.
        clock: the time.
    """

    def __init__(
        self, *, patience: float = 5.0, ours: set[int] | None = None, clock: Clock | None = None
    ) -> None:
        self.ours: set[int] = set() if ours is None else ours
        self.reaped = 0
        self._patience = patience
        self._clock = clock or Clock()
        self._dead_since: dict[int, float] = {}

    async def run(self) -> None:
        """Reap until cancelled; return at once if this process is not PID 1."""
        if os.getpid() == 1:
            await self.reap_forever()

    async def reap_forever(self) -> None:
        """Reap until cancelled, whatever this process's PID: for a subreaper."""
        child_died = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, child_died.set)
        try:
            while True:
                wait = self._reap(self._clock.now())
                child_died.clear()
                with contextlib.suppress(TimeoutError):
                    async with self._clock.timeout(wait):
                        await child_died.wait()
                        # One check for all that die about now: a program may start many children.
                        await self._clock.sleep(self._patience / 4)
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)

    def _reap(self, now: float) -> float | None:
        """Reap what is due, and return the seconds until more is; None if nothing is dead."""
        dead = _dead_children() - self.ours
        self._dead_since = {pid: self._dead_since.get(pid, now) for pid in dead}
        for pid, since in list(self._dead_since.items()):
            if now - since >= self._patience:
                del self._dead_since[pid]
                with contextlib.suppress(ChildProcessError):  # another wait has just reaped it
                    _, status = os.waitpid(pid, os.WNOHANG)
                    self.reaped += 1
                    code = os.waitstatus_to_exitcode(status)
                    _logger.debug("reaped orphan %d, exit code %d", pid, code)
        if not self._dead_since:
            return None
        return max(0.0, self._patience - (now - min(self._dead_since.values())))


def _dead_children() -> set[int]:
    own, dead = os.getpid(), set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # it has just gone
        # The command's name, in parentheses, may contain anything.
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state == "Z" and int(parent) == own:
            dead.add(int(entry.name))
    return dead
