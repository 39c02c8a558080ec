import asyncio
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.workqueue.rate_limiters import (
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
    JitterRateLimiter,
    MaxOfRateLimiter,
    MaxWaitRateLimiter,
    RateLimiter,
    TokenBucket,
    default_item_based_rate_limiter,
    default_rate_limiter,
)

if TYPE_CHECKING:
    from collections.abc import Hashable


async def test_bucket_gives_its_burst_at_once_and_then_one_token_per_interval() -> None:
    clock = FakeClock()
    bucket = TokenBucket(10, 3, clock=clock)
    assert [bucket.reserve() for _ in range(6)] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])
    await clock.advance(0.3)
    assert bucket.reserve() == pytest.approx(0.1)


async def test_bucket_is_full_again_after_its_time_and_never_more_than_full() -> None:
    clock = FakeClock()
    bucket = TokenBucket(2, 4, clock=clock)
    assert [bucket.try_accept() for _ in range(5)] == [True] * 4 + [False]
    await clock.advance(100)
    assert [bucket.try_accept() for _ in range(5)] == [True] * 4 + [False]
    await clock.advance(0.5)
    assert [bucket.try_accept() for _ in range(2)] == [True, False]


async def test_accept_waits_to_the_exact_instant_in_turn() -> None:
    clock = FakeClock(now=0.0)
    bucket = TokenBucket(1, 1, clock=clock)
    times = []

    async def accept() -> None:
        await bucket.accept()
        times.append(clock.now())

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(accept())
        await clock.advance(10)
    assert times == [0.0, 1.0, 2.0, 3.0]


async def test_a_cancelled_accept_gives_its_token_back() -> None:
    clock = FakeClock()
    bucket = TokenBucket(1, 1, clock=clock)
    await bucket.accept()
    waiting = asyncio.ensure_future(bucket.accept())
    await clock.settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert bucket.reserve() == 1.0


async def test_a_token_given_back_before_others_in_turn_gives_nobody_more_than_the_rate() -> None:
    clock = FakeClock(now=0.0)
    bucket = TokenBucket(1, 1, clock=clock)
    times = []

    async def accept() -> None:
        await bucket.accept()
        times.append(clock.now())

    async with asyncio.TaskGroup() as group:
        group.create_task(accept())
        await clock.settle()
        cancelled = group.create_task(accept())
        group.create_task(accept())
        await clock.settle()
        cancelled.cancel()
        await clock.settle()
        group.create_task(accept())
        await clock.advance(10)
    assert times == [0.0, 2.0, 3.0]


async def test_a_long_run_of_the_bucket_does_not_drift() -> None:
    clock = FakeClock(now=0.0)
    bucket = TokenBucket(10, 100, clock=clock)
    waits = [bucket.reserve() for _ in range(100_000)]
    assert waits[-1] == (100_000 - 100) / 10


@pytest.mark.parametrize("qps", [0, -1, math.inf, math.nan])
def test_bucket_refuses_a_rate_that_is_none(qps: float) -> None:
    with pytest.raises(ValueError, match="qps must be a finite number above 0"):
        TokenBucket(qps, 1)


@pytest.mark.parametrize("burst", [0, -1, math.nan])
def test_bucket_refuses_to_hold_no_token(burst: int) -> None:
    with pytest.raises(ValueError, match="burst must be at least 1"):
        TokenBucket(1, burst)


@given(
    qps=st.sampled_from([0.5, 1.0, 3.0, 10.0]),
    burst=st.integers(1, 5),
    gaps=st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 7.0]), max_size=40),
)
def test_in_no_window_does_the_bucket_give_more_than_burst_and_rate(
    qps: float, burst: int, gaps: list[float]
) -> None:
    clock = FakeClock(now=0.0)
    bucket = TokenBucket(qps, burst, clock=clock)
    moments = []
    for gap in gaps:
        clock.stall(gap)
        moments.append(clock.now() + bucket.reserve())
    assert moments == sorted(moments)
    for first, start in enumerate(moments):
        for last in range(first, len(moments)):
            allowed = burst + (moments[last] - start) * qps
            assert last - first + 1 <= allowed + 1e-6


def test_a_bucket_limiter_counts_nothing_and_spends_a_token_for_any_item() -> None:
    limiter = BucketRateLimiter(TokenBucket(1, 2, clock=FakeClock()))
    assert [limiter.when("a"), limiter.when("a"), limiter.when("a"), limiter.when("b")] == [
        0,
        0,
        1,
        2,
    ]
    limiter.forget("a")
    assert (limiter.when("a"), limiter.num_requeues("a")) == (3, 0)


def test_exponential_doubles_per_item_up_to_the_limit_and_forget_starts_anew() -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(0.001, 1)
    assert [limiter.when("one") for _ in range(12)] == [
        *(0.001 * 2**n for n in range(10)),
        1,
        1,
    ]
    assert limiter.num_requeues("one") == 12
    assert (limiter.when("two"), limiter.when("two")) == (0.001, 0.002)
    assert limiter.num_requeues("two") == 2
    limiter.forget("one")
    assert (limiter.num_requeues("one"), limiter.when("one")) == (0, 0.001)
    limiter.forget("never seen")


