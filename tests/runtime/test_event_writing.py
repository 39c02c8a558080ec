"""Events that the server refuses, does not receive, or can't name."""

import asyncio
import re
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.backoff import EVENT
from listwatch.client.client import Client
from listwatch.clock import FakeClock
from listwatch.errors import (
    AlreadyExistsError,
    ConflictError,
    DisconnectedError,
    ForbiddenError,
    InternalServerError,
    InvalidError,
    NotFoundError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from listwatch.objects import Object
from listwatch.runtime.event_correlation import (
    CoreCorrelator,
    Count,
    Create,
    ObjectReference,
    Occurrence,
    WrittenEvent,
)
from listwatch.runtime.events import (
    ClientEvents,
    EventRecorder,
    component_of,
)
from listwatch.selector import qualified_name_problems, subdomain_problems


def obj(name: str, kind: str = "Pod", namespace: str = "ns") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}"},
    }


class Server:
    """In-memory events; each object's writes get its faults in turn.

    A fault is an error, raised before anything is stored; "lose" stores and then disconnects;
    "hang" never answers.
    """

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.faults: dict[str, list[Exception | str]] = {}
        self.tries: list[str] = []
        self.at_once = self.most_at_once = 0

    async def create(self, event: Mapping[str, Any]) -> Object:
        regarding = event.get("regarding") or event["involvedObject"]
        name = event["metadata"]["name"]
        fault = await self._fault(regarding["name"])
        if name in self.events:
            raise AlreadyExistsError("exists")
        self.events[name] = dict(event)
        if fault == "lose":
            raise DisconnectedError("lost")
        return Object.from_dict(event)

    async def patch(
        self, api_version: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        del api_version, namespace
        if name not in self.events:
            raise NotFoundError("gone")
        event = self.events[name]
        regarding = event.get("regarding") or event["involvedObject"]
        fault = await self._fault(regarding["name"])
        event.update(patch)
        if fault == "lose":
            raise DisconnectedError("lost")
        return Object.from_dict(event)

    async def _fault(self, name: str) -> str:
        self.tries.append(name)
        faults = self.faults.get(name)
        fault = faults.pop(0) if faults else ""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if fault == "hang":
                await asyncio.Event().wait()
        finally:
            self.at_once -= 1
        if isinstance(fault, Exception):
            raise fault
        return fault

    def reasons(self) -> list[str]:
        return sorted(event["reason"] for event in self.events.values())


def make(clock: FakeClock, server: Server, **options: Any) -> EventRecorder:
    return EventRecorder(server, "widgets", instance="host-1", clock=clock, **options)


ANSWERS = [
    ForbiddenError("no"),
    InvalidError("wrong"),
    NotFoundError("no such namespace"),
    ConflictError("changed"),
    TooManyRequestsError("later"),
    InternalServerError("broken"),
    ServiceUnavailableError("away"),
    RuntimeError("a mistake"),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda error: type(error).__name__)
async def test_an_answer_ends_the_tries_and_holds_up_nothing(answer: Exception) -> None:
    clock, server = FakeClock(), Server()
    server.faults["bad"] = [answer] * 50
    async with make(clock, server) as recorder:
        for name in ("bad", "good"):
            recorder.event(obj(name), "Normal", name.title(), "x")
        await clock.settle()
        assert server.reasons() == ["Good"]
        assert (server.tries.count("bad"), recorder.statistics().failed) == (1, 1)


@pytest.mark.parametrize("fault", [DisconnectedError("away"), "hang"], ids=["away", "hangs"])
async def test_events_of_others_do_not_wait_for_an_object_whose_events_never_arrive(
    fault: Exception | str,
) -> None:
    clock, server = FakeClock(), Server()
    server.faults["bad"] = [fault] * 100
    async with make(clock, server) as recorder:
        recorder.event(obj("bad"), "Normal", "Bad", "x")
        for number in range(100):
            recorder.event(obj(f"good-{number}"), "Normal", f"Good{number}", "x")
        await clock.settle()
        assert len(server.events) == 100
        assert server.most_at_once <= 8
        recorder.event(obj("good-1"), "Normal", "Later", "x")
        await clock.settle()
        assert "Later" in server.reasons()
        await clock.advance(600)
        assert server.tries.count("bad") == EVENT.tries
        assert recorder.statistics().queued == 0


async def test_the_events_of_one_object_stay_in_their_order() -> None:
    clock, server = FakeClock(), Server()
    server.faults["web"] = [DisconnectedError("away")] * 2
    async with make(clock, server) as recorder:
        for reason in ("One", "Two", "Three"):
            recorder.event(obj("web"), "Normal", reason, "x")
        await clock.advance(9)
        assert server.events == {}
        await clock.advance(12)
        assert [event["reason"] for event in server.events.values()] == ["One", "Two", "Three"]


@pytest.mark.parametrize("api", ["v1", "events.k8s.io/v1"])
async def test_a_create_whose_answer_was_lost_is_repeated_by_its_name(api: Any) -> None:
    clock, server = FakeClock(), Server()
    server.faults["web"] = ["lose"]
    async with make(clock, server, api=api) as recorder:
        recorder.event(obj("web"), "Normal", "Scaled", "x")
        await clock.advance(11)
        assert (len(server.events), len(server.tries)) == (1, 2)
        assert (recorder.statistics().written, recorder.statistics().failed) == (1, 0)
        recorder.event(obj("web"), "Normal", "Scaled", "x")  # It is remembered.
        await clock.settle()
    (event,) = server.events.values()
    assert event.get("count", event.get("series", {}).get("count")) == 2


async def test_the_end_waits_for_no_lane() -> None:
    clock, server = FakeClock(), Server()
    server.faults["web"] = ["hang"]
    recorder = make(clock, server)
    running = asyncio.ensure_future(recorder.run())
    recorder.event(obj("web"), "Normal", "One", "x")
    recorder.event(obj("web"), "Normal", "Two", "x")
    await clock.settle()
    running.cancel()
    await asyncio.wait({running})
    assert recorder.statistics().queued == 0


# --- Names ---


@given(st.text(max_size=300) | st.sampled_from(["system:node", "a_b", "--x", "Upper", ".", "a..b"]))
def test_every_object_gets_a_name_that_an_event_can_have(name: str) -> None:
    recorder = EventRecorder(Server(), "widgets", instance="h")
    made = [
        # private: public names are random
        recorder._name_for(Occurrence(ObjectReference(name=name), "Normal", "R", "m", time=1e9))
        for _ in range(2)
    ]
    assert made[0] != made[1]
    assert [subdomain_problems(each) for each in made] == [[], []]
    if name and not subdomain_problems(name):
        assert made[0].startswith(name[:200])
    else:
        assert name == "" or str(uuid.UUID(made[0])) == made[0]


@pytest.mark.parametrize("name", ["system:node", "a_b", "--x", "Upper", "x" * 253])
@pytest.mark.parametrize("api", ["v1", "events.k8s.io/v1"])
async def test_a_server_takes_events_about_any_name(
    server: EmbeddedAPIServer, client: Client, name: str, api: Any
) -> None:
    del server
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
    }
    async with EventRecorder(ClientEvents(client), "widgets", api=api) as recorder:
        recorder.event(role, "Normal", "Bound" * 40, "é" * 2000, action="Ünbound" * 40)
        await recorder.flush()
        assert (recorder.statistics().written, recorder.statistics().failed) == (1, 0)
    (event,) = (await client.list("events", "default")).items
    assert event["involvedObject"]["name"] == name
    assert len(event["message"].encode()) <= 1024
    assert len(event["reason"].encode()) <= 128


