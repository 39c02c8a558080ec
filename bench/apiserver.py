"""Measures the embedded API server, over loopback, with the server in a separate process.

Usage: python bench/apiserver.py [--quick]

Goals: 3,000 creates per second by concurrent clients; a list of 10,000 pods of 8.8 KB at 300 MB/s;
an event to 1,000 watches within 100 ms; memory of at most 1.5 times the objects' bytes.
"""

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec

from listwatch.testing.workload import PodGenerator

_SERVE = """
import asyncio
from listwatch.apiserver import EmbeddedAPIServer

async def main():
    async with EmbeddedAPIServer(test_api=True) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
_MAPS = "/api/v1/namespaces/default/configmaps"
_JSON = {"Content-Type": "application/json"}
_PLAIN = {"Accept-Encoding": "identity"}


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[str, int]]:
    """Run a server; yield its URL and its process ID."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    try:
        yield url, process.pid
    finally:
        process.terminate()
        await process.wait()


def cpu_of(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def show(work: str, figure: str, goal: str) -> None:
    """Print one row."""
    print(f"{work:<52} {figure:>28}   goal {goal}", flush=True)


async def post_all(url: str, bodies: list[tuple[str, bytes]], connections: int) -> float:
    """Send all bodies over this many connections; return the seconds it took.

    Uses bare streams: on few cores a whole HTTP client would take more CPU than the server.
    """
    host, _, port = url.removeprefix("http://").rpartition(":")
    waiting = iter(bodies)

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            for path, body in waiting:
                writer.write(
                    b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
                )
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                answer = await reader.readexactly(length)
                assert head.startswith(b"HTTP/1.1 201 "), answer
        finally:
            writer.close()
            await writer.wait_closed()

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(connections)))
    return time.perf_counter() - begun


async def creates(count: int) -> None:
    """Measure creates of small objects by 32 concurrent clients in one process."""
    async with served() as (url, pid):
        bodies = [
            (_MAPS, json.dumps({"metadata": {"name": f"m{i}"}, "data": {"k": "v"}}).encode())
            for i in range(count)
        ]
        await post_all(url, bodies[:200], 32)
        before = cpu_of(pid)
        seconds = await post_all(url, bodies[200:], 32)
        each = (cpu_of(pid) - before) / (count - 200)
    show("creates a second, 32 clients", f"{(count - 200) / seconds:,.0f}", ">= 3,000")
    show("creates a second of server CPU", f"{1 / each:,.0f}", ">= 3,000")


async def lists(count: int) -> None:
    """Measure a list of pods, and the memory that they take."""
    async with served() as (url, pid):
        empty = memory_of(pid)
        generator = PodGenerator(1)
        for namespace in generator.namespaces:
            body = json.dumps({"metadata": {"name": namespace}}).encode()
            await post_all(url, [("/api/v1/namespaces", body)], 1)
        bodies = []
        for number in range(count):
            pod = generator.pod(number)
            path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
            bodies.append((path, msgspec.json.encode(pod)))
        before = cpu_of(pid)
        await post_all(url, bodies, 32)
        each = (cpu_of(pid) - before) / count
        show("creates of pods a second of server CPU", f"{1 / each:,.0f}", "-")
        async with aiohttp.ClientSession() as session:
            size, best = 0, 0.0
            for _ in range(3):
                begun = time.perf_counter()
                async with session.get(f"{url}/api/v1/pods", headers=_PLAIN) as answer:
                    size = 0
                    async for part in answer.content.iter_any():
                        size += len(part)
                best = max(best, size / (time.perf_counter() - begun))
        used = memory_of(pid) - empty
    show(
        f"list of {count:,} pods, {size / count / 1000:.1f} KB each",
        f"{best / 1e6:,.0f} MB/s",
        ">= 300 MB/s",
    )
    show("memory by the objects' bytes", f"{used / size:.2f}", "<= 1.5")


async def fan_out(watches: int) -> None:
    """Measure one change to many watches, until the last one has it."""
    async with served() as (url, pid):
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            arrived: list[float] = []

            async def watch(ready: asyncio.Semaphore) -> None:
                async with session.get(f"{url}{_MAPS}?watch=1&resourceVersion=1") as answer:
                    ready.release()
                    async for _ in answer.content:
                        arrived.append(time.perf_counter())  # noqa: PERF401 - as it comes

            ready = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(watch(ready)) for _ in range(watches)]
            for _ in range(watches):
                await ready.acquire()
            worst = []
            for number in range(10):
                arrived.clear()
                body = json.dumps({"metadata": {"name": f"e{number}"}}).encode()
                before = cpu_of(pid)
                begun = time.perf_counter()
                async with session.post(url + _MAPS, data=body, headers=_JSON) as answer:
                    assert answer.status == 201
                while len(arrived) < watches:  # noqa: ASYNC110 - a thousand wake-ups would count
                    await asyncio.sleep(0.001)
                worst.append((max(arrived) - begun, cpu_of(pid) - before))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    median = sorted(worst)[len(worst) // 2]
    show(
        f"event to {watches:,} watches, all in one client",
        f"{median[0] * 1000:.0f} ms",
        "<= 100 ms",
    )
    show("of it, server CPU", f"{median[1] * 1000:.0f} ms", "-")


async def starts() -> None:
    """Measure the start of a process to its URL; and the start within a process."""
    begun = time.perf_counter()
    async with served():
        show("start as a process", f"{(time.perf_counter() - begun) * 1000:.0f} ms", "<= 600 ms")
    from listwatch.apiserver import EmbeddedAPIServer  # noqa: PLC0415 - timed apart from its import

    best = 1.0
    for _ in range(5):
        begun = time.perf_counter()
        server = EmbeddedAPIServer()
        await server.start()
        best = min(best, time.perf_counter() - begun)
        await server.stop()
    show("start within a process", f"{best * 1000:.1f} ms", "<= 50 ms")


async def main() -> None:
    """Print one row for each figure."""
    quick = "--quick" in sys.argv
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    await starts()
    await creates(1200 if quick else 6200)
    await lists(1000 if quick else 10_000)
    await fan_out(100 if quick else 1000)


if __name__ == "__main__":
    asyncio.run(main())
