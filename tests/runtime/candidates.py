"""Processes that contend for leases on an API server."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from listwatch.apiserver.server import EmbeddedAPIServer


class Candidate:
    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def candidate(
    program: Path, server: EmbeddedAPIServer, name: str
) -> AsyncIterator[Candidate]:
    process = await asyncio.create_subprocess_exec(sys.executable, program, server.url, name)
    try:
        yield Candidate(name, process)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        await process.wait()
