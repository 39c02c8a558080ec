"""The reflector's policy as a table, without I/O."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.backoff import REFLECTOR, RequestBudget
from listwatch.cache import reflector_machine as machine
from listwatch.cache.reflector_machine import (
    Bookmarks,
    Ended,
    Follow,
    Inquire,
    Inquired,
    List,
    Listed,
    OpenWatch,
    Phase,
    Probe,
    Probed,
    RequestFault,
    Started,
    State,
    Stop,
    Stopped,
    Streaming,
    Wait,
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
    NotFoundError,
    ServerTimeoutError,
    StatusError,
    TooManyRequestsError,
)

LISTING = State(Phase.LISTING, streaming=Streaming.NEVER)
RELISTING = State(Phase.LISTING, "7")
INQUIRING = State(Phase.INQUIRING, "7")
STREAMING = State(Phase.WATCH_LISTING)
WATCHING = State(Phase.WATCHING, "7")
PROBING = State(Phase.PROBING, "7")
LONG = 30.0
#: A wait that ends as soon as the server is reachable.
AWAY = Wait(0, for_server=True)

TABLE = [
    # Start.
    (State(), Started(), WatchList(), Phase.WATCH_LISTING),
    (State(streaming=Streaming.NEVER), Started(), List(), Phase.LISTING),
    # The current state arrived.
    (STREAMING, Listed("7"), Follow(), Phase.WATCHING),
    (LISTING, Listed("7"), OpenWatch("7"), Phase.WATCHING),
    # A list failed.
    (LISTING, Ended(fault=RequestFault.UNREACHABLE), AWAY, Phase.LISTING),
    (LISTING, Ended(fault=RequestFault.NOT_FOUND), Wait(0), Phase.LISTING),
    # A list says that the resource no longer exists.
    (RELISTING, Ended(fault=RequestFault.NOT_FOUND), Inquire(), Phase.INQUIRING),
    (INQUIRING, Inquired(gone=True), Wait(0), Phase.LISTING),
    (INQUIRING, Inquired(gone=False), Wait(0), Phase.LISTING),
    (INQUIRING, Ended(fault=RequestFault.UNREACHABLE), AWAY, Phase.LISTING),
    (LISTING, Ended(fault=RequestFault.EXPIRED), Wait(0), Phase.LISTING),
    (
        LISTING,
        Ended(fault=RequestFault.THROTTLED, retry_after=9.0),
        Wait(0, 1.0, 9.0),
        Phase.LISTING,
    ),
    (
        LISTING,
        Ended(fault=RequestFault.TOO_LARGE, retry_after=1.0),
        Wait(0, 1.0, 1.0),
        Phase.LISTING,
    ),
    # A stream of initial events did not end.
    (STREAMING, Ended(fault=RequestFault.UNREACHABLE), AWAY, Phase.WATCH_LISTING),
    (STREAMING, Ended(fault=RequestFault.NOT_FOUND), Wait(0), Phase.LISTING),
    (STREAMING, Ended(fault=RequestFault.CUT), Wait(0), Phase.WATCH_LISTING),
    (STREAMING, Ended(fault=RequestFault.THROTTLED, retry_after=2.0), Wait(0, 1.0, 2.0), None),
    (STREAMING, Ended(fault=RequestFault.INVALID), List(), Phase.LISTING),
    (STREAMING, Ended(fault=RequestFault.NO_END), List(), Phase.LISTING),
    (STREAMING, Ended(fault=None), List(), Phase.LISTING),
    (STREAMING, Ended(fault=RequestFault.EXPIRED), List(), Phase.LISTING),
    (STREAMING, Ended(fault=RequestFault.OTHER), Wait(0), Phase.LISTING),
    # A healthy watch ended.
    (WATCHING, Ended(resource_version="9", lasted=LONG), OpenWatch("9"), Phase.WATCHING),
    (WATCHING, Ended(lasted=LONG, quiet=True), Probe(), Phase.PROBING),
    (
        WATCHING,
        Ended(fault=RequestFault.CUT, resource_version="9", lasted=LONG),
        Wait(0),
        Phase.WATCHING,
    ),
    (WATCHING, Ended(fault=RequestFault.SILENT, lasted=LONG), OpenWatch("7"), Phase.WATCHING),
    (WATCHING, Ended(fault=RequestFault.EXPIRED, lasted=LONG), WatchList(), Phase.WATCH_LISTING),
    (WATCHING, Ended(fault=RequestFault.SET_BACK, lasted=LONG), Wait(0), Phase.WATCH_LISTING),
    # An unhealthy watch ended.
    (WATCHING, Ended(lasted=1.0), Wait(0), Phase.WATCHING),
    (WATCHING, Ended(fault=RequestFault.CUT), Wait(0), Phase.WATCHING),
    (
        WATCHING,
        Ended(fault=RequestFault.THROTTLED, retry_after=5.0),
        Wait(0, 1.0, 5.0),
        Phase.WATCHING,
    ),
    (WATCHING, Ended(fault=RequestFault.UNREACHABLE), AWAY, Phase.PROBING),
    (WATCHING, Ended(fault=RequestFault.SILENT), Probe(), Phase.PROBING),
    (WATCHING, Ended(fault=RequestFault.USELESS), Wait(0), Phase.WATCHING),
    (WATCHING, Ended(fault=RequestFault.NOT_FOUND), Wait(0), Phase.LISTING),
    (WATCHING, Ended(fault=RequestFault.EXPIRED), WatchList(), Phase.WATCH_LISTING),
    (WATCHING, Ended(fault=RequestFault.TOO_LARGE), Wait(0), Phase.WATCH_LISTING),
    (WATCHING, Ended(fault=RequestFault.OTHER), Wait(0), Phase.WATCH_LISTING),
    # An event was lost.
    (WATCHING, Ended(fault=RequestFault.STALE, stale=True), WatchList(), Phase.WATCH_LISTING),
    (WATCHING, Ended(lasted=1.0, stale=True), Wait(0), Phase.WATCH_LISTING),
    (
        WATCHING,
        Ended(fault=RequestFault.CUT, lasted=LONG, stale=True),
        Wait(0),
        Phase.WATCH_LISTING,
    ),
    # No watch can resume without a position.
    (State(Phase.WATCHING, "0"), Ended(lasted=LONG), Wait(0), Phase.WATCH_LISTING),
    (State(Phase.WATCHING), Ended(lasted=LONG), Wait(0), Phase.WATCH_LISTING),
    # A probe.
    (PROBING, Probed("7"), OpenWatch("7"), Phase.WATCHING),
    (PROBING, Probed("70"), OpenWatch("7"), Phase.WATCHING),
    (PROBING, Probed("6"), WatchList(), Phase.WATCH_LISTING),
    (PROBING, Probed(""), OpenWatch("7"), Phase.WATCHING),
    (PROBING, Ended(fault=RequestFault.UNREACHABLE), AWAY, Phase.PROBING),
    (PROBING, Ended(fault=RequestFault.NOT_FOUND), Wait(0), Phase.LISTING),
    (PROBING, Ended(fault=RequestFault.OTHER), Wait(0), Phase.WATCH_LISTING),
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
    """The outage seems to be over, so new events must not arrive late."""
    state = State(Phase.LISTING, "7", failures=6, suspect=True, acted=True)
    after, effect = step(state, Listed("9"))
    assert effect == OpenWatch("9")
    assert step(after, Ended(fault=RequestFault.EXPIRED))[1] == Wait(6)


def test_a_410_is_acted_upon_at_once_but_only_once() -> None:
    state, effect = step(State(Phase.WATCHING, "7", failures=6), Ended(fault=RequestFault.EXPIRED))
    assert effect == WatchList()
    state, effect = step(state, Listed("9"))
    assert effect == Follow()
    state, effect = step(state, Ended(fault=RequestFault.EXPIRED))
    assert effect == Wait(6)
    state, _ = step(state, Woke())
    state, _ = step(state, Listed("9"))
    state, effect = step(state, Ended(fault=RequestFault.EXPIRED, lasted=LONG))
    assert effect == WatchList()


def test_a_server_that_was_away_and_is_back_is_asked_without_the_waits_of_before() -> None:
    """A probe checks its version first: it may have been restored meanwhile."""
    state = State(Phase.WATCHING, "7", failures=9, suspect=True, probed=True, acted=True)
    state, effect = step(state, Ended(fault=RequestFault.UNREACHABLE))
    assert effect == Wait(9, for_server=True)
    state, effect = step(state, Woke(restored=True))
    assert effect == Probe()
    assert (state.failures, state.acted) == (0, False)
    state, effect = step(state, Probed("7"))
    assert effect == OpenWatch("7")
    assert step(state, Ended(fault=RequestFault.EXPIRED))[1] == WatchList()


def test_a_wait_for_a_server_that_was_never_away_changes_nothing() -> None:
    state, _ = step(State(Phase.WATCHING, "7", failures=9), Ended(fault=RequestFault.UNREACHABLE))
    state, _ = step(state, Woke(restored=False))
    assert state.failures == 10


SILENT = Ended(fault=RequestFault.SILENT, lasted=75.0)


def test_a_second_silence_in_a_row_means_that_there_are_no_bookmarks() -> None:
    state, effect = step(WATCHING, SILENT)
    assert (state.bookmarks, effect) == (Bookmarks.DOUBTED, OpenWatch("7"))
    state, effect = step(state, SILENT)
    assert (state.bookmarks, effect) == (Bookmarks.NONE, Probe())
    state, effect = step(state, Probed("7"))
    assert (state.bookmarks, effect) == (Bookmarks.NONE, OpenWatch("7"))
    state, effect = step(state, SILENT)
    assert (state.bookmarks, effect) == (Bookmarks.NONE, Probe())


@pytest.mark.parametrize("before", [Bookmarks.DOUBTED, Bookmarks.NONE])
def test_a_bookmark_means_that_there_are_bookmarks(before: Bookmarks) -> None:
    state = State(Phase.WATCHING, "7", bookmarks=before)
    state, effect = step(state, Ended(lasted=300.0, bookmarked=True))
    assert (state.bookmarks, effect) == (Bookmarks.EXPECTED, OpenWatch("7"))
    state = State(Phase.WATCHING, "7", bookmarks=before)
    state, effect = step(state, Ended(fault=RequestFault.SILENT, lasted=200.0, bookmarked=True))
    assert (state.bookmarks, effect) == (Bookmarks.DOUBTED, OpenWatch("7"))


def test_a_server_that_was_set_back_is_found_by_the_second_silence() -> None:
    state, _ = step(WATCHING, SILENT)
    state, _ = step(state, SILENT)
    assert step(state, Probed("5"))[1] == WatchList()


def test_what_is_gone_is_not_asked_for_again_and_listed_when_it_is_back() -> None:
    state, _ = step(RELISTING, Ended(fault=RequestFault.NOT_FOUND))
    state, _ = step(state, Inquired(gone=True))
    for _ in range(3):
        state, effect = step(state, Woke())
        assert effect == List()
        state, effect = step(state, Ended(fault=RequestFault.NOT_FOUND))
        assert isinstance(effect, Wait)
    state, _ = step(state, Woke())
    assert step(state, Listed("20"))[1] == OpenWatch("20")


def test_what_may_be_there_is_asked_for_again() -> None:
    state, _ = step(INQUIRING, Inquired(gone=False))
    state, _ = step(state, Woke())
    assert step(state, Ended(fault=RequestFault.NOT_FOUND))[1] == Inquire()


def test_every_further_list_is_followed_by_half_a_wait() -> None:
    """Otherwise a watch that always fails would cost two requests per wait."""
    state = State(Phase.LISTING, "7", failures=3, suspect=True, listed=True)
    after, effect = step(state, Listed("9"))
    assert effect == Wait(3, 0.5)
    assert step(after, Woke())[1] == OpenWatch("9")
    healthy, _ = step(State(Phase.WATCHING, "7", suspect=True, listed=True), Ended(lasted=30.0))
    assert not healthy.listed


def test_only_a_healthy_watch_makes_waits_short_again() -> None:
    state = State(Phase.WATCHING, "7", failures=5, suspect=True, streaming=Streaming.NOT_NOW)
    assert step(state, Ended(lasted=29.9))[1] == Wait(5)
    after, effect = step(state, Ended(fault=RequestFault.CUT, lasted=30.0))
    assert effect == Wait(0)
    assert (after.failures, after.suspect, after.streaming) == (1, False, Streaming.YES)


def test_a_server_that_does_not_know_initial_events_is_never_asked_again() -> None:
    after, _ = step(STREAMING, Ended(fault=RequestFault.INVALID))
    assert after.streaming is Streaming.NEVER
    watching, _ = step(after, Listed("7"))
    assert step(watching, Ended(fault=RequestFault.EXPIRED, lasted=LONG))[1] == List()


def test_streams_that_break_again_and_again_give_way_to_a_list() -> None:
    state, effects = STREAMING, []
    for _ in range(5):
        state, _ = step(state, Ended(fault=RequestFault.CUT))
        state, effect = step(state, Woke())
        effects.append(effect)
        if effect == List():
            break
    assert effects == [WatchList(), WatchList(), WatchList(), List()]


def test_a_probe_that_proves_nothing_is_not_repeated() -> None:
    """The list works but the watch is refused: one request per wait, not two."""
    state, effect = step(WATCHING, Ended(fault=RequestFault.UNREACHABLE))
    state, effect = step(state, Woke())
    assert effect == Probe()
    state, effect = step(state, Probed("7"))
    assert effect == OpenWatch("7")
    state, effect = step(state, Ended(fault=RequestFault.UNREACHABLE))
    assert effect == Wait(1, for_server=True)
    assert step(state, Woke())[1] == OpenWatch("7")


def test_a_retry_after_of_days_is_a_mistake() -> None:
    _, effect = step(LISTING, Ended(fault=RequestFault.THROTTLED, retry_after=1e9))
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
        (TooManyRequestsError(), False, RequestFault.THROTTLED),
        (ExpiredError(), True, RequestFault.EXPIRED),
        (
            ServerTimeoutError("Too large resource version: 9, current: 5"),
            False,
            RequestFault.TOO_LARGE,
        ),
        (ServerTimeoutError("", details=TOO_LARGE), False, RequestFault.TOO_LARGE),
        (ServerTimeoutError("slow"), False, RequestFault.OTHER),
        (BadRequestError(), False, RequestFault.INVALID),
        (InvalidError(), False, RequestFault.INVALID),
        (ForbiddenError(), False, RequestFault.OTHER),
        (NotFoundError(), False, RequestFault.NOT_FOUND),
        (StatusError("?"), True, RequestFault.OTHER),
        (TimeoutError(), True, RequestFault.SILENT),
        (DisconnectedError("", refused=True), True, RequestFault.UNREACHABLE),
        (DisconnectedError(""), False, RequestFault.UNREACHABLE),
        (DisconnectedError(""), True, RequestFault.CUT),
        (OSError(), True, RequestFault.CUT),
        (FrameError(), True, RequestFault.CUT),
        (FrameError(), False, RequestFault.OTHER),
        (ZeroDivisionError(), True, RequestFault.OTHER),
    ],
)
def test_errors_are_read(error: Exception, opened: bool, fault: RequestFault) -> None:
    assert fault_of(error, opened=opened) is fault


@given(st.integers(0, 10**6), st.randoms())
def test_a_delay_is_between_three_quarters_and_the_whole(failures: int, rng: random.Random) -> None:
    nominal = min(30.0, 0.8 * 2.0 ** min(failures, 40))
    assert 0.75 * nominal <= REFLECTOR.delay(failures, rng) <= nominal


# --- Any sequence of outcomes --------------------------------------------------------------------

ENDS = st.builds(
    Ended,
    fault=st.one_of(st.none(), st.sampled_from(RequestFault)),
    resource_version=st.sampled_from(["", "0", "7", "9"]),
    lasted=st.sampled_from([0.0, 5.0, 40.0, 80.0]),
    quiet=st.booleans(),
    bookmarked=st.booleans(),
    stale=st.booleans(),
    retry_after=st.sampled_from([0.0, 1.0]),
)
ANSWERS: dict[type[machine.Effect], st.SearchStrategy[machine.Input]] = {
    List: st.one_of(ENDS, st.builds(Listed, st.sampled_from(["7", "9"]))),
    WatchList: st.one_of(ENDS, st.builds(Listed, st.sampled_from(["7", "9"]))),
    OpenWatch: ENDS,
    Follow: ENDS,
    Probe: st.one_of(ENDS, st.builds(Probed, st.sampled_from(["", "5", "9"]))),
    Inquire: st.one_of(ENDS, st.builds(Inquired, st.booleans())),
    Wait: st.builds(Woke, st.booleans()),
}


@given(st.data())
def test_whatever_happens_no_request_loop_runs_without_waits(data: st.DataObject) -> None:
    """Send at most five requests between two waits or healthy watches.

    No watch starts without a position.
    """
    state, effect = step(State(), Started())
    requests = 0
    for _ in range(60):
        answer = data.draw(ANSWERS[type(effect)])
        if isinstance(effect, Wait) or (isinstance(answer, Ended) and answer.lasted >= LONG):
            requests = 0
        state, effect = step(state, answer)
        if not isinstance(effect, Wait | Follow):
            requests += 1
        assert requests <= 5
        if isinstance(effect, OpenWatch):
            assert effect.resource_version


@given(st.lists(st.floats(0.0, 20.0), max_size=200))
def test_a_budget_lets_few_requests_through_whenever_they_are_wanted(gaps: list[float]) -> None:
    budget, now, sent = RequestBudget(), 1000.0, []
    budget.failed(now)
    for gap in gaps:
        now += gap
        now += budget.delay(now)
        budget.spend(now)
        sent.append(now - 1000.0)
    assert sum(at < 60.0 for at in sent) <= 12
    for at in sent:
        if at >= 60.0:
            assert sum(at <= other < at + 60.0 for other in sent) <= 4


def test_a_budget_holds_nobody_up_while_all_is_well() -> None:
    budget = RequestBudget()
    for _ in range(100):
        assert budget.delay(5.0) == 0.0
        budget.spend(5.0)
    budget.failed(5.0)
    for _ in range(12):
        assert budget.delay(6.0) == 0.0
        budget.spend(6.0)
    assert budget.delay(6.0) == 59.0
    budget.refund()  # a refused connection sends no request
    assert budget.delay(6.0) == 0.0
    budget.recovered()
    assert budget.delay(6.0) == 0.0
