"""The reflector's policy, as a table, without any input or output."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache import reflector_machine as machine
from listwatch.cache.backoff import Backoff
from listwatch.cache.reflector_machine import (
    Ended,
    Fault,
    Follow,
    List,
    Listed,
    Phase,
    Probe,
    Probed,
    Started,
    State,
    Stop,
    Stopped,
    Streaming,
    Wait,
    Watch,
    WatchList,
    Woke,
    fault_of,
    is_older,
    step,
)
from listwatch.errors import (
    BadRequestError,
    DisconnectedError,
    ExpiredError,
    ForbiddenError,
    FrameError,
    InvalidError,
    ServerTimeoutError,
    StatusError,
    TooManyRequestsError,
)

LISTING = State(Phase.LISTING, streaming=Streaming.NEVER)
STREAMING = State(Phase.WATCH_LISTING)
WATCHING = State(Phase.WATCHING, "7")
PROBING = State(Phase.PROBING, "7")
LONG = 30.0

TABLE = [
    # The beginning.
    (State(), Started(), WatchList(), Phase.WATCH_LISTING),
    (State(streaming=Streaming.NEVER), Started(), List(), Phase.LISTING),
    # The present state came.
    (STREAMING, Listed("7"), Follow(), Phase.WATCHING),
    (LISTING, Listed("7"), Watch("7"), Phase.WATCHING),
    # A list that failed.
    (LISTING, Ended(fault=Fault.UNREACHABLE), Wait(0), Phase.LISTING),
    (LISTING, Ended(fault=Fault.EXPIRED), Wait(0), Phase.LISTING),
    (LISTING, Ended(fault=Fault.THROTTLED, retry_after=9.0), Wait(0, 1.0, 9.0), Phase.LISTING),
    (LISTING, Ended(fault=Fault.TOO_LARGE, retry_after=1.0), Wait(0, 1.0, 1.0), Phase.LISTING),
    # A stream of initial events that did not end.
    (STREAMING, Ended(fault=Fault.UNREACHABLE), Wait(0), Phase.WATCH_LISTING),
    (STREAMING, Ended(fault=Fault.CUT), Wait(0), Phase.WATCH_LISTING),
    (STREAMING, Ended(fault=Fault.THROTTLED, retry_after=2.0), Wait(0, 1.0, 2.0), None),
    (STREAMING, Ended(fault=Fault.INVALID), List(), Phase.LISTING),
    (STREAMING, Ended(fault=Fault.NO_END), List(), Phase.LISTING),
    (STREAMING, Ended(fault=None), List(), Phase.LISTING),
    (STREAMING, Ended(fault=Fault.EXPIRED), Wait(0), Phase.LISTING),
    (STREAMING, Ended(fault=Fault.OTHER), Wait(0), Phase.LISTING),
    # A watch that was healthy.
    (WATCHING, Ended(resource_version="9", lasted=LONG), Watch("9"), Phase.WATCHING),
    (WATCHING, Ended(lasted=LONG, quiet=True), Probe(), Phase.PROBING),
    (WATCHING, Ended(fault=Fault.CUT, resource_version="9", lasted=LONG), Wait(0), Phase.WATCHING),
    (WATCHING, Ended(fault=Fault.SILENT, lasted=LONG), Probe(), Phase.PROBING),
    (WATCHING, Ended(fault=Fault.EXPIRED, lasted=LONG), Wait(0), Phase.WATCH_LISTING),
    (WATCHING, Ended(fault=Fault.SET_BACK, lasted=LONG), Wait(0), Phase.WATCH_LISTING),
    # A watch that was not.
    (WATCHING, Ended(lasted=1.0), Wait(0), Phase.WATCHING),
    (WATCHING, Ended(fault=Fault.CUT), Wait(0), Phase.WATCHING),
    (WATCHING, Ended(fault=Fault.THROTTLED, retry_after=5.0), Wait(0, 1.0, 5.0), Phase.WATCHING),
    (WATCHING, Ended(fault=Fault.UNREACHABLE), Wait(0), Phase.PROBING),
    (WATCHING, Ended(fault=Fault.EXPIRED), Wait(0), Phase.WATCH_LISTING),
    (WATCHING, Ended(fault=Fault.TOO_LARGE), Wait(0), Phase.WATCH_LISTING),
    (WATCHING, Ended(fault=Fault.OTHER), Wait(0), Phase.WATCH_LISTING),
    # An event was lost.
    (WATCHING, Ended(fault=Fault.STALE, stale=True), WatchList(), Phase.WATCH_LISTING),
    (WATCHING, Ended(lasted=1.0, stale=True), Wait(0), Phase.WATCH_LISTING),
    (WATCHING, Ended(fault=Fault.CUT, lasted=LONG, stale=True), Wait(0), Phase.WATCH_LISTING),
    # Without a position no watch can go on.
    (State(Phase.WATCHING, "0"), Ended(lasted=LONG), Wait(0), Phase.WATCH_LISTING),
    (State(Phase.WATCHING), Ended(lasted=LONG), Wait(0), Phase.WATCH_LISTING),
    # A probe.
    (PROBING, Probed("7"), Watch("7"), Phase.WATCHING),
    (PROBING, Probed("70"), Watch("7"), Phase.WATCHING),
    (PROBING, Probed("6"), WatchList(), Phase.WATCH_LISTING),
    (PROBING, Probed(""), Watch("7"), Phase.WATCHING),
    (PROBING, Ended(fault=Fault.UNREACHABLE), Wait(0), Phase.PROBING),
    (PROBING, Ended(fault=Fault.OTHER), Wait(0), Phase.WATCH_LISTING),
]


@pytest.mark.parametrize(("state", "message", "effect", "then"), TABLE)
def test_each_input_has_its_effect(
    state: State, message: machine.Input, effect: machine.Effect, then: Phase | None
) -> None:
    after, done = step(state, message)
    assert done == effect
    if isinstance(effect, Wait):
        assert after.phase is Phase.BACKING_OFF
        assert after.failures == state.failures + 1
        assert then is None or after.then is then
        woken, _ = step(after, Woke())
        assert woken.phase is after.then
    else:
        assert after.phase is then


def test_the_first_list_after_a_failed_watch_is_followed_by_a_watch_at_once() -> None:
    """The outage is over, it seems, and what happens next should not be heard of late."""
    state = State(Phase.LISTING, "7", failures=6, suspect=True)
    after, effect = step(state, Listed("9"))
    assert effect == Watch("9")
    assert step(after, Ended(fault=Fault.EXPIRED))[1] == Wait(6)


def test_every_further_list_is_followed_by_half_a_wait() -> None:
    """Else a watch that always fails costs two requests for each wait."""
    state = State(Phase.LISTING, "7", failures=3, suspect=True, listed=True)
    after, effect = step(state, Listed("9"))
    assert effect == Wait(3, 0.5)
    assert step(after, Woke())[1] == Watch("9")
    healthy, _ = step(State(Phase.WATCHING, "7", suspect=True, listed=True), Ended(lasted=30.0))
    assert not healthy.listed


def test_only_a_healthy_watch_makes_waits_short_again() -> None:
    state = State(Phase.WATCHING, "7", failures=5, suspect=True, streaming=Streaming.NOT_NOW)
    assert step(state, Ended(lasted=29.9))[1] == Wait(5)
    after, effect = step(state, Ended(fault=Fault.CUT, lasted=30.0))
    assert effect == Wait(0)
    assert (after.failures, after.suspect, after.streaming) == (1, False, Streaming.YES)


def test_a_server_that_does_not_know_initial_events_is_never_asked_again() -> None:
    after, _ = step(STREAMING, Ended(fault=Fault.INVALID))
    assert after.streaming is Streaming.NEVER
    watching, _ = step(after, Listed("7"))
    expired, _ = step(watching, Ended(fault=Fault.EXPIRED, lasted=LONG))
    assert step(expired, Woke())[1] == List()


def test_streams_that_break_again_and_again_give_way_to_a_list() -> None:
    state, effects = STREAMING, []
    for _ in range(5):
        state, _ = step(state, Ended(fault=Fault.CUT))
        state, effect = step(state, Woke())
        effects.append(effect)
        if effect == List():
            break
    assert effects == [WatchList(), WatchList(), WatchList(), List()]


def test_a_probe_that_proves_nothing_is_not_repeated() -> None:
    """The list works and the watch is refused: one request for each wait, not two."""
    state, effect = step(WATCHING, Ended(fault=Fault.UNREACHABLE))
    state, effect = step(state, Woke())
    assert effect == Probe()
    state, effect = step(state, Probed("7"))
    assert effect == Watch("7")
    state, effect = step(state, Ended(fault=Fault.UNREACHABLE))
    assert effect == Wait(1)
    assert step(state, Woke())[1] == Watch("7")


def test_a_retry_after_of_days_is_a_mistake() -> None:
    _, effect = step(LISTING, Ended(fault=Fault.THROTTLED, retry_after=1e9))
    assert effect == Wait(0, 1.0, 600.0)


@pytest.mark.parametrize("state", [State(), LISTING, STREAMING, WATCHING, PROBING])
def test_stopping_is_possible_in_every_state(state: State) -> None:
    after, effect = step(state, Stopped())
    assert after.phase is Phase.STOPPED
    assert effect == Stop()


@pytest.mark.parametrize(
    ("state", "message"),
    [(State(), Woke()), (WATCHING, Listed("8")), (LISTING, Probed("8")), (WATCHING, Started())],
)
def test_an_input_that_can_not_come_is_a_mistake(state: State, message: machine.Input) -> None:
    with pytest.raises(machine.UnexpectedInputError, match=f"in {state.phase}"):
        step(state, message)


@pytest.mark.parametrize(
    ("version", "than", "older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("99999999999999999999998", "99999999999999999999999", True),
        ("", "5", False),
        ("5", "", False),
        ("abc", "5", False),
        ("5", "abc", False),
    ],
)
def test_versions_are_numbers_or_not_compared(version: str, than: str, older: bool) -> None:
    assert is_older(version, than) is older


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_versions_compare_as_their_numbers(one: int, other: int) -> None:
    assert is_older(str(one), str(other)) is (one < other)


TOO_LARGE = {"causes": [{"reason": "ResourceVersionTooLarge"}]}


@pytest.mark.parametrize(
    ("error", "opened", "fault"),
    [
        (TooManyRequestsError(), False, Fault.THROTTLED),
        (ExpiredError(), True, Fault.EXPIRED),
        (ServerTimeoutError("Too large resource version: 9, current: 5"), False, Fault.TOO_LARGE),
        (ServerTimeoutError("", details=TOO_LARGE), False, Fault.TOO_LARGE),
        (ServerTimeoutError("slow"), False, Fault.OTHER),
        (BadRequestError(), False, Fault.INVALID),
        (InvalidError(), False, Fault.INVALID),
        (ForbiddenError(), False, Fault.OTHER),
        (StatusError("?"), True, Fault.OTHER),
        (TimeoutError(), True, Fault.SILENT),
        (DisconnectedError("", refused=True), True, Fault.UNREACHABLE),
        (DisconnectedError(""), False, Fault.UNREACHABLE),
        (DisconnectedError(""), True, Fault.CUT),
        (OSError(), True, Fault.CUT),
        (FrameError(), True, Fault.CUT),
        (FrameError(), False, Fault.OTHER),
        (ZeroDivisionError(), True, Fault.OTHER),
    ],
)
def test_errors_are_read(error: Exception, opened: bool, fault: Fault) -> None:
    assert fault_of(error, opened=opened) is fault


@given(st.integers(0, 10**6), st.randoms())
def test_a_delay_is_between_three_quarters_and_the_whole(failures: int, rng: random.Random) -> None:
    nominal = min(30.0, 0.8 * 2.0 ** min(failures, 40))
    assert 0.75 * nominal <= Backoff().delay(failures, rng) <= nominal
