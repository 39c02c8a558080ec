import asyncio

import pytest

from listwatch.runtime.crash import handle_crash


def test_a_crash_is_logged_told_and_raised_again(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []
    with pytest.raises(ZeroDivisionError), handle_crash("the sum", told.append):
        _ = 1 / 0
    assert [type(error) for error in told] == [ZeroDivisionError]
    assert "the sum crashed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_loop_may_go_on_after_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    with handle_crash("the sum", reraise=False):
        int("x")
    assert "the sum crashed" in caplog.text


def test_a_handler_that_fails_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []

    def fail(error: BaseException) -> None:
        raise RuntimeError("tracker is away") from error

    with pytest.raises(ValueError, match="x"), handle_crash("it", fail, told.append):
        raise ValueError("x")
    assert len(told) == 1
    assert "a crash handler failed" in caplog.text


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_an_end_that_is_meant_is_no_crash(kind: type[BaseException]) -> None:
    told: list[BaseException] = []
    with pytest.raises(kind), handle_crash("it", told.append, reraise=False):
        raise kind
    assert told == []
