"""The API server for tests: fast, in a loop, thread or process, and without leftovers."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from listwatch.client.client import Client
from listwatch.errors import (
    ConfigError,
    DisconnectedError,
    ForbiddenError,
    InternalServerError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from listwatch.testing import APIServer, FakeClock, Fault, eventually

TOKENS = 'secret,admin,1,"system:masters"\nother,alice,2\n'


def _object(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def _create(client: Client, *names: str) -> None:
    for name in names:
        await client.create(_object(name))


async def _names(client: Client) -> list[str]:
    return [obj.meta.name for obj in (await client.list("configmaps", "default")).items]


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Check that the body leaves no open files, threads or processes."""

    def count() -> tuple[int, int, int]:
        gc.collect()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        # An event loop's thread pool stays until the loop ends.
        threads = [each for each in threading.enumerate() if not each.name.startswith("asyncio_")]
        return len(os.listdir("/proc/self/fd")), len(threads), len(children)  # noqa: PTH208 - only names

    before = count()
    yield
    assert count() == before


@asynccontextmanager
async def _no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@asynccontextmanager
async def _entered(*, threaded: bool, **options: Any) -> AsyncIterator[APIServer]:
    """Enter the server with `with` or `async with`."""
    if threaded:
        with APIServer(**options) as server:
            yield server
    else:
        async with APIServer(**options) as server:
            yield server


HOMES = pytest.mark.parametrize(
    ("threaded", "process"),
    [(False, False), (True, False), (False, True)],
    ids=["loop", "thread", "process"],
)


@HOMES
async def test_in_each_home_it_serves_is_troubled_and_leaves_nothing(
    threaded: bool, process: bool
) -> None:
    async with _entered(threaded=threaded):
        pass  # loads what stays for the whole process
    with _nothing_left():
        async with (
            _no_task_left(),
            _entered(threaded=threaded, subprocess=process, seed=1) as server,
            server.client() as client,
        ):
            await _create(client, "a")
            first = (await client.get("configmaps", "a", "default")).meta
            server.add_faults(Fault(verb="list", status=500), Fault(verb="list", status=503))
            with pytest.raises(InternalServerError):
                await _names(client)
            assert server.fault_hits == 1
            server.add_faults(Fault(verb="create", drop=True))
            with pytest.raises(DisconnectedError):
                await _create(client, "dropped")
            with pytest.raises(ServiceUnavailableError):
                await _names(client)
            server.add_faults(Fault(status=500, times=0))
            server.clear_faults()
            revision = server.take_snapshot()
            assert revision == int(first.resource_version)
            await _create(client, "b")
            server.fall_behind(revision)
            server.add_faults(Fault(stale=True, verb="list"))
            stale = await client.list("configmaps", "default", resource_version="0")
            assert [obj.meta.name for obj in stale.items] == ["a"]
            server.catch_up()
            server.withhold_bookmarks()
            server.send_bookmarks()
            assert server.cut_watches() == 0
            server.rewind()
            assert await _names(client) == ["a"]
            server.compact()
            with pytest.raises(ValueError, match="no state at revision 1 is kept"):
                server.rewind(1)
            with pytest.raises(LookupError, match="no such control: nothing; there are add-faults"):
                server.control("nothing")


@HOMES
async def test_in_each_home_it_restarts_on_its_port_with_its_objects(
    threaded: bool, process: bool
) -> None:
    async with (
        _entered(threaded=threaded, subprocess=process) as server,
        server.client() as client,
    ):
        await _create(client, "a")
        url = server.url
        async with aiohttp.request("GET", f"{url}/api/v1/pods?watch=1") as watch:
            server.restart(downtime=0.05)
            assert await watch.content.read() == b""  # its end tells that the server has stopped
        assert await eventually(lambda: _names(client), ignoring=DisconnectedError) == ["a"]
        assert server.url == url


@HOMES
async def test_in_each_home_tokens_are_asked_for(threaded: bool, process: bool) -> None:
    async with _entered(threaded=threaded, subprocess=process, tokens=TOKENS) as server:
        async with server.client() as client:
            await _create(client, "a")
        async with server.client(token="other") as client:
            with pytest.raises(ForbiddenError):
                await _names(client)
        async with server.client(token="nobody's") as client:
            with pytest.raises(UnauthorizedError):
                await _names(client)
        assert "secret" in server.kubeconfig()


