"""Measures what starting costs: CPU of whole processes, as a multiple of `import aiohttp`.

Usage: python bench/start_up.py [--runs 11]

Goals: at most 1.3 times the CPU of `import aiohttp`, and 0.5 times where aiohttp is not needed.
The programs run in turn, so that other work on the machine slows all of them; medians count.
Bytecode is cached, as after an installation.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_OBSERVE = ["-m", "listwatch", "observe", "configmaps", "--once"]
#: Name, arguments of the interpreter, and the goal as a multiple of the first program.
PROGRAMS: Sequence[tuple[str, Sequence[str], float]] = (
    ("import aiohttp", ["-c", "import aiohttp"], 1.0),
    ("import listwatch", ["-c", "import listwatch"], 0.5),
    ("import listwatch.runtime", ["-c", "import listwatch.runtime"], 0.5),
    ("from listwatch import SharedInformer", ["-c", "from listwatch import SharedInformer"], 1.3),
    ("from listwatch.runtime import Manager", ["-c", "from listwatch.runtime import Manager"], 1.3),
    ("listwatch --help", ["-m", "listwatch", "--help"], 0.5),
    ("listwatch observe configmaps --once", _OBSERVE, 1.3),
    ("listwatch apiserver -- true", ["-m", "listwatch", "apiserver", "--", "true"], 1.3),
)


def cpu_of(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run the interpreter and return the CPU time of the process and its children, in seconds.

    Raises:
        ChildProcessError: the program failed.
    """
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, output, os.devnull, os.O_WRONLY, 0) for output in (1, 2)
        ],
    )
    _, status, used = os.wait4(process, 0)
    if status:
        raise ChildProcessError(f"{' '.join(arguments)} failed")
    return used.ru_utime + used.ru_stime


def measure(runs: int, environment: Mapping[str, str]) -> list[float]:
    """Return the median CPU time of each program, in seconds."""
    times: list[list[float]] = [[] for _ in PROGRAMS]
    for _ in range(runs + 1):
        for (_, arguments, _), taken in zip(PROGRAMS, times, strict=True):
            taken.append(cpu_of(arguments, environment))
    return [statistics.median(each[1:]) for each in times]  # the first run writes the bytecode


def main() -> None:
    """Print one row for each program."""
    parser = argparse.ArgumentParser(description="measure what starting costs")
    parser.add_argument("--runs", type=int, default=11, help="runs of each program")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory, "kubeconfig")
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(Path(directory, "bytecode"))
        with subprocess.Popen(
            [sys.executable, "-m", "listwatch", "apiserver", "--kubeconfig", kubeconfig],
            stdout=subprocess.PIPE,
            env=environment,
        ) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()  # it listens
                medians = measure(runs, environment)
            finally:
                server.terminate()
    for (name, _, goal), seconds in zip(PROGRAMS, medians, strict=True):
        share = f"{seconds / medians[0]:.2f} times"
        print(f"{name:<40} {seconds * 1000:>6.0f} ms {share:>12}   goal <= {goal}", flush=True)


if __name__ == "__main__":
    main()
