"""The records of what happened to a reconciler's keys."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.client.request_target import RequestTarget
from listwatch.clock import FakeClock
from listwatch.errors import ConflictError, InvalidError
from listwatch.objects import Object, decode_object
from listwatch.runtime.history import RECORDS_PER_KEY, History, KeyHistory
from listwatch.runtime.reconcile_context import ReconcileContext
from listwatch.runtime.reconcile_record import (
    MAX_BYTES,
    MAX_REQUESTS,
    MAX_WRITTEN,
    RETRY,
    CacheVersion,
    ReconcileRecord,
    SentRequest,
    Trigger,
    words_of,
)
from listwatch.runtime.results import TerminalError, requeue_after
from listwatch.runtime.story import stories_of
from runtime.lagging_world import LaggingWorld
from runtime.reconciler_world import World, widget

TARGET = RequestTarget("example.com", "v1", "widgets", "ns", "a", "")


def history(max_bytes: int = 10**6) -> History:
    return History([], lambda _: None, max_bytes=max_bytes, clock=FakeClock())


def begin(story: History, key: str) -> ReconcileRecord:
    return story.begin(ReconcileContext("test", key, 1, "test-1"), 0.0, 0.0)


def send(record: ReconcileRecord, verb: str, answer: bytes) -> SentRequest:
    sent = SentRequest(verb, TARGET, 0.0)
    record.add_request(sent)
    record.end_request(sent, 1.0, 200, answer)
    return sent


def last(world: World, key: str) -> ReconcileRecord:
    assert world.reconciler.history is not None
    known = world.reconciler.history.of(key)
    assert known is not None
    return known.records[-1]


async def test_a_record_tells_what_woke_the_key_and_what_the_caches_had() -> None:
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    source.add(widget("a"))
    async with world.running():
        listed = last(world, "ns/a")
        assert listed.trigger is not None
        assert (listed.trigger.change, listed.trigger.resource) == ("Listed", "widget")
        source.modify(widget("a", spec={"x": 1}))
        await world.clock.advance(1)
        version = source.objects["ns/a"].resource_version
        updated = last(world, "ns/a")
        assert updated.trigger == Trigger("Updated", "widget", "ns/a", version)
        assert updated.caches == (CacheVersion("widget", version),)
        assert (updated.id, updated.attempt, updated.result) == ("test-2", 1, "success")
        source.delete(source.objects["ns/a"])
        await world.clock.advance(1)
        gone = last(world, "ns/a")
        assert gone.trigger is not None
        assert gone.trigger.change == "Deleted"


async def test_triggers_that_come_while_a_key_waits_are_merged_and_its_wait_is_measured() -> None:
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    for name in "ab":
        source.add(widget(name))
    async with world.running() as reconciler:
        reconciler._work.hold()
        source.modify(widget("b"))
        await world.clock.advance(1)  # the only worker has b, and waits
        for number in range(3):
            source.modify(widget("a", spec={"x": number}))
            await world.clock.advance(1)
        reconciler._work.release()
        await world.clock.advance(0)
        record = last(world, "ns/a")
    assert record.merged == 2
    assert record.trigger is not None
    assert record.newest is not None
    assert record.newest.version == source.objects["ns/a"].resource_version
    assert record.trigger.version < record.newest.version
    assert record.waited == 3


async def test_results_errors_and_the_next_try_are_recorded() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    world.outcomes["ns/a"] = [ValueError("no"), ValueError("no"), requeue_after(30)]
    async with world.running() as reconciler:
        assert reconciler.history is not None
        known = reconciler.history.of("ns/a")
        assert known is not None
        first, second, third = known.records
        assert (first.result, first.error) == ("error", "ValueError: no")
        assert first.place.startswith("reconciler_world.py:")
        assert first.place.endswith("in World.reconcile")
        waits = [record.next_in for record in known.records]
        assert waits == pytest.approx([0.005, 0.01, 30])
        assert (first.attempt, second.attempt, third.attempt) == (1, 2, 3)
        assert second.trigger == RETRY
        assert third.result == "requeue_after"
        assert [record.error for record in reconciler.history.failures] == ["ValueError: no"] * 2
        await world.clock.advance(30)
        assert last(world, "ns/a").trigger == Trigger("Requeue")


async def test_a_terminal_error_has_no_next_try_and_a_change_replaces_a_retry() -> None:
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    source.add(widget("a"))
    world.outcomes["ns/a"] = [requeue_after(900), TerminalError("never")]
    async with world.running():
        source.modify(widget("a", spec={"x": 1}))
        await world.clock.advance(1)
        record = last(world, "ns/a")
    assert (record.result, record.next_in) == ("terminal_error", None)
    assert record.trigger is not None
    assert (record.trigger.change, record.merged) == ("Updated", 0)


async def test_without_history_nothing_is_recorded() -> None:
    world = World(history_bytes=0)
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    async with world.running() as reconciler:
        assert world.calls == ["ns/a"]
        assert reconciler.history is None


async def test_requests_are_recorded_with_both_states_and_own_writes_that_wake_are_seen() -> None:
    world = LaggingWorld()
    world.reconciler.for_("widgets")
    world.source("widgets").add(widget("a", status={"x": 0}))

    @world.reconciler
    async def reconcile(key: str) -> None:
        obj = world.reconciler.get(key)
        if obj is not None and obj["status"]["x"] < 2:
            body = {**obj.to_dict(), "status": {"x": obj["status"]["x"] + 1}}
            path = "/apis/example.com/v1/namespaces/ns/widgets/a"
            await world.http.request("PUT", path, body=json.dumps(body).encode())

    async with world.running() as reconciler:
        await world.clock.advance(5)
        assert reconciler.history is not None
        known = reconciler.history.of("ns/a")
        assert known is not None
        records = list(known.records)
    assert [record.wakes_itself for record in records] == [False, True, True]
    (sent,) = records[1].requests
    assert (sent.verb, sent.target.resource, sent.key, sent.code) == (
        "PUT",
        "widgets.example.com",
        "ns/a",
        200,
    )
    assert sent.before is not None
    assert sent.before["status"]["x"] == 1
    assert json.loads(sent.after)["status"]["x"] == 2
    assert records[2].trigger is not None
    assert sent.version == records[2].trigger.version


async def test_a_refused_request_is_recorded_with_its_code() -> None:
    story = history()
    record = begin(story, "ns/a")
    sent = SentRequest("PUT", TARGET, 0.0)
    record.fail_request(sent, 1.0, ConflictError("changed"))
    assert (sent.code, sent.error) == (409, "ConflictError: changed")


def test_what_a_server_says_of_a_secret_is_not_kept() -> None:
    error = InvalidError('data: "hunter2"', details={"kind": "secrets"})
    assert words_of(error) == "InvalidError for a Secret"


def test_a_record_keeps_a_bounded_number_of_requests_and_bytes() -> None:
    record = begin(history(), "ns/a")
    for _ in range(MAX_REQUESTS + 5):
        send(record, "PUT", b"x" * (MAX_BYTES // 5))
    assert (len(record.requests), record.unkept) == (MAX_REQUESTS, 5)
    assert sum(2 * len(sent.after) for sent in record.requests) <= MAX_BYTES


def test_when_memory_is_short_keys_in_trouble_are_kept_longest() -> None:
    story = history(max_bytes=5000)
    story.end(begin(story, "bad"), 1.0, "error", ValueError("no"))
    for number in range(20):
        story.end(begin(story, f"good-{number}"), 1.0, "success")
    assert story.of("bad") is not None
    assert story.of("good-0") is None
    assert story.of("good-19") is not None
    assert story.troubled() == ["bad"]


def test_one_key_in_trouble_loses_states_before_records() -> None:
    story = history(max_bytes=50_000)
    for _ in range(RECORDS_PER_KEY):
        record = begin(story, "bad")
        send(record, "PUT", b'{"metadata":{"resourceVersion":"7"}}' + b" " * 10_000)
        story.end(record, 1.0, "error", ValueError("no"))
    known = story.of("bad")
    assert known is not None
    assert len(known.records) == RECORDS_PER_KEY
    assert known.records[0].requests[0].after == b""
    assert known.records[0].requests[0].version == "7"


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.booleans(), st.integers(0, 40_000)), max_size=60
    ),
    st.integers(2000, 200_000),
)
def test_the_size_is_that_of_what_is_kept_and_never_over_the_limit(
    runs: list[tuple[str, bool, int]], limit: int
) -> None:
    story = history(max_bytes=limit)
    for key, fails, written in runs:
        record = begin(story, key)
        send(record, "PUT", b"x" * written)
        story.end(record, 1.0, "error" if fails else "success", ValueError() if fails else None)
        kept = [known for key in "abcdef" if (known := story.of(key)) is not None]
        assert story.size == sum(known.size for known in kept)
        for known in kept:
            assert known.size == sum(record.size for record in known.records)
            assert len(known.records) <= RECORDS_PER_KEY
        assert story.size <= limit
        assert len(story) == len(kept)


def test_triggers_of_a_key_that_another_replica_has_are_dropped() -> None:
    story = history()
    story.woken("a", Trigger("Added"))
    story.woken("a", Trigger("Updated"))
    assert story.waking("a") == (Trigger("Added"), 1)
    story.forget("a")
    assert story.waking("a") == (None, 0)


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff" * 100, b'{"metadata":{"name":"a"}}'])
def test_an_answer_without_a_version_has_none(body: bytes) -> None:
    assert send(begin(history(), "a"), "GET", body).version == ""


def big(uid: str = "u") -> Object:
    text = {"kind": "Widget", "metadata": {"name": "a", "uid": uid, "resourceVersion": "1"}}
    return decode_object(json.dumps({**text, "data": "x" * MAX_BYTES}).encode())


@pytest.mark.parametrize("how", ["refused", "too big", "no object", "late"])
def test_a_state_that_no_diff_needs_is_not_kept(how: str) -> None:
    story = history()
    record = begin(story, "ns/a")
    sent = SentRequest("PUT", TARGET, 0.0, before=big())
    record.add_request(sent)
    if how == "late":  # a task of the reconcile goes on after its end
        story.end(record, 1.0, "success")
    size = story.size
    if how == "refused":
        record.fail_request(sent, 1.0, ConflictError("changed"))
    else:
        record.end_request(sent, 1.0, 200, big().json() if how == "too big" else b"{}")
    assert (sent.before, sent.after) == (None, b"")
    assert sent.seconds == 1.0
    if how == "late":
        assert story.size == size == record.size


def test_the_size_counts_both_states_the_caches_the_versions_and_the_errors() -> None:
    caches: list[Any] = [
        SimpleNamespace(read_at=CacheVersion("widgets", str(n))) for n in range(100)
    ]
    story = History(caches, lambda _: None, max_bytes=10**6, clock=FakeClock())
    record = begin(story, "ns/a")
    assert record.size > begin(history(), "ns/a").size + 100 * 80
    before = record.size
    state = decode_object(
        b'{"metadata":{"name":"a","resourceVersion":"1"},"data":"' + b"x" * 9999 + b'"}'
    )
    sent = SentRequest("PUT", TARGET, 0.0, before=state)
    record.add_request(sent)
    record.end_request(sent, 1.0, 200, b'{"metadata":{"name":"a","resourceVersion":"2"}}')
    assert sent.before is state
    assert record.size >= before + 9999
    freed = record.drop_states()
    assert freed >= 9999
    assert record.drop_states() == 0
    before = record.size
    story.end(record, 1.0, "error", ValueError("x" * 400))
    assert record.size >= before + 400


def test_a_reconcile_of_very_many_writes_keeps_the_newest_versions() -> None:
    record = begin(history(), "ns/a")
    for number in range(2 * MAX_WRITTEN):
        send(record, "PUT", b'{"metadata":{"resourceVersion":"%d"}}' % number)
    assert record.written == tuple(str(n) for n in range(MAX_WRITTEN, 2 * MAX_WRITTEN))


def test_while_every_key_fails_making_room_costs_little_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    real = KeyHistory.drop_states

    def counted(self: KeyHistory) -> int:
        nonlocal looked
        looked += 1
        return real(self)

    monkeypatch.setattr(KeyHistory, "drop_states", counted)
    story = history(max_bytes=500_000)
    for number in range(3000):
        story.end(begin(story, f"ns/{number}"), 1.0, "error", ValueError("no"))
    assert 300 < len(story) <= 500
    assert looked < 30 * 3000


def test_the_answer_of_a_subresource_is_no_state_of_its_object() -> None:
    story = history()
    record = begin(story, "ns/a")
    token = b'{"kind":"TokenRequest","metadata":{"name":"a"},"status":{"token":"hunter2"}}'
    sent = SentRequest("POST", TARGET._replace(subresource="token"), 0.0)
    record.add_request(sent)
    record.end_request(sent, 1.0, 201, token)
    written = send(record, "PUT", b'{"metadata":{"name":"a","resourceVersion":"7"}}')
    assert (sent.after, bool(written.after)) == (b"", True)
    assert [each.fields for each in stories_of([record], 1.0, 1.0)[0].requests] == [None, None]


def test_what_a_server_says_of_a_secret_is_not_kept_though_it_does_not_name_the_kind() -> None:
    story = history()
    record = begin(story, "ns/a")
    error = InvalidError('"" is invalid: patch: Invalid value: "hunter2"')
    error.resource = "secrets"
    sent = SentRequest("PATCH", TARGET._replace(plural="secrets"), 0.0)
    record.fail_request(sent, 1.0, error)
    story.end(record, 1.0, "error", error)
    assert (sent.error, record.error) == ("InvalidError for a Secret",) * 2


async def test_the_log_of_a_failed_reconcile_shows_nothing_of_a_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    error = InvalidError('"" is invalid: patch: Invalid value: "hunter2"')
    error.resource = "secrets"
    world.outcomes["ns/a"] = [error]
    async with world.running() as reconciler:
        shown = reconciler.statistics().last_error
    assert shown == "ns/a: InvalidError for a Secret"
    assert shown in caplog.text
    assert "hunter2" not in caplog.text
