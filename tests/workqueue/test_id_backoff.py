"""Delays by id, with expiry."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.backoff import Backoff
from listwatch.clock import FakeClock
from listwatch.workqueue.id_backoff import IdBackoff

EXACT = Backoff(base=1.0, cap=8.0, spread=(1.0, 1.0))


async def test_each_id_has_its_own_growing_delay_until_a_success() -> None:
    clock = FakeClock()
    backoff: IdBackoff[str] = IdBackoff(EXACT, clock=clock)
    assert [backoff.failed("a") for _ in range(5)] == [1, 2, 4, 8, 8]
    assert (backoff.failed("b"), backoff.remaining("a"), backoff.remaining("c")) == (1, 8, 0)
    await clock.advance(3)
    assert (backoff.remaining("a"), backoff.remaining("b")) == (5, 0)
    backoff.reset("a")
    assert (backoff.remaining("a"), backoff.failed("a")) == (0, 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["failed", "reset", "wait"]), st.sampled_from("ab"), st.integers(0, 9)
    )
)


@given(STEPS)
async def test_an_id_without_failures_for_a_while_starts_afresh(
    steps: list[tuple[str, str, int]],
) -> None:
    clock = FakeClock()
    backoff: IdBackoff[str] = IdBackoff(EXACT, expiry=10, clock=clock)
    model: dict[str, tuple[int, float]] = {}
    for step, item, seconds in steps:
        if step == "wait":
            await clock.advance(seconds)
            model = {i: (n, at) for i, (n, at) in model.items() if clock.now() - at <= 10}
        elif step == "reset":
            backoff.reset(item)
            model.pop(item, None)
        else:
            failures = model.get(item, (0, 0.0))[0]
            assert backoff.failed(item) == min(8, 2**failures)
            model[item] = (failures + 1, clock.now())
        assert len(backoff) == len(model)


def test_an_expiry_within_a_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="at least the longest delay, 8 s"):
        IdBackoff(EXACT, expiry=7)


def test_threads_may_count_together() -> None:
    backoff: IdBackoff[int] = IdBackoff(Backoff(base=1.0, cap=1e9, spread=(1.0, 1.0)))

    def fail() -> None:
        for _ in range(5):
            backoff.failed(1)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backoff.failed(1) == 2**20
