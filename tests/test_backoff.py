"""Delays after failures, and calls that are retried until they succeed."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from listwatch import backoff
from listwatch.backoff import Backoff, on, retry
from listwatch.clock import FakeClock
from listwatch.errors import ConflictError, NotFoundError

POLICIES = {name: value for name, value in vars(backoff).items() if isinstance(value, Backoff)}
BACKOFFS = st.builds(
    Backoff,
    # Shorter delays than a nanosecond are not delays; their growth exceeds what a float holds.
    base=st.just(0.0) | st.floats(1e-9, 100.0),
    cap=st.floats(0.0, 1000.0),
    factor=st.floats(1.0, 10.0),
    spread=st.tuples(st.floats(0.0, 1.0), st.floats(1.0, 3.0)),
)


@given(BACKOFFS | st.sampled_from(list(POLICIES.values())), st.integers(0, 10**6), st.randoms())
@example(Backoff(base=0.0, cap=1.0), 10**6, random.Random(1))
def test_a_delay_is_the_shorter_of_growth_and_cap_times_chance(
    policy: Backoff, failures: int, rng: random.Random
) -> None:
    nominal = policy.base
    for _ in range(min(failures, 10_000)):
        if nominal in {0.0, nominal * policy.factor} or nominal >= policy.cap:
            break
        nominal *= policy.factor
    nominal = min(nominal, policy.cap)
    least, greatest = policy.spread
    delay = policy.delay(failures, rng)
    assert nominal * least * (1 - 1e-9) <= delay <= nominal * greatest * (1 + 1e-9)


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_tries_again_at_once_or_with_shrinking_delays(name: str) -> None:
    policy = POLICIES[name]
    delays = [policy.base * policy.factor**n for n in range(50)]
    assert policy.spread[0] * policy.base > 0
    assert policy.base <= policy.cap
    assert delays == sorted(delays)


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (backoff.REQUEUE, [0.005, 0.01, 0.02, 0.04, 0.08, 0.16]),
        (backoff.WORK_ITEM, [0.005, 0.01, 0.02, 0.04, 0.08, 0.16]),
        (backoff.LOAD_BALANCER, [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]),
        (backoff.CONNECT_LIMIT, [5.0, 10.0, 20.0, 30.0, 30.0]),
        (backoff.START, [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
        (backoff.STREAM, [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]),
        (backoff.EVENT, [10.0, 10.0]),
        (backoff.COMMAND.starting_at(7.0), [7.0, 14.0, 28.0, 56.0, 60.0, 60.0]),
        (backoff.COMMAND.starting_at(90.0), [90.0, 90.0]),
        (backoff.COMMAND_START, [0.5, 1.0, 2.0, 4.0, 8.0]),
        (backoff.SERVER_START.constant(3.0), [3.0, 3.0]),
    ],
)
def test_delays_without_chance_are_the_documented_ones(
    policy: Backoff, delays: list[float]
) -> None:
    assert [policy.delay(n) for n in range(len(delays))] == delays


def test_the_same_chance_gives_the_same_delays() -> None:
    first, second = random.Random(7), random.Random(7)
    delays = [backoff.ELECTION.delay(n, first) for n in range(5)]
    assert delays == [backoff.ELECTION.delay(n, second) for n in range(5)]
    assert len(set(delays)) == 5


class Failing:
    """Raise the given errors in turn, then succeed; record the times of the calls."""

    def __init__(self, clock: FakeClock, errors: list[Exception]) -> None:
        self.clock = clock
        self.errors = errors
        self.at: list[float] = []

    async def __call__(self) -> str:
        self.at.append(self.clock.now() - 1000.0)
        if self.errors:
            raise self.errors.pop(0)
        return "done"


class Passing(FakeClock):
    """A clock that sleep() advances at once."""

    async def sleep(self, seconds: float) -> None:
        self._now += seconds


EXACT = Backoff(base=1.0, cap=8.0, spread=(1.0, 1.0), tries=4)


async def test_what_fails_is_tried_again_after_each_delay() -> None:
    call = Failing(clock := Passing(), [ConflictError() for _ in range(3)])
    assert await retry(call, EXACT, on(ConflictError), clock=clock) == "done"
    assert call.at == [0.0, 1.0, 3.0, 7.0]


async def test_the_last_try_raises_what_it_raised() -> None:
    errors: list[Exception] = [ConflictError(str(n)) for n in range(9)]
    call = Failing(clock := Passing(), errors)
    with pytest.raises(ConflictError, match="3"):
        await retry(call, EXACT, on(ConflictError), clock=clock)
    assert call.at == [0.0, 1.0, 3.0, 7.0]


async def test_an_error_that_no_try_can_help_comes_out_at_once() -> None:
    call = Failing(clock := Passing(), [ConflictError(), NotFoundError()])
    with pytest.raises(NotFoundError):
        await retry(call, EXACT, on(ConflictError), clock=clock)
    assert call.at == [0.0, 1.0]


async def test_whoever_is_asked_may_choose_another_delay() -> None:
    call = Failing(clock := Passing(), [ConflictError(), ConflictError()])
    await retry(call, EXACT, lambda _, delay: delay + 10, clock=clock)
    assert call.at == [0.0, 11.0, 23.0]
