import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.discovery import Resource
from listwatch.client.http import Answer
from listwatch.client.reading import Reads
from listwatch.clock import FakeClock
from listwatch.runtime.fencing import fenced
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError


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
    def __init__(self, http: Any) -> None:
        self.http = http

    def through(self, http: Any) -> "FakeClient":
        return FakeClient(http)


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
    with pytest.raises(LeadershipLostError, match="a is not the leader"):
        await client.http.request(method, "/x")
    assert (http.sent, other.sent) == ([], [])


async def test_a_write_gets_no_more_time_than_the_leadership_has() -> None:
    clock = FakeClock()
    client, http = make(clock, 60, guard_for(clock, 10))
    task = asyncio.ensure_future(client.http.request("PUT", "/x"))
    await clock.advance(9.9)
    assert not task.done()
    await clock.advance(0.2)
    with pytest.raises(LeadershipLostError, match="the server may have executed it"):
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


PODS = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)
POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "u"}}

#: Every method that only reads, or sends nothing; all others must be fenced.
READS = {
    "close",
    "from_config",
    "get",
    "list",
    "list_watch",
    "logs",
    "pages",
    "through",
    "wait_for",
    "wait_for_deletion",
}
WRITES: dict[str, Callable[[Client], Awaitable[object]]] = {
    "create": lambda client: client.create(POD, resource=PODS),
    "update": lambda client: client.update(POD, resource=PODS),
    "patch": lambda client: client.patch(PODS, "a", {}),
    "apply": lambda client: client.apply(POD, resource=PODS, field_manager="m"),
    "delete": lambda client: client.delete(PODS, "a"),
    "delete_collection": lambda client: client.delete_collection(PODS, "default"),
    "update_existing": lambda client: client.update_existing(PODS, "a", lambda pod: pod | {"x": 1}),
    "add_finalizer": lambda client: client.add_finalizer(PODS, "a", "example.com/x"),
    "remove_finalizer": lambda client: client.remove_finalizer(PODS, "a", "example.com/x"),
}


class Answering:
    """Answers every request with a pod, and records the writes."""

    config = Config(server="http://127.0.0.1:9")

    def __init__(self, finalizers: list[str]) -> None:
        self.finalizers = finalizers
        self.sent: list[str] = []
        self.stream = object()

    async def request(self, method: str, path: str, *_: Any, **__: Any) -> Answer:
        if method != "GET":
            self.sent.append(f"{method} {path}")
        pod = {**POD, "metadata": {"name": "a", "uid": "u", "finalizers": self.finalizers}}
        return Answer(200, {}, msgspec.json.encode(pod))


def test_every_method_of_a_client_is_known_to_read_or_to_write() -> None:
    own = {*vars(Client), *vars(Reads)}
    methods = {name for name in own if not name.startswith("_")} - {
        "clock",
        "config",
        "discovery",
        "http",
    }
    assert methods == READS | WRITES.keys()


@pytest.mark.parametrize("name", WRITES)
async def test_every_write_of_a_real_client_is_fenced(name: str) -> None:
    http = Answering(["example.com/x"] if name == "remove_finalizer" else [])
    clock = FakeClock()
    plain = Client(http.config, clock=clock).through(http)  # type: ignore[arg-type]  # answers like HTTP
    with pytest.raises(LeadershipLostError, match="this process is not the leader"):
        await WRITES[name](fenced(plain, lambda: None, clock))
    assert http.sent == []
    _ = await WRITES[name](fenced(plain, lambda: guard_for(clock, 10), clock))
    assert len(http.sent) == 1
