"""Runs a command as long as a server: `listwatch apiserver -- COMMAND`."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from listwatch.signal_handlers import ENDING, handling

#: A shell's exit codes for a command that can't be executed, and for a missing one.
NOT_EXECUTABLE, NOT_FOUND = 126, 127


async def run_beside(
    command: Sequence[str], kubeconfig: Path, stack: AsyncExitStack
) -> tuple[int, str]:
    """Run a command to its end with KUBECONFIG set, and forward signals.

    Ctrl-C reaches the command through its terminal, so it is forwarded only if there is none.

    Args:
        command: the program and its arguments; shares the standard streams.
        kubeconfig: the value of KUBECONFIG.
        stack: signals are handled until it ends, so that the caller can clean up.

    Returns:
        The exit code, as a shell's, and why the command did not start; otherwise "".
    """
    process: asyncio.subprocess.Process | None = None
    early: list[signal.Signals] = []

    def hand_on(number: signal.Signals) -> None:
        if process is None:
            early.append(number)
        elif number is not signal.SIGINT or not _is_in_foreground():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    heard = [each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    stack.enter_context(handling(heard, hand_on))
    try:
        process = await asyncio.create_subprocess_exec(*command, env=env)
    except FileNotFoundError:
        return NOT_FOUND, f"{command[0]}: no such command"
    except OSError as error:
        return NOT_EXECUTABLE, f"{command[0]}: {error.strerror}"
    for number in early:
        hand_on(number)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        raise
    return (code if code >= 0 else 128 - code), ""


def _is_in_foreground() -> bool:
    """Return whether a terminal sends its signals to this process, and so to its command."""
    if not hasattr(os, "tcgetpgrp"):  # Windows: a console's interrupt goes to all its programs
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
