"""Why a key is not done: answers from states, and states from running reconcilers."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.runtime.key_state import KeyStates, Leadership
from listwatch.runtime.reconcile_record import Trigger
from listwatch.runtime.results import Result, TerminalError, requeue_after
from listwatch.runtime.story import CacheStory, ReconcileStory, RequestStory
from listwatch.runtime.why import (
    Answer,
    KeyState,
    Settling,
    Verdict,
    answer,
    duration,
    ordinal,
    worst_first,
)
from listwatch.runtime.why_page import KeyAnswer
from listwatch.runtime.why_text import headline, story_lines
from runtime.lagging_world import LaggingWorld
from runtime.reconciler_world import World, widget


def request(version: str = "8", fields: Any = (("status.x", "1", "2"),)) -> RequestStory:
    return RequestStory(
        verb="PATCH",
        resource="widgets.example.com/status",
        key="ns/a",
        code=200,
        error="",
        version=version,
        ms=12.0,
        fields=fields,
        is_write=True,
    )


def story(number: int = 1, **more: Any) -> ReconcileStory:
    fields: dict[str, Any] = {
        "id": f"test-{number}",
        "attempt": 1,
        "began_at": 1000.0,
        "ago": 300.0,
        "seconds": 0.1,
        "waited": 0.0,
        "trigger": Trigger("Updated", "widgets", "ns/a", "7"),
        "newest": None,
        "merged": 0,
        "wakes_itself": False,
        "caches": [CacheStory("widgets", "7")],
        "requests": [],
        "unkept": 0,
        "result": "success",
        "error": "",
        "place": "",
        "next_in": None,
    }
    return ReconcileStory(**fields | more)


def failed(**more: Any) -> ReconcileStory:
    return story(
        result="error", error="ConflictError: changed", place="c.py:12 in reconcile", **more
    )


def flips(count: int) -> Sequence[ReconcileStory]:
    return [
        story(number, ago=2.0 * (count - number), wakes_itself=True, requests=[request()])
        for number in range(count)
    ]


def running(seconds: float) -> KeyState:
    sent = msg_without_answer()
    return state(running=seconds, stories=[story(seconds=None, ago=seconds, requests=[sent])])


def msg_without_answer() -> RequestStory:
    return RequestStory(
        verb="GET",
        resource="pods",
        key="ns/p",
        code=0,
        error="",
        version="",
        ms=None,
        fields=None,
        is_write=False,
    )


def state(**more: Any) -> KeyState:
    return KeyState(**{"reconciler": "test", "key": "ns/a", "cached": "7"} | more)


@pytest.mark.parametrize(
    ("known", "verdict", "words"),
    [
        (
            state(settling=Settling("deployments", "8841", "8790", "deployments ns/a", 3.2, 10.0)),
            Verdict.WAITING_FOR_CACHE,
            (
                "waiting for the cache of deployments to reach 8841 (at 8790), for 3.2 s of at "
                "most 10 s: it wrote deployments ns/a"
            ),
        ),
        (
            state(settling=Settling("deployments", "", "8790", "deployments ns/a", 1, 10)),
            Verdict.WAITING_FOR_CACHE,
            (
                "waiting for the cache of deployments to show what it wrote: deployments ns/a, "
                "for 1 s of at most 10 s"
            ),
        ),
        (
            state(due_in=41.4, failures=7, stories=[failed()]),
            Verdict.BACKING_OFF,
            (
                "backing off: next try in 41 s, 7th failure: ConflictError: changed at c.py:12 in "
                "reconcile"
            ),
        ),
        (
            state(due_in=-26.0, failures=1, busy=1, stories=[failed()]),
            Verdict.BACKING_OFF,
            (
                "backing off: next try due for 26 s (1 of 1 workers busy), 1st failure: "
                "ConflictError: changed at c.py:12 in reconcile"
            ),
        ),
        (
            state(due_in=None, stories=[failed()]),
            Verdict.GAVE_UP,
            "gave up until something changes: ConflictError: changed at c.py:12 in reconcile",
        ),
        (state(leads=False, leader="b"), Verdict.NOT_MINE, "not mine: replica b leads"),
        (state(leads=False), Verdict.NOT_MINE, "not mine: no replica leads yet"),
        (
            state(is_shared=True, is_mine=False, leader="c"),
            Verdict.NOT_MINE,
            "not mine: it is in the share of replica c",
        ),
        (
            state(unready=["pods: not synced: listing"]),
            Verdict.CACHE_NOT_READY,
            "its caches are not ready: pods: not synced: listing",
        ),
        (
            state(stories=[story()]),
            Verdict.DONE,
            "no change since; last reconcile 5 min ago changed nothing",
        ),
        (
            state(stories=[story(requests=[request()])]),
            Verdict.DONE,
            "no change since; last reconcile 5 min ago wrote widgets.example.com/status ns/a",
        ),
        (
            state(stories=[story(requests=[request(fields=())])]),
            Verdict.DONE,
            "no change since; last reconcile 5 min ago changed nothing",
        ),
        (
            state(cached="", stories=[story()]),
            Verdict.DONE,
            "its object is gone; no change since; last reconcile 5 min ago changed nothing",
        ),
        (
            state(cached="9", stories=[story()]),
            Verdict.MISSED,
            (
                "changed since to version 9, but no source woke it (a predicate?); last reconcile "
                "5 min ago changed nothing"
            ),
        ),
        (
            state(own_wakes=10, stories=flips(11)),
            Verdict.HOT,
            (
                "hot: wakes itself by writing status.x 30 times a minute: the field that flips is "
                "status.x: 1 → 2"
            ),
        ),
        (
            running(3),
            Verdict.RUNNING,
            "it is being reconciled, for 3 s; it waits for GET pods ns/p",
        ),
        (
            running(61),
            Verdict.STUCK,
            (
                "it is being reconciled, for 61 s; it waits for GET pods ns/p; set timeout= to end "
                "such reconciles"
            ),
        ),
        (
            state(due_in=-3.0, trigger=Trigger("Timer"), ahead=120, busy=4, workers=4),
            Verdict.QUEUED,
            "in the queue for 3 s, woken by a timer; 4 of 4 workers are busy, 120 keys are due",
        ),
        (
            state(due_in=-10.0, trigger=Trigger("Added", "pods", "ns/p", "6"), ahead=1),
            Verdict.QUEUED_LONG,
            (
                "in the queue for 10 s, woken by pods ns/p added at 6; 0 of 1 workers are busy, "
                "1 key is due"
            ),
        ),
        (
            state(due_in=30.0, stories=[story(result="requeue_after")]),
            Verdict.SCHEDULED,
            "next reconcile in 30 s, asked for by its last reconcile",
        ),
        (state(cached=""), Verdict.UNKNOWN, "never reconciled here, and not in the cache"),
    ],
)
def test_every_state_has_its_answer(known: KeyState, verdict: Verdict, words: str) -> None:
    assert answer(known) == Answer(verdict, words)


def test_a_key_that_woke_itself_a_while_ago_is_not_hot_any_more() -> None:
    known = state(own_wakes=10, stories=[story(ago=90, wakes_itself=True)])
    assert answer(known).verdict is Verdict.DONE


def test_the_worst_come_first_and_the_rest_is_left_out() -> None:
    states = [
        state(key="calm", stories=[story()]),
        state(key="hot", own_wakes=10, stories=flips(11)),
        state(key="twice", due_in=1.0, failures=2, stories=[failed()]),
        state(key="nine", due_in=1.0, failures=9, stories=[failed()]),
        state(key="given", stories=[failed()]),
    ]
    found = worst_first([(each, answer(each)) for each in states])
    assert [each.key for each, _ in found] == ["given", "nine", "twice", "hot"]


@given(
    st.builds(
        KeyState,
        reconciler=st.just("r"),
        key=st.text(max_size=5),
        leader=st.text(max_size=5),
        unready=st.lists(st.text(max_size=3), max_size=1),
        running=st.none() | st.floats(0, 1e6),
        due_in=st.none() | st.floats(-1e6, 1e6),
        trigger=st.none() | st.builds(Trigger, st.text(max_size=5), st.text(max_size=5)),
        failures=st.integers(0, 100),
        cached=st.sampled_from(["", "7", "9", "x"]),
        own_wakes=st.integers(0, 20),
        stories=st.lists(
            st.builds(
                story,
                ago=st.floats(0, 1e6),
                error=st.sampled_from(["", "E: e"]),
                seconds=st.none() | st.floats(0, 1e3),
                requests=st.lists(st.builds(request, fields=st.none() | st.just(())), max_size=2),
            ),
            max_size=4,
        ),
    )
)
def test_every_state_has_an_answer_that_a_terminal_can_show(known: KeyState) -> None:
    found = KeyAnswer(known, answer(known))
    for line in (headline(found), *story_lines(known)):
        assert line.isprintable()
        assert "\n" not in line


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (3.21, "3.2 s"),
        (10.0, "10 s"),
        (119.0, "119 s"),
        (125.0, "2 min"),
        (3900.0, "1 h 5 min"),
        (7200.0, "2 h"),
        (500_000.0, "5 days"),
    ],
)
def test_durations_are_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_ordinals_are_english() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th",
    ]  # fmt: skip


# --- From a running reconciler ---


def states_of(world: World, leadership: Leadership | None = None) -> KeyStates:
    return KeyStates(lambda: [world.reconciler], lambda: leadership or Leadership(), world.clock)


def about(world: World, key: str = "ns/a") -> Answer:
    ((_, found),) = states_of(world).about(key)
    return found


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (None, "no change since; last reconcile 1 s ago changed nothing"),
        (
            requeue_after(30),
            "next reconcile in 29 s, asked for by its last reconcile",
        ),
        (
            TerminalError("bad"),
            "gave up until something changes: TerminalError: bad at reconciler_world.py:",
        ),
    ],
)
async def test_a_running_reconciler_answers(outcome: Result | Exception | None, words: str) -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    world.outcomes["ns/a"] = [outcome]
    async with world.running():
        assert about(world).words.startswith(words)


async def test_a_key_that_fails_is_in_trouble_until_it_succeeds() -> None:
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    source.add(widget("a"))
    source.add(widget("b"))
    world.outcomes["ns/a"] = [ValueError("no")] * 12
    async with world.running():
        ((known, found),) = states_of(world).troubled()
        assert (known.key, found.verdict) == ("ns/a", Verdict.BACKING_OFF)
        assert found.words.startswith("backing off: next try in 275 ms, 8th failure: ")
        await world.clock.advance(100)
        assert states_of(world).troubled() == []


async def test_a_reconciler_knows_its_keys_and_similar_ones() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("web-1"))
    async with world.running():
        states = states_of(world)
        assert states.about("ns/other") == []
        assert states.similar("default/web") == ["ns/web-1"]
        ((_, found),) = states.about("ns/other", "test")
        assert found.verdict is Verdict.UNKNOWN


async def test_a_key_of_another_replica_is_not_mine() -> None:
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    async with world.running():
        ((_, found),) = states_of(world, Leadership(leads=False, leader="b")).about("ns/a")
        assert found.words == "not mine: replica b leads"
        shares = Leadership(member="x", members=("y",))
        ((_, found),) = states_of(world, shares).about("ns/a")
        assert found.words == "not mine: it is in the share of replica y"


async def test_while_the_cache_lags_a_key_waits_for_its_own_write() -> None:
    world = LaggingWorld(lag=0.0)
    world.reconciler.for_("widgets")
    world.source("widgets").add(widget("a", status={"x": 0}))

    @world.reconciler
    async def reconcile(key: str) -> None:
        obj = world.reconciler.get(key)
        if obj is not None and obj["status"]["x"] < 1:
            body = {**obj.to_dict(), "status": {"x": 1}}
            path = "/apis/example.com/v1/namespaces/ns/widgets/a"
            await world.http.request("PUT", path, body=json.dumps(body).encode())

    async with world.running() as reconciler:
        await world.clock.advance(1)
        world.rng.choice = max  # type: ignore[method-assign,assignment]  # always the longest lag
        world.lag = 9.0
        world.rng.uniform = max  # type: ignore[method-assign,assignment]  # as above
        world.source("widgets").modify(widget("a", status={"x": 0}))
        await world.clock.advance(10)
        ((known, found),) = states_of(world).about("ns/a")
        assert found.verdict is Verdict.WAITING_FOR_CACHE
        assert known.settling is not None
        assert int(known.settling.wanted) == int(known.settling.version) + 1
        await world.clock.advance(10)
        assert about(world).words.startswith("no change since")
        assert reconciler.own_writes is not None
        assert reconciler.own_writes.waiting_keys == []


async def test_a_reconcile_that_writes_again_and_again_is_hot_and_the_field_is_named() -> None:
    world = LaggingWorld()
    world.reconciler.for_("widgets")
    world.source("widgets").add(widget("a", status={"x": 0}))

    @world.reconciler
    async def reconcile(key: str) -> None:
        obj = world.reconciler.get(key)
        if obj is not None:
            body = {**obj.to_dict(), "status": {"x": 1 - obj["status"]["x"]}}
            path = "/apis/example.com/v1/namespaces/ns/widgets/a"
            await world.clock.sleep(2)
            await world.http.request("PUT", path, body=json.dumps(body).encode())

    async with world.running():
        await world.clock.advance(40)
        ((known, found),) = states_of(world).about("ns/a")
        assert known.own_wakes > 5
        assert known.running is not None
        assert found.verdict is Verdict.HOT
    assert found.words.startswith("hot: wakes itself by writing status.x ")
    assert " times a minute: the field that flips is status.x: " in found.words
