import pytest

from listwatch.clock import FakeClock
from listwatch.testing import eventually


async def test_the_first_true_value_is_returned() -> None:
    values = iter([0, 0, 7])
    assert await eventually(lambda: next(values), clock=FakeClock()) == 7


async def test_a_coroutine_function_is_a_condition_too() -> None:
    values = iter(["", "done"])

    async def condition() -> str:
        return next(values)

    assert await eventually(condition, clock=FakeClock()) == "done"


async def test_a_fake_clock_is_moved_while_waiting() -> None:
    clock = FakeClock()
    begun = clock.now()
    await eventually(lambda: clock.now() >= begun + 5, clock=clock)
    assert clock.now() == pytest.approx(begun + 5, abs=0.03)


async def test_too_late_is_an_assertion_error_that_says_what_came_last() -> None:
    with pytest.raises(AssertionError, match=r"^not within 3 s: the condition gave 0$"):
        await eventually(lambda: 0, seconds=3, clock=FakeClock())
    with pytest.raises(AssertionError, match=r"^not within 3 s: all is well$"):
        await eventually(lambda: 0, "all is well", seconds=3, clock=FakeClock())


async def test_an_assertion_means_not_yet_and_is_the_cause_at_the_end() -> None:
    found: list[int] = []

    def condition() -> bool:
        found.append(1)
        assert len(found) > 3, "too few"
        return True

    assert await eventually(condition, clock=FakeClock())

    def never() -> bool:
        raise AssertionError("too few")

    with pytest.raises(AssertionError, match="not within 1 s: too few") as caught:
        await eventually(never, seconds=1, clock=FakeClock())
    assert str(caught.value.__cause__) == "too few"


async def test_any_other_exception_passes_through() -> None:
    def broken() -> bool:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await eventually(broken, clock=FakeClock())


async def test_exceptions_that_mean_not_yet_can_be_named() -> None:
    found: list[int] = []

    def condition() -> bool:
        found.append(1)
        if len(found) < 3:
            raise LookupError("no such thing")
        return True

    assert await eventually(condition, ignoring=LookupError, clock=FakeClock())
    found.clear()
    with pytest.raises(LookupError):
        await eventually(condition, ignoring=(KeyError, ValueError), clock=FakeClock())

    def never() -> bool:
        raise LookupError("no such thing")

    with pytest.raises(AssertionError, match="not within 1 s: LookupError: no such thing"):
        await eventually(never, seconds=1, ignoring=LookupError, clock=FakeClock())
