"""The endpoints for probes and for people."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from listwatch.local_web import is_loopback
from listwatch.runtime.health import Check, HealthServer, checked
from listwatch.runtime.stacks import stacks


@pytest.fixture
def live() -> dict[str, Check]:
    return {}


@pytest.fixture
async def server(live: dict[str, Check]) -> AsyncIterator[HealthServer]:
    async with HealthServer(tuple, CollectorRegistry(), live_checks=live.values) as server:
        yield server


async def get(server: HealthServer, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(server.url + path) as answer:
        return answer.status, await answer.text()


async def test_a_failed_check_of_healthz_fails_the_probe_and_is_named(
    server: HealthServer, live: dict[str, Check]
) -> None:
    assert await get(server, "/healthz") == (200, "ok\n")
    live["worker"] = Check("worker", True)
    assert await get(server, "/livez") == (200, "[+] worker\nok\n")
    live["worker"] = Check("worker", False, "stuck for 90 s")
    assert await get(server, "/healthz") == (503, "[-] worker: stuck for 90 s\nnot ok\n")
    assert await get(server, "/readyz") == (200, "ready\n")


def test_a_check_that_raises_has_failed() -> None:
    def database() -> Check:
        raise OSError("no\nroute")

    assert checked(database) == Check("database", False, r"OSError: no\nroute")


async def test_the_stacks_show_what_each_task_awaits_and_each_thread_does(
    server: HealthServer,
) -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    task = asyncio.create_task(outer(), name="reconcile ns/a\x1b[2J")
    await asyncio.sleep(0)
    status, text = await get(server, "/debug/stacks")
    assert status == 200
    of_task = text.partition(r"task reconcile ns/a\x1b[2J (")[2].partition("\n\n")[0]
    assert [part in of_task for part in ("outer", "in inner", "in wait")] == [True] * 3
    assert "thread MainThread" in text
    task.cancel()
    await asyncio.wait({task})


async def test_the_stacks_survive_awaitables_of_any_kind() -> None:
    class Odd:
        def __await__(self) -> Iterator[None]:
            return iter([None, None])

    async def odd() -> None:
        await Odd()  # type: ignore[misc]  # no generator, and yet awaitable

    task = asyncio.create_task(odd(), name="odd")
    await asyncio.sleep(0)
    assert "task odd (" in stacks()
    await task


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.9", True),
        ("10.0.0.7", False),
        ("fe80::1%eth0", False),
        ("", False),
        (None, False),
    ],
)
def test_the_stacks_are_for_clients_on_loopback_only(peer: str | None, allowed: bool) -> None:
    assert is_loopback(peer) is allowed
