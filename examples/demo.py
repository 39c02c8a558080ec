"""The demo, end to end: a changing cluster, observed, and every delivered event checked.

Starts the embedded API server as a separate process, creates and changes pods, and restarts the
server and compacts its history midway, while `listwatch observe` (another process) runs a script
for every addition, change and deletion. At the end it compares the script's log with the changes
made. Exit code 0 if the two agree, 1 if not, 130 if Ctrl-C came before there was anything to
compare.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from listwatch import Client, Object, load_config
from listwatch.testing import (
    Action,
    ActionType,
    Chapter,
    ChapterType,
    Comparison,
    Gap,
    PodWorkload,
    compare,
)

LISTWATCH = (sys.executable, "-m", "listwatch.cli")
WRITERS = 8
LIMIT_SECONDS = 180
#: Appends one line to the log: the type, the namespace, the name, and the template's text.
SCRIPT = '#!/bin/sh\necho "$CHANGE $*" >> "$STORY"\n'
#: The same, but it ignores every object whose name ends in this digit.
FORGETFUL_SCRIPT = '#!/bin/sh\ncase "$2" in *7) ;; *) echo "$CHANGE $*" >> "$STORY" ;; esac\n'
TEMPLATE = "{.metadata.uid} {.metadata.resourceVersion} {.metadata.deletionTimestamp}"

out = Console(highlight=False)


class Cluster:
    """The API server's process, and the changes made to it."""

    def __init__(self, directory: Path) -> None:
        self.kubeconfig = directory / "kubeconfig"
        self.done: list[Chapter] = []
        self._data = directory / "data"
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._client: Client | None = None

    async def start(self) -> None:
        """Start the server, with its earlier data, and wait until it listens."""
        self._process = await asyncio.create_subprocess_exec(
            *LISTWATCH, "apiserver", "--test-api", "--data", str(self._data),
            "--port", str(self._port), "--kubeconfig", str(self.kubeconfig),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is only for this process
        )  # fmt: skip
        address = await self._says("listening on ")
        self._port = int(address.rpartition(":")[2])
        if self._client is None:
            self._client = Client.from_config(load_config(self.kubeconfig))

    async def kill(self) -> None:
        """Kill the server, like a crash."""
        self._server.kill()
        await self._server.wait()

    async def compact(self) -> None:
        """Compact the history, so that an older watch must list again."""
        await self.client.http.request("POST", "/-/compact", body=b"{}")

    async def stop(self) -> None:
        """Stop the server and the connections to it."""
        if self._client is not None:
            await self._client.close()
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    async def _says(self, words: str) -> str:
        line = (await _piped(self._server.stdout).readline()).decode().strip()
        if not line.startswith(words):
            raise SystemExit(f"the API server said {line!r} in place of {words!r}")
        return line.removeprefix(words)

    @property
    def _server(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the API server was not started")
        return self._process

    @property
    def client(self) -> Client:
        """A client of the server."""
        if self._client is None:
            raise RuntimeError("the API server was not started")
        return self._client

    @property
    def version(self) -> int:
        """The version of the last change."""
        return max((change.version for change in self.done), default=0)

    async def carry_out(self, actions: Iterable[Action], *, a_second: float = 0) -> None:
        """Write, several at a time; one object's writes come one after the other."""
        queues: list[asyncio.Queue[Action | None]] = [asyncio.Queue(20) for _ in range(WRITERS)]
        async with asyncio.TaskGroup() as tasks:
            for queue in queues:
                tasks.create_task(self._write_from(queue))
            for action in actions:
                await queues[hash(action.key) % WRITERS].put(action)
                if a_second:
                    await asyncio.sleep(1 / a_second)
            for queue in queues:
                await queue.put(None)

    async def _write_from(self, queue: asyncio.Queue[Action | None]) -> None:
        while (action := await queue.get()) is not None:
            await self._write(action)

    async def _write(self, action: Action) -> None:
        meta = action.body["metadata"]
        if action.type is ActionType.DELETE:
            obj = await self.client.delete(
                "pods", meta["name"], meta["namespace"], grace_period_seconds=0
            )
            kind = ChapterType.DELETED
        elif action.type is ActionType.CREATE:
            obj = await self.client.create(action.body)
            kind = ChapterType.ADDED
        else:
            obj = await self.client.update(action.body)
            kind = ChapterType.UPDATED
        if obj is None:
            raise RuntimeError(f"the server did not tell the version of {action.key}'s deletion")
        self.done.append(Chapter(kind, obj.key, obj.uid, int(obj.resource_version)))


class Observer:
    """The process of `listwatch observe`, and the log that its script writes."""

    def __init__(self, directory: Path, kubeconfig: Path, *, forgetful: bool) -> None:
        self._kubeconfig = kubeconfig
        self._story = directory / "story"
        self._script = directory / "script"
        self._story.touch()
        self._script.write_text(FORGETFUL_SCRIPT if forgetful else SCRIPT)
        self._script.chmod(0o755)
        self.process: asyncio.subprocess.Process
        self.synced = asyncio.Event()
        self.exit_code = -1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Observe while the body runs."""
        script = str(self._script)
        self.process = await asyncio.create_subprocess_exec(
            *LISTWATCH, "observe", "pods", "--all-namespaces", "--parallel", "4",
            "--listen-addr", "", "--type-env-var", "CHANGE", "--template", TEMPLATE,
            "--delete", script, "--", script,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "KUBECONFIG": str(self._kubeconfig), "STORY": str(self._story)},
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._show_a_part())
            tasks.create_task(self._show_complaints())
            try:
                yield
            finally:
                if self.process.returncode is None:
                    self.process.send_signal(signal.SIGCONT)
                    self.process.terminate()
                self.exit_code = await self.process.wait()

    async def wait_until_synced(self) -> None:
        """Wait until a complete list was processed, at its start or since `synced` was cleared."""
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(c) for c in (self.synced.wait(), self.process.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=20)
            for wait in waits:
                wait.cancel()

    async def _show_a_part(self) -> None:
        """Print observe's lines: all at first, then a few per second."""
        allowance, since = 12.0, time.monotonic()
        async for line in _piped(self.process.stdout):
            now = time.monotonic()
            allowance = min(12.0, allowance + 2 * (now - since))
            since = now
            sync_ended = line.endswith(b" Sync ended\n")
            if sync_ended:
                self.synced.set()
            if allowance >= 1 or sync_ended:
                allowance -= 1
                out.print(_readable(line.decode().rstrip()), soft_wrap=True, markup=False)

    async def _show_complaints(self) -> None:
        async for line in _piped(self.process.stderr):
            if not line.startswith(b"warning: without --state"):
                out.print(
                    f"  observe: {line.decode().rstrip()}",
                    style="yellow",
                    markup=False,
                    soft_wrap=True,
                )

    @property
    def length(self) -> int:
        """The size of the log, in bytes."""
        return self._story.stat().st_size

    def told(self) -> list[Chapter]:
        """Return the log so far."""
        lines = self._story.read_text().splitlines()
        return [_parse(line) for line in lines if line.count(" ") == 5]


def _piped(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise RuntimeError("the process was started without a pipe")
    return stream


def _readable(header: str) -> str:
    """Shorten a header line: the script's path and the uid are noise."""
    head, _, command = header.partition("\t")
    words = command.split(" ")
    return f"{head}  {'/'.join(words[1:3])}" if command else head


def _parse(line: str) -> Chapter:
    kind, namespace, name, uid, version, deleting = line.split(" ")
    return Chapter(
        ChapterType(kind), f"{namespace}/{name}", uid, int(version), deleting=bool(deleting)
    )


async def catch_up(cluster: Cluster, observer: Observer, gaps: list[Gap], seconds: float) -> bool:
    """Wait until the log is complete; return whether that was in time."""
    deadline = time.monotonic() + seconds
    length = -1
    while observer.process.returncode is None and time.monotonic() < deadline:
        # Comparing costs more than checking whether the script still writes.
        before, length = length, observer.length
        if (
            before == length
            and not compare(cluster.done, observer.told(), gaps, marked=True).mistakes
        ):
            return True
        await asyncio.sleep(0.2)
    return False


async def trouble(cluster: Cluster, observer: Observer, workload: PodWorkload, count: int) -> Gap:
    """Kill the server during changes, change much unobserved, and compact the history."""
    before = cluster.version
    await cluster.carry_out(workload.changes(count))
    observer.process.send_signal(signal.SIGSTOP)  # so that it can't reconnect before the compaction
    await cluster.kill()
    await cluster.start()
    await cluster.carry_out(workload.changes(count))
    await cluster.compact()
    gap = Gap(before, cluster.version)
    out.print(
        "--- the API server was killed, restarted and changed, and its history compacted ---",
        soft_wrap=True,
    )
    observer.synced.clear()
    observer.process.send_signal(signal.SIGCONT)
    await observer.wait_until_synced()
    return gap


async def run(options: argparse.Namespace, directory: Path) -> int:
    """Run everything and return the exit code."""
    cluster = Cluster(directory)
    try:
        # A whole run takes half a minute; a hanging one must end.
        async with asyncio.timeout(None if options.live else LIMIT_SECONDS):
            await cluster.start()
            return await tell(options, directory, cluster)
    except TimeoutError:
        out.print(f"Not finished after {LIMIT_SECONDS} seconds.", style="bold red")
        return 1
    finally:
        await cluster.stop()


async def tell(options: argparse.Namespace, directory: Path, cluster: Cluster) -> int:
    """Change the cluster while it is observed, compare, and return the exit code."""
    began = time.monotonic()
    workload = PodWorkload(options.pods, seed=options.seed)
    for namespace in workload.generator.namespaces:
        await cluster.client.create(
            {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": namespace}}
        )
    observer = Observer(directory, cluster.kubeconfig, forgetful=options.forgetful)
    creations = list(workload.populate())
    await cluster.carry_out(creations[: options.pods // 3])
    gaps: list[Gap] = []
    async with observer.running():
        await cluster.carry_out(creations[options.pods // 3 :])
        await observer.wait_until_synced()
        tenth = options.changes // 10
        await cluster.carry_out(workload.changes(4 * tenth))
        in_time = options.forgetful or await catch_up(cluster, observer, gaps, 20)
        if in_time:
            gaps.append(await trouble(cluster, observer, workload, tenth // 2))
            await cluster.carry_out(workload.changes(options.changes - 5 * tenth))
            if options.live:
                await live(cluster, workload)
        await catch_up(cluster, observer, gaps, 3 if options.forgetful else 20)
    listed = await cluster.client.list("pods")
    result = compare(cluster.done, observer.told(), gaps, marked=True)
    mistakes = [*result.mistakes, *differences_at_the_end(cluster.done, listed.items)]
    if observer.exit_code != 0:
        mistakes.append(f"observe ended with exit code {observer.exit_code}")
    seconds = time.monotonic() - began
    report(result, cluster.done, mistakes, objects=len(listed.items), seconds=seconds)
    return 1 if mistakes else 0


async def live(cluster: Cluster, workload: PodWorkload) -> None:
    """Continue, with about 20 changes per second, until Ctrl-C."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    out.print("--- live: about 20 changes per second; press Ctrl-C to stop ---")
    while not stop.is_set():
        await cluster.carry_out(workload.changes(20), a_second=20)


def differences_at_the_end(done: Iterable[Chapter], alive: Iterable[Object]) -> list[str]:
    """Compare the server's objects with the changes made, to verify these too."""
    expected: dict[str, tuple[str, int]] = {}
    for change in sorted(done, key=lambda change: change.version):
        if change.type is ChapterType.DELETED:
            del expected[change.key]
        else:
            expected[change.key] = (change.uid, change.version)
    found = {obj.key: (obj.uid, int(obj.resource_version)) for obj in alive}
    return [
        f"{key}: the server has {found.get(key)}, done was {expected.get(key)}"
        for key in sorted(expected.keys() | found.keys())
        if expected.get(key) != found.get(key)
    ]


def report(
    result: Comparison,
    done: Iterable[Chapter],
    mistakes: list[str],
    *,
    objects: int,
    seconds: float,
) -> None:
    """Print what was done, what was delivered, and where they differ."""
    counts = Counter(change.type for change in done)
    table = Table(title="Changes made and delivered", show_header=False)
    for label, value in (
        ("made: additions", counts[ChapterType.ADDED]),
        ("made: updates", counts[ChapterType.UPDATED]),
        ("made: deletions", counts[ChapterType.DELETED]),
        ("delivered: script runs", result.told),
        ("states skipped by the relist after the compaction", result.skipped_updates),
        ("objects created and deleted before that relist", result.skipped_lives),
        ("objects at the end", objects),
        ("mistakes", len(mistakes)),
        ("seconds", f"{seconds:.1f}"),
    ):
        table.add_row(label, str(value))
    out.print(table)
    for mistake in mistakes[:10]:
        out.print(f"MISTAKE {mistake}", markup=False, soft_wrap=True)
    if len(mistakes) > 10:
        out.print(f"… and {len(mistakes) - 10} more")
    verdict = (
        "The delivered changes differ from those made."
        if mistakes
        else ("Every change was delivered: none lost, none invented.")
    )
    out.print(verdict, style="bold red" if mistakes else "bold green")


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--live", action="store_true", help="continue until Ctrl-C")
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--forgetful",
        action="store_true",
        help="use a script that ignores some objects, to see that the check finds it",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="listwatch-demo-") as directory:
        try:
            return asyncio.run(run(options, Path(directory)))
        except KeyboardInterrupt:
            out.print("Stopped before there was anything to compare.")
            return 130


if __name__ == "__main__":
    sys.exit(main())