def test_exponential_stays_at_its_limit_after_thousands_of_failures() -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter()
    assert [limiter.when("x") for _ in range(5000)][-1] == 1000.0


def test_fast_slow_waits_fast_for_so_many_attempts_then_slow() -> None:
    limiter: ItemFastSlowRateLimiter[str] = ItemFastSlowRateLimiter(0.005, 10, 3)
    assert [limiter.when("one") for _ in range(5)] == [0.005, 0.005, 0.005, 10, 10]
    assert (limiter.when("two"), limiter.num_requeues("one")) == (0.005, 5)
    limiter.forget("one")
    assert (limiter.num_requeues("one"), limiter.when("one")) == (0, 0.005)


def test_max_of_takes_the_longest_wait_the_largest_count_and_forgets_in_all() -> None:
    limiter: MaxOfRateLimiter[str] = MaxOfRateLimiter(
        ItemFastSlowRateLimiter(0.005, 3, 3), ItemExponentialFailureRateLimiter(0.001, 1)
    )
    assert [limiter.when("one") for _ in range(5)] == [0.005, 0.005, 0.005, 3, 3]
    assert limiter.num_requeues("one") == 5
    limiter.forget("one")
    assert (limiter.num_requeues("one"), limiter.when("one")) == (0, 0.005)


def test_max_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        MaxOfRateLimiter()


def test_max_wait_cuts_the_other_limiters_time() -> None:
    limiter: MaxWaitRateLimiter[str] = MaxWaitRateLimiter(
        ItemExponentialFailureRateLimiter(1, 1000), 5
    )
    assert [limiter.when("x") for _ in range(5)] == [1, 2, 4, 5, 5]
    assert limiter.num_requeues("x") == 5
    limiter.forget("x")
    assert (limiter.num_requeues("x"), limiter.when("x")) == (0, 1)


def test_jitter_stretches_by_its_factor_times_a_random_number() -> None:
    limiter: JitterRateLimiter[str] = JitterRateLimiter(
        ItemFastSlowRateLimiter(1, 1, 1), 0.5, uniform=iter([0.0, 0.5, 1.0]).__next__
    )
    assert [limiter.when("x") for _ in range(3)] == [1.0, 1.25, 1.5]
    assert limiter.num_requeues("x") == 3
    limiter.forget("x")
    assert limiter.num_requeues("x") == 0


def test_jitter_is_random_by_default_and_within_its_bounds() -> None:
    limiter: JitterRateLimiter[str] = JitterRateLimiter(ItemFastSlowRateLimiter(10, 10, 1))
    waits = {limiter.when("x") for _ in range(100)}
    assert len(waits) > 50
    assert 10.0 <= min(waits) <= max(waits) < 11.0


async def test_the_default_is_the_larger_of_exponential_and_bucket() -> None:
    clock = FakeClock(now=0.0)
    limiter = default_rate_limiter(clock)
    assert [limiter.when("x") for _ in range(4)] == [0.005, 0.01, 0.02, 0.04]
    assert [limiter.when(n) for n in range(96)] == [0.005] * 96  # the rest of the burst of 100
    assert [limiter.when(n) for n in range(1000, 1003)] == [0.1, 0.2, 0.3]
    limiter.forget("x")
    assert limiter.num_requeues("x") == 0
    assert limiter.when("x") == 0.4  # `forget` returned no tokens


def test_the_default_reaches_a_thousand_seconds_and_no_more() -> None:
    limiter = default_rate_limiter(FakeClock())
    assert max(limiter.when("x") for _ in range(50)) == 1000.0


def test_the_item_based_default_waits_from_a_millisecond_to_a_thousand_seconds() -> None:
    limiter = default_item_based_rate_limiter()
    waits = [limiter.when("x") for _ in range(30)]
    assert (waits[:3], waits[-1]) == ([0.001, 0.002, 0.004], 1000.0)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_limiters_refuse_what_is_no_time(value: float) -> None:
    with pytest.raises(ValueError, match="base must be a finite number of 0 or more"):
        ItemExponentialFailureRateLimiter(value)
    with pytest.raises(ValueError, match="limit must be"):
        MaxWaitRateLimiter(default_item_based_rate_limiter(), value)
    with pytest.raises(ValueError, match="factor must be"):
        JitterRateLimiter(default_item_based_rate_limiter(), value)
    with pytest.raises(ValueError, match="slow must be"):
        ItemFastSlowRateLimiter(1, value, 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_every_counting_limiter_counts_the_failures_since_the_last_forget(
    calls: list[tuple[str, bool]],
) -> None:
    each: list[RateLimiter[Hashable]] = [
        default_rate_limiter(FakeClock()),
        default_item_based_rate_limiter(),
        ItemFastSlowRateLimiter(1, 2, 3),
        JitterRateLimiter(default_item_based_rate_limiter()),
        MaxWaitRateLimiter(default_item_based_rate_limiter(), 1),
    ]
    for limiter in each:
        counts = dict.fromkeys("abc", 0)
        for item, forget in calls:
            if forget:
                limiter.forget(item)
                counts[item] = 0
            else:
                assert limiter.when(item) >= 0
                counts[item] += 1
            assert {key: limiter.num_requeues(key) for key in "abc"} == counts
