"""Two real processes contend on the embedded API server, under faults."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.testing.waiting import eventually
from runtime.candidates import candidate

PROGRAM = Path(__file__).with_name("leader_program.py")


async def acts(client: Client) -> list[tuple[int, str]]:
    """Return the fencing token and identity of each act, in the server's order."""
    found = (await client.list("configmaps", "default")).items
    ordered = sorted(found, key=lambda obj: int(obj.resource_version))
    data = [obj["data"] for obj in ordered if "data" in obj and "token" in obj["data"]]
    return [(int(each["token"]), each["identity"]) for each in data]


async def until(condition: Callable[[list[tuple[int, str]]], object], client: Client) -> None:
    async def holds() -> object:
        return condition(await acts(client))

    await eventually(holds)


def acting(name: str, since: int) -> Callable[[list[tuple[int, str]]], object]:
    return lambda found: any(who == name for _, who in found[since:])


@pytest.mark.timeout(120)
@pytest.mark.proof
async def test_two_processes_never_act_for_one_lease_at_once(
    server: EmbeddedAPIServer, client: Client
) -> None:
    """Pause a process beyond its lease, restart the server, kill a process, stop the other.

    Each act carries the lease's transition count. In the server's order it never decreases, so
    no process acts after another one has begun to.
    """
    async with candidate(PROGRAM, server, "a") as first:
        await until(acting("a", 0), client)
        async with candidate(PROGRAM, server, "b") as second:
            # Pause the leader for longer than the lease.
            first.send(signal.SIGSTOP)
            await until(acting("b", 0), client)
            first.send(signal.SIGCONT)
            seen = len(await acts(client))
            await until(lambda found: len(found) > seen + 20, client)

            # Stop the server for longer than the lease.
            await server.restart(downtime=2.5)
            seen = len(await acts(client))
            await until(lambda found: len(found) > seen + 20, client)

            # Kill the leader.
            leader = (await acts(client))[-1][1]
            gone, other = (first, second) if leader == "a" else (second, first)
            gone.send(signal.SIGKILL)
            seen = len(await acts(client))
            await until(acting(other.name, seen), client)

            # An orderly stop frees the lease at once.
            other.send(signal.SIGTERM)
            assert await other.process.wait() == 0
    lease = await client.get("leases", "lock", "default")
    assert "holderIdentity" not in lease["spec"]
    tokens = [token for token, _ in await acts(client)]
    assert tokens == sorted(tokens)
    by_token: dict[int, set[str]] = {}
    for token, who in await acts(client):
        by_token.setdefault(token, set()).add(who)
    assert all(len(names) == 1 for names in by_token.values())
    assert len(by_token) >= 3