async def test_half_characters_in_a_message_cost_no_event() -> None:
    clock, server = FakeClock(), Server()
    async with make(clock, server) as recorder:
        recorder.event(obj("web"), "Normal", "Odd", "\ud83d" + "x" * 2000)
        await clock.settle()
    (event,) = server.events.values()
    assert event["note"] == "?" + "x" * 1020 + "..."


@given(st.text(max_size=100))
def test_any_name_of_a_manager_gives_a_component(name: str) -> None:
    component = component_of(name)
    assert qualified_name_problems(component) == []
    assert component == name or qualified_name_problems(name)


@pytest.mark.parametrize("component", ["", "a b", "/x", "a" * 64, "x/"])
def test_a_component_that_no_server_takes_is_refused(component: str) -> None:
    with pytest.raises(ValueError, match="component must name the reporter"):
        EventRecorder(Server(), component)


# --- Counts and the spam filter ---


def told(at: float, message: str = "m") -> Occurrence:
    return Occurrence(ObjectReference(name="web"), "Normal", "R", message, time=at, at=at)


def test_the_count_goes_on_through_what_the_spam_filter_dropped() -> None:
    correlator = CoreCorrelator()
    first = correlator.decide(told(0))
    assert isinstance(first, Create)
    correlator.wrote(first.key, WrittenEvent("ns", "e", 1, 0, 0))
    decisions = [correlator.decide(told(number)) for number in range(1, 100)]
    assert sum(isinstance(each, Count) for each in decisions) == 24
    later = correlator.decide(told(1000))
    assert isinstance(later, Count)
    assert (later.written.count, later.written.last_time) == (101, 1000)


async def test_an_event_whose_first_occurrences_were_dropped_tells_how_often() -> None:
    clock, server = FakeClock(), Server()
    async with make(clock, server, api="v1") as recorder:
        for number in range(25):
            recorder.event(obj("web"), "Normal", f"Other{number}", "x")
        await clock.settle()
        for _ in range(3):
            recorder.event(obj("web"), "Normal", "Late", "x")
        await clock.advance(300)
        assert "Late" not in server.reasons()
        recorder.event(obj("web"), "Normal", "Late", "x")
        await clock.settle()
    (event,) = (event for event in server.events.values() if event["reason"] == "Late")
    assert event["count"] == 4
    assert event["firstTimestamp"] == "2023-11-14T22:13:20Z"
    assert re.fullmatch(r"2023-11-14T22:18:2.Z", event["lastTimestamp"])
