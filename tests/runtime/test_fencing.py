import asyncio
from typing import Any

import pytest

from listwatch.clock import FakeClock
from listwatch.runtime.fencing import fenced
from listwatch.runtime.leader_election import LeadershipGuard, LeadershipLostError


class FakeHTTP:
    """Answers after some seconds."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.sent: list[str] = []
        self.stream = object()
        self.other = "kept"

    async def request(self, method: str, path: str, *args: Any, **options: Any) -> str:
        del args, options
        self.sent.append(f"{method} {path}")
        await self.clock.sleep(self.seconds)
        return "answer"


class FakeClient:
    def __init__(self, http: FakeHTTP) -> None:
        self.http: Any = http


def make(clock: FakeClock, seconds: float, guard: LeadershipGuard | None) -> tuple[Any, FakeHTTP]:
    http = FakeHTTP(clock, seconds)
    client: Any = FakeClient(http)
    return fenced(client, lambda: guard, clock), http


def guard_for(clock: FakeClock, seconds: float) -> LeadershipGuard:
    guard = LeadershipGuard("a", 0, [clock.now])
    guard.extend([clock.now()], seconds)
    return guard


async def test_a_leader_writes_and_anybody_reads() -> None:
    clock = FakeClock()
    client, http = make(clock, 0, guard_for(clock, 10))
    assert await client.http.request("POST", "/x") == "answer"
    nobody, other = make(clock, 0, None)
    assert await nobody.http.request("GET", "/x") == "answer"
    assert (http.sent, other.sent) == (["POST /x"], ["GET /x"])
    assert nobody.http.other == "kept"
    assert nobody.http.stream is other.stream


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_nobody_writes_without_leadership(method: str) -> None:
    clock = FakeClock()
    client, http = make(clock, 0, None)
    with pytest.raises(LeadershipLostError, match=f"{method} /x refused"):
        await client.http.request(method, "/x")
    ended = guard_for(clock, 10)
    await clock.advance(10)
    client, other = make(clock, 0, ended)
    with pytest.raises(LeadershipLostError, match="a is no leader"):
        await client.http.request(method, "/x")
    assert (http.sent, other.sent) == ([], [])


async def test_a_write_gets_no_more_time_than_the_leadership_has() -> None:
    clock = FakeClock()
    client, http = make(clock, 60, guard_for(clock, 10))
    task = asyncio.ensure_future(client.http.request("PUT", "/x"))
    await clock.advance(9.9)
    assert not task.done()
    await clock.advance(0.2)
    with pytest.raises(LeadershipLostError, match="it may have been carried out"):
        await task
    assert http.sent == ["PUT /x"]


async def test_a_time_out_of_the_request_itself_stays_one() -> None:
    clock = FakeClock()
    client, http = make(clock, 0, guard_for(clock, 10))

    async def slow(*_: Any, **__: Any) -> None:
        raise TimeoutError("no headers within 75 s")

    http.request = slow  # type: ignore[method-assign, assignment]  # this request only
    with pytest.raises(TimeoutError, match="no headers"):
        await client.http.request("PUT", "/x")
