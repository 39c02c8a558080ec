"""Measures `listwatch observe`: a first list of many pods, and commands compared with `xargs`.

    python bench/observe.py [--pods 10000] [--commands 1000]

CPU and memory are those of the observe process alone (and, for commands, of its children). For
comparison: oc 4 took 7.7 s and 983 MB for the same list.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.testing.workload import PodGenerator

LISTWATCH = (sys.executable, "-m", "listwatch.cli")
WRITERS = 8


@contextmanager
def server(directory: Path) -> Iterator[Path]:
    """Run an API server; yield its kubeconfig."""
    kubeconfig = directory / "kubeconfig"
    process = subprocess.Popen(
        [*LISTWATCH, "apiserver", "--kubeconfig", str(kubeconfig)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ")
        yield kubeconfig
    finally:
        process.kill()
        process.communicate()


async def create(kubeconfig: Path, pods: int) -> None:
    """Create this many pods."""
    generator = PodGenerator()
    gate = asyncio.Semaphore(WRITERS)
    async with Client.from_config(load_config(kubeconfig)) as client:
        for name in generator.namespaces:
            body = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}
            await client.create(body)

        async def create_one(number: int) -> None:
            async with gate:
                await client.create(generator.pod(number))

        async with asyncio.TaskGroup() as tasks:
            for number in range(pods):
                tasks.create_task(create_one(number))


def measure(arguments: Sequence[str], kubeconfig: Path) -> tuple[float, float, float]:
    """Run a command; return its seconds, CPU seconds and peak megabytes."""
    began = time.monotonic()
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, env={**os.environ, "KUBECONFIG": str(kubeconfig)}
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    seconds = time.monotonic() - began
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--commands", type=int, default=1_000)
    options = parser.parse_args()
    table = Table(title="listwatch observe")
    for name in ("work", "seconds", "CPU s", "peak MB", "goal"):
        table.add_column(name, justify="left" if name in {"work", "goal"} else "right")
    observe = (*LISTWATCH, "observe", "pods", "-A", "--once")
    with tempfile.TemporaryDirectory() as directory:
        with server(Path(directory)) as kubeconfig:
            asyncio.run(create(kubeconfig, options.commands))
            idle, *_ = measure((*LISTWATCH, "observe", "jobs", "-A", "--once"), kubeconfig)
            seconds, cpu, peak = measure((*observe, "--", "/bin/true"), kubeconfig)
            xargs, xargs_cpu, _ = measure(
                ("sh", "-c", f"seq {options.commands} | xargs -n 1 /bin/true"), kubeconfig
            )
            table.add_row(
                f"{options.commands} commands of /bin/true by xargs",
                f"{xargs:.2f}", f"{xargs_cpu:.2f}", "", "",
            )  # fmt: skip
            table.add_row(
                "the same by observe, its start left out",
                f"{seconds - idle:.2f}", f"{cpu:.2f}", f"{peak:.0f}", "",
            )  # fmt: skip
            more = (seconds - idle - xargs) / options.commands * 1000
            table.add_row("more for each command", f"{more:.2f} ms", "", "", "at most 1.5 ms")
        with server(Path(directory)) as kubeconfig:
            asyncio.run(create(kubeconfig, options.pods))
            seconds, cpu, peak = measure(observe, kubeconfig)
            table.add_row(
                f"--once on {options.pods} pods",
                f"{seconds:.2f}", f"{cpu:.2f}", f"{peak:.0f}", "under 1 CPU s, 150 MB",
            )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
