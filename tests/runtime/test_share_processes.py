"""Two real processes share keys on the embedded API server, under faults."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.testing.waiting import eventually
from runtime.candidates import candidate

PROGRAM = Path(__file__).with_name("share_program.py")


async def acts(client: Client) -> list[dict[str, str]]:
    """Return every act in the server's order."""
    found = (await client.list("configmaps", "default")).items
    ordered = sorted(found, key=lambda obj: int(obj.resource_version))
    return [dict(obj["data"]) for obj in ordered if "data" in obj and "step" in obj["data"]]


async def until(condition: Callable[[list[dict[str, str]]], object], client: Client) -> None:
    async def holds() -> bool:
        found = await acts(client)
        assert condition(found), f"after {len(found)} acts: {shares(found)}"
        return True

    await eventually(holds, seconds=45)


def shares(found: list[dict[str, str]], last: int = 80) -> dict[str, set[str]]:
    """Return the keys that each process has worked on recently."""
    recent: dict[str, set[str]] = {}
    for act in found[-last:]:
        recent.setdefault(act["process"], set()).add(act["key"])
    return recent


def both_work(found: list[dict[str, str]]) -> bool:
    recent = shares(found)
    keys = [key for share in recent.values() for key in share]
    return len(recent) == 2 and len(keys) == len(set(keys)) == 16


def only(process: str) -> Callable[[list[dict[str, str]]], bool]:
    return lambda found: shares(found) == {process: {f"key-{number}" for number in range(16)}}


def violations(found: list[dict[str, str]]) -> list[str]:
    """Return acts of members on a key after another member began on it."""
    wrong = []
    for key in {act["key"] for act in found}:
        holder, superseded = "", set()
        for act in (act for act in found if act["key"] == key):
            member = act["member"]
            if member in superseded:
                wrong.append(f"{member} on {key} after {holder} had begun")
            if act["step"] == "begin":
                if holder:
                    superseded.add(holder)  # it never ended its work: it was killed or paused
                holder = member
            elif member == holder:
                holder = ""
    return wrong


def test_an_act_after_another_members_beginning_would_be_found() -> None:
    story = [("a", "begin"), ("b", "begin"), ("a", "end"), ("b", "end")]
    found = [{"key": "k", "member": member, "step": step} for member, step in story]
    assert violations(found) == ["a on k after b had begun"]


@pytest.mark.timeout(180)
@pytest.mark.proof
async def test_two_processes_never_work_on_one_key_at_once(
    server: EmbeddedAPIServer, client: Client
) -> None:
    """One joins and is paused beyond its lease; the server restarts; the other is killed."""
    async with candidate(PROGRAM, server, "a") as first:
        await until(only("a"), client)
        async with candidate(PROGRAM, server, "b") as second:
            await until(both_work, client)
            second.send(signal.SIGSTOP)
            await until(only("a"), client)
            second.send(signal.SIGCONT)
            await until(both_work, client)
            await server.restart(downtime=2.5)
            seen = len(await acts(client))
            await until(lambda found: len(found) > seen + 80 and both_work(found), client)
            first.send(signal.SIGKILL)
            await until(only("b"), client)
            second.send(signal.SIGTERM)
            assert await second.process.wait() == 0
    assert violations(await acts(client)) == []
