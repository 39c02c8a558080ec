"""The programs that follow the server, each through its own fault proxy."""

import asyncio
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

import yaml

from listwatch.testing import FaultProxy
from soak.cluster import LISTWATCH, Cluster
from soak.facts import Facts, Reader, Told

_HERE = Path(__file__).parent
#: The namespace of the mirror's copies.
COPIES = "copies"
#: What `listwatch observe` runs for each change.
_SCRIPT = '#!/bin/sh\necho "$CHANGE $1/$2 $3" >> "$STORY"\n'


class Consumer(ABC):
    """A kind of program: its processes, its proxy, and its story.

    Args:
        name: its name in the table.
        cluster: the server that it follows.
        directory: the directory for its files.
        replicas: the number of its processes.
    """

    def __init__(self, name: str, cluster: Cluster, directory: Path, replicas: int = 1) -> None:
        self.name = name
        self.story = directory / f"{name}.story"
        self.kills = 0
        #: Exit codes of processes that ended by themselves.
        self.ends: list[int] = []
        self.proxy: FaultProxy
        self._cluster = cluster
        self._replicas = replicas
        self._processes: list[asyncio.subprocess.Process] = []
        self._log_file = directory / f"{name}.log"
        self._log = self._log_file.open("ab")
        self.story.touch()

    #: Exit codes with which it may end by itself.
    may_end_with: tuple[int, ...] = ()

    async def __aenter__(self) -> Self:
        self.proxy = await FaultProxy("127.0.0.1", self._cluster.port).__aenter__()
        for _ in range(self._replicas):
            self._processes.append(await self._start())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self.proxy.__aexit__(kind, error, traceback)
        self._log.close()

    @abstractmethod
    def command(self) -> tuple[str, ...]:
        """Return the command to run."""

    def environment(self) -> dict[str, str]:
        """Return its environment variables."""
        return {}

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.command(),
            env={**os.environ, **self.environment()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    async def kill(self, which: int = 0) -> None:
        """Kill one of its processes and start another."""
        process = self._processes.pop(which % self._replicas)
        with suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
        if code != -signal.SIGKILL:
            self.ends.append(code)
        self.kills += 1
        self._processes.append(await self._start())

    def complaints(self) -> list[str]:
        """Return unexpected exit codes and tracebacks."""
        text = self._log_file.read_text(errors="replace")
        return [
            *(
                f"{self.name} ended with exit code {code}"
                for code in self.ends
                if code not in self.may_end_with
            ),
            *(f"{self.name}: a traceback in its log" for _ in range(text.count("Traceback"))),
        ]

    async def start_again(self) -> None:
        """Restart ended processes, as a supervisor would."""
        for process in [each for each in self._processes if each.returncode is not None]:
            self._processes.remove(process)
            assert process.returncode is not None
            self.ends.append(process.returncode)
            self._processes.append(await self._start())

    def resident(self) -> int:
        """Return the resident memory of its first process, in bytes."""
        status = Path(f"/proc/{self._processes[0].pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024


class Teller(Consumer):
    """A program whose story is compared with the facts."""

    def __init__(
        self, name: str, cluster: Cluster, directory: Path, facts: Facts, namespace: str = ""
    ) -> None:
        super().__init__(name, cluster, directory)
        self.namespace = namespace
        self.reader = Reader(facts, repeats_allowed=self.is_restarted)
        self._at = 0

    #: True if it is killed and restarted, so it may repeat changes.
    is_restarted = False

    def end_round(self) -> None:
        """Count undelivered states, and forget the round's list requests, which excuse them."""
        self.reader.end_round(self.namespace, may_skip=self._has_listed())
        self.proxy.request_lines.clear()

    def read(self) -> None:
        """Read on in its story; the facts must have its states already."""
        may_skip = self._has_listed()
        data = self.story.read_bytes()[self._at :]
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.decode().splitlines():
            kind, key, number = line.split(" ")
            if self.namespace and not key.startswith(f"{self.namespace}/"):
                self.reader.mistakes.append(f"{key}: told, though it is elsewhere")
            elif not key.startswith(f"{COPIES}/"):  # not in the facts
                self.reader.read(Told(kind, key, int(number)), may_skip=may_skip)

    def _has_listed(self) -> bool:
        """Return True if its proxy has seen a list request in this round."""
        lines = self.proxy.request_lines
        return len(lines) == lines.maxlen or any(map(_is_list, lines))


def _is_list(request_line: str) -> bool:
    url = urlsplit(request_line.split(" ")[1])
    query = parse_qs(url.query)
    if not url.path.endswith("/configmaps"):
        return False
    # A list of one item only asks for the version.
    return "sendInitialEvents" in query or ("watch" not in query and query.get("limit") != ["1"])


class InformerProgram(Teller):
    """A shared informer that is never restarted, so its memory can be measured."""

    def command(self) -> tuple[str, ...]:
        return (
            sys.executable, str(_HERE / "informer_program.py"), self.proxy.url, str(self.story)
        )  # fmt: skip

    async def cache(self) -> dict[str, int]:
        """Return the content of its cache."""
        file = self.story.with_suffix(".cache")
        file.unlink(missing_ok=True)
        self._processes[0].send_signal(signal.SIGUSR1)
        while not file.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        cached: dict[str, int] = json.loads(file.read_text())
        return cached


class ObserveProgram(Teller):
    """`listwatch observe --state`, which is killed again and again."""

    is_restarted = True
    may_end_with = (1, 4)  # as documented: the first requests failed, or reached no server

    def command(self) -> tuple[str, ...]:
        script = self.story.with_suffix(".sh")
        script.write_text(_SCRIPT)
        script.chmod(0o755)
        return (
            *LISTWATCH, "observe", "configmaps", "-n", self.namespace,
            "--state", str(self.story.with_suffix(".state")), "--parallel", "4",
            "--listen-addr=", "--type-env-var=CHANGE", "--template", "{.data.number}",
            "--delete", str(script), "--", str(script),
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        file = self.story.with_suffix(".kubeconfig")
        context = {"cluster": "soak", "user": "soak"}
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "soak", "cluster": {"server": self.proxy.url}}],
                    "users": [{"name": "soak", "user": {}}],
                    "contexts": [{"name": "soak", "context": context}],
                    "current-context": "soak",
                }
            )
        )
        return {"KUBECONFIG": str(file), "STORY": str(self.story)}


class MirrorProgram(Consumer):
    """Managers that copy one namespace to another; one of them leads."""

    may_end_with = (3,)  # another one leads

    def __init__(
        self, name: str, cluster: Cluster, directory: Path, facts: Facts, source: str
    ) -> None:
        super().__init__(name, cluster, directory, replicas=2)
        self.source = source
        self._facts = facts

    def command(self) -> tuple[str, ...]:
        return (
            sys.executable, str(_HERE / "mirror_program.py"),
            self.proxy.url, self.source, COPIES,
        )  # fmt: skip

    async def missing(self) -> list[str]:
        """Return the differences between the copies and the writes."""
        copies = await self._cluster.listed(COPIES)
        found = {f"{self.source}/{key.partition('/')[2]}": number for key, number in copies.items()}
        return differences("copies", found, self._facts.alive(self.source))


def differences(what: str, found: dict[str, int], expected: dict[str, int]) -> list[str]:
    """Return the differences of two states, by object."""
    return [
        f"{what}: {key}: {found.get(key)} in place of {expected.get(key)}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
