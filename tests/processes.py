"""The API server and the command line as separate processes, for tests."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LISTWATCH = (sys.executable, "-m", "listwatch")


class Running:
    """A process whose output is collected line by line while it runs."""

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*LISTWATCH, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=self._collect, args=(stream, into))
            for stream, into in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _collect(stream: IO[str] | None, into: list[str]) -> None:
        assert stream is not None
        into.extend(line.rstrip("\n") for line in stream)

    def until(self, condition: Callable[[], bool], seconds: float = 45) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"never came true: {self.out} {self.err}"
            if self.process.poll() is not None:
                self.wait()
                assert condition(), f"it ended: {self.process.returncode} {self.out} {self.err}"
                return
            time.sleep(0.01)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self, seconds: float = 45) -> int:
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(seconds)
        return code


@contextmanager
def running(*arguments: str, **env: str) -> Iterator[Running]:
    """Run a command until the body ends or fails, and then kill it."""
    state = Running(arguments, env)
    try:
        yield state
    finally:
        state.process.kill()
        state.wait()
        for stream in (state.process.stdout, state.process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def api_server(directory: Path, *arguments: str) -> Iterator[Path]:
    """Run an API server and yield its kubeconfig."""
    kubeconfig = directory / "kubeconfig"
    with running("apiserver", "--kubeconfig", str(kubeconfig), *arguments) as server:
        server.until(lambda: any(line.startswith("listening on ") for line in server.out))
        yield kubeconfig
        assert server.stop() == 0, server.err
        assert server.err == []


def listwatch(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*LISTWATCH, *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **env},
    )
