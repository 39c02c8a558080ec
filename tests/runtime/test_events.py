import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.errors import (
    DisconnectedError,
    ForbiddenError,
    ListWatchError,
    NotFoundError,
)
from listwatch.objects import Object
from listwatch.runtime.event_bodies import reference
from listwatch.runtime.event_correlation import (
    COMBINED,
    CoreCorrelator,
    Count,
    Create,
    Drop,
    ObjectReference,
    Occurrence,
    SeriesCorrelator,
    SpamFilter,
    WrittenEvent,
)
from listwatch.runtime.events import QUEUE_LIMIT, EventRecorder
from listwatch.runtime.key_limits import Lru

POD = Object.from_dict(
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "ns", "name": "web", "uid": "u1", "resourceVersion": "7"},
    }
)


class FakeEvents:
    """In-memory events; the next writes raise `errors` in turn."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.errors: list[Exception] = []
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)

    async def create(self, event: Mapping[str, Any]) -> Object:
        self._fail()
        assert event["metadata"]["name"] not in self.events
        self.events[event["metadata"]["name"]] = dict(event)
        return Object.from_dict(event)

    async def patch(
        self, api_version: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        self._fail()
        if name not in self.events:
            raise NotFoundError("gone")
        event = self.events[name]
        assert (event["apiVersion"], event["metadata"]["namespace"]) == (api_version, namespace)
        event.update(patch)
        return Object.from_dict(event)

    @property
    def all(self) -> list[dict[str, Any]]:
        return list(self.events.values())


def make(clock: FakeClock, client: FakeEvents, **options: Any) -> EventRecorder:
    return EventRecorder(client, "example.com/widgets", instance="host-1", clock=clock, **options)


async def test_an_event_has_every_field_that_the_new_api_asks_for() -> None:
    clock, client = FakeClock(), FakeEvents()
    async with make(clock, client) as recorder:
        recorder.event(POD, "Normal", "Scaled", "to 3", action="Scale", related=POD)
        await clock.settle()
    (event,) = client.all
    regarding = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "web",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert event.pop("metadata") == {"name": next(iter(client.events)), "namespace": "ns"}
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "type": "Normal",
        "reason": "Scaled",
        "action": "Scale",
        "note": "to 3",
        "regarding": regarding,
        "related": regarding,
        "reportingController": "example.com/widgets",
        "reportingInstance": "host-1",
        "eventTime": "2023-11-14T22:13:20.000000Z",
    }


async def test_an_event_in_the_old_api_carries_source_times_and_count() -> None:
    clock, client = FakeClock(), FakeEvents()
    async with make(clock, client, api="v1") as recorder:
        recorder.event(POD, "Warning", "Failed", "no disk")
        await clock.settle()
    (event,) = client.all
    assert event["source"] == {"component": "example.com/widgets", "host": "host-1"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2023-11-14T22:13:20Z"
    assert (event["count"], event["message"]) == (1, "no disk")
    assert event["involvedObject"]["uid"] == "u1"


async def test_an_event_about_a_cluster_scoped_object_goes_to_the_default_namespace() -> None:
    clock, client = FakeClock(), FakeEvents()
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    async with make(clock, client) as recorder:
        recorder.event(node, "Normal", "Ready", "is ready")
        await clock.settle()
    assert client.all[0]["metadata"]["namespace"] == "default"


async def test_repetitions_in_the_old_api_are_counted_on_the_first_event() -> None:
    clock, client = FakeClock(), FakeEvents()
    async with make(clock, client, api="v1") as recorder:
        for _ in range(5):
            recorder.event(POD, "Warning", "Failed", "no disk")
            await clock.advance(10)
    (event,) = client.all
    assert (event["count"], event["lastTimestamp"]) == (5, "2023-11-14T22:14:00Z")


async def test_a_series_is_written_at_its_second_event_then_every_half_hour_and_at_its_end() -> (
    None
):
    clock, client = FakeClock(), FakeEvents()
    async with make(clock, client) as recorder:
        recorder.event(POD, "Warning", "Failed", "no disk 0")
        await clock.advance(60)
        assert "series" not in client.all[0]
        recorder.event(POD, "Warning", "Failed", "no disk 1")
        await clock.advance(60)
        assert client.all[0]["series"]["count"] == 2
        for number in range(2, 10):
            recorder.event(POD, "Warning", "Failed", f"no disk {number}")
            await clock.advance(60)
        assert client.all[0]["series"]["count"] == 2
        assert recorder.statistics().counted == 8
        await clock.advance(420)  # six quiet minutes end it
        assert client.all[0]["series"]["count"] == 10
        assert recorder.statistics().remembered == 0
    assert len(client.events) == 1


async def test_a_series_that_goes_on_is_refreshed_after_half_an_hour() -> None:
    clock, client = FakeClock(), FakeEvents()
    async with make(clock, client) as recorder:
        for _ in range(36):
            recorder.event(POD, "Warning", "Failed", "no disk")
            await clock.advance(60)
        assert client.all[0]["series"]["count"] >= 30
        assert client.calls == 3


async def test_a_repetition_of_an_event_that_has_expired_on_the_server_is_written_anew() -> None:
    clock, client = FakeClock(), FakeEvents()
    async with make(clock, client, api="v1") as recorder:
        recorder.event(POD, "Warning", "Failed", "no disk")
        await clock.settle()
        client.events.clear()
        recorder.event(POD, "Warning", "Failed", "no disk")
        await clock.settle()
    assert [event["count"] for event in client.all] == [1]


async def test_a_server_that_is_away_is_tried_every_ten_seconds_and_then_given_up() -> None:
    clock, client = FakeClock(), FakeEvents()
    client.errors = [DisconnectedError("away")] * 13
    async with make(clock, client) as recorder:
        recorder.event(POD, "Normal", "One", "first")
        await clock.advance(105)
        assert client.calls == 11
        await clock.advance(10)
        assert client.calls == 12
        assert recorder.statistics().failed == 1
        recorder.event(POD, "Normal", "Two", "second")
        await clock.advance(30)
        assert [event["reason"] for event in client.all] == ["Two"]


async def test_an_event_that_is_refused_is_not_tried_again() -> None:
    clock, client = FakeClock(), FakeEvents()
    client.errors = [ForbiddenError("namespace is being terminated")]
    async with make(clock, client) as recorder:
        recorder.event(POD, "Normal", "One", "first")
        await clock.advance(60)
        assert (client.calls, recorder.statistics().failed) == (1, 1)


async def test_reporting_never_waits_and_drops_what_overflows() -> None:
    clock, client = FakeClock(), FakeEvents()
    recorder = make(clock, client)  # not running
    for number in range(QUEUE_LIMIT + 5):
        recorder.event(POD, "Normal", f"Reason{number}", "x")
    statistics = recorder.statistics()
    assert (statistics.queued, statistics.overflowed) == (QUEUE_LIMIT, 5)


async def test_events_may_be_reported_from_another_thread() -> None:
    clock, client = FakeClock(), FakeEvents()
    async with make(clock, client) as recorder:
        thread = threading.Thread(target=recorder.event, args=(POD, "Normal", "Far", "away"))
        thread.start()
        await asyncio.to_thread(thread.join)
        await recorder.flush()
    assert [event["reason"] for event in client.all] == ["Far"]


async def test_leaving_writes_what_waits_but_not_for_ever() -> None:
    clock, client = FakeClock(), FakeEvents()
    client.errors = [DisconnectedError("away")] * 100

    async def use() -> None:
        async with make(clock, client) as recorder:
            recorder.event(POD, "Normal", "One", "first")

    task = asyncio.ensure_future(use())
    await clock.advance(2.1)
    assert task.done()
    await task


@pytest.mark.parametrize(("kind", "reason"), [("Normal", ""), ("Error", "Failed"), ("", "Failed")])
def test_a_wrong_type_or_no_reason_is_a_mistake_of_the_caller(kind: Any, reason: str) -> None:
    recorder = make(FakeClock(), FakeEvents())
    with pytest.raises(ValueError, match="needs a reason and the type"):
        recorder.event(POD, kind, reason, "x")


def test_an_object_without_kind_can_not_be_referred_to() -> None:
    with pytest.raises(ListWatchError, match=r"apiVersion, kind and metadata\.name"):
        reference({"metadata": {"name": "x"}})


async def test_long_texts_and_names_are_cut_to_what_a_server_takes() -> None:
    clock, client = FakeClock(), FakeEvents()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x" * 253, "namespace": "n"}}
    async with make(clock, client) as recorder:
        recorder.event(pod, "Normal", "R" * 200, "m" * 5000)
        await clock.settle()
    (event,) = client.all
    assert (len(event["reason"]), len(event["note"])) == (128, 1024)
    assert len(event["metadata"]["name"]) == 253


def occurrence(message: str, at: float, name: str = "web") -> Occurrence:
    return Occurrence(ObjectReference(name=name), "Normal", "Tried", message, at=at)


def test_the_tenth_different_message_within_ten_minutes_is_combined() -> None:
    correlator = CoreCorrelator()
    messages = []
    for number in range(12):
        decision = correlator.decide(occurrence(f"try {number}", number))
        assert isinstance(decision, Create | Count)
        if isinstance(decision, Create):
            correlator.wrote(decision.key, WrittenEvent("", str(number), 1, 0, 0))
        assert decision.occurrence is not None
        messages.append((type(decision), decision.occurrence.message))
    assert messages[:9] == [(Create, f"try {number}") for number in range(9)]
    assert messages[9] == (Create, COMBINED + "try 9")
    assert messages[10:] == [(Count, COMBINED + "try 10"), (Count, COMBINED + "try 11")]


def test_different_messages_far_apart_are_not_combined() -> None:
    correlator = CoreCorrelator()
    for number in range(30):
        decision = correlator.decide(occurrence(f"try {number}", number * 601))
        assert isinstance(decision, Create)
        assert decision.occurrence.message == f"try {number}"


@given(st.lists(st.floats(0, 2000), min_size=1, max_size=120))
def test_the_spam_filter_lets_25_and_one_more_in_five_minutes_through(gaps: list[float]) -> None:
    spam, at, tokens = SpamFilter(), 0.0, 25.0
    for gap in gaps:
        at += gap
        tokens = min(25.0, tokens + gap / 300)
        if abs(tokens - 1) < 1e-9:
            return
        assert spam.accepts(occurrence("x", at)) == (tokens >= 1)
        tokens -= tokens >= 1


def test_a_flood_about_one_object_leaves_the_others_alone() -> None:
    correlator = SeriesCorrelator()
    dropped = [
        correlator.decide(
            Occurrence(ObjectReference(name="web"), "Normal", f"R{number}", "", at=0.0)
        )
        for number in range(30)
    ]
    assert dropped[25:] == [Drop(spam=True)] * 5
    assert isinstance(correlator.decide(occurrence("x", 0.0, "other")), Create)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_the_bounded_memory_keeps_what_was_used_last(steps: list[tuple[bool, int]]) -> None:
    memory: Lru[int, int] = Lru(4)
    model: list[int] = []
    for put, key in steps:
        if put:
            memory.put(key, key)
        assert memory.get(key) == (key if put or key in model else None)
        if put or key in model:
            model = [*(k for k in model if k != key), key][-4:]
        assert [k for k, _ in memory.items()] == model