@HOMES
async def test_in_each_home_it_speaks_https(threaded: bool, process: bool) -> None:
    async with (
        _entered(threaded=threaded, subprocess=process, tls=True) as server,
        server.client() as client,
    ):
        assert server.url.startswith("https://")
        await _create(client, "a")
        replica = server.control("replica") if process else {}
        assert replica.get("url", "https://").startswith("https://")
        server.add_faults(Fault(verb="list", status=503))
        with pytest.raises(ServiceUnavailableError):
            await _names(client)
        assert await _names(client) == ["a"]


@HOMES
async def test_in_each_home_its_data_are_kept(
    threaded: bool, process: bool, tmp_path: Path
) -> None:
    for data, expected in ((tmp_path / "data", []), (str(tmp_path / "data"), ["a"])):
        options: dict[str, Any] = {"subprocess": process, "data": data}
        async with _entered(threaded=threaded, **options) as server, server.client() as client:
            assert [name for name in await _names(client) if name == "a"] == expected
            if not expected:
                await _create(client, "a")


@HOMES
async def test_data_that_can_not_be_used_are_refused_before_it_starts(
    threaded: bool, process: bool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.write_text("something else")
    with _nothing_left(), pytest.raises(ConfigError, match=r"data can't be used"):
        async with _entered(threaded=threaded, subprocess=process, data=data):
            pass
    assert data.read_text() == "something else"


def test_it_is_used_without_asyncio_too() -> None:
    with (
        APIServer(subprocess=True) as server,
        pytest.raises(RuntimeError, match="in a separate process"),
    ):
        _ = server.embedded
    with APIServer() as server:
        assert server.embedded.url == server.url
        with pytest.raises(RuntimeError, match="is already running"):
            server.__enter__()
    with pytest.raises(RuntimeError, match="is not running: use it in a `with` statement"):
        server.compact()
    with pytest.raises(RuntimeError, match="never ran"):
        _ = APIServer().url


def _seconds(function: Callable[[], object]) -> float:
    begun = time.process_time()
    function()
    return time.process_time() - begun


def test_it_starts_and_stops_in_no_time() -> None:
    """It waits for no time-out, and the best of ten times of the processor is 50 ms at most.

    The time of other programs does not count.
    """
    starts, stops = [], []
    for _ in range(10):
        server = APIServer(clock=FakeClock())
        starts.append(_seconds(server.__enter__))
        stops.append(_seconds(lambda server=server: server.__exit__(None, None, None)))  # type: ignore[misc]  # bound early
    assert min(starts) <= 0.05
    assert min(stops) <= 0.05


async def test_fifty_at_once_are_fifty_servers() -> None:
    async with APIServer():
        pass
    with _nothing_left():
        async with _no_task_left():
            servers = [APIServer() for _ in range(50)]
            for number, server in enumerate(servers):
                if number % 2:
                    await server.__aenter__()
                else:
                    server.__enter__()
            try:
                for number, server in enumerate(servers):
                    async with server.client() as client:
                        await _create(client, f"m{number}")
                for number, server in enumerate(servers):
                    async with server.client() as client:
                        assert await _names(client) == [f"m{number}"]
            finally:
                for number, server in enumerate(servers):
                    if number % 2:
                        await server.__aexit__(None, None, None)
                    else:
                        server.__exit__(None, None, None)


async def test_open_watches_do_not_hold_up_its_end() -> None:
    with _nothing_left():
        async with aiohttp.ClientSession() as session:
            with APIServer(clock=FakeClock()) as server:  # its end waits for no time-out
                url = f"{server.url}/api/v1/pods?watch=1"
                watches = [await session.get(url) for _ in range(20)]
            for watch in watches:
                assert await watch.content.read() == b""


def test_a_process_ends_with_the_one_that_started_it() -> None:
    program = (
        "import os; from listwatch.testing import APIServer\n"
        "server = APIServer(subprocess=True).__enter__()\n"
        "print(server._home._process.pid, flush=True)\n"
        "os._exit(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    number = int(done.stdout)
    deadline = time.monotonic() + 20
    try:
        while Path(f"/proc/{number}").exists() and _is_alive(number):
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.01)
    finally:
        if Path(f"/proc/{number}").exists():
            os.kill(number, signal.SIGKILL)


def _is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


FORKING = """
import os, sys
from listwatch.testing import APIServer

with APIServer(subprocess=True) as server:
    child = os.fork()
    if not child:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    server.cut_watches()  # it answers
    print("serves")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_does_not_end_the_server() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert ended.stdout.split() == ["3", "serves"]
