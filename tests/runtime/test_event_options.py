"""Events: their subjects, parts, annotations and limits; several sinks; the recorder of tests."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError
from listwatch.objects import Object, decode_object
from listwatch.runtime.event_correlation import EventLimits, ObjectReference
from listwatch.runtime.events import EventRecorder
from listwatch.testing import FakeRecorder

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u"}}
NODE = ObjectReference("v1", "Node", name="n", uid="n-uid")


class Sink:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.created: list[Mapping[str, Any]] = []
        self.patched: list[tuple[Any, ...]] = []

    async def create(self, event: Mapping[str, Any]) -> Object:
        if self.error is not None:
            raise self.error
        self.created.append(event)
        return decode_object(b'{"metadata":{"name":"e"}}')

    async def patch(
        self, api_version: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        self.patched.append((api_version, namespace, name, patch))
        return decode_object(b'{"metadata":{"name":"e"}}')


async def test_a_reference_a_part_and_annotations_reach_the_event() -> None:
    recorder = FakeRecorder("widgets")
    recorder.event(
        POD,
        "Warning",
        "BackOff",
        "crashed",
        field_path="spec.containers{web}",
        related=NODE,
        annotations={"example.com/exit-code": "3"},
    )
    recorder.event(NODE, "Normal", "Drained", "no pods left")
    first, second = recorder.events
    assert first["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "p",
        "uid": "u",
        "fieldPath": "spec.containers{web}",
    }
    assert first["related"]["name"] == "n"
    assert first["metadata"]["annotations"] == {"example.com/exit-code": "3"}
    assert second["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n-uid"}
    assert second["metadata"]["namespace"] == "default"
    assert recorder.lines == ["Warning BackOff crashed", "Normal Drained no pods left"]


@pytest.mark.parametrize(("api", "times"), [("events.k8s.io/v1", 2), ("v1", 3)])
def test_the_recorder_of_tests_counts_and_cuts_like_a_real_one(api: Any, times: int) -> None:
    recorder = FakeRecorder(api=api, limits=EventLimits(spam_burst=3), clock=FakeClock())
    for _ in range(times):
        recorder.event(POD, "Normal", "Pulled", "image")
    (event,) = recorder.events
    assert (event["count"] if api == "v1" else event["series"]["count"]) == times
    for number in range(5):
        recorder.event(POD, "Normal", f"Reason{number}", "more")
    assert recorder.spam == (5 if api == "v1" else 3)


def test_similar_messages_are_combined_from_the_chosen_number_on() -> None:
    recorder = FakeRecorder(api="v1", limits=EventLimits(similar_messages=3), clock=FakeClock())
    for number in range(4):
        recorder.event(POD, "Normal", "Pulled", f"image {number}")
    assert recorder.lines == [
        "Normal Pulled image 0",
        "Normal Pulled image 1",
        "Normal Pulled (combined from similar events): image 3",
    ]


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="spam_burst must be at least 1"):
        EventLimits(spam_burst=0)


async def test_every_sink_gets_every_event_and_one_that_is_away_delays_no_other() -> None:
    clock = FakeClock()
    here, away, there = Sink(), Sink(DisconnectedError("away")), Sink()
    recorder = EventRecorder(here, "widgets", more_sinks=[away, there], clock=clock)
    async with recorder:
        recorder.event(POD, "Normal", "Pulled", "image")
        recorder.event(POD, "Normal", "Started", "web")
        await clock.advance(1)
        for sink in (here, there):
            assert [event["reason"] for event in sink.created] == ["Pulled", "Started"]
        assert recorder.statistics().written == 4
        away.error = None
        await clock.advance(30)
        assert [event["reason"] for event in away.created] == ["Pulled", "Started"]
        await asyncio.wait_for(recorder.flush(), 1)
        assert (recorder.statistics().written, recorder.statistics().queued) == (6, 0)
