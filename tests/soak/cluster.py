"""The API server's process, and its writers."""

import asyncio
import json
import random
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from soak.facts import GONE, Facts

LISTWATCH = (sys.executable, "-m", "listwatch.cli")
#: Characters of padding in each object, so that memory counts.
PADDING = 1000


class Cluster:
    """A server that keeps its objects in a file, and a bare HTTP session.

    `async with` starts and stops it. Requests are sent with `aiohttp`, and with nothing of the
    package.
    """

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.port = 0
        self.kills = 0
        self.compactions = 0
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        if self._process is not None:
            self._process.terminate()
            await self._process.wait()

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *LISTWATCH, "apiserver", "--test-api", "--until-end-of-input",
            "--data", str(self.data), "--port", str(self.port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        if not line.startswith("listening on "):
            raise SystemExit(f"the API server said {line!r}")
        self.port = int(line.rpartition(":")[2])

    async def kill(self, downtime: float) -> None:
        """Kill the server, and restart it after `downtime` seconds."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self.kills += 1
        await asyncio.sleep(downtime)
        await self._start()

    async def compact(self) -> None:
        """Make the server forget its history."""
        status, _ = await self.ask("POST", "/-/compact", {})
        assert status == 200
        self.compactions += 1

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status and the decoded response."""
        async with self._session.request(
            method, f"http://127.0.0.1:{self.port}{path}", json=body
        ) as response:
            return response.status, await response.json()

    async def listed(self, namespace: str = "") -> dict[str, int]:
        """Return the numbers of the listed objects, by key."""
        within = f"/namespaces/{namespace}" if namespace else ""
        status, answer = await self.ask("GET", f"/api/v1{within}/configmaps")
        assert status == 200, answer
        return dict(map(_key_and_number, answer["items"]))

    def journaled(self) -> dict[str, int]:
        """Return the numbers in the file of a stopped server, by key."""
        with sqlite3.connect(f"file:{self.data}?mode=ro", uri=True) as file:
            rows = file.execute("SELECT data FROM objects WHERE bucket LIKE '%configmaps'")
            return dict(_key_and_number(json.loads(data)) for (data,) in rows)


def _key_and_number(obj: Any) -> tuple[str, int]:
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}", int(obj["data"]["number"])


class Numbers:
    """Numbers for the writes of all writers."""

    def __init__(self) -> None:
        self._last = GONE

    def next(self) -> int:
        self._last += 1
        return self._last


class Writer:
    """Creates, changes and deletes objects of a namespace, as its only writer.

    After a write without an answer, it reads the object once the server is back.
    """

    def __init__(
        self, cluster: Cluster, facts: Facts, numbers: Numbers, namespace: str, objects: int
    ) -> None:
        self.namespace = namespace
        self.unanswered = 0
        self._cluster = cluster
        self._facts = facts
        self._numbers = numbers
        self._objects = objects
        self._chance = random.Random(namespace)

    async def run(self, stop: asyncio.Event, pause: float) -> None:
        """Write until `stop` is set, on average every `pause` seconds."""
        await self._until_there()
        while not stop.is_set():
            await self._write(f"m{self._chance.randrange(self._objects)}")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._chance.uniform(0, 2 * pause))

    async def _until_there(self) -> None:
        await self._answered("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})

    async def _write(self, name: str) -> None:
        key = f"{self.namespace}/{name}"
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        is_there = self._facts.number(key) != GONE
        if is_there and self._chance.random() < 0.2:
            number, method, path, body = GONE, "DELETE", f"{path}/{name}", None
        else:
            number = self._numbers.next()
            text = "".join(self._chance.choices('äöü☕abcdef\\"\n', k=PADDING))
            body = {
                "metadata": {"name": name},
                "data": {"number": str(number), "padding": text},
            }
            method, path = ("PUT", f"{path}/{name}") if is_there else ("POST", path)
        try:
            status, answer = await self._cluster.ask(method, path, body)
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.unanswered += 1
            if not await self._is_done(key, name, number):
                return
        else:
            assert status in {200, 201}, (method, path, answer)
        self._facts.wrote(key, number)

    async def _is_done(self, key: str, name: str, number: int) -> bool:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}"
        status, answer = await self._answered("GET", path)
        found = GONE if status == 404 else _key_and_number(answer)[1]
        assert found in {number, self._facts.number(key)}, (key, found, number)
        return found == number

    async def _answered(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        while True:
            try:
                return await self._cluster.ask(method, path, body)
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.1)
